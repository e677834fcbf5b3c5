/* Plans of one operation, for tests of its byte positions. */
#ifndef TESTS_PLAN_SHAPES_H
#define TESTS_PLAN_SHAPES_H

#include "plan/geometry/geometry.h"
#include "support/test.h"

typedef struct shape {
    banyan_collective_kind kind;
    int ranks;
    uint64_t factor, scratch, alignment; /* chunks per block; scratch chunks; bytes */
} shape;

static inline uint64_t blocks_of(const shape *of, plan_buffer buffer)
{
    bool many = of->kind == BANYAN_ALLTOALL ||
                (of->kind == BANYAN_ALLGATHER && buffer == PLAN_OUTPUT) ||
                (of->kind == BANYAN_REDUCESCATTER && buffer == PLAN_INPUT);
    return many ? (uint64_t)of->ranks : 1;
}

static inline uint64_t chunks_of(const shape *of, plan_buffer buffer)
{
    return buffer == PLAN_SCRATCH ? of->scratch : of->factor * blocks_of(of, buffer);
}

/* Rank 0 has a remote buffer of every kind of rank 1; a single thread block with one operation. */
static inline banyan_plan *make_plan(const shape *of)
{
    banyan_plan *plan = plan_create(of->ranks);
    CHECK(plan);
    plan->name = "geometry";
    plan->collective = of->kind;
    plan->collective_name = banyan_collective_kind_name(of->kind);
    plan->buffer_alignment = of->alignment;
    for (int r = 0; r < of->ranks; r++) {
        plan_rank *rank = &plan->ranks[r];
        for (int b = 0; b < PLAN_BUFFERS; b++)
            rank->chunks[b] = chunks_of(of, (plan_buffer)b);
        rank->block_count = 1;
        rank->blocks = plan_take(plan, 1, sizeof *rank->blocks);
        rank->remote_buffer_count = PLAN_BUFFERS;
        rank->remote_buffers = plan_take(plan, PLAN_BUFFERS, sizeof *rank->remote_buffers);
        plan_thread_block *block = rank->blocks;
        block->remote_buffers[PLAN_MEMORY] = plan_take(plan, PLAN_BUFFERS, sizeof(uint32_t));
        block->remote_buffer_count[PLAN_MEMORY] = PLAN_BUFFERS;
        for (uint32_t b = 0; b < PLAN_BUFFERS; b++) {
            rank->remote_buffers[b] =
                (plan_remote_buffer){(r + 1) % of->ranks, (plan_buffer)b, 1u << PLAN_MEMORY};
            block->remote_buffers[PLAN_MEMORY][b] = b;
        }
    }
    return plan;
}

static inline plan_op *add_op(banyan_plan *plan, plan_op_kind kind, uint32_t sources,
                              uint32_t destinations)
{
    plan_thread_block *block = &plan->ranks[0].blocks[0];
    block->ops = plan_take(plan, 1, sizeof *block->ops);
    block->op_count = 1;
    plan_op *op = block->ops;
    *op = (plan_op){.kind = kind, .source_count = sources, .destination_count = destinations};
    op->sources = plan_take(plan, sources, sizeof *op->sources);
    op->destinations = plan_take(plan, destinations, sizeof *op->destinations);
    return op;
}

/* Put the only operation into a loop. */
static inline const plan_op *add_loop(banyan_plan *plan, uint64_t unit_bytes, uint64_t chunks)
{
    plan_thread_block *block = &plan->ranks[0].blocks[0];
    plan_op *loop = plan_take(plan, 1, sizeof *loop);
    *loop = (plan_op){.kind = PLAN_PIPELINE, .unit_bytes = unit_bytes, .loop_chunks = chunks};
    loop->ops = block->ops;
    loop->op_count = 1;
    block->ops = loop;
    return loop;
}

static inline plan_operand local(plan_buffer buffer, uint64_t index, uint64_t size)
{
    return (plan_operand){.place = PLAN_LOCAL, .buffer = buffer, .index = index, .size = size};
}

#endif
