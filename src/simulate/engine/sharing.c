#include "simulate/engine/sharing.h"

#include <math.h>
#include <stdlib.h>

#define PS_PER_S 1e12
/* A flow that takes longer counts as endless: 106 days. */
#define PS_MOST 9.2e18
/* Rounding error allowed in a resource, or in the difference of two rates. */
#define SLACK 1e-9

banyan_status sharing_make(agenda *ends, uint32_t flow_count, uint32_t resource_count,
                           sharing *made)
{
    sharing all = {.ends = ends,
                   .flows = calloc(flow_count + (size_t)1, sizeof *all.flows),
                   .resources = calloc(resource_count + (size_t)1, sizeof *all.resources),
                   .flow_count = flow_count,
                   .resource_count = resource_count};
    if (!all.flows || !all.resources) {
        free(all.flows);
        free(all.resources);
        return error_no_memory(flow_count * sizeof *all.flows +
                                   resource_count * sizeof *all.resources,
                               "links and flows");
    }
    *made = all;
    return BANYAN_OK;
}

void sharing_free(sharing *old)
{
    for (uint32_t i = 0; i < old->flow_count; i++)
        array_free(&old->flows[i].uses);
    for (uint32_t i = 0; i < old->resource_count; i++)
        array_free(&old->resources[i].users);
    free(old->flows);
    free(old->resources);
    array_free(&old->changed);
    array_free(&old->tied_flows);
    array_free(&old->tied_resources);
    array_free(&old->shares);
}

static bool is_full(const resource *one)
{
    return one->wanted > one->bytes_per_s * (1 + SLACK);
}

/* Flows of a resource that was never full keep their limits, whatever flows are added or removed.
 */
static bool note_change(sharing *all, uint32_t number)
{
    resource *one = &all->resources[number];
    if (one->changed)
        return true;
    one->changed = true;
    return array_push(&all->changed, number);
}

void flow_begin(sharing *all, uint32_t number)
{
    all->flows[number].uses.count = 0;
    all->stamps++;
}

bool flow_add_framed(sharing *all, uint32_t number, uint32_t of, double bytes, double overhead)
{
    resource *one = &all->resources[of];
    flow_use use = {.resource = of, .bytes = bytes, .room = bytes * overhead};
    if (one->stamp == all->stamps) {
        flow_use *made = &all->flows[number].uses.data[one->stamped_use];
        made->bytes += use.bytes;
        made->room += use.room;
        return true;
    }
    one->stamp = all->stamps;
    one->stamped_use = (uint32_t)all->flows[number].uses.count;
    return array_push(&all->flows[number].uses, use);
}

bool flow_add(sharing *all, uint32_t number, uint32_t of, double bytes)
{
    return flow_add_framed(all, number, of, bytes, 1);
}

static bool sharing_join(sharing *all, uint32_t number, uint32_t u)
{
    flow *one = &all->flows[number];
    flow_use *use = &one->uses.data[u];
    resource *at = &all->resources[use->resource];
    use->place = (uint32_t)at->users.count;
    if (!array_push(&at->users, (resource_user){number, u, use->weight}))
        return false;
    if (use->place == 0)
        at->busy_since_ps = one->since_ps;
    at->wanted += use->weight * one->limit;
    return !is_full(at) || note_change(all, use->resource);
}

bool flow_go(sharing *all, uint32_t number, double amount, double limit, uint64_t now_ps)
{
    flow *one = &all->flows[number];
    one->limit = limit;
    one->left = amount;
    one->since_ps = now_ps;
    one->rate = limit;
    one->flows = true;
    for (uint32_t u = 0; u < one->uses.count; u++) {
        one->uses.data[u].weight = one->uses.data[u].room / amount;
        if (!sharing_join(all, number, u))
            return false;
    }
    double ps = ceil(amount / limit * PS_PER_S);
    agenda_set(all->ends, number, ps < PS_MOST ? now_ps + (uint64_t)ps : (uint64_t)PS_MOST);
    return true;
}

static bool sharing_leave(sharing *all, const flow *one, const flow_use *use, uint64_t now_ps)
{
    resource *at = &all->resources[use->resource];
    bool was_full = is_full(at);
    resource_user last = at->users.data[--at->users.count];
    if (use->place < at->users.count) {
        at->users.data[use->place] = last;
        all->flows[last.flow].uses.data[last.use].place = use->place;
    }
    at->carried += use->bytes;
    at->wanted -= use->weight * one->limit;
    if (at->users.count == 0) {
        at->wanted = 0; /* remove the rounding error */
        at->busy_ps += now_ps - at->busy_since_ps;
        return true;
    }
    return !was_full || note_change(all, use->resource);
}

bool flow_end(sharing *all, uint32_t number, uint64_t now_ps)
{
    flow *one = &all->flows[number];
    one->flows = false;
    for (size_t u = 0; u < one->uses.count; u++) {
        if (!sharing_leave(all, one, &one->uses.data[u], now_ps))
            return false;
    }
    return true;
}

static bool tie_users(sharing *all, uint32_t number)
{
    resource *one = &all->resources[number];
    if (one->seen == all->searches)
        return true;
    one->seen = all->searches;
    one->room = one->bytes_per_s;
    one->weight = 0;
    if (!array_push(&all->tied_resources, number))
        return false;
    for (size_t i = 0; i < one->users.count; i++) {
        uint32_t user = one->users.data[i].flow;
        flow *tied = &all->flows[user];
        one->weight += one->users.data[i].weight;
        if (tied->seen == all->searches)
            continue;
        tied->seen = all->searches;
        tied->settled = false;
        if (!array_push(&all->tied_flows, user))
            return false;
    }
    return true;
}

