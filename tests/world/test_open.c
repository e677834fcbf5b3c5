/* A world opens with all ranks, or a message names the missing or wrong ones. */
#include "support/test.h"

#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "world/control.h"

struct opener {
    pthread_t thread;
    banyan_world_options options;
    banyan_status status;
    char message[1024];
};

static void *open_and_close(void *argument)
{
    struct opener *opener = argument;
    banyan_world *world = NULL;
    opener->status = banyan_world_open(&opener->options, &world);
    if (opener->status == BANYAN_OK)
        opener->status = banyan_world_close(world);
    snprintf(opener->message, sizeof opener->message, "%s", banyan_last_error());
    return NULL;
}

static struct opener *start_on(const char *node, const banyan_unique_id *id, int rank,
                               int world_size, double seconds)
{
    struct opener *opener = calloc(1, sizeof *opener);
    opener->options = (banyan_world_options)BANYAN_WORLD_OPTIONS_INIT;
    opener->options.rank = rank;
    opener->options.world_size = world_size;
    opener->options.unique_id = id;
    opener->options.timeout_ns = (uint64_t)(seconds * 1e9);
    opener->options.node = node;
    pthread_create(&opener->thread, NULL, open_and_close, opener);
    return opener;
}

static struct opener *start(const banyan_unique_id *id, int rank, int world_size, double seconds)
{
    return start_on(NULL, id, rank, world_size, seconds);
}

/* Join the thread; `part` NULL: it must succeed. */
static void expect(struct opener *opener, banyan_status status, const char *part)
{
    pthread_join(opener->thread, NULL);
    if (opener->status != status || (part && !strstr(opener->message, part)))
        fail_msg("rank %d: expected %s and \"%s\", got %s: %s", opener->options.rank,
                 banyan_status_name(status), part ? part : "", banyan_status_name(opener->status),
                 opener->message);
    free(opener);
}

static void count_warning(banyan_log_level level, const char *message, void *context)
{
    (void)level;
    (void)message;
    ++*(_Atomic int *)context;
}

static void a_rank_that_comes_twice_is_refused_and_the_job_goes_on(void **state)
{
    (void)state;
    _Atomic int warnings = 0;
    banyan_log_set(count_warning, &warnings);
    banyan_unique_id id;
    CHECK_OK(banyan_unique_id_create(&id));
    struct opener *zero = start(&id, 0, 3, 10), *one = start(&id, 1, 3, 10);
    usleep(50000);
    expect(start(&id, 1, 3, 10), BANYAN_ERR_MISMATCH,
           "two processes say that they are rank 1 of 3");
    expect(start(&id, 2, 4, 10), BANYAN_ERR_MISMATCH, "says that the world has 4 ranks");
    expect(start(&id, 3, 3, 10), BANYAN_ERR_INVALID, "rank 3 does not exist in a world of 3");
    assert_int_equal(warnings, 2);
    struct opener *two = start(&id, 2, 3, 10);
    expect(zero, BANYAN_OK, NULL);
    expect(one, BANYAN_OK, NULL);
    expect(two, BANYAN_OK, NULL);
    banyan_log_set(NULL, NULL);
}

static void a_deadline_names_the_missing_ranks(void **state)
{
    (void)state;
    _Atomic int warnings = 0;
    banyan_log_set(count_warning, &warnings);
    banyan_unique_id id;
    CHECK_OK(banyan_unique_id_create(&id));
    struct opener *zero = start(&id, 0, 4, 0.3), *two = start(&id, 2, 4, 0.6);
    uint64_t began = time_now_ns();
    expect(zero, BANYAN_ERR_TIMEOUT, "not there yet: rank 1, 3");
    assert_true(time_now_ns() - began < NS_PER_S);
    expect(two, BANYAN_ERR_TIMEOUT, "not there yet: rank 1, 3");
    struct opener *one = start(&id, 1, 4, 0.2), *three = start(&id, 3, 4, 0.4);
    expect(one, BANYAN_ERR_TIMEOUT, "not there yet: rank 0, 2 (gave up waiting)");
    expect(three, BANYAN_ERR_TIMEOUT, "not there yet: rank 0, 1, 2 (gave up waiting)");
    CHECK_OK(banyan_unique_id_create(&id));
    expect(start(&id, 5, 100, 0.2), BANYAN_ERR_TIMEOUT,
           "not there yet: rank 0, 1, 2, 3, 4, 6, 7, 8, 9, 10 and 89 others");
    banyan_log_set(NULL, NULL);
}

