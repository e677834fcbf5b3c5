#include "reshard/planner/rank.h"

#include <stdlib.h>

#include "reshard/layout/box.h"
#include "reshard/layout/value_map.h"
#include "reshard/planner/state.h"

/* Remember the first source record, and any that contradicts it or this rank's own pieces. */
static void receive_source(planner_name *name, const planner_record *record, int rank)
{
    if (!name->has_source) {
        name->has_source = true;
        name->source_rank = rank;
        name->source_dtype = record->dtype;
        name->source_flags = record->flags;
    }
    if (!name->map_differs && (name->source_flags ^ record->flags) & VALUE_MAPS) {
        name->map_differs = true;
        name->differing_map_rank = rank;
    }
    if (!name->shape_differs &&
        !shape_equal(name->ndim, name->shape, record->ndim, record->shape)) {
        name->shape_differs = true;
        name->differing_rank = rank;
        name->differing_ndim = record->ndim;
        memcpy(name->differing_shape, record->shape, sizeof name->differing_shape);
    }
    if (!name->shape_differs && !name->dtype_differs &&
        !banyan_dtype_equal(name->source_dtype, record->dtype)) {
        name->dtype_differs = true;
        name->differing_rank = rank;
        name->differing_dtype = record->dtype;
    }
}

static bool set_is_sane(const banyan_rank_set *set, int world_size)
{
    int64_t low = set->first, high = set->first;
    for (int k = 0; k < BANYAN_RANK_SET_LEVELS; k++) {
        if (set->count[k] < 1 || set->count[k] > world_size)
            return false;
        int64_t reach = (int64_t)(set->count[k] - 1) * set->stride[k];
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
    }
    return low >= 0 && high < world_size;
}

static banyan_status check_holders(const planner *planning, const char *name,
                                   const banyan_directory_value *value)
{
    bool sane = value->rank_set_count > 0;
    for (size_t i = 0; i < value->rank_set_count && sane; i++)
        sane = set_is_sane(&value->ranks[i], planning->world_size);
    if (sane)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID,
                     "a piece of \"%s\" names replicas that are not ranks of this world of %d",
                     name, planning->world_size);
}

static bool keep_note(planner *planning, uint32_t name, const planner_record *record)
{
    for (size_t i = planning->notes.count; i-- > 0 && planning->notes.data[i].name == name;) {
        const planner_note *known = &planning->notes.data[i];
        if (known->side == record->side && known->dim == record->dim &&
            known->level == record->level && known->wanted == record->wanted)
            return true;
    }
    return array_push(&planning->notes, (planner_note){name, record->side, record->dim,
                                                       record->level, record->wanted});
}

static bool keep_claim(planner *planning, uint32_t name, const planner_record *record,
                       const banyan_directory_value *value)
{
    planner_claim claim = {
        .name = name,
        .side = record->side,
        .flags = record->flags,
        .dtype = record->dtype,
        .whole_blocks = record->whole_blocks,
        .wanted = record->wanted,
        .claim = {.box = record->box, .ordinal = record->ordinal},
        .first_set = planning->sets.count,
    };
    claim.claim.holders.set_count = value->rank_set_count;
    if (!array_reserve(&planning->sets, value->rank_set_count))
        return false;
    for (size_t i = 0; i < value->rank_set_count; i++) {
        planning->sets.data[planning->sets.count++] = value->ranks[i];
        claim.claim.holders.count += banyan_rank_set_size(&value->ranks[i]);
    }
    return array_push(&planning->claims, claim);
}

