/* Every operation in every mode of every grid, against float64. */
#include "mixed/grids.h"

#define GUARD 64
#define POISON 0xa5
#define ELEMS_MAX 20000
#define DP_MAX 8

typedef struct one_rank {
    banyan_world *world;
    banyan_mixed *mixed;
    banyan_mixed_grid grid;
    DLDataType dtype;
    unsigned char *input, *output; /* with guards around */
    random_state random;           /* the same on all ranks */
    uint64_t salt;
} one_rank;

/* ---- one call ---- */

typedef struct one_call {
    banyan_mixed_op op;
    banyan_mixed_mode mode;
    data_kind kind;
    uint64_t rows, row_elems;
    bool in_place;
} one_call;

static uint64_t elems_of(const one_call *call)
{
    return call->rows * call->row_elems;
}

static void fill_input(one_rank *rank, const one_call *call, void *at)
{
    uint64_t count = mixed_input_elems(call->op, elems_of(call), rank->grid.dp);
    int me = banyan_world_rank(rank->world);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        (void)element_of(call->kind, rank->dtype, me, i, rank->salt, &bits);
        store_bits(rank->dtype, at, i, bits);
    }
}

static void check_guards(const one_rank *rank, const one_call *call, uint64_t output_bytes)
{
    for (int i = 0; i < GUARD; i++) {
        CHECK(rank->output[i] == POISON, "%s, %s: byte %d before the output",
              banyan_mixed_op_name(call->op), banyan_mixed_mode_name(call->mode), GUARD - i);
        CHECK(rank->output[GUARD + output_bytes + (uint64_t)i] == POISON,
              "%s, %s: byte %d behind the output of %llu", banyan_mixed_op_name(call->op),
              banyan_mixed_mode_name(call->mode), i, (unsigned long long)output_bytes);
    }
}

/* How far from the exact sum a mode's may be: rounded once, or after each of a few steps, and f32's
 * own error of each addition. */
static double bound_of(const one_rank *rank, const one_call *call, double sum, double magnitudes)
{
    int ranks = rank->grid.tp * rank->grid.dp;
    double adding = ranks * ldexp(1, -24) * magnitudes;
    if (call->mode == BANYAN_MIXED_FEWEST_WAITS)
        return half_ulp(rank->dtype) * (fabs(sum) + adding) + adding + 1e-7;
    return 2 * ranks * half_ulp(rank->dtype) * magnitudes + adding + 1e-7;
}

static void check_output(const one_rank *rank, const one_call *call)
{
    uint64_t count = mixed_output_elems(call->op, elems_of(call), rank->grid.dp);
    bool sums = call->op != BANYAN_MIXED_ALLGATHER;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        double magnitudes;
        sum_of of = sum_at(&rank->grid, call->op, elems_of(call), i);
        double got = value_at(rank->dtype, rank->output + GUARD, i, &bits);
        double right =
            sum_exactly(&rank->grid, &of, call->kind, rank->dtype, rank->salt, &magnitudes);
        double bound =
            sums && call->kind == DATA_RANDOM ? bound_of(rank, call, right, magnitudes) : 0;
        CHECK(fabs(got - right) <= bound,
              "rank %d of tp %d × %d, dp %d × %d: %s, %s, %llu × %llu %s, element %llu: %g, not %g "
              "± %g",
              banyan_world_rank(rank->world), rank->grid.local_tp, rank->grid.inter_tp,
              rank->grid.local_dp, rank->grid.inter_dp, banyan_mixed_op_name(call->op),
              banyan_mixed_mode_name(call->mode), (unsigned long long)call->rows,
              (unsigned long long)call->row_elems, banyan_dtype_name(rank->dtype),
              (unsigned long long)i, got, right, bound);
    }
}

/* All that run it find the same bits where they hold the same sums. */
static void check_equal_bits(const one_rank *rank, const one_call *call)
{
    bool all = call->op == BANYAN_MIXED_ALLGATHER || call->op == BANYAN_MIXED_ALLREDUCE_ALLGATHER;
    uint64_t bytes = mixed_output_elems(call->op, elems_of(call), rank->grid.dp) *
                     banyan_dtype_bytes(rank->dtype);
    int ranks = banyan_world_size(rank->world);
    unsigned char *every = malloc((size_t)(bytes * (uint64_t)ranks));
    CHECK_OK(banyan_world_allgather(rank->world, rank->output + GUARD, (size_t)bytes, every));
    for (int r = 0; r < ranks; r++) {
        if (all || grid_of_rank(&rank->grid, r).dp_index == rank->grid.dp_index)
            CHECK(memcmp(every + bytes * (uint64_t)r, rank->output + GUARD, (size_t)bytes) == 0,
                  "%s, %s: ranks %d and %d have other bits", banyan_mixed_op_name(call->op),
                  banyan_mixed_mode_name(call->mode), r, banyan_world_rank(rank->world));
    }
    free(every);
}

