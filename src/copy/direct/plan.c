#include "copy/direct/plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "copy/match/match.h"
#include "memory/symmetric/pages.h"
#include "world/control.h"

typedef struct note_context {
    banyan_world *world;
    banyan_transport *transport;
    const banyan_copy_batch *batch;
    const direct_places *places;
    banyan_status status; /* status of finding the places */
} note_context;

static banyan_status direct_plan_unreachable(const note_context *context, const banyan_copy_op *op)
{
    int rank = banyan_world_rank(context->world);
    if (!context->transport)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "direct: the device of rank %d (node %d) cannot reach that of rank %d "
                         "(node %d); between nodes take the pipeline "
                         "(BANYAN_COPY=pipeline)",
                         rank, banyan_world_node_of(context->world, rank), op->peer,
                         banyan_world_node_of(context->world, op->peer));
    return error_set(BANYAN_ERR_UNSUPPORTED,
                     "direct: rank %d (node %d) cannot map the memory of rank %d (node %d), and no "
                     "transport puts data there: %s",
                     rank, banyan_world_node_of(context->world, rank), op->peer,
                     banyan_world_node_of(context->world, op->peer), banyan_last_error());
}

/* If not, the error is that of the transport. */
static bool can_reach(const note_context *context, int peer)
{
    banyan_world *world = context->world;
    if (context->transport)
        return (banyan_transport_capabilities(context->transport, peer) &
                (BANYAN_TRANSPORT_ADDRESS | BANYAN_TRANSPORT_USER_MEMORY)) != 0;
    return banyan_world_node_of(world, peer) ==
           banyan_world_node_of(world, banyan_world_rank(world));
}

static banyan_status write_note(void *argument, const banyan_copy_op *op, bool is_send,
                                bytes_writer *note)
{
    const note_context *context = argument;
    if (!can_reach(context, op->peer))
        return direct_plan_unreachable(context, op);
    if (context->status != BANYAN_OK)
        return context->status;
    const direct_place *place = is_send ? &context->places->sends[op - context->batch->sends]
                                        : &context->places->recvs[op - context->batch->recvs];
    direct_place_write(place, note);
    return BANYAN_OK;
}

static int compare_int(const void *a, const void *b)
{
    return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

/* Sort, and remove repeats. */
static size_t list_peers(const copy_matches *matches, int *peers)
{
    size_t most = 0, count = 0;
    for (size_t i = 0; i < matches->send_count; i++)
        peers[most++] = matches->sends[i].peer;
    for (size_t i = 0; i < matches->recv_count; i++)
        peers[most++] = matches->recvs[i].peer;
    sort_elements(peers, most, sizeof *peers, compare_int);
    for (size_t i = 0; i < most; i++)
        if (count == 0 || peers[i] != peers[count - 1])
            peers[count++] = peers[i];
    return count;
}

/* List partners in rotation: the ranks after this one come first, so that not all ranks start with
 * one partner. */
static banyan_status list_partners(direct_plan *plan, int rank, const copy_matches *matches)
{
    size_t most = matches->send_count + matches->recv_count;
    int *peers = malloc((most + 1) * sizeof *peers);
    if (!peers)
        return error_no_memory(most * sizeof *peers, "the partners of a schedule");
    size_t count = list_peers(matches, peers), after = 0;
    while (after < count && peers[after] < rank)
        after++;
    plan->partners = calloc(count + 1, sizeof *plan->partners);
    for (size_t i = 0; plan->partners && i < count; i++)
        plan->partners[i].peer = peers[(after + i) % count];
    plan->partner_count = plan->partners ? count : 0;
    free(peers);
    return plan->partners
               ? BANYAN_OK
               : error_no_memory(count * sizeof *plan->partners, "the partners of a schedule");
}

static banyan_status read_far(const copy_match *match, direct_place *far)
{
    RETURN_IF_FAILED(direct_place_read(match->note, match->note_bytes, match->peer,
                                       match->bytes / match->elem_bytes, match->elem_bytes, far));
    far->view.format = match->format;
    return BANYAN_OK;
}

static banyan_status map_far(banyan_world *world, const direct_place *far, strided_view *view)
{
    void *address;
    RETURN_IF_FAILED(banyan_memory_map(world, &far->handle, &address));
    *view = far->view;
    view->data = (char *)address + far->offset;
    return BANYAN_OK;
}

static banyan_status add_recv(banyan_world *world, direct_plan *plan, direct_flow *flow,
                              const direct_place *own, const direct_place *far)
{
    if (!direct_place_is_symmetric(far)) {
        direct_gather gather;
        if (direct_place_is_symmetric(own))
            return BANYAN_OK;
        RETURN_IF_FAILED(direct_gather_plan(far, &own->view, &flow->read_memory, &gather));
        return array_push(&flow->reads, gather) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    }
    strided_view from;
    RETURN_IF_FAILED(map_far(world, far, &from));
    RETURN_IF_FAILED(direct_pages_add(&plan->pages, &from, false));
    return direct_moves_add(direct_place_is_symmetric(own) ? &flow->shared : &flow->own, &own->view,
                            &from);
}

static banyan_status add_send(banyan_world *world, direct_plan *plan, direct_flow *flow,
                              const direct_place *own, const direct_place *far)
{
    if (!direct_place_is_symmetric(far))
        return BANYAN_OK;
    strided_view to;
    RETURN_IF_FAILED(map_far(world, far, &to));
    RETURN_IF_FAILED(direct_pages_add(&plan->pages, &to, true));
    return direct_moves_add(direct_place_is_symmetric(own) ? &flow->shared : &flow->own, &to,
                            &own->view);
}

/* Map the next registered destination. */
static banyan_status map_attached(direct_plan *plan, const direct_place *far, strided_view *view)
{
    const memory_wanted *wanted = &plan->wanted.data[plan->mapped++];
    if (!wanted->address)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "direct: rank %d cannot map the memory into which rank %d receives: %s",
                         banyan_world_rank(plan->places.world), far->handle.rank,
                         memory_attachments_reason(plan->attached));
    *view = far->view;
    view->data = wanted->address + far->offset;
    return BANYAN_OK;
}

