#include "plan/op.h"
#include "simulate/engine/engine.h"

/* Record the step that ends now. */
static banyan_status sim_block_note_step(sim_engine *all, sim_block *block)
{
    uint32_t number;
    block->doing.end_ps = all->now_ps;
    if (!record_add(&all->record, &block->doing, &number))
        return BANYAN_ERR_NO_MEMORY;
    block->doing.after = number;
    return BANYAN_OK;
}

static void sim_block_begin_step(const sim_engine *all, sim_block *block)
{
    block->doing.began_ps = all->now_ps;
    block->doing.waited_ps = 0;
    block->waited_for = (plan_event){0, NO_STEP};
    block->done = 0;
}

/* End a wait, and record the step that it waited for. */
static void sim_block_end_wait(const sim_engine *all, sim_block *block)
{
    block->doing.waited_ps = all->now_ps - block->doing.began_ps;
    if (block->doing.waited_ps > 0 && block->waited_for.step != NO_STEP)
        block->doing.after = block->waited_for.step;
    block->done = 0;
}

/* Return the list in which the thread block waits for others; NULL: it does not have to wait. */
static waiters *sim_block_wait(sim_engine *all, sim_block *block)
{
    plan_stepper *stepper = &all->stepper;
    plan_position *pos = block->pos;
    const plan_op *op = plan_position_op(pos);
    if (op->kind == PLAN_BARRIER) {
        uint32_t number = plan_stepper_barrier(stepper, pos, op);
        plan_barrier *at = &stepper->barriers.data[number];
        if (!pos->arrived &&
            plan_barrier_arrive(at, pos, (plan_event){all->now_ps, block->doing.after}))
            waiters_wake(all, &all->barrier_waiters[number]);
        if (!plan_barrier_pass(at, pos))
            return &all->barrier_waiters[number];
        block->waited_for = at->last;
        return NULL;
    }
    if (!plan_stepper_take(stepper, pos, &block->waited_for))
        return &all->token_waiters[plan_stepper_taken(stepper, pos, op, pos->taken)];
    if (plan_op_reads_packets(op->kind) &&
        !packet_writers_have(&all->packets, pos->rank, op, pos->iteration, pos->iterations,
                             &block->waited_for))
        return &all->ranks[pos->rank].for_packets;
    return NULL;
}

/* Wait for the transfers of port channels that were requested so far. */
static bool sim_block_drained(sim_engine *all, uint32_t lane, const plan_op *op)
{
    sim_block *block = &all->blocks[lane];
    for (; block->done < op->channel_count; block->done++) {
        uint32_t channel = plan_channel_of(block->pos->block, op, op->channels[block->done]);
        port_lane *port =
            &all->ports[port_of(all, block->pos->rank, channel) - all->stepper.block_count];
        if (port->done < port->posted) {
            waiters_add(all, &port->waiting, lane);
            return false;
        }
        plan_event_raise(&block->waited_for, port->acked);
    }
    return true;
}

static sim_move sim_block_move_of(const sim_block *block, const plan_op *op)
{
    return (sim_move){.rank = block->pos->rank,
                      .block = block->pos->block,
                      .op = op,
                      .loop = plan_position_loop(block->pos),
                      .iteration = block->pos->iteration};
}

static bool moves_itself(const plan_op *op)
{
    return op->source_count > 0 && op->channel_type != PLAN_PORT;
}

