#include <stdlib.h>
#include <string.h>

#include "reshard/planner/once.h"
#include "reshard/run/execute.h"
#include "reshard/verify/run.h"
#include "world/control.h"

/* Positions are below this. */
#define LINE_END UINT64_MAX

/* Ranks that pass nothing on take part in as many waves as the others. */
banyan_status execution_count_turns(execution *run)
{
    const banyan_reshard_plan *plan = run->plan;
    run->turns = 0;
    return banyan_world_node_count(run->world) > 1
               ? control_max(run->world, planner_turns_wanted(&plan->transfers, plan->rank),
                             &run->turns)
               : BANYAN_OK;
}

/* Return the length of the line on which positions of one turn lie. */
static uint64_t turn_length(const execution *run)
{
    return run->turns > 0 ? LINE_END / (run->turns + 1) : LINE_END;
}

uint64_t execution_position(const execution *run, const banyan_transfer *transfer, uint64_t hash)
{
    uint64_t length = turn_length(run);
    if (run->turns == 0)
        return hash >> 1;
    return planner_wave_of(transfer->stage, transfer->turn, run->turns) * length + hash % length;
}

/* This rank's data at a position, and the staging memory that it needs. */
typedef struct execution_need {
    uint64_t position, bytes;
} execution_need;

/* The first positions of all waves except the first. */
typedef ARRAY(uint64_t) execution_boundaries;

/* Return how far from `first` on this rank can go: the first position that no longer fits, at most
 * `limit`. Needs at one position stay together; if a hash collision made positions equal, that
 * costs a little more. */
static uint64_t reach_from(const execution_need *needs, size_t count, size_t first, uint64_t bound,
                           uint64_t limit)
{
    uint64_t total = 0;
    for (size_t i = first; i < count && needs[i].position < limit; i++) {
        bool fits = total <= bound && needs[i].bytes <= bound - total;
        if (!fits && needs[i].position != needs[first].position)
            return needs[i].position;
        total += needs[i].bytes;
    }
    return limit;
}

/* Return where the turn ends that a position lies in. */
static uint64_t turn_end(const execution *run, uint64_t position)
{
    uint64_t turn = position / turn_length(run);
    return turn < run->turns ? (turn + 1) * turn_length(run) : LINE_END;
}

/* End each wave with its turn, or where the first rank is full, so that no rank exceeds the bound:
 * one small collective per wave, once. Each single need is within the bound. */
static banyan_status cut_waves(const execution *run, const execution_need *needs, size_t count,
                               uint64_t bound_bytes, execution_boundaries *boundaries)
{
    size_t at = 0;
    uint64_t boundary = 0;
    banyan_status mine = BANYAN_OK;
    for (;;) {
        uint64_t reach = reach_from(needs, count, at, bound_bytes, turn_end(run, boundary)),
                 inverse;
        RETURN_IF_FAILED(control_max(run->world, ~reach, &inverse));
        boundary = ~inverse;
        if (boundary == LINE_END)
            return control_agree(run->world, mine);
        if (!array_push(boundaries, boundary))
            mine = BANYAN_ERR_NO_MEMORY;
        while (at < count && needs[at].position < boundary)
            at++;
    }
}

/* Without a bound, a wave is a turn. */
static banyan_status cut_turns(const execution *run, execution_boundaries *boundaries)
{
    uint64_t boundary = turn_end(run, 0);
    for (; boundary != LINE_END; boundary = turn_end(run, boundary))
        RETURN_IF_NO_MEMORY(array_push(boundaries, boundary));
    return BANYAN_OK;
}

static int compare_needs(const void *left, const void *right)
{
    const execution_need *a = left, *b = right;
    return COMPARE(a->position, b->position);
}

static size_t wave_of(const execution_boundaries *boundaries, uint64_t position)
{
    return BISECT(i, 0, boundaries->count, boundaries->data[i] <= position);
}

static int waves_compare_ends(const void *left, const void *right)
{
    const execution_end *a = *(execution_end *const *)left, *b = *(execution_end *const *)right;
    RETURN_IF_UNEQUAL(a->wave, b->wave);
    if (a->is_send != b->is_send)
        return a->is_send ? -1 : 1;
    RETURN_IF_UNEQUAL(a->peer, b->peer);
    RETURN_IF_UNEQUAL(a->transfer->task_id, b->transfer->task_id);
    return COMPARE(a->block, b->block);
}

