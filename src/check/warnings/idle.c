#include "check/warnings/warnings.h"

#include <stdlib.h>
#include <string.h>

#include "check/replay/replay.h"

/* Limits of replayed operations, and of bytes that they touch at once, over all attempts. */
#define STEPS_MOST (UINT64_C(1) << 18)

/* A signal or release of one channel or semaphore, or a wait or acquire. */
typedef struct end {
    bool gives, in_loop;
    uint32_t counter;  /* the stepper's; PLAN_NONE: the channel has no other end */
    uint32_t sequence; /* in the order of the plan */
    uint32_t chain;    /* the thread block it is in */
    plan_op *op;
    uint32_t at; /* among the operation's channels or semaphores */
    banyan_check_place place;
} end;

/* Attempts for one kind of operation. */
typedef struct idle_kind {
    const char *one, *many;
    size_t count;
    finding_draft draft;
} idle_kind;

enum { IDLE_NOP, IDLE_FLUSH, IDLE_BARRIER, IDLE_PAIR, IDLE_KINDS };

typedef struct idle_search {
    banyan_plan *plan; /* a copy that is changed and restored */
    const size_classes *classes;
    uint32_t runs;
    uint64_t steps; /* used so far */
    plan_stepper stepper;
    ARRAY(end) ends;
    idle_kind kinds[IDLE_KINDS];
} idle_search;

static banyan_status play_class(idle_search *by, const size_class *at, bool *sound)
{
    findings found = {.most = 1, .message_bytes = at->message_bytes};
    replay all = {.plan = by->plan,
                  .geometry = &at->geometry,
                  .runs = by->runs,
                  .whole = at->whole,
                  .max_memory_bytes = UINT64_MAX,
                  .findings = &found};
    banyan_status status = replay_plan(&all);
    *sound = found.list.count == 0;
    by->steps += all.steps;
    replay_free(&all);
    findings_free(&found);
    return status;
}

static banyan_status is_sound(idle_search *by, bool *sound)
{
    *sound = true;
    for (size_t i = 0; i < by->classes->count && *sound; i++) {
        if (by->steps >= STEPS_MOST)
            *sound = false;
        else
            RETURN_IF_FAILED(play_class(by, &by->classes->data[i], sound));
    }
    return BANYAN_OK;
}

static void idle_add_place(idle_kind *to, banyan_check_place place)
{
    to->count++;
    if (to->draft.place_count < PLACES_MOST)
        to->draft.places[to->draft.place_count++] = place;
}

static bool idle_joins(const plan_op *op)
{
    return op->kind == PLAN_NOP || op->kind == PLAN_BARRIER;
}

/* True for a nop after which nothing happened since the last synchronization, or the beginning. */
static bool is_idle_at_sight(const plan_op *ops, uint32_t i, bool in_loop)
{
    return ops[i].kind == PLAN_NOP && (i > 0 ? idle_joins(&ops[i - 1]) : !in_loop);
}

static banyan_status try_op(idle_search *by, plan_op *ops, uint32_t i, banyan_check_place place)
{
    plan_op kept = ops[i];
    bool flush = kept.kind == PLAN_FLUSH || kept.kind == PLAN_PUT_WITH_SIGNAL_AND_FLUSH, sound;
    idle_kind *kind = &by->kinds[flush ? IDLE_FLUSH : IDLE_NOP];
    /* The compiler's own nops are not the author's to remove. */
    if ((kept.kind != PLAN_NOP && !flush) || (by->plan->line_count > 0 && kept.line == 0))
        return BANYAN_OK;
    if (is_idle_at_sight(ops, i, place.loop_operation >= 0)) {
        idle_add_place(kind, place);
        return BANYAN_OK;
    }
    if (kept.kind == PLAN_PUT_WITH_SIGNAL_AND_FLUSH)
        ops[i].kind = PLAN_PUT_WITH_SIGNAL;
    else
        ops[i] = (plan_op){.kind = PLAN_SIGNAL, .channel_type = PLAN_MEMORY}; /* no effect */
    banyan_status status = is_sound(by, &sound);
    ops[i] = kept;
    if (status == BANYAN_OK && sound)
        idle_add_place(kind, place);
    return status;
}

typedef banyan_status (*op_visit)(idle_search *by, plan_op *ops, uint32_t i,
                                  banyan_check_place place);

