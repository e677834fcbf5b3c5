/* Layouts from Megatron-Core's description of a rank's parameters. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/layout/box.h"
#include "reshard/layout/layout.h"

#define OUTPUT_LAYER "output_layer.weight"
#define EMBEDDING "embedding.word_embeddings.weight"

/* A local tensor's position in its tensor-parallel group. */
struct group_position {
    int index, count;
};

static int find_rank(const int *ranks, int count, int rank)
{
    for (int i = 0; i < count; i++) {
        if (ranks[i] == rank)
            return i;
    }
    return -1;
}

/* True for first, first + stride, …. */
static bool is_progression(const int *ranks, int count, int *stride)
{
    *stride = count > 1 ? ranks[1] - ranks[0] : 0;
    for (int i = 1; i < count; i++) {
        if ((int64_t)ranks[i] - ranks[i - 1] != *stride || *stride == 0)
            return false;
    }
    return true;
}

/* True if two groups nest: one lies between two neighbours of the other, so that their grid has no
 * rank twice. */
static bool megatron_nest(int a_count, int64_t a_stride, int b_count, int64_t b_stride)
{
    return (a_count - 1) * llabs(a_stride) < llabs(b_stride) ||
           (b_count - 1) * llabs(b_stride) < llabs(a_stride);
}

/* Return the data-parallel group. For a tensor that is not sharded over the tensor-parallel group,
 * multiply it by that group, which has the same position in each replica. Empty when no strided set
 * describes the ranks. */
static banyan_rank_set megatron_replicas_of(const banyan_megatron_tensor *tensor, int rank,
                                            int rank_offset)
{
    const banyan_rank_set unknown = {0};
    int dp_stride, tp_stride;
    if (tensor->is_ep || tensor->dp_rank_count == 0 ||
        !is_progression(tensor->dp_ranks, tensor->dp_rank_count, &dp_stride))
        return unknown;
    banyan_rank_set set = banyan_rank_set_one(tensor->dp_ranks[0] + rank_offset);
    set.count[BANYAN_RANK_SET_LEVELS - 2] = tensor->dp_rank_count;
    set.stride[BANYAN_RANK_SET_LEVELS - 2] = dp_stride;
    if (tensor->is_tp || tensor->tp_rank_count < 2)
        return set;
    int place = find_rank(tensor->tp_ranks, tensor->tp_rank_count, rank);
    if (place < 0 || !is_progression(tensor->tp_ranks, tensor->tp_rank_count, &tp_stride) ||
        !megatron_nest(tensor->dp_rank_count, dp_stride, tensor->tp_rank_count, tp_stride))
        return unknown;
    set.first -= place * tp_stride;
    set.count[BANYAN_RANK_SET_LEVELS - 1] = tensor->tp_rank_count;
    set.stride[BANYAN_RANK_SET_LEVELS - 1] = tp_stride;
    return set;
}

static bool megatron_check_ranks(banyan_layout *layout, const banyan_megatron_tensor *tensor,
                                 int rank, int rank_offset)
{
    if (tensor->dp_rank_count > 0 && find_rank(tensor->dp_ranks, tensor->dp_rank_count, rank) < 0)
        return layout_fail(layout, BANYAN_ERR_INVALID,
                           "tensor \"%s\": rank %d is not in its own data-parallel group",
                           tensor->name, rank);
    const int *groups[] = {tensor->dp_ranks, tensor->tp_ranks};
    const int counts[] = {tensor->dp_rank_count, tensor->tp_rank_count};
    for (int g = 0; g < 2; g++) {
        for (int i = 0; i < counts[g]; i++) {
            int64_t shifted = (int64_t)groups[g][i] + rank_offset;
            if (groups[g][i] < 0 || shifted < 0 || shifted > INT_MAX)
                return layout_fail(layout, BANYAN_ERR_INVALID,
                                   "tensor \"%s\": its groups name rank %d (with offset %d)",
                                   tensor->name, groups[g][i], rank_offset);
        }
    }
    return true;
}

static bool find_shard(banyan_layout *layout, const banyan_megatron_tensor *tensor, int rank,
                       struct group_position *shard)
{
    *shard = (struct group_position){0, 1};
    if (!tensor->is_tp)
        return true;
    shard->count = tensor->tp_rank_count;
    shard->index = find_rank(tensor->tp_ranks, tensor->tp_rank_count, rank);
    if (shard->index < 0)
        return layout_fail(layout, BANYAN_ERR_INVALID,
                           "tensor \"%s\": rank %d is not in its own tensor-parallel group",
                           tensor->name, rank);
    if (tensor->partition_dim < 0 || tensor->partition_dim >= tensor->ndim)
        return layout_fail(layout, BANYAN_ERR_INVALID,
                           "tensor \"%s\" of %d dimensions is sharded along dimension %d",
                           tensor->name, tensor->ndim, tensor->partition_dim);
    return true;
}

/* Check that partition_sizes add up to the local extent, and that partition_stride divides each
 * into equal segments. */
