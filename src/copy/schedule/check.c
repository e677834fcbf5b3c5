#include "copy/schedule/check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define SLOTS BANYAN_PIPELINE_SLOTS

static bool schedule_check_push(pipeline_step_list *list, pipeline_step_kind kind,
                                const banyan_slot_batch *batch, uint64_t number)
{
    pipeline_step step = {kind, batch->peer, (int)(number % SLOTS),
                          kind == PIPELINE_GRANT ? 0 : batch->bytes};
    return array_push(list, step);
}

static const banyan_slot_batch *schedule_check_batch_of(const banyan_iteration *iteration,
                                                        bool is_send)
{
    return is_send ? &iteration->send : &iteration->recv;
}

/* List one direction: `ahead` (grant, pack) runs up to two batches before `behind` (unpack, send).
 */
static banyan_status list_steps(const banyan_iteration *iterations, size_t count, bool is_send,
                                pipeline_step_list *list)
{
    pipeline_step_kind ahead = is_send ? PIPELINE_PACK : PIPELINE_GRANT;
    pipeline_step_kind behind = is_send ? PIPELINE_SEND : PIPELINE_UNPACK;
    uint64_t begun = 0, done = 0;
    size_t next = 0;
    for (size_t i = 0; i < count; i++) {
        const banyan_slot_batch *batch = schedule_check_batch_of(&iterations[i], is_send);
        if (batch->peer < 0)
            continue;
        for (; next < count && begun < done + SLOTS; next++) {
            const banyan_slot_batch *coming = schedule_check_batch_of(&iterations[next], is_send);
            if (coming->peer >= 0 && !schedule_check_push(list, ahead, coming, begun++))
                return BANYAN_ERR_NO_MEMORY;
        }
        RETURN_IF_NO_MEMORY(schedule_check_push(list, behind, batch, done++));
    }
    return BANYAN_OK;
}

banyan_status pipeline_steps_of(const banyan_iteration *iterations, size_t count,
                                pipeline_steps *steps)
{
    RETURN_IF_FAILED(list_steps(iterations, count, true, &steps->sending));
    return list_steps(iterations, count, false, &steps->receiving);
}

void pipeline_steps_free(pipeline_steps *steps)
{
    array_free(&steps->sending);
    array_free(&steps->receiving);
}

typedef struct check_arrival {
    int slot;
    uint64_t bytes;
} check_arrival;

/* Messages between two ranks, and how many of them were taken. */
typedef struct check_pair {
    int sender, receiver;
    ARRAY(int) grants;
    ARRAY(check_arrival) arrivals;
    size_t grants_taken, arrivals_taken;
} check_pair;

typedef struct schedule_rank {
    size_t sent, received; /* steps that are done */
    int send_slot[SLOTS];  /* peer that it is packed for; -1: empty */
    int recv_slot[SLOTS];  /* peer that it is granted to; -1: empty */
    bool waits_in_line;
} schedule_rank;

typedef struct check_run {
    const pipeline_steps *steps;
    int ranks;
    uint64_t slot_bytes;
    pipeline_fault_fn report;
    void *context;
    schedule_rank *states;
    ARRAY(check_pair) pairs; /* sorted */
    int *line;               /* ring of ranks that may be able to continue */
    int line_first, line_count;
} check_run;

static banyan_status schedule_check_report(const check_run *run, pipeline_fault fault, int rank,
                                           const char *format, ...)
    __attribute__((format(printf, 4, 5), cold));

