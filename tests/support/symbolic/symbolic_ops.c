#include "support/symbolic/symbolic_play.h"

#include <string.h>

#include "plan/op.h"

/* A step of an agent's operation; `operand` for puts that a port does one by one. */
typedef struct step {
    agent *by;
    const plan_thread_block *block;
    const plan_op *op;
    int64_t unit;  /* in a loop; -1: all */
    uint32_t flag; /* of packets; identifies the run */
} step;

static uint64_t unit_count(const play *p, const step *s)
{
    const plan_op *op = s->op;
    uint64_t size = op->source_count ? op->sources[0].size : op->destinations[0].size;
    return s->unit < 0 ? size * p->run_units[s->flag - 1] : 1;
}

/* Return the position of the step's i-th unit in an operand: a unit of a chunk. */
static uint64_t unit_of(const play *p, const step *s, const plan_operand *operand, uint64_t i,
                        uint64_t *chunk)
{
    uint64_t x = s->unit < 0 ? i : (uint64_t)s->unit, units = p->run_units[s->flag - 1];
    *chunk = operand->index + x / units;
    return x % units;
}

/* Return the operand's cell for the i-th unit of the step; for a group, the given member's. */
static cell *operand_cell(play *p, const step *s, const plan_operand *operand, int member,
                          uint64_t i)
{
    uint64_t chunk, unit = unit_of(p, s, operand, i, &chunk);
    plan_where where = plan_operand_where(p->plan, s->by->rank, s->block, s->op, operand);
    return cell_at(p, operand->place == PLAN_GROUP ? member : where.rank, (int)s->flag - 1,
                   where.buffer, chunk, unit);
}

static bool operand_has(const play *p, const step *s, const plan_operand *operand, uint64_t i)
{
    uint64_t chunk, unit = unit_of(p, s, operand, i, &chunk);
    plan_where where = plan_operand_where(p->plan, s->by->rank, s->block, s->op, operand);
    return unit < chunk_units(p, (int)s->flag - 1, where.buffer, chunk);
}

/* True if all operands have the i-th unit; for operations on pairs, the o-th source and
 * destination. */
static bool unit_moves(const play *p, const step *s, uint32_t o, uint64_t i)
{
    if (plan_op_form_of(s->op->kind)->pairs)
        return operand_has(p, s, &s->op->sources[o], i) &&
               operand_has(p, s, &s->op->destinations[o], i);
    for (uint32_t n = 0; n < s->op->source_count; n++)
        if (!operand_has(p, s, &s->op->sources[n], i))
            return false;
    for (uint32_t n = 0; n < s->op->destination_count; n++)
        if (!operand_has(p, s, &s->op->destinations[n], i))
            return false;
    return true;
}

static const plan_switch *group_of(const play *p, const step *s, const plan_operand *operand)
{
    const plan_rank *rank = &p->plan->ranks[s->by->rank];
    return &rank->switches[s->block->channels[PLAN_SWITCH][operand->reference]];
}

/* An operation waits for packets that have not arrived, even for padding; packets of a later run
 * can never arrive. */
static bool packets_are_there(play *p, const step *s)
{
    char me[64];
    for (uint32_t o = 0; o < s->op->source_count; o++) {
        if (!plan_source_is_packets(s->op, o))
            continue;
        for (uint64_t i = 0; i < unit_count(p, s); i++) {
            const cell *c = operand_cell(p, s, &s->op->sources[o], -1, i);
            if (c->packet_flag > s->flag)
                play_fail(p, "%s finds packets of a later run", play_name(p, s->by->index, me));
            if (c->packet_flag != s->flag)
                return false;
        }
    }
    return true;
}

static cell add_up(cell sum, cell more)
{
    sum.valid &= more.valid;
    sum.sum += more.sum;
    sum.order = play_mix(play_mix(sum.order) + play_mix(more.order));
    return sum;
}

/* Read all sources in their order; a group's members in theirs. */
static cell read_all(play *p, const step *s, uint64_t i)
{
    cell all = {0};
    int read = 0;
    for (uint32_t o = 0; o < s->op->source_count; o++) {
        const plan_operand *operand = &s->op->sources[o];
        const plan_switch *group = operand->place == PLAN_GROUP ? group_of(p, s, operand) : NULL;
        for (int m = 0; m < (group ? group->rank_count : 1); m++) {
            cell *c = operand_cell(p, s, operand, group ? group->ranks[m] : -1, i);
            cell one = cell_read(p, s->by, c, plan_source_is_packets(s->op, o));
            all = read++ ? add_up(all, one) : one;
        }
    }
    if (read > 1)
        all.order = play_mix(all.order + 1); /* rounded here */
    return all;
}

