#include "execute/load/agree.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "execute/load/fingerprint.h"
#include "world/control.h"

/* Values that must be equal on all ranks. */
struct load_record {
    uint64_t fingerprint, max_message_bytes;
    uint64_t memories[2]; /* number + 1 of a symmetric buffer; 0: none */
};

/* Describe the first different operation, or other difference. Called on the rank with the
 * different plan. */
static banyan_status describe_difference(const banyan_loaded_plan *loaded, const char *text,
                                         uint64_t bytes)
{
    banyan_plan *first;
    char *line;
    size_t differences;
    RETURN_IF_FAILED(banyan_plan_parse(text, bytes, "rank 0's plan", &first));
    banyan_status status = banyan_plan_diff(first, loaded->plan, 1, &line, &differences);
    banyan_plan_destroy(first);
    RETURN_IF_FAILED(status);
    line[strcspn(line, "\n")] = '\0';
    status = error_set(BANYAN_ERR_MISMATCH,
                       "rank %d loads another plan than rank 0: of %zu differences the first is %s",
                       loaded->executor->rank, differences, line);
    free(line);
    return status;
}

/* Rank 0 sends its plan to all ranks, since all know which other rank's plan differs. */
static banyan_status compare_plans(const banyan_loaded_plan *loaded, int other)
{
    const banyan_executor *executor = loaded->executor;
    char *text = NULL;
    size_t length = 0;
    banyan_status status = BANYAN_OK;
    if (executor->rank == 0)
        status = banyan_plan_print(loaded->plan, &text, &length);
    uint64_t bytes = length;
    status = control_agree(executor->world, status);
    if (status == BANYAN_OK)
        status = banyan_world_broadcast(executor->world, &bytes, sizeof bytes, 0);
    if (status == BANYAN_OK && executor->rank != 0 && !(text = malloc(bytes + 1)))
        status = error_no_memory(bytes + 1, "rank 0's plan");
    status = control_agree(executor->world, status);
    if (status == BANYAN_OK)
        status = banyan_world_broadcast(executor->world, text, bytes, 0);
    if (status == BANYAN_OK && executor->rank == other)
        status = describe_difference(loaded, text, bytes);
    free(text);
    return control_agree(executor->world, status);
}

static banyan_status compare_records(const banyan_loaded_plan *loaded,
                                     const struct load_record *all)
{
    for (int r = 1; r < loaded->executor->ranks; r++) {
        const struct load_record *first = &all[0], *other = &all[r];
        if (other->fingerprint != first->fingerprint)
            return compare_plans(loaded, r);
        if (other->max_message_bytes != first->max_message_bytes)
            return error_set(BANYAN_ERR_MISMATCH,
                             "rank %d loads the plan for messages of %" PRIu64
                             " bytes at most, rank 0 of %" PRIu64,
                             r, other->max_message_bytes, first->max_message_bytes);
        for (int i = 0; i < 2; i++) {
            if (other->memories[i] != first->memories[i])
                return error_set(BANYAN_ERR_MISMATCH,
                                 "rank %d and rank 0 load the plan with different %s memory", r,
                                 i == 0 ? "input" : "output");
        }
    }
    return BANYAN_OK;
}

banyan_status load_agree(banyan_loaded_plan *loaded)
{
    banyan_executor *executor = loaded->executor;
    struct load_record mine = {.fingerprint = plan_fingerprint(loaded->plan),
                               .max_message_bytes = loaded->max_message_bytes};
    for (int i = 0; i < 2; i++)
        mine.memories[i] = loaded->memories[i] ? loaded->memories[i]->id + 1 : 0;
    void *all;
    banyan_status status =
        control_gather(executor->world, BANYAN_OK, &mine, sizeof mine, "what ranks load", &all);
    if (status == BANYAN_OK)
        status = control_fail_together(executor->world, compare_records(loaded, all));
    free(all);
    return status;
}
