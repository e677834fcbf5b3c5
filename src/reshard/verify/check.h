/* Check that a plan is right, without relying on anything that planning computed. */
#ifndef RESHARD_VERIFY_CHECK_H
#define RESHARD_VERIFY_CHECK_H

#include <banyan/reshard.h>

#include "core/containers.h"
#include "reshard/planner/plan.h"

#define CHECK_REPORT_MOST 100 /* of each rule */

struct banyan_reshard_report {
    const char *subject; /* the plan being checked: begins every message; NULL: none */
    ARRAY(banyan_reshard_finding) findings; /* the report owns their messages */
    size_t counts[BANYAN_RESHARD_RULES];
    int nodes;      /* that the plan is for */
    uint64_t waves; /* of a run that were played; 0: none */
};

banyan_status check_report_create(banyan_reshard_report **report);

/* Add a finding, unless there are enough of its rule. NO_MEMORY is the only error. */
banyan_status check_report_add(banyan_reshard_report *report, banyan_reshard_rule rule, int rank,
                               const char *format, ...) __attribute__((format(printf, 4, 5), cold));

/* One rank's layouts and transfers of a plan. */
typedef struct check_rank {
    int rank;
    const banyan_layout *source, *destination;
    const planner_result *transfers;
} check_rank;

/* True if a piece of the source may fill this piece. */
bool check_names_fit(const banyan_piece *source, const banyan_piece *destination);

/* Check that this rank's receives and copies cover its pieces exactly once, and that it holds what
 * it sends. */
banyan_status check_rank_alone(const check_rank *checked, banyan_reshard_report *report);

/* Check as check_rank_alone, but return the first finding as an error: INVALID. */
banyan_status check_rank_sound(const check_rank *checked);

/* Check that every receive has exactly one send of equal box, id and bytes at the rank that it
 * names, and every send one receive. all[i] is rank i's. */
banyan_status check_ranks_pair(const check_rank *all, int count, banyan_reshard_report *report);

/* Check that `boxes` cover `whole`, of the tensor `name` at `rank`, exactly once. The boxes may be
 * modified. */
banyan_status check_cover(int rank, const char *name, const banyan_box *whole, banyan_box *boxes,
                          size_t count, banyan_reshard_report *report);

/* Check that no node of `ranks_per_node` ranks receives elements over the network twice that are
 * stored there with equal bytes. all[i] is rank i's. */
banyan_status check_nodes(const check_rank *all, int count, int ranks_per_node,
                          banyan_reshard_report *report);

/* Pack the transfers of each wave into batches for slots of `slot_bytes`, assign the batches to
 * rounds, by rotation and then by colouring, and check the use of the slots. all[i] is rank i's;
 * they fit together. */
banyan_status check_slots(const check_rank *all, int count, uint64_t slot_bytes,
                          banyan_reshard_report *report);

#endif
