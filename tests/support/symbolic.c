#include "support/symbolic.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "plan/op.h"
#include "support/random.h"

/* ---- who does things, and what they know of each other ---- */

/* How far each agent is known to have come. `order`: whatever it did up to there is over; `seen`:
 * what it wrote up to there is visible, too. */
typedef struct clocks {
    uint32_t *order, *seen;
} clocks;

/* Words of one agent to another, oldest first; a NULL clock is a credit that nobody gave. */
typedef struct post {
    ARRAY(clocks) words;
    size_t taken;
} post;

typedef struct port_task {
    const plan_op *op;
    const plan_thread_block *block;
    uint32_t operand; /* of a put; UINT32_MAX: a signal */
    int64_t unit;     /* in a loop; -1: all */
    uint32_t flag;
    clocks posted;
} port_task;

typedef enum agent_kind { AGENT_USER, AGENT_BLOCK, AGENT_PORT } agent_kind;

typedef struct agent {
    agent_kind kind;
    int rank;
    uint32_t index;
    clocks knows;
    /* AGENT_BLOCK */
    const plan_thread_block *block;
    uint32_t at, inner;
    uint64_t iteration;
    bool ended, half_done;
    /* AGENT_PORT */
    uint32_t channel;
    ARRAY(port_task) tasks;
    size_t tasks_done;
} agent;

/* What a unit of a chunk holds. */
typedef struct cell {
    bool valid;
    uint64_t sum, order;  /* of the symbols in it, and of how they were added */
    uint32_t packet_flag; /* 0: no packet */
    clocks packet_clocks;
    uint32_t writer, write_time;
    uint32_t *read_times; /* an agent */
} cell;

typedef struct rank_state {
    cell *buffers[PLAN_BUFFERS];
    post *channels[PLAN_CHANNEL_TYPES];
    post *semaphores;
    uint32_t user, first_block, first_port; /* agents */
    int run;
    bool running, lags;
} rank_state;

typedef struct play {
    const banyan_plan *plan;
    symbolic_options options;
    arena memory;
    random_state random;
    uint32_t agent_count;
    agent *agents;
    rank_state *ranks;
    uint64_t *run_units; /* of a chunk */
    uint64_t ring;       /* units of a scratch chunk, whatever the run */
    uint64_t *bits;      /* how rank 0's outputs of each run were added up */
    bool failed;
    char *problem;
    size_t problem_bytes;
} play;

__attribute__((format(printf, 2, 3))) static void fail(play *p, const char *format, ...)
{
    if (p->failed)
        return;
    p->failed = true;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(p->problem, p->problem_bytes, format, arguments);
    va_end(arguments);
}

static void *take(play *p, size_t count, size_t bytes)
{
    void *taken = arena_take(&p->memory, count * bytes + 1);
    if (!taken)
        abort();
    return memset(taken, 0, count * bytes + 1);
}

static const char *name_of(const play *p, uint32_t number, char room[64])
{
    const agent *a = &p->agents[number];
    static const char *const kinds[] = {"its user", "thread block", "port channel"};
    uint32_t of = a->kind == AGENT_BLOCK ? a->block->id : a->channel;
    if (a->kind == AGENT_USER)
        snprintf(room, 64, "rank %d, %s", a->rank, kinds[a->kind]);
    else
        snprintf(room, 64, "rank %d, %s %u", a->rank, kinds[a->kind], of);
    return room;
}

static clocks clocks_take(play *p)
{
    return (clocks){take(p, p->agent_count, sizeof(uint32_t)),
                    take(p, p->agent_count, sizeof(uint32_t))};
}

/* What the agent knows now, as it tells others; what it does next is later than that. */
static clocks tell(play *p, agent *by)
{
    clocks told = clocks_take(p);
    memcpy(told.order, by->knows.order, p->agent_count * sizeof(uint32_t));
    memcpy(told.seen, by->knows.seen, p->agent_count * sizeof(uint32_t));
    by->knows.order[by->index]++;
    by->knows.seen[by->index]++;
    return told;
}

static void hear(play *p, agent *by, clocks told, bool data_too)
{
    for (uint32_t i = 0; told.order && i < p->agent_count; i++) {
        if (told.order[i] > by->knows.order[i])
            by->knows.order[i] = told.order[i];
        if (data_too && told.seen[i] > by->knows.seen[i])
            by->knows.seen[i] = told.seen[i];
    }
}

