/* Plans are compiled and loaded when a call first needs them, and then kept. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "collective/comm.h"
#include "core/error.h"
#include "execute/load/loaded.h"
#include "plan/plan.h"
#include "world/control.h"

static bool all_reduce_with(const plan_op *ops, uint32_t count, banyan_reduce_op op)
{
    for (uint32_t i = 0; i < count; i++) {
        if (plan_op_reduces(ops[i].kind) && ops[i].reduce_op != op)
            return false;
        if (ops[i].kind == PLAN_PIPELINE && !all_reduce_with(ops[i].ops, ops[i].op_count, op))
            return false;
    }
    return true;
}

static bool plan_reduces_with(const banyan_plan *plan, banyan_reduce_op op)
{
    for (int rank = 0; rank < plan->rank_count; rank++) {
        const plan_rank *part = &plan->ranks[rank];
        for (uint32_t i = 0; i < part->block_count; i++) {
            if (!all_reduce_with(part->blocks[i].ops, part->blocks[i].op_count, op))
                return false;
        }
    }
    return true;
}

/* Return the longest message that a plan is meant for. The format counts all-gather's output. */
static uint64_t longest_message(const banyan_plan *plan)
{
    uint64_t ranks = plan->collective == BANYAN_ALLGATHER ? (uint64_t)plan->rank_count : 1;
    return plan->max_message_bytes / ranks;
}

static uint64_t shortest_message(const banyan_plan *plan)
{
    uint64_t ranks = plan->collective == BANYAN_ALLGATHER ? (uint64_t)plan->rank_count : 1;
    return plan->min_message_bytes / ranks + (plan->min_message_bytes % ranks != 0);
}

static bool plan_serves(const banyan_plan *plan, const call *wanted)
{
    bool same_root = (wanted->kind != BANYAN_BROADCAST && wanted->kind != BANYAN_REDUCE) ||
                     plan->root == wanted->root;
    bool same_shift = wanted->kind != BANYAN_SENDRECV || plan->shift == wanted->shift;
    return plan->collective == wanted->kind && plan->in_place == wanted->in_place && same_root &&
           same_shift && wanted->message_bytes >= shortest_message(plan) &&
           wanted->message_bytes <= longest_message(plan) && plan_reduces_with(plan, wanted->op);
}

static banyan_status choose_row(const banyan_comm *comm, const call *wanted, bool registered,
                                choice *chosen)
{
    tuning_row exact = {.kind = wanted->kind,
                        .on_gpu = !executor_is_host(comm->executor),
                        .ranks = comm->ranks,
                        .ranks_per_node = comm->ranks_per_node,
                        .dtype = wanted->dtype,
                        .registered = registered,
                        .up_to_bytes = wanted->message_bytes};
    const tuning_row *row = tuning_find(&comm->table, &exact);
    if (!row)
        return error_set(BANYAN_ERR_NOT_FOUND,
                         "no algorithm is listed for %s of %" PRIu64 " bytes between %d ranks",
                         banyan_collective_kind_name(wanted->kind), wanted->message_bytes,
                         comm->ranks);
    chosen->row = *row;
    return algorithm_find(row->algorithm, &chosen->entry);
}

banyan_status comm_choose(const banyan_comm *comm, const call *wanted, choice *chosen)
{
    for (size_t i = comm->added.count; i-- > 0;) {
        if (plan_serves(comm->added.data[i], wanted)) {
            *chosen = (choice){.added = comm->added.data[i]};
            return BANYAN_OK;
        }
    }
    *chosen = (choice){0};
    RETURN_IF_FAILED(choose_row(comm, wanted, wanted->input && wanted->output, chosen));
    if (wanted->in_place && chosen->entry->apart)
        RETURN_IF_FAILED(choose_row(comm, wanted, false, chosen));
    if (!wanted->in_place || !chosen->entry->in_place)
        return BANYAN_OK;
    snprintf(chosen->row.algorithm, sizeof chosen->row.algorithm, "%s", chosen->entry->in_place);
    return algorithm_find(chosen->row.algorithm, &chosen->entry);
}

static uint32_t most_blocks(const banyan_plan *plan)
{
    uint32_t most = 0;
    for (int r = 0; r < plan->rank_count; r++)
        most = plan->ranks[r].block_count > most ? plan->ranks[r].block_count : most;
    return most;
}

