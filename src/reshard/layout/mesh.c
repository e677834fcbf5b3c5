/* Layouts from a mesh of ranks and a placement for each of its axes. */
#include <limits.h>
#include <stdlib.h>

#include "core/containers.h"
#include "reshard/layout/box.h"
#include "reshard/layout/layout.h"

/* The mesh as a set of ranks, in row-major order: axis k is level k + (levels - ndim). */
static banyan_rank_set mesh_ranks(const banyan_mesh *mesh)
{
    banyan_rank_set set = banyan_rank_set_one(mesh->first_rank);
    bool strided = false;
    for (int k = 0; k < mesh->ndim; k++)
        strided = strided || mesh->stride[k] != 0;
    int stride = 1, level = BANYAN_RANK_SET_LEVELS - 1;
    for (int k = mesh->ndim - 1; k >= 0; k--, level--) {
        set.count[level] = mesh->extent[k];
        set.stride[level] = strided ? mesh->stride[k] : stride;
        stride *= mesh->extent[k];
    }
    return set;
}

static int mesh_by_value(const void *a, const void *b)
{
    int left = *(const int *)a, right = *(const int *)b;
    return COMPARE(left, right);
}

/* Axes that nest (each stride exceeds the reach of all smaller ones) cannot reach one rank twice.
 */
static bool axes_nest(const banyan_rank_set *set)
{
    bool used[BANYAN_RANK_SET_LEVELS] = {false};
    int64_t reach = 0;
    for (int step = 0; step < BANYAN_RANK_SET_LEVELS; step++) {
        int next = -1;
        for (int k = 0; k < BANYAN_RANK_SET_LEVELS; k++) {
            if (!used[k] && set->count[k] > 1 &&
                (next < 0 || llabs(set->stride[k]) < llabs(set->stride[next])))
                next = k;
        }
        if (next < 0)
            return true;
        int64_t stride = llabs(set->stride[next]);
        if (stride <= reach)
            return false;
        used[next] = true;
        reach += stride * (set->count[next] - 1);
    }
    return true;
}

static bool check_no_rank_twice(banyan_layout *layout, const banyan_rank_set *set)
{
    if (axes_nest(set))
        return true;
    int64_t size = banyan_rank_set_size(set);
    int *ranks = calloc((size_t)size, sizeof *ranks);
    if (!ranks)
        return layout_fail(layout, BANYAN_ERR_NO_MEMORY, "no memory for a mesh of %lld ranks",
                           (long long)size);
    for (int64_t i = 0; i < size; i++)
        ranks[i] = banyan_rank_set_at(set, i);
    qsort(ranks, (size_t)size, sizeof *ranks, mesh_by_value);
    int twice = -1;
    for (int64_t i = 1; i < size; i++) {
        if (ranks[i] == ranks[i - 1])
            twice = ranks[i];
    }
    free(ranks);
    return twice < 0 || layout_fail(layout, BANYAN_ERR_INVALID,
                                    "the mesh names rank %d at two of its places", twice);
}

static bool check_mesh(banyan_layout *layout, const banyan_mesh *mesh)
{
    if (mesh->ndim < 0 || mesh->ndim > BANYAN_RANK_SET_LEVELS)
        return layout_fail(layout, BANYAN_ERR_INVALID, "a mesh of %d axes: 0 to %d are possible",
                           mesh->ndim, BANYAN_RANK_SET_LEVELS);
    int64_t size = 1;
    for (int k = 0; k < mesh->ndim; k++) {
        size *= mesh->extent[k];
        if (mesh->extent[k] < 1 || size > INT_MAX)
            return layout_fail(layout, BANYAN_ERR_INVALID, "mesh axis %d has %d ranks", k,
                               mesh->extent[k]);
    }
    banyan_rank_set set = mesh_ranks(mesh);
    int64_t low = set.first, high = set.first;
    for (int k = 0; k < BANYAN_RANK_SET_LEVELS; k++) {
        int64_t span = (int64_t)set.stride[k] * (set.count[k] - 1);
        *(span < 0 ? &low : &high) += span;
    }
    if (low < 0 || high > INT_MAX)
        return layout_fail(layout, BANYAN_ERR_INVALID, "the mesh's ranks go from %lld to %lld",
                           (long long)low, (long long)high);
    return check_no_rank_twice(layout, &set);
}

