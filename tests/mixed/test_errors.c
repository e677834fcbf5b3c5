/* Errors are reported before anything moves. */
#include "mixed/mixed.h"
#include "mixed/mixed_check.h"

#define ROWS 4
#define ROW 6

static banyan_mixed_options sized(int nodes, int local_tp, int local_dp, int inter_tp, int inter_dp)
{
    grid_sizes sizes = {nodes, local_tp, local_dp, inter_tp, inter_dp};
    return options_of(&sizes, BANYAN_F32);
}

static void refuse_options(banyan_world *world, banyan_mixed_options options, banyan_status status,
                           const char *part)
{
    banyan_mixed *mixed = NULL;
    CHECK_FAILS(banyan_mixed_open(world, &options, &mixed), status, part);
    CHECK(!mixed);
}

static void refuse_grids(banyan_world *world, void *context)
{
    (void)context;
    refuse_options(world, sized(1, 3, 0, 0, 0), BANYAN_ERR_INVALID,
                   "local_tp 3 × local_dp 0 (0: what is left) does not make the 4 ranks of a node");
    refuse_options(world, sized(1, 2, 1, 0, 0), BANYAN_ERR_INVALID, "does not make the 4 ranks");
    refuse_options(world, sized(1, 8, 1, 0, 0), BANYAN_ERR_INVALID, "local_tp 8");
    refuse_options(world, sized(2, 2, 1, 3, 0), BANYAN_ERR_INVALID,
                   "inter_tp 3 × inter_dp 0 (0: what is left) does not make the 2 nodes");
    refuse_options(world, sized(3, 0, 0, 0, 0), BANYAN_ERR_INVALID,
                   "cannot split 4 ranks into 3 nodes");
    refuse_options(world, sized(1, -2, 0, 0, 0), BANYAN_ERR_INVALID, "local_tp -2");
    refuse_options(world, sized(5, 0, 0, 0, 0), BANYAN_ERR_INVALID, "5 nodes");
}

static void refuse_values(banyan_world *world, void *context)
{
    (void)context;
    banyan_mixed_options options = sized(1, 0, 0, 0, 0);
    options.dtype = BANYAN_I32;
    refuse_options(world, options, BANYAN_ERR_INVALID, "F16, BF16 or F32, not of I32");
    options = sized(1, 0, 0, 0, 0);
    options.device = (DLDevice){kDLVulkan, 0};
    refuse_options(world, options, BANYAN_ERR_UNSUPPORTED, "devices of DLPack's type 7");
    options = sized(1, 0, 0, 0, 0);
    options.min_block_size = 100;
    refuse_options(world, options, BANYAN_ERR_INVALID, "min_block_size of 100 threads");
    options.min_block_size = 0;
    refuse_options(world, options, BANYAN_ERR_INVALID, "min_block_size of 0 threads");
    options.min_block_size = -32;
    refuse_options(world, options, BANYAN_ERR_INVALID, "min_block_size of -32 threads");
    options.min_block_size = 1056;
    refuse_options(world, options, BANYAN_ERR_INVALID,
                   "min_block_size of 1056 threads, which is not a multiple of 32 up to 1024");
    options.min_block_size = 256;
    options.max_block_size = -1;
    refuse_options(world, options, BANYAN_ERR_INVALID, "max_block_size of -1 threads");
    options.max_block_size = 128;
    refuse_options(world, options, BANYAN_ERR_INVALID, "max_block_size of 128 threads");
    options.max_block_size = 0;
    options.grid_size = -1;
    refuse_options(world, options, BANYAN_ERR_INVALID, "grid_size of -1");
    options.grid_size = 0;
    options.min_num_steps = 0;
    refuse_options(world, options, BANYAN_ERR_INVALID, "min_num_steps of 0");
    options.min_num_steps = 4;
    options.max_bytes = (UINT64_C(4) << 30) + 1;
    refuse_options(world, options, BANYAN_ERR_INVALID, "max_bytes of 4294967297");
    options.max_bytes = UINT64_C(4) << 30;
    options.size = 0;
    refuse_options(world, options, BANYAN_ERR_INVALID, "BANYAN_MIXED_OPTIONS_INIT");
}