static void bytes_that_are_no_id_are_refused(void **state)
{
    (void)state;
    banyan_unique_id id;
    memset(&id, 0x5a, sizeof id);
    expect(start(&id, 0, 2, 5), BANYAN_ERR_FORMAT, "are not a unique id");
    CHECK_OK(banyan_unique_id_create(&id));
    struct opener *one = start(&id, 1, 2, 5);
    expect(start(&id, 0, 2, 5), BANYAN_OK, NULL);
    expect(one, BANYAN_OK, NULL);
}

static void one_rank_needs_nobody(void **state)
{
    (void)state;
    banyan_world *world;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = 0;
    options.world_size = 1;
    CHECK_OK(banyan_world_open(&options, &world));
    assert_int_equal(banyan_world_rank(world), 0);
    assert_int_equal(banyan_world_size(world), 1);
    assert_int_equal(banyan_world_local_size(world), 1);
    assert_int_equal(banyan_world_local_peer(world, 0), 0);
    assert_int_equal(control_pid(world, 0), getpid());
    CHECK_OK(banyan_world_barrier(world));
    CHECK_OK(banyan_world_close(world));
    CHECK_OK(banyan_world_close(NULL));
    options.size = 0;
    CHECK_FAILS(banyan_world_open(&options, &world), BANYAN_ERR_INVALID,
                "BANYAN_WORLD_OPTIONS_INIT");
    options = (banyan_world_options)BANYAN_WORLD_OPTIONS_INIT;
    options.size =
        offsetof(banyan_world_options, timeout_ns); /* a caller built before this field existed */
    options.rank = 0;
    options.world_size = 1;
    options.timeout_ns = 1;
    CHECK_OK(banyan_world_open(&options, &world));
    assert_true(banyan_world_timeout_ns(world) > NS_PER_S);
    CHECK_OK(banyan_world_close(world));
}

static void restores_the_opened_timeout(void **state)
{
    (void)state;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = 0;
    options.world_size = 1;
    options.timeout_ns = 7 * NS_PER_S;
    banyan_world *world, *sub;
    int self = 0;
    CHECK_OK(banyan_world_open(&options, &world));
    CHECK_OK(banyan_world_set_timeout(world, BANYAN_FOREVER_NS));
    CHECK(banyan_world_timeout_ns(world) == BANYAN_FOREVER_NS);
    CHECK_OK(banyan_world_set_timeout(world, 0));
    CHECK(banyan_world_timeout_ns(world) == 7 * NS_PER_S);
    CHECK_OK(banyan_world_set_timeout(world, 3 * NS_PER_S));
    CHECK_OK(banyan_world_split(world, &self, 1, &sub));
    CHECK_OK(banyan_world_set_timeout(sub, NS_PER_S));
    CHECK_OK(banyan_world_set_timeout(sub, 0));
    CHECK(banyan_world_timeout_ns(sub) == 3 * NS_PER_S);
    CHECK_OK(banyan_world_close(sub));
    CHECK_OK(banyan_world_close(world));
}

static void open_late(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank < 3 ? rank : 1;
    options.world_size = count - 1;
    options.unique_id = id;
    banyan_world *world;
    if (rank == 1) { /* it dies while it waits for the others */
        ualarm(200000, 0);
        options.timeout_ns = 20 * NS_PER_S;
        CHECK(banyan_world_open(&options, &world) == BANYAN_OK);
        return;
    }
    if (rank == 3)
        usleep(300000); /* another takes its place */
    if (rank == 2)
        usleep(400000);
    CHECK_OK(banyan_world_open(&options, &world));
    CHECK_OK(banyan_world_close(world));
}

