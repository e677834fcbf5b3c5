/* Connections that fail, or arrive all at once. */
#include "support/test.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/deadline.h"
#include "world/net/reactor.h"

#define ANSWER_NS (100 * NS_PER_MS)

static banyan_status admit(void *owner, struct link *link)
{
    (void)owner;
    (void)link;
    return BANYAN_OK;
}

struct caller {
    struct reactor reactor;
    unsigned char key[WIRE_KEY_BYTES];
    int closed, ready;
    banyan_status status;
};

static void note_ready(void *owner, struct link *link)
{
    struct caller *caller = owner;
    (void)link;
    caller->ready++;
}

static void note_closed(void *owner, struct link *link, banyan_status status)
{
    struct caller *caller = owner;
    (void)link;
    caller->closed++;
    caller->status = status;
}

static banyan_status take(void *owner, struct link *link, const struct wire_frame *frame,
                          void *payload, int fd)
{
    (void)owner;
    (void)link;
    (void)frame;
    (void)fd;
    free(payload);
    return BANYAN_OK;
}

static const struct reactor_ops ops = {
    .link = {.admit = admit, .ready = note_ready, .frame = take},
    .closed = note_closed,
};

static void open_caller(struct caller *caller, uint64_t answer_ns)
{
    *caller = (struct caller){.status = BANYAN_OK};
    memset(caller->key, 7, sizeof caller->key);
    CHECK_OK(reactor_open(&caller->reactor, WIRE_PURPOSE_PEER, 0, caller->key, &ops, caller));
    caller->reactor.name = "a test";
    caller->reactor.answer_ns = answer_ns;
}

static int listen_at_random(struct address *address, bool tcp)
{
    int fd, port;
    if (tcp) {
        CHECK_OK(address_listen_tcp(true, 0, &fd, &port));
        *address = address_loopback(port);
        return fd;
    }
    char name[ADDRESS_NAME_BYTES];
    address_random_name(name);
    *address = address_unix(name);
    CHECK_OK(address_listen(address, &fd));
    return fd;
}

/* It listens, but does not accept: a hanging process, or a child with its parent's descriptors. */
static void a_silent_peer_is_given_up_in_time(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        struct address address;
        struct caller caller;
        int listener = listen_at_random(&address, tcp);
        open_caller(&caller, ANSWER_NS);
        assert_non_null(reactor_connect(&caller.reactor, &address, "nobody", 0, 1));
        uint64_t began = time_now_ns();
        while (caller.closed == 0 && time_now_ns() - began < 5 * NS_PER_S)
            reactor_step(&caller.reactor, NS_PER_S);
        uint64_t took_ns = time_now_ns() - began;
        assert_int_equal(caller.closed, 1);
        assert_int_equal(caller.status, BANYAN_ERR_SYSTEM); /* so that it is tried again */
        assert_true(took_ns >= ANSWER_NS && took_ns < 2 * NS_PER_S);
        assert_int_equal(caller.reactor.handshakes, 0);
        reactor_close(&caller.reactor);
        close(listener);
    }
}

static void without_a_limit_it_is_waited_for(void **state)
{
    (void)state;
    struct address address;
    struct caller caller;
    int listener = listen_at_random(&address, false);
    open_caller(&caller, 0);
    assert_non_null(reactor_connect(&caller.reactor, &address, "nobody", 0, 1));
    for (int i = 0; i < 10; i++)
        reactor_step(&caller.reactor, 50 * NS_PER_MS);
    assert_int_equal(caller.closed, 0);
    reactor_close(&caller.reactor);
    close(listener);
}

/* An answer that comes late, but within the limit, counts from then on. */
static void a_late_answer_is_kept(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        struct address address;
        struct caller caller, callee;
        int listener = listen_at_random(&address, tcp);
        open_caller(&caller, 20 * ANSWER_NS);
        open_caller(&callee, 0);
        callee.reactor.rank = 1;
        assert_non_null(reactor_connect(&caller.reactor, &address, "somebody", 0, 1));
        reactor_step(&caller.reactor, ANSWER_NS);
        CHECK_OK(reactor_listen(&callee.reactor, listener, tcp));
        for (int i = 0; i < 100 && caller.ready == 0; i++) {
            reactor_step(&callee.reactor, NS_PER_MS);
            reactor_step(&caller.reactor, NS_PER_MS);
        }
        assert_int_equal(caller.ready, 1);
        assert_int_equal(caller.reactor.handshakes + callee.reactor.handshakes, 0);
        reactor_close(&caller.reactor);
        reactor_close(&callee.reactor);
    }
}

/* This process also holds the other ends of these connections. */
enum { DESCRIPTORS = 1024, MOST_FAR = DESCRIPTORS / 16, MOST_NEAR = DESCRIPTORS / 4 };

static rlim_t limit_descriptors(rlim_t most)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = most;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    return before;
}

/* Connect without belonging to the job, and send the first `bytes` of a hello. */
static int call_and_say(const struct address *address, const struct wire_hello *hello, size_t bytes)
{
    int fd = -1, error = 0;
    address_connect(address, &fd, &error);
    CHECK(error == 0 || error == EINPROGRESS, "%s", strerror(error));
    for (int i = 0; i < 1000 && send(fd, hello, bytes, MSG_NOSIGNAL) < 0; i++)
        usleep(1000);
    return fd;
}

static bool is_hung_up(int fd)
{
    char rest[256];
    ssize_t got;
    while ((got = recv(fd, rest, sizeof rest, MSG_DONTWAIT)) > 0)
        ;
    return got == 0 || errno != EAGAIN;
}

static void step_often(struct caller *caller)
{
    for (int i = 0; i < 50; i++)
        reactor_step(&caller->reactor, 0);
}

