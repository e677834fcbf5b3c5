/* Formats that a publication refuses, before anything moves. */
#ifndef TESTS_PUBLISH_CONVERTING_ERRORS_H
#define TESTS_PUBLISH_CONVERTING_ERRORS_H

#include <banyan/transform.h>

#include "publish/following.h"

/* A layout of both ranks: each has 128 rows of "w", of 64 columns, in a tensor of this type. */
static banyan_layout *rows_of_w(int rank, DLDataType dtype)
{
    banyan_layout *layout;
    banyan_piece piece = {.name = "w",
                          .ndim = 2,
                          .shape = {256, 64},
                          .dim_map = {0, 1},
                          .box = {2, {128 * rank, 0}, {128, 64}}};
    CHECK_OK(banyan_layout_create(&layout));
    piece.tensor = banyan_layout_add_tensor(layout, "w", dtype, 2, piece.box.extent);
    banyan_layout_add_piece(layout, &piece);
    return layout;
}

/* Add scales of those rows, as a piece of `name`, `columns` for each row. */
static void add_scales_of_w(banyan_layout *layout, int rank, const char *local, const char *name,
                            int64_t columns)
{
    banyan_piece piece = {.name = name,
                          .ndim = 2,
                          .shape = {256, columns},
                          .dim_map = {0, 1},
                          .box = {2, {128 * rank, 0}, {128, columns}}};
    piece.tensor = banyan_layout_add_tensor(layout, local, BANYAN_U8, 2, piece.box.extent);
    banyan_layout_add_piece(layout, &piece);
}

/* Both ranks have all rows and half of the columns, the first rank 48 of them. */
static banyan_layout *uneven_columns_of_w(int rank)
{
    banyan_layout *layout;
    banyan_piece piece = {.name = "w", .ndim = 2, .shape = {256, 64}, .dim_map = {0, 1}};
    piece.box = (banyan_box){2, {0, rank > 0 ? 48 : 0}, {256, rank > 0 ? 16 : 48}};
    CHECK_OK(banyan_layout_create(&layout));
    piece.tensor = banyan_layout_add_tensor(layout, "w", BANYAN_F8_E4M3, 2, piece.box.extent);
    banyan_layout_add_piece(layout, &piece);
    int64_t blocks[] = {256, rank > 0 ? 1 : 2};
    piece = (banyan_piece){.name = "w_scale", .ndim = 2, .shape = {256, 3}, .dim_map = {0, 1}};
    piece.box = (banyan_box){2, {0, rank > 0 ? 2 : 0}, {256, blocks[1]}};
    piece.tensor = banyan_layout_add_tensor(layout, "w_scale", BANYAN_U8, 2, blocks);
    banyan_layout_add_piece(layout, &piece);
    return layout;
}

struct refused {
    banyan_world *world;
    banyan_layout *weights;
    banyan_transform *mxfp8, *cast;
};

/* Expect that no publication opens, and destroy its layout. */
static void refuse(const struct refused *of, banyan_layout *published, banyan_transform *transform,
                   banyan_status status, const char *text)
{
    banyan_publication *publication;
    banyan_publication_options options = BANYAN_PUBLICATION_OPTIONS_INIT;
    options.published = published;
    options.transform = transform;
    CHECK_FAILS(
        banyan_publication_open(of->world, of->weights, NULL, APART_SECRET, &options, &publication),
        status, text);
    banyan_layout_destroy(published);
}