static banyan_status ready_compile(const banyan_comm *comm, const call *wanted,
                                   const tuning_row *row, banyan_plan **plan)
{
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    params.ranks = comm->ranks;
    params.ranks_per_node = comm->ranks_per_node;
    params.in_place = wanted->in_place;
    params.op = wanted->op;
    params.root = wanted->root;
    params.shift = wanted->shift;
    params.instances = row->instances;
    params.unit_bytes = row->unit_bytes;
    banyan_plan *made;
    RETURN_IF_FAILED(banyan_algorithm_compile(row->algorithm, &params, &made));
    uint32_t blocks = most_blocks(made);
    if (blocks > comm->blocks_most && params.instances > 1) {
        /* The table was measured on larger devices. */
        uint64_t fewer = (uint64_t)params.instances * comm->blocks_most / blocks;
        params.instances = fewer > 1 ? (int)fewer : 1;
        banyan_plan_destroy(made);
        RETURN_IF_FAILED(banyan_algorithm_compile(row->algorithm, &params, &made));
    }
    *plan = made;
    return BANYAN_OK;
}

banyan_status comm_load(banyan_comm *comm, const call *wanted, const choice *chosen,
                        banyan_loaded_plan **loaded)
{
    banyan_plan *compiled = NULL;
    banyan_status status = BANYAN_OK;
    if (!chosen->added)
        status = control_agree(comm->world, ready_compile(comm, wanted, &chosen->row, &compiled));
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = wanted->message_bytes;
    options.input = wanted->input;
    options.output = wanted->output;
    if (status == BANYAN_OK)
        status = banyan_loaded_plan_open(comm->executor, chosen->added ? chosen->added : compiled,
                                         &options, loaded);
    banyan_plan_destroy(compiled);
    return status;
}

static bool same_choice(const choice *a, const choice *b)
{
    return a->added == b->added && (a->added || (strcmp(a->row.algorithm, b->row.algorithm) == 0 &&
                                                 a->row.instances == b->row.instances &&
                                                 a->row.unit_bytes == b->row.unit_bytes));
}

static bool same_use(const call *a, const call *b)
{
    return a->kind == b->kind && a->op == b->op && a->root == b->root && a->shift == b->shift &&
           a->in_place == b->in_place && a->input == b->input && a->output == b->output;
}

static banyan_status ready_drop(banyan_comm *comm, size_t at)
{
    banyan_loaded_plan *loaded = comm->ready.data[at].loaded;
    comm->ready.data[at] = comm->ready.data[--comm->ready.count];
    memset(comm->latest, 0, sizeof comm->latest);
    return banyan_loaded_plan_close(loaded);
}

banyan_status comm_forget(banyan_comm *comm, const banyan_memory *memory)
{
    banyan_status status = BANYAN_OK;
    for (size_t i = comm->ready.count; i-- > 0;) {
        const call *use = &comm->ready.data[i].for_call;
        if (memory && use->input != memory && use->output != memory)
            continue;
        banyan_status dropped = ready_drop(comm, i);
        status = status == BANYAN_OK ? dropped : status;
    }
    return status;
}

bool comm_is_captured(const banyan_comm *comm)
{
    for (size_t i = 0; i < comm->ready.count; i++) {
        if (executor_plan_is_captured(comm->ready.data[i].loaded))
            return true;
    }
    return false;
}

/* Plans held by graphs stay; all ranks capture equal graphs. */
static bool find_oldest(const banyan_comm *comm, size_t *place)
{
    bool found = false;
    for (size_t i = 0; i < comm->ready.count; i++) {
        const ready *kept = &comm->ready.data[i];
        if (executor_plan_is_captured(kept->loaded) ||
            (found && kept->last_use >= comm->ready.data[*place].last_use))
            continue;
        *place = i;
        found = true;
    }
    return found;
}

/* Load for longer messages than this one, so that a program with growing messages does not reload
 * for each. Stop at sizes that another plan serves. */
static uint64_t capacity_for(const choice *chosen, uint64_t message_bytes)
{
    uint64_t bound = chosen->added ? longest_message(chosen->added) : chosen->row.up_to_bytes;
    uint64_t capacity = UINT64_C(64) << 10;
    while (capacity < message_bytes && capacity <= UINT64_MAX / 2)
        capacity *= 2;
    if (capacity < message_bytes)
        return message_bytes;
    return capacity < bound ? capacity : bound;
}

