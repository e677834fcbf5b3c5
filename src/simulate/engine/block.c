#include "plan/op.h"
#include "simulate/engine/engine.h"

static const plan_op *loop_at(const sim_block *block)
{
    const plan_op *op = &block->block->ops[block->at];
    return op->kind == PLAN_PIPELINE ? op : NULL;
}

static const plan_op *op_at(const sim_block *block)
{
    const plan_op *loop = loop_at(block);
    return loop ? &loop->ops[block->inner] : &block->block->ops[block->at];
}

static void engine_block_come_after(happening *latest, happening what)
{
    if (what.time_ps >= latest->time_ps)
        *latest = what;
}

/* Record the step that ends now. */
static banyan_status engine_block_note_step(engine *all, sim_block *block)
{
    uint32_t number;
    block->doing.end_ps = all->now_ps;
    if (!record_add(&all->record, &block->doing, &number))
        return BANYAN_ERR_NO_MEMORY;
    block->doing.after = number;
    return BANYAN_OK;
}

static void engine_block_begin_step(const engine *all, sim_block *block)
{
    block->doing.began_ps = all->now_ps;
    block->doing.waited_ps = 0;
    block->awaited = (happening){0, NO_STEP};
    block->taken = 0;
}

/* End a wait, and record the step that it waited for. */
static void engine_block_end_wait(const engine *all, sim_block *block)
{
    block->doing.waited_ps = all->now_ps - block->doing.began_ps;
    if (block->doing.waited_ps > 0 && block->awaited.step != NO_STEP)
        block->doing.after = block->awaited.step;
    block->taken = 0;
}

/* ---- waiting ---- */

static bool await_signals(engine *all, uint32_t lane, const plan_op *op)
{
    sim_block *block = &all->blocks[lane];
    for (; block->taken < op->channel_count; block->taken++) {
        uint32_t channel = plan_channel_of(block->block, op, op->channels[block->taken]);
        tokens *from = &all->ranks[block->rank].signals[op->channel_type][channel];
        happening what;
        if (!tokens_take(all, from, lane, &what))
            return false;
        engine_block_come_after(&block->awaited, what);
    }
    return true;
}

static bool await_releases(engine *all, uint32_t lane, const plan_op *op)
{
    sim_block *block = &all->blocks[lane];
    for (; block->taken < op->semaphore_count; block->taken++) {
        tokens *from = &all->ranks[block->rank].semaphores[op->semaphores[block->taken]];
        happening what;
        if (!tokens_take(all, from, lane, &what))
            return false;
        engine_block_come_after(&block->awaited, what);
    }
    return true;
}

static bool await_packets(engine *all, uint32_t lane, const plan_op *op)
{
    sim_block *block = &all->blocks[lane];
    if (packet_writers_have(&all->packets, block->rank, op, block->iteration, block->iterations,
                            &block->awaited.time_ps, &block->awaited.step))
        return true;
    waiters_add(all, &all->ranks[block->rank].for_packets, lane);
    return false;
}

static banyan_status engine_block_await(engine *all, uint32_t lane, const plan_op *op, bool *over)
{
    *over = true;
    switch (op->kind) {
    case PLAN_WAIT:
    case PLAN_RELAXED_WAIT:
        *over = await_signals(all, lane, op);
        return BANYAN_OK;
    case PLAN_SEM_ACQUIRE:
        *over = await_releases(all, lane, op);
        return BANYAN_OK;
    case PLAN_BARRIER:
        return meeting_attend(all, lane, op, over);
    default:
        if (plan_op_reads_packets(op->kind))
            *over = await_packets(all, lane, op);
        return BANYAN_OK;
    }
}

/* Wait for the transfers of port channels that were requested so far. */
static bool await_transfers(engine *all, uint32_t lane, const plan_op *op)
{
    sim_block *block = &all->blocks[lane];
    for (; block->taken < op->channel_count; block->taken++) {
        uint32_t channel = plan_channel_of(block->block, op, op->channels[block->taken]);
        port_lane *port = &all->ports[port_of(all, block->rank, channel) - all->block_count];
        if (port->done < port->posted) {
            waiters_add(all, &port->waiting, lane);
            return false;
        }
        engine_block_come_after(&block->awaited, port->acked);
    }
    return true;
}

/* ---- cost and bytes ---- */

