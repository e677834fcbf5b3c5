/* Compute the boxes of a tensor that a rank holds: tensor parallelism in elements, heads or padded
 * rows, of the whole tensor or of each of its fused parts, and block scales beside their weights.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "reshard/layout/box.h"
#include "reshard/layout/layout.h"
#include "reshard/model/layout.h"

#define MAX_NAME_BYTES 1024

/* A block of a tensor along the rule's dimension, which is cut separately. */
struct block {
    int64_t start, size;
    const char *heads; /* expression; NULL: none */
    const char *head_source, *head_count;
    bool shared, whole, vocab;
    bool needs_heads;
};

/* Elements along the rule's dimension. */
struct element_range {
    int64_t start, extent;
    int64_t padding;
    int64_t heads, head_rows;
    int sharers; /* neighbouring ranks that hold this same range */
};

#define fail model_tensor_fail

static int64_t layout_part_gcd(int64_t a, int64_t b)
{
    return b == 0 ? a : layout_part_gcd(b, a % b);
}

int model_fuse_dim(const model_rule *rule)
{
    return rule->parts.count > 0 ? rule->shard_dim : rule->stacks_experts;
}

/* Pad the vocabulary to a multiple that the ranks share evenly. */
static bool pad_vocab(model_build *build, const model_tensor *tensor, int64_t size, int ranks,
                      int64_t *padded)
{
    int64_t multiple = build->spec->vocab_multiple;
    if (multiple < 0)
        multiple = build->packing.vocab_multiple;
    *padded = size;
    if (multiple == 0)
        return true;
    int64_t unit = build->packing.vocab_per_tp
                       ? multiple * ranks
                       : multiple / layout_part_gcd(multiple, ranks) * ranks;
    if (__builtin_add_overflow(size, unit - 1, padded))
        return fail(build, tensor, "%" PRId64 " rows cannot be padded", size);
    *padded -= *padded % unit;
    return true;
}

static bool cut_vocab(model_build *build, const model_tensor *tensor, int64_t size,
                      const spec_axis *ranks, struct element_range *range)
{
    int64_t padded;
    if (!pad_vocab(build, tensor, size, ranks->count, &padded))
        return false;
    if (padded % ranks->count != 0)
        return fail(build, tensor,
                    "a vocabulary of %" PRId64 " does not divide over %d ranks (give a "
                    "vocab_multiple)",
                    padded, ranks->count);
    int64_t rows = padded / ranks->count, start = rows * ranks->index;
    int64_t end = start + rows < size ? start + rows : size;
    range->start = start < size ? start : size;
    range->extent = end - range->start;
    range->padding = rows - range->extent;
    return true;
}

/* Take the size of a head from another tensor; 0: the model does not have that tensor. */
static bool ask_head_source(model_build *build, const model_tensor *tensor, const char *template,
                            int64_t *rows)
{
    const glob_local nowhere = {-1, -1};
    char name[MAX_NAME_BYTES];
    *rows = 0;
    if (!template)
        return true;
    if (!glob_expand(template, &tensor->match.captures, &nowhere, name, sizeof name))
        return fail(build, tensor, "its head's name is too long");
    const banyan_local_tensor *source = subject_find(&build->subject, name);
    if (!source)
        return true;
    if (source->ndim == 0 || source->shape[source->ndim - 1] == 0)
        return fail(build, tensor, "\"%s\" gives its heads no rows", name);
    *rows = source->shape[source->ndim - 1];
    int64_t given = build->spec->head, known;
    if (given > 0 && given != *rows)
        return fail(build, tensor, "heads are %" PRId64 " in the spec, and %" PRId64 " in \"%s\"",
                    given, *rows, name);
    if (model_fact_int(build->model, "head_dim", &known) && known != *rows)
        return fail(build, tensor,
                    "head_dim is %" PRId64 " in config.json, and \"%s\" has %" PRId64, known, name,
                    *rows);
    return true;
}

/* Find the size of a head: from another tensor where the model has it, otherwise by the rule's
 * expression. 0: it is neither known nor needed. */
