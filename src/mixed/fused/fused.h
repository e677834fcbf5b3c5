/* The fused modes as programs in Banyan's language, for any grid.
 *
 * Peers reach scratch alone, so that ordinary memory needs no staging. Two forms: packets in one
 * thread block, and units that flow through a small ring of scratch. docs/internals/mixed.md
 * says what each mode moves where. */
#ifndef MIXED_FUSED_FUSED_H
#define MIXED_FUSED_FUSED_H

#include <banyan/mixed.h>
#include <banyan/plan.h>

/* Tables of channels grow with the square of the ranks. */
#define FUSED_RANKS_MOST 1024

typedef struct fused_kind {
    banyan_mixed_op op;
    banyan_mixed_mode mode; /* fused, without multicast */
    bool packets;
    bool in_place; /* an all-reduce's */
} fused_kind;

/* INVALID for a mode that the grid does not have, and for too many ranks. */
banyan_status fused_compile(const banyan_mixed_grid *grid, const fused_kind *kind,
                            banyan_plan **plan);

#endif
