/* A plan specialized for messages of one size and element type: the steps of this rank's thread
 * blocks. */
#ifndef EXECUTE_SPECIALIZE_SPECIALIZE_H
#define EXECUTE_SPECIALIZE_SPECIALIZE_H

#include "execute/specialize/step.h"

struct banyan_loaded_plan;

typedef struct specialized_block {
    ARRAY(step) steps;
    size_t room_bytes;     /* buffer for packets that arrive before those of other sources */
    uint32_t most_sources; /* largest number of sources of a reduction */
} specialized_block;

typedef struct specialized_span {
    uint64_t offset, bytes;
} specialized_span;

typedef struct specialized_plan {
    arena memory;
    uint64_t message_bytes;
    DLDataType dtype;
    size_t elem_bytes;
    plan_geometry geometry;
    uint64_t bytes[2]; /* of this rank's input and output */
    specialized_block *blocks;
    uint32_t block_count;
    piece_words words;
    ARRAY(specialized_span)
    spans;          /* ascending and disjoint; only if the plan's outputs may be copied */
    uint32_t flags; /* number of flags that a run's packets use */
    /* On the device, without and with multicast. NULL: not uploaded yet, or on the host. */
    void *uploaded[2];
    uint32_t multicast; /* the bases of the second program, as in a binding */
    bool captured;      /* graphs refer to the uploaded program, so it stays */
} specialized_plan;

/* INVALID: the plan cannot run on such messages. */
banyan_status specialize_make(const struct banyan_loaded_plan *loaded, uint64_t message_bytes,
                              DLDataType dtype, specialized_plan **made);
void specialize_free(specialized_plan *old);

/* Append the pieces of a step in an iteration of its loop. */
banyan_status specialize_pieces(const specialized_plan *of, const banyan_plan *plan, int rank,
                                const plan_thread_block *block, const step *s, uint64_t iteration,
                                piece_words *words);

/* Find the bytes of this rank's output that hold data after a run: bytes that some rank writes
 * and, in place, those of the input. Used for outputs that are copied out of staging. `of_others`:
 * only what other ranks write. */
banyan_status specialize_find_spans(specialized_plan *of, const banyan_plan *plan, int rank,
                                    bool of_others);

/* The offset of a rank's input or output in the longer of the two, for an in-place plan. */
uint64_t specialized_place(const specialized_plan *of, const banyan_plan *plan, int rank,
                           plan_buffer buffer);

#endif
