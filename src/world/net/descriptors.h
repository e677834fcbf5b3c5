/* The descriptors (RLIMIT_NOFILE) that the control plane needs. They are counted before a world
 * opens, and compared for all ranks at the rendezvous, so that a shortage is an error of all ranks,
 * at once. */
#ifndef WORLD_NET_DESCRIPTORS_H
#define WORLD_NET_DESCRIPTORS_H

#include <stdbool.h>
#include <sys/resource.h>

#include <banyan/world.h>

#include "world/bootstrap/member.h"

/* Count the descriptors that this process may have, and those it may still open. The count of free
 * ones stops at the most that a rank of such a world needs. */
struct descriptors descriptors_count(int world_size);

/* Check that this rank has enough descriptors for the rendezvous. SYSTEM otherwise; the message has
 * a limit that suffices for the world. */
banyan_status descriptors_check_rendezvous(const struct descriptors *mine, int rank, int world_size,
                                           bool rank_0_hosts);

/* Check that this process has enough descriptors to make a unique id; or, once it has made one, to
 * answer all ranks, this many of which are not connected yet. SYSTEM otherwise. */
banyan_status descriptors_check_id(void);
/* Most ranks that join at one process, if these relay others. */
#define RELAY_CHILDREN 32
/* Return the number of ranks that may join through a rank with these. */
int descriptors_for_relay(const struct descriptors *mine);
banyan_status descriptors_check_hosting(int world_size, int missing);

/* Raise the soft limit by `count`, as far as the hard limit allows, to report a failure. True when
 * `*before` must be restored. */
bool descriptors_raise_limit(int count, struct rlimit *before);

/* Check that all ranks have enough descriptors for the world. `nodes` has each rank's node, from 0
 * on. The result is equal on all ranks. SYSTEM, with the rank, otherwise. */
banyan_status descriptors_check_members(const struct member *members, const int *nodes,
                                        int world_size, bool rank_0_hosts);

#endif
