/* All grids of a number of ranks, and the expected results of mixed collectives on data that every
 * rank can compute. */
#ifndef TESTS_MIXED_GRIDS_H
#define TESTS_MIXED_GRIDS_H

#include <math.h>

#include "core/types/float_bits.h"
#include "mixed/engine.h"
#include "mixed/grid.h"
#include "support/test.h"

typedef struct grid_sizes {
    int nodes, local_tp, local_dp, inter_tp, inter_dp;
} grid_sizes;

/* List up to `room` grids: every factorization. */
static inline int grids_of(int ranks, grid_sizes *grids, int room)
{
    int count = 0;
    for (int nodes = 1; nodes <= ranks; nodes++) {
        for (int local_tp = 1; ranks % nodes == 0 && local_tp <= ranks / nodes; local_tp++) {
            for (int inter_tp = 1; ranks / nodes % local_tp == 0 && inter_tp <= nodes; inter_tp++) {
                if (nodes % inter_tp != 0)
                    continue;
                CHECK(count < room);
                grids[count++] = (grid_sizes){nodes, local_tp, ranks / nodes / local_tp, inter_tp,
                                              nodes / inter_tp};
            }
        }
    }
    return count;
}

static inline banyan_mixed_options options_of(const grid_sizes *grid, DLDataType dtype)
{
    banyan_mixed_options options = BANYAN_MIXED_OPTIONS_INIT;
    options.nodes = grid->nodes;
    options.local_tp = grid->local_tp;
    options.local_dp = grid->local_dp;
    options.inter_tp = grid->inter_tp;
    options.inter_dp = grid->inter_dp;
    options.dtype = dtype;
    options.use_autotune = false;
    return options;
}

typedef enum data_kind {
    DATA_WHOLE,  /* small whole numbers, whose sums are exact in every type and order */
    DATA_RANDOM, /* in [-1, 1) */
    DATA_SPECIAL /* zeros of both signs, subnormals, infinities and NaN, whose sums are exact */
} data_kind;

static inline double f16_or_so(DLDataType dtype, double value, uint32_t *bits)
{
    uint32_t wide = f32_bits((float)value);
    if (banyan_dtype_equal(dtype, BANYAN_BF16)) {
        *bits = bf16_of_f32(wide);
        return (double)f32_of_bits(f32_of_bf16((uint16_t)*bits));
    }
    if (banyan_dtype_equal(dtype, BANYAN_F16)) {
        *bits = f16_of_f32(wide);
        return (double)f32_of_bits(f32_of_f16((uint16_t)*bits));
    }
    *bits = wide;
    return (double)f32_of_bits(wide);
}

/* All ranks' elements at one index are of one of four sorts: zeros; subnormals; whole numbers; and
 * whole numbers with infinities and NaN of any payload. */
static inline double special_of(DLDataType dtype, uint64_t sort, uint64_t drawn, uint32_t *bits)
{
    bool is_bf16 = banyan_dtype_equal(dtype, BANYAN_BF16), is_f32 = dtype.bits == 32;
    double least = ldexp(1, is_f32 ? -149 : is_bf16 ? -133 : -24);
    uint32_t mantissa = is_f32 ? 0x7fffff : is_bf16 ? 0x7f : 0x3ff;
    double whole = (double)(drawn % 15) - 7;
    uint32_t payload = (uint32_t)(drawn >> 32) & mantissa;
    if (sort == 0)
        return f16_or_so(dtype, drawn & 1 ? 0.0 : -0.0, bits);
    if (sort == 1)
        return f16_or_so(dtype, whole * least, bits);
    if (sort == 2 || drawn >> 61 > 2)
        return f16_or_so(dtype, whole, bits);
    double far = f16_or_so(dtype, drawn & 1 ? HUGE_VAL : -HUGE_VAL, bits);
    if (drawn >> 61 > 0)
        return far;
    *bits |= payload ? payload : 1;
    return (double)NAN;
}

/* Element `index` of the rank's input in call `salt`, and its bits. */
static inline double element_of(data_kind kind, DLDataType dtype, int rank, uint64_t index,
                                uint64_t salt, uint32_t *bits)
{
    random_state random =
        random_from(salt * UINT64_C(0x9e3779b97f4a7c15) + index * 1000003 + (uint64_t)rank);
    uint64_t drawn = random_next(&random);
    if (kind == DATA_SPECIAL)
        return special_of(dtype, (salt + index * UINT64_C(0x9e3779b97f4a7c15)) >> 62, drawn, bits);
    double value = kind == DATA_WHOLE ? (double)(drawn % 15) - 7
                                      : (double)(drawn >> 11) / (double)(UINT64_C(1) << 52) - 1;
    return f16_or_so(dtype, value, bits);
}

static inline double value_at(DLDataType dtype, const void *data, uint64_t index, uint32_t *bits)
{
    if (banyan_dtype_bytes(dtype) == 4) {
        *bits = ((const uint32_t *)data)[index];
        return (double)f32_of_bits(*bits);
    }
    uint16_t half = ((const uint16_t *)data)[index];
    *bits = half;
    return (double)f32_of_bits(banyan_dtype_equal(dtype, BANYAN_BF16) ? f32_of_bf16(half)
                                                                      : f32_of_f16(half));
}

static inline void store_bits(DLDataType dtype, void *data, uint64_t index, uint32_t bits)
{
    if (banyan_dtype_bytes(dtype) == 4)
        ((uint32_t *)data)[index] = bits;
    else
        ((uint16_t *)data)[index] = (uint16_t)bits;
}

/* The inputs of an output element: the ranks, and the index in their inputs. */
typedef struct sum_of {
    int first_tp, tp_count, first_dp, dp_count; /* indices in the groups */
    uint64_t index;
} sum_of;

static inline sum_of sum_at(const banyan_mixed_grid *grid, banyan_mixed_op op, uint64_t elems,
                            uint64_t index)
{
    int block = (int)(index / elems);
    uint64_t own = (uint64_t)grid->dp_index * elems + index;
    switch (op) {
    case BANYAN_MIXED_ALLREDUCE:
        return (sum_of){0, grid->tp, 0, 1, index};
    case BANYAN_MIXED_ALLGATHER:
    case BANYAN_MIXED_ALLREDUCE_ALLGATHER:
        return (sum_of){0, grid->tp, block, 1, index % elems};
    default:
        return (sum_of){0, grid->tp, 0, grid->dp, own};
    }
}

/* The sum in double, and the sum of magnitudes, which bounds rounding errors. */
static inline double sum_exactly(const banyan_mixed_grid *grid, const sum_of *of, data_kind kind,
                                 DLDataType dtype, uint64_t salt, double *magnitudes)
{
    double sum = 0;
    uint32_t bits;
    *magnitudes = 0;
    for (int dp = of->first_dp; dp < of->first_dp + of->dp_count; dp++) {
        for (int tp = of->first_tp; tp < of->first_tp + of->tp_count; tp++) {
            double value =
                element_of(kind, dtype, grid_rank_at(grid, tp, dp), of->index, salt, &bits);
            sum += value;
            *magnitudes += fabs(value);
        }
    }
    return sum;
}

/* Half a unit in the last place, relative. */
static inline double half_ulp(DLDataType dtype)
{
    if (banyan_dtype_equal(dtype, BANYAN_BF16))
        return ldexp(1, -8);
    return ldexp(1, banyan_dtype_equal(dtype, BANYAN_F16) ? -11 : -24);
}

#endif
