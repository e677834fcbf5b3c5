#include "reshard/check_slots.h"

#include "copy/pipeline_check.h"
#include "copy/pipeline_rounds.h"

/* In which rounds a rank's batches go out, and come in. */
typedef struct slots_runs {
    ARRAY(pipeline_run) sends, recvs;
} slots_runs;

/* A rank's flows, by partner. Those that come in share the batches of their senders. */
typedef struct slots_rank {
    pipeline_task *tasks;
    pipeline_flow *sends, *recvs;
    size_t send_count, recv_count;
    pipeline_steps steps;
} slots_rank;

typedef struct slots {
    const check_part *parts;
    int count;
    uint64_t slot_bytes;
    slots_rank *ranks;
    banyan_reshard_report *report;
} slots;

static int by_pair(const void *left, const void *right)
{
    const banyan_transfer *a = *(banyan_transfer *const *)left;
    const banyan_transfer *b = *(banyan_transfer *const *)right;
    if (a->destination_rank != b->destination_rank)
        return a->destination_rank < b->destination_rank ? -1 : 1;
    return (a->task_id > b->task_id) - (a->task_id < b->task_id);
}

/* The sends, sorted, become flows of packed batches. */
static banyan_status pack_sends(const slots *all, slots_rank *rank, banyan_transfer **sorted,
                                size_t count)
{
    qsort(sorted, count, sizeof *sorted, by_pair);
    for (size_t i = 0; i < count; i++) {
        int peer = sorted[i]->destination_rank;
        uint64_t elem_bytes = banyan_dtype_bytes(sorted[i]->source_dtype);
        rank->tasks[i] = (pipeline_task){sorted[i]->bytes / elem_bytes, elem_bytes};
        if (i == 0 || sorted[i - 1]->destination_rank != peer)
            rank->sends[rank->send_count++] =
                (pipeline_flow){.peer = peer, .tasks = &rank->tasks[i]};
        rank->sends[rank->send_count - 1].task_count++;
    }
    for (size_t i = 0; i < rank->send_count; i++) {
        pipeline_flow *flow = &rank->sends[i];
        RETURN_IF_FAILED(
            pipeline_batch_pack(flow->tasks, flow->task_count, all->slot_bytes, &flow->batches));
    }
    return BANYAN_OK;
}

static banyan_status make_sends(const slots *all, int r)
{
    slots_rank *rank = &all->ranks[r];
    const planner_result *of = all->parts[r].transfers;
    size_t count = of->send_count + 1;
    banyan_transfer **sorted = calloc(count, sizeof *sorted);
    rank->tasks = calloc(count, sizeof *rank->tasks);
    rank->sends = calloc(count, sizeof *rank->sends);
    banyan_status status = BANYAN_OK;
    if (!sorted || !rank->tasks || !rank->sends)
        status = error_no_memory(count * sizeof *rank->sends, "the check of a schedule");
    for (size_t i = 0; status == BANYAN_OK && i < of->send_count; i++)
        sorted[i] = &of->sends[i];
    if (status == BANYAN_OK)
        status = pack_sends(all, rank, sorted, of->send_count);
    free(sorted);
    return status;
}

/* Sender after sender, so that every receiver has them in ascending order. */
static banyan_status make_recvs(const slots *all)
{
    for (int pass = 0; pass < 2; pass++) {
        for (int r = 0; r < all->count; r++) {
            const slots_rank *sender = &all->ranks[r];
            for (size_t i = 0; i < sender->send_count; i++) {
                slots_rank *receiver = &all->ranks[sender->sends[i].peer];
                if (receiver->recvs) {
                    receiver->recvs[receiver->recv_count] = sender->sends[i];
                    receiver->recvs[receiver->recv_count].peer = r;
                }
                receiver->recv_count++;
            }
        }
        for (int r = 0; r < all->count && pass == 0; r++) {
            slots_rank *rank = &all->ranks[r];
            rank->recvs = calloc(rank->recv_count + 1, sizeof *rank->recvs);
            if (!rank->recvs)
                return error_no_memory(rank->recv_count * sizeof *rank->recvs,
                                       "the check of a schedule");
            rank->recv_count = 0;
        }
    }
    return BANYAN_OK;
}

static banyan_slot_batch batch_of(const pipeline_flow *flows, size_t flow, size_t batch)
{
    if (flow == PIPELINE_NO_FLOW)
        return (banyan_slot_batch){.peer = -1};
    return (banyan_slot_batch){.peer = flows[flow].peer,
                               .bytes = flows[flow].batches.list.data[batch].bytes};
}

static banyan_status make_steps(slots_rank *rank, const pipeline_rounds *rounds)
{
    banyan_iteration *iterations = calloc(rounds->count + 1, sizeof *iterations);
    if (!iterations)
        return error_no_memory(rounds->count * sizeof *iterations, "the check of a schedule");
    for (size_t i = 0; i < rounds->count; i++) {
        const pipeline_round *round = &rounds->data[i];
        iterations[i].send = batch_of(rank->sends, round->send_flow, round->send_batch);
        iterations[i].recv = batch_of(rank->recvs, round->recv_flow, round->recv_batch);
    }
    pipeline_steps_free(&rank->steps);
    rank->steps = (pipeline_steps){0};
    banyan_status status = pipeline_steps_of(iterations, rounds->count, &rank->steps);
    free(iterations);
    return status;
}

