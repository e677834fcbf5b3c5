#include "reshard/planner/view.h"

#include "reshard/layout/box.h"
#include "reshard/transform/mxfp8.h"
#include "reshard/transform/object.h"

static banyan_status view_sources(planner_view *view, const planner *planning,
                                  const name_claims *range)
{
    size_t count = range->first_destination - range->first_source;
    view->sources.count = view->bounds.count = view->claims.count = 0;
    RETURN_IF_NO_MEMORY(array_reserve(&view->sources, count) &&
                        array_reserve(&view->bounds, planner_bounds_count(count)) &&
                        array_reserve(&view->claims, range->end - range->first_destination));
    for (size_t i = 0; i < count; i++)
        view->sources.data[view->sources.count++] =
            planning->claims.data[range->first_source + i].claim;
    planner_bounds_of(view->sources.data, count, view->bounds.data);
    for (size_t i = range->first_destination; i < range->end; i++)
        if (planner_serves(planning, &planning->claims.data[i]))
            view->claims.data[view->claims.count++] = &planning->claims.data[i];
    return BANYAN_OK;
}

/* Find the sources of this node, held by its ranks only. */
static banyan_status view_local(planner_view *view, planner *planning)
{
    size_t count = view->sources.count;
    view->groups.count = view->local_sources.count = view->local_numbers.count = 0;
    view->local_of.count = 0;
    RETURN_IF_NO_MEMORY(array_reserve(&view->groups, count) &&
                        array_reserve(&view->local_of, count));
    for (size_t i = 0; i < count; i++) {
        planner_held held = view->sources.data[i];
        const planner_group *group = planner_group_of(&planning->groups, &held.holders);
        RETURN_IF_NO_MEMORY(group);
        bool is_local = group->own.count > 0;
        held.holders = group->own;
        view->groups.data[view->groups.count++] = group;
        view->local_of.data[view->local_of.count++] =
            is_local ? view->local_sources.count : SIZE_MAX;
        RETURN_IF_NO_MEMORY(!is_local || (array_push(&view->local_sources, held) &&
                                          array_push(&view->local_numbers, i)));
    }
    count = view->local_sources.count;
    view->local_bounds.count = 0;
    RETURN_IF_NO_MEMORY(array_reserve(&view->local_bounds, planner_bounds_count(count)));
    planner_bounds_of(view->local_sources.data, count, view->local_bounds.data);
    view->local = view->all;
    view->local.sources = view->local_sources.data;
    view->local.bounds = view->local_bounds.data;
    view->local.source_count = count;
    return BANYAN_OK;
}

/* True if a run makes MXFP8 of this tensor for the claim. */
static bool claim_quantizes(const planner *planning, const planner_claim *claim,
                            DLDataType source_dtype)
{
    return transform_is_mxfp8(planning->transform) &&
           !(claim->flags & BANYAN_PIECE_PERSISTENT_BUFFER) &&
           banyan_dtype_equal(claim->dtype, BANYAN_F8_E4M3) &&
           !banyan_dtype_equal(source_dtype, BANYAN_F8_E4M3);
}

/* A box that one rank received can serve others as it lies there, unless a transform may compute
 * anything. In MXFP8 its scales go with it, so it must consist of whole blocks. */
static bool bytes_serve_others(const planner *planning, const planner_claim *claim,
                               DLDataType source_dtype)
{
    const banyan_transform *transform = planning->transform;
    if (!transform || transform_is_cast(transform))
        return true;
    return transform_is_mxfp8(transform) &&
           (claim->whole_blocks || !claim_quantizes(planning, claim, source_dtype));
}

/* True if two boxes have equal blocks where they overlap: those of the global tensor, or those of
 * one interval of its last dimension. */