static void a_rank_that_dies_before_all_have_come_can_be_replaced(void **state)
{
    (void)state;
    int statuses[4];
    ranks_fork(4, open_late, NULL, statuses);
    assert_true(WIFSIGNALED(statuses[1]));
    for (int rank = 0; rank < 4; rank++)
        assert_true(rank == 1 || statuses[rank] == 0);
}

static void an_id_whose_maker_is_dead_is_refused_at_once(void **state)
{
    (void)state;
    int pipe_fds[2];
    banyan_unique_id id;
    assert_int_equal(pipe(pipe_fds), 0);
    pid_t maker = fork();
    if (maker == 0) {
        CHECK_OK(banyan_unique_id_create(&id));
        CHECK(write(pipe_fds[1], &id, sizeof id) == sizeof id);
        usleep(200000);
        _exit(0);
    }
    close(pipe_fds[1]);
    assert_int_equal(read(pipe_fds[0], &id, sizeof id), sizeof id);
    uint64_t began = time_now_ns();
    expect(start(&id, 0, 2, 20), BANYAN_ERR_PEER_LOST, "ended before all 2 ranks had joined");
    waitpid(maker, NULL, 0);
    expect(start(&id, 0, 2, 20), BANYAN_ERR_SYSTEM, "Connection refused");
    assert_true(time_now_ns() - began < 5 * NS_PER_S);
    close(pipe_fds[0]);
}

/* Every process gets its rank from its environment. */
struct environment {
    const char *name; /* of the job */
    int local_size, rounds;
    const char *secret, *address, *port;
    bool nodes; /* each rank pretends to be a node */
    banyan_status expected;
    const char *part;
};

