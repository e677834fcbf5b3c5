/* Check that a plan is right, without relying on anything that planning computed. */
#ifndef RESHARD_VERIFY_CHECK_H
#define RESHARD_VERIFY_CHECK_H

#include "reshard/planner/plan.h"
#include "reshard/verify/report.h"

/* One rank's part of a plan. */
typedef struct check_part {
    int rank;
    const plan_holding *source, *destination;
    const planner_result *transfers;
} check_part;

/* True if a piece of the source may fill this piece. */
bool check_names_fit(const banyan_piece *source, const banyan_piece *destination);

/* Check that this rank's receives and copies cover its pieces exactly once, and that it holds what
 * it sends. */
banyan_status check_part_alone(const check_part *part, banyan_reshard_report *report);

/* Check as check_part_alone, but return the first finding as an error: INVALID. */
banyan_status check_part_sound(const check_part *part);

/* Check that every receive has exactly one send of equal box, id and bytes at the rank that it
 * names, and every send one receive. parts[i] is rank i's. */
banyan_status check_parts_pair(const check_part *parts, int count, banyan_reshard_report *report);

/* Check that `boxes` cover `whole`, of the tensor `name` at `rank`, exactly once. The boxes may be
 * modified. */
banyan_status check_cover(int rank, const char *name, const banyan_box *whole, banyan_box *boxes,
                          size_t count, banyan_reshard_report *report);

#endif