static void post_add(post *to, clocks told)
{
    if (!array_push(&to->words, told))
        abort();
}

static bool post_ready(const post *from)
{
    return from->taken < from->words.count;
}

/* ---- cells ---- */

static uint64_t mix(uint64_t x)
{
    random_state state = random_from(x);
    return random_next(&state);
}

static uint64_t symbol(int rank, uint64_t chunk, uint64_t unit, int run)
{
    return mix(mix(mix(mix((uint64_t)rank) + chunk) + unit) + (uint64_t)run);
}

/* In an in-place plan some buffers are parts of others. */
static void resolve_alias(const banyan_plan *plan, int rank, plan_buffer *buffer, uint64_t *chunk)
{
    const uint64_t *chunks = plan->ranks[rank].chunks;
    if (!plan->in_place || *buffer == PLAN_SCRATCH)
        return;
    if (plan->collective == BANYAN_ALLGATHER) {
        *chunk += *buffer == PLAN_INPUT ? (uint64_t)rank * chunks[PLAN_INPUT] : 0;
        *buffer = PLAN_OUTPUT;
    } else {
        bool shorter = *buffer == PLAN_OUTPUT && plan->collective == BANYAN_REDUCESCATTER;
        *chunk += shorter ? (uint64_t)rank * chunks[PLAN_OUTPUT] : 0;
        *buffer = PLAN_INPUT;
    }
}

static cell *cell_at(play *p, int rank, int run, plan_buffer buffer, uint64_t chunk, uint64_t unit)
{
    resolve_alias(p->plan, rank, &buffer, &chunk);
    uint64_t in_buffer = chunk * p->run_units[run] + unit;
    if (buffer == PLAN_SCRATCH) {
        uint64_t half = p->plan->double_scratch ? (uint64_t)run % 2 : 0;
        chunk += half * p->plan->ranks[rank].chunks[PLAN_SCRATCH];
        in_buffer = chunk * p->ring + unit % p->ring;
    }
    return &p->ranks[rank].buffers[buffer][in_buffer];
}

static void cell_write(play *p, agent *by, cell *c, cell value)
{
    char me[64], other[64];
    if (c->write_time > by->knows.order[c->writer])
        fail(p, "%s overwrites what %s may be writing", name_of(p, by->index, me),
             name_of(p, c->writer, other));
    for (uint32_t i = 0; i < p->agent_count; i++)
        if (c->read_times[i] > by->knows.order[i])
            fail(p, "%s overwrites what %s may still be reading", name_of(p, by->index, me),
                 name_of(p, i, other));
    c->valid = value.valid;
    c->sum = value.sum;
    c->order = value.order;
    c->packet_flag = value.packet_flag;
    c->packet_clocks = value.packet_clocks;
    c->writer = by->index;
    c->write_time = by->knows.order[by->index];
}

static cell cell_read(play *p, agent *by, cell *c, bool packet)
{
    char me[64], other[64];
    if (!c->valid)
        fail(p, "%s reads what nobody has written", name_of(p, by->index, me));
    else if (packet != (c->packet_flag != 0))
        fail(p, "%s takes %s", name_of(p, by->index, me),
             packet ? "data for packets" : "packets for data");
    else if (packet)
        hear(p, by, c->packet_clocks, false);
    else if (c->write_time > by->knows.seen[c->writer])
        fail(p, "%s reads what %s wrote, which it may not have seen", name_of(p, by->index, me),
             name_of(p, c->writer, other));
    c->read_times[by->index] = by->knows.order[by->index];
    return *c;
}

/* ---- operations on data ---- */

/* One step of an agent's operation; `operand` for puts that a port does one by one. */
typedef struct step {
    agent *by;
    const plan_thread_block *block;
    const plan_op *op;
    int64_t unit;  /* in a loop; -1: all */
    uint32_t flag; /* of packets, and so the run */
} step;

static uint64_t unit_count(const play *p, const step *s)
{
    const plan_op *op = s->op;
    uint64_t size = op->source_count ? op->sources[0].size : op->destinations[0].size;
    return s->unit < 0 ? size * p->run_units[s->flag - 1] : 1;
}

