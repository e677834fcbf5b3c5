/* A plan's refusals and their messages; fallbacks; and the claims that a rank receives. */
#include "reshard/plan_world.h"

#include "reshard/layout/box.h"
#include "reshard/planner/record.h"
#include "reshard/planner/state.h"

/* A piece in its own local tensor. */
typedef struct held {
    const char *name;
    DLDataType dtype;
    int ndim;
    int64_t shape[3];
    banyan_box box;
    uint32_t flags;
    const char *fallback;
    banyan_rank_set replicas;
} held;

static banyan_layout *hold(banyan_layout *layout, const held *what)
{
    if (!layout)
        CHECK_OK(banyan_layout_create(&layout));
    char local[64];
    snprintf(local, sizeof local, "local.%zu", banyan_layout_tensor_count(layout));
    banyan_piece piece = {.name = what->name,
                          .ndim = what->ndim,
                          .box = what->box,
                          .flags = what->flags,
                          .fallback_name = what->fallback,
                          .replicas = what->replicas};
    for (int d = 0; d < what->ndim; d++) {
        piece.shape[d] = what->shape[d];
        piece.dim_map[d] = d;
    }
    piece.tensor =
        banyan_layout_add_tensor(layout, local, what->dtype, what->ndim, what->box.extent);
    banyan_layout_add_piece(layout, &piece);
    CHECK_OK(banyan_layout_check(layout));
    return layout;
}

/* Up to eight ranks, each with a layout on a side or none. */
typedef struct few {
    banyan_layout *source[8], *destination[8];
} few;

static plan_world *plan_few(const few *of, int size, const banyan_transform *transform)
{
    banyan_layout **sources = calloc((size_t)size, sizeof *sources);
    banyan_layout **destinations = calloc((size_t)size, sizeof *destinations);
    memcpy(sources, of->source, (size_t)size * sizeof *sources);
    memcpy(destinations, of->destination, (size_t)size * sizeof *destinations);
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.transform = transform;
    return plan_world_make(size, sources, destinations, &options);
}

/* Planning fails at this rank, and its message has all the parts (NULL ends them). */
static void expect_refusal(const few *of, int size, int rank, banyan_status status,
                           const char *const *parts)
{
    plan_world *world = plan_few(of, size, NULL);
    CHECK(world->statuses[rank] == status, "%s: %s", banyan_status_name(world->statuses[rank]),
          world->errors[rank]);
    for (; *parts; parts++)
        CHECK(strstr(world->errors[rank], *parts), "\"%s\" is not in: %s", *parts,
              world->errors[rank]);
    plan_world_free(world);
}

static const held whole = {"w", {kDLBfloat, 16, 1}, 2, {8, 6}, {2, {0, 0}, {8, 6}}, 0, NULL, {0}};

static held part_of_w(int64_t row, int64_t rows)
{
    held part = whole;
    part.box.start[0] = row;
    part.box.extent[0] = rows;
    return part;
}

static void a_tensor_that_no_source_has_is_refused(void **state)
{
    (void)state;
    held other = whole, upper = part_of_w(4, 4);
    other.name = "v";
    few of = {.source = {hold(NULL, &other)}, .destination = {NULL, NULL, hold(NULL, &upper)}};
    expect_refusal(&of, 3, 2, BANYAN_ERR_NOT_FOUND,
                   (const char *[]){"rank 2", "\"w\"", "[4:8, 0:6]", "no rank holds it", NULL});
    upper.fallback = "u";
    of = (few){.source = {hold(NULL, &other)}, .destination = {hold(NULL, &upper)}};
    expect_refusal(&of, 1, 0, BANYAN_ERR_NOT_FOUND,
                   (const char *[]){"\"w\"", "nor \"u\" to fall back on", NULL});
}

