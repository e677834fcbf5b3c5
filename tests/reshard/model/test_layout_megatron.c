/* Megatron-Core's metadata: segments, blocks, replicas and tied embeddings become the pieces of
 * naive sharding. */
#include "reshard/elements.h"

static banyan_layout *new_layout(void)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    return layout;
}

static const int tp_group[] = {2, 3, 4};
static const int dp_group[] = {1, 4, 7};

/* Rank 4, the third of a tensor-parallel group of 3. */
static banyan_megatron_tensor tensor_of(const char *name, int64_t rows, int64_t columns)
{
    return (banyan_megatron_tensor){
        .name = name,
        .resolved_name = name,
        .dtype = BANYAN_BF16,
        .ndim = 2,
        .shape = {rows, columns},
        .is_tp = true,
        .partition_stride = 1,
        .tp_ranks = tp_group,
        .tp_rank_count = 3,
        .dp_ranks = dp_group,
        .dp_rank_count = 3,
    };
}

/* The elements of rank t of T along one dimension: blocks one after another, of each block
 * segments t, T + t, 2T + t, … */
static int64_t naive_shard(const int64_t *blocks, int block_count, int segments, int t, int count,
                           int64_t *global)
{
    int64_t held = 0, block_start = 0;
    for (int b = 0; b < block_count; b++) {
        int64_t segment = blocks[b] / segments;
        for (int64_t i = 0; i < blocks[b] * count; i++) {
            if (i / segment % count == t)
                global[held++] = block_start + i;
        }
        block_start += blocks[b] * count;
    }
    return held;
}

/* Compare the layout's one tensor, sharded along `dim`, with a list of global indices. */
static void check_along(const banyan_layout *layout, int dim, const int64_t *global)
{
    const banyan_local_tensor *local = banyan_layout_tensor(layout, 0);
    const banyan_piece **by;
    int64_t *held = layout_elements(layout, 0, &by);
    banyan_box whole = {.ndim = local->ndim};
    memcpy(whole.extent, local->shape, sizeof whole.extent);
    int64_t point[BANYAN_MAX_DIMS];
    FOR_EACH_ELEMENT(&whole, point)
    {
        int64_t at = element_index(local->ndim, local->shape, point);
        int64_t expected[BANYAN_MAX_DIMS];
        memcpy(expected, point, sizeof expected);
        expected[dim] = global[point[dim]];
        assert_non_null(by[at]);
        assert_int_equal(held[at], element_index(local->ndim, by[at]->shape, expected));
    }
    free(held);
    free(by);
}

static void segments_and_blocks_land_where_naive_sharding_puts_them(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 300; round++) {
        int dim = (int)random_between(&random, 0, 1);
        int segments = (int)random_between(&random, 1, 3);
        int blocks = (int)random_between(&random, 1, 4), count = (int)random_between(&random, 1, 3);
        int64_t sizes[4], extent = 0, global[64];
        for (int b = 0; b < blocks; b++)
            extent += sizes[b] = segments * random_between(&random, 1, 4);
        banyan_megatron_tensor tensor =
            tensor_of("w", dim == 0 ? extent : 3, dim == 0 ? 3 : extent);
        tensor.partition_dim = dim;
        tensor.partition_stride = segments;
        tensor.partition_sizes = sizes;
        tensor.partition_size_count = blocks == 1 ? 0 : blocks;
        tensor.tp_ranks = tp_group + 3 - count;
        tensor.tp_rank_count = count;
        banyan_layout *layout = new_layout();
        banyan_layout_add_megatron(layout, &tensor, 4, 0);
        CHECK_OK(banyan_layout_check_as(layout, BANYAN_DESTINATION));
        int64_t held = naive_shard(sizes, blocks, segments, count - 1, count, global);
        assert_int_equal(held, extent);
        assert_int_equal(banyan_layout_piece(layout, 0)->shape[dim], extent * count);
        check_along(layout, dim, global);
        banyan_layout_destroy(layout);
    }
}

static void expect_replicas(const banyan_megatron_tensor *tensor, int offset, int count,
                            const int *ranks)
{
    banyan_layout *layout = new_layout();
    banyan_layout_add_megatron(layout, tensor, 4, offset);
    CHECK_OK(banyan_layout_check_as(layout, BANYAN_DESTINATION));
    const banyan_rank_set *set = &banyan_layout_piece(layout, 0)->replicas;
    assert_int_equal(banyan_rank_set_size(set), count);
    for (int i = 0; i < count; i++)
        assert_true(banyan_rank_set_find(set, ranks[i]) >= 0);
    banyan_layout_destroy(layout);
}

static void replicas_of_a_shard_are_the_data_parallel_group(void **state)
{
    (void)state;
    banyan_megatron_tensor tensor = tensor_of("w", 4, 1);
    expect_replicas(&tensor, 0, 3, (int[]){1, 4, 7});
    expect_replicas(&tensor, 100, 3, (int[]){101, 104, 107});
}

