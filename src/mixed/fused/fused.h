/* The fused modes as programs in Banyan's language, for any grid.
 *
 * Peers access scratch only, so ordinary memory needs no staging. There are two forms: packets in
 * one thread block, and units that flow through a small ring of scratch. docs/internals/mixed.md
 * lists the transfers of each mode. */
#ifndef MIXED_FUSED_FUSED_H
#define MIXED_FUSED_FUSED_H

#include <banyan/mixed.h>
#include <banyan/plan.h>

/* Limit: tables of channels grow with the square of the number of ranks. */
#define FUSED_RANKS_MOST 1024

typedef struct fused_kind {
    banyan_mixed_op op;
    banyan_mixed_mode mode; /* fused, without multicast */
    bool packets;
    bool in_place; /* of an all-reduce */
} fused_kind;

/* INVALID if the grid does not have the mode, or has too many ranks. */
banyan_status fused_compile(const banyan_mixed_grid *grid, const fused_kind *kind,
                            banyan_plan **plan);

#endif