static void elements_that_no_source_holds_are_refused(void **state)
{
    (void)state;
    held low = part_of_w(0, 3), high = part_of_w(5, 3);
    few of = {.source = {hold(NULL, &low), hold(NULL, &high)},
              .destination = {NULL, NULL, hold(NULL, &whole)}};
    expect_refusal(
        &of, 3, 2, BANYAN_ERR_INVALID,
        (const char *[]){"rank 2", "\"w\"", "[0:8, 0:6]", "no rank holds [3:5, 0:6]", NULL});
}

static void different_global_shapes_are_refused(void **state)
{
    (void)state;
    held longer = whole;
    longer.shape[0] = 10;
    few of = {.source = {hold(NULL, &longer)}, .destination = {NULL, hold(NULL, &whole)}};
    expect_refusal(&of, 2, 1, BANYAN_ERR_MISMATCH,
                   (const char *[]){"rank 1", "\"w\"", "[0:8, 0:6]", "[8, 6] here",
                                    "[10, 6] at rank 0", NULL});
    /* Between two sources, one of them right. */
    held half = part_of_w(0, 4);
    of = (few){.source = {hold(NULL, &whole), hold(NULL, &longer)},
               .destination = {NULL, NULL, hold(NULL, &half)}};
    expect_refusal(&of, 3, 2, BANYAN_ERR_MISMATCH,
                   (const char *[]){"\"w\"", "[10, 6] at rank 1", NULL});
    /* On one rank, with another number of dimensions. */
    held flat = {"w", BANYAN_BF16, 1, {48}, {1, {0}, {48}}, 0, NULL, {0}};
    of = (few){.source = {hold(NULL, &flat)}, .destination = {hold(NULL, &whole)}};
    expect_refusal(&of, 1, 0, BANYAN_ERR_MISMATCH,
                   (const char *[]){"[8, 6] here", "[48] at rank 0", NULL});
}

static void different_types_need_a_transform(void **state)
{
    (void)state;
    held wide = whole;
    wide.dtype = BANYAN_F32;
    few of = {.source = {hold(NULL, &wide)}, .destination = {NULL, hold(NULL, &whole)}};
    expect_refusal(&of, 2, 1, BANYAN_ERR_MISMATCH,
                   (const char *[]){"rank 1", "\"w\"", "[0:8, 0:6]", "from rank 0 in F32",
                                    "declared BF16", "no transform", NULL});
    held low = part_of_w(0, 4), high = part_of_w(4, 4);
    high.dtype = BANYAN_F32;
    of = (few){.source = {hold(NULL, &low), hold(NULL, &high)},
               .destination = {NULL, NULL, hold(NULL, &whole)}};
    expect_refusal(&of, 3, 2, BANYAN_ERR_MISMATCH,
                   (const char *[]){"BF16 at rank 0", "F32 at rank 1", NULL});

    banyan_transform *cast;
    CHECK_OK(banyan_cast_create(NULL, &cast));
    of = (few){.source = {hold(NULL, &wide)}, .destination = {NULL, hold(NULL, &whole)}};
    plan_world *world = plan_few(&of, 2, cast);
    CHECK(world->statuses[1] == BANYAN_OK, "%s", world->errors[1]);
    assert_true(banyan_dtype_equal(world->results[0].sends[0].source_dtype, BANYAN_F32));
    assert_true(banyan_dtype_equal(world->results[0].sends[0].destination_dtype, BANYAN_BF16));
    plan_world_free(world);
    held bytes = whole;
    bytes.dtype = BANYAN_U8;
    of = (few){.source = {hold(NULL, &wide)}, .destination = {NULL, hold(NULL, &bytes)}};
    world = plan_few(&of, 2, cast);
    assert_int_equal(world->statuses[1], BANYAN_ERR_MISMATCH);
    assert_non_null(strstr(world->errors[1], "the transform does not take it"));
    plan_world_free(world);
    banyan_transform_destroy(cast);
}

static banyan_rank_set ranks_from(int first, int count)
{
    banyan_rank_set set = banyan_rank_set_one(first);
    set.count[BANYAN_RANK_SET_LEVELS - 1] = count;
    set.stride[BANYAN_RANK_SET_LEVELS - 1] = 1;
    return set;
}

