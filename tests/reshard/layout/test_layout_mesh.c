/* Shards of a mesh: every rank holds the result of cutting lists of indices with torch.chunk's
 * rule, axis by axis. */
#include "reshard/elements.h"

#define MAX_RANKS 64

/* The remaining indices of one dimension. */
struct left {
    int64_t index[64];
    int64_t count;
};

/* torch.chunk, literally: slices of ceil(size / n) until the list ends; there may be fewer than
 * n. */
static void chunk(struct left *left, int parts, int part)
{
    int64_t size = left->count;
    int64_t step = (size + parts - 1) / parts, from = 0;
    for (int i = 0; i < part && from < size; i++)
        from += step;
    int64_t until = from + step < size ? from + step : size;
    left->count = 0;
    for (int64_t i = from; i < until; i++)
        left->index[left->count++] = left->index[i];
}

struct job {
    int ndim;
    int64_t shape[4];
    banyan_mesh mesh;
    banyan_placement placements[BANYAN_RANK_SET_LEVELS];
};

/* Mesh coordinates of every rank, by walking the mesh. -1 in coordinate 0: not in it. */
static int walk_mesh(const banyan_mesh *mesh, int coordinates[MAX_RANKS][BANYAN_RANK_SET_LEVELS])
{
    for (int rank = 0; rank < MAX_RANKS; rank++)
        coordinates[rank][0] = -1;
    bool strided = false;
    int size = 1;
    for (int k = 0; k < mesh->ndim; k++) {
        size *= mesh->extent[k];
        strided = strided || mesh->stride[k] != 0;
    }
    for (int i = 0; i < size; i++) {
        int at[BANYAN_RANK_SET_LEVELS] = {0}, rest = i, rank = mesh->first_rank;
        for (int k = mesh->ndim - 1; k >= 0; k--) {
            at[k] = rest % mesh->extent[k];
            rest /= mesh->extent[k];
        }
        if (strided) {
            for (int k = 0; k < mesh->ndim; k++)
                rank += at[k] * mesh->stride[k];
        } else {
            rank += i;
        }
        assert_true(rank >= 0 && rank < MAX_RANKS && coordinates[rank][0] == -1);
        memcpy(coordinates[rank], at, sizeof at);
    }
    return size;
}

static void naive_cut(const struct job *job, const int *at, struct left *dims)
{
    for (int d = 0; d < job->ndim; d++) {
        dims[d].count = job->shape[d];
        for (int64_t i = 0; i < job->shape[d]; i++)
            dims[d].index[i] = i;
    }
    for (int pass = BANYAN_SHARD; pass <= BANYAN_SHARD_STRIDED; pass++) {
        for (int k = 0; k < job->mesh.ndim; k++) {
            if ((int)job->placements[k].kind == pass)
                chunk(&dims[job->placements[k].dim], job->mesh.extent[k], at[k]);
        }
    }
}

static void check_rank(const struct job *job, const banyan_layout *layout, const int *at)
{
    struct left dims[4];
    naive_cut(job, at, dims);
    assert_int_equal(banyan_layout_tensor_count(layout), 1);
    const banyan_local_tensor *local = banyan_layout_tensor(layout, 0);
    assert_int_equal(local->ndim, job->ndim);
    for (int d = 0; d < job->ndim; d++)
        assert_int_equal(local->shape[d], dims[d].count);
    const banyan_piece **by;
    int64_t *held = layout_elements(layout, 0, &by);
    banyan_box whole = {.ndim = local->ndim};
    memcpy(whole.extent, local->shape, sizeof whole.extent);
    int64_t point[BANYAN_MAX_DIMS];
    FOR_EACH_ELEMENT(&whole, point)
    {
        int64_t global[4];
        for (int d = 0; d < job->ndim; d++)
            global[d] = dims[d].index[point[d]];
        assert_int_equal(held[element_index(local->ndim, local->shape, point)],
                         element_index(job->ndim, job->shape, global));
    }
    free(held);
    free(by);
}

static void check_job(const struct job *job)
{
    int coordinates[MAX_RANKS][BANYAN_RANK_SET_LEVELS];
    walk_mesh(&job->mesh, coordinates);
    banyan_layout *layouts[MAX_RANKS];
    for (int rank = 0; rank < MAX_RANKS; rank++) {
        CHECK_OK(banyan_layout_create(&layouts[rank]));
        banyan_layout_add_sharded(layouts[rank], "w", BANYAN_BF16, job->ndim, job->shape,
                                  &job->mesh, job->placements, rank);
        CHECK_OK(banyan_layout_check_as(layouts[rank], BANYAN_DESTINATION));
        if (coordinates[rank][0] == -1)
            assert_int_equal(banyan_layout_tensor_count(layouts[rank]), 0);
        else
            check_rank(job, layouts[rank], coordinates[rank]);
    }
    check_replica_sets(layouts, MAX_RANKS, true);
    for (int rank = 0; rank < MAX_RANKS; rank++)
        banyan_layout_destroy(layouts[rank]);
}