/* Find everything that a change reaches: flows of changed resources, full resources of those flows,
 * and so on. */
static bool find_tied(sharing *all)
{
    all->searches++;
    all->tied_flows.count = all->tied_resources.count = 0;
    for (size_t i = 0; i < all->changed.count; i++) {
        all->resources[all->changed.data[i]].changed = false;
        if (!tie_users(all, all->changed.data[i]))
            return false;
    }
    all->changed.count = 0;
    for (size_t i = 0; i < all->tied_flows.count; i++) {
        const flow *tied = &all->flows[all->tied_flows.data[i]];
        for (size_t u = 0; u < tied->uses.count; u++) {
            uint32_t number = tied->uses.data[u].resource;
            if (is_full(&all->resources[number]) && !tie_users(all, number))
                return false;
        }
    }
    return true;
}

static void set_rate(sharing *all, uint32_t number, double rate, uint64_t now_ps)
{
    flow *one = &all->flows[number];
    one->settled = true;
    for (size_t u = 0; u < one->uses.count; u++) {
        resource *at = &all->resources[one->uses.data[u].resource];
        at->room -= one->uses.data[u].weight * rate;
        at->weight -= one->uses.data[u].weight;
    }
    if (rate == one->rate)
        return;
    one->left -= one->rate * (double)(now_ps - one->since_ps) / PS_PER_S;
    if (one->left < 0)
        one->left = 0;
    one->since_ps = now_ps;
    one->rate = rate;
    double ps = ceil(one->left / rate * PS_PER_S);
    agenda_set(all->ends, number, ps < PS_MOST ? now_ps + (uint64_t)ps : (uint64_t)PS_MOST);
}

/* Return the resource's remaining room per flow without a rate; it only grows as others get theirs.
 */
static double sharing_share_of(const resource *one)
{
    return one->weight > SLACK ? one->room / one->weight : INFINITY;
}

static void sharing_sink(resource_share *heap, size_t count, size_t at, resource_share what)
{
    for (size_t below = 2 * at + 1; below < count; below = 2 * at + 1) {
        if (below + 1 < count && heap[below + 1].each < heap[below].each)
            below++;
        if (!(heap[below].each < what.each))
            break;
        heap[at] = heap[below];
        at = below;
    }
    heap[at] = what;
}

static bool rank_resources(sharing *all)
{
    size_t count = all->tied_resources.count;
    all->shares.count = 0;
    if (!array_reserve(&all->shares, count))
        return false;
    for (size_t i = 0; i < count; i++) {
        uint32_t number = all->tied_resources.data[i];
        all->shares.data[i] = (resource_share){sharing_share_of(&all->resources[number]), number};
    }
    for (size_t i = count / 2; i-- > 0;)
        sharing_sink(all->shares.data, count, i, all->shares.data[i]);
    all->shares.count = count;
    return true;
}

static void drop_scarcest(sharing *all)
{
    resource_share last = all->shares.data[--all->shares.count];
    if (all->shares.count > 0)
        sharing_sink(all->shares.data, all->shares.count, 0, last);
}

/* Heap entries keep the share at insertion: the first one is correct if its share has not grown. */
static resource *find_scarcest(sharing *all)
{
    while (all->shares.count > 0) {
        resource_share *first = &all->shares.data[0];
        resource *one = &all->resources[first->resource];
        double each = sharing_share_of(one);
        if (each <= first->each * (1 + SLACK))
            return one;
        if (each == INFINITY)
            drop_scarcest(all);
        else
            sharing_sink(all->shares.data, all->shares.count, 0,
                         (resource_share){each, first->resource});
    }
    return NULL;
}

/* Give all users of the resource an equal rate. */
static void settle_users(sharing *all, resource *one, uint64_t now_ps)
{
    double rate = sharing_share_of(one);
    for (size_t k = 0; k < one->users.count; k++) {
        uint32_t user = one->users.data[k].flow;
        if (!all->flows[user].settled)
            set_rate(all, user, rate, now_ps);
    }
    one->weight = 0; /* remove the rounding error */
}

/* Give flows that want no more than `rate` what they want, and keep the others in the list; return
 * the least that one of these wants. */
static double settle_modest(sharing *all, double rate, uint64_t now_ps)
{
    double least = INFINITY;
    size_t kept = 0;
    for (size_t i = 0; i < all->tied_flows.count; i++) {
        uint32_t number = all->tied_flows.data[i];
        const flow *one = &all->flows[number];
        if (one->settled)
            continue;
        if (one->limit <= rate) {
            set_rate(all, number, one->limit, now_ps);
            continue;
        }
        least = fmin(least, one->limit);
        all->tied_flows.data[kept++] = number;
    }
    all->tied_flows.count = kept;
    return least;
}

banyan_status sharing_settle(sharing *all, uint64_t now_ps)
{
    if (all->changed.count == 0)
        return BANYAN_OK;
    if (!find_tied(all) || !rank_resources(all))
        return BANYAN_ERR_NO_MEMORY;
    double least = settle_modest(all, 0, now_ps);
    while (all->tied_flows.count > 0) {
        resource *scarcest = find_scarcest(all);
        double rate = scarcest ? sharing_share_of(scarcest) : INFINITY;
        if (least <= rate)
            least = settle_modest(all, rate, now_ps);
        else
            settle_users(all, scarcest, now_ps);
    }
    return BANYAN_OK;
}