static void run_one(one_rank *rank, const one_call *call)
{
    int64_t in_shape[2] = {(int64_t)mixed_input_elems(call->op, call->rows, rank->grid.dp),
                           (int64_t)call->row_elems};
    int64_t out_shape[2] = {(int64_t)mixed_output_elems(call->op, call->rows, rank->grid.dp),
                            (int64_t)call->row_elems};
    uint64_t output_bytes =
        (uint64_t)out_shape[0] * call->row_elems * banyan_dtype_bytes(rank->dtype);
    memset(rank->output, POISON, (size_t)output_bytes + 2 * GUARD);
    DLTensor output = {.data = rank->output,
                       .device = BANYAN_HOST,
                       .ndim = 2,
                       .dtype = rank->dtype,
                       .shape = out_shape,
                       .byte_offset = GUARD};
    DLTensor input = output;
    input.shape = in_shape;
    if (!call->in_place) {
        input.data = rank->input;
        input.byte_offset = 0;
    }
    rank->salt++;
    fill_input(rank, call, (char *)input.data + input.byte_offset);
    CHECK_OK(banyan_mixed_run(rank->mixed, call->op, &input, &output, call->mode, NULL));
    check_output(rank, call);
    check_guards(rank, call, output_bytes);
}

/* ---- grids ---- */

static void draw_size(one_rank *rank, one_call *call, uint64_t most)
{
    uint64_t elems = (uint64_t)random_between(&rank->random, 1, 16);
    while (elems < most && random_between(&rank->random, 0, 3) > 0)
        elems *= 2;
    elems = (uint64_t)random_between(&rank->random, 1, (int64_t)(elems < most ? elems : most));
    call->rows = (uint64_t)random_between(&rank->random, 1, elems < 40 ? (int64_t)elems : 40);
    call->row_elems = elems / call->rows;
}

static void run_modes(one_rank *rank, banyan_mixed_op op)
{
    banyan_mixed_mode modes[BANYAN_MIXED_MODES];
    size_t count;
    CHECK_OK(banyan_mixed_valid_modes(rank->mixed, op, modes, BANYAN_MIXED_MODES, &count));
    CHECK(count > 0);
    for (size_t i = 0; i <= count; i++) {
        one_call call = {.op = op, .mode = i < count ? modes[i] : BANYAN_MIXED_AUTO};
        for (int kind = DATA_WHOLE; kind <= DATA_RANDOM; kind++) {
            call.kind = (data_kind)kind;
            call.in_place = op == BANYAN_MIXED_ALLREDUCE && random_between(&rank->random, 0, 1);
            draw_size(rank, &call, ELEMS_MAX / 8);
            run_one(rank, &call);
        }
        check_equal_bits(rank, &call);
    }
}

static void open_rank(one_rank *rank, banyan_world *world, const grid_sizes *grid, uint64_t seed)
{
    static const DLDataType types[] = {{kDLBfloat, 16, 1}, {kDLFloat, 16, 1}, {kDLFloat, 32, 1}};
    *rank = (one_rank){.world = world, .random = random_from(seed)};
    rank->dtype = types[random_between(&rank->random, 0, 2)];
    banyan_mixed_options options = options_of(grid, rank->dtype);
    CHECK_OK(banyan_mixed_open(world, &options, &rank->mixed));
    rank->grid = banyan_mixed_describe(rank->mixed);
    size_t bytes = (size_t)ELEMS_MAX * DP_MAX * 4 + 2 * GUARD;
    rank->input = malloc(bytes);
    rank->output = malloc(bytes);
    CHECK(rank->input && rank->output);
}

static void close_rank(one_rank *rank)
{
    free(rank->input);
    free(rank->output);
    CHECK_OK(banyan_mixed_close(rank->mixed));
}

static void run_grids(banyan_world *world, void *context)
{
    uint64_t seed = *(const uint64_t *)context;
    grid_sizes grids[32];
    int count = grids_of(banyan_world_size(world), grids, 32);
    for (int i = 0; i < count; i++) {
        one_rank rank;
        banyan_mixed_op ops[BANYAN_MIXED_OPS];
        size_t op_count;
        open_rank(&rank, world, &grids[i], seed + (uint64_t)i);
        CHECK_OK(banyan_mixed_valid_ops(rank.mixed, ops, BANYAN_MIXED_OPS, &op_count));
        CHECK(op_count > 0);
        for (size_t k = 0; k < op_count; k++)
            run_modes(&rank, ops[k]);
        close_rank(&rank);
    }
}

static void test_grids(int ranks)
{
    uint64_t seed = random_seed();
    ranks_run(ranks, run_grids, &seed);
}

static void all_grids_of_one_rank_and_of_two(void **state)
{
    (void)state;
    test_grids(1);
    test_grids(2);
}

static void all_grids_of_four_ranks(void **state)
{
    (void)state;
    test_grids(4);
}

static void all_grids_of_eight_ranks(void **state)
{
    (void)state;
    test_grids(8);
}

static void all_grids_of_six_ranks(void **state)
{
    (void)state;
    test_grids(6);
}

static void all_grids_between_threads(void **state)
{
    (void)state;
    uint64_t seed = random_seed() + 1000;
    ranks_run_threads(4, run_grids, &seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_grids_of_one_rank_and_of_two),
        cmocka_unit_test(all_grids_of_four_ranks),
        cmocka_unit_test(all_grids_of_six_ranks),
        cmocka_unit_test(all_grids_of_eight_ranks),
        cmocka_unit_test(all_grids_between_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