static void replica_sets_that_contradict_each_other_are_refused(void **state)
{
    (void)state;
    held piece = whole;
    piece.replicas = ranks_from(1, 2);
    few of = {.source = {hold(NULL, &piece)}};
    expect_refusal(&of, 3, 0, BANYAN_ERR_INVALID,
                   (const char *[]){"rank 0", "\"w\"", "[0:8, 0:6]", "do not include it", NULL});
    /* Rank 0 represents ranks 0 and 1; rank 2 believes that it belongs to that set, too. */
    held pair = whole, triple = whole;
    pair.replicas = ranks_from(0, 2);
    triple.replicas = ranks_from(0, 3);
    of = (few){.source = {hold(NULL, &pair), hold(NULL, &pair), hold(NULL, &triple)},
               .destination = {NULL, NULL, NULL, hold(NULL, &whole)}};
    expect_refusal(&of, 4, 2, BANYAN_ERR_MISMATCH,
                   (const char *[]){"rank 2", "\"w\"", "in the source", "0 times", NULL});
    /* A replica that holds it in another type than its representative. */
    held wide = pair;
    wide.dtype = BANYAN_F32;
    of = (few){.source = {hold(NULL, &pair), hold(NULL, &wide)},
               .destination = {NULL, NULL, hold(NULL, &whole)}};
    expect_refusal(&of, 3, 1, BANYAN_ERR_MISMATCH, (const char *[]){"rank 1", "\"w\"", NULL});
}

static void a_tied_tensor_is_filled_from_its_fallback_unless_the_source_has_it(void **state)
{
    (void)state;
    held embedding = whole, output = whole, half = part_of_w(4, 4);
    embedding.name = "embedding";
    output.name = "output";
    output.fallback = "embedding";
    half.name = "output";
    half.fallback = "embedding";
    half.replicas = ranks_from(2, 2);
    for (int has_output = 0; has_output <= 1; has_output++) {
        few of = {.source = {hold(NULL, &embedding), NULL},
                  .destination = {hold(NULL, &output), hold(NULL, &embedding), hold(NULL, &half),
                                  hold(NULL, &half)}};
        if (has_output)
            of.source[1] = hold(NULL, &output);
        plan_world *world = plan_few(&of, 4, NULL);
        for (int rank = 0; rank < 4; rank++)
            CHECK(world->statuses[rank] == BANYAN_OK, "%s", world->errors[rank]);
        int from = has_output;
        assert_int_equal(world->results[0].recv_count, 1);
        assert_int_equal(world->results[0].recvs[0].source_rank, from);
        assert_int_equal(world->results[0].recvs[0].source_piece, from == 0 ? 0 : SIZE_MAX);
        size_t sent = 0;
        for (size_t i = 0; i < world->results[from].send_count; i++) {
            const banyan_transfer *send = &world->results[from].sends[i];
            if (send->destination_rank == 1)
                continue;
            assert_string_equal(send->name, "output");
            assert_int_equal(send->source_piece, 0);
            const planner_result *there = &world->results[send->destination_rank];
            assert_true(there->recvs[0].task_id == send->task_id);
            sent++;
        }
        assert_int_equal(sent, has_output ? 3 : 2);
        /* Ranks that have their first choice leave the embedding alone. */
        for (size_t i = 0; has_output && i < world->results[0].send_count; i++)
            assert_string_equal(world->results[0].sends[i].name, "embedding");
        plan_world_free(world);
    }
}