static void disagree(banyan_world *world, void *context)
{
    (void)context;
    bool odd = banyan_world_rank(world) == 2;
    refuse_options(world, sized(1, odd ? 4 : 2, 0, 0, 0), BANYAN_ERR_MISMATCH,
                   "local_tp is 2 on rank 0, and 4 on rank 2");
    banyan_mixed_options options = sized(1, 0, 0, 0, 0);
    if (odd)
        options.dtype = BANYAN_BF16;
    refuse_options(world, options, BANYAN_ERR_MISMATCH,
                   "dtype is F32 on rank 0, and BF16 on rank 2");
    options = sized(1, 0, 0, 0, 0);
    options.max_bytes = odd ? 1 << 20 : 1 << 21;
    refuse_options(world, options, BANYAN_ERR_MISMATCH, "max_bytes is 2097152 on rank 0");
    options = sized(1, 0, 0, 0, 0);
    options.min_num_steps = odd ? 0 : 4;
    refuse_options(world, options, BANYAN_ERR_INVALID, "rank 2: mixed collectives with a min_num");
}

static void grids_that_do_not_fit_the_world_are_refused(void **state)
{
    (void)state;
    ranks_run(4, refuse_grids, NULL);
}

static void options_out_of_range_are_refused(void **state)
{
    (void)state;
    ranks_run(1, refuse_values, NULL);
}

static void ranks_that_disagree_are_told_in_what(void **state)
{
    (void)state;
    ranks_run(3, disagree, NULL);
}

static void take_steps(banyan_world *world, void *context)
{
    (void)context;
    mixed_case c = {.world = world};
    banyan_mixed_options options = sized(1, 2, 1, 0, 0);
    banyan_mixed_mode modes[BANYAN_MIXED_MODES];
    size_t count;
    mixed_one call = {BANYAN_MIXED_ALLREDUCE, BANYAN_MIXED_ONE_SHOT, DATA_WHOLE, 2, 3, false};
    case_open(&c, &options, 100);
    CHECK_OK(banyan_mixed_close(c.mixed));
    CHECK_OK(banyan_mixed_open_empty(world, &options, &c.mixed));
    case_fill(&c, &call);
    CHECK_FAILS(case_call(&c, &call), BANYAN_ERR_INVALID, "banyan_mixed_init_virtual_memory");
    CHECK_OK(banyan_mixed_valid_modes(c.mixed, call.op, modes, 0, &count));
    CHECK(count == 1);
    call.mode = BANYAN_MIXED_AUTO;
    case_run(&c, &call);
    CHECK_FAILS(banyan_mixed_init_nvshmem(c.mixed), BANYAN_ERR_INVALID, "do not use NVSHMEM");
    CHECK_OK(banyan_mixed_init_virtual_memory(c.mixed));
    CHECK_FAILS(banyan_mixed_init_virtual_memory(c.mixed), BANYAN_ERR_INVALID, "already");
    call.mode = BANYAN_MIXED_TWO_SHOT;
    case_run(&c, &call);
    case_close(&c);
}

static void the_steps_of_opening_can_be_taken_one_by_one(void **state)
{
    (void)state;
    ranks_run(2, take_steps, NULL);
}

static void close_in_any_order(banyan_world *world, void *context)
{
    (void)context;
    banyan_mixed *some[3];
    banyan_mixed_options options = sized(1, 1, 2, 0, 0);
    CHECK_FAILS(banyan_mixed_close(NULL), BANYAN_ERR_INVALID, "never were open");
    for (int i = 0; i < 3; i++)
        CHECK_OK(banyan_mixed_open(world, &options, &some[i]));
    CHECK_OK(banyan_mixed_close(some[1]));
    CHECK_FAILS(banyan_mixed_close(some[1]), BANYAN_ERR_INVALID, "are closed already");
    CHECK_OK(banyan_mixed_close(some[0]));
    CHECK_OK(banyan_mixed_close(some[2]));
    for (int i = 0; i < 3; i++)
        CHECK_FAILS(banyan_mixed_close(some[i]), BANYAN_ERR_INVALID, "are closed already");
    CHECK_FAILS(banyan_mixed_close((banyan_mixed *)world), BANYAN_ERR_INVALID, "never were open");
}

