/* Mixed collectives by multicast, between emulated GPUs: every operation that supports it, in all
 * grids of a node; bitwise equal to the unicast modes; among other calls, in graphs, and
 * suspended; and the behaviour without multicast. */
#include <unistd.h>

#include "cuda/mixed_multicast.h"

#define GRIDS_MOST 32

static void run_op(mixed_case *c, random_state *random, banyan_mixed_op op)
{
    static const banyan_mixed_mode modes[] = {BANYAN_MIXED_ONE_SHOT, BANYAN_MIXED_TWO_SHOT};
    CHECK(case_has_mode(c, op, BANYAN_MIXED_ONE_SHOT_MULTICAST), "%s", banyan_mixed_op_name(op));
    CHECK(case_has_mode(c, op, BANYAN_MIXED_TWO_SHOT_MULTICAST) == (c->grid.local_tp > 1), "%s",
          banyan_mixed_op_name(op));
    CHECK(!case_has_mode(c, op, BANYAN_MIXED_TWO_SHOT_NODES_MULTICAST), "inter_tp is 1");
    check_defaults(c, op);
    for (int i = 0; i < 2 * KINDS; i++) {
        mixed_one call = {.op = op, .mode = modes[i % 2], .kind = kinds[i / 2]};
        draw_size(random, ELEMS_MOST, &call);
        if (case_has_mode(c, op, call.mode))
            compare(c, call);
    }
}

static void run_all_ops(banyan_world *world, void *context)
{
    begin(&all_have_it);
    run_each_op(world, context, run_op);
    CHECK(logged[0] == '\0', "%s", logged);
}

static void all_grids_of_a_node_have_the_bits_of_unicast(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    for (int ranks = 2; ranks <= 8; ranks *= 2) {
        grid_sizes grids[GRIDS_MOST];
        int count = grids_of(ranks, grids, GRIDS_MOST);
        for (int i = 0; i < count; i++) {
            series of = {.seed = seed + (uint64_t)i, .sizes = grids[i], .block_size = 64};
            if (grids[i].nodes == 1)
                ranks_run(ranks, run_all_ops, &of);
        }
    }
}

static void more_ranks_than_a_thread_awaits_at_a_time(void **state)
{
    (void)state;
    static const grid_sizes many[] = {{1, 6, 1, 1, 1}, {1, 3, 2, 1, 1}, {1, 1, 5, 1, 1}};
    uint64_t seed = random_seed();
    for (size_t i = 0; i < sizeof many / sizeof *many; i++) {
        int ranks = many[i].local_tp * many[i].local_dp;
        series of = {.seed = seed + i, .sizes = many[i], .block_size = 64};
        ranks_run(ranks, run_all_ops, &of);
    }
}

/* In chunks, at any address. */
static void gather_much(banyan_world *world, void *context)
{
    static const uint64_t elems[] = {280000, 270001, 262145, 90};
    mixed_case c;
    begin(&all_have_it);
    enter(&c, world, context, BANYAN_F16);
    for (size_t i = 0; i < sizeof elems / sizeof *elems; i++) {
        mixed_one call = {.op = BANYAN_MIXED_ALLGATHER,
                          .mode = BANYAN_MIXED_ONE_SHOT,
                          .rows = 1,
                          .row_elems = elems[i]};
        compare(&c, call);
    }
    gpu_case_close(&c);
}

static void long_messages_are_gathered_in_chunks(void **state)
{
    (void)state;
    series of = {.sizes = {1, 1, 2, 1, 1}, .elems_most = 280000, .max_bytes = 1 << 20};
    ranks_run(2, gather_much, &of);
}

static void run_halves(mixed_case *c, const mixed_one *call, const uint16_t *input)
{
    gpu_copy(c->input + GUARD, input, input_elems(c, call) * sizeof *input);
    gpu_fill(c->output, POISON, c->room);
    CHECK_OK(case_call(c, call));
    gpu_stream_wait(c->device, c->stream);
    CHECK_OK(banyan_mixed_status(c->mixed));
}

