#include "reshard/planner/tasks.h"

banyan_status plan_tasks_sent(const planner_result *transfers, pipeline_world_task **tasks,
                              size_t *count)
{
    size_t kept = 0;
    pipeline_world_task *made = calloc(transfers->send_count + 1, sizeof *made);
    if (!made)
        return error_no_memory(transfers->send_count * sizeof *made, "a rank's sends");
    for (size_t i = 0; i < transfers->send_count; i++) {
        const banyan_transfer *sent = &transfers->sends[i];
        uint64_t elem_bytes = banyan_dtype_bytes(sent->source_dtype);
        if (sent->destination_rank != sent->source_rank)
            made[kept++] = (pipeline_world_task){.peer = sent->destination_rank,
                                                 .id = sent->task_id,
                                                 .task = {sent->bytes / elem_bytes, elem_bytes}};
    }
    pipeline_world_sort(made, kept);
    *tasks = made;
    *count = kept;
    return BANYAN_OK;
}