static void closing_twice_is_an_error(void **state)
{
    (void)state;
    ranks_run(2, close_in_any_order, NULL);
    ranks_run_threads(2, close_in_any_order, NULL);
}

#define CHECK_NULL(call, argument) CHECK_FAILS((call), BANYAN_ERR_INVALID, #argument " is NULL")

static void calls_without_a_context_are_refused(void **state)
{
    banyan_mixed_op op;
    banyan_mixed_mode mode;
    banyan_mixed_timing timing;
    banyan_mixed *mixed = NULL;
    DLTensor tensor = {0};
    uint64_t ns;
    size_t count;
    (void)state;
    CHECK_NULL(banyan_mixed_open(NULL, NULL, &mixed), world);
    CHECK_NULL(banyan_mixed_open_empty(NULL, NULL, &mixed), world);
    CHECK_NULL(banyan_mixed_init_virtual_memory(NULL), mixed);
    CHECK_NULL(banyan_mixed_init_nvshmem(NULL), mixed);
    CHECK_NULL(banyan_mixed_run_autotune(NULL), mixed);
    CHECK_NULL(banyan_mixed_valid_ops(NULL, &op, 1, &count), mixed);
    CHECK_NULL(banyan_mixed_valid_modes(NULL, BANYAN_MIXED_ALLREDUCE, &mode, 1, &count), mixed);
    CHECK_NULL(
        banyan_mixed_run(NULL, BANYAN_MIXED_ALLREDUCE, &tensor, &tensor, BANYAN_MIXED_AUTO, NULL),
        mixed);
    CHECK_NULL(banyan_mixed_status(NULL), mixed);
    CHECK_NULL(banyan_mixed_measure(NULL, BANYAN_MIXED_ALLREDUCE, &tensor, &tensor,
                                    BANYAN_MIXED_AUTO, &ns),
               mixed);
    CHECK_NULL(banyan_mixed_select_autotune_mode(NULL, BANYAN_MIXED_ALLREDUCE, 1, &mode), mixed);
    CHECK_NULL(banyan_mixed_timing_at(NULL, 0, &timing), mixed);
    CHECK_NULL(banyan_mixed_print_autotune(NULL, stdout), mixed);
    CHECK_NULL(banyan_mixed_save_autotune(NULL, "table"), mixed);
    CHECK_NULL(banyan_mixed_load_autotune(NULL, "table"), mixed);
    CHECK_NULL(banyan_mixed_suspend(NULL), mixed);
    CHECK_NULL(banyan_mixed_resume(NULL, NULL), mixed);
    CHECK_NULL(banyan_mixed_peer_memory(NULL, 0, NULL, NULL), mixed);
    CHECK(!banyan_mixed_multicast_memory(NULL, false));
    CHECK(banyan_mixed_describe(NULL).tp == 0);
    CHECK(banyan_mixed_rank_at(NULL, 0, 0) == -1);
}