static banyan_status cost_of(sim_engine *all, sim_block *block, uint64_t *cost_ps)
{
    const plan_op *op = plan_position_op(block->pos);
    const processor_kind *kind = all->ranks[block->pos->rank].kind;
    sim_move move = sim_block_move_of(block, op);
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
static banyan_status sim_block_begin_part(sim_engine *all, uint32_t lane, bool *flows)
{
    sim_block *block = &all->blocks[lane];
    const plan_op *op = plan_position_op(block->pos);
    bool pairs = plan_op_is_pairs(op->kind);
    uint32_t parts = !moves_itself(op) ? 0 : pairs ? plan_op_part_count(op) : 1;
    *flows = false;
    for (; block->done < parts && !*flows; block->done++) {
        plan_op part = pairs ? plan_op_part(op, block->done) : *op;
        uint64_t land_ps;
        sim_move move = sim_block_move_of(block, &part);
        RETURN_IF_FAILED(move_begin(all, lane, &move, flows, &land_ps));
        block->land_ps = land_ps > block->land_ps ? land_ps : block->land_ps;
    }
    return BANYAN_OK;
}

static banyan_status sim_block_give(sim_engine *all, sim_block *block)
{
    const plan_op *op = plan_position_op(block->pos);
    RETURN_IF_FAILED(sim_block_note_step(all, block));
    plan_event now = {all->now_ps, block->doing.after};
    if (op->channel_type == PLAN_PORT)
        return requests_post(all, block, op, plan_position_loop(block->pos), now.step);
    for (uint32_t k = 0; k < plan_op_gives(op); k++) {
        if (op->kind == PLAN_SEM_RELEASE)
            RETURN_IF_FAILED(
                sim_give(all, plan_stepper_given(&all->stepper, block->pos, op, k), now));
        else
            RETURN_IF_FAILED(signal_peer(all, block->pos->rank, op->channel_type,
                                         plan_channel_of(block->pos->block, op, op->channels[k]),
                                         now));
    }
    if (!plan_op_writes_packets(op->kind))
        return BANYAN_OK;
    packets_written news = {.rank = block->pos->rank,
                            .block = block->pos->block,
                            .op = op,
                            .iteration = block->pos->iteration,
                            .destination = PACKETS_ALL,
                            .at = {all->now_ps + block->land_ps, now.step}};
    packet_writers_wrote(&all->packets, &news, readers_wake, all);
    return BANYAN_OK;
}

/* Advance to the current operation; false behind the last. */
static bool begin_op(sim_engine *all, sim_block *block)
{
    if (!plan_position_settle(&all->stepper, block->pos))
        return false;
    bool loops = plan_position_loop(block->pos) != NULL;
    block->doing.at = block->pos->at;
    block->doing.inner = loops ? block->pos->inner : STEP_NOT_IN_LOOP;
    block->doing.iteration = block->pos->iteration;
    block->doing.what = plan_op_name(plan_position_op(block->pos)->kind);
    block->land_ps = 0;
    sim_block_begin_step(all, block);
    return true;
}

/* Stay in the agenda until `time_ps`, unless that is now. */
static bool sim_block_stay(sim_engine *all, uint32_t lane, uint64_t time_ps)
{
    if (time_ps <= all->now_ps)
        return false;
    agenda_set(&all->agenda, lane, time_ps);
    return true;
}

static void end_block(sim_engine *all, const sim_block *block)
{
    uint64_t end = all->now_ps + block->land_ps;
    uint64_t *last = &all->ends_ps[block->pos->rank];
    *last = end > *last ? end : *last;
}

/* Execute one stage; `*waits` is whether the lane stops there. */
static banyan_status pass_stage(sim_engine *all, uint32_t lane, bool *waits)
{
    sim_block *block = &all->blocks[lane];
    const plan_op *op = block->stage == STAGE_LAUNCH || block->stage == STAGE_BEGIN
                            ? NULL
                            : plan_position_op(block->pos);
    uint64_t cost_ps;
    bool over;
    waiters *list;
    switch (block->stage) {
    case STAGE_LAUNCH:
        block->stage = STAGE_BEGIN;
        return sim_block_note_step(all, block);
    case STAGE_BEGIN:
        block->stage = STAGE_WAIT;
        *waits = !begin_op(all, block);
        if (*waits)
            end_block(all, block);
        return BANYAN_OK;
    case STAGE_WAIT:
        list = sim_block_wait(all, block);
        block->stage = list ? STAGE_WAIT : STAGE_COST;
        if (list)
            waiters_add(all, list, lane);
        *waits = list || sim_block_stay(all, lane, block->waited_for.when);
        return BANYAN_OK;
    case STAGE_COST:
        sim_block_end_wait(all, block);
        RETURN_IF_FAILED(cost_of(all, block, &cost_ps));
        block->stage = STAGE_MOVE;
        *waits = sim_block_stay(all, lane, all->now_ps + cost_ps);
        return BANYAN_OK;
    case STAGE_MOVE:
        RETURN_IF_FAILED(sim_block_begin_part(all, lane, waits));
        block->stage = *waits ? STAGE_MOVED : STAGE_GIVE;
        return BANYAN_OK;
    case STAGE_MOVED:
        block->stage = STAGE_MOVE;
        return flow_end(&all->sharing, lane, all->now_ps) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    case STAGE_GIVE:
        RETURN_IF_FAILED(sim_block_give(all, block));
        over = op->kind != PLAN_FLUSH && op->kind != PLAN_PUT_WITH_SIGNAL_AND_FLUSH;
        block->stage = over ? STAGE_END : STAGE_DRAIN;
        if (!over)
            sim_block_begin_step(all, block);
        return BANYAN_OK;
    case STAGE_DRAIN:
        over = sim_block_drained(all, lane, op);
        block->stage = over ? STAGE_DRAINED : STAGE_DRAIN;
        *waits = !over || sim_block_stay(all, lane, block->waited_for.when);
        return BANYAN_OK;
    case STAGE_DRAINED:
        sim_block_end_wait(all, block);
        block->stage = STAGE_END;
        return sim_block_note_step(all, block);
    case STAGE_END:
        plan_position_next(block->pos);
        block->stage = STAGE_BEGIN;
        return BANYAN_OK;
    }
    return BANYAN_OK;
}

banyan_status block_advance(sim_engine *all, uint32_t lane)
{
    bool waits = false;
    while (!waits)
        RETURN_IF_FAILED(pass_stage(all, lane, &waits));
    return BANYAN_OK;
}
