/* The ranks that hold a box, by node. */
#ifndef RESHARD_PLANNER_GROUPS_H
#define RESHARD_PLANNER_GROUPS_H

#include "reshard/planner/sources.h"

typedef struct planner_group {
    const int *nodes; /* ascending */
    size_t node_count;
    const size_t *first; /* of each node's ranks; one more at the end */
    const int *ranks;    /* by node, and in the order of the holders */
    size_t most;         /* ranks of one node, at most */
    planner_holders own; /* those of this rank's node */
} planner_group;

/* Groups that were made, by their holders: the tensors of a model have few different sets. */
typedef struct planner_groups {
    const int *node_of; /* each rank's node; NULL: all ranks share one */
    int node;           /* of this rank */
    hash_map known;
    arena memory;
} planner_groups;

/* Return the group of these holders. NULL, with the error set, when out of memory. */
const planner_group *planner_group_of(planner_groups *groups, const planner_holders *holders);
/* Return the node's index in the group, or SIZE_MAX if no holder is there. */
size_t planner_group_find(const planner_group *group, int node);
void planner_groups_free(planner_groups *groups);

#endif