static void pass_no_outputs(banyan_world *world, void *context)
{
    (void)context;
    banyan_mixed_options options = sized(1, 2, 1, 0, 0);
    banyan_mixed *mixed;
    banyan_mixed_mode mode;
    DLTensor tensor = {.device = BANYAN_HOST, .ndim = 2, .dtype = BANYAN_F32};
    size_t count;
    bool odd = banyan_world_rank(world) == 1;
    CHECK_NULL(banyan_mixed_open(world, &options, odd ? NULL : &mixed), mixed);
    CHECK_NULL(banyan_mixed_open_empty(world, &options, odd ? NULL : &mixed), mixed);
    CHECK_OK(banyan_mixed_open(world, &options, &mixed));
    CHECK_NULL(banyan_mixed_valid_ops(mixed, NULL, 0, NULL), count);
    CHECK_NULL(banyan_mixed_valid_ops(mixed, NULL, 1, &count), ops);
    CHECK_OK(banyan_mixed_valid_ops(mixed, NULL, 0, &count));
    CHECK_NULL(banyan_mixed_valid_modes(mixed, BANYAN_MIXED_ALLREDUCE, &mode, 1, NULL), count);
    CHECK_NULL(banyan_mixed_valid_modes(mixed, BANYAN_MIXED_ALLREDUCE, NULL, 1, &count), modes);
    CHECK_OK(banyan_mixed_valid_modes(mixed, BANYAN_MIXED_ALLREDUCE, NULL, 0, &count));
    CHECK_FAILS(
        banyan_mixed_run(mixed, BANYAN_MIXED_ALLREDUCE, &tensor, &tensor, BANYAN_MIXED_AUTO, NULL),
        BANYAN_ERR_INVALID, "input has no shape");
    CHECK_NULL(banyan_mixed_measure(mixed, BANYAN_MIXED_ALLREDUCE, &tensor, &tensor,
                                    BANYAN_MIXED_AUTO, NULL),
               ns);
    CHECK_NULL(banyan_mixed_select_autotune_mode(mixed, BANYAN_MIXED_ALLREDUCE, 1, NULL), mode);
    CHECK_NULL(banyan_mixed_timing_at(mixed, 0, NULL), timing);
    CHECK_NULL(banyan_mixed_print_autotune(mixed, NULL), file);
    CHECK_NULL(banyan_mixed_save_autotune(mixed, NULL), path);
    CHECK_NULL(banyan_mixed_load_autotune(mixed, NULL), path);
    void *address;
    size_t bytes;
    CHECK_NULL(banyan_mixed_peer_memory(mixed, 0, NULL, &bytes), address);
    CHECK_NULL(banyan_mixed_peer_memory(mixed, 0, &address, NULL), bytes);
    CHECK_FAILS(banyan_mixed_peer_memory(mixed, 0, &address, &bytes), BANYAN_ERR_NOT_FOUND,
                "no memory of GPUs");
    CHECK(!banyan_mixed_multicast_memory(mixed, true));
    banyan_mixed_grid grid = banyan_mixed_describe(mixed);
    CHECK(banyan_mixed_rank_at(&grid, 1, 0) == 1 && banyan_mixed_rank_at(&grid, 2, 0) == -1);
    CHECK(banyan_mixed_rank_at(&grid, -1, 0) == -1 && banyan_mixed_rank_at(&grid, 0, 1) == -1);
    CHECK_NULL(banyan_mixed_op_parse("allreduce", NULL), op);
    CHECK_NULL(banyan_mixed_mode_parse("single", NULL), mode);
    CHECK_OK(banyan_mixed_close(mixed));
}

static void calls_without_an_output_are_refused(void **state)
{
    (void)state;
    ranks_run(2, pass_no_outputs, NULL);
}

/* A pair of correct tensors, for tests to modify. */
typedef struct tensors {
    float in_data[64], out_data[64];
    int64_t in_shape[3], out_shape[3], strides[3];
    DLTensor in, out;
} tensors;

static DLTensor tensor_of(float *data, int64_t *shape)
{
    return (DLTensor){
        .data = data, .device = BANYAN_HOST, .ndim = 2, .dtype = BANYAN_F32, .shape = shape};
}

/* In a grid of tp 2 × dp 2. */
static void make_right(tensors *t, banyan_mixed_op op)
{
    *t = (tensors){.in_shape = {ROWS, ROW, 1}, .out_shape = {ROWS, ROW, 1}, .strides = {ROW, 1, 1}};
    if (op == BANYAN_MIXED_ALLREDUCE_ALLGATHER)
        t->out_shape[0] *= 2;
    else
        t->out_shape[0] /= 2;
    t->in = tensor_of(t->in_data, t->in_shape);
    t->out = tensor_of(t->out_data, t->out_shape);
}

static void refuse_call(banyan_mixed *mixed, const tensors *t, banyan_mixed_op op,
                        banyan_mixed_mode mode, const char *part)
{
    CHECK_FAILS(banyan_mixed_run(mixed, op, &t->in, &t->out, mode, NULL), BANYAN_ERR_INVALID, part);
    for (int i = 0; i < 64; i++)
        CHECK(t->out_data[i] == 0 && t->in_data[i] == 0);
}

#define GATHER BANYAN_MIXED_ALLREDUCE_ALLGATHER
#define SCATTER BANYAN_MIXED_REDUCESCATTER_ALLREDUCE

