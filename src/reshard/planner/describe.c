#include "reshard/planner/rank.h"

#include <stdlib.h>

#include "reshard/layout/box.h"
#include "reshard/layout/layout.h"
#include "reshard/planner/state.h"
#include "reshard/transform/mxfp8.h"
#include "reshard/transform/object.h"

#define DEFAULT_MIN_SPLIT_BYTES (256 * 1024)

bool planner_name_of(planner *planning, const char *text, uint32_t *index)
{
    uint64_t known;
    if (map_get_string(&planning->name_index, text, &known)) {
        *index = (uint32_t)known;
        return true;
    }
    const char *kept = names_keep(&planning->pool, text);
    if (!kept || !map_put_string(&planning->name_index, kept, planning->names.count) ||
        !array_push(&planning->names, (planner_name){.text = kept}))
        return false;
    *index = (uint32_t)(planning->names.count - 1);
    return true;
}

/* Set a tensor's shape from the first piece that names it; a fallback's pieces have the same shape.
 */
static bool name_piece(planner *planning, const char *text, const banyan_piece *piece,
                       uint32_t *index)
{
    size_t before = planning->names.count;
    if (!planner_name_of(planning, text, index))
        return false;
    if (planning->names.count > before) {
        planner_name *name = &planning->names.data[*index];
        name->ndim = piece->ndim;
        memcpy(name->shape, piece->shape, sizeof name->shape);
    }
    return true;
}

/* Blocks count from the start of a local tensor, along its last dimension. */
static bool has_whole_blocks(const planner *planning, const planner_piece *own,
                             const banyan_local_tensor *local)
{
    const banyan_piece *piece = own->piece;
    int last = piece->ndim - 1, along = local->ndim - 1;
    if (own->side != PLAN_DESTINATION || !transform_is_mxfp8(planning->transform) ||
        !banyan_dtype_equal(own->dtype, BANYAN_F8_E4M3) || last < 0 || along < 0 ||
        piece->dim_map[last] != along)
        return false;
    int64_t start = piece->local_start[along], end = start + piece->box.extent[last];
    return start % MXFP8_BLOCK == 0 && (end % MXFP8_BLOCK == 0 || end == local->shape[along]);
}

static banyan_status describe_add_pieces(planner *planning, const banyan_layout *layout,
                                         planner_side side)
{
    size_t count = layout ? banyan_layout_piece_count(layout) : 0;
    RETURN_IF_NO_MEMORY(array_reserve(&planning->pieces, count));
    for (size_t i = 0; i < count; i++) {
        const banyan_piece *piece = banyan_layout_piece(layout, i);
        const banyan_local_tensor *local = banyan_layout_tensor(layout, (size_t)piece->tensor);
        planner_piece own = {
            .side = side,
            .piece = piece,
            .number = i,
            .dtype = local->dtype,
            .fallback = NO_NAME,
        };
        own.whole_blocks = has_whole_blocks(planning, &own, local);
        RETURN_IF_NO_MEMORY(name_piece(planning, piece->name, piece, &own.name) &&
                            array_push(&planning->pieces, own));
    }
    return BANYAN_OK;
}

/* Add fallbacks after the names of all pieces, so that a tensor that is both keeps its own shape.
 */
static banyan_status add_fallbacks(planner *planning)
{
    for (size_t i = 0; i < planning->pieces.count; i++) {
        planner_piece *own = &planning->pieces.data[i];
        if (own->side == PLAN_DESTINATION && own->piece->fallback_name &&
            !name_piece(planning, own->piece->fallback_name, own->piece, &own->fallback))
            return BANYAN_ERR_NO_MEMORY;
    }
    planning->own_names = planning->names.count;
    return BANYAN_OK;
}

static int compare_pieces(const void *left, const void *right)
{
    const planner_piece *a = left, *b = right;
    RETURN_IF_UNEQUAL(a->name, b->name);
    RETURN_IF_UNEQUAL(a->side, b->side);
    int order = planner_box_compare(&a->piece->box, &b->piece->box);
    return order != 0 ? order : COMPARE(a->number, b->number);
}

