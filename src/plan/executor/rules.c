/* Violations of the executor's rules that do not depend on the message. */
#include "plan/executor/mscclpp.h"

#include <stdarg.h>
#include <stdio.h>

#include "plan/geometry/geometry.h"
#include "plan/op.h"

#define ULL(number) ((unsigned long long)(number))
#define MESSAGE_BYTES 320

typedef struct reviewer {
    const banyan_plan *plan;
    mscclpp_report report;
    void *context;
    plan_cursor at; /* for faults of an operation */
} reviewer;

static banyan_status fault_at(reviewer *by, mscclpp_fault fault, const char *format,
                              va_list arguments)
{
    char message[MESSAGE_BYTES];
    vsnprintf(message, sizeof message, format, arguments);
    fault.message = message;
    return by->report(by->context, &fault);
}

static banyan_status fault_of_rank(reviewer *by, int rank, int block, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static banyan_status fault_of_rank(reviewer *by, int rank, int block, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    banyan_status status =
        fault_at(by, (mscclpp_fault){rank, block, -1, -1, NULL}, format, arguments);
    va_end(arguments);
    return status;
}

static banyan_status fault_of_op(reviewer *by, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static banyan_status fault_of_op(reviewer *by, const char *format, ...)
{
    const plan_cursor *at = &by->at;
    mscclpp_fault fault = {at->rank, (int)at->number, (int)at->at, -1, NULL};
    if (at->loop)
        fault.loop_op = (int)at->inner;
    va_list arguments;
    va_start(arguments, format);
    banyan_status status = fault_at(by, fault, format, arguments);
    va_end(arguments);
    return status;
}

mscclpp_scratch mscclpp_scratch_of(const banyan_plan *plan)
{
    mscclpp_scratch use = {.data_begin = UINT64_MAX};
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);) {
        for (uint32_t i = 0; i < plan_operand_count(at.op); i++) {
            const plan_operand *operand = plan_operand_at(at.op, i);
            if (plan_operand_where(plan, at.rank, at.block, at.op, operand).buffer != PLAN_SCRATCH)
                continue;
            bool packets = plan_operand_is_packets(at.op, i);
            uint64_t end = operand->index + operand->size;
            use.packets |= packets;
            use.data |= !packets;
            if (packets && end > use.packets_end)
                use.packets_end = end;
            if (!packets && operand->index < use.data_begin)
                use.data_begin = operand->index;
        }
    }
    return use;
}

static banyan_status review_plan(reviewer *by)
{
    const banyan_plan *plan = by->plan;
    mscclpp_scratch use = mscclpp_scratch_of(plan);
    if (plan->buffer_alignment % MSCCLPP_VECTOR_BYTES != 0)
        RETURN_IF_FAILED(fault_of_rank(by, -1, -1,
                                       "aligns to %llu bytes: the executor moves %d bytes at a "
                                       "time, so a multiple of these is needed",
                                       ULL(plan->buffer_alignment), MSCCLPP_VECTOR_BYTES));
    else if (!mscclpp_halves_align(plan))
        RETURN_IF_FAILED(fault_of_rank(by, -1, -1,
                                       "has double scratch and aligns to %llu bytes: the second "
                                       "half may begin at an odd multiple of half the alignment, "
                                       "so a multiple of %d is needed",
                                       ULL(plan->buffer_alignment), 2 * MSCCLPP_VECTOR_BYTES));
    if (use.packets && plan->protocol != BANYAN_LL)
        RETURN_IF_FAILED(fault_of_rank(by, -1, -1,
                                       "has packets, and its protocol is Simple: the executor then "
                                       "allocates half of the scratch that they need"));
    if (use.packets && use.data && use.data_begin < 2 * use.packets_end)
        RETURN_IF_FAILED(fault_of_rank(by, -1, -1,
                                       "has packets in scratch chunks up to %llu and other data "
                                       "from chunk %llu on: packets of chunk i lie where data of "
                                       "chunks 2i and 2i + 1 lie",
                                       ULL(use.packets_end), ULL(use.data_begin)));
    if (plan->threads_per_block > MSCCLPP_THREADS ||
        plan->threads_per_block < MSCCLPP_OP_SEMAPHORES)
        RETURN_IF_FAILED(
            fault_of_rank(by, -1, -1, "is for %d threads in a block: %d to %d are possible",
                          plan->threads_per_block, MSCCLPP_OP_SEMAPHORES, MSCCLPP_THREADS));
    return BANYAN_OK;
}

/* The executor computes the size of scratch from that of the input's allocation, a multiple of
 * MSCCLPP_ALLOCATION_BYTES, and halves it. */
