#include "plan/walk.h"

#include <stdlib.h>
#include <string.h>

#include "plan/barrier_numbers.h"
#include "plan/check/packet_writers.h"
#include "plan/pairs.h"

/* Steps after which a walk is abandoned: a fraction of a second. */
#define STEPS_MOST (UINT64_C(1) << 22)
/* Most writers of packets, each counted for every chunk. */
#define WRITERS_MOST (UINT64_C(1) << 20)

/* The depth, in hops, of each signal or release; first in, first out. */
typedef struct tokens {
    ARRAY(uint64_t) depths;
    size_t taken;
} tokens;

typedef struct meeting {
    uint32_t arrived;
    uint64_t rounds, depth; /* of the last completed round */
    uint64_t next_depth;
} meeting;

/* The position of a thread block. */
typedef struct walker {
    int rank;
    const plan_thread_block *block;
    uint32_t at, inner; /* operation, and operation in its loop */
    uint64_t iteration;
    uint32_t taken;         /* tokens that the current operation has already taken */
    bool arrived;           /* at a barrier, after `rounds` completed rounds of it */
    uint64_t rounds, depth; /* depth: hops on the longest way to here */
} walker;

typedef struct walk {
    const banyan_plan *plan;
    const plan_geometry *geometry;
    plan_pairs pairs;
    arena memory;
    tokens *(*signals)[PLAN_CHANNEL_TYPES]; /* of each rank's channels: received signals */
    tokens **semaphores;                    /* one per semaphore of each rank */
    plan_barrier_numbers meetings;          /* numbers are indices into the list */
    ARRAY(meeting) meeting_list;
    packet_writers packets;
    walker *walkers;
    size_t walker_count;
    uint64_t steps;
} walk;

/* The outcome of a thread block's attempt at an operation. */
typedef enum outcome { DONE, WAITS, FAILED } outcome;

static outcome add_token(tokens *to, uint64_t depth)
{
    return array_push(&to->depths, depth) ? DONE : FAILED;
}

static bool take_token(tokens *from, walker *by)
{
    if (from->taken == from->depths.count)
        return false;
    uint64_t depth = from->depths.data[from->taken++];
    if (depth > by->depth)
        by->depth = depth;
    return true;
}

static outcome signal_one(walk *all, const walker *by, const plan_op *op, uint32_t number)
{
    int peer;
    uint32_t back;
    uint32_t channel = plan_channel_of(by->block, op, number);
    if (!plan_pairs_find(&all->pairs, by->rank, op->channel_type, channel, &peer, &back))
        return WAITS;
    return add_token(&all->signals[peer][op->channel_type][back], by->depth + 1);
}

static outcome plan_walk_signal_all(walk *all, const walker *by, const plan_op *op)
{
    outcome result = DONE;
    for (uint32_t i = 0; i < op->channel_count && result == DONE; i++)
        result = signal_one(all, by, op, op->channels[i]);
    return result;
}

static outcome wait_for_signals(walk *all, walker *by, const plan_op *op)
{
    for (; by->taken < op->channel_count; by->taken++) {
        uint32_t channel = plan_channel_of(by->block, op, op->channels[by->taken]);
        if (!take_token(&all->signals[by->rank][op->channel_type][channel], by))
            return WAITS;
    }
    return DONE;
}

static outcome plan_walk_acquire(walk *all, walker *by, const plan_op *op)
{
    for (; by->taken < op->semaphore_count; by->taken++) {
        if (!take_token(&all->semaphores[by->rank][op->semaphores[by->taken]], by))
            return WAITS;
    }
    return DONE;
}

static outcome plan_walk_release(walk *all, const walker *by, const plan_op *op)
{
    outcome result = DONE;
    for (uint32_t i = 0; i < op->semaphore_count && result == DONE; i++)
        result = add_token(&all->semaphores[by->rank][op->semaphores[i]], by->depth);
    return result;
}

static meeting *plan_walk_find_barrier(walk *all, int rank, const plan_op *op)
{
    size_t place;
    if (!plan_barrier_numbers_find(&all->meetings, rank, op, &place))
        return NULL;
    if (place == all->meeting_list.count && !array_push(&all->meeting_list, (meeting){0}))
        return NULL;
    return &all->meeting_list.data[place];
}

