/* A cut as a device's module gets it: plain arrays. */
#ifndef EXECUTE_DEVICE_PROGRAM_H
#define EXECUTE_DEVICE_PROGRAM_H

#include "execute/device/engine.h"
#include "execute/load/loaded.h"

/* What the pointers of an engine_program point to. */
typedef struct engine_arrays {
    ARRAY(engine_block) blocks;
    ARRAY(engine_step) steps;
    ARRAY(uint32_t) operands;
    ARRAY(uint32_t) ends;
    ARRAY(uint64_t) words;
    ARRAY(engine_span) spans;
} engine_arrays;

/* The i-th step of a block is the cut's i-th step of that block. `multicast`: the groups' bases
 * that its runs have, a bit each. `program` points into `arrays`, which are to be freed in any
 * case. INVALID for loops that are too long to be listed. */
banyan_status engine_program_make(const banyan_loaded_plan *loaded, const plan_cut *cut,
                                  uint32_t multicast, engine_arrays *arrays,
                                  engine_program *program);
void engine_arrays_free(engine_arrays *arrays);

/* The place of a channel's end among engine_plan's. */
uint32_t engine_end_number(const banyan_loaded_plan *loaded, plan_channel_type type,
                           const channel_end *end);

#endif
