#include "execute/host/task.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "execute/load/loaded.h"
#include "execute/shuffle/shuffle.h"

static void ring_own(const plan_run *of)
{
    const banyan_executor *executor = of->loaded->executor;
    if (of->shared)
        wake_up_doorbell(executor_wake_up(executor, executor->rank));
}

/* Every signal is a release, also a relaxed one: that costs nothing on the host. A relaxed signal
 * may stand for everything the caller wrote before the run, which peers may read once they receive
 * it. */
static bool step_signal(const step *s)
{
    for (uint32_t i = 0; i < s->end_count; i++) {
        counter_add(s->ends[i]->outgoing, 1);
        wake_up_doorbell(s->ends[i]->wake_up);
    }
    return true;
}

static bool step_post_signal(const plan_run *of, task *t, const step *s)
{
    for (; t->index < s->end_count; t->index++) {
        channel_end *end = s->ends[t->index];
        port_request request = {.kind = PORT_SIGNAL, .signal = end->outgoing, .peer = end->wake_up};
        if (!move_request(of, end, &request))
            return false;
        t->moved = true;
    }
    return true;
}

/* Take one signal atomically: several thread blocks may wait on one channel, and each takes its
 * own. */
static bool take_signal(channel_end *end)
{
    uint64_t consumed = atomic_load_explicit(&end->consumed, memory_order_relaxed);
    while (counter_read(end->incoming) > consumed) {
        if (atomic_compare_exchange_weak_explicit(&end->consumed, &consumed, consumed + 1,
                                                  memory_order_relaxed, memory_order_relaxed))
            return true;
    }
    return false;
}

static bool step_wait(task *t, const step *s)
{
    for (; t->index < s->end_count; t->index++) {
        if (!take_signal(s->ends[t->index]))
            return false;
        t->moved = true;
    }
    return true;
}

static bool step_flush(task *t, const step *s)
{
    for (; t->index < s->end_count; t->index++) {
        const port_queue *queue = s->ends[t->index]->queue;
        if (!queue) {
            if (!remote_port_is_done(s->ends[t->index]->remote))
                return false;
            continue;
        }
        if (t->target == 0)
            t->target = port_posted(queue) + 1;
        if (port_done(queue) + 1 < t->target)
            return false;
        t->target = 0;
        t->moved = true;
    }
    return true;
}

static bool step_acquire(const plan_run *of, task *t, const step *s)
{
    for (; t->index < s->op->semaphore_count; t->index++) {
        block_counter *semaphore = &of->loaded->semaphores[s->op->semaphores[t->index]];
        uint64_t value = atomic_load_explicit(&semaphore->value, memory_order_relaxed);
        do {
            if (value == 0)
                return false;
        } while (!atomic_compare_exchange_weak_explicit(
            &semaphore->value, &value, value - 1, memory_order_acquire, memory_order_relaxed));
        t->moved = true;
    }
    return true;
}

static bool step_release(const plan_run *of, const step *s)
{
    for (uint32_t i = 0; i < s->op->semaphore_count; i++)
        atomic_fetch_add_explicit(&of->loaded->semaphores[s->op->semaphores[i]].value, 1,
                                  memory_order_release);
    ring_own(of);
    return true;
}

/* Arrivals are never reset: the n-th barrier is complete after n arrivals of each member. */
static bool step_barrier(const plan_run *of, task *t, const step *s)
{
    _Atomic uint64_t *arrivals = &of->loaded->barriers[s->barrier].value;
    uint64_t members = s->op->barrier_members;
    if (t->target == 0) {
        uint64_t before = atomic_fetch_add_explicit(arrivals, 1, memory_order_acq_rel);
        t->target = (before / members + 1) * members;
        t->moved = true;
        if (before + 1 == t->target)
            ring_own(of);
    }
    return atomic_load_explicit(arrivals, memory_order_acquire) >= t->target;
}

banyan_status task_find_pieces(const plan_run *of, task *t, const step *s)
{
    const specialized_plan *c = of->specialized;
    uint64_t from = s->first_word, to = from + s->piece_count * step_piece_words(s);
    const uint64_t *words = c->words.data;
    if (s->iteration_at) {
        from = s->iteration_at[t->iteration];
        to = s->iteration_at[t->iteration + 1];
    } else if (s->loop) {
        t->words.count = 0;
        RETURN_IF_FAILED(specialize_pieces(c, of->loaded->plan, of->loaded->executor->rank,
                                           t->block, s, t->iteration, &t->words));
        words = t->words.data;
        from = 0;
        to = t->words.count;
    }
    t->piece = words + from;
    t->pieces_left = (to - from) / step_piece_words(s);
    return t->is_lane ? shuffle_deal(t, s) : BANYAN_OK;
}

