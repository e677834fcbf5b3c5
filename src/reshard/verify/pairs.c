/* Check that the plans of all ranks fit together. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "copy/schedule/world.h"
#include "reshard/layout/box.h"
#include "reshard/planner/once.h"
#include "reshard/planner/sample.h"
#include "reshard/verify/check.h"

/* A transfer as recorded by one of its ends. */
typedef struct pair_end {
    const banyan_transfer *transfer;
    bool is_send;
} pair_end;

static int by_task(const void *left, const void *right)
{
    const pair_end *a = left, *b = right;
    const banyan_transfer *x = a->transfer, *y = b->transfer;
    RETURN_IF_UNEQUAL(x->source_rank, y->source_rank);
    RETURN_IF_UNEQUAL(x->destination_rank, y->destination_rank);
    RETURN_IF_UNEQUAL(x->task_id, y->task_id);
    return COMPARE(b->is_send, a->is_send);
}

static bool same_task(const pair_end *a, const pair_end *b)
{
    return a->transfer->source_rank == b->transfer->source_rank &&
           a->transfer->destination_rank == b->transfer->destination_rank &&
           a->transfer->task_id == b->transfer->task_id;
}

static bool same_bytes(const banyan_transfer *a, const banyan_transfer *b)
{
    return a->bytes == b->bytes && a->stage == b->stage && a->turn == b->turn &&
           banyan_box_equal(&a->box, &b->box) && strcmp(a->name, b->name) == 0 &&
           banyan_dtype_equal(a->source_dtype, b->source_dtype);
}

static const banyan_piece *verify_pairs_piece_of(const banyan_layout *layout, size_t i)
{
    return i < banyan_layout_piece_count(layout) ? banyan_layout_piece(layout, i) : NULL;
}

/* True if the sending rank holds the box, in any piece. */
static bool is_held(const check_rank *all, const banyan_transfer *recv)
{
    const banyan_layout *source = all[recv->source_rank].source;
    const banyan_piece *to =
        verify_pairs_piece_of(all[recv->destination_rank].destination, recv->destination_piece);
    banyan_box both;
    for (size_t i = 0; to && i < banyan_layout_piece_count(source); i++) {
        const banyan_piece *from = banyan_layout_piece(source, i);
        if (check_names_fit(from, to) && banyan_box_intersect(&from->box, &recv->box, &both) &&
            banyan_box_equal(&both, &recv->box))
            return true;
    }
    return false;
}

static bool names_fit(const check_rank *all, const banyan_transfer *send,
                      const banyan_transfer *recv)
{
    const banyan_piece *from = verify_pairs_piece_of(
        send->stage == 0 ? all[send->source_rank].source : all[send->source_rank].destination,
        send->source_piece);
    const banyan_piece *to =
        verify_pairs_piece_of(all[recv->destination_rank].destination, recv->destination_piece);
    return from && to && check_names_fit(from, to);
}

/* Check all ends with equal ranks and id: one send and one receive with equal contents are right.
 */
static banyan_status check_task(const check_rank *all, const pair_end *ends, size_t count,
                                banyan_reshard_report *report)
{
    if (count == 2 && ends[0].is_send && !ends[1].is_send &&
        same_bytes(ends[0].transfer, ends[1].transfer) &&
        names_fit(all, ends[0].transfer, ends[1].transfer))
        return BANYAN_OK;
    size_t sends = 0;
    for (size_t i = 0; i < count; i++)
        sends += ends[i].is_send;
    const pair_end *last = &ends[count - 1];
    const banyan_transfer *one = last->transfer;
    char text[BOX_TEXT_BYTES];
    banyan_box_format(&one->box, text, sizeof text);
    if (!last->is_send && one->stage == 0 && !is_held(all, one))
        RETURN_IF_FAILED(check_report_add(report, BANYAN_RESHARD_SOURCE, one->destination_rank,
                                          "it is to receive %s of \"%s\" from rank %d, which does "
                                          "not hold it",
                                          text, one->name, one->source_rank));
    return check_report_add(
        report, BANYAN_RESHARD_UNPAIRED, last->is_send ? one->source_rank : one->destination_rank,
        "task %016llx, %s of \"%s\", has %zu sends at rank %d and %zu receives "
        "at rank %d%s",
        (unsigned long long)one->task_id, text, one->name, sends, one->source_rank, count - sends,
        one->destination_rank,
        count == 2 && sends == 1 ? ", of different tensors, boxes or bytes" : "");
}

/* Add the transfers of one rank whose other end is another rank. */
static banyan_status verify_pairs_add_ends(const check_rank *checked, int ranks,
                                           const banyan_transfer *transfers, size_t count,
                                           bool is_send, pair_end *ends, size_t *end_count,
                                           banyan_reshard_report *report)
{
    for (size_t i = 0; i < count; i++) {
        const banyan_transfer *one = &transfers[i];
        int mine = is_send ? one->source_rank : one->destination_rank;
        int other = is_send ? one->destination_rank : one->source_rank;
        if (mine != checked->rank || other < 0 || other >= ranks)
            RETURN_IF_FAILED(check_report_add(report, BANYAN_RESHARD_UNPAIRED, checked->rank,
                                              "it has a %s of \"%s\" from rank %d to rank %d of %d",
                                              is_send ? "send" : "receive", one->name,
                                              one->source_rank, one->destination_rank, ranks));
        else if (other != mine)
            ends[(*end_count)++] = (pair_end){one, is_send};
    }
    return BANYAN_OK;
}