static sim_move engine_block_move_of(const sim_block *block, const plan_op *op)
{
    return (sim_move){.rank = block->rank,
                      .block = block->block,
                      .op = op,
                      .loop = loop_at(block),
                      .iteration = block->iteration};
}

static bool moves_itself(const plan_op *op)
{
    return op->source_count > 0 && op->channel_type != PLAN_PORT;
}

static banyan_status cost_of(engine *all, sim_block *block, uint64_t *cost_ps)
{
    const plan_op *op = op_at(block);
    const processor_kind *kind = all->ranks[block->rank].kind;
    sim_move move = engine_block_move_of(block, op);
    uint64_t reach_ps = 0;
    if (op->kind == PLAN_NOP || op->kind == PLAN_BARRIER) {
        *cost_ps = kind->sync_ps;
        return BANYAN_OK;
    }
    if (moves_itself(op))
        RETURN_IF_FAILED(move_reach(all, &move, &reach_ps));
    bool stores_flag = plan_op_form_of(op->kind)->signals && op->channel_type == PLAN_MEMORY;
    bool publishes = stores_flag && (block->publishes || !kind->shared_memory);
    if (moves_itself(op))
        block->publishes |= move_publishes(all, &move);
    if (stores_flag)
        block->publishes = false;
    *cost_ps = kind->operation_ps + (publishes ? kind->signal_ps : 0) + reach_ps;
    return BANYAN_OK;
}

/* Begin the next part of the operation that has bytes: one of its pairs, or all of it. */
static banyan_status engine_block_begin_part(engine *all, uint32_t lane, bool *flows)
{
    sim_block *block = &all->blocks[lane];
    const plan_op *op = op_at(block);
    bool pairs = plan_op_is_pairs(op->kind);
    uint32_t parts = !moves_itself(op) ? 0 : pairs ? op->source_count : 1;
    *flows = false;
    for (; block->taken < parts && !*flows; block->taken++) {
        plan_op part = *op;
        uint64_t land_ps;
        if (pairs) {
            part.source_count = part.destination_count = 1;
            part.sources = &op->sources[block->taken];
            part.destinations = &op->destinations[block->taken];
        }
        sim_move move = engine_block_move_of(block, &part);
        RETURN_IF_FAILED(move_begin(all, lane, &move, flows, &land_ps));
        block->land_ps = land_ps > block->land_ps ? land_ps : block->land_ps;
    }
    return BANYAN_OK;
}

/* ---- signalling ---- */

static banyan_status engine_block_tell_peers(engine *all, const sim_block *block, const plan_op *op,
                                             uint32_t step)
{
    for (uint32_t i = 0; i < op->channel_count; i++) {
        uint32_t channel = plan_channel_of(block->block, op, op->channels[i]);
        RETURN_IF_FAILED(signal_peer(all, block->rank, op->channel_type, channel,
                                     (happening){all->now_ps, step}));
    }
    return BANYAN_OK;
}