static banyan_status rotate(const slots *all, int r)
{
    slots_rank *rank = &all->ranks[r];
    pipeline_rounds rounds = {0};
    banyan_status status = pipeline_rounds_rotate(r, all->count, rank->sends, rank->send_count,
                                                  rank->recvs, rank->recv_count, &rounds);
    if (status == BANYAN_OK)
        status = make_steps(rank, &rounds);
    array_free(&rounds);
    return status;
}

static banyan_status rotate_all(const slots *all)
{
    banyan_status status = BANYAN_OK;
    for (int r = 0; r < all->count && status == BANYAN_OK; r++)
        status = rotate(all, r);
    return status;
}

/* ---- as few rounds as possible ---- */

static banyan_status colour_pairs_of(const slots *all, colouring *colours, slots_runs *runs)
{
    ARRAY(colour_pair) pairs = {0};
    banyan_status status = BANYAN_OK;
    for (int r = 0; r < all->count; r++) {
        const slots_rank *rank = &all->ranks[r];
        for (size_t i = 0; i < rank->send_count && status == BANYAN_OK; i++) {
            const pipeline_flow *flow = &rank->sends[i];
            if (!array_push(&pairs, (colour_pair){r, flow->peer, flow->batches.list.count}))
                status = BANYAN_ERR_NO_MEMORY;
        }
    }
    if (status == BANYAN_OK)
        status = colour_rounds(pairs.data, pairs.count, all->count, colours);
    for (size_t i = 0; status == BANYAN_OK && i < colours->runs.count; i++) {
        const colour_run *run = &colours->runs.data[i];
        const colour_pair *of = &pairs.data[run->pair];
        pipeline_run out = {of->dest, run->first_round, run->count};
        pipeline_run in = {of->source, run->first_round, run->count};
        if (!array_push(&runs[of->source].sends, out) || !array_push(&runs[of->dest].recvs, in))
            status = BANYAN_ERR_NO_MEMORY;
    }
    array_free(&pairs);
    return status;
}

static banyan_status follow(const slots *all, int r, const slots_runs *runs)
{
    slots_rank *rank = &all->ranks[r];
    pipeline_rounds rounds = {0};
    banyan_status status = pipeline_rounds_follow(
        r, rank->sends, rank->send_count, runs->sends.data, runs->sends.count, rank->recvs,
        rank->recv_count, runs->recvs.data, runs->recvs.count, &rounds);
    if (status == BANYAN_OK)
        status = make_steps(rank, &rounds);
    array_free(&rounds);
    return status;
}

static banyan_status colour_all(const slots *all)
{
    colouring colours = {0};
    slots_runs *runs = calloc((size_t)all->count, sizeof *runs);
    if (!runs)
        return error_no_memory((size_t)all->count * sizeof *runs, "the check of a schedule");
    banyan_status status = colour_pairs_of(all, &colours, runs);
    for (int r = 0; r < all->count && status == BANYAN_OK; r++)
        status = follow(all, r, &runs[r]);
    for (int r = 0; r < all->count; r++) {
        array_free(&runs[r].sends);
        array_free(&runs[r].recvs);
    }
    free(runs);
    colouring_free(&colours);
    return status;
}

/* ---- playing them ---- */

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

static banyan_status check_steps(const slots *all)
{
    pipeline_steps *steps = calloc((size_t)all->count, sizeof *steps);
    if (!steps)
        return error_no_memory((size_t)all->count * sizeof *steps, "the check of a schedule");
    for (int r = 0; r < all->count; r++)
        steps[r] = all->ranks[r].steps;
    banyan_status status =
        pipeline_steps_check(steps, all->count, all->slot_bytes, report_fault, all->report);
    free(steps);
    return status;
}

static void free_rank(slots_rank *rank)
{
    for (size_t i = 0; i < rank->send_count; i++)
        pipeline_flow_free(&rank->sends[i]);
    pipeline_steps_free(&rank->steps);
    free(rank->recvs);
    free(rank->sends);
    free(rank->tasks);
}

banyan_status check_slots(const check_part *parts, int count, uint64_t slot_bytes,
                          banyan_reshard_report *report)
{
    slots all = {parts, count, slot_bytes, calloc((size_t)count, sizeof *all.ranks), report};
    if (!all.ranks)
        return error_no_memory((size_t)count * sizeof *all.ranks, "the check of a schedule");
    banyan_status status = BANYAN_OK;
    for (int r = 0; r < count && status == BANYAN_OK; r++)
        status = make_sends(&all, r);
    if (status == BANYAN_OK)
        status = make_recvs(&all);
    size_t found = banyan_reshard_report_count(report);
    if (status == BANYAN_OK)
        status = rotate_all(&all);
    if (status == BANYAN_OK)
        status = check_steps(&all);
    bool sound = banyan_reshard_report_count(report) == found;
    if (status == BANYAN_OK && sound)
        status = colour_all(&all);
    if (status == BANYAN_OK && sound)
        status = check_steps(&all);
    for (int r = 0; r < count; r++)
        free_rank(&all.ranks[r]);
    free(all.ranks);
    return status;
}