static void refuse_shapes(banyan_mixed *mixed)
{
    tensors t;
    make_right(&t, GATHER);
    t.in.ndim = 1;
    refuse_call(mixed, &t, GATHER, BANYAN_MIXED_AUTO,
                "allreduce_allgather's input has 1 dimensions");
    make_right(&t, GATHER);
    t.out.ndim = 3;
    refuse_call(mixed, &t, GATHER, BANYAN_MIXED_AUTO, "output has 3 dimensions, and the input 2");
    make_right(&t, GATHER);
    t.out_shape[0] = ROWS;
    refuse_call(mixed, &t, GATHER, BANYAN_MIXED_AUTO,
                "output has 4 rows; for an input of 4 and dp 2 it must have 8");
    t.out_shape[0] = 2 * ROWS;
    t.out_shape[1] = ROW + 1;
    refuse_call(mixed, &t, GATHER, BANYAN_MIXED_AUTO,
                "output has extent 7 in dimension 1, and the input 6");
    make_right(&t, SCATTER);
    t.in_shape[0] = 3;
    refuse_call(mixed, &t, SCATTER, BANYAN_MIXED_AUTO, "input has 3 rows, which dp 2 does not");
    t.in_shape[0] = 0;
    refuse_call(mixed, &t, SCATTER, BANYAN_MIXED_AUTO, "input has extent 0 in dimension 0");
    t.in_shape[0] = 4;
    t.in_shape[1] = -6;
    refuse_call(mixed, &t, SCATTER, BANYAN_MIXED_AUTO, "input has extent -6 in dimension 1");
    t.in_shape[0] = t.in_shape[1] = INT64_C(1) << 40;
    refuse_call(mixed, &t, SCATTER, BANYAN_MIXED_AUTO, "more than 2^60 bytes");
}

static void refuse_memory(banyan_mixed *mixed)
{
    tensors t;
    make_right(&t, GATHER);
    t.in.dtype = BANYAN_F16;
    refuse_call(mixed, &t, GATHER, BANYAN_MIXED_AUTO, "input is of F16");
    make_right(&t, GATHER);
    t.out.dtype.lanes = 2;
    refuse_call(mixed, &t, GATHER, BANYAN_MIXED_AUTO, "32 bits × 2");
    make_right(&t, GATHER);
    t.in.device = BANYAN_CUDA(3);
    refuse_call(mixed, &t, GATHER, BANYAN_MIXED_AUTO, "input is said to be on GPU 3");
    make_right(&t, GATHER);
    t.out.data = NULL;
    refuse_call(mixed, &t, GATHER, BANYAN_MIXED_AUTO, "output has no data");
    make_right(&t, GATHER);
    t.in.strides = t.strides;
    t.strides[0] = ROW + 1;
    refuse_call(mixed, &t, GATHER, BANYAN_MIXED_AUTO,
                "not dense: dimension 0 has stride 7 instead of 6");
    make_right(&t, GATHER);
    t.out.byte_offset = 2;
    refuse_call(mixed, &t, GATHER, BANYAN_MIXED_AUTO,
                "not a multiple of the 4 bytes of an element");
    make_right(&t, GATHER);
    t.out.data = t.in_data;
    refuse_call(mixed, &t, GATHER, BANYAN_MIXED_AUTO, "overlaps the input");
    t.out.data = t.in_data + ROWS * ROW - 1;
    refuse_call(mixed, &t, GATHER, BANYAN_MIXED_AUTO, "overlaps the input");
    make_right(&t, SCATTER);
    t.out.data = t.in_data + ROWS / 2 * ROW;
    refuse_call(mixed, &t, SCATTER, BANYAN_MIXED_SEPARATE, "overlaps the input");
    CHECK_FAILS(banyan_mixed_run(mixed, SCATTER, NULL, &t.out, BANYAN_MIXED_AUTO, NULL),
                BANYAN_ERR_INVALID, "input is NULL");
    CHECK_FAILS(banyan_mixed_run(mixed, SCATTER, &t.in, NULL, BANYAN_MIXED_AUTO, NULL),
                BANYAN_ERR_INVALID, "output is NULL");
    CHECK_FAILS(banyan_mixed_run(mixed, SCATTER, &t.in, &t.out, BANYAN_MIXED_AUTO, &t),
                BANYAN_ERR_INVALID, "takes no stream");
}

