/* Remove steps that a device does not need: a reduction can read its sources where they arrive. */
#ifndef EXECUTE_DEVICE_FUSE_H
#define EXECUTE_DEVICE_FUSE_H

#include "execute/device/program.h"

/* Fuse chains of four steps into one reduction. A plan's reductions of packets have one source of
 * data, the first. To add in rank order, a rank in the middle therefore writes its own data as
 * packets to itself, reads the first rank's packets into its output, and reduces these. A device
 * does one reduction of the same values in the same order, without the two copies. Removed steps
 * keep their places but have no pieces. */
void engine_fuse(const banyan_loaded_plan *loaded, engine_arrays *arrays);

/* True if the first source of this step was fused. The step then waits for the packets of the
 * unpack two steps before it. */
bool engine_is_fused(const step *s, uint32_t source);

#endif
