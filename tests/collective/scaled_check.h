/* Averages and scaled sums of random values, compared with sums in f64; on the host and on GPUs. */
#ifndef TESTS_COLLECTIVE_SCALED_CHECK_H
#define TESTS_COLLECTIVE_SCALED_CHECK_H

#include <math.h>

#include "support/float_reference.h"
#include "support/random.h"
#include "support/test.h"

enum {
    SCALED_F32,
    SCALED_F16,
    SCALED_BF16,
    SCALED_E4M3,
    SCALED_I32,
    SCALED_U32,
    SCALED_I64,
    SCALED_U8,
    SCALED_TYPES
};

static const DLDataType scaled_dtypes[SCALED_TYPES] = {BANYAN_F32,     BANYAN_F16, BANYAN_BF16,
                                                       BANYAN_F8_E4M3, BANYAN_I32, BANYAN_U32,
                                                       BANYAN_I64,     BANYAN_U8};
/* Half of the distance of 1 to the next value. */
static const double scaled_epsilons[] = {0x1p-24, 0x1p-11, 0x1p-8, 0x1p-4};

static inline double scaled_get(const char *at, int type, size_t index)
{
    const char *from = at + index * banyan_dtype_bytes(scaled_dtypes[type]);
    uint64_t bits = 0;
    memcpy(&bits, from, banyan_dtype_bytes(scaled_dtypes[type]));
    switch (type) {
    case SCALED_F32:
        return format_decode(format_f32, (uint32_t)bits);
    case SCALED_F16:
        return format_decode(format_f16, (uint32_t)bits);
    case SCALED_BF16:
        return format_decode(format_bf16, (uint32_t)bits);
    case SCALED_E4M3:
        return e4m3_decode((uint8_t)bits);
    case SCALED_I32:
        return (int32_t)bits;
    case SCALED_I64:
        return (double)(int64_t)bits;
    default:
        return (double)bits;
    }
}

static inline void scaled_put(char *at, int type, size_t index, double value)
{
    uint64_t bits = type == SCALED_F32    ? format_encode(format_f32, value)
                    : type == SCALED_F16  ? format_encode(format_f16, value)
                    : type == SCALED_BF16 ? format_encode(format_bf16, value)
                    : type == SCALED_E4M3 ? e4m3_encode(value)
                                          : (uint64_t)(int64_t)value;
    size_t bytes = banyan_dtype_bytes(scaled_dtypes[type]);
    memcpy(at + index * bytes, &bits, bytes);
}

/* A rank's value; whole numbers, so that every type has it. */
static inline double scaled_value(int type, int rank, size_t index, uint64_t salt)
{
    uint64_t mixed = ((uint64_t)rank * 1000003 + index) * 2654435761u + salt * 40503;
    int64_t number = (int64_t)(mixed >> 11 & 15);
    return (double)(type == SCALED_U32 || type == SCALED_U8 ? number : number - 8);
}

typedef struct scaled_case {
    banyan_collective_kind kind;
    int type, root;
    size_t count;
    bool averages, in_place;
    double factor; /* this rank's; they differ */
    uint64_t salt;
} scaled_case;

static inline double scaled_factor(const scaled_case *c, int rank, int ranks)
{
    if (c->averages)
        return c->type < SCALED_I32 ? 1.0 / ranks : 1;
    return c->type < SCALED_I32 ? c->factor / (rank + 1) : c->factor > 1 ? 2 + rank % 2 : 1;
}

static inline void scaled_compare(const scaled_case *c, const char *output, int rank, int ranks)
{
    size_t first = c->kind == BANYAN_REDUCESCATTER ? c->count * (size_t)rank : 0;
    for (size_t i = 0; i < c->count; i++) {
        double sum = 0, size = 0;
        for (int r = 0; r < ranks; r++) {
            double term = scaled_value(c->type, r, first + i, c->salt) * scaled_factor(c, r, ranks);
            sum += term;
            size += fabs(term);
        }
        double got = scaled_get(output, c->type, i), bound = 0;
        if (c->type < SCALED_I32)
            bound = size * scaled_epsilons[c->type] * (ranks + 2) + ranks * 0x1p-10;
        else if (c->averages)
            sum = trunc(sum / ranks);
        CHECK(fabs(got - sum) <= bound,
              "rank %d of %d, %s of %s, %s, %zu elements, %s, root %d, element %zu: %g, not %g",
              rank, ranks, banyan_collective_kind_name(c->kind),
              banyan_dtype_name(scaled_dtypes[c->type]), c->averages ? "average" : "scaled",
              c->count, c->in_place ? "in place" : "apart", c->root, i, got, sum);
    }
}

static inline banyan_status scaled_call(banyan_comm *comm, const scaled_case *c, const void *input,
                                        void *output, double factor, void *stream)
{
    DLDataType dtype = scaled_dtypes[c->type];
    if (c->kind == BANYAN_ALLREDUCE)
        return c->averages
                   ? banyan_comm_allreduce(comm, input, output, c->count, dtype, BANYAN_AVG, stream)
                   : banyan_comm_allreduce_scaled(comm, input, output, c->count, dtype, factor,
                                                  stream);
    if (c->kind == BANYAN_REDUCESCATTER)
        return c->averages ? banyan_comm_reducescatter(comm, input, output, c->count, dtype,
                                                       BANYAN_AVG, stream)
                           : banyan_comm_reducescatter_scaled(comm, input, output, c->count, dtype,
                                                              factor, stream);
    return c->averages ? banyan_comm_reduce(comm, input, output, c->count, dtype, BANYAN_AVG,
                                            c->root, stream)
                       : banyan_comm_reduce_scaled(comm, input, output, c->count, dtype, factor,
                                                   c->root, stream);
}

/* Draw a case that is equal on all ranks. */
static inline scaled_case scaled_draw(random_state *random, int ranks, size_t most)
{
    static const banyan_collective_kind kinds[] = {BANYAN_ALLREDUCE, BANYAN_REDUCESCATTER,
                                                   BANYAN_REDUCE};
    scaled_case c = {
        .kind = kinds[random_between(random, 0, 2)],
        .type = (int)random_between(random, 0, SCALED_TYPES - 1),
        .root = (int)random_between(random, 0, ranks - 1),
        .count = (size_t)random_between(random, 1, INT64_C(1) << random_between(random, 0, 14)),
        .averages = random_between(random, 0, 1),
        .in_place = random_between(random, 0, 1),
        .factor = (double)random_between(random, 1, 1000) / 300,
        .salt = (uint64_t)random_between(random, 0, 1 << 20)};
    c.count = c.count < most ? c.count : most;
    return c;
}

#endif