bool mscclpp_halves_align(const banyan_plan *plan)
{
    uint64_t times = plan->protocol == BANYAN_LL ? 2 : 1;
    if (!plan->double_scratch || plan->buffer_alignment % (2 * MSCCLPP_VECTOR_BYTES) == 0)
        return true;
    for (int r = 0; r < plan->rank_count; r++) {
        const uint64_t *chunks = plan->ranks[r].chunks;
        bool whole = chunks[PLAN_INPUT] > 0 &&
                     MSCCLPP_ALLOCATION_BYTES / MSCCLPP_VECTOR_BYTES % chunks[PLAN_INPUT] == 0;
        if (!whole && chunks[PLAN_SCRATCH] * times % MSCCLPP_VECTOR_BYTES != 0)
            return false;
    }
    return true;
}

static uint32_t count_ops(const plan_thread_block *block)
{
    uint32_t count = block->op_count;
    for (uint32_t i = 0; i < block->op_count; i++)
        count += block->ops[i].op_count;
    return count;
}

static banyan_status review_posts(reviewer *by, mscclpp_posts *posts, const plan_op *op)
{
    uint32_t number = mscclpp_posts_conflict(posts, op);
    mscclpp_posts_note(posts, op);
    if (number == op->channel_count)
        return BANYAN_OK;
    return fault_of_op(by,
                       "posts to port channel %u with thread %u, and another thread has posted "
                       "to it since the last nop: the two may change their order",
                       plan_channel_of(by->at.block, op, op->channels[number]), number);
}

static banyan_status review_order_in(reviewer *by, mscclpp_posts *posts)
{
    const plan_thread_block *block = by->at.block;
    for (by->at.at = 0; by->at.at < block->op_count; by->at.at++) {
        const plan_op *op = &block->ops[by->at.at];
        by->at.loop = NULL;
        RETURN_IF_FAILED(review_posts(by, posts, op));
        by->at.loop = op;
        /* The second time, for what one iteration leaves to the next. */
        for (uint32_t i = 0; i < 2 * op->op_count; i++) {
            by->at.inner = i % op->op_count;
            RETURN_IF_FAILED(review_posts(by, posts, &op->ops[by->at.inner]));
        }
    }
    return BANYAN_OK;
}

static banyan_status review_order(reviewer *by, int rank, uint32_t number)
{
    mscclpp_posts posts;
    by->at = (plan_cursor){.plan = by->plan,
                           .rank = rank,
                           .number = number,
                           .block = &by->plan->ranks[rank].blocks[number]};
    RETURN_IF_FAILED(mscclpp_posts_make(by->at.block, &posts));
    banyan_status status = review_order_in(by, &posts);
    mscclpp_posts_free(&posts);
    return status;
}

static banyan_status review_block(reviewer *by, int r, uint32_t number)
{
    const plan_thread_block *block = &by->plan->ranks[r].blocks[number];
    uint32_t ops = count_ops(block);
    if (block->id != number)
        RETURN_IF_FAILED(fault_of_rank(by, r, (int)number,
                                       "has the id %u: the executor numbers thread blocks in order",
                                       block->id));
    if (ops > MSCCLPP_BLOCK_OPS)
        RETURN_IF_FAILED(fault_of_rank(by, r, (int)number,
                                       "has %u operations, with those in loops: at most %d are "
                                       "possible",
                                       ops, MSCCLPP_BLOCK_OPS));
    for (int type = PLAN_MEMORY; type < PLAN_CHANNEL_TYPES; type++) {
        if (block->channel_count[type] > MSCCLPP_BLOCK_CHANNELS)
            RETURN_IF_FAILED(fault_of_rank(
                by, r, (int)number, "has %u %s channels: at most %d are possible",
                block->channel_count[type], plan_channel_name(type), MSCCLPP_BLOCK_CHANNELS));
        if (block->remote_buffer_count[type] > MSCCLPP_BLOCK_CHANNELS)
            RETURN_IF_FAILED(fault_of_rank(
                by, r, (int)number, "has %u remote buffers of %s channels: at most %d are possible",
                block->remote_buffer_count[type], plan_channel_name(type), MSCCLPP_BLOCK_CHANNELS));
    }
    return review_order(by, r, number);
}

