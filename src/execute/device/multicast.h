/* Switch channels of plans on devices use multicast addresses where these exist: see
 * memory/symmetric/multicast.h. All other accesses go to each rank's memory. */
#ifndef EXECUTE_DEVICE_MULTICAST_H
#define EXECUTE_DEVICE_MULTICAST_H

#include "execute/device/program.h"

/* Create addresses for the groups of the plan's switch channels, if the executor may use
 * multicast. Call it once the plan's block exists. If that fails, multicast is off from then on,
 * and the log gives the reason at level info. Errors are those of the world. Collective. */
banyan_status multicast_load(banyan_loaded_plan *loaded);

/* Find the groups' bases for a run of `cut`. Local. */
void multicast_place(const banyan_loaded_plan *loaded, const specialized_plan *cut,
                     binding *placed);

/* Let steps of switch channels use those bases (one bit each, as in binding's `multicast`) where
 * type, sizes and places permit: whole units of 16 bytes; for reductions, sums of f32, f16 and
 * bf16. Steps keep their places. */
void multicast_use(const banyan_loaded_plan *loaded, const specialized_plan *cut, uint32_t bases,
                   engine_arrays *arrays);

#endif
