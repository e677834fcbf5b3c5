/* A global tensor of a planner as input of the rules that choose senders. */
#ifndef RESHARD_PLANNER_VIEW_H
#define RESHARD_PLANNER_VIEW_H

#include "reshard/planner/once.h"
#include "reshard/planner/state.h"

/* The range of a name's claims: sources first, then destinations. */
typedef struct name_claims {
    size_t first_source, first_destination, end;
} name_claims;

typedef ARRAY(planner_held) planner_held_list;

typedef struct planner_view {
    uint32_t name; /* NO_NAME: none yet */
    planner_tensor all;
    ARRAY(const planner_claim *) claims; /* of destinations that receive this tensor */
    planner_held_list sources;
    planner_boxes bounds;
    /* With several nodes only: */
    once_tensor once;
    planner_tensor local;
    planner_held_list local_sources;
    planner_boxes local_bounds;
    planner_indices local_numbers, local_of; /* SIZE_MAX: no rank of this node holds it */
    ARRAY(const planner_group *) groups;     /* of sources */
    ARRAY(once_box) boxes;                   /* of claims */
    once_work work;
} planner_view;

/* View the tensor of this name; a zeroed view with NO_NAME is empty. */
banyan_status planner_view_name(planner_view *view, planner *planning, const name_claims *range,
                                uint32_t name);
void planner_view_free(planner_view *view);

/* Return the index of a claim of the tensor. */
size_t planner_view_find(const planner_view *view, const planner_claim *claim);
/* True if the box of this claim crosses the network once to each node. */
bool planner_view_once(const planner_view *view, size_t claim);

#endif