static banyan_status review_rank(reviewer *by, int r)
{
    const banyan_plan *plan = by->plan;
    const plan_rank *rank = &plan->ranks[r];
    if (rank->chunks[PLAN_INPUT] == 0 || rank->chunks[PLAN_OUTPUT] == 0)
        RETURN_IF_FAILED(fault_of_rank(by, r, -1,
                                       "has %llu input and %llu output chunks: the executor "
                                       "divides by both numbers",
                                       ULL(rank->chunks[PLAN_INPUT]),
                                       ULL(rank->chunks[PLAN_OUTPUT])));
    if (rank->block_count == 0)
        RETURN_IF_FAILED(fault_of_rank(by, r, -1,
                                       "has no thread block: the executor launches a kernel on "
                                       "every rank"));
    if ((plan->double_scratch || plan->reuse_resources) &&
        rank->chunks[PLAN_SCRATCH] != plan->ranks[0].chunks[PLAN_SCRATCH])
        RETURN_IF_FAILED(fault_of_rank(by, r, -1,
                                       "has %llu scratch chunks, and rank 0 has %llu: the executor "
                                       "computes places in the scratch of others from its own",
                                       ULL(rank->chunks[PLAN_SCRATCH]),
                                       ULL(plan->ranks[0].chunks[PLAN_SCRATCH])));
    for (uint32_t b = 0; b < rank->block_count; b++)
        RETURN_IF_FAILED(review_block(by, r, b));
    return BANYAN_OK;
}

static banyan_status review_counts(reviewer *by)
{
    const plan_op *op = by->at.op;
    if (op->channel_count > MSCCLPP_OP_CHANNELS)
        RETURN_IF_FAILED(fault_of_op(by, "has %u channels: at most %d are possible",
                                     op->channel_count, MSCCLPP_OP_CHANNELS));
    if (op->source_count > MSCCLPP_OP_OPERANDS || op->destination_count > MSCCLPP_OP_OPERANDS)
        RETURN_IF_FAILED(fault_of_op(by,
                                     "has %u sources and %u destinations: at most %d are possible",
                                     op->source_count, op->destination_count, MSCCLPP_OP_OPERANDS));
    if (op->semaphore_count > MSCCLPP_OP_SEMAPHORES)
        RETURN_IF_FAILED(fault_of_op(by, "has %u semaphores: at most %d are possible",
                                     op->semaphore_count, MSCCLPP_OP_SEMAPHORES));
    if (op->kind == PLAN_BARRIER && op->barrier >= MSCCLPP_BARRIERS)
        RETURN_IF_FAILED(
            fault_of_op(by, "is barrier %u: there are %d", op->barrier, MSCCLPP_BARRIERS));
    return BANYAN_OK;
}

bool mscclpp_is_in_first_half(const plan_cursor *at, uint32_t i)
{
    const plan_operand *operand = plan_operand_at(at->op, i);
    plan_where where = plan_operand_where(at->plan, at->rank, at->block, at->op, operand);
    return where.buffer == PLAN_SCRATCH && !plan_operand_is_packets(at->op, i) &&
           (operand->place != PLAN_LOCAL || at->op->channel_type == PLAN_PORT);
}

static banyan_status review_scratch(reviewer *by)
{
    const plan_cursor *at = &by->at;
    for (uint32_t i = 0; at->plan->double_scratch && i < plan_operand_count(at->op); i++) {
        if (mscclpp_is_in_first_half(at, i))
            return fault_of_op(by, "moves data through a channel and double scratch: the executor "
                                   "uses the first half in every run; it alternates for packets "
                                   "and for a block's own reads and writes");
    }
    return BANYAN_OK;
}

/* In place, the input of all-gather and the output of reduce-scatter begin at other offsets on each
 * rank; the executor adds its own rank's offset to the buffers of others. */
static bool rules_is_misplaced(const plan_cursor *at, uint32_t i)
{
    const plan_operand *operand = plan_operand_at(at->op, i);
    plan_buffer moved = at->plan->collective == BANYAN_ALLGATHER ? PLAN_INPUT : PLAN_OUTPUT;
    bool moves = at->plan->in_place && (at->plan->collective == BANYAN_ALLGATHER ||
                                        at->plan->collective == BANYAN_REDUCESCATTER);
    return moves && (operand->place != PLAN_LOCAL || at->op->channel_type == PLAN_PORT) &&
           plan_operand_where(at->plan, at->rank, at->block, at->op, operand).buffer == moved;
}

