/* Runs end with a message when a peer is lost, late or makes other calls, and the ranks can still
 * report it. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/test.h"

#include "core/deadline.h"

#define BYTES 4096

/* All-reduce in which all ranks wait for each other, in the given thread block. */
static banyan_plan *circular_plan(int ranks, banyan_reduce_op op)
{
    banyan_collective collective = {.kind = BANYAN_ALLREDUCE};
    banyan_program *program;
    banyan_plan *plan;
    CHECK_OK(banyan_program_create("circular", &collective, ranks, NULL, &program));
    for (int r = 0; r < ranks; r++) {
        int next = (r + 1) % ranks, before = (r + ranks - 1) % ranks;
        banyan_program_memory_channel *to = banyan_program_memory_channel_create(program, next, r);
        banyan_program_memory_channel *from =
            before == next ? to : banyan_program_memory_channel_create(program, before, r);
        banyan_chunk remote = banyan_program_input(program, next, 0, 1);
        banyan_program_memory_signal(to, 0, BANYAN_SYNC_BOTH);
        banyan_program_memory_wait(from, 0, BANYAN_SYNC_BOTH);
        banyan_program_memory_reduce(to, banyan_program_input(program, r, 0, 1), &remote, 1,
                                     banyan_program_output(program, r, 0, 1), op, BANYAN_TB(0));
    }
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    return plan;
}

struct player {
    banyan_world *world;
    banyan_executor *executor;
    banyan_loaded_plan *loaded;
    int rank;
    char input[BYTES], output[BYTES];
};

static void open_player(struct player *p, int rank, int count, const banyan_unique_id *id,
                        uint64_t timeout_ns, int workers)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = p->rank = rank;
    options.world_size = count;
    options.unique_id = id;
    options.timeout_ns = timeout_ns;
    CHECK_OK(banyan_world_open(&options, &p->world));
    banyan_executor_options with = BANYAN_EXECUTOR_OPTIONS_INIT;
    with.workers = workers;
    CHECK_OK(banyan_executor_open(p->world, &with, &p->executor));
    banyan_plan *plan = circular_plan(count, BANYAN_SUM);
    banyan_loaded_plan_options load = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    load.max_message_bytes = BYTES;
    CHECK_OK(banyan_loaded_plan_open(p->executor, plan, &load, &p->loaded));
    banyan_plan_destroy(plan);
}

static banyan_status run_once(struct player *p)
{
    return banyan_loaded_plan_run(p->loaded, p->input, p->output, BYTES, BANYAN_F32, NULL);
}

/* After a failure nothing waits any more. */
static void close_player(struct player *p)
{
    uint64_t start_ns = time_now_ns();
    banyan_loaded_plan_close(p->loaded);
    banyan_executor_close(p->executor);
    banyan_world_close(p->world);
    CHECK(time_now_ns() - start_ns < 2 * NS_PER_S, "closing took too long");
}

static void check_survivors(const int *statuses, int count, int victim, int expected)
{
    for (int rank = 0; rank < count; rank++)
        CHECK(statuses[rank] == (rank == victim ? expected : 0), "rank %d ended with %#x", rank,
              (unsigned)statuses[rank]);
}

static void die_at_the_third_run(int rank, int count, const banyan_unique_id *id, void *context)
{
    int workers = *(int *)context;
    struct player p = {0};
    open_player(&p, rank, count, id, 60 * NS_PER_S, workers);
    for (int run = 0; run < 2; run++)
        CHECK_OK(run_once(&p));
    if (rank == 1) {
        usleep(500000);
        raise(SIGKILL);
    }
    uint64_t start_ns = time_now_ns();
    /* A rank that does not wait for the dead rank waits for one that does, one run later. */
    if (rank == 0)
        CHECK_OK(run_once(&p));
    CHECK_FAILS(run_once(&p), BANYAN_ERR_PEER_LOST, "rank 1 ");
    CHECK(time_now_ns() - start_ns < 2 * NS_PER_S, "the loss was noticed too late");
    char expected[128];
    snprintf(expected, sizeof expected,
             "while rank %d waited for rank %d: thread block 0, operation 3 (wait) on memory "
             "channel 1",
             rank, (rank + count - 1) % count);
    CHECK(strstr(banyan_last_error(), expected), "\"%s\" is not in: %s", expected,
          banyan_last_error());
    CHECK_FAILS(run_once(&p), BANYAN_ERR_PEER_LOST, "rank 1 ");
    close_player(&p);
}

static void a_death_ends_the_run_of_all_with_the_operation_named(void **state)
{
    (void)state;
    int statuses[3];
    for (int workers = 1; workers <= 2; workers++) {
        ranks_fork(3, die_at_the_third_run, &workers, statuses);
        check_survivors(statuses, 3, 1, SIGKILL);
    }
}