static void refuse_modes(banyan_mixed *mixed)
{
    tensors t;
    make_right(&t, GATHER);
    refuse_call(mixed, &t, BANYAN_MIXED_ALLREDUCE, BANYAN_MIXED_AUTO,
                "a grid of tp 2 × dp 2 does not allow allreduce, but allreduce_allgather, "
                "reducescatter_allreduce");
    refuse_call(mixed, &t, BANYAN_MIXED_ALLGATHER, BANYAN_MIXED_AUTO, "does not allow allgather");
    refuse_call(mixed, &t, BANYAN_MIXED_OPS, BANYAN_MIXED_AUTO, "there is no mixed collective 5");
    refuse_call(mixed, &t, GATHER, BANYAN_MIXED_MODES, "there is no such mode");
    refuse_call(mixed, &t, GATHER, BANYAN_MIXED_TWO_SHOT_NODES, "inter_tp is 1");
    refuse_call(mixed, &t, GATHER, BANYAN_MIXED_ONE_SHOT_MULTICAST, "no multicast");
    refuse_call(mixed, &t, GATHER, BANYAN_MIXED_SINGLE_NCCL, "NCCL is for GPUs");
}

static void refuse_calls(banyan_world *world, void *context)
{
    (void)context;
    mixed_case c = {.world = world};
    banyan_mixed_options options = sized(1, 2, 2, 0, 0);
    banyan_mixed_mode mode;
    size_t count;
    case_open(&c, &options, 100);
    refuse_shapes(c.mixed);
    refuse_memory(c.mixed);
    refuse_modes(c.mixed);
    CHECK_FAILS(banyan_mixed_valid_modes(c.mixed, BANYAN_MIXED_ALLREDUCE, &mode, 1, &count),
                BANYAN_ERR_INVALID, "does not allow allreduce");
    CHECK_FAILS(banyan_mixed_select_autotune_mode(c.mixed, BANYAN_MIXED_REDUCESCATTER, 64, &mode),
                BANYAN_ERR_INVALID, "does not allow reducescatter");
    /* The context is unaffected. */
    mixed_one call = {GATHER, BANYAN_MIXED_SEPARATE, DATA_RANDOM, 3, 5, false};
    case_run(&c, &call);
    case_close(&c);
}

static void wrong_calls_are_refused_before_anything_moves(void **state)
{
    (void)state;
    ranks_run(4, refuse_calls, NULL);
}

/* No rank waits for the one with wrong arguments. */
static void measure_wrongly(banyan_world *world, void *context)
{
    (void)context;
    banyan_mixed_options options = sized(1, 2, 1, 0, 0);
    banyan_mixed *mixed;
    tensors t;
    uint64_t ns = 0;
    CHECK_OK(banyan_mixed_open(world, &options, &mixed));
    make_right(&t, GATHER);
    t.out_shape[0] = ROWS + banyan_world_rank(world);
    CHECK_FAILS(banyan_mixed_measure(mixed, BANYAN_MIXED_ALLREDUCE, &t.in, &t.out,
                                     BANYAN_MIXED_ONE_SHOT, &ns),
                BANYAN_ERR_INVALID, "rank 1: allreduce's output has 5 rows");
    t.out_shape[0] = ROWS;
    CHECK_OK(banyan_mixed_measure(mixed, BANYAN_MIXED_ALLREDUCE, &t.in, &t.out,
                                  BANYAN_MIXED_ONE_SHOT, &ns));
    CHECK(ns > 0);
    bool odd = banyan_world_rank(world) == 1;
    CHECK_FAILS(banyan_mixed_measure(mixed, BANYAN_MIXED_ALLREDUCE, &t.in, &t.out,
                                     BANYAN_MIXED_ONE_SHOT, odd ? NULL : &ns),
                BANYAN_ERR_INVALID, "ns is NULL");
    CHECK_NULL(banyan_mixed_load_autotune(mixed, odd ? "/nowhere/table.json" : NULL), path);
    CHECK_FAILS(banyan_mixed_load_autotune(mixed, odd ? NULL : "/nowhere/table.json"),
                BANYAN_ERR_NOT_FOUND, "/nowhere/table.json");
    CHECK_FAILS(banyan_mixed_save_autotune(mixed, odd ? NULL : "/nowhere/table.json"),
                BANYAN_ERR_INVALID, "rank 0: there is no autotuned table to save in /nowhere");
    CHECK_OK(banyan_mixed_close(mixed));
}

