/* Banyan: prove that a plan is sound before it runs.
 *
 * A plan is sound if it cannot deadlock, has no race and computes the collective's result. This
 * must hold for any number of consecutive runs on the same buffers. banyan_plan_check examines one
 * message size of every class in which chunks, loops or thread-block groups behave differently. It
 * reports each finding with its ranks, thread blocks, operations and bytes.
 *
 * docs/check.md explains the report. docs/internals/memory-model.md defines the memory model, with
 * an example for each rule. docs/internals/proofs.md states for which plans the answer is exact.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_CHECK_H
#define BANYAN_CHECK_H

#include <banyan/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rule that a finding violates. A warning does not make a plan unsound. */
typedef enum banyan_check_rule {
    BANYAN_CHECK_DEADLOCK = 0,  /* operations wait in a cycle, or for a signal that never comes */
    BANYAN_CHECK_RACE,          /* unordered accesses to the same bytes, at least one a write */
    BANYAN_CHECK_RESULT,        /* an output element differs from the collective's definition */
    BANYAN_CHECK_UNINITIALISED, /* bytes are read that nobody has written */
    BANYAN_CHECK_INPUT_WRITTEN, /* an operation writes to an input, but the plan is not in place */
    BANYAN_CHECK_REUSE,         /* a race between two runs */
    BANYAN_CHECK_UNDECIDED,     /* too many orders of waits and acquires to examine; not proved */
    BANYAN_CHECK_EXECUTOR,      /* the executor cannot do this, or does something else */
    BANYAN_CHECK_IDLE_SYNC,     /* warning: synchronization that orders nothing */
    BANYAN_CHECK_UNREAD,        /* warning: bytes sent and never read */
    BANYAN_CHECK_UNUSED,        /* warning: scratch that no operation uses */
    BANYAN_CHECK_UNEVEN,        /* warning: one link carries at least twice as much as another */
    BANYAN_CHECK_RULES          /* the number of rules */
} banyan_check_rule;

/* Return the rule's name, for example "deadlock", or "unknown" for another value. The string is
 * static. Any thread. */
BANYAN_API const char *banyan_check_rule_name(banyan_check_rule rule);

/* True if the rule is a warning. Any thread. */
BANYAN_API bool banyan_check_rule_is_warning(banyan_check_rule rule);

/* An operation of a plan. `thread_block` and `operation` are -1 for an access by the rank's caller,
 * and for a finding about a whole rank. */
typedef struct banyan_check_place {
    int rank; /* that executes the operation */
    int thread_block;
    int operation;      /* index in the thread block */
    int loop_operation; /* index in the loop body if `operation` is a loop; otherwise -1 */
    int run;            /* 0: this run, 1: the next run, … */
    /* Source line of the builder call that asked for the operation (banyan_program_here). `file` is
     * NULL if the plan does not have it; it lives as long as the report. */
    const char *file;
    int line; /* in `file` */
} banyan_check_place;

/* Violation of a rule. */
typedef struct banyan_check_finding {
    banyan_check_rule rule; /* that is violated */
    /* One of the accesses is by a rank's caller, before a run or after the rank's part of it. The
     * finding does not occur if the callers synchronize all ranks between runs. */
    bool caller_only;
    /* Only a relaxed signal and wait, or packets, lie between the accesses. A full signal and wait
     * would order them. */
    bool relaxed_only;
    uint64_t message_bytes;           /* smallest examined size with this finding */
    const banyan_check_place *places; /* the operations involved, the first one first */
    size_t place_count;
    const char *message; /* explanation, with a remedy */
    /* Index of the first finding with the same rule and operations, perhaps on other ranks; its own
     * index if this is the first. */
    size_t like;
    /* Index of a finding without which this one would probably not be there; its own index if there
     * is none. */
    size_t cause;
} banyan_check_finding;

/* Options of banyan_plan_check. */
typedef struct banyan_check_options {
    size_t size;                   /* of this struct; BANYAN_CHECK_OPTIONS_INIT sets it */
    const uint64_t *message_bytes; /* examine these sizes; NULL: one size of every class */
    size_t message_count;          /* at least 1 if message_bytes is not NULL */
    size_t max_findings;           /* of each rule, at least 1 */
    bool warnings;                 /* look for warnings, too */
    uint64_t max_memory_bytes;     /* beyond this, the check fails with NO_MEMORY */
    /* If message_bytes is NULL: limit on the loop steps of one run, summed over all sizes. Longer
     * messages are skipped; the report's limits state how many. An iteration takes one step for
     * each operation in it, and one for each operand, channel and semaphore of these. A million
     * steps take some seconds. */
    uint64_t max_steps;
    /* Executor by whose rules the plan is checked (plan.h). MSCCL++'s runs only messages whose
     * chunks are all whole, so only such sizes are examined. */
    banyan_plan_executor executor;
} banyan_check_options;

#define BANYAN_CHECK_OPTIONS_INIT                                                                  \
    BANYAN_INIT_WITH(banyan_check_options, BANYAN_MEMBER(max_findings, 100),                       \
                     BANYAN_MEMBER(warnings, true),                                                \
                     BANYAN_MEMBER(max_memory_bytes, UINT64_C(2) << 30),                           \
                     BANYAN_MEMBER(max_steps, UINT64_C(1) << 20))

/* Findings of a check. */
typedef struct banyan_check_report banyan_check_report;

/* Check a plan. `options` NULL means the defaults. BANYAN_OK means that the check is complete, with
 * or without findings: ask banyan_check_report_is_sound. The findings have numbers from 0, in the
 * order of rule, place and bytes; a repeated check gives the same ones. The caller owns the report;
 * it does not refer to the plan. Any thread. Errors:
 * - INVALID: an option is out of range, or the plan cannot run at a size.
 * - UNSUPPORTED: the plan exceeds the checker. It has more than 4,194,304 chunks in a buffer, too
 *   many thread blocks, or more loop steps at every size than max_steps.
 * - NO_MEMORY. */
BANYAN_API banyan_status banyan_plan_check(const banyan_plan *plan,
                                           const banyan_check_options *options,
                                           banyan_check_report **report);

/* Free a report. NULL is ignored. */
BANYAN_API void banyan_check_report_destroy(banyan_check_report *report);

/* True if the report has no finding, or only warnings. Any thread. */
BANYAN_API bool banyan_check_report_is_sound(const banyan_check_report *report);

/* Return the number of findings, including warnings. Any thread. */
BANYAN_API size_t banyan_check_report_count(const banyan_check_report *report);

/* Return the finding with this index, or NULL if the index is not below the count. The finding
 * lives as long as the report. Any thread. */
BANYAN_API const banyan_check_finding *
banyan_check_report_finding(const banyan_check_report *report, size_t index);

/* Return a text that states what the check did not decide, or "" if it decided everything. The
 * string lives as long as the report. Any thread. */
BANYAN_API const char *banyan_check_report_limits(const banyan_check_report *report);

/* Set `*text` to the findings: for people, or as JSON (docs/check.md describes the keys). The text
 * has a paragraph for each finding, with those like it on other ranks and its consequences, and
 * calls the plan `plan_name`. Free it with free(). Errors: NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_check_report_print(const banyan_check_report *report,
                                                   const char *plan_name, bool json, char **text);

#ifdef __cplusplus
}
#endif
#endif
