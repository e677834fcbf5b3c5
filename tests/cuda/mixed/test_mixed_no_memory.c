/* Out of memory on one rank in the module, even for a few bytes, fails on all ranks at once, and a
 * retry succeeds. */
#include <pthread.h>

#include "cuda/gpu_mixed.h"
#include "support/lacking.h"

#define ELEMS 2000

static banyan_mixed_options options_for(const banyan_world *world, const grid_sizes *sizes)
{
    banyan_mixed_options options = options_of(sizes, BANYAN_F32);
    options.device = gpu_device_for(banyan_world_rank(world));
    options.max_bytes = 4096;
    return options;
}

/* In groups' ranks. */
static void start_nccl(banyan_world *world, void *context)
{
    static const grid_sizes sizes = {1, 2, 2, 1, 1};
    mixed_one call = {.op = BANYAN_MIXED_ALLREDUCE_ALLGATHER,
                      .mode = *(const banyan_mixed_mode *)context,
                      .rows = 2,
                      .row_elems = 9};
    mixed_one other = call;
    other.mode = BANYAN_MIXED_ONE_SHOT;
    bool lacked = true;
    for (int n = 0; lacked; n++) {
        mixed_case c;
        gpu_case_open(&c, world, options_for(world, &sizes), ELEMS);
        lack_begin(world, call.mode == BANYAN_MIXED_SINGLE_NCCL ? 4 : 2, n);
        lacked = lack_end(world, case_call(&c, &call), BANYAN_ERR_SYSTEM);
        CHECK(lacked || n > 0);
        gpu_stream_wait(c.device, c.stream);
        case_run(&c, lacked ? &other : &call);
        gpu_case_close(&c);
    }
}

static void an_nccl_without_its_ranks_fails_on_all(void **state)
{
    static const banyan_mixed_mode modes[] = {BANYAN_MIXED_SINGLE_NCCL, BANYAN_MIXED_SEPARATE_NCCL};
    (void)state;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        ranks_run(4, start_nccl, (void *)&modes[i]);
}

static void take_nvshmem(banyan_world *world, void *context)
{
    static const grid_sizes sizes = {2, 2, 1, 2, 1};
    banyan_mixed_options options = options_for(world, &sizes);
    mixed_one call = {.op = BANYAN_MIXED_ALLREDUCE,
                      .mode = BANYAN_MIXED_TWO_SHOT_NODES,
                      .rows = 2,
                      .row_elems = 9};
    banyan_mixed *mixed;
    mixed_case c;
    bool lacked = true;
    (void)context;
    CHECK_OK(banyan_mixed_open_empty(world, &options, &mixed));
    CHECK_OK(banyan_mixed_init_virtual_memory(mixed));
    for (int n = 0; lacked; n++) {
        lack_begin(world, 4, n);
        lacked = lack_end(world, banyan_mixed_init_nvshmem(mixed), BANYAN_ERR_NVSHMEM);
        CHECK(lacked || n > 0);
    }
    CHECK_OK(banyan_mixed_close(mixed));
    gpu_case_open(&c, world, options, ELEMS);
    case_run(&c, &call);
    gpu_case_close(&c);
}

static void an_nvshmem_without_its_ranks_fails_on_all(void **state)
{
    (void)state;
    ranks_run(4, take_nvshmem, NULL);
}

/* Agreement needs no array; each record is a separate allocation. */
static void use_and_measure(banyan_world *world, void *context)
{
    static const grid_sizes sizes = {1, 2, 2, 1, 1};
    banyan_mixed_options options = options_for(world, &sizes);
    int64_t shape[2] = {1, 100}, gathered[2] = {2, 100};
    uint64_t ns;
    mixed_case c;
    (void)context;
    lack_begin(world, 4, 0);
    gpu_case_open(&c, world, options, ELEMS);
    CHECK(!lack_end(world, BANYAN_OK, BANYAN_OK));
    DLTensor input = {
        .data = c.input, .device = c.device, .ndim = 2, .dtype = c.dtype, .shape = shape};
    DLTensor output = input;
    output.data = c.output;
    output.shape = gathered;
    for (int lacks = 1; lacks >= 0; lacks--) {
        lack_begin(world, lacks ? 1 : 4, 0);
        banyan_status status = banyan_mixed_measure(c.mixed, BANYAN_MIXED_ALLREDUCE_ALLGATHER,
                                                    &input, &output, BANYAN_MIXED_ONE_SHOT, &ns);
        CHECK(lack_end(world, status, BANYAN_ERR_NO_MEMORY) == lacks);
    }
    gpu_case_close(&c);
}

static void a_measurement_without_its_recording_fails_on_all(void **state)
{
    (void)state;
    ranks_run(4, use_and_measure, NULL);
}

/* Allocations of the library itself: arrays with an entry for each of a world's ranks; the context
 * has five. The n-th fails. */