static bool check_placements(banyan_layout *layout, const char *name, int ndim,
                             const banyan_mesh *mesh, const banyan_placement *placements)
{
    for (int k = 0; k < mesh->ndim; k++) {
        if (placements[k].kind == BANYAN_REPLICATE)
            continue;
        if (placements[k].kind != BANYAN_SHARD && placements[k].kind != BANYAN_SHARD_STRIDED)
            return layout_fail(layout, BANYAN_ERR_INVALID,
                               "tensor \"%s\": mesh axis %d has no placement of kind %d", name, k,
                               (int)placements[k].kind);
        if (placements[k].dim < 0 || placements[k].dim >= ndim)
            return layout_fail(layout, BANYAN_ERR_INVALID,
                               "tensor \"%s\" of %d dimensions: mesh axis %d shards dimension %d",
                               name, ndim, k, placements[k].dim);
    }
    return true;
}

/* Cut the box along every axis of one kind, in order. */
static void mesh_cut(banyan_box *box, banyan_placement_kind kind, const banyan_mesh *mesh,
                     const banyan_placement *placements, const int *place)
{
    for (int k = 0; k < mesh->ndim; k++) {
        if (placements[k].kind != kind)
            continue;
        int64_t start, extent;
        chunk_range(box->extent[placements[k].dim], mesh->extent[k], place[k], &start, &extent);
        box->start[placements[k].dim] += start;
        box->extent[placements[k].dim] = extent;
    }
}

/* Return the ranks that differ from this one along the replicating axes only. */
static banyan_rank_set mesh_replicas_of(const banyan_rank_set *ranks, int rank,
                                        const banyan_mesh *mesh, const banyan_placement *placements,
                                        const int *place)
{
    banyan_rank_set replicas = banyan_rank_set_one(rank);
    for (int k = 0; k < mesh->ndim; k++) {
        int level = BANYAN_RANK_SET_LEVELS - mesh->ndim + k;
        if (placements[k].kind != BANYAN_REPLICATE || mesh->extent[k] == 1)
            continue;
        replicas.count[level] = mesh->extent[k];
        replicas.stride[level] = ranks->stride[level];
        replicas.first -= place[k] * ranks->stride[level];
    }
    return replicas;
}

void banyan_layout_add_sharded(banyan_layout *layout, const char *name, DLDataType dtype, int ndim,
                               const int64_t *shape, const banyan_mesh *mesh,
                               const banyan_placement *placements, int rank)
{
    if (layout_failed(layout) || !check_mesh(layout, mesh) ||
        !check_placements(layout, name, ndim, mesh, placements))
        return;
    banyan_rank_set ranks = mesh_ranks(mesh);
    int64_t index = banyan_rank_set_find(&ranks, rank);
    if (index < 0)
        return;
    int place[BANYAN_RANK_SET_LEVELS];
    for (int k = mesh->ndim - 1; k >= 0; k--) {
        place[k] = (int)(index % mesh->extent[k]);
        index /= mesh->extent[k];
    }
    uint64_t bytes;
    if (!layout_check_shape(layout, name, dtype, ndim, shape, &bytes))
        return;

    banyan_piece piece = {.name = name, .ndim = ndim, .box = box_whole(ndim, shape)};
    for (int d = 0; d < ndim; d++) {
        piece.shape[d] = shape[d];
        piece.dim_map[d] = d;
    }
    mesh_cut(&piece.box, BANYAN_SHARD, mesh, placements, place);
    mesh_cut(&piece.box, BANYAN_SHARD_STRIDED, mesh, placements, place);
    piece.replicas = mesh_replicas_of(&ranks, rank, mesh, placements, place);
    piece.tensor = banyan_layout_add_tensor(layout, name, dtype, ndim, piece.box.extent);
    banyan_layout_add_piece(layout, &piece);
}
