/* Report which names are wrong when planning fails because of names. */
#ifndef RESHARD_PLANNER_NAMES_H
#define RESHARD_PLANNER_NAMES_H

#include "reshard/planner/rank.h"

/* The message and the log name at most this many tensors, and give the total count. */
#define PLAN_NAMES_TOLD 1000

/* Append to `failed`, the error that all ranks have, the names of all ranks' tensors of one side
 * that have nothing on the other, each with the nearest name there. Returns `failed`, or another
 * error when a rank fails meanwhile. Collective; costs a few small messages beyond the listed
 * names. */
banyan_status plan_tell_lonely(banyan_world *world, const planner *planning, banyan_side side,
                               banyan_status failed);

#endif
