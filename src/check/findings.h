/* The findings of a check, without repeats. */
#ifndef CHECK_FINDINGS_H
#define CHECK_FINDINGS_H

#include <banyan/check.h>

#include "core/containers.h"
#include "plan/plan.h"

#define PLACES_MOST 64

typedef struct findings {
    arena memory;
    ARRAY(banyan_check_finding) list;
    hash_map seen; /* rule and places, without the run */
    size_t of_rule[BANYAN_CHECK_RULES], most;
    uint64_t message_bytes; /* of the current size class */
    bool deadlocks_only;    /* the replayed order may be one of several */
} findings;

/* A finding to be added; unused places are zero. */
typedef struct finding_draft {
    banyan_check_rule rule;
    bool caller_only, relaxed_only;
    banyan_check_place places[PLACES_MOST];
    size_t place_count;
    uint32_t number; /* distinguishes findings of equal places; 0: the places suffice */
} finding_draft;

/* True if the finding is new and its rule is not full. Only then is it worth formatting. */
bool findings_wants(const findings *all, const finding_draft *draft);
/* Add a finding. False, with the error set, when memory ran out. */
bool findings_add(findings *all, const finding_draft *draft, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Sort by rule, places and message. */
void findings_sort(findings *all);
/* Return the source line of the operation there, or NULL. */
const plan_line *findings_line(const banyan_plan *plan, const banyan_check_place *at);
/* Set the source lines of all places, and link identical findings and consequences to their causes.
 * Call it after sorting. False when memory ran out. */
bool findings_relate(findings *all, const banyan_plan *plan);
void findings_free(findings *all);

/* The report of a check. */
struct banyan_check_report {
    findings findings;
    char *limits;
};

#endif
