/* The descriptors (RLIMIT_NOFILE) that the control plane takes: counted before a world opens, and
 * compared for all ranks once they have met, so that too few are an error of all, at once. */
#ifndef WORLD_NET_DESCRIPTORS_H
#define WORLD_NET_DESCRIPTORS_H

#include <stdbool.h>
#include <sys/resource.h>

#include <banyan/world.h>

#include "world/bootstrap/member.h"

/* How many this process may have, and how many more it may open. The count of those stops where no
 * rank of such a world takes more. */
struct descriptors descriptors_count(int world_size);

/* Has this rank those that it takes to meet the others? SYSTEM: it has not. The message has a limit
 * that suffices for the world. */
banyan_status descriptors_check_meeting(const struct descriptors *mine, int rank, int world_size,
                                        bool rank_0_hosts);

/* Can this process make a unique id; and where it has made one, answer all ranks, of which so many
 * are not connected yet? SYSTEM: no. */
banyan_status descriptors_check_id(void);
banyan_status descriptors_check_hosting(int world_size, int missing);

/* Raise the soft limit by so many, as far as the hard one allows, to report a failure. True when
 * `*before` must be set again. */
bool descriptors_raise_limit(int count, struct rlimit *before);

/* Have all ranks those that a world takes? `nodes` has each rank's, from 0 on. Alike on all ranks.
 * SYSTEM: one has not, and is named; the message has a limit that suffices for all that have not.
 */
banyan_status descriptors_check_members(const struct member *members, const int *nodes,
                                        int world_size, bool rank_0_hosts);

#endif