static banyan_status schedule_check_report(const check_run *run, pipeline_fault fault, int rank,
                                           const char *format, ...)
{
    char message[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return run->report(run->context, fault, rank, message);
}

static int schedule_check_by_ranks(const void *left, const void *right)
{
    const check_pair *a = left, *b = right;
    RETURN_IF_UNEQUAL(a->sender, b->sender);
    return COMPARE(a->receiver, b->receiver);
}

/* Return the pair; it exists since every rank of a step has the other as a partner. */
static check_pair *pair_of(const check_run *run, int sender, int receiver)
{
    const check_pair key = {.sender = sender, .receiver = receiver};
    return bsearch(&key, run->pairs.data, run->pairs.count, sizeof key, schedule_check_by_ranks);
}

static void stand_in_line(check_run *run, int rank)
{
    if (run->states[rank].waits_in_line)
        return;
    run->states[rank].waits_in_line = true;
    run->line[(run->line_first + run->line_count++) % run->ranks] = rank;
}

static banyan_status take_slot(const check_run *run, int rank, int *slots,
                               const pipeline_step *step)
{
    const char *kind = step->kind == PIPELINE_PACK ? "packs into send slot" : "grants receive slot";
    const char *until = step->kind == PIPELINE_PACK ? "sent" : "unpacked";
    int held = slots[step->slot];
    slots[step->slot] = step->peer;
    if (held < 0)
        return BANYAN_OK;
    return schedule_check_report(
        run, PIPELINE_FAULT_SLOT, rank,
        "it %s %d again, for rank %d, before the batch with rank %d in it is %s", kind, step->slot,
        step->peer, held, until);
}

static banyan_status play_pack(check_run *run, int rank, const pipeline_step *step)
{
    RETURN_IF_FAILED(take_slot(run, rank, run->states[rank].send_slot, step));
    if (step->bytes <= run->slot_bytes)
        return BANYAN_OK;
    return schedule_check_report(run, PIPELINE_FAULT_BYTES, rank,
                                 "its batch for rank %d has %" PRIu64 " bytes, a slot has %" PRIu64,
                                 step->peer, step->bytes, run->slot_bytes);
}

static banyan_status play_send(check_run *run, int rank, const pipeline_step *step, bool *moved)
{
    check_pair *pair = pair_of(run, rank, step->peer);
    *moved = pair->grants_taken < pair->grants.count;
    if (!*moved)
        return BANYAN_OK;
    run->states[rank].send_slot[step->slot] = -1;
    check_arrival arrival = {pair->grants.data[pair->grants_taken++], step->bytes};
    stand_in_line(run, step->peer);
    return array_push(&pair->arrivals, arrival) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static banyan_status play_grant(check_run *run, int rank, const pipeline_step *step)
{
    check_pair *pair = pair_of(run, step->peer, rank);
    RETURN_IF_FAILED(take_slot(run, rank, run->states[rank].recv_slot, step));
    stand_in_line(run, step->peer);
    return array_push(&pair->grants, step->slot) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static banyan_status play_unpack(check_run *run, int rank, const pipeline_step *step, bool *moved)
{
    check_pair *pair = pair_of(run, step->peer, rank);
    *moved = pair->arrivals_taken < pair->arrivals.count;
    if (!*moved)
        return BANYAN_OK;
    const check_arrival *arrival = &pair->arrivals.data[pair->arrivals_taken++];
    run->states[rank].recv_slot[step->slot] = -1;
    if (arrival->slot != step->slot)
        return schedule_check_report(run, PIPELINE_FAULT_SLOT, rank,
                                     "it unpacks slot %d, but the batch of rank %d is in slot %d",
                                     step->slot, step->peer, arrival->slot);
    if (arrival->bytes != step->bytes)
        return schedule_check_report(run, PIPELINE_FAULT_BYTES, rank,
                                     "it unpacks %" PRIu64
                                     " bytes of rank %d, which sends %" PRIu64,
                                     step->bytes, step->peer, arrival->bytes);
    return BANYAN_OK;
}

static banyan_status play_step(check_run *run, int rank, const pipeline_step *step, bool *moved)
{
    *moved = true;
    switch (step->kind) {
    case PIPELINE_GRANT:
        return play_grant(run, rank, step);
    case PIPELINE_UNPACK:
        return play_unpack(run, rank, step, moved);
    case PIPELINE_PACK:
        return play_pack(run, rank, step);
    case PIPELINE_SEND:
        return play_send(run, rank, step, moved);
    }
    return BANYAN_OK;
}

/* Execute the steps of a list as far as possible. */
static banyan_status play_list(check_run *run, int rank, const pipeline_step_list *list,
                               size_t *done)
{
    bool moved = true;
    while (*done < list->count && moved) {
        RETURN_IF_FAILED(play_step(run, rank, &list->data[*done], &moved));
        *done += moved;
    }
    return BANYAN_OK;
}

static banyan_status play_all(check_run *run)
{
    for (int r = 0; r < run->ranks; r++)
        stand_in_line(run, r);
    while (run->line_count > 0) {
        int rank = run->line[run->line_first];
        schedule_rank *state = &run->states[rank];
        run->line_first = (run->line_first + 1) % run->ranks;
        run->line_count--;
        state->waits_in_line = false;
        RETURN_IF_FAILED(play_list(run, rank, &run->steps[rank].receiving, &state->received));
        RETURN_IF_FAILED(play_list(run, rank, &run->steps[rank].sending, &state->sent));
    }
    return BANYAN_OK;
}

static banyan_status add_pairs(check_run *run, int rank, const pipeline_step_list *list,
                               bool is_send)
{
    for (size_t i = 0; i < list->count; i++) {
        int peer = list->data[i].peer;
        if (peer < 0 || peer >= run->ranks || list->data[i].slot < 0 || list->data[i].slot >= SLOTS)
            return error_set(BANYAN_ERR_INVALID,
                             "pipeline: rank %d of %d has a step with rank %d in slot %d", rank,
                             run->ranks, peer, list->data[i].slot);
        if (i > 0 && list->data[i - 1].peer == peer)
            continue;
        check_pair pair = {.sender = is_send ? rank : peer, .receiver = is_send ? peer : rank};
        RETURN_IF_NO_MEMORY(array_push(&run->pairs, pair));
    }
    return BANYAN_OK;
}

static banyan_status list_pairs(check_run *run)
{
    for (int r = 0; r < run->ranks; r++) {
        RETURN_IF_FAILED(add_pairs(run, r, &run->steps[r].sending, true));
        RETURN_IF_FAILED(add_pairs(run, r, &run->steps[r].receiving, false));
    }
    if (run->pairs.count == 0)
        return BANYAN_OK;
    qsort(run->pairs.data, run->pairs.count, sizeof *run->pairs.data, schedule_check_by_ranks);
    size_t kept = 1;
    for (size_t i = 1; i < run->pairs.count; i++)
        if (schedule_check_by_ranks(&run->pairs.data[kept - 1], &run->pairs.data[i]) != 0)
            run->pairs.data[kept++] = run->pairs.data[i];
    run->pairs.count = kept;
    return BANYAN_OK;
}

static banyan_status report_stuck(const check_run *run)
{
    for (int r = 0; r < run->ranks; r++) {
        const schedule_rank *state = &run->states[r];
        const pipeline_step_list *sending = &run->steps[r].sending;
        const pipeline_step_list *receiving = &run->steps[r].receiving;
        if (state->sent < sending->count)
            RETURN_IF_FAILED(schedule_check_report(
                run, PIPELINE_FAULT_STUCK, r, "it waits for a slot of rank %d, which does not come",
                sending->data[state->sent].peer));
        if (state->received < receiving->count)
            RETURN_IF_FAILED(
                schedule_check_report(run, PIPELINE_FAULT_STUCK, r,
                                      "it waits for a batch of rank %d, which does not come",
                                      receiving->data[state->received].peer));
    }
    return BANYAN_OK;
}

static banyan_status report_left(const check_run *run)
{
    for (size_t i = 0; i < run->pairs.count; i++) {
        const check_pair *pair = &run->pairs.data[i];
        if (pair->arrivals_taken < pair->arrivals.count)
            RETURN_IF_FAILED(schedule_check_report(run, PIPELINE_FAULT_STUCK, pair->receiver,
                                                   "it does not unpack all of what rank %d sends",
                                                   pair->sender));
        if (pair->grants_taken < pair->grants.count)
            RETURN_IF_FAILED(schedule_check_report(
                run, PIPELINE_FAULT_STUCK, pair->receiver,
                "it grants a slot to rank %d, which sends nothing into it", pair->sender));
    }
    return BANYAN_OK;
}

banyan_status pipeline_steps_check(const pipeline_steps *steps, int ranks, uint64_t slot_bytes,
                                   pipeline_fault_fn report_fault, void *context)
{
    check_run run = {.steps = steps,
                     .ranks = ranks,
                     .slot_bytes = slot_bytes,
                     .report = report_fault,
                     .context = context};
    run.states = calloc((size_t)ranks + 1, sizeof *run.states);
    run.line = calloc((size_t)ranks + 1, sizeof *run.line);
    banyan_status status = run.states && run.line
                               ? list_pairs(&run)
                               : error_no_memory((size_t)ranks * sizeof *run.states, "a check");
    if (status == BANYAN_OK) {
        for (int r = 0; r < ranks; r++)
            for (int s = 0; s < SLOTS; s++)
                run.states[r].send_slot[s] = run.states[r].recv_slot[s] = -1;
        status = play_all(&run);
    }
    if (status == BANYAN_OK)
        status = report_stuck(&run);
    if (status == BANYAN_OK)
        status = report_left(&run);
    for (size_t i = 0; i < run.pairs.count; i++) {
        array_free(&run.pairs.data[i].grants);
        array_free(&run.pairs.data[i].arrivals);
    }
    array_free(&run.pairs);
    free(run.line);
    free(run.states);
    return status;
}