/* All bit patterns of an element, including NaN. Idle buffers contain negative zero. */
static uint16_t half_of(int rank, uint64_t i)
{
    return (uint16_t)(i * 3 + (uint64_t)rank + (i >> 16));
}

static void gather_bits(banyan_world *world, void *context)
{
    static const uint64_t elems[] = {70000, 270000};
    int rank = banyan_world_rank(world);
    uint16_t *input = malloc(elems[1] * sizeof *input);
    mixed_case c;
    begin(&all_have_it);
    enter(&c, world, context, BANYAN_BF16);
    for (uint64_t i = 0; i < elems[1]; i++)
        input[i] = half_of(rank, i);
    for (int turn = 0; turn < 8; turn++) {
        uint64_t count = elems[turn / 4];
        mixed_one call = {.op = BANYAN_MIXED_ALLGATHER,
                          .mode = BANYAN_MIXED_ONE_SHOT_MULTICAST,
                          .rows = 1,
                          .row_elems = count};
        run_halves(&c, &call, input);
        const uint16_t *got = (const uint16_t *)(const void *)(case_fetch(&c, &call) + GUARD);
        for (uint64_t i = 0; i < 2 * count; i++)
            CHECK(got[i] == half_of((int)(i / count), i % count), "turn %d, element %llu: %#x",
                  turn, (unsigned long long)i, got[i]);
    }
    free(input);
    gpu_case_close(&c);
}

static void sum_negative_zeros(banyan_world *world, void *context)
{
    static const banyan_mixed_mode modes[] = {BANYAN_MIXED_ONE_SHOT_MULTICAST,
                                              BANYAN_MIXED_TWO_SHOT_MULTICAST};
    uint16_t input[999];
    mixed_case c;
    begin(&all_have_it);
    enter(&c, world, context, BANYAN_F16);
    for (size_t i = 0; i < sizeof input / sizeof *input; i++)
        input[i] = 0x8000;
    for (int turn = 0; turn < 8; turn++) {
        mixed_one call = {.op = BANYAN_MIXED_ALLREDUCE,
                          .mode = modes[turn % 2],
                          .rows = 1,
                          .row_elems = sizeof input / sizeof *input};
        run_halves(&c, &call, input);
        const uint16_t *got = (const uint16_t *)(const void *)(case_fetch(&c, &call) + GUARD);
        for (uint64_t i = 0; i < call.row_elems; i++)
            CHECK(got[i] == 0, "turn %d, element %llu: %#x", turn, (unsigned long long)i, got[i]);
    }
    gpu_case_close(&c);
}

static void negative_zeros_are_gathered_and_count_as_zero_in_sums(void **state)
{
    (void)state;
    series of = {.sizes = {1, 1, 2, 1, 1}, .elems_most = 280000, .max_bytes = 1 << 20};
    ranks_run(2, gather_bits, &of);
    of = (series){.sizes = {1, 2, 1, 1, 1}};
    ranks_run(2, sum_negative_zeros, &of);
}

static void a_thousand_calls_change_operation_mode_and_size(void **state)
{
    (void)state;
    series of = {.seed = random_seed(),
                 .sizes = {1, 2, 2, 1, 1},
                 .calls = 1000,
                 .elems_most = 2000,
                 .max_bytes = 2048,
                 .block_size = 32};
    ranks_run(4, run_series, &of);
    of = (series){.seed = of.seed, .sizes = {1, 2, 1, 1, 1}, .calls = 60, .threads = true};
    begin(&all_have_it);
    ranks_run_threads(2, run_series, &of);
}

static void autotuning_measures_its_modes(void **state)
{
    (void)state;
    series of = {.sizes = {1, 2, 2, 1, 1}, .max_bytes = 2048, .block_size = 32};
    ranks_run(4, run_autotuned, &of);
}

#define GRAPHS 4

