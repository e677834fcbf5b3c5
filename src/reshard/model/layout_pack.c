/* Build local tensors from parts: fused by blocks or by groups, stacked, transposed, padded, and
 * cut to the rows that this rank holds. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/layout/box.h"
#include "reshard/layout/layout.h"
#include "reshard/model/layout.h"

/* A local tensor under construction. Before the cut into rows it is [stack][dimension along which
 * parts are fused][their other dimensions], with the two dimensions of a matrix swapped when
 * transposed. Parts that are stacks of experts bring their own first dimension; it is dropped where
 * each expert is a local tensor of its own. */
struct packing {
    model_build *build;
    const model_target *target;
    model_part **parts; /* by expert, then slot */
    size_t count;
    int ndim;     /* of the parts */
    int fuse_dim; /* of the parts, which are concatenated along it */
    bool stacked; /* many parts hold the experts, not one */
    bool dropped;
    bool transposed;
    int64_t groups;
    int sharers; /* neighbouring ranks that divide the rows of a group evenly */
    int tensor;
    int local_ndim;
    int64_t shape[BANYAN_MAX_DIMS]; /* local, before the cut */
    int64_t first_row, rows;        /* after the cut, along local dimension 0 */
};

static bool layout_pack_fail(const struct packing *packing, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

static bool layout_pack_fail(const struct packing *packing, const char *format, ...)
{
    char text[640];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const model_rule *rule = packing->parts[0]->rule;
    return layout_fail(packing->build->layout, BANYAN_ERR_INVALID,
                       "local tensor \"%s\" (rule \"%s\", %s:%d): %s", packing->target->name,
                       rule->text, rule->file, rule->line, text);
}

static bool same_packing(const rule_packed *a, const rule_packed *b)
{
    return a && b && a->by_group == b->by_group && a->stacked == b->stacked &&
           a->unstacked == b->unstacked && a->transposed == b->transposed && a->once == b->once &&
           a->has_dtype == b->has_dtype &&
           (!a->has_dtype || banyan_dtype_equal(a->dtype, b->dtype)) &&
           (a->slot >= 0) == (b->slot >= 0);
}

bool model_part_file(model_build *build, const char *name, const rule_packed *packed,
                     const spec_axes *axes, const model_part *part)
{
    size_t number = build->parts.count;
    uint64_t known;
    if (!array_push(&build->parts, *part))
        return layout_fail(build->layout, BANYAN_ERR_NO_MEMORY, "%s", banyan_last_error());
    if (!map_get_string(&build->target_by_name, name, &known)) {
        model_target target = {names_keep(&build->names, name), packed, axes, number, 1};
        if (!target.name ||
            !map_put_string(&build->target_by_name, target.name, build->targets.count) ||
            !array_push(&build->targets, target))
            return layout_fail(build->layout, BANYAN_ERR_NO_MEMORY, "%s", banyan_last_error());
        return true;
    }
    model_target *target = &build->targets.data[known];
    const model_part *other = &build->parts.data[target->first_part];
    bool joins = other->global == part->global ||
                 (same_packing(target->packed, packed) && (packed->slot >= 0 || packed->stacked));
    if (!joins || target->axes != axes)
        return layout_fail(build->layout, BANYAN_ERR_INVALID,
                           "tensors \"%s\" and \"%s\" (%s:%d) form the local tensor \"%s\", but "
                           "are packed differently",
                           other->global->name, part->global->name, part->rule->file,
                           part->rule->line, name);
    build->parts.data[number].next = target->first_part;
    target->first_part = number;
    target->part_count++;
    return true;
}

static int by_expert_and_slot(const void *left, const void *right)
{
    const model_part *a = *(const model_part *const *)left;
    const model_part *b = *(const model_part *const *)right;
    RETURN_IF_UNEQUAL(a->expert, b->expert);
    return COMPARE(a->slot, b->slot);
}

static int64_t part_extent(const model_part *part, int dim)
{
    return part->box.extent[dim] + (dim == part->rule->shard_dim ? part->padding : 0);
}

/* Return a part's extent along the dimension in which parts are fused. */
static int64_t part_rows(const struct packing *packing, const model_part *part)
{
    return packing->ndim > 0 ? part_extent(part, packing->fuse_dim) : 1;
}

static bool same_type(const struct packing *packing, const model_part *a, const model_part *b)
{
    const rule_packed *packed = packing->target->packed;
    return (packed && packed->has_dtype) || banyan_dtype_equal(a->global->dtype, b->global->dtype);
}

/* Check that the parts of one local tensor agree in everything except the fused dimension, and that
 * none appears twice. */
static bool check_parts(const struct packing *packing)
{
    const model_part *first = packing->parts[0];
    if (packing->ndim == 0 && (packing->count > 1 || packing->stacked))
        return layout_pack_fail(packing, "\"%s\" is a scalar, which is neither fused nor stacked",
                                first->global->name);
    for (size_t i = 1; i < packing->count; i++) {
        const model_part *part = packing->parts[i], *before = packing->parts[i - 1];
        if (part->expert == before->expert && part->slot < before->slot + before->slots)
            return layout_pack_fail(packing, "\"%s\" and \"%s\" have the same place in it",
                                    before->global->name, part->global->name);
        bool same_shape = part->global->ndim == first->global->ndim &&
                          part->rule->stacks_experts == first->rule->stacks_experts &&
                          model_fuse_dim(part->rule) == packing->fuse_dim &&
                          same_type(packing, part, first);
        for (int d = 0; same_shape && d < part->global->ndim; d++)
            same_shape = d == packing->fuse_dim || part_extent(part, d) == part_extent(first, d);
        if (!same_shape)
            return layout_pack_fail(packing, "\"%s\" and \"%s\" differ in type or shape",
                                    first->global->name, part->global->name);
    }
    return true;
}

/* Fail, naming the first of the rules' tensors that is missing beside a part. */
static bool fail_incomplete(const struct packing *packing, const model_part *part, int slot)
{
    const rule_packed *packed = packing->target->packed;
    const banyan_rules *rules = packing->build->rules;
    for (size_t i = 0; i < rules->rules.count; i++) {
        const model_rule *rule = &rules->rules.data[i];
        for (size_t p = 0; p < rule->packed.count; p++) {
            const rule_packed *other = &rule->packed.data[p];
            int slots = rule->parts.count > 0 ? (int)rule->parts.count : 1;
            if (strcmp(other->packing, packed->packing) == 0 &&
                strcmp(other->name, packed->name) == 0 && other->slot <= slot &&
                slot < other->slot + slots)
                return layout_pack_fail(
                    packing,
                    "it is fused of \"%s\" and others, and the model has no tensor for "
                    "its part %d, such as the rule \"%s\" (%s:%d) has",
                    part->global->name, slot, rule->text, rule->file, rule->line);
        }
    }
    return layout_pack_fail(
        packing, "it is fused of \"%s\" and others, and the model has none for its part %d",
        part->global->name, slot);
}

/* Check that every expert, or the tensor, has all parts that the rules fuse. */
static bool layout_pack_check_complete(const struct packing *packing)
{
    const rule_packed *packed = packing->target->packed;
    uint64_t slots = 0;
    for (size_t i = 0; packed && packed->slot >= 0 && i < packing->count; i++) {
        const model_part *part = packing->parts[i];
        uint64_t ones = part->slots >= 64 ? UINT64_MAX : ((uint64_t)1 << part->slots) - 1;
        slots |= ones << part->slot;
        if (i + 1 < packing->count && packing->parts[i + 1]->expert == part->expert)
            continue;
        if (packed->slots & ~slots)
            return fail_incomplete(packing, part, __builtin_ctzll(packed->slots & ~slots));
        slots = 0;
    }
    return true;
}

/* Find the end of the parts of the expert that begins at `first`, and their extent in the fused
 * dimension. */
static size_t layer_end(const struct packing *packing, size_t first, int64_t *rows)
{
    size_t i = first;
    *rows = 0;
    for (; i < packing->count && packing->parts[i]->expert == packing->parts[first]->expert; i++)
        *rows += part_rows(packing, packing->parts[i]);
    return i;
}

/* Check that a stack has one layer of equal size for each of this rank's experts. */
static bool check_stack(const struct packing *packing, int64_t *rows)
{
    int64_t layers = 0, layer_rows;
    for (size_t i = 0; i < packing->count; layers++) {
        int64_t expert = packing->parts[i]->expert;
        const model_part *part = packing->parts[i];
        i = layer_end(packing, i, &layer_rows);
        if (layers == 0)
            *rows = layer_rows;
        if (*rows != layer_rows)
            return layout_pack_fail(packing,
                                    "\"%s\" and its neighbours have %" PRId64
                                    " rows, other experts "
                                    "%" PRId64,
                                    part->global->name, layer_rows, *rows);
        if (packing->stacked && expert != layers)
            break;
    }
    if (packing->stacked && layers != packing->build->expert_count)
        return layout_pack_fail(packing, "expert %" PRId64 " is missing in the model",
                                packing->build->first_expert + layers);
    return true;
}

/* With fewer groups than ranks, neighbouring ranks share a group: each holds an even share of the
 * group's rows, even where this cuts a head. Megatron-Core cuts its linear_qkv so. Parts become
 * those of the whole group. */
static bool share_groups(struct packing *packing)
{
    const spec_axis *ranks = &packing->target->axes->shard;
    int64_t groups = INT64_MAX;
    for (size_t i = 0; i < packing->count; i++)
        groups = packing->parts[i]->all_heads < groups ? packing->parts[i]->all_heads : groups;
    if (groups < 1 || groups >= ranks->count)
        return true;
    packing->sharers = (int)(ranks->count / groups);
    for (size_t i = 0; i < packing->count; i++) {
        model_part *part = packing->parts[i];
        int64_t heads = part->all_heads / groups, rows = heads * part->head_rows;
        if (ranks->count % groups != 0 || part->all_heads % groups != 0)
            return layout_pack_fail(packing,
                                    "%" PRId64 " heads of \"%s\" in %" PRId64
                                    " groups do not divide over %d "
                                    "ranks",
                                    part->all_heads, part->global->name, groups, ranks->count);
        part->heads = heads;
        part->box.start[packing->fuse_dim] =
            part->first_head + ranks->index / packing->sharers * rows;
        part->box.extent[packing->fuse_dim] = rows;
        /* The neighbours along the shard axis no longer hold this box. */
        banyan_rank_set *replicas = &part->replicas;
        replicas->first +=
            ranks->index % replicas->count[MODEL_SHARD_LEVEL] * replicas->stride[MODEL_SHARD_LEVEL];
        replicas->count[MODEL_SHARD_LEVEL] = 1;
        replicas->stride[MODEL_SHARD_LEVEL] = 0;
    }
    return true;
}

/* Set the number of groups of heads in which the parts interleave: the smallest number of heads in
 * a part. */
static bool layout_pack_find_groups(struct packing *packing)
{
    packing->groups = packing->sharers = 1;
    if (!packing->target->packed || !packing->target->packed->by_group)
        return true;
    if (!share_groups(packing))
        return false;
    int64_t groups = packing->parts[0]->heads;
    for (size_t i = 1; i < packing->count; i++)
        groups = packing->parts[i]->heads < groups ? packing->parts[i]->heads : groups;
    for (size_t i = 0; i < packing->count; i++) {
        const model_part *part = packing->parts[i];
        int64_t rows = packing->ndim > 0 ? part->box.extent[packing->fuse_dim] : 1;
        if (groups < 1 || part->heads % groups != 0 || rows % groups != 0)
            return layout_pack_fail(packing,
                                    "%" PRId64 " heads of \"%s\" (%" PRId64
                                    " rows) are not the same "
                                    "for each of %" PRId64 " groups",
                                    part->heads, part->global->name, rows, groups);
    }
    packing->groups = groups;
    return true;
}

/* Return the local dimension of a part's dimension, or BANYAN_NO_DIM. */
static int local_dim(const struct packing *packing, int dim)
{
    int first = packing->ndim - 2; /* of a matrix */
    int shift = packing->stacked - packing->dropped;
    if (packing->dropped && dim == 0)
        return BANYAN_NO_DIM;
    return shift + (packing->transposed && dim >= first ? 2 * first + 1 - dim : dim);
}

static bool find_shape(struct packing *packing)
{
    const model_part *first = packing->parts[0];
    int64_t rows = 0;
    if (!check_stack(packing, &rows))
        return false;
    packing->local_ndim = packing->ndim + packing->stacked - packing->dropped;
    if (packing->local_ndim > BANYAN_MAX_DIMS)
        return layout_pack_fail(packing, "a stack of %d dimensions", packing->local_ndim);
    if (packing->stacked)
        packing->shape[0] = packing->build->expert_count;
    for (int d = 0; d < packing->ndim; d++) {
        int k = local_dim(packing, d);
        if (k != BANYAN_NO_DIM)
            packing->shape[k] = d == packing->fuse_dim ? rows : part_extent(first, d);
    }
    return true;
}

/* Cut a place in the uncut local tensor to this rank's rows: return its place in the cut tensor,
 * and how much was cut off below. False: nothing is left. */
static bool cut_place(const struct packing *packing, banyan_box *place, int64_t *below)
{
    *below = 0;
    if (packing->local_ndim == 0)
        return true;
    int64_t start = place->start[0], end = start + place->extent[0];
    int64_t from = start > packing->first_row ? start : packing->first_row;
    int64_t last_row = packing->first_row + packing->rows;
    int64_t until = end < last_row ? end : last_row;
    if (from >= until)
        return false;
    *below = from - start;
    place->start[0] = from - packing->first_row;
    place->extent[0] = until - from;
    return true;
}

/* Return the place of rows [row, row + rows) of a part, counted from its box's start, at `at` in
 * the fused dimension. */
static banyan_box uncut_place(const struct packing *packing, const model_part *part, int64_t rows,
                              int64_t at)
{
    banyan_box place = {.ndim = packing->local_ndim};
    if (packing->stacked) {
        place.start[0] = part->expert;
        place.extent[0] = 1;
    }
    for (int d = 0; d < packing->ndim; d++) {
        int k = local_dim(packing, d);
        if (k == BANYAN_NO_DIM)
            continue;
        place.start[k] = d == packing->fuse_dim ? at : 0;
        place.extent[k] = d == packing->fuse_dim ? rows : part->box.extent[d];
    }
    return place;
}

static void add_rows(const struct packing *packing, const model_part *part, int64_t row,
                     int64_t rows, int64_t at)
{
    banyan_box place = uncut_place(packing, part, rows, at);
    int64_t below;
    if (!cut_place(packing, &place, &below))
        return;
    if (part->absent) {
        banyan_layout_add_padding(packing->build->layout, packing->tensor, &place);
        return;
    }
    if (part->left_alone) {
        banyan_layout_leave_alone(packing->build->layout, packing->tensor, &place);
        return;
    }
    const rule_packed *packed = packing->target->packed;
    bool adopts = part->rule->is_buffer && !(packed && packed->has_dtype);
    banyan_piece piece = {
        .tensor = packing->tensor,
        .name = part->global->name,
        .ndim = packing->ndim,
        .box = part->box,
        .flags = (adopts ? BANYAN_PIECE_PERSISTENT_BUFFER : 0) | part->map,
        .replicas = part->replicas,
    };
    memcpy(piece.shape, part->global->shape, sizeof piece.shape);
    const banyan_local_tensor *other =
        part->rule->fallback ? subject_find(&packing->build->subject, part->rule->fallback) : NULL;
    if (other && other->ndim == piece.ndim &&
        memcmp(other->shape, piece.shape, sizeof other->shape) == 0)
        piece.fallback_name = other->name;
    memcpy(piece.local_start, place.start, sizeof piece.local_start);
    if (packing->ndim > 0) {
        piece.box.start[packing->fuse_dim] += row;
        piece.box.extent[packing->fuse_dim] = rows;
    }
    for (int d = 0; d < packing->ndim; d++) {
        piece.dim_map[d] = local_dim(packing, d);
        if (piece.dim_map[d] == 0) {
            piece.box.start[d] += below;
            piece.box.extent[d] = place.extent[0];
        }
    }
    banyan_layout_add_piece(packing->build->layout, &piece);
}

static void layout_pack_add_padding(const struct packing *packing, const model_part *part,
                                    int64_t at)
{
    if (part->padding == 0)
        return;
    int dim = part->rule->shard_dim;
    banyan_box place = uncut_place(packing, part, part->box.extent[packing->fuse_dim], at);
    int k = local_dim(packing, dim);
    place.start[k] += part->box.extent[dim];
    place.extent[k] = part->padding;
    int64_t below;
    if (cut_place(packing, &place, &below))
        banyan_layout_add_padding(packing->build->layout, packing->tensor, &place);
}

/* Add rows that are heads, each with its even rows first, then the odd ones. */
static void add_halves(const struct packing *packing, const model_part *part, int64_t row,
                       int64_t rows, int64_t at)
{
    int64_t half = part->head_rows / 2;
    for (int64_t i = 0; i < rows; i++) {
        int64_t in_head = i % part->head_rows;
        add_rows(packing, part, row + i, 1, at + i - in_head + in_head % 2 * half + in_head / 2);
    }
}

/* Add the parts of one expert, or of a tensor that is not stacked. */
static void add_layer(const struct packing *packing, size_t first, size_t end)
{
    int64_t at = 0;
    for (int64_t g = 0; g < packing->groups; g++) {
        for (size_t i = first; i < end; i++) {
            const model_part *part = packing->parts[i];
            int64_t rows = 1;
            if (packing->ndim > 0)
                rows = part->box.extent[packing->fuse_dim] / packing->groups;
            if (part->halves)
                add_halves(packing, part, g * rows, rows, at);
            else
                add_rows(packing, part, g * rows, rows, at);
            layout_pack_add_padding(packing, part, at);
            at += part_rows(packing, part) / packing->groups;
        }
    }
}

static bool check_halves(const struct packing *packing)
{
    for (size_t i = 0; i < packing->count; i++) {
        const model_part *part = packing->parts[i];
        if (part->halves && (part->head_rows < 2 || part->head_rows % 2 != 0))
            return layout_pack_fail(packing,
                                    "heads of %" PRId64 " elements of \"%s\" have no halves",
                                    part->head_rows, part->global->name);
    }
    return true;
}

/* Compute the rows of the local tensor that this rank holds: its share of a group, cut by fsdp. */
static bool cut_rows(struct packing *packing)
{
    const spec_axes *axes = packing->target->axes;
    if (packing->local_ndim == 0)
        return true;
    int64_t rows = packing->shape[0] / packing->sharers;
    if (packing->shape[0] % packing->sharers != 0)
        return layout_pack_fail(
            packing, "a group's %" PRId64 " rows do not divide over the %d ranks that share it",
            packing->shape[0], packing->sharers);
    chunk_range(rows, axes->rows.count, axes->rows.index, &packing->first_row, &packing->rows);
    packing->first_row += axes->shard.index % packing->sharers * rows;
    return true;
}

static bool build_tensor(struct packing *packing)
{
    const model_target *target = packing->target;
    const model_rule *rule = packing->parts[0]->rule;
    const rule_packed *packed = target->packed;
    packing->ndim = packing->parts[0]->global->ndim;
    packing->fuse_dim = packing->ndim > 0 ? model_fuse_dim(rule) : 0;
    packing->stacked = packed && packed->stacked && !rule->stacks_experts;
    packing->dropped = packed && packed->unstacked;
    packing->transposed = packed && packed->transposed && packing->ndim == 2 + rule->stacks_experts;
    if (!check_parts(packing) || !layout_pack_check_complete(packing) || !check_halves(packing) ||
        !layout_pack_find_groups(packing) || !find_shape(packing))
        return false;
    int64_t shape[BANYAN_MAX_DIMS];
    memcpy(shape, packing->shape, sizeof shape);
    if (!cut_rows(packing))
        return false;
    if (packing->local_ndim > 0)
        shape[0] = packing->rows;
    DLDataType dtype =
        packed && packed->has_dtype ? packed->dtype : packing->parts[0]->global->dtype;
    packing->tensor = banyan_layout_add_tensor(packing->build->layout, target->name, dtype,
                                               packing->local_ndim, shape);
    for (size_t i = 0; i < packing->count && !layout_failed(packing->build->layout);) {
        int64_t rows;
        size_t end = layer_end(packing, i, &rows);
        add_layer(packing, i, end);
        i = end;
    }
    return !layout_failed(packing->build->layout);
}

bool model_target_build(model_build *build, const model_target *target)
{
    struct packing packing = {.build = build, .target = target, .count = target->part_count};
    packing.parts = calloc(packing.count, sizeof *packing.parts);
    if (!packing.parts)
        return layout_fail(build->layout, BANYAN_ERR_NO_MEMORY,
                           "no memory for the %zu parts of \"%s\"", packing.count, target->name);
    size_t part = target->first_part;
    for (size_t i = 0; i < packing.count; i++, part = build->parts.data[part].next)
        packing.parts[i] = &build->parts.data[part];
    qsort(packing.parts, packing.count, sizeof *packing.parts, by_expert_and_slot);
    bool built = build_tensor(&packing);
    free(packing.parts);
    return built;
}