static void open_groups(banyan_world *world, void *context)
{
    static const grid_sizes sizes = {1, 2, 2, 1, 1};
    banyan_mixed_options options = options_for(world, &sizes);
    mixed_one call = {.op = BANYAN_MIXED_ALLREDUCE_ALLGATHER, .rows = 2, .row_elems = 9};
    mixed_case c;
    (void)context;
    call.mode = BANYAN_MIXED_ONE_SHOT;
    gpu_case_open(&c, world, options, ELEMS);
    for (int n = 0; n < 9; n++) {
        banyan_world *next = world_like(world);
        CHECK_OK(banyan_mixed_suspend(c.mixed));
        lack_begin(world, 4, n);
        CHECK(lack_end(world, banyan_mixed_resume(c.mixed, next), BANYAN_ERR_NO_MEMORY));
        CHECK_OK(banyan_mixed_resume(c.mixed, next));
        case_run(&c, &call);
        CHECK_OK(banyan_mixed_suspend(c.mixed));
        CHECK_OK(banyan_mixed_resume(c.mixed, world));
        CHECK_OK(banyan_world_close(next));
    }
    gpu_case_close(&c);
}

static void groups_that_one_rank_has_no_memory_for_fail_on_all(void **state)
{
    (void)state;
    lack_library = NULL;
    ranks_run(4, open_groups, NULL);
}

struct thread_call {
    mixed_case *c;
    const mixed_one *call;
    banyan_status status;
    char sentence[512];
};

static void *call_in_thread(void *given)
{
    struct thread_call *of = given;
    of->status = case_call(of->c, of->call);
    snprintf(of->sentence, sizeof of->sentence, "%s", banyan_last_error());
    return NULL;
}

/* One rank calls from a thread that cannot enter its device. The others have queued their launch,
 * and wait. */
static void shut_a_call_out(int rank, int count, const banyan_unique_id *id, void *context)
{
    const grid_sizes *sizes = context;
    mixed_one call = {.op = BANYAN_MIXED_ALLREDUCE,
                      .mode =
                          sizes->nodes > 1 ? BANYAN_MIXED_TWO_SHOT_NODES : BANYAN_MIXED_TWO_SHOT,
                      .rows = 2,
                      .row_elems = 9};
    banyan_world *world = ranks_open_world(rank, count, id, 60 * NS_PER_S);
    mixed_case c;
    gpu_case_open(&c, world, options_for(world, sizes), ELEMS);
    case_run(&c, &call);
    case_fill(&c, &call);
    CHECK_OK(banyan_world_barrier(world)); /* it continues when the context has ended */
    struct thread_call of = {.c = &c, .call = &call};
    pthread_t thread;
    uint64_t began_ns = time_now_ns();
    if (rank == LACKING)
        setenv("BANYAN_EMULATED_ENTRY", "main", 1);
    CHECK(pthread_create(&thread, NULL, call_in_thread, &of) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    unsetenv("BANYAN_EMULATED_ENTRY");
    CHECK(rank != LACKING || (of.status == BANYAN_ERR_SYSTEM &&
                              strstr(of.sentence, "rank 1 could not begin allreduce (")),
          "%s", of.sentence);
    gpu_stream_wait(c.device, c.stream);
    CHECK(banyan_mixed_status(c.mixed) != BANYAN_OK);
    CHECK(strstr(banyan_last_error(), "could not begin allreduce ("), "%s", banyan_last_error());
    CHECK(case_call(&c, &call) != BANYAN_OK, "a rank that is behind went on");
    CHECK(time_now_ns() - began_ns < 5 * NS_PER_S, "the others waited");
    (void)banyan_mixed_close(c.mixed);
    CHECK_OK(banyan_world_close(world));
}

static void a_launch_that_one_rank_cannot_queue_ends_the_context_for_all(void **state)
{
    static const grid_sizes grids[] = {{1, 3, 1, 1, 1}, {3, 1, 1, 3, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
        int statuses[3];
        ranks_fork(3, shut_a_call_out, (void *)&grids[i], statuses);
        for (int rank = 0; rank < 3; rank++)
            assert_int_equal(statuses[rank], 0);
    }
}

int main(void)
{
    gpu_count();
    if (!gpu_is_emulated()) {
        printf("skipped: it counts what the emulated driver allocates\n");
        return 77;
    }
    setenv("BANYAN_NVSHMEM", BANYAN_EMULATED_MODULES "/libnvshmem_host.so.3", 1);
    lack_library = "libbanyan_cuda";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_nccl_without_its_ranks_fails_on_all),
        cmocka_unit_test(an_nvshmem_without_its_ranks_fails_on_all),
        cmocka_unit_test(a_measurement_without_its_recording_fails_on_all),
        cmocka_unit_test(a_launch_that_one_rank_cannot_queue_ends_the_context_for_all),
        cmocka_unit_test(groups_that_one_rank_has_no_memory_for_fail_on_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
