/* Worlds that cannot be joined: each side gets an error with names and numbers, and the listening
 * world goes on. */
#include "world/connect/apart.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "world/connect/message.h"
#include "world/net/reactor.h"

#define OTHER_SECRET "ffffffffffffffffffffffffffffffff"
#define SHORT_NS (NS_PER_S / 2)

static banyan_connect_options options_within(uint64_t ns)
{
    banyan_connect_options options = BANYAN_CONNECT_OPTIONS_INIT;
    options.connect_timeout_ns = ns;
    return options;
}

/* ---- a world alone ---- */

static void listen_wrongly(banyan_world *world, struct apart *shared)
{
    (void)shared;
    banyan_listener *listener, *second;
    banyan_connect_options options = BANYAN_CONNECT_OPTIONS_INIT;
    char name[200];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    CHECK_FAILS(banyan_world_listen(world, "nowhere", APART_SECRET, NULL, &listener),
                BANYAN_ERR_INVALID, "\"nowhere\" is not \"host:port\"");
    CHECK_FAILS(banyan_world_listen(world, "::1:5", APART_SECRET, NULL, &listener),
                BANYAN_ERR_INVALID, "\"::1:5\"");
    CHECK_FAILS(banyan_world_listen(world, ":65536", APART_SECRET, NULL, &listener),
                BANYAN_ERR_INVALID, "a port from 0 to 65535");
    CHECK_FAILS(banyan_world_listen(world, NULL, NULL, NULL, &listener), BANYAN_ERR_INVALID,
                "no secret");
    CHECK_FAILS(banyan_world_listen(world, NULL, "0123", NULL, &listener), BANYAN_ERR_INVALID,
                "it has 4 characters");
    CHECK_FAILS(
        banyan_world_listen(world, NULL, "0123456789abcdef0123456789abcdeX", NULL, &listener),
        BANYAN_ERR_INVALID, "31 of them digits at its start");
    CHECK(!strstr(banyan_last_error(), "9abcdeX"), "the secret is in the message");
    options.name = name;
    CHECK_FAILS(banyan_world_listen(world, NULL, APART_SECRET, &options, &listener),
                BANYAN_ERR_INVALID, "has 199 bytes, 127 at most");
    CHECK_OK(banyan_world_listen(world, "127.0.0.1:0", APART_SECRET, NULL, &listener));
    CHECK(strncmp(banyan_listener_address(listener), "127.0.0.1:", 10) == 0);
    CHECK_FAILS(
        banyan_world_listen(world, banyan_listener_address(listener), APART_SECRET, NULL, &second),
        BANYAN_ERR_SYSTEM, "Address already in use");
    banyan_listener_close(listener);
    CHECK_OK(banyan_world_barrier(world));
}

static void play_listen_wrongly(struct apart *shared)
{
    struct apart_job job = apart_start(shared, 2, 0, listen_wrongly);
    apart_end_well(&job);
}

static void a_listener_checks_its_arguments_on_all_ranks(void **state)
{
    (void)state;
    apart_test(play_listen_wrongly);
}

static void listen_in_vain(banyan_world *world, struct apart *shared)
{
    banyan_listener *listener = apart_listen(world, shared, NULL);
    banyan_world *joined = world;
    uint64_t began_ns = time_now_ns();
    for (int i = 0; i < 20; i++) {
        CHECK_OK(banyan_listener_accept(listener, 0, &joined));
        CHECK(joined == NULL);
    }
    CHECK(time_now_ns() - began_ns < 2 * NS_PER_S * TEST_SLOWER);
    began_ns = time_now_ns();
    CHECK_OK(banyan_listener_accept(listener, SHORT_NS, &joined));
    CHECK(joined == NULL && time_now_ns() - began_ns > SHORT_NS - 50 * NS_PER_MS);
    banyan_listener_close(listener);
    banyan_listener_close(NULL);
}

static void play_listen_in_vain(struct apart *shared)
{
    struct apart_job job = apart_start(shared, 3, 0, listen_in_vain);
    apart_end_well(&job);
}

static void a_poll_of_a_listener_does_not_wait(void **state)
{
    (void)state;
    apart_test(play_listen_in_vain);
}

/* A port at which nobody listens. */
static int find_free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&address, &bytes) == 0);
    close(fd);
    return ntohs(address.sin_port);
}