static void number_equal_boxes(planner *planning)
{
    array_sort(&planning->pieces, compare_pieces);
    for (size_t i = 1; i < planning->pieces.count; i++) {
        const planner_piece *before = &planning->pieces.data[i - 1];
        planner_piece *own = &planning->pieces.data[i];
        if (own->name == before->name && own->side == before->side &&
            banyan_box_equal(&own->piece->box, &before->piece->box))
            own->ordinal = before->ordinal + 1;
    }
}

static banyan_status describe_check_replicas(const planner *planning)
{
    for (size_t i = 0; i < planning->pieces.count; i++) {
        const banyan_piece *piece = planning->pieces.data[i].piece;
        char text[BOX_TEXT_BYTES];
        if (banyan_rank_set_size(&piece->replicas) != 0 &&
            banyan_rank_set_find(&piece->replicas, planning->rank) < 0)
            return error_set(BANYAN_ERR_INVALID,
                             "rank %d holds %s of \"%s\", but the replicas that its layout names "
                             "(from rank %d on) do not include it",
                             planning->rank, banyan_box_format(&piece->box, text, sizeof text),
                             piece->name, piece->replicas.first);
    }
    return BANYAN_OK;
}

static banyan_status compile_skip(planner *planning, const banyan_reshard_options *options)
{
    for (size_t i = 0; i < options->skip_count; i++) {
        glob compiled;
        const char *pattern = names_keep(&planning->pool, options->skip[i]);
        RETURN_IF_NO_MEMORY(pattern);
        const char *problem = glob_compile(pattern, &compiled);
        if (problem)
            return error_set(BANYAN_ERR_INVALID, "pattern \"%s\" of tensors to skip: %s", pattern,
                             problem);
        RETURN_IF_NO_MEMORY(array_push(&planning->skip, compiled));
    }
    return BANYAN_OK;
}

/* Nodes matter where there are several. */
static const int *several_nodes(const int *node_of, int world_size)
{
    for (int rank = 1; node_of && rank < world_size; rank++)
        if (node_of[rank] != node_of[0])
            return node_of;
    return NULL;
}

banyan_status planner_create(int rank, int world_size, const int *node_of,
                             const banyan_layout *source, const banyan_layout *destination,
                             const banyan_reshard_options *options, planner **made)
{
    planner *planning = alloc_zeroed(1, sizeof *planning, "a planner");
    RETURN_IF_NO_MEMORY(planning);
    planning->rank = rank;
    planning->world_size = world_size;
    planning->destination = destination;
    planning->min_split_bytes =
        options->min_split_bytes > 0 ? options->min_split_bytes : DEFAULT_MIN_SPLIT_BYTES;
    planning->transform = options->transform;
    planning->whole_source = options->require_whole_source;
    planning->node_of = several_nodes(node_of, world_size);
    if (!options->each_rank_fetches)
        planning->groups.node_of = planning->node_of;
    planning->groups.node = planning->groups.node_of ? node_of[rank] : 0;
    banyan_status status = compile_skip(planning, options);
    if (status == BANYAN_OK)
        status = describe_add_pieces(planning, source, PLAN_SOURCE);
    if (status == BANYAN_OK)
        status = describe_add_pieces(planning, destination, PLAN_DESTINATION);
    if (status == BANYAN_OK)
        status = add_fallbacks(planning);
    if (status == BANYAN_OK)
        status = describe_check_replicas(planning);
    if (status != BANYAN_OK) {
        planner_destroy(planning);
        return status;
    }
    number_equal_boxes(planning);
    *made = planning;
    return BANYAN_OK;
}

void planner_destroy(planner *planning)
{
    if (!planning)
        return;
    array_free(&planning->skip);
    names_free(&planning->pool);
    map_free(&planning->name_index);
    array_free(&planning->names);
    array_free(&planning->pieces);
    array_free(&planning->notes);
    array_free(&planning->claims);
    array_free(&planning->sets);
    planner_groups_free(&planning->groups);
    array_free(&planning->asks);
    bytes_writer_free(&planning->key_text);
    free(planning->keys);
    free(planning);
}