static banyan_status order_ends(const execution_end *ends, size_t count, size_t step,
                                execution_end ***order)
{
    execution_end **made = alloc_zeroed(count / step + 1, sizeof *made, "a run's order");
    RETURN_IF_NO_MEMORY(made);
    for (size_t i = 0; i < count / step; i++)
        made[i] = (execution_end *)&ends[i * step];
    qsort(made, count / step, sizeof *made, waves_compare_ends);
    *order = made;
    return BANYAN_OK;
}

/* Assign ends and local moves to the waves, in order. */
static banyan_status deal_waves(execution *run, const execution_boundaries *boundaries)
{
    size_t waves = boundaries->count + 1;
    RETURN_IF_NO_MEMORY(array_reserve(&run->waves, waves));
    memset(run->waves.data, 0, waves * sizeof run->waves.data[0]);
    run->waves.count = waves;
    for (size_t i = 0; i < run->ends.count; i++)
        run->ends.data[i].wave = wave_of(boundaries, run->ends.data[i].position);
    for (size_t i = 0; i < run->locals.count; i++)
        run->locals.data[i].wave = wave_of(boundaries, run->locals.data[i].position);
    RETURN_IF_FAILED(order_ends(run->ends.data, run->ends.count, 1, &run->end_order));
    RETURN_IF_FAILED(order_ends(run->locals.data, run->locals.count, 2, &run->local_order));
    size_t end = 0, local = 0;
    for (size_t w = 0; w < waves; w++) {
        execution_wave *wave = &run->waves.data[w];
        wave->ends = run->end_order + end;
        while (end < run->ends.count && run->end_order[end]->wave == w)
            wave->end_count++, end++;
        wave->locals = run->local_order + local;
        while (local < run->locals.count / 2 && run->local_order[local]->wave == w)
            wave->local_count++, local++;
    }
    return BANYAN_OK;
}

static banyan_status list_needs(const execution *run, execution_need **needs, size_t *count)
{
    size_t most = run->ends.count + run->locals.count;
    execution_need *listed = alloc_zeroed(most + 1, sizeof *listed, "a run's waves");
    RETURN_IF_NO_MEMORY(listed);
    for (size_t i = 0; i < run->ends.count; i++)
        listed[i] = (execution_need){run->ends.data[i].position, run->ends.data[i].need_bytes};
    for (size_t i = 0; i < run->locals.count; i++)
        listed[run->ends.count + i] =
            (execution_need){run->locals.data[i].position, run->locals.data[i].need_bytes};
    qsort(listed, most, sizeof *listed, compare_needs);
    *needs = listed;
    *count = most;
    return BANYAN_OK;
}

static banyan_status cut_and_deal(execution *run)
{
    execution_need *needs = NULL;
    size_t count = 0;
    execution_boundaries boundaries = {0};
    uint64_t bound = run->plan->max_staging_bytes;
    banyan_status mine = bound > 0 ? list_needs(run, &needs, &count) : cut_turns(run, &boundaries);
    banyan_status status = control_agree(run->world, mine);
    if (status == BANYAN_OK && bound > 0)
        status = cut_waves(run, needs, count, bound - execution_set_aside(run), &boundaries);
    if (status == BANYAN_OK) {
        mine = deal_waves(run, &boundaries);
        status = control_agree(run->world, mine == BANYAN_OK ? check_run_staging(run) : mine);
    }
    free(needs);
    array_free(&boundaries);
    return status;
}

uint64_t execution_largest_wave(const execution *run)
{
    uint64_t largest = 0;
    for (size_t w = 0; w < run->waves.count; w++) {
        const execution_wave *wave = &run->waves.data[w];
        uint64_t total = execution_sums_rounding(run);
        for (size_t i = 0; i < wave->end_count; i++)
            total += wave->ends[i]->need_bytes;
        for (size_t i = 0; i < wave->local_count; i++)
            total += wave->locals[i][0].need_bytes + wave->locals[i][1].need_bytes;
        largest = total > largest ? total : largest;
    }
    return largest;
}

uint64_t execution_sums_rounding(const execution *run)
{
    return run->plan->checksums ? run_memory_rounded(1) : 0;
}

uint64_t execution_set_aside(const execution *run)
{
    return run->kept_bytes + execution_sums_rounding(run);
}

banyan_status execution_plan_waves(execution *run)
{
    RETURN_IF_FAILED(cut_and_deal(run));
    uint64_t mine = execution_largest_wave(run), most;
    RETURN_IF_FAILED(control_max(run->world, mine, &most));
    return most > 0 ? run_memory_alloc(run->world, (size_t)mine, &run->arena) : BANYAN_OK;
}