static void connect_wrongly(banyan_world *world, struct apart *shared)
{
    banyan_world *joined;
    banyan_connect_options options = options_within(SHORT_NS);
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%d", shared->marks[0]);
    CHECK_FAILS(banyan_world_connect(world, ":80", APART_SECRET, NULL, &joined), BANYAN_ERR_INVALID,
                "\":80\" has no host");
    CHECK_FAILS(banyan_world_connect(world, "127.0.0.1:0", APART_SECRET, NULL, &joined),
                BANYAN_ERR_INVALID, "has no port");
    CHECK_FAILS(banyan_world_connect(world, address, "secret", NULL, &joined), BANYAN_ERR_INVALID,
                "32 hexadecimal digits");
    CHECK_FAILS(banyan_world_connect(world, address, APART_SECRET, &options, &joined),
                BANYAN_ERR_TIMEOUT, "Connection refused");
    CHECK(strstr(banyan_last_error(), address) && strstr(banyan_last_error(), "a world of 2") &&
              strstr(banyan_last_error(), "; connect_timeout_ns of banyan_connect_options sets"),
          "%s", banyan_last_error());
    CHECK_FAILS(
        banyan_world_connect(world, "no-such-host.invalid:80", APART_SECRET, &options, &joined),
        BANYAN_ERR_TIMEOUT, "cannot resolve \"no-such-host.invalid\"");
    CHECK_OK(banyan_world_barrier(world));
}

static void play_connect_wrongly(struct apart *shared)
{
    shared->marks[0] = find_free_port();
    struct apart_job job = apart_start(shared, 2, 0, connect_wrongly);
    apart_end_well(&job);
}

static void a_world_that_finds_no_listener_names_the_address(void **state)
{
    (void)state;
    apart_test(play_connect_wrongly);
}

/* ---- something else at the address ---- */

/* Accept connections, and answer each with these bytes. */
static void serve_strangely(int fd, const char *bytes, size_t count)
{
    for (;;) {
        int client = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        if (client >= 0 && count > 0 && write(client, bytes, count) != (ssize_t)count)
            _exit(1);
    }
}

static pid_t start_stranger(struct apart *shared, const char *bytes, size_t count)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 10) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&address, &length) == 0);
    snprintf(shared->address, sizeof shared->address, "127.0.0.1:%d", ntohs(address.sin_port));
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve_strangely(fd, bytes, count);
    }
    close(fd);
    return pid;
}

static void connect_to_babble(banyan_world *world, struct apart *shared)
{
    banyan_world *joined;
    CHECK_FAILS(banyan_world_connect(world, shared->address, APART_SECRET, NULL, &joined),
                BANYAN_ERR_FORMAT, "does not speak Banyan's protocol");
}

static void connect_to_silence(banyan_world *world, struct apart *shared)
{
    banyan_world *joined;
    banyan_connect_options options = options_within(6 * NS_PER_S);
    CHECK_FAILS(banyan_world_connect(world, shared->address, APART_SECRET, &options, &joined),
                BANYAN_ERR_TIMEOUT, "does not answer");
}

static void play_strange_listeners(struct apart *shared)
{
    char babble[200];
    memset(babble, 'x', sizeof babble);
    pid_t stranger = start_stranger(shared, babble, sizeof babble);
    struct apart_job job = apart_start(shared, 2, 0, connect_to_babble);
    apart_end_well(&job);
    kill(stranger, SIGKILL);
    stranger = start_stranger(shared, NULL, 0);
    job = apart_start(shared, 2, 0, connect_to_silence);
    apart_end_well(&job);
    kill(stranger, SIGKILL);
}

static void another_program_at_the_address_is_reported(void **state)
{
    (void)state;
    if (ranks_networks() > 0)
        return; /* the strangers are in no network of the worlds */
    apart_test(play_strange_listeners);
}

/* ---- a wrong side ---- */

/* Accept one world, whatever others ask. */
static void listen_for_one(banyan_world *world, struct apart *shared)
{
    banyan_connect_options options = BANYAN_CONNECT_OPTIONS_INIT;
    options.name = "actor";
    apart_keep_log(shared);
    banyan_listener *listener = apart_listen(world, shared, &options);
    apart_wait(&shared->marks[0], 1);
    banyan_world *joined = apart_accept(listener);
    CHECK(banyan_world_size(joined) == banyan_world_size(world) + 1);
    CHECK_OK(banyan_world_close(joined));
    banyan_listener_close(listener);
}