static banyan_status engine_block_release(engine *all, const sim_block *block, const plan_op *op,
                                          uint32_t step)
{
    for (uint32_t i = 0; i < op->semaphore_count; i++) {
        tokens *to = &all->ranks[block->rank].semaphores[op->semaphores[i]];
        if (!tokens_add(all, to, (happening){all->now_ps, step}))
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

static banyan_status engine_block_tell(engine *all, sim_block *block)
{
    const plan_op *op = op_at(block);
    RETURN_IF_FAILED(engine_block_note_step(all, block));
    uint32_t step = block->doing.after;
    if (op->kind == PLAN_SEM_RELEASE)
        return engine_block_release(all, block, op, step);
    if (op->channel_type == PLAN_PORT)
        return requests_post(all, block, op, loop_at(block), step);
    if (plan_op_form_of(op->kind)->signals)
        return engine_block_tell_peers(all, block, op, step);
    if (!plan_op_writes_packets(op->kind))
        return BANYAN_OK;
    packets_written news = {.rank = block->rank,
                            .block = block->block,
                            .op = op,
                            .iteration = block->iteration,
                            .destination = PACKETS_ALL,
                            .when = all->now_ps + block->land_ps,
                            .step = step};
    packet_writers_wrote(&all->packets, &news, readers_wake, all);
    return BANYAN_OK;
}

/* ---- from stage to stage ---- */

/* Advance to the current operation; false behind the last. */
static bool begin_op(engine *all, sim_block *block)
{
    for (; block->at < block->block->op_count; block->at++) {
        const plan_op *op = &block->block->ops[block->at];
        if (block->iteration == 0 && block->inner == 0)
            block->iterations = op->kind == PLAN_PIPELINE && op->op_count == 0
                                    ? 0
                                    : plan_geometry_iterations(&all->geometry, op);
        if (block->iteration < block->iterations)
            break;
        block->iteration = 0;
    }
    if (block->at == block->block->op_count)
        return false;
    bool loops = loop_at(block) != NULL;
    block->doing.at = block->at;
    block->doing.inner = loops ? block->inner : STEP_NOT_IN_LOOP;
    block->doing.iteration = block->iteration;
    block->doing.what = plan_op_name(op_at(block)->kind);
    block->land_ps = 0;
    engine_block_begin_step(all, block);
    return true;
}

static void end_op(sim_block *block)
{
    const plan_op *loop = loop_at(block);
    if (loop && ++block->inner < loop->op_count)
        return;
    block->inner = 0;
    block->iteration++;
}

/* Stay in the agenda until `time_ps`, unless that is now. */
static bool engine_block_stay(engine *all, uint32_t lane, uint64_t time_ps)
{
    if (time_ps <= all->now_ps)
        return false;
    agenda_set(&all->agenda, lane, time_ps);
    return true;
}

static void end_block(engine *all, const sim_block *block)
{
    uint64_t end = all->now_ps + block->land_ps;
    uint64_t *last = &all->ends_ps[block->rank];
    *last = end > *last ? end : *last;
}

/* Execute one stage; `*waits` is whether the lane stops there. */
static banyan_status pass_stage(engine *all, uint32_t lane, bool *waits)
{
    sim_block *block = &all->blocks[lane];
    const plan_op *op =
        block->stage == STAGE_LAUNCH || block->stage == STAGE_BEGIN ? NULL : op_at(block);
    uint64_t cost_ps;
    bool over;
    switch (block->stage) {
    case STAGE_LAUNCH:
        block->stage = STAGE_BEGIN;
        return engine_block_note_step(all, block);
    case STAGE_BEGIN:
        block->stage = STAGE_AWAIT;
        *waits = !begin_op(all, block);
        if (*waits)
            end_block(all, block);
        return BANYAN_OK;
    case STAGE_AWAIT:
        RETURN_IF_FAILED(engine_block_await(all, lane, op, &over));
        block->stage = over ? STAGE_COST : STAGE_AWAIT;
        *waits = !over || engine_block_stay(all, lane, block->awaited.time_ps);
        return BANYAN_OK;
    case STAGE_COST:
        engine_block_end_wait(all, block);
        RETURN_IF_FAILED(cost_of(all, block, &cost_ps));
        block->stage = STAGE_MOVE;
        *waits = engine_block_stay(all, lane, all->now_ps + cost_ps);
        return BANYAN_OK;
    case STAGE_MOVE:
        RETURN_IF_FAILED(engine_block_begin_part(all, lane, waits));
        block->stage = *waits ? STAGE_MOVED : STAGE_TELL;
        return BANYAN_OK;
    case STAGE_MOVED:
        block->stage = STAGE_MOVE;
        return flow_end(&all->sharing, lane, all->now_ps) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    case STAGE_TELL:
        RETURN_IF_FAILED(engine_block_tell(all, block));
        over = op->kind != PLAN_FLUSH && op->kind != PLAN_PUT_WITH_SIGNAL_AND_FLUSH;
        block->stage = over ? STAGE_END : STAGE_DRAIN;
        if (!over)
            engine_block_begin_step(all, block);
        return BANYAN_OK;
    case STAGE_DRAIN:
        over = await_transfers(all, lane, op);
        block->stage = over ? STAGE_DRAINED : STAGE_DRAIN;
        *waits = !over || engine_block_stay(all, lane, block->awaited.time_ps);
        return BANYAN_OK;
    case STAGE_DRAINED:
        engine_block_end_wait(all, block);
        block->stage = STAGE_END;
        return engine_block_note_step(all, block);
    case STAGE_END:
        end_op(block);
        block->stage = STAGE_BEGIN;
        return BANYAN_OK;
    }
    return BANYAN_OK;
}

banyan_status block_advance(engine *all, uint32_t lane)
{
    bool waits = false;
    while (!waits)
        RETURN_IF_FAILED(pass_stage(all, lane, &waits));
    return BANYAN_OK;
}
