/* Plans run in one thread on chunks that are single numbers; the result is the final memory.
 * Signals, semaphores and packets are waited for; a deadlock is an error. Loops run once. Members
 * of a thread block group each perform the whole operation, which must not matter. */
#ifndef TESTS_PROGRAM_INTERPRET_H
#define TESTS_PROGRAM_INTERPRET_H

#include "plan/plan.h"
#include "support/test.h"

typedef struct interpreted_cell {
    uint64_t value;
    bool is_packet; /* present, with its flag */
} interpreted_cell;

typedef struct interpreted_rank {
    interpreted_cell *cells[PLAN_BUFFERS];
    uint64_t *signals[PLAN_CHANNEL_TYPES]; /* arrived signals of each channel */
    uint64_t *semaphores;
    uint64_t *arrivals; /* at each barrier */
    uint64_t *barriers; /* arrivals that each thread block waits for; 0: it is at no barrier */
    uint32_t *next;     /* operation of each thread block; in a loop, that of the loop */
    uint32_t *next_in_loop;
} interpreted_rank;

typedef struct interpreted {
    const banyan_plan *plan;
    interpreted_rank *ranks;
} interpreted;

static inline void *interpreted_take(uint64_t count, size_t bytes)
{
    void *taken = calloc(count + 1, bytes);
    CHECK(taken, "out of memory");
    return taken;
}

enum { INTERPRETED_BARRIERS = 256 };

/* Every cell of rank r's buffer b at chunk c begins with initial(context, r, b, c). */
typedef uint64_t (*initial_value)(void *context, int rank, plan_buffer buffer, uint64_t chunk);

static inline interpreted interpreted_begin(const banyan_plan *plan, initial_value initial,
                                            void *context)
{
    interpreted made = {plan, interpreted_take((uint64_t)plan->rank_count, sizeof *made.ranks)};
    for (int r = 0; r < plan->rank_count; r++) {
        const plan_rank *of = &plan->ranks[r];
        interpreted_rank *rank = &made.ranks[r];
        for (int b = 0; b < PLAN_BUFFERS; b++) {
            rank->cells[b] = interpreted_take(of->chunks[b], sizeof **rank->cells);
            for (uint64_t c = 0; c < of->chunks[b]; c++)
                rank->cells[b][c].value = initial(context, r, (plan_buffer)b, c);
        }
        for (int t = 0; t < PLAN_CHANNEL_TYPES; t++)
            rank->signals[t] = interpreted_take(of->channel_count[t], sizeof **rank->signals);
        rank->semaphores = interpreted_take(of->semaphore_count, sizeof *rank->semaphores);
        for (uint32_t s = 0; s < of->semaphore_count; s++)
            rank->semaphores[s] = of->semaphores[s];
        rank->arrivals = interpreted_take(INTERPRETED_BARRIERS, sizeof *rank->arrivals);
        rank->barriers = interpreted_take(of->block_count, sizeof *rank->barriers);
        rank->next = interpreted_take(of->block_count, sizeof *rank->next);
        rank->next_in_loop = interpreted_take(of->block_count, sizeof *rank->next_in_loop);
    }
    return made;
}

static inline void interpreted_end(interpreted *run)
{
    for (int r = 0; r < run->plan->rank_count; r++) {
        interpreted_rank *rank = &run->ranks[r];
        for (int b = 0; b < PLAN_BUFFERS; b++)
            free(rank->cells[b]);
        for (int t = 0; t < PLAN_CHANNEL_TYPES; t++)
            free(rank->signals[t]);
        free(rank->semaphores);
        free(rank->arrivals);
        free(rank->barriers);
        free(rank->next);
        free(rank->next_in_loop);
    }
    free(run->ranks);
}

/* The current operation and its thread block. */
typedef struct interpreted_op {
    interpreted *run;
    int rank;
    uint32_t block;
    const plan_op *op;
} interpreted_op;

static inline const plan_thread_block *block_of(const interpreted_op *at)
{
    return &at->run->plan->ranks[at->rank].blocks[at->block];
}