static void set_number(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

static void set_or_unset(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static void open_from_environment(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)id;
    const struct environment *environment = context;
    char job[128], node[16];
    snprintf(job, sizeof job, "%s-%d", environment->name, (int)getppid());
    setenv("BANYAN_JOB", job, 1);
    set_number("BANYAN_RANK", rank);
    set_number("BANYAN_WORLD_SIZE", count);
    set_number("BANYAN_LOCAL_RANK", rank % environment->local_size);
    set_number("BANYAN_LOCAL_SIZE", environment->local_size);
    set_or_unset("BANYAN_SECRET", environment->secret);
    set_or_unset("MASTER_ADDR", environment->address);
    set_or_unset("BANYAN_PORT", environment->port);
    setenv("BANYAN_TIMEOUT", "10", 1);
    snprintf(node, sizeof node, "node%d", rank);
    set_or_unset("BANYAN_NODE", environment->nodes ? node : NULL);
    for (int round = 0; round < environment->rounds; round++) {
        banyan_world *world;
        if (rank == round % count)
            usleep(2000); /* rank 0 may also be the last */
        if (environment->expected != BANYAN_OK) {
            CHECK_FAILS(banyan_world_open(NULL, &world), environment->expected, environment->part);
            continue;
        }
        CHECK_OK(banyan_world_open(NULL, &world));
        CHECK(banyan_world_rank(world) == rank && banyan_world_size(world) == count);
        CHECK(banyan_world_timeout_ns(world) == 10 * NS_PER_S);
        CHECK(banyan_world_node_count(world) == (environment->nodes ? count : 1));
        CHECK(control_pid(world, (rank + 1) % count) == 0 || !environment->nodes);
        CHECK_OK(banyan_world_barrier(world));
        CHECK_OK(banyan_world_close(world));
    }
}

static void run_environment(int count, struct environment environment)
{
    int statuses[8];
    ranks_fork(count, open_from_environment, &environment, statuses);
    for (int rank = 0; rank < count; rank++)
        assert_int_equal(statuses[rank], 0);
}

static void a_job_of_one_node_needs_no_address(void **state)
{
    (void)state;
    run_environment(4, (struct environment){.name = "again", .local_size = 4, .rounds = 30});
}

#define SECRET "00112233445566778899aabbccddeeff"

static char *free_port(void)
{
    static char text[16];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    close(fd);
    snprintf(text, sizeof text, "%d", ntohs(address.sin_port));
    return text;
}

static void nodes_meet_over_tcp_with_a_secret(void **state)
{
    (void)state;
    run_environment(4, (struct environment){.name = "tcp",
                                            .local_size = 1,
                                            .rounds = 5,
                                            .secret = SECRET,
                                            .address = "127.0.0.1",
                                            .port = free_port(),
                                            .nodes = true});
    run_environment(3, (struct environment){.name = "fake nodes of one machine",
                                            .local_size = 3,
                                            .rounds = 3,
                                            .secret = SECRET,
                                            .nodes = true});
}

static void nodes_without_a_secret_are_refused(void **state)
{
    (void)state;
    run_environment(2, (struct environment){.name = "open",
                                            .local_size = 1,
                                            .rounds = 1,
                                            .address = "127.0.0.1",
                                            .port = free_port(),
                                            .expected = BANYAN_ERR_REFUSED,
                                            .part = "set BANYAN_SECRET"});
    run_environment(2, (struct environment){.name = "open",
                                            .local_size = 2,
                                            .rounds = 1,
                                            .nodes = true,
                                            .expected = BANYAN_ERR_REFUSED,
                                            .part = "set BANYAN_SECRET"});
}

static struct opener *start_with_secret(int rank, const char *port, const char *secret)
{
    struct opener *opener = calloc(1, sizeof *opener);
    opener->options = (banyan_world_options)BANYAN_WORLD_OPTIONS_INIT;
    opener->options.rank = rank;
    opener->options.world_size = 2;
    opener->options.address = "127.0.0.1";
    opener->options.port = atoi(port);
    opener->options.secret = secret;
    opener->options.node = rank ? "b" : "a";
    opener->options.timeout_ns = 10 * NS_PER_S;
    pthread_create(&opener->thread, NULL, open_and_close, opener);
    return opener;
}

static void a_wrong_secret_is_refused_and_the_job_goes_on(void **state)
{
    (void)state;
    _Atomic int warnings = 0;
    banyan_log_set(count_warning, &warnings);
    const char *port = free_port();
    struct opener *zero = start_with_secret(0, port, SECRET);
    usleep(50000);
    expect(start_with_secret(1, port, "ff112233445566778899aabbccddeeff"), BANYAN_ERR_REFUSED,
           "does not know this job's secret");
    for (int i = 0; i < 100 && warnings == 0; i++)
        usleep(10000);
    assert_int_equal(warnings, 1);
    struct opener *one = start_with_secret(1, port, SECRET);
    expect(one, BANYAN_OK, NULL);
    expect(zero, BANYAN_OK, NULL);
    banyan_log_set(NULL, NULL);
}

struct map_of_nodes {
    char names[12][16];
};

static void check_nodes(int rank, int count, const banyan_unique_id *id, void *context)
{
    const struct map_of_nodes *map = context;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = count;
    options.unique_id = id;
    options.node = map->names[rank];
    banyan_world *world;
    CHECK_OK(banyan_world_open(&options, &world));
    int nodes = 0, local_size = 0, local_rank = -1;
    for (int other = 0; other < count; other++) {
        int first = 0;
        while (strcmp(map->names[first], map->names[other]) != 0)
            first++;
        bool is_new = first == other;
        int expected = is_new ? nodes : banyan_world_node_of(world, first);
        CHECK(banyan_world_node_of(world, other) == expected, "rank %d", other);
        nodes += is_new;
        bool near = strcmp(map->names[other], map->names[rank]) == 0;
        CHECK((control_pid(world, other) != 0) == near);
        if (other == rank)
            local_rank = local_size;
        if (near)
            CHECK(banyan_world_local_peer(world, local_size++) == other);
    }
    CHECK(banyan_world_node_count(world) == nodes);
    CHECK(banyan_world_local_size(world) == local_size);
    CHECK(banyan_world_local_rank(world) == local_rank);
    CHECK(banyan_world_local_peer(world, local_size) == -1);
    CHECK(banyan_world_node_of(world, count) == -1);
    int far = 0;
    while (far < count && banyan_world_node_of(world, far) == 0)
        far++;
    if (far < count) {
        char where[80];
        snprintf(where, sizeof where, "rank 0 is on node %s, rank %d on node %s", map->names[0],
                 far, map->names[far]);
        CHECK_FAILS(control_require_one_node(world, "this runs", "do without"),
                    BANYAN_ERR_UNSUPPORTED, where);
    } else {
        CHECK_OK(control_require_one_node(world, "this runs", "do without"));
    }
    for (int i = 0; i < 5; i++)
        CHECK_OK(banyan_world_barrier(world));
    uint64_t all[12], mine = (uint64_t)rank * 77;
    CHECK_OK(banyan_world_allgather(world, &mine, sizeof mine, all));
    for (int other = 0; other < count; other++)
        CHECK(all[other] == (uint64_t)other * 77);
    CHECK_OK(banyan_world_close(world));
}

static void nodes_are_numbered_by_their_lowest_rank(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 5; round++) {
        struct map_of_nodes map;
        int statuses[12], count = (int)random_between(&random, 2, 12);
        for (int rank = 0; rank < count; rank++)
            snprintf(map.names[rank], sizeof map.names[rank], "n%d",
                     (int)random_between(&random, 0, 3));
        ranks_fork(count, check_nodes, &map, statuses);
        for (int rank = 0; rank < count; rank++)
            assert_int_equal(statuses[rank], 0);
    }
}