static void abort_the_world(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    struct player p = {0};
    open_player(&p, rank, count, id, 60 * NS_PER_S, 1);
    CHECK_OK(run_once(&p));
    if (rank == 0) {
        usleep(50000);
        CHECK_OK(banyan_world_abort(p.world, "a test says so"));
    }
    CHECK_FAILS(run_once(&p), BANYAN_ERR_ABORTED, "a test says so");
    close_player(&p);
}

static void an_abort_ends_the_run_of_all(void **state)
{
    (void)state;
    int statuses[2];
    ranks_fork(2, abort_the_world, NULL, statuses);
    check_survivors(statuses, 2, -1, 0);
}

static void come_too_late(int rank, int count, const banyan_unique_id *id, void *context)
{
    int workers = *(int *)context;
    struct player p = {0};
    open_player(&p, rank, count, id, NS_PER_S / 2, workers);
    CHECK_OK(run_once(&p));
    if (rank == 0) {
        usleep(1000000);
        _exit(0);
    }
    uint64_t start_ns = time_now_ns();
    CHECK_FAILS(run_once(&p), BANYAN_ERR_TIMEOUT,
                "rank 1 waited 0.5 s for rank 0: thread block 0, operation 3 (wait) on memory "
                "channel 0");
    uint64_t took_ns = time_now_ns() - start_ns;
    CHECK(took_ns > NS_PER_S * 4 / 10 && took_ns < NS_PER_S, "it took %.2f s",
          (double)took_ns / 1e9);
    CHECK_FAILS(run_once(&p), BANYAN_ERR_TIMEOUT, "rank 1 waited 0.5 s for rank 0");
    close_player(&p);
}

static void a_rank_that_waits_in_vain_says_for_what(void **state)
{
    (void)state;
    int statuses[2];
    for (int workers = 1; workers <= 2; workers++) {
        ranks_fork(2, come_too_late, &workers, statuses);
        check_survivors(statuses, 2, -1, 0);
    }
}

/* Other kinds of waits, and their names. */
enum { PACKETS, SEMAPHORE, PORT_WAIT, WAITS };

static const char *const wait_messages[WAITS] = {
    [PACKETS] =
        "for rank 0: thread block 0, operation 1 (upkt) on packets in scratch chunks [0, 2)",
    [SEMAPHORE] =
        "for its other thread blocks: thread block 1, operation 0 (sem_acquire) on semaphore 0",
    [PORT_WAIT] = "for rank 0: thread block 0, operation 1 (wait) on port channel 0",
};

/* Rank 0 does not come; thread block 1 waits for thread block 0, or for a release that never
 * comes. */
static banyan_plan *waiting_plan(int what)
{
    banyan_collective collective = {.kind = BANYAN_CUSTOM, .input_chunks = 2, .output_chunks = 2};
    banyan_program *program;
    banyan_plan *plan;
    CHECK_OK(banyan_program_create("waits", &collective, 2, NULL, &program));
    for (int r = 0; r < 2; r++)
        banyan_program_scratch(program, r, 2);
    for (int r = 0; r < 2; r++) {
        banyan_program_memory_channel *to = banyan_program_memory_channel_create(program, 1 - r, r);
        banyan_program_port_channel *port = banyan_program_port_channel_create(program, 1 - r, r);
        banyan_program_semaphore *done = banyan_program_semaphore_create(program, r, 0);
        banyan_chunk own = {r, BANYAN_SCRATCH, 0, 2}, theirs = {1 - r, BANYAN_SCRATCH, 0, 2};
        if (what == PORT_WAIT) {
            banyan_program_port_signal(port, 0, BANYAN_SYNC_NONE);
            banyan_program_port_wait(port, 0, BANYAN_SYNC_NONE);
        }
        if (what == PACKETS) {
            banyan_program_memory_put_packets(to, theirs, banyan_program_input(program, r, 0, 2),
                                              BANYAN_TB(0));
            banyan_program_unpack_packets(program, r, banyan_program_output(program, r, 0, 2), own,
                                          BANYAN_TB(0));
        }
        if (what != SEMAPHORE)
            banyan_program_semaphore_release(done, 0, BANYAN_SYNC_NONE);
        banyan_program_semaphore_acquire(done, 1, BANYAN_SYNC_NONE);
    }
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    return plan;
}

struct waiting {
    int what;
    int workers;
};

/* A message names a wait for a peer rather than one for another thread block, even of another
 * worker. */