static void connect_as_actor(banyan_world *world, struct apart *shared)
{
    banyan_world *joined;
    banyan_connect_options options = BANYAN_CONNECT_OPTIONS_INIT;
    options.name = "actor";
    CHECK_OK(banyan_world_connect(world, shared->address, APART_SECRET, &options, &joined));
    CHECK_OK(banyan_world_close(joined));
}

static void connect_with_another_secret(banyan_world *world, struct apart *shared)
{
    banyan_world *joined;
    CHECK_FAILS(banyan_world_connect(world, shared->address, OTHER_SECRET, NULL, &joined),
                BANYAN_ERR_REFUSED, "does not know this job's secret");
    CHECK(strstr(banyan_last_error(), shared->address), "%s", banyan_last_error());
    CHECK_OK(banyan_world_barrier(world));
}

static void connect_with_another_name(banyan_world *world, struct apart *shared)
{
    banyan_world *joined;
    banyan_connect_options options = BANYAN_CONNECT_OPTIONS_INIT;
    options.name = "critic";
    CHECK_FAILS(banyan_world_connect(world, shared->address, APART_SECRET, &options, &joined),
                BANYAN_ERR_MISMATCH,
                "asks for \"critic\", and the world at this address listens as \"actor\"");
    CHECK_OK(banyan_world_barrier(world));
}

static void connect_too_early(banyan_world *world, struct apart *shared)
{
    banyan_world *joined;
    char part[64];
    banyan_connect_options options = options_within(SHORT_NS);
    options.name = "actor";
    snprintf(part, sizeof part, "a world of 3 ranks (rank 0: pid %d ", shared->marks[1]);
    CHECK_FAILS(banyan_world_connect(world, shared->address, APART_SECRET, &options, &joined),
                BANYAN_ERR_TIMEOUT, part);
    CHECK(strstr(banyan_last_error(), "to accept it"), "%s", banyan_last_error());
}

static void run_job(struct apart *shared, int size, apart_rank run)
{
    struct apart_job job = apart_start(shared, size, 1, run);
    apart_end_well(&job);
}

static void play_wrong_sides(struct apart *shared)
{
    struct apart_job trainer = apart_start(shared, 3, 0, listen_for_one);
    apart_wait(&shared->listens, 1);
    shared->marks[1] = trainer.ranks[0];
    run_job(shared, 2, connect_with_another_secret);
    apart_expect_log(shared, "another secret");
    run_job(shared, 2, connect_with_another_name);
    apart_expect_log(shared, "asks for \"critic\"");
    run_job(shared, 2, connect_too_early);
    apart_expect_log(shared, "a world of 2 ranks (rank 0: pid");
    apart_expect_log(shared, "left before it was accepted");
    shared->marks[0] = 1;
    run_job(shared, 1, connect_as_actor);
    apart_end_well(&trainer);
}

static void a_wrong_world_is_refused_on_both_sides(void **state)
{
    (void)state;
    apart_test(play_wrong_sides);
}

/* ---- a leader that does not follow the protocol ---- */

/* A connection with the right secret, and how it ends. */
struct rogue {
    struct reactor reactor;
    struct connect_request request;
    size_t cut_bytes; /* fewer than the request has */
    bool is_silent, is_over;
    error_kept why;
};

static banyan_status rogue_admit(void *owner, struct link *link)
{
    (void)owner;
    (void)link;
    return BANYAN_OK;
}

static void rogue_ask(void *owner, struct link *link)
{
    struct rogue *rogue = owner;
    bytes_writer text = {0};
    connect_request_write(&text, &rogue->request);
    struct wire_frame frame = {.kind = WIRE_JOIN, .bytes = text.count - rogue->cut_bytes};
    pthread_mutex_lock(&rogue->reactor.lock);
    if (!rogue->is_silent)
        CHECK_OK(link_send(link, &frame, text.data, -1));
    pthread_mutex_unlock(&rogue->reactor.lock);
    bytes_writer_free(&text);
}

static banyan_status rogue_take(void *owner, struct link *link, const struct wire_frame *frame,
                                void *payload, int fd)
{
    (void)owner;
    (void)link;
    (void)fd;
    free(payload);
    return banyan_error_set(BANYAN_ERR_FORMAT, "frame %u", frame->kind);
}

