#include "support/symbolic/symbolic_play.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void play_fail(play *p, const char *format, ...)
{
    if (p->failed)
        return;
    p->failed = true;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(p->problem, p->problem_bytes, format, arguments);
    va_end(arguments);
}

void *play_take(play *p, size_t count, size_t bytes)
{
    void *taken = arena_take(&p->memory, count * bytes + 1);
    if (!taken)
        abort();
    return memset(taken, 0, count * bytes + 1);
}

const char *play_name(const play *p, uint32_t number, char room[64])
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

clocks play_clocks(play *p)
{
    return (clocks){play_take(p, p->agent_count, sizeof(uint32_t)),
                    play_take(p, p->agent_count, sizeof(uint32_t))};
}

clocks play_tell(play *p, agent *by)
{
    clocks told = play_clocks(p);
    memcpy(told.order, by->knows.order, p->agent_count * sizeof(uint32_t));
    memcpy(told.seen, by->knows.seen, p->agent_count * sizeof(uint32_t));
    by->knows.order[by->index]++;
    by->knows.seen[by->index]++;
    return told;
}

void play_hear(play *p, agent *by, clocks told, bool data_too)
{
    for (uint32_t i = 0; told.order && i < p->agent_count; i++) {
        if (told.order[i] > by->knows.order[i])
            by->knows.order[i] = told.order[i];
        if (data_too && told.seen[i] > by->knows.seen[i])
            by->knows.seen[i] = told.seen[i];
    }
}

void post_add(post *to, clocks told)
{
    if (!array_push(&to->words, told))
        abort();
}

bool post_ready(const post *from)
{
    return from->taken < from->words.count;
}

uint64_t play_mix(uint64_t x)
{
    random_state state = random_from(x);
    return random_next(&state);
}

uint64_t play_symbol(int rank, uint64_t chunk, uint64_t unit, int run)
{
    return play_mix(play_mix(play_mix(play_mix((uint64_t)rank) + chunk) + unit) + (uint64_t)run);
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

uint64_t chunk_units(const play *p, int run, plan_buffer buffer, uint64_t chunk)
{
    uint64_t stride = p->run_units[run], start = chunk % p->block_chunks * stride;
    if (buffer == PLAN_SCRATCH || start + stride <= p->run_message[run])
        return stride;
    return start < p->run_message[run] ? p->run_message[run] - start : 0;
}

cell *cell_at(play *p, int rank, int run, plan_buffer buffer, uint64_t chunk, uint64_t unit)
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

void cell_write(play *p, agent *by, cell *c, cell value)
{
    char me[64], other[64];
    if (c->write_time > by->knows.order[c->writer])
        play_fail(p, "%s overwrites what %s may be writing", play_name(p, by->index, me),
                  play_name(p, c->writer, other));
    for (uint32_t i = 0; i < p->agent_count; i++)
        if (c->read_times[i] > by->knows.order[i])
            play_fail(p, "%s overwrites what %s may still be reading", play_name(p, by->index, me),
                      play_name(p, i, other));
    c->valid = value.valid;
    c->sum = value.sum;
    c->order = value.order;
    c->packet_flag = value.packet_flag;
    c->packet_clocks = value.packet_clocks;
    c->writer = by->index;
    c->write_time = by->knows.order[by->index];
}

cell cell_read(play *p, agent *by, cell *c, bool packet)
{
    char me[64], other[64];
    if (!c->valid && by->kind == AGENT_USER)
        play_fail(p, "%s reads what nobody has written", play_name(p, by->index, me));
    else if (c->valid && packet != (c->packet_flag != 0))
        play_fail(p, "%s takes %s", play_name(p, by->index, me),
                  packet ? "data for packets" : "packets for data");
    else if (packet)
        play_hear(p, by, c->packet_clocks, false);
    else if (c->write_time > by->knows.seen[c->writer])
        play_fail(p, "%s reads what %s wrote, which it may not have seen",
                  play_name(p, by->index, me), play_name(p, c->writer, other));
    c->read_times[by->index] = by->knows.order[by->index];
    return *c;
}