/* Pairs of operations by multicast in both modes, among calls of any mode. */
static void run_graphs(banyan_world *world, void *context)
{
    const series *of = context;
    static const banyan_mixed_op ops[GRAPHS] = {
        BANYAN_MIXED_ALLREDUCE_ALLGATHER, BANYAN_MIXED_ALLREDUCE_ALLGATHER,
        BANYAN_MIXED_REDUCESCATTER_ALLREDUCE, BANYAN_MIXED_REDUCESCATTER_ALLREDUCE};
    static const banyan_mixed_mode modes[GRAPHS] = {
        BANYAN_MIXED_ONE_SHOT_MULTICAST, BANYAN_MIXED_TWO_SHOT_MULTICAST,
        BANYAN_MIXED_TWO_SHOT_MULTICAST, BANYAN_MIXED_ONE_SHOT_MULTICAST};
    random_state random = random_from(of->seed);
    mixed_one calls[GRAPHS];
    void *graphs[GRAPHS];
    mixed_case c;
    begin(&all_have_it);
    enter(&c, world, of, BANYAN_BF16);
    for (int i = 0; i < GRAPHS; i++) {
        calls[i] = (mixed_one){.op = ops[i], .mode = modes[i], .kind = DATA_RANDOM};
        draw_size(&random, ELEMS_MOST / 4, &calls[i]);
    }
    gpu_case_capture_all(&c, calls, graphs, GRAPHS);
    for (int round = 0; round < 3; round++) {
        uint64_t before = accesses(world);
        gpu_case_play(&c, &random, calls, graphs, GRAPHS, 20, ELEMS_MOST / 4);
        CHECK(accesses(world) > before, "round %d", round);
        CHECK_OK(banyan_mixed_suspend(c.mixed));
        CHECK(!case_has_mode(&c, ops[0], modes[0]), "they are suspended");
        CHECK_OK(banyan_mixed_resume(c.mixed, NULL));
        gpu_case_play(&c, &random, calls, graphs, GRAPHS, 20, ELEMS_MOST / 4);
    }
    gpu_case_forget_all(&c, graphs, GRAPHS);
    gpu_case_close(&c);
}

static void graphs_stay_valid_when_memory_was_given_back(void **state)
{
    (void)state;
    series of = {.seed = random_seed(), .sizes = {1, 2, 2, 1, 1}};
    ranks_run(4, run_graphs, &of);
}

static void resume_elsewhere(banyan_world *world, void *context)
{
    mixed_one call = {.op = BANYAN_MIXED_ALLREDUCE, .rows = 3, .row_elems = 700};
    banyan_world *now = world_like(world);
    void *graph;
    mixed_case c;
    begin(&all_have_it);
    enter(&c, now, context, BANYAN_F32);
    call.mode = BANYAN_MIXED_TWO_SHOT_MULTICAST;
    case_run(&c, &call);
    graph = gpu_case_capture(&c, &call);
    for (int round = 0; round < 2; round++) {
        CHECK_OK(banyan_mixed_suspend(c.mixed));
        CHECK_OK(banyan_world_close(now));
        c.world = now = world_like(world);
        CHECK_OK(banyan_mixed_resume(c.mixed, now));
        gpu_case_replay(&c, &call, graph);
        compare(&c, (mixed_one){call.op, BANYAN_MIXED_ONE_SHOT, DATA_RANDOM, 7, 300, false});
    }
    gpu_graph_destroy(c.device, graph);
    gpu_case_close(&c);
    CHECK_OK(banyan_world_close(now));
}

static void another_world_keeps_the_addresses(void **state)
{
    (void)state;
    series of = {.sizes = {1, 2, 1, 1, 1}};
    ranks_run(2, resume_elsewhere, &of);
}