static bool find_head_rows(model_build *build, const model_tensor *tensor,
                           const struct block *block, int64_t *rows)
{
    if (!ask_head_source(build, tensor, block->head_source, rows))
        return false;
    if (*rows > 0)
        return true;
    if (!model_size(build, tensor, block->heads, block->size, block->needs_heads, rows)) {
        *rows = 0;
        return !block->needs_heads;
    }
    if (*rows == 0 && block->needs_heads)
        return fail(build, tensor, "its heads have 0 elements: %s is 0", block->heads);
    return true;
}

static bool cut_heads(model_build *build, const model_tensor *tensor, const struct block *block,
                      const spec_axis *ranks, struct element_range *range)
{
    int64_t rows;
    if (!find_head_rows(build, tensor, block, &rows))
        return false;
    if (!block->needs_heads)
        return true;
    if (block->size % rows != 0)
        return fail(build, tensor, "%" PRId64 " elements do not divide into heads of %" PRId64,
                    block->size, rows);
    int64_t heads = block->size / rows, count;
    if (block->head_count &&
        model_size(build, tensor, block->head_count, block->size, false, &count) && count != heads)
        return fail(build, tensor,
                    "%" PRId64 " elements are %" PRId64 " heads of %" PRId64 ", and %s is %" PRId64,
                    block->size, heads, rows, block->head_count, count);
    range->head_rows = rows;
    if (heads % ranks->count == 0) {
        range->heads = heads / ranks->count;
        range->start = range->heads * rows * ranks->index;
    } else if (block->shared && heads > 0 && ranks->count % heads == 0) {
        range->heads = 1;
        range->sharers = ranks->count / (int)heads;
        range->start = rows * (ranks->index / range->sharers);
    } else {
        return fail(build, tensor, "%" PRId64 " heads of %" PRId64 " do not divide over %d ranks",
                    heads, rows, ranks->count);
    }
    range->extent = range->heads * rows;
    return true;
}

static bool cut_evenly(model_build *build, const model_tensor *tensor, int64_t size,
                       const spec_axis *ranks, struct element_range *range)
{
    if (size % ranks->count != 0)
        return fail(build, tensor,
                    "%" PRId64 " elements along dimension %d do not divide over %d "
                    "ranks",
                    size, tensor->match.rule->shard_dim, ranks->count);
    range->extent = size / ranks->count;
    range->start = range->extent * ranks->index;
    return true;
}

static bool cut_block(model_build *build, const model_tensor *tensor, const struct block *block,
                      const spec_axis *ranks, struct element_range *range)
{
    *range = (struct element_range){.extent = block->size, .sharers = 1};
    bool cut = true;
    if (block->whole)
        range->sharers = ranks->count;
    else if (block->vocab)
        cut = cut_vocab(build, tensor, block->size, ranks, range);
    else if (block->heads)
        cut = cut_heads(build, tensor, block, ranks, range);
    else
        cut = cut_evenly(build, tensor, block->size, ranks, range);
    range->start += block->start;
    return cut;
}

/* Find the weight that a tensor of block scales belongs to. */
static const banyan_local_tensor *find_weight(model_build *build, const model_tensor *tensor)
{
    char name[MAX_NAME_BYTES];
    size_t bytes = strlen(tensor->match.name) - strlen(tensor->match.rule->scale_suffix);
    if (bytes >= sizeof name) {
        fail(build, tensor, "its name is too long");
        return NULL;
    }
    memcpy(name, tensor->match.name, bytes);
    name[bytes] = '\0';
    const banyan_local_tensor *weight = subject_find(&build->subject, name);
    if (!weight)
        fail(build, tensor, "there is no \"%s\" that these are the scales of", name);
    else if (weight->ndim != tensor->global->ndim)
        fail(build, tensor, "scales of %d dimensions for \"%s\" of %d", tensor->global->ndim, name,
             weight->ndim);
    else
        return weight;
    return NULL;
}

static int64_t layout_part_blocks_of(int64_t size, int64_t block)
{
    return size / block + (size % block != 0);
}

