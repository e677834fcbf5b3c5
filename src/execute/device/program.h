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
banyan_status engine_program_make(const banyan_loaded_plan *loaded,
                                  const specialized_plan *specialized, uint32_t multicast,
                                  engine_arrays *arrays, engine_program *program);
void engine_arrays_free(engine_arrays *arrays);

/* fuse.c: fuse chains of four steps into one reduction. A plan's reductions of packets have one
 * source of data, the first. To add in rank order, a rank in the middle therefore writes its own
 * data as packets to itself, reads the first rank's packets into its output, and reduces these. A
 * device does one reduction of the same values in the same order, without the two copies. Removed
 * steps keep their places but have no pieces. */
void engine_fuse(const banyan_loaded_plan *loaded, engine_arrays *arrays);

/* True if the first source of this step was fused. The step then waits for the packets of the
 * unpack two steps before it. */
bool engine_is_fused(const step *s, uint32_t source);

/* multicast.c: create addresses for the groups of the plan's switch channels, if the executor may
 * use multicast. Call it once the plan's block exists. If that fails, multicast is off from then
 * on, and the log gives the reason at level info. Errors are those of the world. Collective. */
banyan_status multicast_load(banyan_loaded_plan *loaded);

/* Find the groups' bases for a run of `specialized`. Local. */
void multicast_place(const banyan_loaded_plan *loaded, const specialized_plan *specialized,
                     binding *placed);

/* Let steps of switch channels use those bases (one bit each, as in binding's `multicast`) where
 * type, sizes and places permit: whole units of 16 bytes; for reductions, sums of f32, f16 and
 * bf16. Steps keep their places. */
void multicast_use(const banyan_loaded_plan *loaded, const specialized_plan *specialized,
                   uint32_t bases, engine_arrays *arrays);

/* order.c: clear `relaxed` of a signal if its thread block wrote data, or acquired a peer's data by
 * a wait, that no signal on the same channel has published since. A run writes its staged input
 * before the first step. */
banyan_status engine_order(const banyan_loaded_plan *loaded, engine_arrays *arrays);

#endif