static banyan_status review_places(reviewer *by)
{
    const plan_op *op = by->at.op;
    for (uint32_t i = 0; i < plan_operand_count(op); i++) {
        if (rules_is_misplaced(&by->at, i))
            return fault_of_op(by, "accesses a buffer in place that begins at another offset on "
                                   "each rank: the executor knows its own rank's offset only");
    }
    for (uint32_t i = 1; i < op->source_count; i++) {
        if (op->channel_type == PLAN_MEMORY &&
            (op->kind == PLAN_PUT || op->kind == PLAN_PUT_PACKET) &&
            op->sources[i].buffer != op->sources[0].buffer)
            return fault_of_op(by,
                               "puts from the %s and from the %s: the executor takes all from "
                               "the first buffer",
                               plan_buffer_word(op->sources[0].buffer),
                               plan_buffer_word(op->sources[i].buffer));
    }
    for (uint32_t i = 0; op->kind == PLAN_GET && by->plan->executor != BANYAN_EXECUTOR_MSCCLPP &&
                         i < op->source_count;
         i++) {
        if (op->sources[i].index != op->destinations[i].index)
            return fault_of_op(by,
                               "gets chunk %llu into chunk %llu: the executor exchanges the "
                               "two places",
                               ULL(op->sources[i].index), ULL(op->destinations[i].index));
    }
    return BANYAN_OK;
}

static banyan_status review_kind(reviewer *by)
{
    const plan_op *op = by->at.op;
    if (op->kind == PLAN_GROUP_LOAD_REDUCE)
        return fault_of_op(by, "is unknown to the executor: it reduces over a switch channel only "
                               "to store the result to all (glres)");
    if (op->kind == PLAN_PUT_PACKET && op->channel_type == PLAN_PORT)
        return fault_of_op(by, "puts packets by a port channel: the executor sends the source as "
                               "it is, without making packets");
    if (plan_op_reduces(op->kind) && op->reduce_op != BANYAN_SUM)
        return fault_of_op(by, "reduces by %s: the executor always adds",
                           banyan_reduce_op_name(op->reduce_op));
    return BANYAN_OK;
}

/* True if an operand of a reduction is not where the executor looks for it, once reused scratch
 * wraps around: it decides by the type of another operand. */
static bool wraps_wrongly(const plan_cursor *at, uint32_t i)
{
    const plan_op *op = at->op;
    bool scratch = op->sources[i].buffer == PLAN_SCRATCH;
    bool taken_for_scratch =
        i < op->destination_count && op->destinations[i].reference == PLAN_SCRATCH;
    return scratch != taken_for_scratch;
}

static banyan_status review_reused(reviewer *by)
{
    const plan_op *op = by->at.op;
    if (!by->plan->reuse_resources)
        return BANYAN_OK;
    uint64_t chunks = by->plan->ranks[by->at.rank].chunks[PLAN_SCRATCH];
    uint64_t bytes = PLAN_REUSED_SCRATCH_BYTES / (by->plan->double_scratch ? 2 : 1);
    if (chunks > 0 && (bytes % chunks != 0 || bytes / chunks % by->at.loop->unit_bytes != 0))
        return fault_of_op(by,
                           "wraps around in reused scratch of %llu bytes in %llu chunks, of "
                           "which each must hold whole units of %llu bytes",
                           ULL(bytes), ULL(chunks), ULL(by->at.loop->unit_bytes));
    for (uint32_t i = 1;
         (op->kind == PLAN_REDUCE || op->kind == PLAN_REDUCE_SEND) && i < op->source_count; i++) {
        if (wraps_wrongly(&by->at, i))
            return fault_of_op(by,
                               "reduces source %u in a loop over reused scratch: the executor "
                               "decides by another operand whether it wraps around",
                               i);
    }
    return BANYAN_OK;
}

static banyan_status review_in_loop(reviewer *by)
{
    const plan_op *op = by->at.op, *loop = by->at.loop;
    if (!loop || op->source_count == 0)
        return BANYAN_OK;
    if (plan_op_reads_packets(op->kind) || plan_op_writes_packets(op->kind))
        return fault_of_op(by, "has packets in a loop: the executor moves all of them in every "
                               "iteration");
    if (op->group_size > 1)
        return fault_of_op(by,
                           "is a share of %u thread blocks in a loop: the executor steps past "
                           "the end of the share",
                           op->group_size);
    if (op->sources[0].size != loop->loop_chunks)
        return fault_of_op(by,
                           "moves %llu chunks in a loop over %llu: the executor steps past its "
                           "end",
                           ULL(op->sources[0].size), ULL(loop->loop_chunks));
    return review_reused(by);
}

static banyan_status review_op(reviewer *by)
{
    RETURN_IF_FAILED(review_counts(by));
    RETURN_IF_FAILED(review_kind(by));
    RETURN_IF_FAILED(review_scratch(by));
    RETURN_IF_FAILED(review_places(by));
    return review_in_loop(by);
}

/* Report semaphores that several thread blocks acquire: of two that wait, a single release may
 * wake neither. */
