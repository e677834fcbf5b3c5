/* Runs whole collectives on data with distinct elements, and checks each byte. */
#ifndef TESTS_EXECUTE_COLLECTIVE_CHECK_H
#define TESTS_EXECUTE_COLLECTIVE_CHECK_H

#include "support/gpu/gpu_stream.h"
#include "support/test.h"

#include <banyan/execute.h>

#include "core/containers.h"

/* All types that can be reduced. */
static const DLDataType dtypes[] = {
    {kDLFloat, 32, 1},
    {kDLFloat, 16, 1},
    {kDLBfloat, 16, 1},
    {BANYAN_DL_FLOAT8_E4M3FN, 8, 1},
    {BANYAN_DL_FLOAT8_E5M2, 8, 1},
    {kDLInt, 32, 1},
    {kDLUInt, 32, 1},
    {kDLInt, 64, 1},
    {kDLUInt, 8, 1},
};
#define DTYPES (sizeof dtypes / sizeof dtypes[0])

/* Exact for the sums of up to eight values. */
static inline uint64_t small_value(DLDataType dtype, uint64_t hash)
{
    bool fp8 = dtype.bits == 8 && dtype.code != kDLUInt && dtype.code != kDLInt;
    if (fp8)
        return dtype.code == BANYAN_DL_FLOAT8_E5M2 ? hash & 1 : hash % 3;
    return hash % 31; /* 8 × 30 fits u8 and bf16's 8 bits */
}

static inline uint64_t float_bits(uint64_t value, int mantissa_bits, int bias)
{
    if (value == 0)
        return 0;
    int exponent = 63 - __builtin_clzll(value);
    uint64_t fraction = value - (UINT64_C(1) << exponent);
    fraction = mantissa_bits >= exponent ? fraction << (mantissa_bits - exponent)
                                         : fraction >> (exponent - mantissa_bits);
    return (uint64_t)(exponent + bias) << mantissa_bits | fraction;
}

static inline uint64_t element_bits(DLDataType dtype, uint64_t value)
{
    switch ((int)dtype.code) {
    case kDLFloat:
        return dtype.bits == 32 ? float_bits(value, 23, 127) : float_bits(value, 10, 15);
    case kDLBfloat:
        return float_bits(value, 7, 127);
    case BANYAN_DL_FLOAT8_E4M3FN:
        return float_bits(value, 3, 7);
    case BANYAN_DL_FLOAT8_E5M2:
        return float_bits(value, 2, 15);
    default:
        return value;
    }
}

static inline void element_put(DLDataType dtype, void *buffer, uint64_t index, uint64_t value)
{
    uint64_t bits = element_bits(dtype, value);
    size_t bytes = banyan_dtype_bytes(dtype);
    memcpy((char *)buffer + index * bytes, &bits, bytes);
}

typedef struct collective_case {
    const banyan_plan *plan;
    uint64_t message_bytes;
    DLDataType dtype;
    banyan_reduce_op op;
    bool symmetric;
    bool apart; /* input and output do not overlap */
    int workers;
    int runs;
    DLDevice device; /* where plans run; zeroed: the host */
    void *stream;
} collective_case;

static inline uint64_t case_input(const collective_case *c, int rank, uint64_t index, int run)
{
    const uint64_t key[] = {(uint64_t)rank, index, (uint64_t)run, c->message_bytes};
    return small_value(c->dtype, hash_bytes(key, sizeof key, 7));
}

static inline uint64_t reduce_values(banyan_reduce_op op, uint64_t a, uint64_t b)
{
    return op == BANYAN_SUM ? a + b : op == BANYAN_MIN ? (a < b ? a : b) : (a > b ? a : b);
}

/* Return the expected element `index` of a rank's output. `info` is the plan's; `elems` is of the
 * input, `out` of the output. */
static inline uint64_t case_output(const collective_case *c, const banyan_plan_info *info, int rank,
                                   uint64_t index, int run, uint64_t elems, uint64_t out)
{
    uint64_t ranks = (uint64_t)info->ranks, block = elems / ranks;
    uint64_t value = 0;
    switch (info->collective) {
    case BANYAN_ALLGATHER:
        return case_input(c, (int)(index / elems), index % elems, run);
    case BANYAN_ALLTOALL:
        return case_input(c, (int)(index / block), (uint64_t)rank * block + index % block, run);
    case BANYAN_BROADCAST:
        return case_input(c, info->root, index, run);
    case BANYAN_SENDRECV:
        return case_input(c, (rank + info->ranks - info->shift) % info->ranks, index, run);
    default:
        break;
    }
    uint64_t at = info->collective == BANYAN_REDUCESCATTER ? (uint64_t)rank * out + index : index;
    for (int r = 0; r < info->ranks; r++) {
        uint64_t one = case_input(c, r, at, run);
        value = r == 0 ? one : reduce_values(c->op, value, one);
    }
    return value;
}

#define GUARD 256

typedef struct case_buffers {
    banyan_memory *memory; /* symmetric, for both */
    char *allocated;
    char *host; /* the bytes of `allocated` in host memory */
    char *input, *output;
    uint64_t input_bytes, output_bytes;
    uint64_t room; /* from the lower of `input` and `output` */
} case_buffers;