static void wait_for_what_does_not_come(int rank, int count, const banyan_unique_id *id,
                                        void *context)
{
    const struct waiting *waiting = context;
    struct player p = {0};
    open_player(&p, rank, count, id, NS_PER_S * 3 / 10, waiting->workers);
    banyan_plan *plan = waiting_plan(waiting->what);
    banyan_loaded_plan *loaded;
    banyan_loaded_plan_options load = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    load.max_message_bytes = BYTES;
    CHECK_OK(banyan_loaded_plan_open(p.executor, plan, &load, &loaded));
    if (rank == 0) {
        usleep(2000000);
        _exit(0);
    }
    CHECK_FAILS(banyan_loaded_plan_run(loaded, p.input, p.output, BYTES, BANYAN_F32, NULL),
                BANYAN_ERR_TIMEOUT, wait_messages[waiting->what]);
    banyan_loaded_plan_close(loaded);
    banyan_plan_destroy(plan);
    close_player(&p);
}

static void every_wait_names_its_reason(void **state)
{
    (void)state;
    int statuses[2];
    for (int what = 0; what < WAITS; what++) {
        for (int workers = 1; workers <= 2; workers++) {
            struct waiting waiting = {what, workers};
            ranks_fork(2, wait_for_what_does_not_come, &waiting, statuses);
            check_survivors(statuses, 2, -1, 0);
        }
    }
}

static banyan_status load(banyan_executor *executor, const banyan_plan *plan, uint64_t bytes,
                          const banyan_memory *memory)
{
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_loaded_plan *loaded = NULL;
    options.max_message_bytes = bytes;
    options.input = memory;
    return banyan_loaded_plan_open(executor, plan, &options, &loaded);
}

static void load_apart(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    banyan_executor *executor;
    banyan_memory *memory;
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    CHECK_OK(banyan_memory_alloc(world, BYTES, &memory));
    banyan_plan *plan = circular_plan(3, BANYAN_SUM), *other = circular_plan(3, BANYAN_MAX);
    banyan_plan *larger = circular_plan(4, BANYAN_SUM);
    CHECK_FAILS(
        load(executor, rank == 2 ? other : plan, BYTES, NULL), BANYAN_ERR_MISMATCH,
        "rank 2 loads another plan than rank 0: of 3 differences the first is rank 0, thread "
        "block 0, operation 5");
    CHECK_FAILS(load(executor, plan, rank == 1 ? 64 : BYTES, NULL), BANYAN_ERR_MISMATCH,
                "rank 1 loads the plan for messages of 64 bytes at most, rank 0 of 4096");
    CHECK_FAILS(load(executor, plan, BYTES, rank == 2 ? memory : NULL), BANYAN_ERR_MISMATCH,
                "rank 2 and rank 0 load the plan with different input memory");
    CHECK_FAILS(load(executor, larger, BYTES, NULL), BANYAN_ERR_INVALID,
                "a plan for 4 ranks cannot be loaded in a world of 3");
    banyan_plan_destroy(plan);
    banyan_plan_destroy(other);
    banyan_plan_destroy(larger);
    banyan_memory_free(memory);
    banyan_executor_close(executor);
}

static void ranks_that_load_different_plans_fail(void **state)
{
    (void)state;
    ranks_run(3, load_apart, NULL);
}

static void refuse_runs(banyan_world *world, void *context)
{
    (void)context;
    banyan_executor *executor;
    banyan_loaded_plan *loaded;
    banyan_memory *memory;
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    CHECK_OK(banyan_memory_alloc(world, 2 * BYTES, &memory));
    banyan_plan *plan = circular_plan(2, BANYAN_SUM);
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = BYTES;
    options.input = memory;
    CHECK_OK(banyan_loaded_plan_open(executor, plan, &options, &loaded));
    char *input = banyan_memory_local(memory), output[BYTES];
    CHECK_FAILS(banyan_loaded_plan_run(loaded, input, output, BYTES + 4, BANYAN_F32, NULL),
                BANYAN_ERR_INVALID,
                "a message of 4100 bytes is longer than the 4096 that its plan was loaded for");
    CHECK_FAILS(banyan_loaded_plan_run(loaded, input, output, 6, BANYAN_F32, NULL),
                BANYAN_ERR_INVALID, "6 bytes");
    CHECK_FAILS(banyan_loaded_plan_run(loaded, input, output, 16, BANYAN_F8_E8M0, NULL),
                BANYAN_ERR_INVALID, "cannot be reduced");
    CHECK_FAILS(banyan_loaded_plan_run(loaded, NULL, output, 16, BANYAN_F32, NULL),
                BANYAN_ERR_INVALID, "16 bytes of input at NULL");
    CHECK_FAILS(banyan_loaded_plan_run(loaded, input, NULL, 16, BANYAN_F32, NULL),
                BANYAN_ERR_INVALID, "16 bytes of output at NULL");
    CHECK_FAILS(banyan_loaded_plan_run(loaded, input, input + 8, 16, BANYAN_F32, NULL),
                BANYAN_ERR_INVALID, "overlap");
    CHECK_FAILS(banyan_loaded_plan_run(loaded, output, input, 16, BANYAN_F32, NULL),
                BANYAN_ERR_INVALID, "does not lie in the symmetric memory");
    CHECK_FAILS(banyan_loaded_plan_run(loaded, input + 2 * BYTES - 8, output, 16, BANYAN_F32, NULL),
                BANYAN_ERR_INVALID, "does not lie in the symmetric memory");
    /* Nothing has moved: all ranks can continue. */
    CHECK_OK(banyan_loaded_plan_run(loaded, input + BYTES, output, 16, BANYAN_F32, NULL));
    CHECK_OK(banyan_loaded_plan_close(loaded));
    banyan_plan_destroy(plan);
    banyan_memory_free(memory);
    banyan_executor_close(executor);
}

