/* A rank whose call has failed may end its process at once: every other rank still returns the
 * cause of the failure, not the rank's death. */
#include "support/test.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/deadline.h"

enum { RANKS = 4, REPEATS = 100 / TEST_SLOWER };

/* In memory that all processes share. */
static struct tally {
    _Atomic int without_cause;
    char message[1024]; /* of one such rank */
} * tally;

typedef struct leaving {
    const char *name, *cause;
    banyan_status (*call)(banyan_world *world);
    bool on_two_nodes;
} leaving;

static banyan_status gather_unequal(banyan_world *world)
{
    char mine[8] = {0}, all[8 * RANKS];
    return banyan_world_allgather(world, mine, banyan_world_rank(world) == 2 ? 8 : 4, all);
}

static banyan_status open_mixed(banyan_world *world, banyan_mixed_options *options)
{
    banyan_mixed *mixed;
    options->dtype = BANYAN_F32;
    return banyan_mixed_open(world, options, &mixed);
}

static banyan_status open_between_nodes(banyan_world *world)
{
    banyan_mixed_options options = BANYAN_MIXED_OPTIONS_INIT;
    options.local_tp = 2;
    return open_mixed(world, &options);
}

static banyan_status open_unlike(banyan_world *world)
{
    banyan_mixed_options options = BANYAN_MIXED_OPTIONS_INIT;
    options.local_tp = banyan_world_rank(world) == 3 ? 1 : 2;
    return open_mixed(world, &options);
}

static banyan_status open_wrong_grid(banyan_world *world)
{
    banyan_mixed_options options = BANYAN_MIXED_OPTIONS_INIT;
    options.local_tp = 3;
    return open_mixed(world, &options);
}

static banyan_status open_wrong_at_one(banyan_world *world)
{
    banyan_mixed_options options = BANYAN_MIXED_OPTIONS_INIT;
    options.min_num_steps = banyan_world_rank(world) == 1 ? 0 : options.min_num_steps;
    return open_mixed(world, &options);
}

static banyan_status load_without_file(banyan_world *world)
{
    banyan_mixed_options options = BANYAN_MIXED_OPTIONS_INIT;
    options.autotune = "/no/such/table.json";
    return open_mixed(world, &options);
}

static banyan_status alloc_too_much(banyan_world *world)
{
    banyan_memory *memory;
    return banyan_memory_alloc(world, banyan_world_rank(world) == 1 ? (size_t)1 << 50 : 4096,
                               &memory);
}

static banyan_status create_comm_between_nodes(banyan_world *world)
{
    banyan_comm *comm;
    return banyan_comm_create(world, NULL, &comm);
}

static banyan_status load_unlike(banyan_world *world)
{
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_executor *executor;
    banyan_loaded_plan *loaded;
    banyan_plan *plan;
    params.ranks = RANKS;
    options.max_message_bytes = banyan_world_rank(world) == 2 ? 64 : 4096;
    CHECK_OK(banyan_algorithm_compile("allreduce_ring", &params, &plan));
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    return banyan_loaded_plan_open(executor, plan, &options, &loaded);
}

static const leaving cases[] = {
    {"allgather", "8 bytes to an allgather", gather_unequal, false},
    {"mixed_open of two nodes", "mixed collectives on the host", open_between_nodes, true},
    {"mixed_open of unlike options", "local_tp is", open_unlike, false},
    {"mixed_open of a wrong grid", "local_tp 3", open_wrong_grid, false},
    {"mixed_open with a wrong option", "min_num_steps of 0", open_wrong_at_one, false},
    {"mixed_open without a table", "no/such/table.json", load_without_file, false},
    {"memory_alloc", "out of memory", alloc_too_much, false},
    {"loaded_plan_open of unlike sizes", "64 bytes at most", load_unlike, false},
    {"comm_create of two nodes", "collectives need", create_comm_between_nodes, true},
};
#define CASES (sizeof cases / sizeof *cases)

static void call_and_leave(int rank, int count, const banyan_unique_id *id, void *context)
{
    const leaving *of = context;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    banyan_world *world;
    options.rank = rank;
    options.world_size = count;
    options.unique_id = id;
    options.timeout_ns = 20 * NS_PER_S;
    if (of->on_two_nodes)
        options.node = rank < count / 2 ? "left" : "right";
    CHECK_OK(banyan_world_open(&options, &world));
    banyan_status status = of->call(world);
    if (!strstr(banyan_last_error(), of->cause) && tally->without_cause++ == 0)
        snprintf(tally->message, sizeof tally->message, "rank %d: %s: %s", rank,
                 banyan_status_name(status), banyan_last_error());
    _exit(status == BANYAN_OK);
}

static void every_rank_returns_the_cause(void **state)
{
    (void)state;
    int bad = 0;
    tally = mmap(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(tally != MAP_FAILED);
    for (size_t i = 0; i < CASES; i++) {
        int runs = 0;
        *tally = (struct tally){0};
        for (int k = 0; k < REPEATS; k++) {
            int statuses[RANKS];
            tally->without_cause = 0;
            ranks_fork(RANKS, call_and_leave, (void *)&cases[i], statuses);
            for (int rank = 0; rank < RANKS; rank++)
                assert_int_equal(statuses[rank], 0);
            runs += tally->without_cause > 0;
        }
        if (runs > 0)
            printf("%s: a rank without the cause in %d of %d runs: %s\n", cases[i].name, runs,
                   REPEATS, tally->message);
        bad += runs;
    }
    munmap(tally, sizeof *tally);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_returns_the_cause),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
