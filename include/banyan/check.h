/* Banyan: proving a plan before it runs.
 *
 * banyan_plan_check says whether a plan is sound: for every message size class at which chunking,
 * loops or thread-block groups behave differently, and for any number of consecutive runs on the
 * same buffers, it can neither hang, nor race, nor compute a wrong result. What it finds it
 * explains by rank, thread block, operation and bytes. docs/check.md has the memory model, with an
 * example a rule, and says which plans are decided exactly.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_CHECK_H
#define BANYAN_CHECK_H

#include <banyan/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum banyan_rule {
    BANYAN_RULE_DEADLOCK = 0,  /* operations wait for each other in a circle, or for nobody */
    BANYAN_RULE_RACE,          /* overlapping accesses, one of them a write, that nothing orders */
    BANYAN_RULE_RESULT,        /* an output element is not what the collective says */
    BANYAN_RULE_UNINITIALISED, /* something is read that nobody has written */
    BANYAN_RULE_INPUT_WRITTEN, /* an input is changed though the plan is not in place */
    BANYAN_RULE_REUSE,         /* the next run collides with ranks that are still in this one */
    BANYAN_RULE_UNDECIDED,     /* thread blocks can take from a counter in too many orders */
    BANYAN_RULE_IDLE_SYNC,     /* warning: synchronisation that orders nothing */
    BANYAN_RULE_UNREAD,        /* warning: bytes sent and never read */
    BANYAN_RULE_UNUSED,        /* warning: scratch that is never used */
    BANYAN_RULE_UNEVEN,        /* warning: links used unevenly */
    BANYAN_RULES
} banyan_rule;

/* "deadlock", "race", … Any thread. */
BANYAN_API const char *banyan_rule_name(banyan_rule rule);
BANYAN_API bool banyan_rule_is_warning(banyan_rule rule);

/* An operation of a plan. Thread block and operation are -1 for what a rank's caller does, and for
 * what is about the rank as a whole. */
typedef struct banyan_place {
    int rank;
    int thread_block;
    int operation;      /* index in the thread block */
    int loop_operation; /* index in the body, when `operation` is a loop; else -1 */
    int run;            /* 0: this run, 1: the next, … */
} banyan_place;

typedef struct banyan_finding {
    banyan_rule rule;
    /* It rests only on what the caller does with a rank's buffers before a run and after its part
     * has ended, or only on a relaxed signal and wait, or packets. */
    bool caller_only, relaxed_only;
    uint64_t message_bytes;     /* of the smallest size class where it shows */
    const banyan_place *places; /* the operations that it is about, the first one first */
    size_t place_count;
    const char *message; /* a sentence, with what would have to be done */
} banyan_finding;

typedef struct banyan_check_options {
    size_t size;                   /* of this struct; BANYAN_CHECK_OPTIONS_INIT sets it */
    const uint64_t *message_bytes; /* only these sizes; NULL: one of every class */
    size_t message_count;
    size_t max_findings; /* of each rule */
    bool warnings;
    uint64_t max_memory_bytes; /* NO_MEMORY beyond */
    /* Steps that the plan's loops make in a run, of all sizes together, where message_bytes is
     * NULL; longer messages beyond are not checked, as the report's limits say. An iteration takes
     * one for each operation in it, and one for each of their operands, channels and semaphores. A
     * million take some seconds. */
    uint64_t max_steps;
} banyan_check_options;

#define BANYAN_CHECK_OPTIONS_INIT                                                                  \
    BANYAN_INIT_WITH(banyan_check_options, BANYAN_MEMBER(max_findings, 100),                       \
                     BANYAN_MEMBER(warnings, true),                                                \
                     BANYAN_MEMBER(max_memory_bytes, UINT64_C(2) << 30),                           \
                     BANYAN_MEMBER(max_steps, UINT64_C(1) << 20))

typedef struct banyan_check_report banyan_check_report;

/* Check a plan. A report is made whatever it finds; its findings are stable, numbered from 0 and
 * sorted by rule, place and bytes. Errors: INVALID (options), UNSUPPORTED (the plan uses what the
 * checker does not model: it is refused, not passed), NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_plan_check(const banyan_plan *plan,
                                           const banyan_check_options *options,
                                           banyan_check_report **report);
/* NULL is ignored. */
BANYAN_API void banyan_check_report_destroy(banyan_check_report *report);

/* No finding but warnings. */
BANYAN_API bool banyan_check_report_is_sound(const banyan_check_report *report);
BANYAN_API size_t banyan_check_report_count(const banyan_check_report *report);
/* `index` below the count; lives as long as the report. */
BANYAN_API const banyan_finding *banyan_check_report_finding(const banyan_check_report *report,
                                                             size_t index);
/* What was decided exactly and what was not: a sentence, empty when all was. */
BANYAN_API const char *banyan_check_report_limits(const banyan_check_report *report);

/* The findings as text for people, a paragraph each, or as JSON (rule, level, message, places,
 * bytes). To be freed with free(). */
BANYAN_API banyan_status banyan_check_report_print(const banyan_check_report *report,
                                                   const char *plan_name, bool json, char **text);

#ifdef __cplusplus
}
#endif
#endif