static void runs_that_cannot_be_are_refused_before_anything_moves(void **state)
{
    (void)state;
    ranks_run(2, refuse_runs, NULL);
}

static void run_in_the_background(banyan_world *world, void *context)
{
    (void)context;
    banyan_executor *executor;
    banyan_loaded_plan *loaded;
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    banyan_plan *plan = circular_plan(2, BANYAN_SUM);
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = BYTES;
    CHECK_OK(banyan_loaded_plan_open(executor, plan, &options, &loaded));
    float input[4] = {1, 2, 3, (float)banyan_world_rank(world)}, output[4] = {0};
    banyan_request *request;
    CHECK_OK(banyan_loaded_plan_start(loaded, input, output, sizeof input, BANYAN_F32, &request));
    bool done = false;
    if (banyan_world_rank(world) == 0)
        usleep(10000);
    while (!done)
        CHECK_OK(banyan_request_test(request, &done));
    CHECK_OK(banyan_request_wait(request));
    CHECK(output[0] == 2 && output[1] == 4 && output[2] == 6 && output[3] == 1, "%g %g %g %g",
          output[0], output[1], output[2], output[3]);
    CHECK_OK(banyan_loaded_plan_start(loaded, input, output, BYTES + 4, BANYAN_F32, &request));
    CHECK_FAILS(banyan_request_wait(request), BANYAN_ERR_INVALID, "longer than");
    CHECK_OK(banyan_loaded_plan_close(loaded));
    banyan_plan_destroy(plan);
    banyan_executor_close(executor);
}

static void a_run_can_be_started_and_waited_for(void **state)
{
    (void)state;
    ranks_run(2, run_in_the_background, NULL);
}

static void open_with_wrong_threshold(banyan_world *world, void *context)
{
    (void)context;
    banyan_executor *executor;
    setenv("BANYAN_PAST_CACHES", "4M", 1);
    CHECK_FAILS(banyan_executor_open(world, NULL, &executor), BANYAN_ERR_INVALID,
                "BANYAN_PAST_CACHES is \"4M\"");
}

static void a_threshold_that_is_no_number_is_refused(void **state)
{
    (void)state;
    ranks_run(2, open_with_wrong_threshold, NULL);
}

static void open_without_size(banyan_world *world, void *context)
{
    (void)context;
    banyan_executor *executor;
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    banyan_loaded_plan_options load = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_loaded_plan *loaded;
    options.size = 0;
    CHECK_FAILS(banyan_executor_open(world, &options, &executor), BANYAN_ERR_INVALID,
                "BANYAN_EXECUTOR_OPTIONS_INIT");
    /* A caller of an older release, without the field for workers. */
    options.size = offsetof(banyan_executor_options, workers);
    options.workers = -7;
    CHECK_OK(banyan_executor_open(world, &options, &executor));
    banyan_plan *plan = circular_plan(2, BANYAN_SUM);
    load.size = 0;
    CHECK_FAILS(banyan_loaded_plan_open(executor, plan, &load, &loaded), BANYAN_ERR_INVALID,
                "BANYAN_LOADED_PLAN_OPTIONS_INIT");
    banyan_plan_destroy(plan);
    banyan_executor_close(executor);
}

static void options_without_a_size_are_refused_and_older_ones_taken(void **state)
{
    (void)state;
    ranks_run(2, open_without_size, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_threshold_that_is_no_number_is_refused),
        cmocka_unit_test(options_without_a_size_are_refused_and_older_ones_taken),
        cmocka_unit_test(a_death_ends_the_run_of_all_with_the_operation_named),
        cmocka_unit_test(an_abort_ends_the_run_of_all),
        cmocka_unit_test(a_rank_that_waits_in_vain_says_for_what),
        cmocka_unit_test(every_wait_names_its_reason),
        cmocka_unit_test(ranks_that_load_different_plans_fail),
        cmocka_unit_test(runs_that_cannot_be_are_refused_before_anything_moves),
        cmocka_unit_test(a_run_can_be_started_and_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
