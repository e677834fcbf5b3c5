/* A context's own worlds, by group. */
#ifndef MIXED_WORLDS_H
#define MIXED_WORLDS_H

#include "core/status.h"
#include "mixed/engine.h"

/* Split them from the caller's world, so that their messages are separate from the caller's.
 * Collective. After a failure nothing remains open. */
banyan_status worlds_open(banyan_world *world, const banyan_mixed_grid *grid,
                          banyan_world *worlds[MIXED_GROUPS]);

/* End all worlds if one of them or `parent` has ended. A group's world ends for its members only;
 * without this, a rank that waits for one of them elsewhere would wait until its deadline. They
 * end with `why` (NULL: the error of the first). Returns true if they ended. NULL entries are
 * ignored. */
bool worlds_end_together(banyan_world *parent, banyan_world *worlds[MIXED_GROUPS],
                         const error_kept *why);

/* Collective while they are healthy. NULL entries are ignored. */
void worlds_close(banyan_world *worlds[MIXED_GROUPS]);

/* True if every group of this kind is on one machine. Local, and equal on all ranks. */
bool worlds_are_near(const banyan_world *world, const banyan_mixed_grid *grid, mixed_group group);

#endif
