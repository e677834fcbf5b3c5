/* Connections from outside of the job, garbage, replays: refused and logged, and the job
 * continues. */
#include "support/test.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "world/bootstrap/rendezvous.h"
#include "world/world.h"

enum { RANKS = 4 };

static _Atomic int strangers;

/* A rank that leaves by itself causes no warning, since a dying one does the same. Lines of one
 * kind are a second apart; the next gives the number of events between. */
static void count_stranger(banyan_log_level level, const char *message, void *context)
{
    (void)context;
    const char *more = strstr(message, " more connections ");
    if (more) {
        while (more > message && more[-1] >= '0' && more[-1] <= '9')
            more--;
        strangers += atoi(more);
        return;
    }
    bool left = strstr(message, "left before it had proved");
    CHECK(!left || level != BANYAN_LOG_WARN, "level %d: %s", (int)level, message);
    strangers += left || (level == BANYAN_LOG_WARN && strstr(message, "refused"));
}

static int knock(const struct address *address)
{
    int fd, error;
    for (;;) {
        address_connect(address, &fd, &error);
        if (error == 0)
            break;
        if (error == EINPROGRESS) {
            struct pollfd wait = {fd, POLLOUT, 0};
            poll(&wait, 1, 5000);
            break;
        }
        if (error != EAGAIN)
            return -1;
        usleep(1000);
    }
    return fd;
}

static void say(int fd, const void *data, size_t bytes)
{
    for (size_t said = 0; said < bytes;) {
        struct pollfd wait = {fd, POLLOUT, 0};
        ssize_t sent = send(fd, (const char *)data + said, bytes - said, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            return;
        if (sent < 0)
            poll(&wait, 1, 1000);
        else
            said += (size_t)sent;
    }
}

/* Return how many of `bytes` arrive within two seconds. */
static size_t listen_for(int fd, void *data, size_t bytes)
{
    size_t received = 0;
    uint64_t deadline_ns = deadline_after(2 * NS_PER_S);
    while (received < bytes && deadline_left_ns(deadline_ns) > 0) {
        struct pollfd wait = {fd, POLLIN, 0};
        poll(&wait, 1, 100);
        ssize_t got = recv(fd, (char *)data + received, bytes - received, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN))
            break;
        received += got > 0 ? (size_t)got : 0;
    }
    return received;
}

static bool is_hung_up(int fd)
{
    char rest[4096];
    for (int i = 0; i < 400; i++) {
        ssize_t got = recv(fd, rest, sizeof rest, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN))
            return true;
        usleep(5000);
    }
    return false;
}

static struct wire_hello hello_of(const unsigned char *key, uint32_t purpose, int from, int to)
{
    struct wire_hello hello = {
        .magic = WIRE_MAGIC, .version = WIRE_VERSION, .purpose = purpose, .from = from, .to = to};
    randombytes_buf(hello.nonce, sizeof hello.nonce);
    wire_tag(key, &hello);
    return hello;
}

/* Shake hands with a key; false if the challenge does not arrive. */
static bool shake_hands(int fd, const unsigned char *key, const struct wire_hello *hello,
                        unsigned char proof[WIRE_PROOF_BYTES])
{
    struct wire_challenge challenge;
    say(fd, hello, sizeof *hello);
    if (listen_for(fd, &challenge, sizeof challenge) != sizeof challenge)
        return false;
    wire_prove(key, WIRE_CONNECTS, hello, challenge.nonce, proof);
    say(fd, proof, WIRE_PROOF_BYTES);
    return true;
}

static void garbage(const struct address *address, random_state *random, size_t bytes)
{
    unsigned char data[4096];
    int fd = knock(address);
    CHECK(fd >= 0);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)random_next(random);
    say(fd, data, bytes);
    if (bytes >= sizeof(struct wire_hello))
        CHECK(is_hung_up(fd), "%zu bytes of garbage are listened to", bytes);
    close(fd);
}

static void half_a_hello(const struct address *address, const unsigned char *key, uint32_t purpose,
                         int to)
{
    struct wire_hello hello = hello_of(key, purpose, 1, to);
    int fd = knock(address);
    say(fd, &hello, sizeof hello / 2);
    close(fd);
}