static void a_persistent_buffer_takes_the_type_of_its_source(void **state)
{
    (void)state;
    held wide = whole, buffer = whole;
    wide.dtype = BANYAN_F32;
    buffer.flags = BANYAN_PIECE_PERSISTENT_BUFFER;
    few of = {.source = {hold(NULL, &wide)}, .destination = {NULL, hold(NULL, &buffer)}};
    plan_world *world = plan_few(&of, 2, NULL);
    for (int rank = 0; rank < 2; rank++)
        CHECK(world->statuses[rank] == BANYAN_OK, "%s", world->errors[rank]);
    assert_true(banyan_dtype_equal(world->results[1].destination_dtypes[0], BANYAN_F32));
    assert_true(banyan_dtype_equal(world->results[1].recvs[0].destination_dtype, BANYAN_F32));
    assert_true(banyan_dtype_equal(world->results[0].sends[0].destination_dtype, BANYAN_F32));
    assert_int_equal(world->results[1].recvs[0].bytes, 8 * 6 * 4);
    plan_world_free(world);
}

static void ranks_added_at_the_end_change_no_task_id(void **state)
{
    (void)state;
    held low = part_of_w(0, 5), high = part_of_w(5, 3), other = whole;
    other.name = "v";
    uint64_t ids[2][2];
    for (int more = 0; more <= 1; more++) {
        few of = {.source = {hold(NULL, &low), hold(NULL, &high)},
                  .destination = {NULL, NULL, hold(NULL, &whole)}};
        if (more) {
            of.destination[3] = hold(NULL, &whole);
            of.destination[4] = hold(NULL, &low);
            of.source[5] = hold(NULL, &other);
            of.destination[6] = hold(NULL, &other);
        }
        plan_world *world = plan_few(&of, more ? 7 : 3, NULL);
        for (int rank = 0; rank < world->size; rank++)
            CHECK(world->statuses[rank] == BANYAN_OK, "%s", world->errors[rank]);
        assert_int_equal(world->results[2].recv_count, 2);
        for (int i = 0; i < 2; i++)
            ids[more][i] = world->results[2].recvs[i].task_id;
        plan_world_free(world);
    }
    assert_memory_equal(ids[0], ids[1], sizeof ids[0]);
}

/* A wide tensor in rows over all ranks, as with FSDP, on both sides. */
static size_t most_claims_received(int size, int64_t rows_a_rank, int shift)
{
    banyan_layout **sources = calloc((size_t)size, sizeof *sources);
    banyan_layout **destinations = calloc((size_t)size, sizeof *destinations);
    for (int rank = 0; rank < size; rank++) {
        held rows = whole;
        rows.shape[0] = size * rows_a_rank;
        rows.shape[1] = rows.box.extent[1] = 64;
        rows.box.extent[0] = rows_a_rank;
        rows.box.start[0] = rank * rows_a_rank;
        sources[rank] = hold(NULL, &rows);
        rows.box.start[0] = (rank + shift) % size * rows_a_rank;
        destinations[rank] = hold(NULL, &rows);
    }
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    plan_world *world = plan_world_make(size, sources, destinations, &options);
    size_t most = 0;
    for (int rank = 0; rank < size; rank++) {
        CHECK(world->statuses[rank] == BANYAN_OK, "%s", world->errors[rank]);
        assert_int_equal(world->results[rank].recv_count, 1);
        size_t claims = world->planners[rank]->claims.count;
        most = claims > most ? claims : most;
    }
    plan_world_free(world);
    return most;
}

static void the_records_of_a_rank_do_not_grow_with_the_world(void **state)
{
    (void)state;
    size_t few_ranks = most_claims_received(24, 7, 5), many_ranks = most_claims_received(600, 7, 5);
    printf("claims received by one rank: %zu of 24 ranks, %zu of 600\n", few_ranks, many_ranks);
    assert_in_range(many_ranks, 2, 24);
}

