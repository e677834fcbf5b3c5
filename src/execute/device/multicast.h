/* Switch channels of plans on devices, through multicast addresses where there are any: see
 * memory/symmetric/multicast.h. All else goes to each rank's memory. */
#ifndef EXECUTE_DEVICE_MULTICAST_H
#define EXECUTE_DEVICE_MULTICAST_H

#include "execute/device/program.h"

/* Make addresses for the groups of the plan's switch channels, once its block is there, when the
 * executor may use multicast. Where that fails it is done with multicast, and the log says why, at
 * level info. Errors are those of the world. Collective. */
banyan_status multicast_load(banyan_loaded_plan *loaded);

/* Find the groups' bases for a run of `cut`. Local. */
void multicast_place(const banyan_loaded_plan *loaded, const plan_cut *cut, placement *placed);

/* Let steps of switch channels use those bases, a bit each (placement's `multicast`), as far as
 * type, sizes and places fit: whole units of 16 bytes and, of reductions, sums of f32, f16 and
 * bf16. Steps keep their places. */
void multicast_use(const banyan_loaded_plan *loaded, const plan_cut *cut, uint32_t bases,
                   engine_arrays *arrays);

#endif
