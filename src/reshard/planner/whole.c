/* Find source elements that arrive nowhere, and names that the other side does not have.
 *
 * A rank that holds a source piece has the record of every destination piece that intersects it,
 * since it sends to these. Each rank therefore checks its own pieces alone. */
#include <stdlib.h>
#include <string.h>

#include "core/containers.h"
#include "core/error.h"
#include "core/nearest.h"
#include "reshard/layout/box.h"
#include "reshard/planner/state.h"

static bool may_stay(const planner *planning, const planner_name *name)
{
    glob_captures captures;
    if (name->is_skipped)
        return true;
    for (size_t i = 0; i < planning->skip.count; i++)
        if (glob_match(&planning->skip.data[i], name->text, strlen(name->text), &captures))
            return true;
    return false;
}

/* Find the first destination claim of this name: claims are sorted by name and side. */
static size_t first_destination(const planner *planning, uint32_t name)
{
    return BISECT(i, 0, planning->claims.count,
                  planning->claims.data[i].name < name ||
                      (planning->claims.data[i].name == name &&
                       planning->claims.data[i].side == PLAN_SOURCE));
}

typedef ARRAY(banyan_box) box_list;

/* Find at most one box of a piece that no destination takes; `taken` is scratch space. */
static banyan_status find_left(const planner *planning, const planner_piece *own, size_t first,
                               box_list *taken, bool *found, banyan_box *left)
{
    const banyan_box *box = &own->piece->box;
    taken->count = 0;
    *found = false;
    for (size_t i = first; i < planning->claims.count; i++) {
        const planner_claim *claim = &planning->claims.data[i];
        banyan_box both;
        if (claim->name != own->name)
            break;
        if (!planner_serves(planning, claim) ||
            !banyan_box_intersect(box, &claim->claim.box, &both))
            continue;
        if (banyan_box_equal(box, &both))
            return BANYAN_OK;
        RETURN_IF_NO_MEMORY(array_push(taken, both));
    }
    return boxes_find_hole(box, taken->data, taken->count, found, left);
}

static banyan_status fail_left(const planner *planning, const planner_piece *own,
                               const banyan_box *left)
{
    char text[BOX_TEXT_BYTES];
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d holds %s of \"%s\" in the source, which no destination takes: all of "
                     "the source must arrive (require_whole_source)",
                     planning->rank, banyan_box_format(left, text, sizeof text), own->piece->name);
}

banyan_status planner_check_whole_source(const planner *planning)
{
    box_list taken = {0};
    banyan_box left;
    size_t first = 0;
    uint32_t known = NO_NAME;
    bool found = false;
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < planning->pieces.count && planning->whole_source; i++) {
        const planner_piece *own = &planning->pieces.data[i];
        if (own->side != PLAN_SOURCE || own->ordinal > 0 ||
            may_stay(planning, &planning->names.data[own->name]))
            continue;
        if (own->name != known)
            first = first_destination(planning, own->name);
        known = own->name;
        status = find_left(planning, own, first, &taken, &found, &left);
        if (status == BANYAN_OK && found)
            status = fail_left(planning, own, &left);
        if (status != BANYAN_OK)
            break;
    }
    array_free(&taken);
    return status;
}

/* True if this tensor feeds some destination, or a fallback of one. */
static bool whole_is_taken(const planner *planning, uint32_t name)
{
    for (size_t i = first_destination(planning, name);
         i < planning->claims.count && planning->claims.data[i].name == name; i++)
        if (planner_serves(planning, &planning->claims.data[i]))
            return true;
    return false;
}

static bool is_unmatched(const planner *planning, const planner_piece *own)
{
    if (own->side == PLAN_DESTINATION)
        return !planning->names.data[planner_from(planning, own)].has_source;
    return !whole_is_taken(planning, own->name) &&
           !may_stay(planning, &planning->names.data[own->name]);
}

static bool is_first_of_name(const planner *planning, size_t i)
{
    const planner_piece *own = &planning->pieces.data[i];
    return i == 0 || own[-1].name != own->name || own[-1].side != own->side;
}

banyan_status planner_list_unmatched(const planner *planning, banyan_side side, const char ***list,
                                     size_t *count)
{
    ARRAY(const char *) found = {0};
    planner_side wanted = side == BANYAN_SOURCE ? PLAN_SOURCE : PLAN_DESTINATION;
    for (size_t i = 0; i < planning->pieces.count; i++) {
        const planner_piece *own = &planning->pieces.data[i];
        if (own->side != wanted || !is_first_of_name(planning, i) || !is_unmatched(planning, own))
            continue;
        if (!array_push(&found, planning->names.data[own->name].text)) {
            array_free(&found);
            return BANYAN_ERR_NO_MEMORY;
        }
    }
    *list = found.data;
    *count = found.count;
    return BANYAN_OK;
}

const char *planner_nearest(const planner *planning, banyan_side side, const char *name, int limit,
                            int *distance)
{
    const char *best = NULL;
    bool best_is_unmatched = false;
    planner_side wanted = side == BANYAN_SOURCE ? PLAN_SOURCE : PLAN_DESTINATION;
    for (size_t i = 0; i < planning->pieces.count; i++) {
        const planner_piece *own = &planning->pieces.data[i];
        if (own->side != wanted || !is_first_of_name(planning, i))
            continue;
        const char *text = planning->names.data[own->name].text;
        /* An equal distance is accepted where it gives the first unmatched name. */
        int found = names_distance(name, text, best ? *distance + 1 : limit);
        if (found >= (best ? *distance + 1 : limit))
            continue;
        bool unmatched = is_unmatched(planning, own);
        if (best && found == *distance && (best_is_unmatched || !unmatched))
            continue;
        best = text;
        best_is_unmatched = unmatched;
        *distance = found;
    }
    return best;
}