static banyan_status add_device_send(banyan_world *world, direct_plan *plan, direct_flow *flow,
                                     const direct_place *own, const direct_place *far)
{
    strided_view to;
    RETURN_IF_FAILED(far->handle.kind == BANYAN_MEMORY_DEVICE ? map_attached(plan, far, &to)
                                                              : map_far(world, far, &to));
    return direct_moves_add_whole(&flow->own, &to, &own->view);
}

static bool direct_plan_is_on_device(const direct_plan *plan)
{
    return plan->device.device_type == kDLCUDA;
}

static banyan_status add_match(banyan_world *world, direct_plan *plan, direct_partner *partner,
                               const copy_match *match, bool is_send)
{
    const direct_place *own =
        is_send ? &plan->places.sends[match->op] : &plan->places.recvs[match->op];
    if (own->view.elems == 0)
        return BANYAN_OK;
    direct_place far;
    RETURN_IF_FAILED(read_far(match, &far));
    plan->bytes += partner->is_remote && !is_send ? match->bytes : 0;
    if (partner->is_remote)
        return is_send ? remote_flow_add(&partner->remote_out, &far, own, true)
                       : remote_flow_add(&partner->remote_in, own, &far, false);
    direct_flow *flow = is_send ? &partner->out : &partner->in;
    flow->bytes += match->bytes;
    if (direct_plan_is_on_device(plan))
        return is_send ? add_device_send(world, plan, flow, own, &far) : BANYAN_OK;
    if (!is_send)
        plan->bytes += match->bytes;
    else if (direct_place_is_symmetric(&far) && !direct_place_is_symmetric(own))
        plan->bytes += match->bytes;
    return is_send ? add_send(world, plan, flow, own, &far)
                   : add_recv(world, plan, flow, own, &far);
}

static banyan_status add_matches(banyan_world *world, direct_plan *plan, const copy_match *matches,
                                 size_t count, bool is_send)
{
    direct_partner *partner = plan->partners;
    for (size_t i = 0; i < count; i++) {
        if (partner->peer != matches[i].peer)
            for (partner = plan->partners; partner->peer != matches[i].peer; partner++)
                continue;
        RETURN_IF_FAILED(add_match(world, plan, partner, &matches[i], is_send));
    }
    return BANYAN_OK;
}

static banyan_status finish_flows(banyan_world *world, direct_plan *plan)
{
    for (size_t i = 0; i < plan->partner_count; i++) {
        direct_partner *partner = &plan->partners[i];
        RETURN_IF_FAILED(remote_flow_finish(&partner->remote_in, world, false));
        RETURN_IF_FAILED(remote_flow_finish(&partner->remote_out, world, true));
        RETURN_IF_FAILED(direct_moves_finish(&partner->in.shared));
        RETURN_IF_FAILED(direct_moves_finish(&partner->in.own));
        RETURN_IF_FAILED(direct_moves_finish(&partner->out.shared));
        RETURN_IF_FAILED(direct_moves_finish(&partner->out.own));
    }
    return direct_moves_finish(&plan->local);
}

