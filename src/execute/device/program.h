/* A specialized plan as a device's module receives it: plain arrays. */
#ifndef EXECUTE_DEVICE_PROGRAM_H
#define EXECUTE_DEVICE_PROGRAM_H

#include "execute/device/engine.h"
#include "execute/load/loaded.h"

/* The arrays that the pointers of an engine_program point to. */
typedef struct engine_arrays {
    ARRAY(engine_block) blocks;
    ARRAY(engine_step) steps;
    ARRAY(uint32_t) operands;
    ARRAY(uint32_t) ends;
    ARRAY(uint64_t) words;
    ARRAY(engine_span) spans;
} engine_arrays;

/* The i-th step of a block is the i-th step of that block in the specialized plan. `multicast` has
 * one bit for each of the groups' bases in its runs. `program` points into `arrays`; the caller
 * frees them also after an error. INVALID if a loop has too many iterations to list. */
banyan_status engine_program_make(const banyan_loaded_plan *loaded, const specialized_plan *cut,
                                  uint32_t multicast, engine_arrays *arrays,
                                  engine_program *program);
void engine_arrays_free(engine_arrays *arrays);

/* The index of a channel's end in engine_plan's list. */
uint32_t engine_end_number(const banyan_loaded_plan *loaded, plan_channel_type type,
                           const channel_end *end);

#endif