banyan_status planner_receive(void *planner_pointer, size_t key_index,
                              const banyan_directory_value *values, size_t value_count)
{
    planner *planning = planner_pointer;
    uint32_t index =
        planning->round == 1 ? (uint32_t)key_index : planning->asks.data[key_index].name;
    planner_name *name = &planning->names.data[index];
    for (size_t i = 0; i < value_count; i++) {
        planner_record record;
        RETURN_IF_FAILED(planner_record_read(planning->keys[key_index], values[i].data,
                                             values[i].bytes, &record));
        RETURN_IF_FAILED(check_holders(planning, name->text, &values[i]));
        if (record.is_skip) {
            name->is_skipped = true;
            continue;
        }
        bool foreign = index >= planning->own_names;
        if (record.side == PLAN_SOURCE && foreign)
            name->has_source = true;
        else if (record.side == PLAN_SOURCE)
            receive_source(name, &record, banyan_rank_set_at(&values[i].ranks[0], 0));
        else
            name->has_destination = true;
        /* A record whose shape disagrees is dropped; its receiver reports the conflict. */
        if (foreign || !shape_equal(name->ndim, name->shape, record.ndim, record.shape))
            continue;
        if (record.wanted)
            RETURN_IF_NO_MEMORY(record.wanted = names_keep(&planning->pool, record.wanted));
        if (record.is_note ? !keep_note(planning, index, &record)
                           : !keep_claim(planning, index, &record, &values[i]))
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

static banyan_status write_keys(planner *planning)
{
    size_t count = planning->round == 1 ? planning->own_names : planning->asks.count;
    planning->key_text.count = 0;
    free(planning->keys);
    planning->keys = NULL;
    size_t *offsets = calloc(count + 1, sizeof *offsets);
    const char **keys = calloc(count + 1, sizeof *keys);
    if (!offsets || !keys) {
        free(offsets);
        free(keys);
        return error_no_memory(count * sizeof *keys, "a planner's keys");
    }
    for (size_t i = 0; i < count; i++) {
        offsets[i] = planning->key_text.count;
        planner_ask_for ask = {.name = (uint32_t)i};
        if (planning->round > 1)
            ask = planning->asks.data[i];
        const char *name = planning->names.data[ask.name].text;
        if (ask.level == 0)
            planner_key_write_root(&planning->key_text, name);
        else
            planner_key_write_cell(&planning->key_text, name, ask.dim, ask.level, ask.cell);
    }
    for (size_t i = 0; i < count; i++)
        keys[i] = (const char *)planning->key_text.data + offsets[i];
    free(offsets);
    planning->keys = keys;
    return planning->key_text.failed ? BANYAN_ERR_NO_MEMORY : BANYAN_OK;
}

static bool ask_cells(planner *planning, uint32_t name, const planner_cells *cells)
{
    for (int64_t cell = cells->first; cell <= cells->last; cell++)
        if (!array_push(&planning->asks, (planner_ask_for){name, cells->dim, cells->level, cell}))
            return false;
    return true;
}

/* Ask for the slabs that the box intersects, of one side or (a negative side) of both. */
static bool ask_where_noted(planner *planning, uint32_t name, int side, const banyan_box *box)
{
    const planner_note *notes = planning->notes.data; /* sorted by name */
    size_t count = planning->notes.count;
    for (size_t i = BISECT(n, 0, count, notes[n].name < name); i < count && notes[i].name == name;
         i++) {
        planner_note note = notes[i];
        if (side >= 0 && note.side != (planner_side)side)
            continue;
        planner_cells cells =
            planner_cells_intersecting(box, planning->names.data[name].shape, note.dim, note.level);
        if (!ask_cells(planning, name, &cells))
            return false;
    }
    return true;
}

static bool ask_for_destination(planner *planning, const planner_piece *own)
{
    planner_cells cells = planner_cells_of(&own->piece->box, own->piece->shape);
    cells.last = cells.first;
    uint32_t from = planner_from(planning, own);
    if (cells.level > 0 && !ask_cells(planning, from, &cells))
        return false;
    /* With several nodes, also for boxes that other ranks of the node may need. */
    int side = planning->groups.node_of ? -1 : PLAN_SOURCE;
    return ask_where_noted(planning, from, side, &own->piece->box);
}

/* Ask for the tensor that a falling-back destination asks for first, to learn whether it has a
 * source. */
static bool ask_for_wanted(planner *planning, const char *wanted)
{
    uint32_t name;
    if (!wanted)
        return true;
    if (!planner_name_of(planning, wanted, &name))
        return false;
    return name < planning->own_names ||
           array_push(&planning->asks, (planner_ask_for){.name = name});
}

static int compare_notes(const void *left, const void *right)
{
    const planner_note *a = left, *b = right;
    return COMPARE(a->name, b->name);
}

static bool ask_second_round(planner *planning)
{
    bool ok = true;
    array_sort(&planning->notes, compare_notes);
    for (size_t i = 0; i < planning->notes.count && ok; i++)
        ok = ask_for_wanted(planning, planning->notes.data[i].wanted);
    for (size_t i = 0; i < planning->claims.count && ok; i++)
        ok = ask_for_wanted(planning, planning->claims.data[i].wanted);
    for (size_t i = 0; i < planning->pieces.count && ok; i++) {
        const planner_piece *own = &planning->pieces.data[i];
        if (own->side == PLAN_DESTINATION)
            ok = ask_for_destination(planning, own);
        else if (own->ordinal == 0 && planning->names.data[own->name].has_destination)
            ok = ask_where_noted(planning, own->name, -1, &own->piece->box);
    }
    return ok;
}

static int compare_asks(const void *left, const void *right)
{
    const planner_ask_for *a = left, *b = right;
    RETURN_IF_UNEQUAL(a->name, b->name);
    RETURN_IF_UNEQUAL(a->level, b->level);
    RETURN_IF_UNEQUAL(a->dim, b->dim);
    return COMPARE(a->cell, b->cell);
}

static void drop_equal_asks(planner *planning)
{
    size_t count = planning->asks.count, kept = 0;
    array_sort(&planning->asks, compare_asks);
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || compare_asks(&planning->asks.data[kept - 1], &planning->asks.data[i]) != 0)
            planning->asks.data[kept++] = planning->asks.data[i];
    planning->asks.count = kept;
}

banyan_status planner_ask(planner *planning, size_t *count, const char *const **keys)
{
    if (++planning->round > 1) {
        RETURN_IF_NO_MEMORY(ask_second_round(planning));
        drop_equal_asks(planning);
    }
    RETURN_IF_FAILED(write_keys(planning));
    *count = planning->round == 1 ? planning->own_names : planning->asks.count;
    *keys = planning->keys;
    return BANYAN_OK;
}
