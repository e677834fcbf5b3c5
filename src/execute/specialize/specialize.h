/* A plan cut for messages of one size and element type: the steps of this rank's thread blocks. */
#ifndef EXECUTE_SPECIALIZE_SPECIALIZE_H
#define EXECUTE_SPECIALIZE_SPECIALIZE_H

#include "execute/specialize/step.h"

struct banyan_loaded_plan;

typedef struct cut_block {
    ARRAY(step) steps;
    size_t room_bytes;     /* for packets that have come, while others have not */
    uint32_t most_sources; /* of a reduction */
} cut_block;

typedef struct cut_span {
    uint64_t offset, bytes;
} cut_span;

typedef struct plan_cut {
    arena memory;
    uint64_t message_bytes;
    DLDataType dtype;
    size_t elem_bytes;
    plan_geometry geometry;
    uint64_t bytes[2]; /* of this rank's input and output */
    cut_block *blocks;
    uint32_t block_count;
    piece_words words;
    ARRAY(cut_span) spans; /* ascending, apart; when outputs of the plan may have to be copied */
    uint32_t flags;        /* that packets of a run use up */
    /* As the device has it, without multicast and with it; NULL: not yet, or on the host. */
    void *uploaded[2];
    uint32_t multicast; /* the bases that the second uses, as a placement has them */
    bool captured;      /* graphs refer to what is uploaded: it stays */
} plan_cut;

/* INVALID: the plan cannot run on such messages. */
banyan_status cut_make(const struct banyan_loaded_plan *loaded, uint64_t message_bytes,
                       DLDataType dtype, plan_cut **made);
void cut_free(plan_cut *old);

/* Append the pieces of a step in an iteration of its loop. */
banyan_status cut_pieces(const plan_cut *of, const banyan_plan *plan, int rank,
                         const plan_thread_block *block, const step *s, uint64_t iteration,
                         piece_words *words);

/* Which bytes of this rank's output hold something when the plan has run: those that anybody writes
 * and, in place, those that the input lies in. For outputs that are copied to where they belong. */
banyan_status cut_find_spans(plan_cut *of, const banyan_plan *plan, int rank);

/* Operand i of an operation, sources first; and how many operands of a step it is: a group's
 * members are one each. */
const plan_operand *cut_operand(const plan_op *op, uint32_t i);
uint32_t cut_operand_width(const banyan_plan *plan, int rank, const plan_thread_block *block,
                           const plan_operand *operand);

/* Where a rank's input, or output, begins in the longer of the two when the plan is in place. */
uint64_t cut_place(const plan_cut *of, const banyan_plan *plan, int rank, plan_buffer buffer);

#endif
