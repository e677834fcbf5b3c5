/* Ranks join through others: no process takes all connections, and a rank that dies on the way
 * leaves the others a way. */
#include "support/test.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "world/bootstrap/rendezvous.h"
#include "world/bootstrap/tree.h"
#include "world/net/descriptors.h"

#define SECRET "00112233445566778899aabbccddeeff"
#define RANKS_MOST 80

struct traffic {
    int made, accepted, sent, received;
};

/* In memory that the ranks share. */
struct play {
    int nodes; /* 0: one node, through the environment */
    bool by_id;
    struct traffic joined[RANKS_MOST], opened[RANKS_MOST], rendezvous;
    int round;
};

static struct play *play;

static bool read_traffic(const char *line, const char *what, int *first, struct traffic *traffic)
{
    struct traffic got;
    char format[160];
    int number, count;
    snprintf(format, sizeof format,
             "%s: connections %%d made, %%d accepted; messages %%d sent, %%d received", what);
    if (sscanf(line, format, &number, &count, &got.made, &got.accepted, &got.sent, &got.received) !=
        6)
        return false;
    *first = number;
    *traffic = got;
    return true;
}

static void keep_traffic(banyan_log_level level, const char *message, void *context)
{
    struct traffic got;
    int rank;
    (void)level;
    (void)context;
    if (read_traffic(message, "rank %d of %d joined", &rank, &got))
        play->joined[rank] = got;
    else if (read_traffic(message, "rank %d of %d opened", &rank, &got))
        play->opened[rank] = got;
    else
        sscanf(message, "the rendezvous of %*d ranks: connections %*d made, %d accepted",
               &play->rendezvous.accepted);
}

static void set_number(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

static void job_name(char *text, size_t bytes)
{
    snprintf(text, bytes, "tree-%d-%d", (int)getppid(), play->round);
}

static banyan_status open_world(int rank, int count, const banyan_unique_id *id,
                                uint64_t timeout_ns, banyan_world **world)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    char job[64], node[16];
    options.timeout_ns = timeout_ns;
    if (play->nodes == 0) {
        job_name(job, sizeof job);
        setenv("BANYAN_JOB", job, 1);
        set_number("BANYAN_RANK", rank);
        set_number("BANYAN_LOCAL_RANK", rank);
        set_number("BANYAN_WORLD_SIZE", count);
        set_number("BANYAN_LOCAL_SIZE", count);
        return banyan_world_open(&options, world);
    }
    snprintf(node, sizeof node, "node%d", rank * play->nodes / count);
    options.rank = rank;
    options.world_size = count;
    options.node = node;
    options.unique_id = play->by_id ? id : NULL;
    options.address = "127.0.0.1";
    options.port = 21000 + (int)(getppid() + 64 * play->round) % 9000;
    options.secret = SECRET;
    return banyan_world_open(&options, world);
}

static void count_messages(int rank, int count, const banyan_unique_id *id, void *context)
{
    banyan_world *world;
    int all[RANKS_MOST];
    (void)context;
    banyan_log_set(keep_traffic, NULL);
    CHECK_OK(open_world(rank, count, id, 60 * NS_PER_S, &world));
    CHECK_OK(banyan_world_allgather(world, &rank, sizeof rank, all));
    for (int i = 0; i < count; i++)
        CHECK(all[i] == i);
    CHECK_OK(banyan_world_close(world));
}

static void run_ranks(int count, int nodes, bool by_id, ranks_raw_fn fn, int *statuses)
{
    *play = (struct play){.nodes = nodes, .by_id = by_id, .round = play->round + 1};
    ranks_fork(count, fn, NULL, statuses);
}

static void open_and_count(int count, int nodes, bool by_id)
{
    int statuses[RANKS_MOST];
    run_ranks(count, nodes, by_id, count_messages, statuses);
    for (int rank = 0; rank < count; rank++)
        assert_int_equal(statuses[rank], 0);
}

static int log2_of(int count)
{
    int log = 0;
    while (1 << log < count)
        log++;
    return log;
}

static void no_rank_of_a_node_takes_more_than_log_n_connections(void **state)
{
    (void)state;
    for (int count = 5; count <= 64; count = 2 * count - 1) {
        int bound = log2_of(count) + 1; /* one may come late, on a busy machine */
        open_and_count(count, 0, false);
        assert_in_range(play->rendezvous.accepted, 1, bound + 1); /* and rank 0 itself */
        for (int rank = 0; rank < count; rank++) {
            const struct traffic *joined = &play->joined[rank];
            assert_in_range(joined->made, 1, 1 + bound);
            assert_in_range(joined->accepted, 0, bound);
        }
    }
}

/* Each node has a leader; the rendezvous has no more connections than nodes, and those of its own
 * node. */
static void ranks_of_a_node_join_through_its_leader(void **state)
{
    (void)state;
    for (int by_id = 0; by_id <= 1; by_id++) {
        open_and_count(24, 4, by_id);
        int leaders = 0, accepted = 0;
        for (int rank = 0; rank < 24; rank++) {
            leaders += play->joined[rank].accepted > 0;
            accepted += play->joined[rank].accepted;
        }
        assert_true(leaders >= 3);
        assert_true(accepted >= 15); /* all but the leaders, and those of rank 0's node */
        if (!by_id)
            assert_in_range(play->rendezvous.accepted, 4, 9);
    }
}

