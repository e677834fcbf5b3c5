/* The worlds of a context's own, by group. */
#ifndef MIXED_WORLDS_H
#define MIXED_WORLDS_H

#include "core/status.h"
#include "mixed/engine.h"

/* Split them off the caller's world, so that nothing in them meets what the caller does there.
 * Collective. After a failure nothing is left open. */
banyan_status worlds_open(banyan_world *world, const banyan_mixed_grid *grid,
                          banyan_world *worlds[MIXED_GROUPS]);

/* A group's world ends for its members alone, and who waits for one of them elsewhere would do so
 * until its deadline: if one has ended, or `parent` has, all of them end, for `why` (NULL: the
 * first one's). Returns whether they did. NULL ones are ignored. */
bool worlds_end_together(banyan_world *parent, banyan_world *worlds[MIXED_GROUPS],
                         const error_kept *why);

/* Collective while they are healthy. NULL ones are ignored. */
void worlds_close(banyan_world *worlds[MIXED_GROUPS]);

/* Is every rank's group of this kind on one machine? Local, and the same on all ranks. */
bool worlds_are_near(const banyan_world *world, const banyan_mixed_grid *grid, mixed_group group);

#endif
