/* Positions of chunks: examples by hand, and impossible sizes. */
#include "plan/shapes.h"

typedef struct pieces {
    uint64_t list[16][3]; /* bytes, source, destination */
    uint32_t count;
} pieces;

static banyan_status take_piece(void *context, const plan_piece *piece)
{
    pieces *all = context;
    CHECK(all->count < 16);
    uint64_t *to = all->list[all->count++];
    to[0] = piece->bytes;
    to[1] = piece->offsets[0];
    to[2] = piece->offsets[1];
    return BANYAN_OK;
}

static pieces cut(const banyan_plan *plan, const plan_geometry *geometry, const plan_op *op,
                  const plan_op *loop, uint64_t iteration)
{
    pieces all = {.count = 0};
    CHECK_OK(plan_geometry_cut(geometry, plan, 0, plan->ranks[0].blocks, op, loop, iteration,
                               take_piece, &all));
    return all;
}

static void check_piece(const pieces *all, uint32_t i, uint64_t bytes, uint64_t source,
                        uint64_t destination)
{
    CHECK(i < all->count && all->list[i][0] == bytes && all->list[i][1] == source &&
          all->list[i][2] == destination);
}

/* 100 bytes of f32 in 3 chunks aligned to 16 bytes: 48, 48 and 4. */
static void a_message_that_does_not_divide_is_clipped_at_its_end(void **state)
{
    (void)state;
    shape of = {BANYAN_ALLREDUCE, 2, 3, 3, 16};
    banyan_plan *plan = make_plan(&of);
    plan_op *op = add_op(plan, PLAN_COPY, 1, 1);
    op->sources[0] = local(PLAN_INPUT, 1, 2);
    op->destinations[0] = local(PLAN_SCRATCH, 0, 2);
    plan_geometry geometry;
    CHECK_OK(plan_geometry_make(plan, 100, 4, &geometry));
    CHECK(geometry.chunk_bytes == 48);
    pieces all = cut(plan, &geometry, op, NULL, 0);
    CHECK(all.count == 1);
    check_piece(&all, 0, 52, 48, 0);
    banyan_plan_destroy(plan);
}

/* Two blocks of 40 bytes each, of chunks of 32 and 8. */
static void buffers_of_a_block_a_rank_are_cut_block_by_block(void **state)
{
    (void)state;
    shape of = {BANYAN_ALLGATHER, 2, 2, 4, 16};
    banyan_plan *plan = make_plan(&of);
    plan_op *op = add_op(plan, PLAN_COPY, 1, 1);
    op->sources[0] = local(PLAN_OUTPUT, 0, 4);
    op->destinations[0] = local(PLAN_SCRATCH, 0, 4);
    plan_geometry geometry;
    CHECK_OK(plan_geometry_make(plan, 40, 4, &geometry));
    CHECK(plan_geometry_bytes(&geometry, plan, 0, PLAN_OUTPUT) == 80);
    pieces all = cut(plan, &geometry, op, NULL, 0);
    CHECK(all.count == 2);
    check_piece(&all, 0, 40, 0, 0);
    check_piece(&all, 1, 40, 40, 64);
    banyan_plan_destroy(plan);
}

static void an_empty_message_has_no_pieces(void **state)
{
    (void)state;
    shape of = {BANYAN_ALLREDUCE, 2, 3, 3, 16};
    banyan_plan *plan = make_plan(&of);
    plan_op *op = add_op(plan, PLAN_COPY, 1, 1);
    op->sources[0] = local(PLAN_INPUT, 0, 3);
    op->destinations[0] = local(PLAN_SCRATCH, 0, 3);
    const plan_op *loop = add_loop(plan, 64, 3);
    plan_geometry geometry;
    CHECK_OK(plan_geometry_make(plan, 0, 4, &geometry));
    CHECK(plan_geometry_iterations(&geometry, loop) == 0);
    pieces all = cut(plan, &geometry, op, NULL, 0);
    CHECK(all.count == 0);
    banyan_plan_destroy(plan);
}

/* Chunks of 128 bytes in 2 × 64 bytes of scratch, in units of 32. */
static void reused_scratch_wraps_around(void **state)
{
    (void)state;
    shape of = {BANYAN_ALLREDUCE, 2, 2, 2, 16};
    banyan_plan *plan = make_plan(&of);
    plan->reuse_resources = true;
    plan->reused_scratch_bytes = 128;
    plan_op *op = add_op(plan, PLAN_COPY, 1, 1);
    op->sources[0] = local(PLAN_INPUT, 1, 1);
    op->destinations[0] = local(PLAN_SCRATCH, 1, 1);
    const plan_op *loop = add_loop(plan, 32, 1);
    op = loop->ops;
    plan_geometry geometry;
    CHECK_OK(plan_geometry_make(plan, 256, 4, &geometry));
    CHECK(geometry.scratch_stride == 64 && geometry.buffers[PLAN_SCRATCH].bytes == 128);
    const uint64_t places[] = {64, 96, 64, 96};
    for (uint64_t i = 0; i < 4; i++) {
        pieces all = cut(plan, &geometry, op, loop, i);
        CHECK(all.count == 1);
        check_piece(&all, 0, 32, 128 + 32 * i, places[i]);
    }
    banyan_plan_destroy(plan);
}