static banyan_status direct_plan_add_local(direct_plan *plan, const banyan_copy_batch *batch)
{
    for (size_t i = 0; i < batch->local_count; i++) {
        strided_view to, from;
        RETURN_IF_FAILED(copy_op_view(&batch->recvs[batch->local[i].recv], false, &to));
        RETURN_IF_FAILED(copy_op_view(&batch->sends[batch->local[i].send], true, &from));
        RETURN_IF_FAILED(direct_plan_is_on_device(plan)
                             ? direct_moves_add_whole(&plan->local, &to, &from)
                             : direct_moves_add(&plan->local, &to, &from));
        plan->bytes += to.elems * to.elem_bytes;
    }
    return BANYAN_OK;
}

/* Local to each rank. */
static banyan_status direct_plan_flows(banyan_world *world, banyan_transport *transport,
                                       direct_plan *plan, const banyan_copy_batch *batch,
                                       const copy_matches *matches)
{
    RETURN_IF_FAILED(list_partners(plan, banyan_world_rank(world), matches));
    for (size_t i = 0; transport && i < plan->partner_count; i++)
        plan->partners[i].is_remote = direct_is_remote(transport, plan->partners[i].peer);
    RETURN_IF_FAILED(add_matches(world, plan, matches->sends, matches->send_count, true));
    RETURN_IF_FAILED(add_matches(world, plan, matches->recvs, matches->recv_count, false));
    RETURN_IF_FAILED(direct_plan_add_local(plan, batch));
    if (direct_plan_is_on_device(plan))
        return BANYAN_OK;
    direct_pages_prefault(&plan->pages);
    return finish_flows(world, plan);
}

static banyan_status land_flows(direct_plan *plan, const control_message *messages, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < plan->partner_count; k++)
            if (plan->partners[k].peer == messages[i].rank)
                RETURN_IF_FAILED(remote_flow_land(&plan->partners[k].remote_out, messages[i].rank,
                                                  messages[i].data, messages[i].bytes));
    return BANYAN_OK;
}

/* Receivers send their senders the handles of their slots. Collective. */
static banyan_status exchange_remote_slots(banyan_world *world, direct_plan *plan,
                                           banyan_status mine)
{
    control_message *messages = calloc(plan->partner_count + 1, sizeof *messages), *received;
    size_t count = 0, received_count;
    if (!messages)
        return control_fail(world, error_no_memory((plan->partner_count + 1) * sizeof *messages,
                                                   "messages about slots"));
    for (size_t i = 0; mine == BANYAN_OK && i < plan->partner_count; i++) {
        remote_flow *flow = &plan->partners[i].remote_in;
        if (flow->is_registered)
            messages[count++] =
                (control_message){plan->partners[i].peer, &flow->landing, sizeof flow->landing};
    }
    banyan_status status = control_exchange(world, messages, count, "the slots of a direct copy",
                                            &received, &received_count);
    free(messages);
    RETURN_IF_FAILED(status);
    if (mine == BANYAN_OK)
        mine = land_flows(plan, received, received_count);
    control_messages_free(received, received_count);
    return mine;
}