static banyan_status task_enter(const plan_run *of, task *t, const step *s)
{
    t->entered = true;
    t->index = 0;
    t->target = 0;
    t->done = t->got = 0;
    if (s->operands)
        RETURN_IF_FAILED(task_find_pieces(of, t, s));
    if (of->traces)
        t->record.begin_ns = time_now_ns();
    return BANYAN_OK;
}

/* True when the step is done. */
static bool task_perform(const plan_run *of, task *t, const step *s)
{
    switch (s->kind) {
    case STEP_COPY:
        return move_copy(of, t, s);
    case STEP_PACK:
        return move_pack(of, t, s);
    case STEP_UNPACK:
        return move_unpack(of, t, s);
    case STEP_FORWARD:
        return move_forward(of, t, s);
    case STEP_COMBINE:
        return move_combine(of, t, s);
    case STEP_POST_COPY:
    case STEP_POST_PACK:
    case STEP_POST_FORWARD:
        return move_post(of, t, s);
    case STEP_POST_SIGNAL:
        return step_post_signal(of, t, s);
    case STEP_SIGNAL:
        return step_signal(s);
    case STEP_WAIT:
        return step_wait(t, s);
    case STEP_FLUSH:
        return step_flush(t, s);
    case STEP_ACQUIRE:
        return step_acquire(of, t, s);
    case STEP_RELEASE:
        return step_release(of, s);
    case STEP_BARRIER:
        return step_barrier(of, t, s);
    case STEP_NOP:
    case STEP_LOOP:
    case STEP_LOOP_END:
        break;
    }
    return true;
}

void task_go_past(task *t, const step *s)
{
    t->at++;
    if (s->kind == STEP_LOOP) {
        t->iteration = 0;
        if (s->iterations == 0)
            t->at = s->first;
    } else if (s->kind == STEP_LOOP_END && ++t->iteration < s->iterations) {
        t->at = s->first;
    }
}

static void record_wait(task *t, bool got_on)
{
    if (got_on && t->waiting_since_ns != 0) {
        t->record.waited_ns += time_now_ns() - t->waiting_since_ns;
        t->waiting_since_ns = 0;
    } else if (!got_on && t->waiting_since_ns == 0) {
        t->waiting_since_ns = time_now_ns();
    }
}

static void record_end(const plan_run *of, task *t, const step *s, trace_ring *ring)
{
    record_wait(t, true);
    t->record.end_ns = time_now_ns();
    t->record.run = of->loaded->runs;
    t->record.iteration = t->iteration;
    t->record.loop_number = step_loop_number(s);
    t->record.block = t->block->id;
    t->record.number = s->number;
    t->record.kind = s->whole->kind;
    t->record.peer = step_peer(s);
    if (s->kind != STEP_LOOP && s->kind != STEP_LOOP_END)
        trace_add(ring, &t->record);
    t->record.waited_ns = 0;
}

task_state task_take_step(const plan_run *of, task *t, trace_ring *ring)
{
    const step *s = &t->steps[t->at];
    if (!t->entered && task_enter(of, t, s) != BANYAN_OK)
        return TASK_FAILED;
    bool moved_before = t->moved;
    t->moved = false;
    bool done = task_perform(of, t, s);
    move_doorbell(t, s);
    if (of->traces)
        done ? record_end(of, t, s, ring) : record_wait(t, t->moved);
    if (!done) {
        t->moved |= moved_before;
        return TASK_WAITS;
    }
    t->entered = false;
    t->moved = true;
    task_go_past(t, s);
    return TASK_DONE;
}

task_state task_advance(const plan_run *of, task *t, trace_ring *ring)
{
    task_state state = TASK_DONE;
    while (state == TASK_DONE && t->at < t->step_count)
        state = task_take_step(of, t, ring);
    return state;
}

void task_reset(task *t, const plan_run *of, uint32_t block)
{
    t->steps = of->specialized->blocks[block].steps.data;
    t->step_count = (uint32_t)of->specialized->blocks[block].steps.count;
    t->at = 0;
    t->entered = false;
    t->iteration = 0;
    t->quiet = false;
    t->waiting_since_ns = 0;
    t->record.waited_ns = 0;
}

banyan_status task_prepare(task *t, const specialized_block *block)
{
    if (block->room_bytes > t->room_bytes) {
        char *room = aligned_alloc(64, block->room_bytes);
        if (!room)
            return error_no_memory(block->room_bytes, "a thread block's packets");
        free(t->room);
        t->room = room;
        t->room_bytes = block->room_bytes;
    }
    if (block->most_sources > t->most_sources) {
        const void **sources = calloc(block->most_sources, sizeof *sources);
        if (!sources)
            return error_no_memory(block->most_sources * sizeof *sources, "a reduction's sources");
        free(t->sources);
        t->sources = sources;
        t->most_sources = block->most_sources;
    }
    return BANYAN_OK;
}

void task_free(task *t)
{
    free(t->room);
    free(t->sources);
    array_free(&t->words);
}