static void refuse_formats(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world);
    struct refused of = {.world = world, .weights = rows_of_w(rank, BANYAN_BF16)};
    (void)shared;
    CHECK_OK(banyan_mxfp8_create(NULL, &of.mxfp8));
    CHECK_OK(banyan_cast_create(NULL, &of.cast));
    refuse(&of, NULL, of.cast, BANYAN_ERR_INVALID, "needs the layout");
    refuse(&of, rows_of_w(rank, BANYAN_F32), NULL, BANYAN_ERR_MISMATCH, "\"w\"");
    refuse(&of, rows_of_w(rank, BANYAN_F8_E4M3), of.mxfp8, BANYAN_ERR_NOT_FOUND,
           "no local tensor \"w_scale\" for its scales");
    banyan_layout *published = rows_of_w(rank, BANYAN_F8_E4M3);
    add_scales_of_w(published, rank, "w_scale", "w_scale", 3);
    refuse(&of, published, of.mxfp8, BANYAN_ERR_INVALID, "must have [128, 2]");
    published = rows_of_w(rank, BANYAN_F8_E4M3);
    add_scales_of_w(published, rank, "w_scale", "w.scales", 2);
    refuse(&of, published, of.mxfp8, BANYAN_ERR_INVALID, "of \"w_scale\", of shape [256, 2]");
    published = rows_of_w(rank, BANYAN_F8_E4M3);
    add_scales_of_w(published, 1 - rank, "w_scale", "w_scale", 2);
    refuse(&of, published, of.mxfp8, BANYAN_ERR_INVALID, "which has no such piece");
    refuse(&of, uneven_columns_of_w(rank), of.mxfp8, BANYAN_ERR_INVALID,
           "begins or ends within an MXFP8 block");
    published = rows_of_w(rank, BANYAN_BF16);
    add_scales_of_w(published, rank, "other", "other", 2);
    refuse(&of, published, of.mxfp8, BANYAN_ERR_NOT_FOUND, "\"other\"");
    banyan_layout_destroy(of.weights);
    of.weights = rows_of_w(rank, BANYAN_F8_E4M3);
    published = rows_of_w(rank, BANYAN_F8_E4M3);
    add_scales_of_w(published, rank, "w_scale", "w_scale", 2);
    refuse(&of, published, of.mxfp8, BANYAN_ERR_INVALID, "does not convert \"w\" from F8_E4M3");
    banyan_layout_destroy(of.weights);
    banyan_transform_destroy(of.mxfp8);
    banyan_transform_destroy(of.cast);
}

/* A transform with scales belongs to one publication, until that is closed. */
static void share_a_transform(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world);
    struct refused of = {.world = world, .weights = rows_of_w(rank, BANYAN_BF16)};
    banyan_publication_options options = BANYAN_PUBLICATION_OPTIONS_INIT;
    banyan_layout *published = rows_of_w(rank, BANYAN_F8_E4M3);
    (void)shared;
    add_scales_of_w(published, rank, "w.scales", "w.scales", 2);
    CHECK_OK(banyan_mxfp8_create(NULL, &of.mxfp8));
    options.published = published;
    options.transform = of.mxfp8;
    options.scales_suffix = ".scales";
    for (int i = 0; i < 2; i++) {
        banyan_publication *publication, *second;
        CHECK_OK(
            banyan_publication_open(world, of.weights, NULL, APART_SECRET, &options, &publication));
        CHECK_FAILS(
            banyan_publication_open(world, of.weights, NULL, APART_SECRET, &options, &second),
            BANYAN_ERR_INVALID, "is used by this publication alone");
        banyan_publication_close(publication);
    }
    banyan_transform_destroy(of.mxfp8);
    banyan_layout_destroy(of.weights);
    banyan_layout_destroy(published);
}

static void play_refused_formats(struct apart *shared)
{
    struct apart_job trainer = apart_start(shared, 2, 0, refuse_formats);
    apart_end_well(&trainer);
    trainer = apart_start(shared, 2, 0, share_a_transform);
    apart_end_well(&trainer);
}

static void formats_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    apart_test(play_refused_formats);
}

/* ---- an engine that wants the trainer's format ---- */

