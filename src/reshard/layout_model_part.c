/* The range of a tensor that a rank holds: tensor parallelism in elements, heads or padded rows,
 * and block scales beside their weights. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "reshard/box.h"
#include "reshard/layout.h"
#include "reshard/layout_model.h"
#include "reshard/model.h"

#define MAX_NAME_BYTES 1024

/* Elements along the rule's dimension. */
struct range {
    int64_t start, extent;
    int64_t padding;
    int64_t heads;
    int sharers; /* neighbouring ranks with this very range */
};

static bool fail(model_build *build, const model_tensor *tensor, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));

static bool fail(model_build *build, const model_tensor *tensor, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const model_rule *rule = tensor->match.rule;
    return layout_fail(build->layout, BANYAN_ERR_INVALID, "tensor \"%s\" (rule \"%s\", %s:%d): %s",
                       tensor->global->name, rule->text, rule->file, rule->line, text);
}

static int64_t gcd(int64_t a, int64_t b)
{
    return b == 0 ? a : gcd(b, a % b);
}

/* The vocabulary, up to a multiple that the ranks share evenly. */
static bool pad_vocab(model_build *build, const model_tensor *tensor, int64_t size, int ranks,
                      int64_t *padded)
{
    int64_t multiple = build->spec->vocab_multiple;
    if (multiple < 0)
        multiple = build->packing.vocab_multiple;
    *padded = size;
    if (multiple == 0)
        return true;
    int64_t unit =
        build->packing.vocab_per_tp ? multiple * ranks : multiple / gcd(multiple, ranks) * ranks;
    if (__builtin_add_overflow(size, unit - 1, padded))
        return fail(build, tensor, "%" PRId64 " rows cannot be padded", size);
    *padded -= *padded % unit;
    return true;
}

static bool cut_vocab(model_build *build, const model_tensor *tensor, int64_t size,
                      const spec_axis *ranks, struct range *range)
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

/* The tensor that tells the size of a head; NULL when the model has none. */
static bool find_head_source(model_build *build, const model_tensor *tensor, char *name,
                             const banyan_local_tensor **source)
{
    const glob_local nowhere = {-1, -1};
    if (!glob_expand(tensor->match.rule->head_source, &tensor->match.captures, &nowhere, name,
                     MAX_NAME_BYTES))
        return fail(build, tensor, "its head's name is too long");
    *source = model_find(build->model, name);
    if (*source && ((*source)->ndim == 0 || (*source)->shape[(*source)->ndim - 1] == 0))
        return fail(build, tensor, "\"%s\" gives its heads no rows", name);
    return true;
}

/* Whether a guess at the size of heads can be wrong: they are cut, or fused by groups; and the
 * tensor is narrower than those that the rule is sure of. Vectors and scales lie beside a matrix,
 * which is asked the same. */
static bool head_is_doubtful(const model_build *build, const model_tensor *tensor, int ranks)
{
    const model_rule *rule = tensor->match.rule;
    const rule_packed *packed = rule_find_packed(build->rules, rule, build->packing.name);
    if (tensor->global->ndim != 2 || tensor->match.is_scale || rule->shard_dim < 0)
        return false;
    return (ranks > 1 || (packed && packed->by_group)) &&
           tensor->global->shape[1 - rule->shard_dim] < rule->head_wide;
}

/* The size of a head: from another tensor where the model has it, else as the spec, the model's
 * configuration or the rule says. */
static bool find_head_rows(model_build *build, const model_tensor *tensor, int ranks, int64_t *rows)
{
    const model_rule *rule = tensor->match.rule;
    int64_t given = build->spec->head > 0 ? build->spec->head : model_head(build->model);
    const banyan_local_tensor *source;
    char name[MAX_NAME_BYTES];
    *rows = rule->head_rows;
    if (!rule->head_source)
        return true;
    if (!find_head_source(build, tensor, name, &source))
        return false;
    if (!source && given == 0 && head_is_doubtful(build, tensor, ranks))
        return fail(build, tensor,
                    "how large its heads are is not known, since there is no \"%s\": give head=N "
                    "in the spec",
                    name);
    if (!source) {
        *rows = given > 0 ? given : rule->head_rows;
        return true;
    }
    *rows = source->shape[source->ndim - 1];
    if (build->spec->head > 0 && build->spec->head != *rows)
        return fail(build, tensor, "heads are %" PRId64 " in the spec, and %" PRId64 " in \"%s\"",
                    build->spec->head, *rows, name);
    return true;
}

