/* What one rank has no memory for in the module, were it a few bytes, fails on all of them, at
 * once, and can be tried again. */
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

/* By the ranks of its groups. */
static void start_nccl(banyan_world *world, void *context)
{
    static const grid_sizes sizes = {1, 2, 2, 1, 1};
    mixed_one call = {.op = BANYAN_MIXED_ALLREDUCE_ALLGATHER,
                      .mode = *(const banyan_mixed_mode *)context,
                      .rows = 2,
                      .row_elems = 9};
    mixed_one other = call;
    other.mode = BANYAN_MIXED_FEWEST_WAITS;
    bool lacked = true;
    for (int n = 0; lacked; n++) {
        mixed_case c;
        gpu_case_open(&c, world, options_for(world, &sizes), ELEMS);
        lack_begin(world, call.mode == BANYAN_MIXED_WORLD_NCCL ? 4 : 2, n);
        lacked = lack_end(world, case_call(&c, &call), BANYAN_ERR_SYSTEM);
        CHECK(lacked || n > 0);
        gpu_stream_wait(c.device, c.stream);
        case_run(&c, lacked ? &other : &call);
        gpu_case_close(&c);
    }
}

static void an_nccl_without_its_ranks_fails_on_all(void **state)
{
    static const banyan_mixed_mode modes[] = {BANYAN_MIXED_WORLD_NCCL, BANYAN_MIXED_TWO_NCCL};
    (void)state;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        ranks_run(4, start_nccl, (void *)&modes[i]);
}

static void take_nvshmem(banyan_world *world, void *context)
{
    static const grid_sizes sizes = {2, 2, 1, 2, 1};
    banyan_mixed_options options = options_for(world, &sizes);
    mixed_one call = {
        .op = BANYAN_MIXED_ALLREDUCE, .mode = BANYAN_MIXED_FEWEST_BYTES, .rows = 2, .row_elems = 9};
    banyan_mixed *mixed;
    mixed_case c;
    bool lacked = true;
    (void)context;
    CHECK_OK(banyan_mixed_create(world, &options, &mixed));
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

/* They agree without an array; what is recorded is an allocation of its own. */
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
        banyan_status status =
            banyan_mixed_measure(c.mixed, BANYAN_MIXED_ALLREDUCE_ALLGATHER, &input, &output,
                                 BANYAN_MIXED_FEWEST_WAITS, &ns);
        CHECK(lack_end(world, status, BANYAN_ERR_NO_MEMORY) == lacks);
    }
    gpu_case_close(&c);
}

static void a_measurement_without_its_recording_fails_on_all(void **state)
{
    (void)state;
    ranks_run(4, use_and_measure, NULL);
}

/* In the library itself: arrays of a world's ranks, of which the context's own has five. The n-th.
 */
static void open_groups(banyan_world *world, void *context)
{
    static const grid_sizes sizes = {1, 2, 2, 1, 1};
    banyan_mixed_options options = options_for(world, &sizes);
    mixed_one call = {.op = BANYAN_MIXED_ALLREDUCE_ALLGATHER, .rows = 2, .row_elems = 9};
    mixed_case c;
    (void)context;
    call.mode = BANYAN_MIXED_FEWEST_WAITS;
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
        cmocka_unit_test(groups_that_one_rank_has_no_memory_for_fail_on_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
