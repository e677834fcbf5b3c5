#include "reshard/verify/slots.h"

#include "copy/schedule/world.h"
#include "reshard/planner/tasks.h"

static banyan_status report_fault(void *context, pipeline_fault fault, int rank,
                                  const char *sentence)
{
    static const banyan_reshard_rule rules[] = {
        [PIPELINE_FAULT_SLOT] = BANYAN_RESHARD_SLOT,
        [PIPELINE_FAULT_STUCK] = BANYAN_RESHARD_STUCK,
        [PIPELINE_FAULT_BYTES] = BANYAN_RESHARD_MEMORY,
    };
    return check_report_add(context, rules[fault], rank, "%s", sentence);
}

static banyan_status add_sends(pipeline_world *world, const check_part *part)
{
    pipeline_world_task *tasks;
    size_t count;
    RETURN_IF_FAILED(plan_tasks_sent(part->transfers, &tasks, &count));
    banyan_status status = pipeline_world_send(world, part->rank, tasks, count);
    free(tasks);
    return status;
}

/* Check with the world's current rounds. */
static banyan_status check_steps(const pipeline_world *world, banyan_reshard_report *report)
{
    pipeline_steps *steps = calloc((size_t)world->ranks, sizeof *steps);
    if (!steps)
        return error_no_memory((size_t)world->ranks * sizeof *steps, "the check of a schedule");
    banyan_status status = BANYAN_OK;
    for (int r = 0; r < world->ranks && status == BANYAN_OK; r++)
        status = pipeline_world_steps(world, r, &steps[r]);
    if (status == BANYAN_OK)
        status = pipeline_steps_check(steps, world->ranks, world->slot_bytes, report_fault, report);
    for (int r = 0; r < world->ranks; r++)
        pipeline_steps_free(&steps[r]);
    free(steps);
    return status;
}

/* Check rounds by rotation and, if these are sound, as few rounds as possible. */
static banyan_status check_both(pipeline_world *world, banyan_reshard_report *report)
{
    size_t found = banyan_reshard_report_count(report);
    RETURN_IF_FAILED(check_steps(world, report));
    if (banyan_reshard_report_count(report) > found)
        return BANYAN_OK;
    RETURN_IF_FAILED(pipeline_world_colour(world));
    return check_steps(world, report);
}

banyan_status check_slots(const check_part *parts, int count, uint64_t slot_bytes,
                          banyan_reshard_report *report)
{
    pipeline_world world;
    RETURN_IF_FAILED(pipeline_world_create(count, slot_bytes, &world));
    banyan_status status = BANYAN_OK;
    for (int r = 0; r < count && status == BANYAN_OK; r++)
        status = add_sends(&world, &parts[r]);
    if (status == BANYAN_OK)
        status = pipeline_world_link(&world);
    if (status == BANYAN_OK)
        status = check_both(&world, report);
    pipeline_world_free(&world);
    return status;
}