static void write_one(play *p, const step *s, uint32_t o, uint64_t i, cell value)
{
    const plan_operand *operand = &s->op->destinations[o];
    const plan_switch *group = operand->place == PLAN_GROUP ? group_of(p, s, operand) : NULL;
    bool packet = plan_destination_is_packets(s->op, o);
    value.packet_flag = packet ? s->flag : 0;
    value.packet_clocks = packet ? play_tell(p, s->by) : (clocks){0};
    for (int m = 0; m < (group ? group->rank_count : 1); m++)
        cell_write(p, s->by, operand_cell(p, s, operand, group ? group->ranks[m] : -1, i), value);
}

/* Packets are written even without data, since others wait for them. */
static void pad(play *p, const step *s, uint32_t o, uint64_t i)
{
    if (plan_destination_is_packets(s->op, o))
        write_one(p, s, o, i, (cell){.valid = true});
}

static void hear_pads(play *p, const step *s, uint64_t i)
{
    for (uint32_t o = 0; o < s->op->source_count; o++)
        if (plan_source_is_packets(s->op, o))
            (void)cell_read(p, s->by, operand_cell(p, s, &s->op->sources[o], -1, i), true);
}

/* Move source i to destination i. */
static void move_pair(play *p, const step *s, uint32_t o)
{
    for (uint64_t i = 0; i < unit_count(p, s); i++) {
        if (!unit_moves(p, s, o, i)) {
            pad(p, s, o, i);
            continue;
        }
        cell *from = operand_cell(p, s, &s->op->sources[o], -1, i);
        write_one(p, s, o, i, cell_read(p, s->by, from, plan_source_is_packets(s->op, o)));
    }
}

static void move_data(play *p, const step *s)
{
    if (plan_op_form_of(s->op->kind)->pairs) {
        for (uint32_t o = 0; o < s->op->source_count; o++)
            move_pair(p, s, o);
        return;
    }
    for (uint64_t i = 0; i < unit_count(p, s); i++) {
        bool moves = unit_moves(p, s, 0, i);
        cell value = moves ? read_all(p, s, i) : (cell){0};
        if (!moves)
            hear_pads(p, s, i);
        for (uint32_t o = 0; o < s->op->destination_count; o++) {
            if (moves)
                write_one(p, s, o, i, value);
            else
                pad(p, s, o, i);
        }
    }
}

static post *post_of(play *p, int rank, plan_channel_type type, uint32_t channel)
{
    return &p->ranks[rank].channels[type][channel];
}

static void signal_peer(play *p, int rank, plan_channel_type type, uint32_t channel, clocks told)
{
    int peer;
    uint32_t peer_channel;
    if (!plan_channel_pair(p->plan, rank, type, channel, &peer, &peer_channel))
        play_fail(p, "rank %d signals a channel that has no other end", rank);
    else
        post_add(post_of(p, peer, type, peer_channel), told);
}

static void signal_all(play *p, const step *s)
{
    clocks told = play_tell(p, s->by);
    if (s->op->kind == PLAN_RELAXED_SIGNAL)
        memset(told.seen, 0, p->agent_count * sizeof(uint32_t));
    for (uint32_t i = 0; i < s->op->channel_count; i++)
        signal_peer(p, s->by->rank, s->op->channel_type,
                    plan_channel_of(s->block, s->op, s->op->channels[i]), told);
}

static bool wait_all(play *p, const step *s)
{
    const plan_op *op = s->op;
    for (uint32_t i = 0; i < op->channel_count; i++)
        if (!post_ready(post_of(p, s->by->rank, op->channel_type,
                                plan_channel_of(s->block, op, op->channels[i]))))
            return false;
    for (uint32_t i = 0; i < op->channel_count; i++) {
        post *from = post_of(p, s->by->rank, op->channel_type,
                             plan_channel_of(s->block, op, op->channels[i]));
        play_hear(p, s->by, from->words.data[from->taken++], op->kind == PLAN_WAIT);
    }
    return true;
}

static bool acquire_all(play *p, const step *s)
{
    post *all = p->ranks[s->by->rank].semaphores;
    for (uint32_t i = 0; i < s->op->semaphore_count; i++)
        if (!post_ready(&all[s->op->semaphores[i]]))
            return false;
    for (uint32_t i = 0; i < s->op->semaphore_count; i++) {
        post *from = &all[s->op->semaphores[i]];
        play_hear(p, s->by, from->words.data[from->taken++], true);
    }
    return true;
}

static void release_all(play *p, const step *s)
{
    clocks told = play_tell(p, s->by);
    for (uint32_t i = 0; i < s->op->semaphore_count; i++)
        post_add(&p->ranks[s->by->rank].semaphores[s->op->semaphores[i]], told);
}