/* Publish bf16 of "w" in float32. */
static void publish_bf16(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world);
    struct following mine = {.layout = rows_of_w(rank, BANYAN_F32)};
    banyan_layout *published = rows_of_w(rank, BANYAN_BF16);
    banyan_publication_options options = BANYAN_PUBLICATION_OPTIONS_INIT;
    following_alloc(&mine, rank, false);
    CHECK_OK(banyan_cast_create(NULL, &options.transform));
    options.published = published;
    banyan_publication *publication = publish_open(world, shared, &mine, &options);
    banyan_layout_destroy(published);
    publish_steps(world, shared, publication, &mine);
    banyan_publication_close(publication);
    banyan_transform_destroy(options.transform);
    following_close(&mine);
}

static void follow_in_float32(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world);
    struct following mine = {.layout = rows_of_w(rank, BANYAN_F32)};
    following_alloc(&mine, rank, true);
    banyan_subscription *subscription = subscribe(world, shared, &mine, NULL);
    expect_error(subscription, BANYAN_ERR_MISMATCH, "in BF16, is declared F32");
    CHECK_OK(banyan_world_barrier(world));
    end_engine(shared, subscription, &mine);
}

static void play_other_format(struct apart *shared)
{
    play_with(shared, publish_bf16, follow_in_float32);
}

static void an_engine_cannot_have_the_trainers_format(void **state)
{
    (void)state;
    apart_test(play_other_format);
}

/* ---- a conversion that fails ---- */

/* Publish MXFP8 of rows that are no whole blocks: only the host can do that. */
static void publish_unwhole(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world);
    struct following mine = {0};
    banyan_layout *published;
    (void)shared;
    CHECK_OK(banyan_layout_create(&mine.layout));
    CHECK_OK(banyan_layout_create(&published));
    banyan_piece piece = {.name = "w",
                          .ndim = 2,
                          .shape = {64, 40},
                          .dim_map = {0, 1},
                          .box = {2, {32 * rank, 0}, {32, 40}}};
    piece.tensor = banyan_layout_add_tensor(mine.layout, "w", BANYAN_BF16, 2, piece.box.extent);
    banyan_layout_add_piece(mine.layout, &piece);
    piece.tensor = banyan_layout_add_tensor(published, "w", BANYAN_F8_E4M3, 2, piece.box.extent);
    banyan_layout_add_piece(published, &piece);
    piece.name = "w_scale";
    piece.shape[1] = piece.box.extent[1] = 2;
    piece.tensor = banyan_layout_add_tensor(published, "w_scale", BANYAN_U8, 2, piece.box.extent);
    banyan_layout_add_piece(published, &piece);
    following_alloc(&mine, rank, false);
    banyan_publication *publication;
    banyan_publication_options options = BANYAN_PUBLICATION_OPTIONS_INIT;
    options.published = published;
    CHECK_OK(banyan_mxfp8_create(NULL, &options.transform));
    CHECK_OK(
        banyan_publication_open(world, mine.layout, NULL, APART_SECRET, &options, &publication));
    for (uint64_t version = 1; version <= 2; version++) {
        if (following_trainers_on_gpu)
            CHECK_FAILS(banyan_publication_publish(publication, mine.set, version, NULL),
                        BANYAN_ERR_UNSUPPORTED, "its rows are not whole MXFP8 blocks");
        else
            CHECK_OK(banyan_publication_publish(publication, mine.set, version, NULL));
    }
    uint64_t version = following_trainers_on_gpu ? 0 : 2;
    CHECK(banyan_publication_get_status(publication).version == version);
    banyan_publication_close(publication);
    banyan_transform_destroy(options.transform);
    banyan_layout_destroy(published);
    following_close(&mine);
}

static void play_unwhole(struct apart *shared)
{
    struct apart_job trainer = apart_start(shared, 2, 0, publish_unwhole);
    apart_end_well(&trainer);
}

static void a_conversion_fails_before_a_version_changes(void **state)
{
    (void)state;
    apart_test(play_unwhole);
}

#define CONVERTING_ERRORS_TESTS                                                                    \
    cmocka_unit_test(formats_that_do_not_fit_are_refused),                                         \
        cmocka_unit_test(an_engine_cannot_have_the_trainers_format),                               \
        cmocka_unit_test(a_conversion_fails_before_a_version_changes),

#endif
