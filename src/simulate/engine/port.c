#include "simulate/engine/engine.h"

static bool is_busy(const port_lane *port)
{
    return port->begun < port->requests.count || port->moves;
}

static bool sim_port_push(sim_engine *all, uint32_t lane, sim_port_request *request)
{
    port_lane *port = &all->ports[lane - all->stepper.block_count];
    bool idle = !is_busy(port);
    if (idle)
        port->begun = port->requests.count = 0;
    if (!array_push(&port->requests, *request))
        return false;
    port->posted++;
    all->ranks[port->rank].requests++;
    if (idle)
        agenda_set(&all->agenda, lane, request->ready_ps);
    return true;
}

/* Return when the proxy has issued the request. It takes requests in order, one after another. A
 * proxy that shares its processor must wake first, then takes requests until none is left. */
static uint64_t pass_proxy(sim_engine *all, int rank)
{
    sim_rank *of = &all->ranks[rank];
    uint64_t begin = of->proxy_free_ps > all->now_ps ? of->proxy_free_ps : all->now_ps;
    if (of->kind->port_takes_block && of->requests > 0)
        return begin;
    of->proxy_free_ps = begin + of->kind->request_ps;
    return of->proxy_free_ps;
}

banyan_status requests_post(sim_engine *all, const sim_block *block, const plan_op *op,
                            const plan_op *loop, uint32_t step)
{
    bool puts = op->destination_count > 0;
    bool signals = op->kind == PLAN_SIGNAL || op->kind == PLAN_PUT_WITH_SIGNAL ||
                   op->kind == PLAN_PUT_WITH_SIGNAL_AND_FLUSH;
    for (uint32_t i = 0; (puts || signals) && i < op->channel_count; i++) {
        uint32_t channel = plan_channel_of(block->pos->block, op, op->channels[i]);
        sim_port_request request = {.block = block->pos->block,
                                    .op = op,
                                    .loop = loop,
                                    .iteration = block->pos->iteration,
                                    .pair = i,
                                    .ready_ps = pass_proxy(all, block->pos->rank),
                                    .doing = block->doing};
        request.doing.after = step;
        request.doing.proxy = true;
        uint32_t lane = port_of(all, block->pos->rank, channel);
        if (puts && !sim_port_push(all, lane, &request))
            return BANYAN_ERR_NO_MEMORY;
        request.signals = true;
        if (signals && !sim_port_push(all, lane, &request))
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

static banyan_status begin_put(sim_engine *all, uint32_t lane, const sim_port_request *request,
                               bool *flows, uint64_t *land_ps)
{
    const port_lane *port = &all->ports[lane - all->stepper.block_count];
    plan_op part = plan_op_part(request->op, request->pair);
    sim_move move = {.rank = port->rank,
                     .block = request->block,
                     .op = &part,
                     .loop = request->loop,
                     .iteration = request->iteration,
                     .by_port = true};
    return move_begin(all, lane, &move, flows, land_ps);
}

/* End a request whose bytes, or whose signal, have left: the arrival is known a round trip later.
 */
static banyan_status end_request(sim_engine *all, port_lane *port, const sim_port_request *request)
{
    step_record doing = request->doing;
    uint32_t step;
    uint64_t there, back;
    int peer = all->plan->ranks[port->rank].peers[PLAN_PORT][port->channel];
    doing.end_ps = all->now_ps;
    if (!record_add(&all->record, &doing, &step))
        return BANYAN_ERR_NO_MEMORY;
    RETURN_IF_FAILED(sim_latency(all, port->rank, peer, &there));
    RETURN_IF_FAILED(sim_latency(all, peer, port->rank, &back));
    port->last_step = step;
    port->acked = (plan_event){all->now_ps + there + back, step};
    port->done++;
    all->ranks[port->rank].requests--;
    uint64_t arrived = all->now_ps + there;
    uint64_t *last = &all->ends_ps[port->rank];
    *last = arrived > *last ? arrived : *last;
    waiters_wake(all, &port->waiting);
    if (request->signals)
        return signal_peer(all, port->rank, PLAN_PORT, port->channel,
                           (plan_event){all->now_ps, step});
    packets_written news = {.rank = port->rank,
                            .block = request->block,
                            .op = request->op,
                            .iteration = request->iteration,
                            .destination = request->pair,
                            .at = {arrived, step}};
    packet_writers_wrote(&all->packets, &news, readers_wake, all);
    return BANYAN_OK;
}

static void begin_request(const sim_engine *all, const port_lane *port, sim_port_request *request)
{
    /* True if it waited for the transfer before it. */
    if (request->ready_ps < all->now_ps && port->last_step != NO_STEP)
        request->doing.after = port->last_step;
    request->doing.began_ps = all->now_ps;
    request->doing.waited_ps = 0;
}

banyan_status port_advance(sim_engine *all, uint32_t lane)
{
    port_lane *port = &all->ports[lane - all->stepper.block_count];
    while (is_busy(port)) {
        sim_port_request *request = &port->requests.data[port->begun];
        bool flows = false;
        uint64_t land_ps;
        if (port->moves) {
            port->moves = false;
            if (!flow_end(&all->sharing, lane, all->now_ps))
                return BANYAN_ERR_NO_MEMORY;
        } else if (request->ready_ps > all->now_ps) {
            agenda_set(&all->agenda, lane, request->ready_ps);
            return BANYAN_OK;
        } else {
            begin_request(all, port, request);
            if (!request->signals)
                RETURN_IF_FAILED(begin_put(all, lane, request, &flows, &land_ps));
        }
        port->moves = flows;
        if (flows)
            return BANYAN_OK;
        port->begun++;
        RETURN_IF_FAILED(end_request(all, port, request));
    }
    return BANYAN_OK;
}
