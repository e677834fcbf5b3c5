#include "simulate/topology/routes.h"

#include <string.h>

#define NO_LINK UINT32_MAX

/* Distance of a vertex, compared in this order, so that the choice among equals is deterministic.
 */
typedef struct distance {
    uint64_t latency_ps;
    uint32_t links, vertex;
} distance;

typedef struct search {
    const banyan_topology *topology;
    ARRAY(distance) heap; /* the nearest first; it may contain outdated entries */
    distance *best;
    uint32_t *arrived_by;
} search;

banyan_status routes_make(const banyan_topology *topology, routes *all)
{
    size_t vertices = topology->vertices.count;
    uint32_t **arrived_by = calloc(vertices, sizeof *arrived_by);
    if (!arrived_by)
        return error_no_memory(vertices * sizeof *arrived_by, "routes");
    *all = (routes){topology, arrived_by};
    return BANYAN_OK;
}

void routes_free(routes *all)
{
    for (size_t v = 0; all->arrived_by && v < all->topology->vertices.count; v++)
        free(all->arrived_by[v]);
    free(all->arrived_by);
}

static bool is_nearer(const distance *a, const distance *b)
{
    if (a->latency_ps != b->latency_ps)
        return a->latency_ps < b->latency_ps;
    return a->links != b->links ? a->links < b->links : a->vertex < b->vertex;
}

static bool routes_push(search *in, distance added)
{
    if (!array_push(&in->heap, added))
        return false;
    distance *heap = in->heap.data;
    size_t at = in->heap.count - 1;
    for (; at > 0 && is_nearer(&added, &heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = added;
    return true;
}

static distance routes_pop(search *in)
{
    distance *heap = in->heap.data, nearest = heap[0], last = heap[--in->heap.count];
    size_t count = in->heap.count, at = 0;
    for (size_t below = 1; below < count; below = 2 * at + 1) {
        if (below + 1 < count && is_nearer(&heap[below + 1], &heap[below]))
            below++;
        if (!is_nearer(&heap[below], &last))
            break;
        heap[at] = heap[below];
        at = below;
    }
    heap[at] = last;
    return nearest;
}

static bool routes_leave(search *in, const distance *here)
{
    const banyan_topology *topology = in->topology;
    for (uint32_t i = topology->first_out[here->vertex]; i < topology->first_out[here->vertex + 1];
         i++) {
        const topology_link *link = &topology->links.data[topology->out[i]];
        distance next = {here->latency_ps + link->latency_ps, here->links + 1, link->to};
        if (!is_nearer(&next, &in->best[link->to]))
            continue;
        in->best[link->to] = next;
        in->arrived_by[link->to] = topology->out[i];
        if (!routes_push(in, next))
            return false;
    }
    return true;
}

static bool search_from(search *in, uint32_t source)
{
    for (uint32_t v = 0; v < in->topology->vertices.count; v++) {
        in->best[v] = (distance){UINT64_MAX, UINT32_MAX, v};
        in->arrived_by[v] = NO_LINK;
    }
    in->best[source] = (distance){0, 0, source};
    if (!routes_push(in, in->best[source]))
        return false;
    while (in->heap.count > 0) {
        distance here = routes_pop(in);
        bool forwards = here.vertex == source || !in->topology->vertices.data[here.vertex].kind;
        bool out_dated = is_nearer(&in->best[here.vertex], &here);
        if (forwards && !out_dated && !routes_leave(in, &here))
            return false;
    }
    return true;
}

static banyan_status make_tree(routes *all, uint32_t source)
{
    size_t vertices = all->topology->vertices.count;
    search in = {.topology = all->topology,
                 .best = malloc(vertices * sizeof *in.best),
                 .arrived_by = malloc(vertices * sizeof *in.arrived_by)};
    bool made = in.best && in.arrived_by && search_from(&in, source);
    array_free(&in.heap);
    free(in.best);
    if (!made) {
        free(in.arrived_by);
        return error_no_memory(vertices * sizeof *in.best, "routes");
    }
    all->arrived_by[source] = in.arrived_by;
    return BANYAN_OK;
}

banyan_status routes_find(routes *all, uint32_t from, uint32_t to, route *found, bool *there)
{
    if (!all->arrived_by[from])
        RETURN_IF_FAILED(make_tree(all, from));
    found->links.count = 0;
    found->latency_ps = 0;
    for (uint32_t at = to; at != from;) {
        uint32_t link = all->arrived_by[from][at];
        *there = link != NO_LINK;
        if (!*there)
            return BANYAN_OK;
        if (!array_push(&found->links, link))
            return BANYAN_ERR_NO_MEMORY;
        found->latency_ps += all->topology->links.data[link].latency_ps;
        at = all->topology->links.data[link].from;
    }
    *there = true;
    return BANYAN_OK;
}

banyan_status routes_require(routes *all, uint32_t from, uint32_t to, route *found)
{
    bool there;
    const topology_vertex *vertices = all->topology->vertices.data;
    RETURN_IF_FAILED(routes_find(all, from, to, found, &there));
    if (!there)
        return error_set(BANYAN_ERR_INVALID, "topology %s: there is no way from %s to %s",
                         all->topology->name, vertices[from].name, vertices[to].name);
    return BANYAN_OK;
}

void route_free(route *old)
{
    array_free(&old->links);
}