static outcome plan_walk_barrier(walk *all, walker *by, const plan_op *op)
{
    meeting *at = plan_walk_find_barrier(all, by->rank, op);
    if (!at)
        return FAILED;
    if (!by->arrived) {
        by->arrived = true;
        by->rounds = at->rounds;
        if (by->depth > at->next_depth)
            at->next_depth = by->depth;
        if (++at->arrived == op->barrier_members) {
            at->rounds++;
            at->depth = at->next_depth;
            at->arrived = 0;
            at->next_depth = 0;
        }
    }
    if (at->rounds == by->rounds)
        return WAITS;
    if (at->depth > by->depth)
        by->depth = at->depth;
    by->arrived = false;
    return DONE;
}

/* Perform an operation on data; it waits for the packets that it reads. */
static outcome plan_walk_move(walk *all, walker *by, const plan_op *op, uint64_t iterations)
{
    uint32_t step;
    if (plan_op_reads_packets(op->kind) &&
        !packet_writers_have(&all->packets, by->rank, op, by->iteration, iterations, &by->depth,
                             &step))
        return WAITS;
    packets_written news = {.rank = by->rank,
                            .block = by->block,
                            .op = op,
                            .iteration = by->iteration,
                            .destination = PACKETS_ALL,
                            .when = by->depth,
                            .away = 1};
    if (plan_op_writes_packets(op->kind))
        packet_writers_wrote(&all->packets, &news, NULL, NULL);
    if (op->kind == PLAN_PUT_WITH_SIGNAL || op->kind == PLAN_PUT_WITH_SIGNAL_AND_FLUSH)
        return plan_walk_signal_all(all, by, op);
    return DONE;
}

static outcome plan_walk_take_step(walk *all, walker *by, const plan_op *op, uint64_t iterations)
{
    switch (op->kind) {
    case PLAN_SIGNAL:
    case PLAN_RELAXED_SIGNAL:
        return plan_walk_signal_all(all, by, op);
    case PLAN_WAIT:
    case PLAN_RELAXED_WAIT:
        return wait_for_signals(all, by, op);
    case PLAN_SEM_ACQUIRE:
        return plan_walk_acquire(all, by, op);
    case PLAN_SEM_RELEASE:
        return plan_walk_release(all, by, op);
    case PLAN_BARRIER:
        return plan_walk_barrier(all, by, op);
    default:
        return plan_walk_move(all, by, op, iterations);
    }
}

static void plan_walk_go_on(walker *by, const plan_op *loop)
{
    by->taken = 0;
    plan_go_on(loop, &by->at, &by->inner, &by->iteration);
}

static bool is_too_long(const walk *all)
{
    return all->steps + all->packets.looks >= STEPS_MOST;
}

/* Run the thread block as far as possible; `moved` is set if it made progress. */
static outcome plan_walk_advance(walk *all, walker *by, bool *moved)
{
    *moved = false;
    while (by->at < by->block->op_count && !is_too_long(all)) {
        const plan_op *op = &by->block->ops[by->at];
        const plan_op *loop = op->kind == PLAN_PIPELINE ? op : NULL;
        uint64_t iterations = plan_geometry_iterations(all->geometry, op);
        all->steps++;
        if (loop && (by->iteration == iterations || loop->op_count == 0)) {
            by->iteration = 0;
            plan_walk_go_on(by, NULL);
            continue;
        }
        outcome result =
            plan_walk_take_step(all, by, loop ? &loop->ops[by->inner] : op, iterations);
        if (result != DONE)
            return result;
        plan_walk_go_on(by, loop);
        *moved = true;
    }
    return DONE;
}

static banyan_status walk_on(walk *all)
{
    bool moved = true;
    while (moved && !is_too_long(all)) {
        moved = false;
        for (size_t i = 0; i < all->walker_count; i++) {
            bool this_one;
            if (plan_walk_advance(all, &all->walkers[i], &this_one) == FAILED)
                return BANYAN_ERR_NO_MEMORY;
            moved |= this_one;
            all->steps++;
        }
    }
    return BANYAN_OK;
}