/* Convert a range of the weight's elements to its blocks. */
static bool range_to_blocks(model_build *build, const model_tensor *tensor, int64_t size,
                            struct element_range *range)
{
    int64_t block = tensor->match.rule->scale_block, end = range->start + range->extent;
    int dim = tensor->match.rule->shard_dim;
    if (layout_part_blocks_of(size, block) != tensor->global->shape[dim])
        return fail(build, tensor,
                    "%" PRId64 " scales along dimension %d for %" PRId64
                    " elements in blocks of %" PRId64,
                    tensor->global->shape[dim], dim, size, block);
    if (range->start % block != 0 || (end % block != 0 && end != size))
        return fail(build, tensor,
                    "a rank's elements %" PRId64 ":%" PRId64 " along dimension %d "
                    "cut blocks of %" PRId64,
                    range->start, end, dim, block);
    range->start /= block;
    range->extent = layout_part_blocks_of(end, block) - range->start;
    range->heads = range->head_rows = 0;
    return true;
}

static void add_level(banyan_rank_set *set, int level, int index, int count, int stride)
{
    set->count[level] = count;
    set->stride[level] = count > 1 ? stride : 0;
    set->first -= count > 1 ? index * stride : 0;
}

/* Return every rank of this side that holds the part's box. `sharers` neighbours along the shard
 * axis hold it. */
static banyan_rank_set find_replicas(const model_build *build, const model_tensor *tensor,
                                     const spec_axes *axes, int sharers, bool has_rows)
{
    const spec_place *place = &build->place;
    banyan_rank_set set = banyan_rank_set_one(place->rank + build->rank_offset);
    int stages = place->stage.count;
    if (tensor->is_at_ends)
        add_level(&set, 0, place->stage.index > 0, 2, (stages - 1) * place->stage.stride);
    else if (tensor->match.captures.layer < 0 && tensor->match.rule->stage == STAGE_ALL)
        add_level(&set, 0, place->stage.index, stages, place->stage.stride);
    add_level(&set, 1, axes->replicas.index, axes->replicas.count, axes->replicas.stride);
    if (!has_rows)
        add_level(&set, 2, axes->rows.index, axes->rows.count, axes->rows.stride);
    add_level(&set, MODEL_SHARD_LEVEL, axes->shard.index % sharers, sharers, axes->shard.stride);
    return set;
}

struct cutting {
    model_build *build;
    const model_tensor *tensor;
    const char *name; /* of the local tensor */
    const spec_axes *axes;
    int64_t
        size; /* along the dimension: of the tensor, or of the weight that its scales belong to */
};

/* True if a wrong size would give wrong parts: they are cut, or rearranged. */
static bool needs_sizes(const struct cutting *cutting)
{
    const rule_packed *packed = cutting->tensor->packed;
    return cutting->axes->shard.count > 1 || (packed && (packed->by_group || packed->halves));
}

static model_part new_part(const struct cutting *cutting, int sharers)
{
    const model_tensor *tensor = cutting->tensor;
    const model_build *build = cutting->build;
    const banyan_local_tensor *global = tensor->global;
    model_part part = {
        .global = global, .rule = tensor->match.rule, .slot = -1, .slots = 1, .next = SIZE_MAX};
    part.box = box_whole(global->ndim, global->shape);
    part.left_alone = tensor->is_left_out;
    bool unstacked = tensor->packed && tensor->packed->unstacked;
    if (part.rule->stacks_experts) {
        part.box.start[0] = unstacked ? tensor->match.captures.expert : build->first_expert;
        part.box.extent[0] = unstacked ? 1 : build->expert_count;
    }
    if (tensor->packed) {
        part.slot = tensor->packed->slot;
        part.map = tensor->packed->map;
        part.halves = tensor->packed->halves && global->ndim > 1;
        if (tensor->packed->stacked && !part.rule->stacks_experts)
            part.expert = tensor->match.captures.expert - build->first_expert;
    }
    part.replicas = find_replicas(build, tensor, cutting->axes, sharers, global->ndim > 0);
    return part;
}