static bool blocks_are_equal(const planner_view *view, const banyan_box *a, const banyan_box *b)
{
    int last = a->ndim - 1;
    banyan_box whole = box_whole(view->all.ndim, view->all.shape);
    return (a->start[last] == b->start[last] && a->extent[last] == b->extent[last]) ||
           (mxfp8_keeps_blocks(&whole, a) && mxfp8_keeps_blocks(&whole, b));
}

static size_t kind_of(const planner_view *view, size_t claim, bool quantizes)
{
    const planner_claim *mine = view->claims.data[claim];
    for (size_t i = 0; i < claim; i++) {
        const planner_claim *other = view->claims.data[i];
        if (view->boxes.data[i].kind != ONCE_ALONE && other->flags == mine->flags &&
            banyan_dtype_equal(other->dtype, mine->dtype) &&
            (!quantizes || blocks_are_equal(view, &other->claim.box, &mine->claim.box)))
            return view->boxes.data[i].kind;
    }
    return claim;
}

static banyan_status view_boxes(planner_view *view, planner *planning, DLDataType source_dtype)
{
    view->boxes.count = 0;
    RETURN_IF_NO_MEMORY(array_reserve(&view->boxes, view->claims.count));
    for (size_t i = 0; i < view->claims.count; i++) {
        const planner_claim *claim = view->claims.data[i];
        once_box box = {.held = claim->claim, .kind = ONCE_ALONE};
        if (bytes_serve_others(planning, claim, source_dtype)) {
            box.kind = kind_of(view, i, claim_quantizes(planning, claim, source_dtype));
            box.group = planner_group_of(&planning->groups, &claim->claim.holders);
            RETURN_IF_NO_MEMORY(box.group);
        }
        view->boxes.data[view->boxes.count++] = box;
    }
    return BANYAN_OK;
}

static banyan_status view_once(planner_view *view, planner *planning, const planner_name *name)
{
    view->once = (once_tensor){.turn = once_turn_of(name->text)};
    view->boxes.count = 0;
    if (!planning->groups.node_of)
        return BANYAN_OK;
    RETURN_IF_FAILED(view_local(view, planning));
    RETURN_IF_FAILED(view_boxes(view, planning, name->source_dtype));
    view->once.all = &view->all;
    view->once.local = &view->local;
    view->once.local_numbers = view->local_numbers.data;
    view->once.sources = view->groups.data;
    view->once.boxes = view->boxes.data;
    view->once.box_count = view->boxes.count;
    view->once.rank = planning->rank;
    view->once.node = planning->groups.node;
    return BANYAN_OK;
}

banyan_status planner_view_name(planner_view *view, planner *planning, const name_claims *range,
                                uint32_t index)
{
    if (view->name == index)
        return BANYAN_OK;
    const planner_name *name = &planning->names.data[index];
    RETURN_IF_FAILED(view_sources(view, planning, range));
    view->all = (planner_tensor){
        .name = name->text,
        .ndim = name->ndim,
        .shape = name->shape,
        .elem_bytes = banyan_dtype_bytes(name->source_dtype),
        .min_split_bytes = planning->min_split_bytes,
        .sources = view->sources.data,
        .bounds = view->bounds.data,
        .source_count = view->sources.count,
    };
    RETURN_IF_FAILED(view_once(view, planning, name));
    view->name = index;
    return BANYAN_OK;
}

void planner_view_free(planner_view *view)
{
    array_free(&view->claims);
    array_free(&view->sources);
    array_free(&view->bounds);
    array_free(&view->local_sources);
    array_free(&view->local_bounds);
    array_free(&view->local_numbers);
    array_free(&view->local_of);
    array_free(&view->groups);
    array_free(&view->boxes);
    once_work_free(&view->work);
}

size_t planner_view_find(const planner_view *view, const planner_claim *claim)
{
    return BISECT(i, 0, view->claims.count, view->claims.data[i] < claim);
}

bool planner_view_once(const planner_view *view, size_t claim)
{
    return claim < view->boxes.count && view->boxes.data[claim].kind != ONCE_ALONE;
}