/* The operand's cell for the i-th unit of the step; of a group the given member's. */
static cell *operand_cell(play *p, const step *s, const plan_operand *operand, int member,
                          uint64_t i)
{
    uint64_t x = s->unit < 0 ? i : (uint64_t)s->unit, units = p->run_units[s->flag - 1];
    plan_where where = plan_operand_where(p->plan, s->by->rank, s->block, s->op, operand);
    return cell_at(p, operand->place == PLAN_GROUP ? member : where.rank, (int)s->flag - 1,
                   where.buffer, operand->index + x / units, x % units);
}

static const plan_switch *group_of(const play *p, const step *s, const plan_operand *operand)
{
    const plan_rank *rank = &p->plan->ranks[s->by->rank];
    return &rank->switches[s->block->channels[PLAN_SWITCH][operand->reference]];
}

/* Packets that have not come yet keep an operation waiting; those of a later run never will. */
static bool packets_are_there(play *p, const step *s)
{
    char me[64];
    for (uint32_t o = 0; o < s->op->source_count; o++) {
        if (!plan_source_is_packets(s->op, o))
            continue;
        for (uint64_t i = 0; i < unit_count(p, s); i++) {
            const cell *c = operand_cell(p, s, &s->op->sources[o], -1, i);
            if (c->packet_flag > s->flag)
                fail(p, "%s finds packets of a later run", name_of(p, s->by->index, me));
            if (c->packet_flag != s->flag)
                return false;
        }
    }
    return true;
}

static cell add_up(cell sum, cell more)
{
    sum.sum += more.sum;
    sum.order = mix(mix(sum.order) + mix(more.order));
    return sum;
}

/* All sources, in their order; a group's members in theirs. */
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
        all.order = mix(all.order + 1); /* rounded here */
    return all;
}

static void write_one(play *p, const step *s, uint32_t o, uint64_t i, cell value)
{
    const plan_operand *operand = &s->op->destinations[o];
    const plan_switch *group = operand->place == PLAN_GROUP ? group_of(p, s, operand) : NULL;
    bool packet = plan_destination_is_packets(s->op, o);
    value.packet_flag = packet ? s->flag : 0;
    value.packet_clocks = packet ? tell(p, s->by) : (clocks){0};
    for (int m = 0; m < (group ? group->rank_count : 1); m++)
        cell_write(p, s->by, operand_cell(p, s, operand, group ? group->ranks[m] : -1, i), value);
}

/* Source i to destination i. */
static void move_pair(play *p, const step *s, uint32_t o)
{
    for (uint64_t i = 0; i < unit_count(p, s); i++) {
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
        cell value = read_all(p, s, i);
        for (uint32_t o = 0; o < s->op->destination_count; o++)
            write_one(p, s, o, i, value);
    }
}

/* ---- signals ---- */

static post *post_of(play *p, int rank, plan_channel_type type, uint32_t channel)
{
    return &p->ranks[rank].channels[type][channel];
}

static void signal_peer(play *p, int rank, plan_channel_type type, uint32_t channel, clocks told)
{
    int peer;
    uint32_t peer_channel;
    if (!plan_channel_pair(p->plan, rank, type, channel, &peer, &peer_channel))
        fail(p, "rank %d signals a channel that has no other end", rank);
    else
        post_add(post_of(p, peer, type, peer_channel), told);
}

static void signal_all(play *p, const step *s)
{
    clocks told = tell(p, s->by);
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
        hear(p, s->by, from->words.data[from->taken++], op->kind == PLAN_WAIT);
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
        hear(p, s->by, from->words.data[from->taken++], true);
    }
    return true;
}

static void release_all(play *p, const step *s)
{
    clocks told = tell(p, s->by);
    for (uint32_t i = 0; i < s->op->semaphore_count; i++)
        post_add(&p->ranks[s->by->rank].semaphores[s->op->semaphores[i]], told);
}

/* ---- ports ---- */

static agent *port_of(play *p, const step *s, uint32_t number)
{
    return &p->agents[p->ranks[s->by->rank].first_port +
                      s->block->channels[PLAN_PORT][s->op->channels[number]]];
}

static void port_post(play *p, const step *s, uint32_t number, uint32_t operand)
{
    port_task task = {s->op, s->block, operand, s->unit, s->flag, tell(p, s->by)};
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
        hear(p, s->by, tell(p, port_of(p, s, i)), true);
    return true;
}