typedef struct record_publisher {
    planner_put_fn put;
    void *context;
    bytes_writer key, value;
} record_publisher;

static banyan_status describe_publish(record_publisher *publisher, const planner_record *record,
                                      const banyan_rank_set *holders)
{
    publisher->value.count = 0;
    planner_record_write(&publisher->value, record);
    RETURN_IF_NO_MEMORY(!publisher->key.failed && !publisher->value.failed);
    return publisher->put(publisher->context, (const char *)publisher->key.data,
                          publisher->value.data, publisher->value.count, holders);
}

static banyan_status publish_under(record_publisher *publisher, const char *name,
                                   planner_record *record, const banyan_rank_set *holders)
{
    planner_cells cells = planner_cells_of(&record->box, record->shape);
    publisher->key.count = 0;
    planner_key_write_root(&publisher->key, name);
    if (cells.level == 0)
        return describe_publish(publisher, record, holders);
    planner_record note = *record;
    note.is_note = true;
    note.dim = cells.dim;
    note.level = cells.level;
    RETURN_IF_FAILED(describe_publish(publisher, &note, holders));
    for (int64_t cell = cells.first; cell <= cells.last; cell++) {
        publisher->key.count = 0;
        planner_key_write_cell(&publisher->key, name, cells.dim, cells.level, cell);
        RETURN_IF_FAILED(describe_publish(publisher, record, holders));
    }
    return BANYAN_OK;
}

static banyan_status publish_piece(const planner *planning, record_publisher *publisher,
                                   const planner_piece *own)
{
    const banyan_piece *piece = own->piece;
    const banyan_rank_set *holders = NULL;
    if (banyan_rank_set_size(&piece->replicas) > 0) {
        holders = &piece->replicas;
        if (banyan_rank_set_at(holders, 0) != planning->rank)
            return BANYAN_OK;
    }
    planner_record record = {
        .side = own->side,
        .dtype = own->dtype,
        .flags = piece->flags,
        .whole_blocks = own->whole_blocks,
        .ndim = piece->ndim,
        .box = piece->box,
        .ordinal = own->ordinal,
    };
    memcpy(record.shape, piece->shape, sizeof record.shape);
    RETURN_IF_FAILED(publish_under(publisher, piece->name, &record, holders));
    if (own->fallback == NO_NAME)
        return BANYAN_OK;
    record.wanted = piece->name;
    return publish_under(publisher, piece->fallback_name, &record, holders);
}

/* Publish the tensors that the destination leaves out, for the ranks whose source has them. */
static banyan_status publish_skipped(const planner *planning, record_publisher *publisher)
{
    const planner_record record = {.side = PLAN_DESTINATION, .dtype = BANYAN_U8, .is_skip = true};
    const banyan_layout *layout = planning->destination;
    if (!layout || !planning->whole_source)
        return BANYAN_OK;
    for (size_t i = 0; i < layout_skipped_count(layout); i++) {
        publisher->key.count = 0;
        planner_key_write_root(&publisher->key, layout_skipped(layout, i));
        RETURN_IF_FAILED(describe_publish(publisher, &record, NULL));
    }
    return BANYAN_OK;
}

/* A source that holds a box twice sends the first copy. */
banyan_status planner_describe(planner *planning, planner_put_fn put, void *context)
{
    record_publisher publisher = {.put = put, .context = context};
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < planning->pieces.count && status == BANYAN_OK; i++) {
        const planner_piece *own = &planning->pieces.data[i];
        if (own->side == PLAN_DESTINATION || own->ordinal == 0)
            status = publish_piece(planning, &publisher, own);
    }
    if (status == BANYAN_OK)
        status = publish_skipped(planning, &publisher);
    bytes_writer_free(&publisher.key);
    bytes_writer_free(&publisher.value);
    return status;
}