static banyan_status review_semaphores(reviewer *by, int r)
{
    const plan_rank *rank = &by->plan->ranks[r];
    for (uint32_t s = 0; s < rank->semaphore_count; s++) {
        uint32_t first = UINT32_MAX;
        for (plan_cursor at = {.plan = by->plan}; plan_cursor_next(&at);) {
            for (uint32_t i = 0;
                 at.rank == r && at.op->kind == PLAN_SEM_ACQUIRE && i < at.op->semaphore_count;
                 i++) {
                if (at.op->semaphores[i] != s || first == at.number)
                    continue;
                if (first == UINT32_MAX) {
                    first = at.number;
                    continue;
                }
                by->at = at;
                return fault_of_op(by,
                                   "acquires semaphore %u, as thread block %u does: of two "
                                   "that wait, a release may wake neither",
                                   s, first);
            }
        }
    }
    return BANYAN_OK;
}

banyan_status mscclpp_review(const banyan_plan *plan, mscclpp_report report, void *context)
{
    reviewer by = {.plan = plan, .report = report, .context = context};
    RETURN_IF_FAILED(review_plan(&by));
    for (int r = 0; r < plan->rank_count; r++) {
        RETURN_IF_FAILED(review_rank(&by, r));
        RETURN_IF_FAILED(review_semaphores(&by, r));
    }
    for (by.at = (plan_cursor){.plan = plan}; plan_cursor_next(&by.at);)
        RETURN_IF_FAILED(review_op(&by));
    return BANYAN_OK;
}

#define OFFSET_MAX UINT32_MAX
#define ITERATIONS_MAX UINT16_MAX

static uint64_t rules_lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t most_chunks(const banyan_plan *plan, plan_buffer buffer)
{
    uint64_t most = 0;
    for (int r = 0; r < plan->rank_count; r++) {
        if (plan->ranks[r].chunks[buffer] > most)
            most = plan->ranks[r].chunks[buffer];
    }
    return most;
}

uint64_t mscclpp_longest_message(const banyan_plan *plan)
{
    uint64_t input = most_chunks(plan, PLAN_INPUT), output = most_chunks(plan, PLAN_OUTPUT);
    uint64_t scratch = most_chunks(plan, PLAN_SCRATCH);
    uint64_t measured = plan->collective == BANYAN_ALLGATHER ? output : input;
    if (__builtin_mul_overflow(
            scratch, (plan->protocol == BANYAN_LL ? 2 : 1) * (plan->double_scratch ? 2 : 1),
            &scratch) ||
        input == 0 || output == 0)
        return 0;
    uint64_t chunk = OFFSET_MAX / (input > output ? input : output);
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);) {
        uint64_t bytes;
        if (at.op->kind == PLAN_PIPELINE &&
            !__builtin_mul_overflow(at.op->unit_bytes, (uint64_t)ITERATIONS_MAX, &bytes))
            chunk = rules_lesser(chunk, bytes / at.op->loop_chunks);
    }
    /* The executor computes the size of scratch from the limit, as if that were the input's. */
    uint64_t room = scratch > 0 && !plan->reuse_resources ? OFFSET_MAX / scratch : chunk;
    uint64_t alignment = plan->buffer_alignment;
    return rules_lesser(chunk / alignment * alignment * measured,
                        room / alignment * alignment * input);
}

static mscclpp_placement placement_of(const plan_cursor *at, uint32_t i)
{
    const plan_operand *operand = plan_operand_at(at->op, i);
    plan_where where = plan_operand_where(at->plan, at->rank, at->block, at->op, operand);
    if (where.buffer == PLAN_SCRATCH)
        return MSCCLPP_ANYWHERE;
    if (operand->place == PLAN_LOCAL)
        return at->op->channel_type == PLAN_PORT ? MSCCLPP_AT_BEGINNING : MSCCLPP_ANYWHERE;
    return at->op->kind == PLAN_GET ? MSCCLPP_AT_BEGINNING : MSCCLPP_EQUAL_OFFSETS;
}

mscclpp_placement mscclpp_placement_of(const banyan_plan *plan)
{
    mscclpp_placement strictest = MSCCLPP_ANYWHERE;
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);) {
        for (uint32_t i = 0; i < plan_operand_count(at.op); i++) {
            mscclpp_placement one = placement_of(&at, i);
            strictest = one > strictest ? one : strictest;
        }
    }
    return strictest;
}

uint64_t mscclpp_lost_flushes(const banyan_plan *plan)
{
    uint64_t lost = 0;
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);)
        lost += plan->executor != BANYAN_EXECUTOR_MSCCLPP && at.op->kind == PLAN_FLUSH;
    return lost;
}
