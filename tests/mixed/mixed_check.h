/* Calls of mixed collectives on computable data, with a check of each output byte: on the host or
 * on GPUs. */
#ifndef TESTS_MIXED_MIXED_CHECK_H
#define TESTS_MIXED_MIXED_CHECK_H

#include "mixed/grids.h"
#include "support/gpu/gpu_stream.h"

#define GUARD 256
#define POISON 0xa5

/* One rank's context and buffers. */
typedef struct mixed_case {
    banyan_world *world;
    banyan_mixed *mixed;
    banyan_mixed_grid grid;
    DLDataType dtype;
    DLDevice device; /* zeroed: the host */
    void *stream;
    uint64_t room;        /* bytes of either buffer, including guards */
    char *input, *output; /* on the device, guard first */
    char *host;           /* a copy of one of them; unused on the host */
    uint64_t salt;        /* of the latest call: new data each time */
} mixed_case;

/* Equal on all ranks. */
typedef struct mixed_one {
    banyan_mixed_op op;
    banyan_mixed_mode mode;
    data_kind kind;
    uint64_t rows, row_elems;
    bool in_place; /* of an all-reduce */
} mixed_one;

static inline bool case_is_host(const mixed_case *c)
{
    return device_is_host(c->device);
}

static inline bool case_has_mode(const mixed_case *c, banyan_mixed_op op, banyan_mixed_mode wanted)
{
    banyan_mixed_mode modes[BANYAN_MIXED_MODES];
    size_t count, at = 0;
    CHECK_OK(banyan_mixed_valid_modes(c->mixed, op, modes, BANYAN_MIXED_MODES, &count));
    while (at < count && modes[at] != wanted)
        at++;
    return at < count;
}

static inline char *case_alloc(const mixed_case *c)
{
    void *taken = case_is_host(c) ? malloc(c->room) : NULL;
    if (!taken)
        CHECK_OK(gpu_memory()->alloc(c->device.device_id, c->room, &taken));
    return taken;
}

static inline void case_release(const mixed_case *c, char *buffer)
{
    if (case_is_host(c))
        free(buffer);
    else
        gpu_memory()->free(c->device.device_id, buffer);
}

/* Open with buffers for up to `elems_most` elements of b rows. world, device and stream are set. */
static inline void case_open(mixed_case *c, const banyan_mixed_options *options,
                             uint64_t elems_most)
{
    CHECK_OK(banyan_mixed_open(c->world, options, &c->mixed));
    c->grid = banyan_mixed_describe(c->mixed);
    c->dtype = options->dtype;
    c->room = elems_most * (uint64_t)c->grid.dp * banyan_dtype_bytes(c->dtype) + 2 * GUARD;
    c->input = case_alloc(c);
    c->output = case_alloc(c);
    c->host = malloc(c->room);
    CHECK(c->host);
}

/* After the context is closed. */
static inline void case_free(mixed_case *c)
{
    case_release(c, c->input);
    case_release(c, c->output);
    free(c->host);
}

static inline void case_close(mixed_case *c)
{
    CHECK_OK(banyan_mixed_close(c->mixed));
    case_free(c);
}

static inline uint64_t one_elems(const mixed_one *call)
{
    return call->rows * call->row_elems;
}

static inline uint64_t input_elems(const mixed_case *c, const mixed_one *call)
{
    return mixed_input_elems(call->op, one_elems(call), c->grid.dp);
}

static inline uint64_t output_elems(const mixed_case *c, const mixed_one *call)
{
    return mixed_output_elems(call->op, one_elems(call), c->grid.dp);
}

/* Fill the input with new data, and poison the output and the guards of both. */
static inline void case_fill(mixed_case *c, const mixed_one *call)
{
    char *to = case_is_host(c) ? (call->in_place ? c->output : c->input) : c->host;
    uint64_t count = input_elems(c, call), elem = banyan_dtype_bytes(c->dtype);
    int me = banyan_world_rank(c->world);
    c->salt++;
    memset(to, POISON, GUARD);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        (void)element_of(call->kind, c->dtype, me, i, c->salt, &bits);
        store_bits(c->dtype, to + GUARD, i, bits);
    }
    memset(to + GUARD + count * elem, POISON, GUARD);
    if (!case_is_host(c))
        gpu_copy(call->in_place ? c->output : c->input, to, count * elem + 2 * GUARD);
    if (call->in_place)
        return;
    uint64_t bytes = output_elems(c, call) * elem + 2 * GUARD;
    if (case_is_host(c))
        memset(c->output, POISON, bytes);
    else
        gpu_fill(c->output, POISON, bytes);
}