static agent *port_of(play *p, const step *s, uint32_t number)
{
    return &p->agents[p->ranks[s->by->rank].first_port +
                      s->block->channels[PLAN_PORT][s->op->channels[number]]];
}

static void port_post(play *p, const step *s, uint32_t number, uint32_t operand)
{
    port_task task = {s->op, s->block, operand, s->unit, s->flag, play_tell(p, s->by)};
    if (!array_push(&port_of(p, s, number)->tasks, task))
        abort();
}

static void port_put(play *p, const step *s)
{
    for (uint32_t i = 0; i < s->op->channel_count; i++) {
        port_post(p, s, i, i);
        if (s->op->kind != PLAN_PUT)
            port_post(p, s, i, UINT32_MAX);
    }
}

static bool port_flush(play *p, const step *s)
{
    for (uint32_t i = 0; i < s->op->channel_count; i++)
        if (port_of(p, s, i)->tasks_done < port_of(p, s, i)->tasks.count)
            return false;
    for (uint32_t i = 0; i < s->op->channel_count; i++)
        play_hear(p, s->by, play_tell(p, port_of(p, s, i)), true);
    return true;
}

/* Perform a port's next task; false if it has none. */
bool play_port_step(play *p, agent *port)
{
    if (port->tasks_done == port->tasks.count)
        return false;
    port_task task = port->tasks.data[port->tasks_done++];
    step s = {port, task.block, task.op, task.unit, task.flag};
    play_hear(p, port, task.posted, true);
    if (task.operand == UINT32_MAX)
        signal_peer(p, port->rank, PLAN_PORT, port->channel, play_tell(p, port));
    else
        move_pair(p, &s, task.operand);
    port->knows.order[port->index]++;
    port->knows.seen[port->index]++;
    return true;
}

/* False: it must wait. */
static bool do_op(play *p, const step *s)
{
    bool by_port = s->op->channel_type == PLAN_PORT;
    if (s->op->group_size)
        play_fail(p, "rank %d: groups of thread blocks are not played", s->by->rank);
    switch (s->op->kind) {
    case PLAN_NOP:
        return true;
    case PLAN_SIGNAL:
    case PLAN_RELAXED_SIGNAL:
        if (by_port)
            for (uint32_t i = 0; i < s->op->channel_count; i++)
                port_post(p, s, i, UINT32_MAX);
        else
            signal_all(p, s);
        return true;
    case PLAN_WAIT:
    case PLAN_RELAXED_WAIT:
        return wait_all(p, s);
    case PLAN_SEM_ACQUIRE:
        return acquire_all(p, s);
    case PLAN_SEM_RELEASE:
        release_all(p, s);
        return true;
    case PLAN_BARRIER:
        if (s->op->barrier_members > 1)
            play_fail(p, "rank %d: barriers between thread blocks are not played", s->by->rank);
        return true;
    case PLAN_FLUSH:
        return port_flush(p, s);
    case PLAN_PUT_WITH_SIGNAL_AND_FLUSH:
        return port_flush(p, s);
    case PLAN_PUT:
    case PLAN_PUT_WITH_SIGNAL:
        if (by_port) {
            port_put(p, s);
            return true;
        }
        /* fall through */
    default:
        if (!packets_are_there(p, s))
            return false;
        move_data(p, s);
        return true;
    }
}

static uint64_t iterations(const play *p, const agent *block, const plan_op *op)
{
    uint64_t units = p->run_units[p->ranks[block->rank].run];
    return op->kind == PLAN_PIPELINE ? op->loop_chunks * units : 1;
}

/* Leave completed loops, and the list at its end. */
static void advance(const play *p, agent *block)
{
    const plan_op *op = &block->block->ops[block->at];
    if (op->kind == PLAN_PIPELINE && ++block->inner < op->op_count)
        return;
    block->inner = 0;
    if (++block->iteration < iterations(p, block, op))
        return;
    block->iteration = 0;
    block->ended = ++block->at == block->block->op_count;
}

bool play_block_step(play *p, agent *block)
{
    const rank_state *rank = &p->ranks[block->rank];
    if (!rank->running || block->ended)
        return false;
    const plan_op *op = &block->block->ops[block->at];
    step s = {block, block->block, op, -1, (uint32_t)rank->run + 1};
    if (op->kind == PLAN_PIPELINE) {
        s.op = &op->ops[block->inner];
        s.unit = (int64_t)block->iteration;
    }
    bool puts_first = s.op->kind == PLAN_PUT_WITH_SIGNAL_AND_FLUSH && !block->half_done;
    if (puts_first)
        port_put(p, &s);
    else if (!do_op(p, &s))
        return false;
    block->half_done = puts_first;
    if (puts_first)
        return true;
    block->knows.order[block->index]++;
    block->knows.seen[block->index]++;
    advance(p, block);
    return true;
}