/* Add one block of the tensor, which fills `slots` slots from `slot` on. */
static bool layout_part_add_block(const struct cutting *cutting, const struct block *block,
                                  int slot, int slots)
{
    model_build *build = cutting->build;
    const model_tensor *tensor = cutting->tensor;
    struct element_range range;
    int dim = tensor->match.rule->shard_dim;
    if (!cut_block(build, tensor, block, &cutting->axes->shard, &range))
        return false;
    if (tensor->match.is_scale && !range_to_blocks(build, tensor, cutting->size, &range))
        return false;
    model_part part = new_part(cutting, range.sharers);
    part.box.start[dim] = range.start;
    part.box.extent[dim] = range.extent;
    part.padding = range.padding;
    part.heads = range.heads;
    part.head_rows = part.halves && !block->heads ? range.extent : range.head_rows;
    part.all_heads = range.head_rows > 0 ? block->size / range.head_rows : 0;
    part.first_head = block->start;
    part.slot = part.slot >= 0 || tensor->match.rule->parts.count > 0
                    ? (part.slot < 0 ? 0 : part.slot) + slot
                    : -1;
    part.slots = slots;
    return model_part_file(build, cutting->name, tensor->packed, cutting->axes, &part);
}

/* Add each part of a tensor that is itself fused. Without a cut their sizes do not matter. */
static bool layout_part_add_parts(const struct cutting *cutting)
{
    model_build *build = cutting->build;
    const model_rule *rule = cutting->tensor->match.rule;
    bool needed = needs_sizes(cutting);
    int count = (int)rule->parts.count;
    int64_t start = 0;
    for (int i = 0; i < count; i++) {
        const rule_part *part = &rule->parts.data[i];
        struct block block = {.start = start,
                              .heads = part->heads,
                              .shared = part->heads_shared,
                              .whole = part->whole,
                              .needs_heads = needed};
        if (!model_size(build, cutting->tensor, part->size, cutting->size, needed, &block.size)) {
            if (needed)
                return false;
            continue;
        }
        if (__builtin_add_overflow(start, block.size, &start) || start > cutting->size)
            start = INT64_MAX / 2;
        else if (needed && !layout_part_add_block(cutting, &block, i, 1))
            return false;
    }
    if (!needed) {
        const struct block whole = {.size = cutting->size, .whole = true};
        return layout_part_add_block(cutting, &whole, 0, count);
    }
    if (start != cutting->size)
        return model_tensor_fail(build, cutting->tensor,
                                 "its parts do not add up to its %" PRId64 " elements along "
                                 "dimension %d",
                                 cutting->size, rule->shard_dim);
    return true;
}

static bool layout_part_add_whole(const struct cutting *cutting)
{
    const rule_packed *packed = cutting->tensor->packed;
    model_part part = new_part(cutting, cutting->axes->shard.count);
    if (packed && packed->once) {
        part.absent = cutting->axes->shard.index > 0;
        part.replicas =
            find_replicas(cutting->build, cutting->tensor, cutting->axes, 1, part.global->ndim > 0);
    }
    return model_part_file(cutting->build, cutting->name, packed, cutting->axes, &part);
}

bool model_tensor_cut(model_build *build, const model_tensor *tensor, const char *name)
{
    const banyan_local_tensor *global = tensor->global;
    const model_rule *rule = tensor->match.rule;
    struct cutting cutting = {
        .build = build,
        .tensor = tensor,
        .name = name,
        .axes = tensor->is_expert ? &build->place.expert : &build->place.dense,
    };
    int dim = rule->shard_dim, fused = model_fuse_dim(rule);
    if (dim >= global->ndim || (fused > 0 && fused >= global->ndim))
        return fail(build, tensor, "dimension %d of %d is to be sharded", dim > fused ? dim : fused,
                    global->ndim);
    if (dim < 0 || (tensor->packed && tensor->packed->whole))
        return layout_part_add_whole(&cutting);
    const banyan_local_tensor *sized = tensor->match.is_scale ? find_weight(build, tensor) : global;
    if (!sized)
        return false;
    cutting.size = sized->shape[dim];
    if (rule->parts.count > 0)
        return layout_part_add_parts(&cutting);
    const struct block block = {.size = cutting.size,
                                .heads = rule->heads,
                                .head_source = rule->head_source,
                                .head_count = rule->head_count,
                                .shared = rule->heads_shared,
                                .vocab = rule->is_vocab,
                                .needs_heads = needs_sizes(&cutting)};
    return layout_part_add_block(&cutting, &block, 0, 1);
}
