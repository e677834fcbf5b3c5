#include "execute/host/task.h"

#include <sched.h>

#include "core/deadline.h"
#include "execute/host/waits.h"
#include "execute/load/loaded.h"
#include "execute/shuffle/shuffle.h"
#include "world/control.h"

/* Polls of all waits before the thread sleeps. If each rank has a processor, they take about as
 * long as falling asleep and waking up. If ranks share processors, each poll yields the processor
 * to the ranks that the thread waits for. Between nodes each poll asks a transport, by a system
 * call: one more, to yield, costs little, and a sleep costs more, since a thread of the transport
 * must wake this one. A poll that finds an arrival keeps the processor: a task may go on now.
 * Where other programs keep the processors busy, a yield may take many milliseconds, and lost ranks
 * are noticed only before a sleep: so the polls have a limit in time, too. */
#define LOOKS 400
#define LOOKS_CROWDED 40
#define LOOKS_NS (10 * NS_PER_MS)

/* A wait among a rank's own thread blocks reports its timeout this much later, so that a wait for
 * a peer reports first even if its thread must wait for a processor. */
#define INSIDE_GRACE_NS NS_PER_S

struct turn {
    plan_run *of;
    uint32_t first, stride;
    trace_ring *ring;
    wake_up *own;
    uint32_t looks; /* polls without progress */
    uint64_t looks_end_ns;
    bool waits; /* the wait has begun since the last progress */
    control_wait wait;
    int peer; /* the rank waited for; -1: not determined yet, or none */
};

enum pass { PASS_DONE, PASS_MOVED, PASS_STUCK, PASS_FAILED };

static enum pass pass_over(const struct turn *turn)
{
    banyan_loaded_plan *loaded = turn->of->loaded;
    bool left = false, moved = false;
    for (uint32_t i = turn->first; i < loaded->task_count; i += turn->stride) {
        task *t = &loaded->tasks[i];
        if (t->at == t->step_count)
            continue;
        t->moved = false;
        task_state state = loaded->shuffle ? shuffle_advance(turn->of, t, turn->ring)
                                           : task_advance(turn->of, t, turn->ring);
        if (state == TASK_FAILED)
            return PASS_FAILED;
        left |= state == TASK_WAITS;
        moved |= t->moved;
    }
    return !left ? PASS_DONE : moved ? PASS_MOVED : PASS_STUCK;
}

/* Return a waiting thread block for the error message, if possible one that waits for a peer. */
static const task *find_waiting(const struct turn *turn)
{
    const banyan_loaded_plan *loaded = turn->of->loaded;
    const task *found = NULL;
    for (uint32_t i = turn->first; i < loaded->task_count; i += turn->stride) {
        const task *t = &loaded->tasks[i];
        if (t->at < t->step_count && (!found || (wait_is_inside(found) && !wait_is_inside(t))))
            found = t;
    }
    return found;
}

static banyan_status explain_end(const struct turn *turn, banyan_status status)
{
    char text[WAIT_TEXT_BYTES], own[CONTROL_RANK_BYTES];
    wait_describe(turn->of, find_waiting(turn), text);
    return error_set(status, "%s while %s waited %s", banyan_last_error(),
                     control_own_name(turn->of->loaded->executor->world, own), text);
}

/* After a timeout this rank is out of step with the others: end the world, so that the late rank
 * does not begin the run. */
static banyan_status end_in_vain(const banyan_executor *executor, banyan_status status)
{
    return control_fail(executor->world,
                        error_set(status,
                                  "%s; the run stopped in the middle, which ended its world",
                                  banyan_last_error()));
}

static banyan_status scheduler_wait_longer(struct turn *turn, uint64_t *nap_ns)
{
    banyan_executor *executor = turn->of->loaded->executor;
    const task *waiting = find_waiting(turn);
    char text[WAIT_TEXT_BYTES];
    bool speaks = control_wait_speaks(&turn->wait);
    if (speaks)
        wait_describe(turn->of, waiting, text);
    if (turn->peer < 0 && control_wait_is_long(&turn->wait))
        turn->peer = wait_peer(turn->of, waiting);
    banyan_status status = control_wait_on(&turn->wait, turn->peer, speaks ? text : NULL, nap_ns);
    if (status == BANYAN_ERR_TIMEOUT && control_check(executor->world) == BANYAN_OK)
        return end_in_vain(executor, status);
    return status;
}

/* Nothing has moved for a while. Peers know that this rank is about to sleep; one more poll found
 * nothing. */
static banyan_status sleep_on_wake_up(struct turn *turn, uint32_t seen)
{
    banyan_world *world = turn->of->loaded->executor->world;
    banyan_status status = control_check(world);
    if (status != BANYAN_OK)
        return explain_end(turn, status);
    if (!turn->waits) {
        turn->waits = true;
        turn->wait = control_wait_begin(world);
        turn->peer = -1;
        if (turn->stride > 1 && wait_is_inside(find_waiting(turn)))
            turn->wait.ends_ns += INSIDE_GRACE_NS;
    }
    uint64_t nap_ns;
    RETURN_IF_FAILED(scheduler_wait_longer(turn, &nap_ns));
    if (turn->of->loaded->executor->transport)
        transport_rest(turn->of->loaded->executor->transports);
    wake_up_sleep_announced(turn->own, seen, nap_ns);
    return BANYAN_OK;
}

static void scheduler_end_wait(struct turn *turn)
{
    if (turn->waits)
        control_wait_end(&turn->wait);
    turn->waits = false;
}

static banyan_status scheduler_rest(struct turn *turn, enum pass *pass)
{
    uint32_t seen = wake_up_announce(turn->own);
    banyan_status status = BANYAN_OK;
    *pass = pass_over(turn);
    if (*pass == PASS_STUCK && !atomic_load(&turn->of->stopped))
        status = sleep_on_wake_up(turn, seen);
    wake_up_withdraw(turn->own);
    return status;
}

/* False: go to sleep. */
static bool look_again(struct turn *turn)
{
    const banyan_executor *executor = turn->of->loaded->executor;
    bool asks = executor->transport, yields = executor->crowded || asks;
    size_t arrived = asks ? transport_progress(executor->transports) : 0;
    uint64_t now_ns = yields ? time_now_ns() : 0;
    if (turn->looks++ == 0)
        turn->looks_end_ns = now_ns + LOOKS_NS;
    if (turn->looks > (yields && !asks ? LOOKS_CROWDED : LOOKS) ||
        (yields && now_ns >= turn->looks_end_ns))
        return false;
    if (arrived > 0)
        return true;
    if (yields)
        sched_yield();
    else
        spin_pause();
    return true;
}

banyan_status scheduler_run(plan_run *of, uint32_t first, uint32_t stride, trace_ring *ring)
{
    const banyan_executor *executor = of->loaded->executor;
    struct turn turn = {.of = of,
                        .first = first,
                        .stride = stride,
                        .ring = ring,
                        .own = executor_wake_up(executor, executor->rank)};
    banyan_status status = BANYAN_OK;
    for (;;) {
        enum pass pass = pass_over(&turn);
        if (pass == PASS_STUCK && !look_again(&turn))
            status = scheduler_rest(&turn, &pass);
        if (status != BANYAN_OK || pass == PASS_DONE ||
            atomic_load_explicit(&of->stopped, memory_order_relaxed))
            break;
        if (pass == PASS_FAILED) {
            status = BANYAN_ERR_NO_MEMORY;
            break;
        }
        if (pass == PASS_MOVED) {
            turn.looks = 0;
            scheduler_end_wait(&turn);
        }
    }
    scheduler_end_wait(&turn);
    return status;
}