static banyan_status want_destinations(direct_plan *plan, const copy_matches *matches)
{
    for (size_t i = 0; i < matches->send_count; i++) {
        const direct_place *own = &plan->places.sends[matches->sends[i].op];
        direct_place far;
        if (own->view.elems == 0)
            continue;
        RETURN_IF_FAILED(read_far(&matches->sends[i], &far));
        if (far.handle.kind == BANYAN_MEMORY_DEVICE &&
            !array_push(&plan->wanted, (memory_wanted){.handle = far.handle}))
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

/* Map the registered destinations. Collective. */
static banyan_status attach_destinations(banyan_world *world, direct_plan *plan,
                                         const copy_matches *matches)
{
    banyan_status mine = want_destinations(plan, matches);
    if (mine != BANYAN_OK)
        plan->wanted.count = 0;
    banyan_status status = memory_attach(world, plan->device.device_id, plan->wanted.data,
                                         plan->wanted.count, &plan->attached);
    return mine != BANYAN_OK ? mine : status;
}

static banyan_status plan_fill(banyan_world *world, banyan_transport *transport,
                               const banyan_copy_batch *batch, direct_plan *plan)
{
    note_context context = {world, transport, batch, &plan->places, BANYAN_OK};
    context.status = direct_plan_is_on_device(plan)
                         ? direct_places_find_on_device(world, plan->device, batch, &plan->places)
                         : direct_places_find(world, transport, batch, &plan->places);
    copy_matches matches;
    RETURN_IF_FAILED(copy_match_batch(world, "direct", batch, write_note, &context, &matches));
    banyan_status status = context.status;
    if (direct_plan_is_on_device(plan))
        status = attach_destinations(world, plan, &matches);
    if (status == BANYAN_OK)
        status = direct_plan_flows(world, transport, plan, batch, &matches);
    copy_matches_free(&matches);
    if (plan->has_remote)
        status = exchange_remote_slots(world, plan, status);
    array_free(&plan->wanted);
    return status;
}

static void direct_flow_free(direct_flow *flow)
{
    direct_moves_free(&flow->shared);
    direct_moves_free(&flow->own);
    array_free(&flow->reads);
    arena_free(&flow->read_memory);
}

static void plan_clear(direct_plan *plan)
{
    for (size_t i = 0; i < plan->partner_count; i++) {
        direct_flow_free(&plan->partners[i].in);
        direct_flow_free(&plan->partners[i].out);
        remote_flow_free(&plan->partners[i].remote_in, plan->places.world);
        remote_flow_free(&plan->partners[i].remote_out, plan->places.world);
    }
    free(plan->partners);
    direct_moves_free(&plan->local);
    direct_pages_free(&plan->pages);
    memory_attachments_free(plan->attached);
    direct_places_free(&plan->places);
}

static banyan_status direct_plan_build(banyan_world *world, banyan_transport *transport,
                                       bool has_remote, DLDevice device,
                                       const banyan_copy_batch *batch, direct_plan **plan)
{
    direct_plan made = {.device = device, .has_remote = has_remote}, *kept = NULL;
    banyan_status status = plan_fill(world, transport, batch, &made);
    if (status == BANYAN_OK && !(kept = malloc(sizeof *kept)))
        status = error_no_memory(sizeof *kept, "a schedule");
    status = copy_agree(world, status);
    if (status == BANYAN_OK) {
        *kept = made;
        *plan = kept;
        return BANYAN_OK;
    }
    free(kept);
    plan_clear(&made);
    return status;
}

int direct_local_rank(const banyan_world *world, int rank)
{
    int local = 0;
    while (banyan_world_local_peer(world, local) != rank)
        local++;
    return local;
}

banyan_status direct_plan_create(banyan_world *world, banyan_transport *transport, bool has_remote,
                                 const banyan_copy_batch *batch, direct_plan **plan)
{
    return direct_plan_build(world, transport, has_remote, BANYAN_HOST, batch, plan);
}

banyan_status direct_plan_create_on_device(banyan_world *world, DLDevice device,
                                           const banyan_copy_batch *batch, direct_plan **plan)
{
    return direct_plan_build(world, NULL, false, device, batch, plan);
}

void direct_plan_withdraw(direct_plan *plan)
{
    direct_places_withdraw(&plan->places);
    for (size_t i = 0; i < plan->partner_count; i++)
        remote_flow_withdraw(&plan->partners[i].remote_in, plan->places.world);
}

void direct_plan_destroy(direct_plan *plan)
{
    plan_clear(plan);
    free(plan);
}

banyan_status direct_pages_add(direct_pages *all, const strided_view *view, bool written)
{
    uintptr_t mask = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
    char *low;
    size_t bytes;
    strided_view_span(view, &low, &bytes);
    if (bytes == 0)
        return BANYAN_OK;
    direct_page_range range = {(uintptr_t)low & ~mask, ((uintptr_t)low + bytes + mask) & ~mask};
    bool kept = written ? array_push(&all->written, range) : array_push(&all->read, range);
    return kept ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static int compare_ranges(const void *a, const void *b)
{
    const direct_page_range *left = a, *right = b;
    return COMPARE(left->low, right->low);
}

static void direct_pages_prefault_range(direct_page_range *ranges, size_t count, bool written)
{
    sort_elements(ranges, count, sizeof *ranges, compare_ranges);
    for (size_t first = 0, behind; first < count; first = behind) {
        uintptr_t high = ranges[first].high;
        for (behind = first + 1; behind < count && ranges[behind].low <= high; behind++)
            high = ranges[behind].high > high ? ranges[behind].high : high;
        memory_prefault((void *)ranges[first].low, high - ranges[first].low, written);
    }
}

void direct_pages_prefault(direct_pages *all)
{
    direct_pages_prefault_range(all->read.data, all->read.count, false);
    direct_pages_prefault_range(all->written.data, all->written.count, true);
    direct_pages_free(all);
}

void direct_pages_free(direct_pages *all)
{
    array_free(&all->read);
    array_free(&all->written);
}
