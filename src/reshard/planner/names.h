/* Which names are wrong, when a plan fails because of names. */
#ifndef RESHARD_PLANNER_NAMES_H
#define RESHARD_PLANNER_NAMES_H

#include "reshard/planner/rank.h"

/* At most this many names are told, and how many there are. */
#define PLAN_NAMES_TOLD 10

/* Append to the error that all ranks have, `failed`, the names of all ranks' tensors of one side
 * that have nothing on the other, each with the nearest name there. Returns `failed`, or another
 * error when a rank fails meanwhile. Collective; costs a few small messages more than the names
 * that are told. */
banyan_status plan_tell_lonely(banyan_world *world, const planner *planning, banyan_side side,
                               banyan_status failed);

#endif