/* Visit all operations but loops, and those in loops. */
static banyan_status idle_visit_all(idle_search *by, op_visit visit)
{
    for (plan_cursor at = {.plan = by->plan}; plan_cursor_next(&at);) {
        plan_thread_block *block = &by->plan->ranks[at.rank].blocks[at.number];
        banyan_check_place place = {.rank = at.rank,
                                    .thread_block = (int)at.number,
                                    .operation = (int)at.at,
                                    .loop_operation = at.loop ? (int)at.inner : -1};
        if (at.loop)
            RETURN_IF_FAILED(visit(by, block->ops[at.at].ops, at.inner, place));
        else if (at.op->kind != PLAN_PIPELINE)
            RETURN_IF_FAILED(visit(by, block->ops, at.at, place));
    }
    return BANYAN_OK;
}

/* Turn the n-th operation of each thread block at the barrier into a nop, or into a barrier again.
 */
static void change_round(const plan_rank *rank, uint32_t barrier, uint32_t n, bool drop)
{
    for (uint32_t b = 0; b < rank->block_count; b++) {
        uint32_t seen = 0;
        for (uint32_t i = 0; i < rank->blocks[b].op_count; i++) {
            plan_op *op = &rank->blocks[b].ops[i];
            bool there = op->barrier_members > 0 && op->barrier == barrier;
            if (there && seen++ == n)
                op->kind = drop ? PLAN_NOP : PLAN_BARRIER;
        }
    }
}

/* Try one round of a barrier, represented by the first of its members' operations. */
static banyan_status idle_try_barrier(idle_search *by, plan_op *ops, uint32_t i,
                                      banyan_check_place place)
{
    const plan_rank *rank = &by->plan->ranks[place.rank];
    uint32_t n = 0, barrier = ops[i].barrier;
    bool sound;
    if (ops[i].kind != PLAN_BARRIER || place.loop_operation >= 0)
        return BANYAN_OK;
    for (int b = 0; b < place.thread_block; b++) {
        for (uint32_t k = 0; k < rank->blocks[b].op_count; k++) {
            if (rank->blocks[b].ops[k].kind == PLAN_BARRIER &&
                rank->blocks[b].ops[k].barrier == barrier)
                return BANYAN_OK;
        }
    }
    for (uint32_t k = 0; k < i; k++)
        n += ops[k].kind == PLAN_BARRIER && ops[k].barrier == barrier;
    change_round(rank, barrier, n, true);
    banyan_status status = is_sound(by, &sound);
    change_round(rank, barrier, n, false);
    if (status == BANYAN_OK && sound)
        idle_add_place(&by->kinds[IDLE_BARRIER], place);
    return status;
}