static void rogue_end(void *owner, struct link *link, banyan_status status)
{
    struct rogue *rogue = owner;
    (void)link;
    rogue->is_over = true;
    rogue->why = error_keep(status);
}

static const struct reactor_ops rogue_ops = {
    .link = {.admit = rogue_admit, .ready = rogue_ask, .frame = rogue_take},
    .closed = rogue_end,
};

/* Connect with the right secret, and wait for the end of the connection. */
static void rogue_run(struct rogue *rogue, const char *text)
{
    unsigned char key[WIRE_KEY_BYTES];
    char host[CONNECT_HOST_BYTES];
    int port;
    struct address address;
    CHECK_OK(connect_key(APART_SECRET, key));
    CHECK_OK(connect_split_address(text, host, &port));
    CHECK(connect_resolve(host, port, &address, 1) == 1);
    CHECK_OK(reactor_open(&rogue->reactor, WIRE_PURPOSE_CONNECT, -1, key, &rogue_ops, rogue));
    rogue->reactor.name = "a rogue";
    CHECK(reactor_connect(&rogue->reactor, &address, "the listener", -1, -1) != NULL);
    uint64_t until_ns = deadline_after(20 * NS_PER_S);
    while (!rogue->is_over && deadline_left_ns(until_ns) > 0)
        reactor_step(&rogue->reactor, NS_PER_S);
    CHECK(rogue->is_over);
    reactor_close(&rogue->reactor);
}

static struct rogue rogue_of(int size)
{
    struct rogue rogue = {.request = {.name = "actor", .party = {.size = size, .pid = 1}}};
    snprintf(rogue.request.version, sizeof rogue.request.version, "%s", banyan_version());
    snprintf(rogue.request.party.host, sizeof rogue.request.party.host, "somewhere");
    return rogue;
}

static void be_rogues(banyan_world *world, struct apart *shared)
{
    (void)world;
    struct rogue other_version = rogue_of(1), large = rogue_of(BANYAN_MAX_RANKS), cut = rogue_of(1);
    struct rogue silent = rogue_of(1);
    char part[100];
    apart_wait(&shared->listens, 1);
    snprintf(other_version.request.version, CONNECT_VERSION_BYTES, "99.0.1");
    rogue_run(&other_version, shared->address);
    snprintf(part, sizeof part, "runs Banyan 99.0.1, and the listening one %s", banyan_version());
    CHECK(other_version.why.status == BANYAN_ERR_MISMATCH);
    CHECK(strstr(other_version.why.message, part), "%s", other_version.why.message);
    rogue_run(&large, shared->address);
    CHECK(large.why.status == BANYAN_ERR_MISMATCH);
    CHECK(strstr(large.why.message, "worlds of 3 and 1048576 ranks cannot be joined"), "%s",
          large.why.message);
    cut.cut_bytes = 3;
    rogue_run(&cut, shared->address);
    CHECK(cut.why.status == BANYAN_ERR_FORMAT, "%s", cut.why.message);
    silent.is_silent = true;
    rogue_run(&silent, shared->address);
    CHECK(silent.why.status == BANYAN_OK || silent.why.status == BANYAN_ERR_SYSTEM);
}

static void play_rogues(struct apart *shared)
{
    struct apart_job trainer = apart_start(shared, 3, 0, listen_for_one);
    run_job(shared, 1, be_rogues);
    apart_expect_log(shared, "99.0.1");
    apart_expect_log(shared, "malformed");
    apart_expect_log(shared, "it sent no request for 5 s");
    shared->marks[0] = 1;
    run_job(shared, 1, connect_as_actor);
    apart_end_well(&trainer);
}

static void a_malformed_request_is_refused(void **state)
{
    (void)state;
    apart_test(play_rogues);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_listener_checks_its_arguments_on_all_ranks),
        cmocka_unit_test(a_poll_of_a_listener_does_not_wait),
        cmocka_unit_test(a_world_that_finds_no_listener_names_the_address),
        cmocka_unit_test(another_program_at_the_address_is_reported),
        cmocka_unit_test(a_wrong_world_is_refused_on_both_sides),
        cmocka_unit_test(a_malformed_request_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