static void all_hear_of_one_that_measures_wrongly(void **state)
{
    (void)state;
    ranks_run(2, measure_wrongly, NULL);
}

static void differ(banyan_world *world, void *context)
{
    (void)context;
    banyan_mixed_options options = sized(1, 2, 1, 0, 0);
    banyan_mixed *mixed;
    tensors t;
    setenv("BANYAN_CHECK_CALLS", banyan_world_rank(world) == 0 ? "1" : "0", 1);
    CHECK_OK(banyan_mixed_open(world, &options, &mixed));
    make_right(&t, BANYAN_MIXED_REDUCESCATTER_ALLREDUCE);
    t.out_shape[0] = ROWS;
    CHECK_OK(banyan_mixed_run(mixed, BANYAN_MIXED_ALLREDUCE, &t.in, &t.out, BANYAN_MIXED_ONE_SHOT,
                              NULL));
    t.in_shape[0] = t.out_shape[0] = ROWS - banyan_world_rank(world);
    CHECK_FAILS(
        banyan_mixed_run(mixed, BANYAN_MIXED_ALLREDUCE, &t.in, &t.out, BANYAN_MIXED_AUTO, NULL),
        BANYAN_ERR_MISMATCH,
        "rank 0 calls allreduce (auto) of 24 elements of F32 in b rows, but rank 1 calls "
        "allreduce (auto) of 18 elements");
    t.in_shape[0] = t.out_shape[0] = ROWS;
    if (banyan_world_rank(world) == 1)
        t.out.data = t.in.data;
    CHECK_FAILS(
        banyan_mixed_run(mixed, BANYAN_MIXED_ALLREDUCE, &t.in, &t.out, BANYAN_MIXED_AUTO, NULL),
        BANYAN_ERR_MISMATCH, "allreduce (auto) of 24 elements of F32 in b rows, in place");
    t.out.data = t.out_data;
    bool odd = banyan_world_rank(world) == 1;
    CHECK_FAILS(banyan_mixed_run(mixed, BANYAN_MIXED_ALLREDUCE, &t.in, &t.out, BANYAN_MIXED_AUTO,
                                 odd ? &t : NULL),
                BANYAN_ERR_INVALID, "rank 1: a mixed collective on the host takes no stream");
    /* A tensor without elements has no address, so it is not in place. */
    t.in_shape[1] = t.out_shape[1] = 0;
    t.in.data = t.out.data = NULL;
    if (odd)
        t.in.data = t.in_data;
    CHECK_OK(
        banyan_mixed_run(mixed, BANYAN_MIXED_ALLREDUCE, &t.in, &t.out, BANYAN_MIXED_AUTO, NULL));
    t.in_shape[1] = t.out_shape[1] = ROW;
    t.in.data = t.in_data;
    t.out.data = t.out_data;
    t.in.ndim = banyan_world_rank(world) + 1;
    CHECK_FAILS(
        banyan_mixed_run(mixed, BANYAN_MIXED_ALLREDUCE, &t.in, &t.out, BANYAN_MIXED_AUTO, NULL),
        BANYAN_ERR_INVALID, "rank 0: allreduce's input has 1 dimensions");
    make_right(&t, BANYAN_MIXED_REDUCESCATTER_ALLREDUCE);
    t.out_shape[0] = ROWS;
    CHECK_OK(
        banyan_mixed_run(mixed, BANYAN_MIXED_ALLREDUCE, &t.in, &t.out, BANYAN_MIXED_AUTO, NULL));
    CHECK_OK(banyan_mixed_close(mixed));
}

