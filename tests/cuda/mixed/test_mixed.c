/* Mixed collectives between GPUs through the public interface: every operation and mode of all
 * grids of a node, call after call, and in graphs. For nodes: test_mixed_nodes.c. */
#include <unistd.h>

#include "cuda/gpu_mixed.h"

#define ELEMS_MOST 5000
#define GRIDS_MOST 32
#define MAX_BYTES (1 << 20) /* small, since emulated GPUs take long to clear it */

typedef struct series {
    uint64_t seed;
    grid_sizes sizes;
    int calls;
} series;

static void enter(mixed_case *c, banyan_world *world, const grid_sizes *sizes, DLDataType dtype)
{
    banyan_mixed_options options = options_of(sizes, dtype);
    options.max_bytes = MAX_BYTES;
    gpu_case_open(c, world, options, ELEMS_MOST);
}

static void run_mode(mixed_case *c, random_state *random, banyan_mixed_op op,
                     banyan_mixed_mode mode)
{
    static const data_kind kinds[] = {DATA_WHOLE, DATA_RANDOM, DATA_SPECIAL};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        mixed_one call = {.op = op, .mode = mode, .kind = kinds[i]};
        draw_size(random, ELEMS_MOST, &call);
        case_run(c, &call);
        case_check_bits(c, &call);
    }
}

static void run_all_modes(banyan_world *world, void *context)
{
    const series *of = context;
    random_state random = random_from(of->seed);
    banyan_mixed_op ops[BANYAN_MIXED_OPS];
    banyan_mixed_mode modes[BANYAN_MIXED_MODES];
    size_t op_count, mode_count;
    mixed_case c;
    enter(&c, world, &of->sizes, draw_dtype(&random));
    CHECK_OK(banyan_mixed_valid_ops(c.mixed, ops, BANYAN_MIXED_OPS, &op_count));
    for (size_t o = 0; o < op_count; o++) {
        CHECK_OK(banyan_mixed_valid_modes(c.mixed, ops[o], modes, BANYAN_MIXED_MODES, &mode_count));
        CHECK(mode_count >= 2 && modes[0] == BANYAN_MIXED_ONE_SHOT, "%zu modes", mode_count);
        CHECK((modes[1] == BANYAN_MIXED_TWO_SHOT) ==
                  (c.grid.local_tp > 1 && ops[o] != BANYAN_MIXED_ALLGATHER),
              "mode %s of %s", banyan_mixed_mode_name(modes[1]), banyan_mixed_op_name(ops[o]));
        for (size_t m = 0; m < mode_count; m++)
            run_mode(&c, &random, ops[o], modes[m]);
    }
    gpu_case_close(&c);
}

static void all_grids_of_a_node(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    for (int ranks = 2; ranks <= 4 && ranks <= gpu_count(); ranks *= 2) {
        grid_sizes grids[GRIDS_MOST];
        int count = grids_of(ranks, grids, GRIDS_MOST);
        for (int i = 0; i < count; i++) {
            series of = {seed + (uint64_t)i, grids[i], 0};
            if (grids[i].nodes == 1)
                ranks_run(ranks, run_all_modes, &of);
        }
    }
}

static void run_series(banyan_world *world, void *context)
{
    const series *of = context;
    random_state random = random_from(of->seed), own = random_from(of->seed ^ UINT64_MAX);
    mixed_case c;
    enter(&c, world, &of->sizes, draw_dtype(&random));
    for (int i = 0; i < banyan_world_rank(world); i++)
        (void)random_next(&own);
    for (int i = 0; i < of->calls; i++) {
        mixed_one call = draw_call(&c, &random, ELEMS_MOST / 4);
        /* Ranks arrive at random times. */
        if (random_between(&own, 0, 20) == 0)
            usleep((useconds_t)random_between(&own, 0, 300));
        case_run(&c, &call);
    }
    gpu_case_close(&c);
}

static void a_thousand_calls_change_operation_mode_and_size(void **state)
{
    (void)state;
    bool four = gpu_count() >= 4;
    /* The emulation of GPUs is slow. */
    series of = {random_seed(), {1, 2, four ? 2 : 1, 1, 1}, gpu_is_emulated() ? 80 : 1000};
    ranks_run(four ? 4 : 2, run_series, &of);
}

#define GRAPHS 4

