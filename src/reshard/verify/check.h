/* Is a plan right? Nothing that planning has done is taken for granted. */
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

/* May a piece of the source fill this piece? */
bool check_names_fit(const banyan_piece *source, const banyan_piece *destination);

/* What this rank receives and copies covers its pieces exactly once, and it holds what it sends. */
banyan_status check_part_alone(const check_part *part, banyan_reshard_report *report);

/* The same, but the first finding is an error: INVALID. */
banyan_status check_part_sound(const check_part *part);

/* parts[i] is rank i's. Every receive has exactly one send of the same box, id and bytes at the
 * rank that it names, and the other way round. */
banyan_status check_parts_pair(const check_part *parts, int count, banyan_reshard_report *report);

/* Do `boxes` cover `whole`, of the tensor `name` at `rank`, exactly once? The boxes may be changed.
 */
banyan_status check_cover(int rank, const char *name, const banyan_box *whole, banyan_box *boxes,
                          size_t count, banyan_reshard_report *report);

#endif