static bool check_partition(banyan_layout *layout, const banyan_megatron_tensor *tensor)
{
    int64_t extent = tensor->shape[tensor->partition_dim], sum = 0;
    if (tensor->partition_stride < 1)
        return layout_fail(layout, BANYAN_ERR_INVALID, "tensor \"%s\": partition_stride is %d",
                           tensor->name, tensor->partition_stride);
    for (int b = 0; b < tensor->partition_size_count; b++) {
        int64_t size = tensor->partition_sizes[b];
        if (size < 0 || size > extent - sum)
            return layout_fail(layout, BANYAN_ERR_INVALID,
                               "tensor \"%s\": partition_sizes[%d] is %lld, after %lld of %lld "
                               "local elements",
                               tensor->name, b, (long long)size, (long long)sum, (long long)extent);
        if (size % tensor->partition_stride != 0)
            return layout_fail(layout, BANYAN_ERR_INVALID,
                               "tensor \"%s\": partition_sizes[%d], %lld, is not %d equal segments",
                               tensor->name, b, (long long)size, tensor->partition_stride);
        sum += size;
    }
    if (tensor->partition_size_count > 0 && sum != extent)
        return layout_fail(layout, BANYAN_ERR_INVALID,
                           "tensor \"%s\": partition_sizes sum to %lld of the %lld elements along "
                           "dimension %d",
                           tensor->name, (long long)sum, (long long)extent, tensor->partition_dim);
    if (tensor->partition_size_count == 0 && extent % tensor->partition_stride != 0)
        return layout_fail(layout, BANYAN_ERR_INVALID,
                           "tensor \"%s\": its %lld elements along dimension %d are not %d equal "
                           "segments (partition_stride)",
                           tensor->name, (long long)extent, tensor->partition_dim,
                           tensor->partition_stride);
    return true;
}

/* Add one block of `extent` local elements at local_start: its segments, divided among the group's
 * block that starts at local_start × T. */
static void megatron_add_block(banyan_layout *layout, banyan_piece *piece, int dim,
                               int64_t local_start, int64_t extent, int64_t segments,
                               struct group_position shard)
{
    if (shard.count == 1)
        segments = 1;
    int64_t segment = extent / segments;
    for (int64_t k = 0; k < segments; k++) {
        piece->box.start[dim] =
            local_start * shard.count + (k * shard.count + shard.index) * segment;
        piece->box.extent[dim] = segment;
        piece->local_start[dim] = local_start + k * segment;
        banyan_layout_add_piece(layout, piece);
    }
}

static void megatron_add_pieces(banyan_layout *layout, const banyan_megatron_tensor *tensor,
                                banyan_piece *piece, struct group_position shard)
{
    int dim = tensor->partition_dim;
    if (shard.count == 1) {
        banyan_layout_add_piece(layout, piece);
        return;
    }
    if (tensor->partition_size_count == 0) {
        megatron_add_block(layout, piece, dim, 0, tensor->shape[dim], tensor->partition_stride,
                           shard);
        return;
    }
    int64_t start = 0;
    for (int b = 0; b < tensor->partition_size_count; b++) {
        megatron_add_block(layout, piece, dim, start, tensor->partition_sizes[b],
                           tensor->partition_stride, shard);
        start += tensor->partition_sizes[b];
    }
}

/* Turn "<prefix>output_layer.weight" into "<prefix>embedding.word_embeddings.weight". False for any
 * other name, and when the result does not fit. */
static bool tied_name(const char *name, char *tied, size_t bytes)
{
    size_t length = strlen(name), suffix = strlen(OUTPUT_LAYER);
    if (length < suffix || strcmp(name + length - suffix, OUTPUT_LAYER) != 0)
        return false;
    size_t prefix = length - suffix;
    if (prefix > 0 && name[prefix - 1] != '.')
        return false;
    return prefix + sizeof EMBEDDING <= bytes &&
           snprintf(tied, bytes, "%.*s%s", (int)prefix, name, EMBEDDING) > 0;
}

void banyan_layout_add_megatron(banyan_layout *layout, const banyan_megatron_tensor *tensor,
                                int rank, int rank_offset)
{
    struct group_position shard;
    uint64_t bytes;
    if (layout_failed(layout) || !megatron_check_ranks(layout, tensor, rank, rank_offset) ||
        !layout_check_shape(layout, tensor->name, tensor->dtype, tensor->ndim, tensor->shape,
                            &bytes) ||
        !find_shard(layout, tensor, rank, &shard))
        return;
    if (tensor->is_tp && !check_partition(layout, tensor))
        return;

    char tied[512];
    banyan_piece piece = {
        .name = tensor->resolved_name,
        .ndim = tensor->ndim,
        .box = box_whole(tensor->ndim, tensor->shape),
        .flags = tensor->persistent_buffer ? BANYAN_PIECE_PERSISTENT_BUFFER : 0,
        .replicas = megatron_replicas_of(tensor, rank, rank_offset),
    };
    if (tied_name(tensor->resolved_name, tied, sizeof tied))
        piece.fallback_name = tied;
    for (int d = 0; d < tensor->ndim; d++) {
        piece.shape[d] = tensor->shape[d];
        piece.dim_map[d] = d;
    }
    if (tensor->is_tp && __builtin_mul_overflow(tensor->shape[tensor->partition_dim], shard.count,
                                                &piece.shape[tensor->partition_dim])) {
        layout_fail(layout, BANYAN_ERR_INVALID,
                    "tensor \"%s\": %lld elements on each of %d ranks are more than 2⁶³",
                    tensor->name, (long long)tensor->shape[tensor->partition_dim], shard.count);
        return;
    }
    piece.tensor =
        banyan_layout_add_tensor(layout, tensor->name, tensor->dtype, tensor->ndim, tensor->shape);
    megatron_add_pieces(layout, tensor, &piece, shard);
}