static void run_graphs(banyan_world *world, void *context)
{
    const series *of = context;
    random_state random = random_from(of->seed);
    mixed_one calls[GRAPHS];
    void *graphs[GRAPHS];
    mixed_case c;
    enter(&c, world, &of->sizes, BANYAN_BF16);
    for (int i = 0; i < GRAPHS; i++)
        calls[i] = draw_call(&c, &random, ELEMS_MOST / 2);
    gpu_case_capture_all(&c, calls, graphs, GRAPHS);
    gpu_case_play(&c, &random, calls, graphs, GRAPHS, of->calls, ELEMS_MOST / 2);
    gpu_case_forget_all(&c, graphs, GRAPHS);
    gpu_case_close(&c);
}

static void calls_in_graphs_are_played_again_among_others(void **state)
{
    (void)state;
    bool four = gpu_count() >= 4;
    series of = {random_seed(), {1, 2, four ? 2 : 1, 1, 1}, gpu_is_emulated() ? 20 : 300};
    ranks_run(four ? 4 : 2, run_graphs, &of);
}

static void take_turns(banyan_world *world, void *context)
{
    static const grid_sizes sizes[] = {{1, 2, 1, 1, 1}, {1, 1, 2, 1, 1}, {1, 2, 1, 1, 1}};
    const series *of = context;
    random_state random = random_from(of->seed);
    mixed_case cases[3];
    for (int i = 0; i < 3; i++)
        enter(&cases[i], world, &sizes[i], draw_dtype(&random));
    for (int i = 0; i < of->calls; i++) {
        mixed_case *c = &cases[random_between(&random, 0, 2)];
        mixed_one call = draw_call(c, &random, ELEMS_MOST / 4);
        case_run(c, &call);
    }
    static const int order[] = {1, 0, 2};
    for (int i = 0; i < 3; i++)
        gpu_case_close(&cases[order[i]]);
}

static void contexts_of_one_world_are_used_in_turn(void **state)
{
    (void)state;
    series of = {random_seed(), {0}, gpu_is_emulated() ? 30 : 300};
    ranks_run(2, take_turns, &of);
}

/* The last rank arrives when the others' first launch has its full share of the device, and its
 * successor has begun if possible. */
static void queue_before_the_last(banyan_world *world, void *context)
{
    static const grid_sizes sizes = {1, 2, 2, 1, 1};
    static const mixed_one calls[] = {{.op = BANYAN_MIXED_ALLREDUCE_ALLGATHER,
                                       .mode = BANYAN_MIXED_ONE_SHOT,
                                       .rows = 4,
                                       .row_elems = 1200},
                                      {.op = BANYAN_MIXED_REDUCESCATTER_ALLREDUCE,
                                       .mode = BANYAN_MIXED_SINGLE,
                                       .rows = 1,
                                       .row_elems = 100}};
    banyan_mixed_options options = options_of(&sizes, BANYAN_F32);
    mixed_case c = {.world = world, .device = gpu_device_for(0)};
    bool is_last = banyan_world_rank(world) == banyan_world_size(world) - 1;
    (void)context;
    options.max_bytes = MAX_BYTES;
    options.device = c.device;
    c.stream = gpu_stream_create(c.device);
    case_open(&c, &options, ELEMS_MOST);
    for (int i = 0; i < 2; i++)
        case_run(&c, &calls[i]);
    CHECK_OK(banyan_world_barrier(world));
    if (is_last) {
        CHECK_OK(banyan_world_barrier(world));
        usleep(100000);
    }
    for (int i = 0; i < 2; i++)
        CHECK_OK(case_call(&c, &calls[i]));
    if (!is_last)
        CHECK_OK(banyan_world_barrier(world));
    gpu_stream_wait(c.device, c.stream);
    CHECK_OK(banyan_mixed_status(c.mixed));
    case_run(&c, &calls[0]);
    gpu_case_close(&c);
}

static void run_communicators(banyan_world *world, void *context)
{
    static const grid_sizes sizes = {1, 2, 2, 1, 1};
    static const banyan_mixed_mode modes[] = {BANYAN_MIXED_SINGLE, BANYAN_MIXED_SEPARATE};
    banyan_mixed_options options = options_of(&sizes, BANYAN_F32);
    mixed_case c = {.world = world, .device = gpu_device_for(0)};
    (void)context;
    options.max_bytes = MAX_BYTES;
    options.device = c.device;
    c.stream = gpu_stream_create(c.device);
    case_open(&c, &options, 1 << 16);
    for (int i = 0; i < 8; i++) {
        mixed_one call = {.op = i % 2 ? BANYAN_MIXED_ALLREDUCE_ALLGATHER
                                      : BANYAN_MIXED_REDUCESCATTER_ALLREDUCE,
                          .mode = modes[i / 2 % 2],
                          .rows = 1,
                          .row_elems = i < 4 ? 8000 : 1 << 16};
        case_run(&c, &call);
    }
    gpu_case_close(&c);
}