/* Up to three axes, in any order of strides, over a tensor that rarely divides. */
static struct job random_job(random_state *random)
{
    struct job job = {.ndim = (int)random_between(random, 1, 3)};
    for (int d = 0; d < job.ndim; d++)
        job.shape[d] = random_between(random, 0, 13);
    job.mesh.ndim = (int)random_between(random, 1, 3);
    job.mesh.first_rank = (int)random_between(random, 0, 2);
    for (int k = 0; k < job.mesh.ndim; k++) {
        job.mesh.extent[k] = (int)random_between(random, 1, 3);
        job.placements[k].kind = (banyan_placement_kind)random_between(random, 0, 2);
        job.placements[k].dim = (int)random_between(random, 0, job.ndim - 1);
    }
    if (random_next(random) % 2) {
        int stride = (int)random_between(random, 1, 2);
        int order = (int)random_between(random, 0, job.mesh.ndim - 1);
        for (int i = 0; i < job.mesh.ndim; i++) {
            int k = (i + order) % job.mesh.ndim;
            job.mesh.stride[k] = stride;
            stride *= job.mesh.extent[k];
        }
    }
    return job;
}

static void shards_equal_naive_division(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 400; round++) {
        struct job job = random_job(&random);
        check_job(&job);
    }
}

static banyan_box only_box(const struct job *job, int rank)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    banyan_layout_add_sharded(layout, "w", BANYAN_F32, job->ndim, job->shape, &job->mesh,
                              job->placements, rank);
    CHECK_OK(banyan_layout_check_as(layout, BANYAN_DESTINATION));
    assert_int_equal(banyan_layout_piece_count(layout), 1);
    banyan_box box = banyan_layout_piece(layout, 0)->box;
    banyan_layout_destroy(layout);
    return box;
}

static void one_dimension_may_be_cut_by_two_axes_in_either_order(void **state)
{
    (void)state;
    /* 2 data-parallel × 3 tensor-parallel ranks over 12 rows. */
    struct job job = {.ndim = 1,
                      .shape = {12},
                      .mesh = {.ndim = 2, .extent = {2, 3}},
                      .placements = {{BANYAN_SHARD, 0}, {BANYAN_SHARD, 0}}};
    banyan_box box = only_box(&job, 4); /* dp 1, tp 1: half 6:12, of it 8:10 */
    assert_true(banyan_box_equal(&box, &(banyan_box){1, {8}, {2}}));
    job.placements[0].kind = BANYAN_SHARD_STRIDED;
    box = only_box(&job, 4); /* third 4:8, of it 6:8 */
    assert_true(banyan_box_equal(&box, &(banyan_box){1, {6}, {2}}));
    check_job(&job);
}

static void an_axis_of_one_rank_adds_nothing_to_the_replicas(void **state)
{
    (void)state;
    struct job job = {
        .ndim = 2,
        .shape = {5, 7},
        .mesh = {.ndim = 4, .extent = {1, 3, 1, 2}, .stride = {100, 1, 9, 5}},
        .placements = {
            {BANYAN_REPLICATE, 0}, {BANYAN_REPLICATE, 0}, {BANYAN_SHARD, 1}, {BANYAN_SHARD, 0}}};
    check_job(&job);
}

static void expect_refused(const struct job *job, const char *part)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    banyan_layout_add_sharded(layout, "w", BANYAN_F32, job->ndim, job->shape, &job->mesh,
                              job->placements, 0);
    CHECK_FAILS(banyan_layout_check(layout), BANYAN_ERR_INVALID, part);
    banyan_layout_destroy(layout);
}

static void a_mesh_that_cannot_be_is_refused(void **state)
{
    (void)state;
    const struct job good = {.ndim = 1, .shape = {8}, .mesh = {.ndim = 2, .extent = {2, 2}}};
    struct job job = good;
    job.placements[1] = (banyan_placement){BANYAN_SHARD, 1};
    expect_refused(&job, "tensor \"w\" of 1 dimensions: mesh axis 1 shards dimension 1");
    job = good;
    job.mesh.extent[1] = 0;
    expect_refused(&job, "mesh axis 1 has 0 ranks");
    job = good;
    job.mesh.ndim = 5;
    expect_refused(&job, "a mesh of 5 axes");
    job = good;
    job.mesh.stride[0] = job.mesh.stride[1] = 3;
    expect_refused(&job, "names rank 3 at two of its places");
    job = good;
    job.mesh.stride[0] = -1;
    job.mesh.stride[1] = 2;
    expect_refused(&job, "ranks go from -1 to 2");
    job = good;
    job.mesh.extent[0] = job.mesh.extent[1] = 1 << 20;
    expect_refused(&job, "mesh axis 1 has 1048576 ranks");
    job = good;
    job.shape[0] = -8;
    expect_refused(&job, "\"w\": no memory can hold the shape [-8]");
    job = good;
    job.placements[0].kind = (banyan_placement_kind)7;
    expect_refused(&job, "no placement of kind 7");
}

static void axes_that_interleave_without_overlap_are_accepted(void **state)
{
    (void)state;
    struct job job = {.ndim = 1,
                      .shape = {8},
                      .mesh = {.ndim = 2, .extent = {3, 2}, .stride = {2, 3}},
                      .placements = {{BANYAN_SHARD, 0}, {BANYAN_REPLICATE, 0}}};
    check_job(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_equal_naive_division),
        cmocka_unit_test(one_dimension_may_be_cut_by_two_axes_in_either_order),
        cmocka_unit_test(an_axis_of_one_rank_adds_nothing_to_the_replicas),
        cmocka_unit_test(a_mesh_that_cannot_be_is_refused),
        cmocka_unit_test(axes_that_interleave_without_overlap_are_accepted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