static int count_entries(const char *path)
{
    int count = 0;
    DIR *folder = opendir(path);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* The thread that answered the ranks ends a moment after the last has its table. */
static void expect_entries(const char *path, int expected)
{
    int count = 0;
    for (int i = 0; i < 200 && (count = count_entries(path)) > expected; i++)
        usleep(10000);
    if (count != expected)
        fail_msg("%s has %d entries, %d before", path, count, expected);
}

static void two_hundred_worlds_leave_nothing_behind(void **state)
{
    (void)state;
    static const char *const nodes[] = {"a", "b", "a"};
    int descriptors = 0, threads = 0;
    for (int i = 0; i < 200; i++) {
        if (i == 1) { /* sanitizers start a thread of their own with our first */
            usleep(50000);
            descriptors = count_entries("/proc/self/fd");
            threads = count_entries("/proc/self/task");
        }
        banyan_unique_id id;
        CHECK_OK(banyan_unique_id_create(&id));
        struct opener *openers[3];
        for (int rank = 0; rank < 3; rank++)
            openers[rank] = start_on(i % 2 ? nodes[rank] : NULL, &id, rank, 3, 20);
        for (int rank = 0; rank < 3; rank++)
            expect(openers[rank], BANYAN_OK, NULL);
    }
    expect_entries("/proc/self/task", threads);
    expect_entries("/proc/self/fd", descriptors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_needs_nobody),
        cmocka_unit_test(restores_the_opened_timeout),
        cmocka_unit_test(a_rank_that_dies_before_all_have_come_can_be_replaced),
        cmocka_unit_test(a_job_of_one_node_needs_no_address),
        cmocka_unit_test(nodes_meet_over_tcp_with_a_secret),
        cmocka_unit_test(nodes_without_a_secret_are_refused),
        cmocka_unit_test(nodes_are_numbered_by_their_lowest_rank),
        cmocka_unit_test(two_hundred_worlds_leave_nothing_behind),
        cmocka_unit_test(a_rank_that_comes_twice_is_refused_and_the_job_goes_on),
        cmocka_unit_test(a_wrong_secret_is_refused_and_the_job_goes_on),
        cmocka_unit_test(an_id_whose_maker_is_dead_is_refused_at_once),
        cmocka_unit_test(bytes_that_are_no_id_are_refused),
        cmocka_unit_test(a_deadline_names_the_missing_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