static void replicas_of_a_whole_tensor_are_the_grid_of_both_groups(void **state)
{
    (void)state;
    static const int tp[] = {4, 5}, dp[] = {0, 4, 8};
    banyan_megatron_tensor tensor = tensor_of("norm", 4, 1);
    tensor.is_tp = false;
    tensor.tp_ranks = tp;
    tensor.tp_rank_count = 2;
    tensor.dp_ranks = dp;
    expect_replicas(&tensor, 0, 6, (int[]){0, 1, 4, 5, 8, 9});
    expect_replicas(&tensor, 16, 6, (int[]){16, 17, 20, 21, 24, 25});
    /* An expert's data-parallel group holds other experts. */
    tensor.is_ep = true;
    expect_replicas(&tensor, 0, 0, NULL);
    tensor.is_ep = false;
    /* Not a progression: the planner must find the replicas itself. */
    static const int uneven[] = {0, 4, 9};
    tensor.dp_ranks = uneven;
    expect_replicas(&tensor, 0, 0, NULL);
    tensor.dp_rank_count = 0;
    expect_replicas(&tensor, 0, 0, NULL);
}

static void an_output_layer_falls_back_to_its_embedding(void **state)
{
    (void)state;
    static const struct {
        const char *name, *fallback;
    } cases[] = {
        {"output_layer.weight", "embedding.word_embeddings.weight"},
        {"module.output_layer.weight", "module.embedding.word_embeddings.weight"},
        {"embedding.word_embeddings.weight", NULL},
        {"my_output_layer.weight", NULL},
        {"output_layer.bias", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        banyan_megatron_tensor tensor = tensor_of("local", 4, 2);
        tensor.resolved_name = cases[i].name;
        tensor.persistent_buffer = i == 3;
        banyan_layout *layout = new_layout();
        banyan_layout_add_megatron(layout, &tensor, 4, 0);
        CHECK_OK(banyan_layout_check_as(layout, BANYAN_DESTINATION));
        const banyan_piece *piece = banyan_layout_piece(layout, 0);
        assert_string_equal(piece->name, cases[i].name);
        if (cases[i].fallback)
            assert_string_equal(piece->fallback_name, cases[i].fallback);
        else
            assert_null(piece->fallback_name);
        assert_int_equal(piece->flags, i == 3 ? BANYAN_PIECE_PERSISTENT_BUFFER : 0);
        assert_string_equal(banyan_layout_tensor(layout, 0)->name, "local");
        banyan_layout_destroy(layout);
    }
}

static void expect_refused(const banyan_megatron_tensor *tensor, int rank, int offset,
                           const char *part)
{
    banyan_layout *layout = new_layout();
    banyan_layout_add_megatron(layout, tensor, rank, offset);
    CHECK_FAILS(banyan_layout_check(layout), BANYAN_ERR_INVALID, part);
    banyan_layout_destroy(layout);
}

static void metadata_that_contradicts_itself_is_refused(void **state)
{
    (void)state;
    static const int64_t sizes[] = {4, 3};
    const banyan_megatron_tensor good = tensor_of("w", 8, 6);
    banyan_megatron_tensor tensor = good;
    expect_refused(&good, 2, 0, "\"w\": rank 2 is not in its own data-parallel group");
    expect_refused(&good, 1, 0, "\"w\": rank 1 is not in its own tensor-parallel group");
    expect_refused(&good, 4, INT32_MAX - 5, "its groups name rank 7 (with offset 2147483642)");
    tensor.partition_dim = 2;
    expect_refused(&tensor, 4, 0, "\"w\" of 2 dimensions is sharded along dimension 2");
    tensor = good;
    tensor.partition_stride = 3;
    expect_refused(&tensor, 4, 0, "its 8 elements along dimension 0 are not 3 equal segments");
    tensor.partition_stride = 0;
    expect_refused(&tensor, 4, 0, "partition_stride is 0");
    tensor = good;
    tensor.partition_sizes = sizes;
    tensor.partition_size_count = 1;
    expect_refused(&tensor, 4, 0, "partition_sizes sum to 4 of the 8 elements");
    tensor.partition_size_count = 2;
    expect_refused(&tensor, 4, 0, "partition_sizes sum to 7 of the 8 elements");
    tensor.shape[0] = 6;
    expect_refused(&tensor, 4, 0, "partition_sizes[1] is 3, after 4 of 6 local elements");
    tensor.shape[0] = 7;
    tensor.partition_stride = 2;
    expect_refused(&tensor, 4, 0, "partition_sizes[1], 3, is not 2 equal segments");
    tensor = good;
    tensor.shape[0] = INT64_MAX / 2;
    tensor.shape[1] = 1;
    tensor.dtype = BANYAN_U8;
    expect_refused(&tensor, 4, 0, "4611686018427387903 elements on each of 3 ranks");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_and_blocks_land_where_naive_sharding_puts_them),
        cmocka_unit_test(replicas_of_a_shard_are_the_data_parallel_group),
        cmocka_unit_test(replicas_of_a_whole_tensor_are_the_grid_of_both_groups),
        cmocka_unit_test(an_output_layer_falls_back_to_its_embedding),
        cmocka_unit_test(metadata_that_contradicts_itself_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