static void a_late_or_dead_peer_is_named(void **state)
{
    (void)state;
    late_case cases[] = {
        {{.sizes = {1, 2, 1, 1, 1}},
         {BANYAN_MIXED_ALLREDUCE, BANYAN_MIXED_TWO_SHOT_MULTICAST, DATA_WHOLE, 3, 50, false}},
        {{.sizes = {1, 1, 2, 1, 1}},
         {BANYAN_MIXED_ALLGATHER, BANYAN_MIXED_ONE_SHOT_MULTICAST, DATA_WHOLE, 3, 50, false}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int statuses[2];
        ranks_fork(2, be_late, &cases[i], statuses);
        assert_int_equal(statuses[0], 0);
        assert_int_equal(statuses[1], 0);
        ranks_fork_and_lose_one(die, &cases[i]);
    }
}

struct without {
    struct setting settings[2]; /* of all ranks but 1, and of rank 1 */
    bool share;                 /* one GPU for all ranks */
    const char *why;
    bool calls; /* some ranks call the driver's multicast functions */
};

static void run_without(banyan_world *world, void *context)
{
    const struct without *of = context;
    int rank = banyan_world_rank(world);
    begin(&of->settings[rank == 1]);
    grid_sizes sizes = {1, 2, 1, 1, 1};
    banyan_mixed_options options = options_of(&sizes, BANYAN_BF16);
    mixed_case c = {.world = world, .device = gpu_device_for(of->share ? 0 : rank)};
    options.device = c.device;
    options.max_bytes = MOST_BYTES;
    c.stream = gpu_stream_create(c.device);
    case_open(&c, &options, ELEMS_MOST);
    mixed_one call = {.op = BANYAN_MIXED_ALLREDUCE, .rows = 2, .row_elems = 99};
    for (int mode = BANYAN_MIXED_ONE_SHOT; mode < BANYAN_MIXED_SINGLE; mode++) {
        call.mode = (banyan_mixed_mode)mode;
        if (case_has_mode(&c, call.op, call.mode)) {
            CHECK(!mode_is_multicast(call.mode), "%s", banyan_mixed_mode_name(call.mode));
            case_run(&c, &call);
        } else {
            CHECK_FAILS(case_call(&c, &call), BANYAN_ERR_INVALID,
                        mode == BANYAN_MIXED_TWO_SHOT_NODES ||
                                mode == BANYAN_MIXED_TWO_SHOT_NODES_MULTICAST
                            ? "inter_tp is 1"
                            : of->why);
        }
    }
    gpu_case_close(&c);
    CHECK(accesses(world) == 0);
    CHECK(of->calls || calls() == 0, "%llu calls", (unsigned long long)calls());
    CHECK(of->settings[rank == 1].banyan || calls() == 0, "asked for on rank %d", rank);
}

static void without_multicast_its_modes_are_refused_with_the_reason(void **state)
{
    (void)state;
    static const struct without cases[] = {
        {{{NULL, "1"}, {NULL, "1"}}, false, "BANYAN_MULTICAST is not 1", false},
        {{{"0", "1"}, {"yes", "1"}}, false, "BANYAN_MULTICAST is not 1", false},
        {{{"1", "1"}, {NULL, "1"}}, false, "device 1: BANYAN_MULTICAST is not 1", true},
        {{{"1", "1"}, {"1", NULL}}, false, "device 1: it has no multicast", true},
        {{{"1", "old"}, {"1", "old"}}, false, "older than CUDA 12.1", false},
        {{{"1", "1"}, {"1", "1"}}, true, "ranks 0 and 1 share a device", true},
        {{{"1", "unbound"}, {"1", "unbound"}}, false, "cuMulticastBindMem on device 1", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ranks_run(2, run_without, (void *)&cases[i]);
}

int main(void)
{
    setenv("BANYAN_EMULATED_DEVICES", "8", 1);
    multicast_tests_begin();
    setenv("BANYAN_NCCL", "/nonexistent", 1); /* an installed NCCL would need a real driver */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_grids_of_a_node_have_the_bits_of_unicast),
        cmocka_unit_test(more_ranks_than_a_thread_awaits_at_a_time),
        cmocka_unit_test(long_messages_are_gathered_in_chunks),
        cmocka_unit_test(negative_zeros_are_gathered_and_count_as_zero_in_sums),
        cmocka_unit_test(a_thousand_calls_change_operation_mode_and_size),
        cmocka_unit_test(autotuning_measures_its_modes),
        cmocka_unit_test(graphs_stay_valid_when_memory_was_given_back),
        cmocka_unit_test(another_world_keeps_the_addresses),
        cmocka_unit_test(a_late_or_dead_peer_is_named),
        cmocka_unit_test(without_multicast_its_modes_are_refused_with_the_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