/* A port's next task; false when it has none. */
static bool port_step(play *p, agent *port)
{
    if (port->tasks_done == port->tasks.count)
        return false;
    port_task task = port->tasks.data[port->tasks_done++];
    step s = {port, task.block, task.op, task.unit, task.flag};
    hear(p, port, task.posted, true);
    if (task.operand == UINT32_MAX)
        signal_peer(p, port->rank, PLAN_PORT, port->channel, tell(p, port));
    else
        move_pair(p, &s, task.operand);
    port->knows.order[port->index]++;
    port->knows.seen[port->index]++;
    return true;
}

/* ---- thread blocks ---- */

/* False: it has to wait. */
static bool do_op(play *p, const step *s)
{
    bool by_port = s->op->channel_type == PLAN_PORT;
    if (s->op->group_size)
        fail(p, "rank %d: groups of thread blocks are not played", s->by->rank);
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
            fail(p, "rank %d: barriers between thread blocks are not played", s->by->rank);
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

/* Steps over what ended: loops, and the list. */
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

static bool block_step(play *p, agent *block)
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

/* ---- runs ---- */

/* All units of a rank's input, or output. */
#define EACH_UNIT(p, rank, buffer, chunk, unit)                                                    \
    for (uint64_t chunk = 0; chunk < (p)->plan->ranks[rank].chunks[buffer]; chunk++)               \
        for (uint64_t unit = 0; unit < (p)->run_units[(p)->ranks[rank].run]; unit++)

static void poison(play *p, agent *user, plan_buffer buffer)
{
    int rank = user->rank, run = p->ranks[rank].run;
    EACH_UNIT(p, rank, buffer, chunk, unit)
    cell_write(p, user, cell_at(p, rank, run, buffer, chunk, unit), (cell){0});
}

static void begin_run(play *p, agent *user)
{
    rank_state *rank = &p->ranks[user->rank];
    bool speaks = p->plan->collective != BANYAN_BROADCAST || user->rank == p->plan->root;
    poison(p, user, PLAN_OUTPUT);
    EACH_UNIT(p, user->rank, PLAN_INPUT, chunk, unit)
    {
        uint64_t one = symbol(user->rank, chunk, unit, rank->run);
        cell_write(p, user, cell_at(p, user->rank, rank->run, PLAN_INPUT, chunk, unit),
                   (cell){.valid = speaks, .sum = one, .order = one});
    }
    clocks told = tell(p, user);
    for (uint32_t b = 0; b < p->plan->ranks[user->rank].block_count; b++) {
        agent *block = &p->agents[rank->first_block + b];
        hear(p, block, told, true);
        block->at = 0;
        block->ended = block->block->op_count == 0;
    }
    rank->running = true;
}

static void check_unit(play *p, agent *user, uint64_t chunk, uint64_t unit, plan_contribution *room)
{
    int rank = user->rank, run = p->ranks[rank].run;
    plan_expected expected;
    banyan_reduce_op op;
    if (!plan_expected_of(p->plan, rank, chunk, room, &expected, &op))
        return;
    uint64_t sum = 0;
    for (size_t i = 0; i < expected.count; i++)
        sum += symbol(expected.contributions[i].rank, expected.contributions[i].chunk, unit, run);
    cell got = cell_read(p, user, cell_at(p, rank, run, PLAN_OUTPUT, chunk, unit), false);
    if (got.sum != sum)
        fail(p, "rank %d, run %d: output chunk %llu, unit %llu is wrong", rank, run,
             (unsigned long long)chunk, (unsigned long long)unit);
    if (!p->options.same_bits)
        return;
    uint64_t outputs = p->plan->ranks[0].chunks[PLAN_OUTPUT], units = (uint64_t)p->options.units;
    uint64_t *bits = &p->bits[((uint64_t)run * outputs + chunk) * units + unit];
    if (*bits && *bits != got.order)
        fail(p, "rank %d, run %d: output chunk %llu is added up in another order than elsewhere",
             rank, run, (unsigned long long)chunk);
    *bits = got.order;
}

static void end_run(play *p, agent *user, plan_contribution *room)
{
    rank_state *rank = &p->ranks[user->rank];
    for (uint32_t b = 0; b < p->plan->ranks[user->rank].block_count; b++)
        hear(p, user, tell(p, &p->agents[rank->first_block + b]), true);
    EACH_UNIT(p, user->rank, PLAN_OUTPUT, chunk, unit)
    check_unit(p, user, chunk, unit, room);
    poison(p, user, PLAN_INPUT);
    poison(p, user, PLAN_OUTPUT);
    rank->running = false;
    rank->run++;
}

static bool user_step(play *p, agent *user, plan_contribution *room)
{
    rank_state *rank = &p->ranks[user->rank];
    if (rank->run == p->options.runs)
        return false;
    if (!rank->running) {
        begin_run(p, user);
        return true;
    }
    for (uint32_t b = 0; b < p->plan->ranks[user->rank].block_count; b++)
        if (!p->agents[rank->first_block + b].ended)
            return false;
    end_run(p, user, room);
    return true;
}

/* ---- the schedule ---- */

static bool agent_step(play *p, agent *a, plan_contribution *room)
{
    switch (a->kind) {
    case AGENT_USER:
        return user_step(p, a, room);
    case AGENT_BLOCK:
        return block_step(p, a);
    case AGENT_PORT:
        return port_step(p, a);
    }
    return false;
}

/* Someone who can, of those who lag or of those who do not. */
static bool anyone_step(play *p, bool lagging, plan_contribution *room)
{
    uint32_t first = (uint32_t)random_between(&p->random, 0, p->agent_count - 1);
    for (uint32_t i = 0; i < p->agent_count; i++) {
        agent *a = &p->agents[(first + i) % p->agent_count];
        if (p->ranks[a->rank].lags == lagging && agent_step(p, a, room))
            return true;
    }
    return false;
}

static void choose_laggards(play *p)
{
    for (int rank = 0; rank < p->plan->rank_count; rank++)
        p->ranks[rank].lags = random_between(&p->random, 0, 2) == 0;
}

static void explain_standstill(play *p)
{
    char me[64];
    for (uint32_t i = 0; i < p->agent_count; i++) {
        const agent *a = &p->agents[i];
        if (a->kind != AGENT_BLOCK || a->ended || !p->ranks[a->rank].running)
            continue;
        const plan_op *op = &a->block->ops[a->at];
        if (op->kind == PLAN_PIPELINE)
            op = &op->ops[a->inner];
        fail(p, "nobody can go on: %s waits in %s, operation %u, run %d", name_of(p, i, me),
             plan_op_name(op->kind), a->at, p->ranks[a->rank].run);
    }
}

static void check_ends(play *p)
{
    for (int r = 0; r < p->plan->rank_count; r++) {
        if (p->ranks[r].run < p->options.runs)
            explain_standstill(p);
        for (int type = 0; type < PLAN_CHANNEL_TYPES; type++)
            for (uint32_t c = 0; c < p->plan->ranks[r].channel_count[type]; c++)
                if (post_ready(&p->ranks[r].channels[type][c]))
                    fail(p, "rank %d: nobody waited for a signal on channel %u", r, c);
    }
}

static void play_all(play *p)
{
    plan_contribution *room = take(p, (size_t)p->plan->rank_count, sizeof *room);
    int64_t until_change = 0;
    while (!p->failed) {
        if (until_change-- == 0) {
            choose_laggards(p);
            until_change = random_between(&p->random, 1, 200);
        }
        if (!anyone_step(p, false, room) && !anyone_step(p, true, room))
            break;
    }
    if (!p->failed)
        check_ends(p);
}

/* ---- making and freeing ---- */

static uint64_t units_in_ring(const banyan_plan *plan, uint64_t units)
{
    if (!plan->reuse_resources)
        return units;
    uint64_t halves = plan->double_scratch ? 2 : 1;
    for (int r = 0; r < plan->rank_count; r++)
        for (uint32_t b = 0; b < plan->ranks[r].block_count; b++)
            for (uint32_t o = 0; o < plan->ranks[r].blocks[b].op_count; o++) {
                const plan_op *op = &plan->ranks[r].blocks[b].ops[o];
                if (op->kind == PLAN_PIPELINE)
                    return plan->reused_scratch_bytes /
                           (halves * plan->ranks[r].chunks[PLAN_SCRATCH] * op->unit_bytes);
            }
    return units;
}

/* Now and then the longest. */
static void choose_sizes(play *p)
{
    p->run_units = take(p, (size_t)p->options.runs, sizeof *p->run_units);
    for (int run = 0; run < p->options.runs; run++) {
        int64_t chosen = random_between(&p->random, 1, 2 * p->options.units);
        p->run_units[run] = (uint64_t)(chosen < p->options.units ? chosen : p->options.units);
    }
}

static void count_agents(play *p)
{
    p->ranks = take(p, (size_t)p->plan->rank_count, sizeof *p->ranks);
    for (int r = 0; r < p->plan->rank_count; r++) {
        rank_state *state = &p->ranks[r];
        state->user = p->agent_count;
        state->first_block = state->user + 1;
        state->first_port = state->first_block + p->plan->ranks[r].block_count;
        p->agent_count = state->first_port + p->plan->ranks[r].channel_count[PLAN_PORT];
    }
}

static void make_agents(play *p)
{
    p->agents = take(p, p->agent_count, sizeof *p->agents);
    for (int r = 0; r < p->plan->rank_count; r++) {
        const rank_state *state = &p->ranks[r];
        uint32_t end = state->first_port + p->plan->ranks[r].channel_count[PLAN_PORT];
        for (uint32_t i = state->user; i < end; i++) {
            agent *a = &p->agents[i];
            a->kind = i == state->user        ? AGENT_USER
                      : i < state->first_port ? AGENT_BLOCK
                                              : AGENT_PORT;
            a->rank = r;
            a->index = i;
            a->knows = clocks_take(p);
            a->knows.order[i] = a->knows.seen[i] = 1;
            if (a->kind == AGENT_BLOCK)
                a->block = &p->plan->ranks[r].blocks[i - state->first_block];
            else if (a->kind == AGENT_PORT)
                a->channel = i - state->first_port;
        }
    }
}

static void make_cells(play *p, int r)
{
    const plan_rank *of = &p->plan->ranks[r];
    for (int buffer = 0; buffer < PLAN_BUFFERS; buffer++) {
        uint64_t cells = of->chunks[buffer] *
                         (buffer == PLAN_SCRATCH ? 2 * p->ring : (uint64_t)p->options.units);
        p->ranks[r].buffers[buffer] = take(p, cells, sizeof(cell));
        uint32_t *times = take(p, cells * p->agent_count, sizeof *times);
        for (uint64_t i = 0; i < cells; i++)
            p->ranks[r].buffers[buffer][i].read_times = times + i * p->agent_count;
    }
}

static void make_posts(play *p, int r)
{
    const plan_rank *of = &p->plan->ranks[r];
    for (int type = 0; type < PLAN_CHANNEL_TYPES; type++)
        p->ranks[r].channels[type] = take(p, of->channel_count[type], sizeof(post));
    p->ranks[r].semaphores = take(p, of->semaphore_count, sizeof(post));
    for (uint32_t i = 0; i < of->semaphore_count; i++)
        for (uint64_t credit = 0; credit < of->semaphores[i]; credit++)
            post_add(&p->ranks[r].semaphores[i], (clocks){0});
}

static void free_all(play *p)
{
    for (int r = 0; r < p->plan->rank_count; r++) {
        for (int type = 0; type < PLAN_CHANNEL_TYPES; type++)
            for (uint32_t c = 0; c < p->plan->ranks[r].channel_count[type]; c++)
                array_free(&p->ranks[r].channels[type][c].words);
        for (uint32_t i = 0; i < p->plan->ranks[r].semaphore_count; i++)
            array_free(&p->ranks[r].semaphores[i].words);
    }
    for (uint32_t i = 0; i < p->agent_count; i++)
        array_free(&p->agents[i].tasks);
    arena_free(&p->memory);
}

bool symbolic_play(const banyan_plan *plan, const symbolic_options *options, char *problem,
                   size_t problem_bytes)
{
    play p = {.plan = plan,
              .options = *options,
              .random = random_from(options->seed),
              .ring = units_in_ring(plan, (uint64_t)options->units),
              .problem = problem,
              .problem_bytes = problem_bytes};
    if (p.ring == 0)
        fail(&p, "scratch that is reused has no room for a unit");
    choose_sizes(&p);
    count_agents(&p);
    make_agents(&p);
    for (int r = 0; r < plan->rank_count; r++) {
        make_cells(&p, r);
        make_posts(&p, r);
    }
    p.bits = take(
        &p, (uint64_t)options->runs * plan->ranks[0].chunks[PLAN_OUTPUT] * (uint64_t)options->units,
        sizeof *p.bits);
    if (!p.failed)
        play_all(&p);
    free_all(&p);
    return !p.failed;
}