/* A rendezvous that has many connections sends further nodes to others. */
static void many_nodes_are_sent_on(void **state)
{
    (void)state;
    open_and_count(RANKS_MOST, RANKS_MOST, false);
    int sent_on = 0;
    for (int rank = 0; rank < RANKS_MOST; rank++) {
        /* Steps of a barrier in both directions, and neighbours in the tree: also at rank 0. */
        assert_in_range(play->opened[rank].accepted, 1, 3 * log2_of(RANKS_MOST));
        assert_in_range(play->opened[rank].made, 1, 3 * log2_of(RANKS_MOST));
    }
    for (int rank = 1; rank < RANKS_MOST; rank++) {
        sent_on += play->joined[rank].made >= 2;
        assert_true(play->joined[rank].accepted <= RELAY_CHILDREN);
    }
    assert_true(sent_on >= RANKS_MOST - 1 - RELAY_CHILDREN);
}

static void die(int signal)
{
    (void)signal;
    kill(getpid(), SIGKILL);
}

static struct line {
    char text[512];
} lines[32];
static int line_count;

static void keep_line(banyan_log_level level, const char *message, void *context)
{
    (void)context;
    if (level <= BANYAN_LOG_WARN && line_count < 32)
        snprintf(lines[line_count++].text, sizeof lines[0].text, "%s", message);
}

/* Ranks 5 to 7 join through rank 4, which dies before all have joined. Process 8 takes its place.
 */
static void lose_the_relay(int process, int count, const banyan_unique_id *id, void *context)
{
    bool replaced = *(const bool *)context;
    banyan_world *world;
    int rank = process < count - 1 ? process : 4;
    banyan_log_set(keep_line, NULL);
    if (process == 4) {
        signal(SIGALRM, die);
        ualarm(300000, 0);
    }
    if (process == 8) {
        usleep(600000);
        if (!replaced)
            return;
    }
    if (rank == 1 && !replaced)
        return; /* it never comes */
    if (rank == 1)
        usleep(900000);
    /* Rank 0 waits longer: it must not end before it has told the others who is missing. */
    uint64_t most_ns = replaced ? 20 * NS_PER_S : rank == 0 ? 3 * NS_PER_S : 3 * NS_PER_S / 2;
    banyan_status status = open_world(rank, count - 1, id, most_ns, &world);
    if (replaced) {
        CHECK_OK(status);
        CHECK_OK(banyan_world_close(world));
        return;
    }
    CHECK(status == BANYAN_ERR_TIMEOUT, "%s", banyan_last_error());
    CHECK(strstr(banyan_last_error(), "not there yet: rank 1, 4 (died);"), "%s",
          banyan_last_error());
    bool found = false;
    for (int i = 0; i < line_count; i++)
        found |=
            strstr(lines[i].text, "rank 4 (pid ") && strstr(lines[i].text, "died before all 8");
    CHECK(found, "rank %d was not informed of the death", rank);
}

static void ranks_behind_a_rank_that_dies_join_elsewhere(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        bool replaced = i % 2;
        int statuses[9];
        *play = (struct play){.nodes = i < 2 ? 0 : 1, .by_id = i >= 2, .round = play->round + 1};
        ranks_fork(9, lose_the_relay, &replaced, statuses);
        for (int process = 0; process < 9; process++) {
            if (process != 4 && statuses[process] != 0)
                fail_msg("round %d, process %d: %#x", i, process, statuses[process]);
        }
    }
}

/* Rank 3 joins through rank 2, before rank 0 comes and fails. */
static void fail_at_once(int rank, int count, const banyan_unique_id *id, void *context)
{
    banyan_world *world;
    struct identity identity = {.rank = 0, .world_size = count, .local_size = count};
    struct rendezvous_place place;
    struct rendezvous *rendezvous;
    (void)context;
    if (rank != 0) {
        banyan_status status = open_world(rank, count, id, 20 * NS_PER_S, &world);
        CHECK(status == BANYAN_ERR_NO_MEMORY, "%s", banyan_last_error());
        CHECK(strcmp(banyan_last_error(), "rank 0: out of memory") == 0, "%s", banyan_last_error());
        return;
    }
    usleep(300000);
    job_name(identity.job, sizeof identity.job);
    CHECK_OK(rendezvous_place_of_job(&identity, &place));
    place.all_here = true;
    tree_base(&place, "");
    CHECK_OK(rendezvous_start(&place, -1, count, false, &rendezvous));
    error_kept why = error_keep(error_set(BANYAN_ERR_NO_MEMORY, "out of memory"));
    uint64_t began_ns = time_now_ns();
    CHECK(rendezvous_stop(rendezvous, &why), "no rank was informed");
    CHECK(time_now_ns() - began_ns < 800 * NS_PER_MS, "waited %.3f s for ranks that were informed",
          (double)(time_now_ns() - began_ns) / 1e9);
}

static void ranks_behind_others_are_not_waited_for_once_informed(void **state)
{
    (void)state;
    int statuses[4];
    run_ranks(4, 0, false, fail_at_once, statuses);
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(statuses[rank], 0);
}

int main(void)
{
    setenv("BANYAN_LOG", "debug", 1);
    setenv("BANYAN_WAIT_LOG", "5", 1);
    play = mmap(NULL, sizeof *play, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (play == MAP_FAILED)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_rank_of_a_node_takes_more_than_log_n_connections),
        cmocka_unit_test(ranks_of_a_node_join_through_its_leader),
        cmocka_unit_test(many_nodes_are_sent_on),
        cmocka_unit_test(ranks_behind_a_rank_that_dies_join_elsewhere),
        cmocka_unit_test(ranks_behind_others_are_not_waited_for_once_informed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