/* Run it, or queue it. */
static inline banyan_status case_call(mixed_case *c, const mixed_one *call)
{
    int64_t in_shape[2] = {(int64_t)mixed_input_elems(call->op, call->rows, c->grid.dp),
                           (int64_t)call->row_elems};
    int64_t out_shape[2] = {(int64_t)mixed_output_elems(call->op, call->rows, c->grid.dp),
                            (int64_t)call->row_elems};
    DLTensor output = {.data = c->output,
                       .device = case_is_host(c) ? BANYAN_HOST : c->device,
                       .ndim = 2,
                       .dtype = c->dtype,
                       .shape = out_shape,
                       .byte_offset = GUARD};
    DLTensor input = output;
    input.shape = in_shape;
    input.data = call->in_place ? c->output : c->input;
    return banyan_mixed_run(c->mixed, call->op, &input, &output, call->mode, c->stream);
}

/* The permitted distance from the exact sum in a mode: rounded once, or after each of a few steps,
 * plus f32's error of each addition. */
static inline double one_bound(const mixed_case *c, const mixed_one *call, double sum,
                               double magnitudes)
{
    if (call->kind != DATA_RANDOM || call->op == BANYAN_MIXED_ALLGATHER)
        return 0;
    int ranks = c->grid.tp * c->grid.dp;
    double adding = ranks * ldexp(1, -24) * magnitudes;
    if (call->mode == BANYAN_MIXED_ONE_SHOT || call->mode == BANYAN_MIXED_ONE_SHOT_MULTICAST)
        return half_ulp(c->dtype) * (fabs(sum) + adding) + adding + 1e-7;
    return 2 * ranks * half_ulp(c->dtype) * magnitudes + adding + 1e-7;
}

/* True if the value is only gathered, so that it keeps every bit. */
static inline bool is_gathered(const mixed_case *c, const mixed_one *call, const sum_of *of,
                               uint32_t found)
{
    uint32_t bits;
    (void)element_of(call->kind, c->dtype, grid_rank_at(&c->grid, 0, of->first_dp), of->index,
                     c->salt, &bits);
    return bits == found;
}

static inline bool is_right(double got, double right, double bound)
{
    if (isfinite(right))
        return fabs(got - right) <= bound;
    return isnan(right) ? isnan(got) : got == right;
}

static inline void check_element(const mixed_case *c, const mixed_one *call, const char *output,
                                 uint64_t index)
{
    uint32_t bits;
    double magnitudes, got = value_at(c->dtype, output, index, &bits);
    sum_of of = sum_at(&c->grid, call->op, one_elems(call), index);
    double right = sum_exactly(&c->grid, &of, call->kind, c->dtype, c->salt, &magnitudes);
    double bound = one_bound(c, call, right, magnitudes);
    bool fits = call->op == BANYAN_MIXED_ALLGATHER ? is_gathered(c, call, &of, bits)
                                                   : is_right(got, right, bound);
    CHECK(fits,
          "rank %d of tp %d × %d, dp %d × %d: %s, %s, %llu × %llu %s, call %llu, element %llu: %g, "
          "not %g ± %g",
          banyan_world_rank(c->world), c->grid.local_tp, c->grid.inter_tp, c->grid.local_dp,
          c->grid.inter_dp, banyan_mixed_op_name(call->op), banyan_mixed_mode_name(call->mode),
          (unsigned long long)call->rows, (unsigned long long)call->row_elems,
          banyan_dtype_name(c->dtype), (unsigned long long)c->salt, (unsigned long long)index, got,
          right, bound);
}

static inline void check_guards(const mixed_case *c, const mixed_one *call, const char *buffer,
                                uint64_t bytes)
{
    for (uint64_t i = 0; i < GUARD; i++) {
        CHECK((unsigned char)buffer[i] == POISON, "rank %d, %s, %s: byte %llu before the output",
              banyan_world_rank(c->world), banyan_mixed_op_name(call->op),
              banyan_mixed_mode_name(call->mode), (unsigned long long)(GUARD - i));
        CHECK((unsigned char)buffer[GUARD + bytes + i] == POISON,
              "rank %d, %s, %s: byte %llu behind the output", banyan_world_rank(c->world),
              banyan_mixed_op_name(call->op), banyan_mixed_mode_name(call->mode),
              (unsigned long long)i);
    }
}

