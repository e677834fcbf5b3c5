/* Fewer steps for a device: what a reduction can read where it comes from. */
#ifndef EXECUTE_DEVICE_FUSE_H
#define EXECUTE_DEVICE_FUSE_H

#include "execute/device/program.h"

/* A plan's reductions of packets have one source of data, the first. To add up in the order of
 * ranks, a rank in the middle therefore writes its own data as packets to itself, reads the first
 * rank's into its output, and reduces these: on a device one reduction of the same values in the
 * same order, without the two copies. Steps that are left out have no pieces any more; steps keep
 * their places. */
void engine_fuse(const banyan_loaded_plan *loaded, engine_arrays *arrays);

/* Was the first source of this step fused? It then waits for what the step two before it was to
 * unpack. */
bool engine_is_fused(const step *s, uint32_t source);

#endif