static banyan_status check_ends(const check_rank *all, int count, pair_end *ends,
                                banyan_reshard_report *report)
{
    size_t end_count = 0;
    for (int r = 0; r < count; r++) {
        const planner_result *of = all[r].transfers;
        RETURN_IF_FAILED(verify_pairs_add_ends(&all[r], count, of->sends, of->send_count, true,
                                               ends, &end_count, report));
        RETURN_IF_FAILED(verify_pairs_add_ends(&all[r], count, of->recvs, of->recv_count, false,
                                               ends, &end_count, report));
    }
    qsort(ends, end_count, sizeof *ends, by_task);
    for (size_t first = 0, i = 1; i <= end_count; i++) {
        if (i < end_count && same_task(&ends[first], &ends[i]))
            continue;
        RETURN_IF_FAILED(check_task(all, &ends[first], i - first, report));
        first = i;
    }
    return BANYAN_OK;
}

banyan_status check_ranks_pair(const check_rank *all, int count, banyan_reshard_report *report)
{
    size_t most = 1;
    for (int r = 0; r < count; r++)
        most += all[r].transfers->send_count + all[r].transfers->recv_count;
    pair_end *ends = alloc_zeroed(most, sizeof *ends, "the check of a plan's pairs");
    RETURN_IF_NO_MEMORY(ends);
    banyan_status status = check_ends(all, count, ends, report);
    free(ends);
    return status;
}

static banyan_status pairs_report_fault(void *context, pipeline_fault fault, int rank,
                                        const char *message)
{
    static const banyan_reshard_rule rules[] = {
        [PIPELINE_FAULT_SLOT] = BANYAN_RESHARD_SLOT,
        [PIPELINE_FAULT_STUCK] = BANYAN_RESHARD_STUCK,
        [PIPELINE_FAULT_BYTES] = BANYAN_RESHARD_MEMORY,
    };
    return check_report_add(context, rules[fault], rank, "%s", message);
}

/* One of the waves of a run. */
typedef struct pairs_wave {
    uint64_t number, turns;
} pairs_wave;

static banyan_status add_sends(pipeline_world *world, const check_rank *checked,
                               const pairs_wave *wave)
{
    pipeline_world_task *tasks;
    size_t count, kept = 0;
    RETURN_IF_FAILED(planner_tasks_sent(checked->transfers, &tasks, &count));
    for (size_t i = 0; i < count; i++)
        if (planner_wave_of(tasks[i].stage, tasks[i].turn, wave->turns) == wave->number)
            tasks[kept++] = tasks[i];
    banyan_status status = pipeline_world_send(world, checked->rank, tasks, kept);
    free(tasks);
    return status;
}

/* Check with the world's current rounds. */
static banyan_status check_steps(const pipeline_world *world, banyan_reshard_report *report)
{
    pipeline_steps *steps =
        alloc_zeroed((size_t)world->ranks, sizeof *steps, "the check of a schedule");
    RETURN_IF_NO_MEMORY(steps);
    banyan_status status = BANYAN_OK;
    for (int r = 0; r < world->ranks && status == BANYAN_OK; r++)
        status = pipeline_world_steps(world, r, &steps[r]);
    if (status == BANYAN_OK)
        status = pipeline_steps_check(steps, world->ranks, world->slot_bytes, pairs_report_fault,
                                      report);
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

static banyan_status pairs_check_wave(const check_rank *all, int count, uint64_t slot_bytes,
                                      const pairs_wave *wave, banyan_reshard_report *report)
{
    pipeline_world world;
    RETURN_IF_FAILED(pipeline_world_create(count, slot_bytes, &world));
    banyan_status status = BANYAN_OK;
    for (int r = 0; r < count && status == BANYAN_OK; r++)
        status = add_sends(&world, &all[r], wave);
    if (status == BANYAN_OK)
        status = pipeline_world_link(&world);
    if (status == BANYAN_OK)
        status = check_both(&world, report);
    pipeline_world_free(&world);
    return status;
}

/* Play each wave by itself: waves do not affect each other (docs/internals/proofs.md). Those of a
 * bound on staging depend on the service, and are not known here. */
banyan_status check_slots(const check_rank *all, int count, uint64_t slot_bytes,
                          banyan_reshard_report *report)
{
    pairs_wave wave = {0};
    size_t found = banyan_reshard_report_count(report);
    for (int r = 0; r < count; r++) {
        uint64_t turns = planner_turns_wanted(all[r].transfers, r);
        wave.turns = turns > wave.turns ? turns : wave.turns;
    }
    const char *subject = report->subject;
    banyan_status status = BANYAN_OK;
    for (; wave.number <= wave.turns && status == BANYAN_OK; wave.number++) {
        char text[64];
        snprintf(text, sizeof text, "%s, wave %" PRIu64 " of %" PRIu64,
                 subject ? subject : "as planned", wave.number, wave.turns + 1);
        report->subject = wave.turns > 0 ? text : subject;
        status = pairs_check_wave(all, count, slot_bytes, &wave, report);
        report->waves = wave.number + 1;
        if (banyan_reshard_report_count(report) > found)
            break;
    }
    report->subject = subject;
    return status;
}