static void wrong_hello(const struct address *address, const unsigned char *key, uint32_t purpose,
                        int to, size_t offset)
{
    struct wire_hello hello = hello_of(key, purpose, 1, to);
    ((unsigned char *)&hello)[offset] ^= 1;
    int fd = knock(address);
    say(fd, &hello, sizeof hello);
    CHECK(is_hung_up(fd), "byte %zu of the hello is wrong", offset);
    close(fd);
}

/* A connection without the key gets a refusal, and nothing after it. */
static void wrong_key(const struct address *address, uint32_t purpose, int to)
{
    unsigned char key[WIRE_KEY_BYTES] = {1, 2, 3}, proof[WIRE_PROOF_BYTES];
    struct wire_hello hello = hello_of(key, purpose, 1, to);
    int fd = knock(address);
    CHECK(shake_hands(fd, key, &hello, proof));
    CHECK(is_hung_up(fd), "a wrong proof is taken");
    close(fd);
}

/* A recorded hello gives no access. */
static void wrong_proof(const struct address *address, const unsigned char *key, uint32_t purpose,
                        int to)
{
    unsigned char wrong[WIRE_KEY_BYTES] = {1, 2, 3}, proof[WIRE_PROOF_BYTES];
    struct wire_hello hello = hello_of(key, purpose, 1, to);
    int fd = knock(address);
    CHECK(shake_hands(fd, wrong, &hello, proof));
    CHECK(is_hung_up(fd), "a wrong proof is taken");
    close(fd);
}

/* A valid proof of one connection proves nothing on another. */
static void replay(const struct address *address, const unsigned char *key, uint32_t purpose,
                   int from, int to)
{
    unsigned char proof[WIRE_PROOF_BYTES];
    struct wire_hello hello = hello_of(key, purpose, from, to);
    struct wire_challenge challenge;
    int first = knock(address), second = knock(address);
    CHECK(shake_hands(first, key, &hello, proof));
    say(second, &hello, sizeof hello);
    CHECK(listen_for(second, &challenge, sizeof challenge) == sizeof challenge);
    say(second, proof, sizeof proof);
    CHECK(is_hung_up(second), "a replayed proof is taken");
    close(first);
    close(second);
}