static inline interpreted_cell *cell_of(const interpreted_op *at, const plan_operand *operand,
                                        int rank, uint64_t i)
{
    plan_where where = plan_operand_where(at->run->plan, at->rank, block_of(at), at->op, operand);
    return &at->run->ranks[rank < 0 ? where.rank : rank].cells[where.buffer][operand->index + i];
}

static inline uint64_t reduced(banyan_reduce_op op, uint64_t a, uint64_t b)
{
    if (op == BANYAN_SUM)
        return a + b;
    return (op == BANYAN_MIN) == (a < b) ? a : b;
}

static inline const plan_switch *group_of(const interpreted_op *at, const plan_operand *operand)
{
    uint32_t channel = block_of(at)->channels[PLAN_SWITCH][operand->reference];
    return &at->run->plan->ranks[at->rank].switches[channel];
}

/* Chunk i of a source; false: its packet has not arrived. */
static inline bool read_source(const interpreted_op *at, uint32_t source, uint64_t i,
                               uint64_t *value)
{
    const plan_operand *operand = &at->op->sources[source];
    if (operand->place == PLAN_GROUP) {
        const plan_switch *group = group_of(at, operand);
        *value = cell_of(at, operand, group->ranks[0], i)->value;
        for (int m = 1; m < group->rank_count; m++)
            *value =
                reduced(at->op->reduce_op, *value, cell_of(at, operand, group->ranks[m], i)->value);
        return true;
    }
    const interpreted_cell *cell = cell_of(at, operand, -1, i);
    *value = cell->value;
    return cell->is_packet || !plan_source_is_packets(at->op, source);
}

static inline void write_destination(const interpreted_op *at, uint32_t destination, uint64_t i,
                                     uint64_t value)
{
    const plan_operand *operand = &at->op->destinations[destination];
    interpreted_cell cell = {value, plan_destination_is_packets(at->op, destination)};
    if (operand->place != PLAN_GROUP) {
        *cell_of(at, operand, -1, i) = cell;
        return;
    }
    const plan_switch *group = group_of(at, operand);
    for (int m = 0; m < group->rank_count; m++)
        *cell_of(at, operand, group->ranks[m], i) = cell;
}

static inline bool all_sources_there(const interpreted_op *at)
{
    uint64_t value;
    for (uint32_t s = 0; s < at->op->source_count; s++) {
        for (uint64_t i = 0; i < at->op->sources[s].size; i++) {
            if (!read_source(at, s, i, &value))
                return false;
        }
    }
    return true;
}

static inline void move_data(const interpreted_op *at)
{
    const plan_op *op = at->op;
    bool pairs = plan_op_is_pairs(op->kind);
    for (uint32_t d = 0; d < op->destination_count; d++) {
        for (uint64_t i = 0; pairs && i < op->destinations[d].size; i++) {
            uint64_t value = 0;
            read_source(at, d, i, &value);
            write_destination(at, d, i, value);
        }
    }
    for (uint64_t i = 0; !pairs && i < op->destinations[0].size; i++) {
        uint64_t sum = 0, value = 0;
        read_source(at, 0, i, &sum);
        for (uint32_t s = 1; s < op->source_count; s++) {
            read_source(at, s, i, &value);
            sum = reduced(op->reduce_op, sum, value);
        }
        for (uint32_t d = 0; d < op->destination_count; d++)
            write_destination(at, d, i, sum);
    }
}

static inline void send_signals(const interpreted_op *at)
{
    for (uint32_t i = 0; i < at->op->channel_count; i++) {
        int peer;
        uint32_t channel;
        CHECK(plan_channel_pair(at->run->plan, at->rank, at->op->channel_type,
                                plan_channel_of(block_of(at), at->op, at->op->channels[i]), &peer,
                                &channel),
              "no pair");
        at->run->ranks[peer].signals[at->op->channel_type][channel]++;
    }
}

static inline bool take_signals(const interpreted_op *at)
{
    uint64_t *signals = at->run->ranks[at->rank].signals[at->op->channel_type];
    for (uint32_t i = 0; i < at->op->channel_count; i++) {
        uint64_t *signal = &signals[plan_channel_of(block_of(at), at->op, at->op->channels[i])];
        if (*signal == 0) {
            while (i-- > 0)
                signals[plan_channel_of(block_of(at), at->op, at->op->channels[i])]++;
            return false;
        }
        --*signal;
    }
    return true;
}