static banyan_status note_ends(idle_search *by, plan_op *ops, uint32_t i, banyan_check_place place)
{
    plan_op *op = &ops[i];
    const plan_stepper *stepper = &by->stepper;
    const plan_position *pos =
        &stepper->blocks[stepper->first_block[place.rank] + (uint32_t)place.thread_block];
    bool gives = plan_op_gives(op) > 0 && op->kind != PLAN_PUT_WITH_SIGNAL_AND_FLUSH &&
                 (op->kind != PLAN_PUT_WITH_SIGNAL || plan_op_part_count(op) == 1);
    uint32_t count = gives ? plan_op_gives(op) : plan_op_takes(op);
    for (uint32_t k = 0; k < count; k++) {
        end new = {.gives = gives,
                   .in_loop = place.loop_operation >= 0,
                   .counter = gives ? plan_stepper_given(stepper, pos, op, k)
                                    : plan_stepper_taken(stepper, pos, op, k),
                   .sequence = (uint32_t)by->ends.count,
                   .chain = (uint32_t)place.thread_block,
                   .op = op,
                   .at = k,
                   .place = place};
        if (!array_push(&by->ends, new))
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

static int idle_compare_ends(const void *left, const void *right)
{
    const end *a = left, *b = right;
    int order = (a->counter > b->counter) - (a->counter < b->counter);
    if (order == 0)
        order = b->gives - a->gives;
    return order ? order : (a->sequence > b->sequence) - (a->sequence < b->sequence);
}

/* Return the operation without one of its channels or semaphores; `rest` holds the others. */
static plan_op idle_without(const end *one, uint32_t *rest)
{
    plan_op made = *one->op;
    if (made.kind == PLAN_PUT_WITH_SIGNAL) {
        made.kind = PLAN_PUT;
        return made;
    }
    bool channels = made.channel_count > 0;
    uint32_t **list = channels ? &made.channels : &made.semaphores;
    uint32_t *count = channels ? &made.channel_count : &made.semaphore_count;
    for (uint32_t i = 0, kept = 0; i < *count; i++) {
        if (i != one->at)
            rest[kept++] = (*list)[i];
    }
    *list = rest;
    --*count;
    return made;
}

static banyan_status try_pair(idle_search *by, const end *giver, const end *taker)
{
    plan_op given = *giver->op, taken = *taker->op;
    size_t most =
        given.channel_count + given.semaphore_count + taken.channel_count + taken.semaphore_count;
    uint32_t *rest = calloc(2 * most + 1, sizeof *rest);
    bool sound;
    if (!rest)
        return error_no_memory(2 * most * sizeof *rest, "a plan with less synchronisation");
    *giver->op = idle_without(giver, rest);
    *taker->op = idle_without(taker, rest + most);
    banyan_status status = is_sound(by, &sound);
    *giver->op = given;
    *taker->op = taken;
    free(rest);
    if (status == BANYAN_OK && sound)
        idle_add_place(&by->kinds[IDLE_PAIR], giver->place);
    return status;
}

/* Try all ends of one counter, givers first. One block gives as often as another takes. */
static banyan_status try_counter(idle_search *by, const end *ends, size_t count)
{
    size_t pairs = count / 2;
    bool fits = count % 2 == 0 && ends[0].counter != PLAN_NONE;
    for (size_t i = 0; i < count && fits; i++)
        fits = ends[i].gives == (i < pairs) && ends[i].chain == ends[i < pairs ? 0 : pairs].chain &&
               ends[i].in_loop == ends[i % pairs].in_loop;
    for (size_t i = 0; i < pairs && fits; i++)
        RETURN_IF_FAILED(try_pair(by, &ends[i], &ends[pairs + i]));
    return BANYAN_OK;
}

static banyan_status try_pairs(idle_search *by)
{
    RETURN_IF_FAILED(plan_stepper_make(by->plan, NULL, &by->stepper));
    RETURN_IF_FAILED(idle_visit_all(by, note_ends));
    if (by->ends.count > 1)
        qsort(by->ends.data, by->ends.count, sizeof *by->ends.data, idle_compare_ends);
    for (size_t i = 0, next; i < by->ends.count; i = next) {
        next = i + 1;
        while (next < by->ends.count && by->ends.data[i].counter == by->ends.data[next].counter)
            next++;
        RETURN_IF_FAILED(try_counter(by, &by->ends.data[i], next - i));
    }
    return BANYAN_OK;
}

static int idle_compare_places(const void *left, const void *right)
{
    const banyan_check_place *a = left, *b = right;
    int order = a->rank - b->rank;
    order = order ? order : a->thread_block - b->thread_block;
    order = order ? order : a->operation - b->operation;
    return order ? order : a->loop_operation - b->loop_operation;
}

static bool report_kind(const banyan_plan *plan, idle_kind *kind, findings *all)
{
    finding_draft *draft = &kind->draft;
    draft->rule = BANYAN_CHECK_IDLE_SYNC;
    if (kind->count == 0)
        return true;
    qsort(draft->places, draft->place_count, sizeof *draft->places, idle_compare_places);
    const banyan_check_place *first = &draft->places[0];
    char line[LINE_TEXT_BYTES];
    return findings_add(
        all, draft,
        "%zu %s not needed, since other synchronization orders the same accesses: %s can be left "
        "out; the first is rank %d, thread block %d, operation %d%s",
        kind->count, kind->count == 1 ? kind->one : kind->many,
        kind->count == 1 ? "it" : "any one of them", first->rank, first->thread_block,
        first->operation, line_text(findings_line(plan, first), line));
}

banyan_status warn_of_idle(const banyan_plan *plan, const size_classes *classes, uint32_t runs,
                           uint64_t steps, findings *all)
{
    idle_search by = {.classes = classes,
                      .steps = steps > STEPS_MOST ? STEPS_MOST : 0,
                      .runs = runs,
                      .kinds = {
                          [IDLE_NOP] = {.one = "nop is", .many = "nops are"},
                          [IDLE_FLUSH] = {.one = "flush is", .many = "flushes are"},
                          [IDLE_BARRIER] = {.one = "barrier is", .many = "barriers are"},
                          [IDLE_PAIR] = {.one = "signal or release, with its wait or acquire, is",
                                         .many = "signals or releases, with their waits or "
                                                 "acquires, are"},
                      }};
    RETURN_IF_FAILED(plan_clone(plan, &by.plan));
    all->message_bytes = classes->data[0].message_bytes;
    banyan_status status = idle_visit_all(&by, try_op);
    if (status == BANYAN_OK)
        status = idle_visit_all(&by, idle_try_barrier);
    if (status == BANYAN_OK)
        status = try_pairs(&by);
    for (int i = 0; i < IDLE_KINDS && status == BANYAN_OK; i++)
        status = report_kind(plan, &by.kinds[i], all) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    array_free(&by.ends);
    plan_stepper_free(&by.stepper);
    banyan_plan_destroy(by.plan);
    return status;
}