/* Return the host's copy of a device's output, with its guards. */
static inline const char *case_fetch(const mixed_case *c, const mixed_one *call)
{
    if (case_is_host(c))
        return c->output;
    gpu_copy(c->host, c->output, output_elems(c, call) * banyan_dtype_bytes(c->dtype) + 2 * GUARD);
    return c->host;
}

/* Check the results of the latest fill and call; the stream must be synchronized. */
static inline void case_check(const mixed_case *c, const mixed_one *call)
{
    const char *output = case_fetch(c, call);
    uint64_t count = output_elems(c, call);
    for (uint64_t i = 0; i < count; i++)
        check_element(c, call, output + GUARD, i);
    check_guards(c, call, output, count * banyan_dtype_bytes(c->dtype));
}

static inline void case_run(mixed_case *c, const mixed_one *call)
{
    case_fill(c, call);
    CHECK_OK(case_call(c, call));
    if (!case_is_host(c)) {
        gpu_stream_wait(c->device, c->stream);
        CHECK_OK(banyan_mixed_status(c->mixed));
    }
    case_check(c, call);
}

/* Check that ranks with equal sums of the latest call have equal bits. Collective. */
static inline void case_check_bits(const mixed_case *c, const mixed_one *call)
{
    bool all = call->op == BANYAN_MIXED_ALLGATHER || call->op == BANYAN_MIXED_ALLREDUCE_ALLGATHER;
    size_t bytes = (size_t)(output_elems(c, call) * banyan_dtype_bytes(c->dtype));
    int ranks = banyan_world_size(c->world);
    const char *mine = case_fetch(c, call) + GUARD;
    char *every = malloc(bytes * (size_t)ranks);
    CHECK_OK(banyan_world_allgather(c->world, mine, bytes, every));
    for (int r = 0; r < ranks; r++) {
        if (all || grid_of_rank(&c->grid, r).dp_index == c->grid.dp_index)
            CHECK(memcmp(every + bytes * (size_t)r, mine, bytes) == 0,
                  "%s, %s: ranks %d and %d have other bits", banyan_mixed_op_name(call->op),
                  banyan_mixed_mode_name(call->mode), r, banyan_world_rank(c->world));
    }
    free(every);
}

/* Draw rows and their elements, at most `most` in total: many small ones, some long. */
static inline void draw_size(random_state *random, uint64_t most, mixed_one *call)
{
    uint64_t elems = 16;
    while (elems < most && random_between(random, 0, 3) > 0)
        elems *= 2;
    elems = (uint64_t)random_between(random, 1, (int64_t)(elems < most ? elems : most));
    call->rows = (uint64_t)random_between(random, 1, elems < 40 ? (int64_t)elems : 40);
    call->row_elems = elems / call->rows;
}

static inline DLDataType draw_dtype(random_state *random)
{
    static const DLDataType types[] = {{kDLBfloat, 16, 1}, {kDLFloat, 16, 1}, {kDLFloat, 32, 1}};
    return types[random_between(random, 0, 2)];
}

/* Draw any valid operation and mode, or the automatic one. */
static inline mixed_one draw_call(const mixed_case *c, random_state *random, uint64_t most)
{
    banyan_mixed_op ops[BANYAN_MIXED_OPS];
    banyan_mixed_mode modes[BANYAN_MIXED_MODES];
    size_t op_count, mode_count;
    mixed_one call = {.kind = (data_kind)random_between(random, DATA_WHOLE, DATA_SPECIAL)};
    CHECK_OK(banyan_mixed_valid_ops(c->mixed, ops, BANYAN_MIXED_OPS, &op_count));
    call.op = ops[random_between(random, 0, (int64_t)op_count - 1)];
    CHECK_OK(banyan_mixed_valid_modes(c->mixed, call.op, modes, BANYAN_MIXED_MODES, &mode_count));
    size_t drawn = (size_t)random_between(random, 0, (int64_t)mode_count);
    call.mode = drawn < mode_count ? modes[drawn] : BANYAN_MIXED_AUTO;
    call.in_place = call.op == BANYAN_MIXED_ALLREDUCE && random_between(random, 0, 1);
    draw_size(random, most, &call);
    return call;
}

#endif