static inline bool interpret_barrier(const interpreted_op *at)
{
    interpreted_rank *rank = &at->run->ranks[at->rank];
    uint64_t *arrivals = &rank->arrivals[at->op->barrier], members = at->op->barrier_members;
    CHECK(at->op->barrier < INTERPRETED_BARRIERS, "barrier %u", at->op->barrier);
    if (rank->barriers[at->block] == 0)
        rank->barriers[at->block] = ((*arrivals)++ / members + 1) * members;
    if (*arrivals < rank->barriers[at->block])
        return false;
    rank->barriers[at->block] = 0;
    return true;
}

/* False: it waits. */
static inline bool interpret_op(const interpreted_op *at)
{
    uint64_t *semaphores = at->run->ranks[at->rank].semaphores;
    switch (at->op->kind) {
    case PLAN_NOP:
    case PLAN_FLUSH:
        return true;
    case PLAN_SIGNAL:
    case PLAN_RELAXED_SIGNAL:
        send_signals(at);
        return true;
    case PLAN_WAIT:
    case PLAN_RELAXED_WAIT:
        return take_signals(at);
    case PLAN_SEM_ACQUIRE:
        for (uint32_t i = 0; i < at->op->semaphore_count; i++) {
            if (semaphores[at->op->semaphores[i]] == 0) {
                while (i-- > 0)
                    semaphores[at->op->semaphores[i]]++;
                return false;
            }
            semaphores[at->op->semaphores[i]]--;
        }
        return true;
    case PLAN_SEM_RELEASE:
        for (uint32_t i = 0; i < at->op->semaphore_count; i++)
            semaphores[at->op->semaphores[i]]++;
        return true;
    case PLAN_BARRIER:
        return interpret_barrier(at);
    default:
        break;
    }
    if (!all_sources_there(at))
        return false;
    move_data(at);
    if (at->op->kind == PLAN_PUT_WITH_SIGNAL || at->op->kind == PLAN_PUT_WITH_SIGNAL_AND_FLUSH)
        send_signals(at);
    return true;
}

/* Perform one operation of the block. False: it waits, or has ended. */
static inline bool interpret_step(interpreted *run, int r, uint32_t b)
{
    interpreted_rank *rank = &run->ranks[r];
    const plan_thread_block *block = &run->plan->ranks[r].blocks[b];
    if (rank->next[b] == block->op_count)
        return false;
    const plan_op *op = &block->ops[rank->next[b]];
    bool in_loop = op->kind == PLAN_PIPELINE;
    interpreted_op at = {run, r, b, in_loop ? &op->ops[rank->next_in_loop[b]] : op};
    if (!interpret_op(&at))
        return false;
    if (in_loop && ++rank->next_in_loop[b] < op->op_count)
        return true;
    rank->next_in_loop[b] = 0;
    rank->next[b]++;
    return true;
}

/* Thread blocks take turns in an order that `random` chooses. */
static inline void interpret(interpreted *run, random_state *random)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < run->plan->rank_count; i++) {
            int r = (i + (int)random_between(random, 0, run->plan->rank_count - 1)) %
                    run->plan->rank_count;
            for (uint32_t b = 0; b < run->plan->ranks[r].block_count; b++)
                moved = interpret_step(run, r, b) || moved;
        }
        for (int r = 0; r < run->plan->rank_count; r++) {
            for (uint32_t b = 0; b < run->plan->ranks[r].block_count; b++)
                moved = interpret_step(run, r, b) || moved;
        }
    }
    for (int r = 0; r < run->plan->rank_count; r++) {
        for (uint32_t b = 0; b < run->plan->ranks[r].block_count; b++)
            CHECK(run->ranks[r].next[b] == run->plan->ranks[r].blocks[b].op_count,
                  "rank %d, thread block %u waits for ever at operation %u", r, b,
                  run->ranks[r].next[b]);
    }
}

#endif