static uint64_t depth_of(const walk *all)
{
    uint64_t depth = 0;
    for (size_t i = 0; i < all->walker_count; i++) {
        const walker *one = &all->walkers[i];
        if (one->at < one->block->op_count)
            return 0;
        if (one->depth > depth)
            depth = one->depth;
    }
    return depth;
}

static void *plan_walk_take_zeroed(walk *all, size_t count, size_t bytes)
{
    void *taken = arena_take(&all->memory, count * bytes);
    return taken ? memset(taken, 0, count * bytes) : NULL;
}

static bool plan_walk_fill_semaphores(walk *all, int r)
{
    const plan_rank *rank = &all->plan->ranks[r];
    for (uint32_t i = 0; i < rank->semaphore_count; i++) {
        for (uint64_t k = 0; k < rank->semaphores[i] && all->steps < STEPS_MOST;
             k++, all->steps++) {
            if (add_token(&all->semaphores[r][i], 0) != DONE)
                return false;
            all->steps++;
        }
    }
    return true;
}

static bool plan_walk_prepare_rank(walk *all, int r)
{
    const plan_rank *rank = &all->plan->ranks[r];
    for (int type = PLAN_MEMORY; type <= PLAN_PORT; type++) {
        all->signals[r][type] =
            plan_walk_take_zeroed(all, rank->channel_count[type], sizeof(tokens));
        if (!all->signals[r][type])
            return false;
    }
    all->semaphores[r] = plan_walk_take_zeroed(all, rank->semaphore_count, sizeof(tokens));
    if (!all->semaphores[r] || !plan_walk_fill_semaphores(all, r))
        return false;
    for (uint32_t b = 0; b < rank->block_count; b++)
        all->walkers[all->walker_count++] = (walker){.rank = r, .block = &rank->blocks[b]};
    return true;
}

static banyan_status plan_walk_prepare(walk *all)
{
    const banyan_plan *plan = all->plan;
    size_t ranks = (size_t)plan->rank_count, blocks = 0;
    for (size_t r = 0; r < ranks; r++)
        blocks += plan->ranks[r].block_count;
    all->signals = plan_walk_take_zeroed(all, ranks, sizeof *all->signals);
    all->semaphores = plan_walk_take_zeroed(all, ranks, sizeof *all->semaphores);
    all->walkers = plan_walk_take_zeroed(all, blocks, sizeof *all->walkers);
    if (!all->signals || !all->semaphores || !all->walkers)
        return BANYAN_ERR_NO_MEMORY;
    for (size_t r = 0; r < ranks; r++) {
        if (!plan_walk_prepare_rank(all, (int)r))
            return BANYAN_ERR_NO_MEMORY;
    }
    RETURN_IF_FAILED(plan_pairs_make(plan, &all->pairs));
    return packet_writers_make(plan, all->geometry, WRITERS_MOST, &all->packets);
}

static void plan_walk_free_tokens(tokens *list, uint32_t count)
{
    for (uint32_t i = 0; list && i < count; i++)
        array_free(&list[i].depths);
}

static void free_walk(walk *all)
{
    for (int r = 0; all->signals && all->semaphores && r < all->plan->rank_count; r++) {
        const plan_rank *rank = &all->plan->ranks[r];
        plan_walk_free_tokens(all->signals[r][PLAN_MEMORY], rank->channel_count[PLAN_MEMORY]);
        plan_walk_free_tokens(all->signals[r][PLAN_PORT], rank->channel_count[PLAN_PORT]);
        plan_walk_free_tokens(all->semaphores[r], rank->semaphore_count);
    }
    packet_writers_free(&all->packets);
    plan_pairs_free(&all->pairs);
    plan_barrier_numbers_free(&all->meetings);
    array_free(&all->meeting_list);
    arena_free(&all->memory);
}

banyan_status plan_walk_hops(const banyan_plan *plan, const plan_geometry *geometry, uint64_t *hops)
{
    walk all = {.plan = plan, .geometry = geometry};
    banyan_status status = plan_walk_prepare(&all);
    if (status == BANYAN_OK && !all.packets.too_many)
        status = walk_on(&all);
    if (status == BANYAN_OK)
        *hops = depth_of(&all);
    free_walk(&all);
    return status;
}