/* Members of a group wrap around in their own shares, in every iteration. */
static void shares_of_reused_scratch_do_not_overlap(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int n = 0; n < 200; n++) {
        shape of = {BANYAN_ALLREDUCE, 2, 1, 1, 16};
        banyan_plan *plan = make_plan(&of);
        uint32_t members = (uint32_t)random_between(&random, 2, 4);
        uint64_t scratch = 16 * (uint64_t)random_between(&random, 2 * members, 20);
        uint64_t message = scratch + 16 * (uint64_t)random_between(&random, 1, 50);
        plan->reuse_resources = true;
        plan->reused_scratch_bytes = scratch;
        plan_op *op = add_op(plan, PLAN_COPY, 1, 1);
        op->sources[0] = local(PLAN_INPUT, 0, 1);
        op->destinations[0] = local(PLAN_SCRATCH, 0, 1);
        op->group_size = members;
        const plan_op *loop = add_loop(plan, 16, 1);
        op = loop->ops;
        plan_geometry geometry;
        CHECK_OK(plan_geometry_make(plan, message, 4, &geometry));
        uint32_t owner[512] = {0};
        for (uint32_t m = 0; m < members; m++) {
            op->group_index = m;
            for (uint64_t i = 0; i < plan_geometry_iterations(&geometry, loop); i++) {
                pieces all = cut(plan, &geometry, op, loop, i);
                for (uint32_t k = 0; k < all.count; k++) {
                    CHECK(all.list[k][2] + all.list[k][0] <= scratch);
                    for (uint64_t byte = 0; byte < all.list[k][0]; byte++) {
                        uint32_t *of_byte = &owner[all.list[k][2] + byte];
                        CHECK(*of_byte == 0 || *of_byte == m + 1);
                        *of_byte = m + 1;
                    }
                }
            }
        }
        banyan_plan_destroy(plan);
    }
}

/* Scratch that was allocated for longer messages keeps its places. */
static void scratch_of_a_longer_message_keeps_its_stride(void **state)
{
    (void)state;
    shape of = {BANYAN_ALLREDUCE, 2, 2, 2, 16};
    banyan_plan *plan = make_plan(&of);
    plan_op *op = add_op(plan, PLAN_COPY, 1, 1);
    op->sources[0] = local(PLAN_INPUT, 0, 2);
    op->destinations[0] = local(PLAN_SCRATCH, 0, 2);
    plan_geometry largest, geometry;
    CHECK_OK(plan_geometry_largest(plan, 1000, &largest));
    CHECK_OK(plan_geometry_make(plan, 64, 4, &geometry));
    geometry.scratch_stride = largest.scratch_stride;
    pieces all = cut(plan, &geometry, op, NULL, 0);
    CHECK(all.count == 2 && largest.scratch_stride == 512);
    check_piece(&all, 0, 32, 0, 0);
    check_piece(&all, 1, 32, 32, 512);
    banyan_plan_destroy(plan);
}

static void sizes_that_cannot_be_cut_are_refused(void **state)
{
    (void)state;
    plan_geometry geometry;
    shape of = {BANYAN_REDUCESCATTER, 3, 2, 1, 16};
    banyan_plan *plan = make_plan(&of);
    CHECK_FAILS(plan_geometry_make(plan, 16, 4, &geometry), BANYAN_ERR_INVALID, "3 equal parts");
    CHECK_FAILS(plan_geometry_make(plan, 30, 4, &geometry), BANYAN_ERR_INVALID, "of 4 bytes");
    CHECK_OK(plan_geometry_make(plan, 24, 4, &geometry));
    plan->buffer_alignment = 2;
    CHECK_FAILS(plan_geometry_make(plan, 24, 4, &geometry), BANYAN_ERR_INVALID, "aligns to 2");
    plan->buffer_alignment = 16;
    CHECK_FAILS(plan_geometry_make(plan, UINT64_MAX / 3 * 3, 1, &geometry), BANYAN_ERR_INVALID,
                "too long");
    plan->ranks[2].chunks[PLAN_SCRATCH] = INT64_MAX;
    CHECK_FAILS(plan_geometry_make(plan, 24, 4, &geometry), BANYAN_ERR_INVALID, "too much");
    CHECK_OK(plan_geometry_make(plan, 0, 4, &geometry));
    banyan_plan_destroy(plan);
}

