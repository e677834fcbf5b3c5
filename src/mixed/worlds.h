/* The worlds of a context's own, by group. */
#ifndef MIXED_WORLDS_H
#define MIXED_WORLDS_H

#include "mixed/engine.h"

/* Split them off the caller's world, so that nothing in them meets what the caller does there.
 * Collective. After a failure nothing is left open. */
banyan_status worlds_open(banyan_world *world, const banyan_mixed_grid *grid,
                          banyan_world *worlds[MIXED_GROUPS]);

/* Collective while they are healthy. NULL ones are ignored. */
void worlds_close(banyan_world *worlds[MIXED_GROUPS]);

/* Is every rank's group of this kind on one machine? Local, and the same on all ranks. */
bool worlds_are_near(const banyan_world *world, const banyan_mixed_grid *grid, mixed_group group);

#endif