/* In place, the shorter buffer lies in the longer; apart, both have guards. */
static inline case_buffers case_take(const collective_case *c, banyan_world *world)
{
    case_buffers b = {0};
    int rank = banyan_world_rank(world);
    banyan_plan_info info = banyan_plan_describe(c->plan);
    CHECK_OK(banyan_plan_sizes(c->plan, rank, c->message_bytes, &b.input_bytes, &b.output_bytes));
    uint64_t longest = b.input_bytes > b.output_bytes ? b.input_bytes : b.output_bytes;
    uint64_t pitch = (longest + 2 * GUARD + 63) / 64 * 64;
    b.room = 2 * pitch;
    bool on_host = device_is_host(c->device);
    if (c->symmetric)
        CHECK_OK(banyan_memory_alloc_on(world, c->device, b.room, &b.memory));
    void *start = c->symmetric ? banyan_memory_local(b.memory) : on_host ? malloc(b.room) : NULL;
    if (!start)
        CHECK_OK(gpu_memory()->alloc(c->device.device_id, b.room, &start));
    b.allocated = start;
    b.host = on_host ? start : malloc(b.room);
    b.input = b.allocated + GUARD;
    b.output = b.allocated + (c->apart ? pitch : 0) + GUARD;
    if (!c->apart && info.collective == BANYAN_ALLGATHER)
        b.input = b.output + (uint64_t)rank * b.input_bytes;
    if (!c->apart && info.collective == BANYAN_REDUCESCATTER)
        b.output = b.input + (uint64_t)rank * b.output_bytes;
    return b;
}

static inline void case_give_back(const collective_case *c, case_buffers *b)
{
    if (b->host != b->allocated)
        free(b->host);
    if (c->symmetric)
        banyan_memory_free(b->memory);
    else if (device_is_host(c->device))
        free(b->allocated);
    else
        gpu_memory()->free(c->device.device_id, b->allocated);
}

static inline char *case_host(const case_buffers *b, const char *at)
{
    return b->host + (at - b->allocated);
}

static inline void case_fill(const collective_case *c, case_buffers *b, int rank, int run)
{
    memset(b->host, 0xa5, b->room);
    for (uint64_t i = 0; i < b->input_bytes / banyan_dtype_bytes(c->dtype); i++)
        element_put(c->dtype, case_host(b, b->input), i, case_input(c, rank, i, run));
    if (b->host != b->allocated)
        gpu_copy(b->allocated, b->host, b->room);
}

static inline bool is_in(const char *at, const char *start, uint64_t bytes)
{
    return at >= start && at < start + bytes;
}

/* Check the bytes fetched to the host: the output's, those of a separate input, and the guards'.
 * In place, the rest of the longer buffer is unspecified. */
static inline void case_check_host(const collective_case *c, const case_buffers *b, int rank,
                                   int run)
{
    size_t elem = banyan_dtype_bytes(c->dtype);
    uint64_t elems = b->input_bytes / elem, out = b->output_bytes / elem;
    banyan_plan_info info = banyan_plan_describe(c->plan);
    bool has_output = info.collective != BANYAN_REDUCE || rank == info.root;
    for (uint64_t i = 0; has_output && i < out; i++) {
        uint64_t bits = element_bits(c->dtype, case_output(c, &info, rank, i, run, elems, out)),
                 got = 0;
        memcpy(&got, case_host(b, b->output) + i * elem, elem);
        CHECK(got == bits,
              "rank %d, run %d, %s of %llu bytes of %s: output element %llu is %#llx, not %#llx",
              rank, run, info.name, (unsigned long long)c->message_bytes,
              banyan_dtype_name(c->dtype), (unsigned long long)i, (unsigned long long)got,
              (unsigned long long)bits);
    }
    for (uint64_t i = 0; c->apart && i < elems; i++) {
        uint64_t bits = element_bits(c->dtype, case_input(c, rank, i, run)), got = 0;
        memcpy(&got, case_host(b, b->input) + i * elem, elem);
        CHECK(got == bits, "rank %d, run %d: input element %llu has changed", rank, run,
              (unsigned long long)i);
    }
    for (const char *at = b->allocated; at < b->allocated + b->room; at++) {
        if (!is_in(at, b->input, b->input_bytes) && !is_in(at, b->output, b->output_bytes))
            CHECK((unsigned char)*case_host(b, at) == 0xa5,
                  "rank %d: byte %td is outside of all buffers", rank, at - b->allocated);
    }
}

static inline void case_check(const collective_case *c, const case_buffers *b, int rank, int run)
{
    if (b->host != b->allocated)
        gpu_copy(b->host, b->allocated, b->room);
    case_check_host(c, b, rank, run);
}

/* Run it repeatedly, with new data each time and no barrier in between. */
static inline void case_run(banyan_world *world, banyan_executor *executor,
                            const collective_case *c)
{
    int rank = banyan_world_rank(world);
    banyan_loaded_plan *loaded;
    case_buffers b = case_take(c, world);
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = c->message_bytes;
    options.input = options.output = b.memory;
    CHECK_OK(banyan_loaded_plan_open(executor, c->plan, &options, &loaded));
    for (int run = 0; run < c->runs; run++) {
        case_fill(c, &b, rank, run);
        CHECK_OK(banyan_loaded_plan_run(loaded, b.input, b.output, c->message_bytes, c->dtype,
                                        c->stream));
        if (!device_is_host(c->device)) {
            gpu_stream_wait(c->device, c->stream);
            CHECK_OK(banyan_loaded_plan_status(loaded));
        }
        case_check(c, &b, rank, run);
    }
    CHECK_OK(banyan_loaded_plan_close(loaded));
    case_give_back(c, &b);
}

#endif
