#include "check/executor.h"

#include <stdio.h>

#include "plan/executor/mscclpp.h"
#include "plan/op.h"

typedef struct executor_findings {
    const banyan_plan *plan;
    findings *found;
    uint32_t count;
} executor_findings;

static banyan_status executor_add_fault(void *context, const mscclpp_fault *fault)
{
    executor_findings *to = context;
    finding_draft draft = {.rule = BANYAN_CHECK_EXECUTOR,
                           .places = {{fault->rank < 0 ? 0 : fault->rank, fault->block, fault->op,
                                       fault->loop_op, 0, NULL, 0}},
                           .place_count = 1,
                           .number = fault->op < 0 ? ++to->count : 0};
    char place[128];
    int used = fault->rank < 0 ? snprintf(place, sizeof place, "the plan")
                               : snprintf(place, sizeof place, "rank %d", fault->rank);
    if (fault->block >= 0)
        used +=
            snprintf(place + used, sizeof place - (size_t)used, ", thread block %d", fault->block);
    if (fault->op >= 0) {
        const plan_op *op = &to->plan->ranks[fault->rank].blocks[fault->block].ops[fault->op];
        used += snprintf(place + used, sizeof place - (size_t)used, ", operation %d", fault->op);
        if (fault->loop_op >= 0)
            used += snprintf(place + used, sizeof place - (size_t)used, ".%d", fault->loop_op);
        snprintf(place + used, sizeof place - (size_t)used, " (%s)",
                 plan_op_name(fault->loop_op < 0 ? op->kind : op->ops[fault->loop_op].kind));
    }
    return findings_add(to->found, &draft, "%s %s", place, fault->message) ? BANYAN_OK
                                                                           : BANYAN_ERR_NO_MEMORY;
}

banyan_status executor_find_faults(const banyan_plan *plan, findings *found)
{
    executor_findings to = {.plan = plan, .found = found};
    return mscclpp_review(plan, executor_add_fault, &to);
}

void executor_describe_limits(const banyan_plan *plan, char *text, size_t bytes)
{
    static const char *const places[] = {
        [MSCCLPP_ANYWHERE] = "",
        [MSCCLPP_EQUAL_OFFSETS] = (" Input and output must begin at the same offset of their "
                                   "allocations on every rank."),
        [MSCCLPP_AT_BEGINNING] = " Input and output must begin where their allocations begin."};
    uint64_t longest = mscclpp_longest_message(plan), flushes = mscclpp_lost_flushes(plan);
    int used = snprintf(text, bytes, "%s", places[mscclpp_placement_of(plan)]);
    if (flushes > 0)
        used += snprintf(text + used, bytes - (size_t)used,
                         " The plan has %llu flushes, which do nothing there.",
                         (unsigned long long)flushes);
    if (longest > 0 && longest < plan->max_message_bytes)
        used += snprintf(text + used, bytes - (size_t)used,
                         " Messages of more than %llu bytes exceed the executor's 32-bit offsets.",
                         (unsigned long long)longest);
    if (plan->reuse_resources)
        used += snprintf(text + used, bytes - (size_t)used,
                         " All plans that reuse resources share one scratch, so such a plan "
                         "between two runs of this one must wait for all ranks.");
    if (plan->double_scratch)
        snprintf(text + used, bytes - (size_t)used,
                 " Halves of scratch alternate with every run of the process, so a plan between "
                 "two runs of this one must wait for all ranks.");
}