static void bother(const struct address *address, const unsigned char *key, uint32_t purpose,
                   int from, int to, random_state *random)
{
    static const size_t sizes[] = {0, 1, 7, 55, 56, 57, 100, 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        garbage(address, random, sizes[i]);
    half_a_hello(address, key, purpose, to);
    wrong_hello(address, key, purpose, to, offsetof(struct wire_hello, magic));
    wrong_hello(address, key, purpose, to, offsetof(struct wire_hello, version));
    wrong_hello(address, key, purpose, to, offsetof(struct wire_hello, purpose));
    wrong_hello(address, key, purpose, to, offsetof(struct wire_hello, to));
    wrong_hello(address, key, purpose, to, offsetof(struct wire_hello, nonce));
    wrong_hello(address, key, purpose, to, offsetof(struct wire_hello, tag));
    wrong_key(address, purpose, to);
    wrong_proof(address, key, purpose, to);
    replay(address, key, purpose, from, to);
}

/* Number of the above connections that cause a log line; each is refused once. */
enum { BOTHERED = 8 + 1 + 6 + 2 + 2 };

static void expect_strangers(int count)
{
    for (int i = 0; i < 300 && strangers < count; i++)
        usleep(10000);
    CHECK(strangers == count, "%d strangers in the log, not %d", (int)strangers, count);
}

struct opener {
    pthread_t thread;
    banyan_world_options options;
};

static void *open_and_close(void *argument)
{
    struct opener *opener = argument;
    banyan_world *world;
    CHECK_OK(banyan_world_open(&opener->options, &world));
    CHECK_OK(banyan_world_barrier(world));
    CHECK_OK(banyan_world_close(world));
    return NULL;
}

static void place_of(const banyan_unique_id *id, struct rendezvous_place *place)
{
    char node[ADDRESS_NODE_BYTES];
    CHECK_OK(address_node(node));
    CHECK_OK(rendezvous_place_of_id(id, node, place));
}

/* With the key, followed by invalid data. */
static void say_nonsense_with_the_key(const struct rendezvous_place *place,
                                      const struct address *address, random_state *random)
{
    for (int round = 0; round < 20; round++) {
        unsigned char proof[WIRE_PROOF_BYTES], data[256];
        struct wire_hello hello = hello_of(place->key, WIRE_PURPOSE_JOIN, 1, -1);
        struct wire_frame welcome, frame = {.kind = WIRE_JOIN, .bytes = sizeof data};
        int fd = knock(address);
        CHECK(shake_hands(fd, place->key, &hello, proof));
        CHECK(listen_for(fd, &welcome, sizeof welcome) == sizeof welcome);
        CHECK(welcome.kind == WIRE_WELCOME);
        if (round % 4 == 1)
            frame.bytes = UINT64_MAX - 7; /* an absurd length */
        if (round % 4 == 2)
            frame.kind = 4711;
        if (round % 4 == 3)
            frame.kind = WIRE_MESSAGE;
        for (size_t i = 0; i < sizeof data; i++)
            data[i] = (unsigned char)random_next(random);
        say(fd, &frame, sizeof frame);
        say(fd, data, sizeof data);
        CHECK(is_hung_up(fd), "nonsense is taken in round %d", round);
        close(fd);
    }
}

static void the_rendezvous_refuses_strangers_and_goes_on(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    banyan_unique_id id;
    struct rendezvous_place place;
    struct opener openers[RANKS];
    int silent[50];
    CHECK_OK(banyan_unique_id_create(&id));
    place_of(&id, &place);
    struct address name = address_unix(place.name);
    struct address tcp = place.addresses[place.address_count - 1];
    strangers = 0;
    for (int i = 0; i < 50; i++)
        silent[i] = knock(i % 2 ? &name : &tcp);
    for (int rank = 0; rank < RANKS; rank++) {
        openers[rank].options = (banyan_world_options)BANYAN_WORLD_OPTIONS_INIT;
        openers[rank].options.rank = rank;
        openers[rank].options.world_size = RANKS;
        openers[rank].options.unique_id = &id;
        if (rank == RANKS - 1) {
            bother(&name, place.key, WIRE_PURPOSE_JOIN, 3, -1, &random);
            bother(&tcp, place.key, WIRE_PURPOSE_JOIN, 3, -1, &random);
            /* The first connection of each replay knew the key. */
            expect_strangers(2 * BOTHERED - 2);
            say_nonsense_with_the_key(&place, &name, &random);
        }
        pthread_create(&openers[rank].thread, NULL, open_and_close, &openers[rank]);
    }
    for (int rank = 0; rank < RANKS; rank++)
        pthread_join(openers[rank].thread, NULL);
    for (int i = 0; i < 50; i++)
        close(silent[i]);
}

static void silent_connections_are_dropped(void **state)
{
    (void)state;
    banyan_unique_id id;
    struct rendezvous_place place;
    CHECK_OK(banyan_unique_id_create(&id));
    place_of(&id, &place);
    struct address name = address_unix(place.name);
    strangers = 0;
    int fd = knock(&name);
    uint64_t began = time_now_ns();
    while (time_now_ns() - began < 8 * NS_PER_S && strangers == 0)
        usleep(20000);
    assert_int_equal(strangers, 1);
    assert_true(is_hung_up(fd));
    close(fd);
    /* Let the thread that waits for ranks end. */
    struct opener only = {.options = BANYAN_WORLD_OPTIONS_INIT};
    only.options.rank = 0;
    only.options.world_size = 1;
    only.options.unique_id = &id;
    open_and_close(&only);
}

/* A Unix socket identifies only the user: a process of another user gets no answer. */
static void another_user_is_refused(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        printf("skipped: only root can become another user\n");
        skip();
    }
    banyan_unique_id id;
    struct rendezvous_place place;
    CHECK_OK(banyan_unique_id_create(&id));
    place_of(&id, &place);
    struct address name = address_unix(place.name);
    strangers = 0;
    fflush(NULL);
    pid_t stranger = fork();
    if (stranger == 0) {
        ranks_become_child();
        CHECK(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
        unsigned char proof[WIRE_PROOF_BYTES];
        struct wire_hello hello = hello_of(place.key, WIRE_PURPOSE_JOIN, 0, -1);
        int fd = knock(&name);
        CHECK(!shake_hands(fd, place.key, &hello, proof), "another user is answered");
        CHECK(is_hung_up(fd), "another user is listened to");
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(stranger, &status, 0), stranger);
    assert_int_equal(status, 0);
    expect_strangers(1);
    struct opener only = {.options = BANYAN_WORLD_OPTIONS_INIT};
    only.options.rank = 0;
    only.options.world_size = 1;
    only.options.unique_id = &id;
    open_and_close(&only);
}

struct bothered {
    banyan_world *world;
    uint64_t seed;
};

static void *bother_own_rank(void *argument)
{
    const struct bothered *bothered = argument;
    const struct endpoint *endpoint = bothered->world->endpoint;
    int rank = endpoint->rank;
    random_state random = random_from(bothered->seed + (uint64_t)rank);
    struct address name = address_unix(endpoint->members[rank].name);
    bother(&name, endpoint->key, WIRE_PURPOSE_PEER, (rank + endpoint->size - 1) % endpoint->size,
           rank, &random);
    struct address tcp = address_loopback(endpoint->members[rank].port);
    if (endpoint->reactor.listener_count == 2)
        bother(&tcp, endpoint->key, WIRE_PURPOSE_PEER, (rank + endpoint->size - 1) % endpoint->size,
               rank, &random);
    /* Impossible ranks: the own one, and one beyond the last. */
    for (int i = 0; i < 2; i++) {
        unsigned char proof[WIRE_PROOF_BYTES];
        struct wire_hello hello =
            hello_of(endpoint->key, WIRE_PURPOSE_PEER, i ? endpoint->size : rank, rank);
        int fd = knock(&name);
        CHECK(shake_hands(fd, endpoint->key, &hello, proof));
        CHECK(is_hung_up(fd), "rank %d calls itself", rank);
        close(fd);
    }
    return NULL;
}

static void work_while_bothered(banyan_world *world, uint64_t seed)
{
    struct bothered bothered = {world, seed};
    pthread_t stranger;
    strangers = 0;
    CHECK_OK(banyan_world_barrier(world));
    pthread_create(&stranger, NULL, bother_own_rank, &bothered);
    uint64_t began = time_now_ns(), done = 0;
    /* The longest barrier is much shorter than the time that such a connection is given. */
    while (!done) {
        uint64_t before = time_now_ns();
        CHECK_OK(banyan_world_barrier(world));
        CHECK(time_now_ns() - before < 2 * NS_PER_S);
        CHECK_OK(control_max(world, time_now_ns() - began > NS_PER_S, &done));
    }
    pthread_join(stranger, NULL);
    int ways = banyan_world_node_count(world) > 1 ? 2 : 1;
    expect_strangers(ways * BOTHERED + 2);
    CHECK_OK(banyan_world_barrier(world));
}

static void work_on_one_node(banyan_world *world, void *context)
{
    work_while_bothered(world, *(uint64_t *)context);
}

static void work_on_two_nodes(int rank, int count, const banyan_unique_id *id, void *context)
{
    banyan_world *world;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = count;
    options.unique_id = id;
    options.node = rank < count / 2 ? "a" : "b";
    CHECK_OK(banyan_world_open(&options, &world));
    work_while_bothered(world, *(uint64_t *)context);
    CHECK_OK(banyan_world_close(world));
}

static void ranks_refuse_strangers_and_go_on(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    int statuses[RANKS];
    ranks_run(RANKS, work_on_one_node, &seed);
    ranks_fork(RANKS, work_on_two_nodes, &seed, statuses);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(statuses[rank], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rendezvous_refuses_strangers_and_goes_on),
        cmocka_unit_test(silent_connections_are_dropped),
        cmocka_unit_test(another_user_is_refused),
        cmocka_unit_test(ranks_refuse_strangers_and_go_on),
    };
    setenv("BANYAN_LOG", "debug", 1);
    banyan_log_set(count_stranger, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