static void communicators_of_ranks_that_share_a_gpu_have_room_together(void **state)
{
    (void)state;
    if (!gpu_worlds_are_cheap())
        skip();
    ranks_run_threads(4, run_communicators, NULL);
}

static void launches_that_wait_take_no_room_from_other_ranks(void **state)
{
    (void)state;
    if (!gpu_worlds_are_cheap())
        skip();
    ranks_run_threads(4, queue_before_the_last, NULL);
}

typedef struct launch_bounds {
    int grid_size, max_block_size, min_block_size, min_num_steps;
} launch_bounds;

static const launch_bounds all_bounds[] = {
    {1, 32, 32, 1}, {1 << 30, 0, 1024, 1}, {3, 300, 96, INT32_MAX}, {0, 1 << 30, 512, 1000}};

static void run_with_bounds(banyan_world *world, const launch_bounds *bounds, random_state *random)
{
    static const grid_sizes sizes = {1, 2, 1, 1, 1};
    banyan_mixed_options options = options_of(&sizes, draw_dtype(random));
    mixed_case c;
    options.max_bytes = MAX_BYTES;
    options.grid_size = bounds->grid_size;
    options.max_block_size = bounds->max_block_size;
    options.min_block_size = bounds->min_block_size;
    options.min_num_steps = bounds->min_num_steps;
    gpu_case_open(&c, world, options, ELEMS_MOST);
    for (int i = 0; i < 8; i++) {
        mixed_one call = draw_call(&c, random, ELEMS_MOST);
        case_run(&c, &call);
    }
    gpu_case_close(&c);
}

static void run_all_bounds(banyan_world *world, void *context)
{
    random_state random = random_from(*(const uint64_t *)context);
    for (size_t i = 0; i < sizeof all_bounds / sizeof *all_bounds; i++)
        run_with_bounds(world, &all_bounds[i], &random);
}

static void launches_are_bounded_by_options_and_device(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    ranks_run(2, run_all_bounds, &seed);
}

static void run_autotuned(banyan_world *world, void *context)
{
    const series *of = context;
    banyan_mixed_options options = options_of(&of->sizes, BANYAN_BF16);
    random_state random = random_from(of->seed);
    mixed_case c;
    options.use_autotune = true;
    options.max_bytes = 8192;
    gpu_case_open(&c, world, options, ELEMS_MOST);
    banyan_mixed_timing timing;
    uint64_t mine = 0;
    for (size_t i = 0; banyan_mixed_timing_at(c.mixed, i, &timing) == BANYAN_OK; i++)
        mine = mine * 31 + timing.ns + (uint64_t)timing.mode;
    CHECK(mine != 0, "nothing was measured");
    uint64_t all[8];
    CHECK_OK(banyan_world_allgather(world, &mine, sizeof mine, all));
    for (int r = 0; r < banyan_world_size(world); r++)
        CHECK(all[r] == mine, "rank %d has another table", r);
    for (int i = 0; i < 10; i++) {
        mixed_one call = draw_call(&c, &random, ELEMS_MOST); /* also longer than measured */
        call.mode = BANYAN_MIXED_AUTO;
        case_run(&c, &call);
    }
    gpu_case_close(&c);
}

static void all_ranks_choose_by_the_same_measurements(void **state)
{
    (void)state;
    series of = {random_seed(), {1, 2, 1, 1, 1}, 0};
    ranks_run(2, run_autotuned, &of);
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_grids_of_a_node),
        cmocka_unit_test(a_thousand_calls_change_operation_mode_and_size),
        cmocka_unit_test(calls_in_graphs_are_played_again_among_others),
        cmocka_unit_test(contexts_of_one_world_are_used_in_turn),
        cmocka_unit_test(communicators_of_ranks_that_share_a_gpu_have_room_together),
        cmocka_unit_test(launches_that_wait_take_no_room_from_other_ranks),
        cmocka_unit_test(launches_are_bounded_by_options_and_device),
        cmocka_unit_test(all_ranks_choose_by_the_same_measurements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
