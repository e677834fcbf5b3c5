/* What a check has found, each thing once. */
#ifndef CHECK_FINDINGS_H
#define CHECK_FINDINGS_H

#include <banyan/check.h>

#include "core/containers/arena.h"
#include "core/containers/array.h"
#include "core/containers/map.h"
#include "plan/plan.h"

#define PLACES_MOST 64

typedef struct findings {
    arena memory;
    ARRAY(banyan_check_finding) list;
    map seen; /* rule and places, whatever the run */
    size_t of_rule[BANYAN_CHECK_RULES], most;
    uint64_t message_bytes; /* of the size class at hand */
    bool deadlocks_only;    /* the order that is played may be one of a few */
} findings;

/* A finding on its way in; unused places are zero. */
typedef struct finding_draft {
    banyan_check_rule rule;
    bool caller_only, relaxed_only;
    banyan_check_place places[PLACES_MOST];
    size_t place_count;
} finding_draft;

/* Is it new, and is there room for more of its rule? Only then it is worth being told. */
bool findings_wants(const findings *all, const finding_draft *draft);
/* False, with the error set, when memory ran out. */
bool findings_add(findings *all, const finding_draft *draft, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* By rule, places and message. */
void findings_sort(findings *all);
/* The source line of the operation there, or NULL. */
const plan_line *findings_line(const banyan_plan *plan, const banyan_check_place *at);
/* Give all places their source lines, and say which findings are alike, and which is the cause of
 * which. False when memory ran out. Once they are sorted. */
bool findings_relate(findings *all, const banyan_plan *plan);
void findings_free(findings *all);

#endif