/* Half a hello each: the kernel does not deliver TCP connections that send nothing. */
static void strangers_are_few_whatever_they_do(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        struct address address;
        struct caller callee;
        struct wire_hello hello = {.magic = WIRE_MAGIC, .version = WIRE_VERSION, .purpose = 2};
        int listener = listen_at_random(&address, tcp), fds[2 * MOST_NEAR];
        size_t most = tcp ? MOST_FAR : MOST_NEAR, kept = 0, count = 2 * MOST_NEAR;
        rlim_t before = limit_descriptors(DESCRIPTORS);
        open_caller(&callee, 0);
        CHECK_OK(reactor_listen(&callee.reactor, listener, tcp));
        for (size_t i = 0; i < count; i++)
            fds[i] = call_and_say(&address, &hello, 20);
        step_often(&callee);
        assert_true(callee.reactor.near.count + callee.reactor.far.count <= most);
        assert_true(callee.reactor.handshakes <= most);
        for (size_t i = 0; i < count; i++) {
            kept += !is_hung_up(fds[i]);
            close(fds[i]);
        }
        assert_true(kept > 0 && kept <= most);
        reactor_close(&callee.reactor);
        limit_descriptors(before);
    }
}

/* For Unix sockets: connections that sent something stay, then the latest. */
static void silent_connections_go_first_then_the_oldest(void **state)
{
    (void)state;
    struct address address;
    struct caller callee;
    struct wire_hello hello = {.magic = WIRE_MAGIC, .version = WIRE_VERSION, .purpose = 2};
    int listener = listen_at_random(&address, false), silent[MOST_NEAR], talking[MOST_NEAR];
    rlim_t before = limit_descriptors(DESCRIPTORS);
    open_caller(&callee, 0);
    CHECK_OK(reactor_listen(&callee.reactor, listener, false));
    talking[0] = call_and_say(&address, &hello, 20);
    for (int i = 0; i < MOST_NEAR; i++)
        silent[i] = call_and_say(&address, &hello, 0);
    step_often(&callee);
    assert_false(is_hung_up(talking[0]));
    assert_true(is_hung_up(silent[0]));
    assert_false(is_hung_up(silent[1]));
    for (int i = 1; i < MOST_NEAR; i++) {
        close(silent[i - 1]);
        talking[i] = call_and_say(&address, &hello, 20);
        step_often(&callee);
    }
    assert_false(is_hung_up(talking[0]));
    assert_true(is_hung_up(silent[MOST_NEAR - 1]));
    int last = call_and_say(&address, &hello, 20);
    step_often(&callee);
    assert_true(is_hung_up(talking[0]));
    assert_false(is_hung_up(talking[1]));
    assert_false(is_hung_up(last));
    reactor_close(&callee.reactor);
    for (int i = 0; i < MOST_NEAR; i++)
        close(talking[i]);
    close(silent[MOST_NEAR - 1]);
    close(last);
    limit_descriptors(before);
}

/* Its first message was enough to identify it; the second may take long. */
static void a_newcomer_that_has_said_hello_is_not_dropped_for_strangers(void **state)
{
    (void)state;
    struct address address;
    struct caller caller, callee;
    struct wire_hello hello = {.magic = WIRE_MAGIC, .version = WIRE_VERSION, .purpose = 2};
    int listener = listen_at_random(&address, true), fds[4 * MOST_FAR];
    rlim_t before = limit_descriptors(DESCRIPTORS);
    open_caller(&caller, 0);
    open_caller(&callee, 0);
    callee.reactor.rank = 1;
    CHECK_OK(reactor_listen(&callee.reactor, listener, true));
    assert_non_null(reactor_connect(&caller.reactor, &address, "somebody", 0, 1));
    reactor_step(&caller.reactor, NS_PER_MS);
    step_often(&callee);
    assert_int_equal(callee.reactor.proving, 1);
    for (int i = 0; i < 4 * MOST_FAR; i++)
        fds[i] = call_and_say(&address, &hello, 20);
    step_often(&callee);
    for (int i = 0; i < 100 && caller.ready + callee.ready < 2; i++) {
        reactor_step(&caller.reactor, NS_PER_MS);
        reactor_step(&callee.reactor, NS_PER_MS);
    }
    assert_int_equal(caller.ready + callee.ready, 2);
    assert_int_equal(callee.reactor.proving, 0);
    reactor_close(&caller.reactor);
    reactor_close(&callee.reactor);
    for (int i = 0; i < 4 * MOST_FAR; i++)
        close(fds[i]);
    limit_descriptors(before);
}

static void connect_to_all(banyan_world *world, void *context)
{
    _Atomic int *opened = context;
    (*opened)++;
    for (int i = 0; i < 3; i++) {
        CHECK_OK(banyan_world_barrier(world));
        sched_yield();
    }
    uint64_t mine = (uint64_t)banyan_world_rank(world), all[96];
    CHECK_OK(banyan_world_allgather(world, &mine, sizeof mine, all));
    for (int rank = 0; rank < banyan_world_size(world); rank++)
        CHECK(all[rank] == (uint64_t)rank);
}

static void many_ranks_that_connect_at_once_all_get_through(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++) {
        _Atomic int opened = 0;
        ranks_run_threads(96, connect_to_all, &opened);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_silent_peer_is_given_up_in_time),
        cmocka_unit_test(without_a_limit_it_is_waited_for),
        cmocka_unit_test(a_late_answer_is_kept),
        cmocka_unit_test(strangers_are_few_whatever_they_do),
        cmocka_unit_test(silent_connections_go_first_then_the_oldest),
        cmocka_unit_test(a_newcomer_that_has_said_hello_is_not_dropped_for_strangers),
        cmocka_unit_test(many_ranks_that_connect_at_once_all_get_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