static void reused_scratch_that_is_too_small_is_refused(void **state)
{
    (void)state;
    shape of = {BANYAN_ALLREDUCE, 2, 1, 2, 16};
    banyan_plan *plan = make_plan(&of);
    plan->reuse_resources = true;
    plan->reused_scratch_bytes = 128;
    plan_op *op = add_op(plan, PLAN_COPY, 1, 1);
    op->sources[0] = local(PLAN_INPUT, 0, 1);
    op->destinations[0] = local(PLAN_SCRATCH, 1, 1);
    plan_geometry geometry;
    CHECK_OK(plan_geometry_make(plan, 64, 4, &geometry));
    CHECK_FAILS(plan_geometry_make(plan, 80, 4, &geometry), BANYAN_ERR_INVALID,
                "does not fit into the 128 bytes");
    add_loop(plan, 80, 1);
    CHECK_FAILS(plan_geometry_make(plan, 160, 4, &geometry), BANYAN_ERR_INVALID, "reuses");
    plan->ranks[0].blocks[0].ops[0].unit_bytes = 64;
    CHECK_OK(plan_geometry_make(plan, 160, 4, &geometry));
    plan->ranks[0].blocks[0].ops[0].loop_chunks = UINT64_MAX / 2;
    CHECK_FAILS(plan_geometry_make(plan, 160, 4, &geometry), BANYAN_ERR_INVALID, "too long");
    banyan_plan_destroy(plan);
}

static void every_operation_is_to_fit_into_reused_scratch(void **state)
{
    (void)state;
    shape of = {BANYAN_ALLREDUCE, 2, 2, 2, 16};
    banyan_plan *plan = make_plan(&of);
    plan->reuse_resources = true;
    plan->reused_scratch_bytes = 128;
    plan_op small = *add_op(plan, PLAN_COPY, 1, 1);
    small.sources[0] = local(PLAN_INPUT, 0, 1);
    small.destinations[0] = local(PLAN_OUTPUT, 1, 1);
    plan_op large = *add_op(plan, PLAN_COPY, 1, 1);
    large.sources[0] = local(PLAN_INPUT, 0, 2);
    large.destinations[0] = local(PLAN_SCRATCH, 0, 2);
    plan_thread_block *block = &plan->ranks[0].blocks[0];
    block->ops = plan_take(plan, 3, sizeof *block->ops);
    plan_geometry geometry;
    for (uint32_t at = 0; at < 3; at++) {
        for (uint32_t i = 0; i < 3; i++)
            block->ops[i] = i == at ? large : small;
        block->op_count = 3;
        CHECK_OK(plan_geometry_make(plan, 64, 4, &geometry));
        CHECK_FAILS(plan_geometry_make(plan, 160, 4, &geometry), BANYAN_ERR_INVALID,
                    "copy of 2 chunks of 80 bytes does not fit into the 128 bytes");
    }
    banyan_plan_destroy(plan);
}

static void sizes_of_a_rank_follow_from_its_chunks(void **state)
{
    (void)state;
    uint64_t input, output;
    shape of = {BANYAN_ALLGATHER, 3, 2, 1, 16};
    banyan_plan *plan = make_plan(&of);
    CHECK_OK(banyan_plan_sizes(plan, 1, 40, &input, &output));
    CHECK(input == 40 && output == 120);
    CHECK_FAILS(banyan_plan_sizes(plan, 3, 40, &input, &output), BANYAN_ERR_INVALID, "number 3");
    banyan_plan_destroy(plan);
    of.kind = BANYAN_CUSTOM;
    plan = make_plan(&of);
    plan->ranks[1].chunks[PLAN_INPUT] = 1;
    plan->ranks[1].chunks[PLAN_OUTPUT] = 5;
    CHECK_OK(banyan_plan_sizes(plan, 1, 40, &input, &output));
    CHECK(input == 20 && output == 100);
    banyan_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_that_does_not_divide_is_clipped_at_its_end),
        cmocka_unit_test(buffers_of_a_block_a_rank_are_cut_block_by_block),
        cmocka_unit_test(an_empty_message_has_no_pieces),
        cmocka_unit_test(reused_scratch_wraps_around),
        cmocka_unit_test(shares_of_reused_scratch_do_not_overlap),
        cmocka_unit_test(scratch_of_a_longer_message_keeps_its_stride),
        cmocka_unit_test(sizes_that_cannot_be_cut_are_refused),
        cmocka_unit_test(reused_scratch_that_is_too_small_is_refused),
        cmocka_unit_test(every_operation_is_to_fit_into_reused_scratch),
        cmocka_unit_test(sizes_of_a_rank_follow_from_its_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