static bool same_call(const call *a, const call *b)
{
    return a->message_bytes == b->message_bytes && a->op == b->op && a->root == b->root &&
           a->shift == b->shift && a->in_place == b->in_place && a->input == b->input &&
           a->output == b->output && a->kind == b->kind && banyan_dtype_equal(a->dtype, b->dtype);
}

/* Find a kept plan for such calls: one that is large enough, or one that a larger plan replaces.
 * Plans held by graphs stay. */
static bool find_kept(const banyan_comm *comm, const call *wanted, const choice *chosen,
                      size_t *place)
{
    for (size_t i = 0; i < comm->ready.count; i++) {
        const ready *kept = &comm->ready.data[i];
        if (!same_use(&kept->for_call, wanted) || !same_choice(&kept->chosen, chosen))
            continue;
        if (kept->for_call.message_bytes < wanted->message_bytes &&
            executor_plan_is_captured(kept->loaded))
            continue;
        *place = i;
        return true;
    }
    return false;
}

static bool is_long_enough(const banyan_comm *comm, size_t place, const call *wanted)
{
    return comm->ready.data[place].for_call.message_bytes >= wanted->message_bytes;
}

static bool find_ready(const banyan_comm *comm, const call *wanted, size_t *place)
{
    choice chosen;
    return comm_choose(comm, wanted, &chosen) == BANYAN_OK &&
           find_kept(comm, wanted, &chosen, place) && is_long_enough(comm, *place, wanted);
}

static bool is_latest(const banyan_comm *comm, const call *wanted)
{
    return comm->latest[wanted->kind].ready > 0 &&
           same_call(&comm->latest[wanted->kind].last, wanted);
}

bool comm_is_ready(const banyan_comm *comm, const call *wanted)
{
    size_t place;
    return comm->ranks == 1 || is_latest(comm, wanted) || find_ready(comm, wanted, &place);
}

banyan_status comm_unprepare(banyan_comm *comm, const call *wanted)
{
    size_t place;
    return find_ready(comm, wanted, &place) ? ready_drop(comm, place) : BANYAN_OK;
}

/* All ranks make equal calls, and therefore equal decisions here. */
static banyan_status find_or_load(banyan_comm *comm, const call *wanted, size_t *place)
{
    choice chosen;
    RETURN_IF_FAILED(comm_choose(comm, wanted, &chosen));
    if (find_kept(comm, wanted, &chosen, place)) {
        if (is_long_enough(comm, *place, wanted))
            return BANYAN_OK;
        RETURN_IF_FAILED(control_enter(comm->world));
        RETURN_IF_FAILED(ready_drop(comm, *place));
    }
    RETURN_IF_FAILED(control_enter(comm->world));
    size_t oldest = 0;
    if (comm->ready.count >= COMM_READY_MAX && find_oldest(comm, &oldest))
        RETURN_IF_FAILED(ready_drop(comm, oldest));
    call at_most = *wanted;
    at_most.message_bytes = capacity_for(&chosen, wanted->message_bytes);
    banyan_status room = array_reserve(&comm->ready, 1) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    RETURN_IF_FAILED(control_agree(comm->world, room));
    banyan_loaded_plan *loaded;
    RETURN_IF_FAILED(comm_load(comm, &at_most, &chosen, &loaded));
    *place = comm->ready.count;
    comm->ready.data[comm->ready.count++] =
        (ready){.for_call = at_most, .chosen = chosen, .loaded = loaded};
    return BANYAN_OK;
}

/* A call equal to the latest of its kind needs one comparison. */
banyan_status comm_prepare(banyan_comm *comm, const call *wanted, banyan_loaded_plan **loaded)
{
    size_t place = comm->latest[wanted->kind].ready - 1;
    if (!is_latest(comm, wanted)) {
        RETURN_IF_FAILED(find_or_load(comm, wanted, &place));
        comm->latest[wanted->kind].last = *wanted;
        comm->latest[wanted->kind].ready = place + 1;
    }
    comm->ready.data[place].last_use = ++comm->uses;
    *loaded = comm->ready.data[place].loaded;
    return BANYAN_OK;
}