static planner_record random_record(random_state *random)
{
    planner_record record = {
        .side = random_next(random) % 2 ? PLAN_SOURCE : PLAN_DESTINATION,
        .dtype = BANYAN_BF16,
        .flags = (uint32_t)random_between(random, 0, 1),
        .ndim = (int)random_between(random, 1, 4),
        .wanted = random_next(random) % 2 ? "wanted" : NULL,
        .is_note = random_next(random) % 2,
        .ordinal = (uint32_t)random_between(random, 0, 3),
    };
    record.box.ndim = record.is_note ? 0 : record.ndim;
    for (int d = 0; d < record.ndim; d++) {
        record.shape[d] = random_between(random, 1, 100);
        if (!record.is_note) {
            record.box.extent[d] = random_between(random, 1, record.shape[d]);
            record.box.start[d] = random_between(random, 0, record.shape[d] - record.box.extent[d]);
        }
    }
    if (record.is_note) {
        record.ordinal = 0;
        record.dim = (int)random_between(random, 0, record.ndim - 1);
        record.level = (int)random_between(random, 1, 20);
    }
    return record;
}

static void a_record_reads_back_and_a_changed_one_is_sane_or_refused(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 5000; round++) {
        planner_record record = random_record(&random), read;
        bytes_writer writer = {0};
        planner_record_write(&writer, &record);
        CHECK_OK(planner_record_read("w\n", writer.data, writer.count, &read));
        assert_true(record.wanted ? strcmp(read.wanted, record.wanted) == 0 : !read.wanted);
        read.wanted = record.wanted;
        assert_memory_equal(&read, &record, sizeof read);
        size_t bytes = (size_t)random_between(&random, 0, (int64_t)writer.count);
        if (random_next(&random) % 2) {
            writer.data[random_next(&random) % writer.count] ^= 1 << random_next(&random) % 8;
            bytes = writer.count;
        }
        unsigned char *exact = malloc(bytes + !bytes);
        memcpy(exact, writer.data, bytes);
        if (planner_record_read("w\n", exact, bytes, &read) == BANYAN_OK) {
            assert_in_range(read.ndim, 0, BANYAN_MAX_DIMS);
            assert_true(read.is_note || box_fits(&read.box, read.ndim, read.shape));
            assert_true(!read.is_note || read.dim < read.ndim);
        } else {
            assert_non_null(strstr(banyan_last_error(), "\"w\""));
        }
        free(exact);
        bytes_writer_free(&writer);
    }
}

static void boxes_that_intersect_share_a_slab(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 5000; round++) {
        int64_t shape[2] = {random_between(&random, 1, 300), random_between(&random, 1, 300)};
        banyan_box boxes[2], common;
        for (int b = 0; b < 2; b++) {
            boxes[b].ndim = 2;
            for (int d = 0; d < 2; d++) {
                boxes[b].extent[d] = random_between(&random, 1, shape[d]);
                boxes[b].start[d] = random_between(&random, 0, shape[d] - boxes[b].extent[d]);
            }
        }
        planner_cells put = planner_cells_of(&boxes[0], shape);
        assert_in_range(put.last - put.first, 0, 1);
        if (put.level == 0 || !banyan_box_intersect(&boxes[0], &boxes[1], &common))
            continue;
        planner_cells asked = planner_cells_intersecting(&boxes[1], shape, put.dim, put.level);
        assert_true(asked.first <= put.last && put.first <= asked.last);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tensor_that_no_source_has_is_refused),
        cmocka_unit_test(elements_that_no_source_holds_are_refused),
        cmocka_unit_test(different_global_shapes_are_refused),
        cmocka_unit_test(different_types_need_a_transform),
        cmocka_unit_test(replica_sets_that_contradict_each_other_are_refused),
        cmocka_unit_test(a_tied_tensor_is_filled_from_its_fallback_unless_the_source_has_it),
        cmocka_unit_test(a_persistent_buffer_takes_the_type_of_its_source),
        cmocka_unit_test(ranks_added_at_the_end_change_no_task_id),
        cmocka_unit_test(the_records_of_a_rank_do_not_grow_with_the_world),
        cmocka_unit_test(a_record_reads_back_and_a_changed_one_is_sane_or_refused),
        cmocka_unit_test(boxes_that_intersect_share_a_slab),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
