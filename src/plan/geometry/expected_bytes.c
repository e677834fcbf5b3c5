/* The contents that outputs must have, in bytes of a message. */
#include <stdlib.h>

#include "core/error.h"
#include "plan/geometry/geometry.h"

/* A rank's output, block by block. A chunk that begins a block comes from chunks that begin one, so
 * the division of blocks into chunks does not matter. */
struct expected_output {
    const banyan_plan *plan;
    int rank;
    uint64_t block_bytes, block_chunks, blocks;
    plan_contribution *room;
    banyan_reduce_op op;
};

static bool expected_of_block(struct expected_output *of, uint64_t block, plan_expected *expected)
{
    return plan_expected_of(of->plan, of->rank, block * of->block_chunks, of->room, expected,
                            &of->op);
}

static void count_parts(struct expected_output *of, size_t *parts, size_t *sources)
{
    plan_expected expected;
    for (uint64_t block = 0; block < of->blocks; block++) {
        if (!expected_of_block(of, block, &expected))
            continue;
        ++*parts;
        *sources += expected.count;
    }
}

static void expected_bytes_write_parts(struct expected_output *of, banyan_plan_result *part,
                                       banyan_plan_source *source)
{
    plan_expected expected;
    for (uint64_t block = 0; block < of->blocks; block++) {
        if (!expected_of_block(of, block, &expected))
            continue;
        *part++ =
            (banyan_plan_result){block * of->block_bytes, of->block_bytes, source, expected.count};
        for (size_t i = 0; i < expected.count; i++) {
            const plan_contribution *from = &expected.contributions[i];
            *source++ =
                (banyan_plan_source){from->rank, from->chunk / of->block_chunks * of->block_bytes};
        }
    }
}

static banyan_status expected_bytes_make_parts(struct expected_output *of,
                                               banyan_plan_result **parts, size_t *count)
{
    size_t part_count = 0, sources = 0;
    count_parts(of, &part_count, &sources);
    banyan_plan_result *made = NULL;
    if (part_count > 0) {
        size_t bytes =
            part_count * sizeof(banyan_plan_result) + sources * sizeof(banyan_plan_source);
        made = malloc(bytes);
        if (!made)
            return error_no_memory(bytes, "the expected outputs of a plan");
        expected_bytes_write_parts(of, made, (banyan_plan_source *)(made + part_count));
    }
    *parts = made;
    *count = part_count;
    return BANYAN_OK;
}

banyan_status banyan_plan_expected(const banyan_plan *plan, int rank, uint64_t message_bytes,
                                   banyan_plan_result **parts, size_t *count, banyan_reduce_op *op)
{
    uint64_t input_bytes, output_bytes;
    plan_geometry geometry;
    RETURN_IF_FAILED(banyan_plan_sizes(plan, rank, message_bytes, &input_bytes, &output_bytes));
    RETURN_IF_FAILED(plan_geometry_make(plan, message_bytes, 1, &geometry));
    struct expected_output of = {.plan = plan,
                                 .rank = rank,
                                 .block_bytes = geometry.buffers[PLAN_OUTPUT].block_bytes,
                                 .block_chunks = geometry.buffers[PLAN_OUTPUT].block_chunks};
    of.blocks = of.block_bytes > 0 ? output_bytes / of.block_bytes : 0;
    of.room = calloc((size_t)plan->rank_count, sizeof *of.room);
    if (!of.room)
        return error_no_memory((size_t)plan->rank_count * sizeof *of.room,
                               "the expected outputs of a plan");
    banyan_status status = expected_bytes_make_parts(&of, parts, count);
    if (status == BANYAN_OK)
        *op = of.op;
    free(of.room);
    return status;
}