static bool cut_heads(model_build *build, const model_tensor *tensor, int64_t size,
                      const spec_axis *ranks, struct range *range)
{
    int64_t rows;
    if (!find_head_rows(build, tensor, ranks->count, &rows))
        return false;
    if (size % rows != 0)
        return fail(build, tensor, "%" PRId64 " elements are no heads of %" PRId64, size, rows);
    int64_t heads = size / rows;
    if (heads % ranks->count == 0) {
        range->heads = heads / ranks->count;
        range->start = range->heads * rows * ranks->index;
    } else if (tensor->match.rule->heads_shared && heads > 0 && ranks->count % heads == 0) {
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
                       const spec_axis *ranks, struct range *range)
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

static bool cut_range(model_build *build, const model_tensor *tensor, int64_t size,
                      const spec_axis *ranks, struct range *range)
{
    const model_rule *rule = tensor->match.rule;
    *range = (struct range){.extent = size, .sharers = 1};
    if (rule->is_vocab)
        return cut_vocab(build, tensor, size, ranks, range);
    if (rule->head_rows > 0)
        return cut_heads(build, tensor, size, ranks, range);
    return cut_evenly(build, tensor, size, ranks, range);
}

/* The weight that a tensor of block scales belongs to. */
static const banyan_local_tensor *find_weight(model_build *build, const model_tensor *tensor)
{
    char name[MAX_NAME_BYTES];
    size_t bytes = strlen(tensor->global->name) - strlen(tensor->match.rule->scale_suffix);
    if (bytes >= sizeof name) {
        fail(build, tensor, "its name is too long");
        return NULL;
    }
    memcpy(name, tensor->global->name, bytes);
    name[bytes] = '\0';
    const banyan_local_tensor *weight = model_find(build->model, name);
    if (!weight)
        fail(build, tensor, "there is no \"%s\" that these are the scales of", name);
    else if (weight->ndim != tensor->global->ndim)
        fail(build, tensor, "scales of %d dimensions for \"%s\" of %d", tensor->global->ndim, name,
             weight->ndim);
    else
        return weight;
    return NULL;
}

static int64_t blocks_of(int64_t size, int64_t block)
{
    return size / block + (size % block != 0);
}

/* From elements of the weight to its blocks. */
static bool range_to_blocks(model_build *build, const model_tensor *tensor, int64_t size,
                            struct range *range)
{
    int64_t block = tensor->match.rule->scale_block, end = range->start + range->extent;
    int dim = tensor->match.rule->shard_dim;
    if (blocks_of(size, block) != tensor->global->shape[dim])
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
    range->extent = blocks_of(end, block) - range->start;
    return true;
}

static void add_level(banyan_rank_set *set, int level, int index, int count, int stride)
{
    set->count[level] = count;
    set->stride[level] = count > 1 ? stride : 0;
    set->first -= count > 1 ? index * stride : 0;
}

/* Every rank of this side with the part's box. `sharers` neighbours along the shard axis have it.
 */
static banyan_rank_set find_replicas(const model_build *build, const model_tensor *tensor,
                                     const spec_axes *axes, int sharers, bool has_rows)
{
    const spec_place *place = &build->place;
    banyan_rank_set set = banyan_rank_set_one(place->rank + build->rank_offset);
    int stages = place->stage.count;
    if (tensor->is_tied)
        add_level(&set, 0, place->stage.index > 0, 2, (stages - 1) * place->stage.stride);
    else if (tensor->match.captures.layer < 0 && tensor->match.rule->stage == STAGE_ALL)
        add_level(&set, 0, place->stage.index, stages, place->stage.stride);
    add_level(&set, 1, axes->replicas.index, axes->replicas.count, axes->replicas.stride);
    if (!has_rows)
        add_level(&set, 2, axes->rows.index, axes->rows.count, axes->rows.stride);
    add_level(&set, 3, axes->shard.index % sharers, sharers, axes->shard.stride);
    return set;
}

bool model_part_cut(model_build *build, const model_tensor *tensor, model_part *part)
{
    const banyan_local_tensor *global = tensor->global;
    const model_rule *rule = tensor->match.rule;
    const spec_axes *axes = tensor->is_expert ? &build->place.expert : &build->place.dense;
    struct range range = {.sharers = axes->shard.count};
    *part = (model_part){.global = global, .rule = rule, .slot = -1, .next = SIZE_MAX};
    part->box = box_whole(global->ndim, global->shape);
    int dim = rule->shard_dim;
    if (dim >= global->ndim)
        return fail(build, tensor, "dimension %d of %d is to be sharded", dim, global->ndim);
    if (dim >= 0) {
        const banyan_local_tensor *sized =
            tensor->match.is_scale ? find_weight(build, tensor) : global;
        if (!sized || !cut_range(build, tensor, sized->shape[dim], &axes->shard, &range))
            return false;
        if (tensor->match.is_scale && !range_to_blocks(build, tensor, sized->shape[dim], &range))
            return false;
        part->box.start[dim] = range.start;
        part->box.extent[dim] = range.extent;
    }
    part->padding = range.padding;
    part->heads = range.heads;
    part->replicas = find_replicas(build, tensor, axes, range.sharers, global->ndim > 0);
    return true;
}