static void calls_that_differ_are_named_when_asked_for(void **state)
{
    (void)state;
    ranks_run(2, differ, NULL);
}

static void refuse_single(banyan_world *world, void *context)
{
    (void)context;
    mixed_case c = {.world = world};
    banyan_mixed_options options = sized(2, 1, 1, 2, 1);
    tensors t;
    case_open(&c, &options, 100);
    make_right(&t, GATHER);
    t.out_shape[0] = ROWS;
    refuse_call(c.mixed, &t, BANYAN_MIXED_ALLREDUCE, BANYAN_MIXED_TWO_SHOT, "local_tp is 1");
    refuse_call(c.mixed, &t, BANYAN_MIXED_ALLREDUCE, BANYAN_MIXED_SEPARATE, "a single collective");
    t.out.data = t.in_data + 1;
    refuse_call(c.mixed, &t, BANYAN_MIXED_ALLREDUCE, BANYAN_MIXED_AUTO, "overlaps the input");
    /* Rows without elements need no work; their strides, and those of extents of 1, are ignored. */
    make_right(&t, GATHER);
    t.in_shape[1] = t.out_shape[1] = 0;
    t.out_shape[0] = ROWS;
    t.in.strides = t.strides;
    t.strides[0] = 1;
    CHECK_OK(
        banyan_mixed_run(c.mixed, BANYAN_MIXED_ALLREDUCE, &t.in, &t.out, BANYAN_MIXED_AUTO, NULL));
    t.in_shape[0] = t.out_shape[0] = 1;
    t.in_shape[1] = t.out_shape[1] = ROW;
    t.strides[0] = 1000;
    CHECK_OK(
        banyan_mixed_run(c.mixed, BANYAN_MIXED_ALLREDUCE, &t.in, &t.out, BANYAN_MIXED_AUTO, NULL));
    case_close(&c);
}

/* No job has this many rows, or this test this many ranks: only the arguments are checked. */
static void outputs_of_more_rows_than_can_be_counted_are_refused(void **state)
{
    (void)state;
    banyan_mixed wide = {.setup = {.grid = {.local_tp = 1,
                                            .local_dp = 64,
                                            .inter_tp = 1,
                                            .inter_dp = 1,
                                            .nodes = 1,
                                            .local_size = 64,
                                            .tp = 1,
                                            .dp = 64},
                                   .dtype = BANYAN_F16,
                                   .device = BANYAN_HOST}};
    int64_t in_shape[2] = {(INT64_C(1) << 58) + 1, 1}, out_shape[2] = {64, 1};
    float in_data[64], out_data[64];
    DLTensor in = tensor_of(in_data, in_shape), out = tensor_of(out_data, out_shape);
    mixed_call call;
    in.dtype = out.dtype = BANYAN_F16;
    CHECK_FAILS(
        mixed_check_call(&wide, BANYAN_MIXED_ALLGATHER, &in, &out, BANYAN_MIXED_AUTO, &call),
        BANYAN_ERR_INVALID, "allgather's input has 288230376151711745 rows");
    in_shape[0] = 1;
    CHECK_OK(mixed_check_call(&wide, BANYAN_MIXED_ALLGATHER, &in, &out, BANYAN_MIXED_AUTO, &call));
}

static void single_collectives_have_modes_of_their_own(void **state)
{
    (void)state;
    ranks_run(2, refuse_single, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grids_that_do_not_fit_the_world_are_refused),
        cmocka_unit_test(options_out_of_range_are_refused),
        cmocka_unit_test(ranks_that_disagree_are_told_in_what),
        cmocka_unit_test(the_steps_of_opening_can_be_taken_one_by_one),
        cmocka_unit_test(closing_twice_is_an_error),
        cmocka_unit_test(calls_without_a_context_are_refused),
        cmocka_unit_test(calls_without_an_output_are_refused),
        cmocka_unit_test(wrong_calls_are_refused_before_anything_moves),
        cmocka_unit_test(calls_that_differ_are_named_when_asked_for),
        cmocka_unit_test(all_hear_of_one_that_measures_wrongly),
        cmocka_unit_test(outputs_of_more_rows_than_can_be_counted_are_refused),
        cmocka_unit_test(single_collectives_have_modes_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
