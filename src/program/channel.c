/* Memory channels: loads and stores of peers' buffers. Port channels: a queue to a proxy that moves
 * the bytes. */
#include "program/builder.h"

/* Check the ends and add the channel to the source's list. NULL, and the program has failed,
 * otherwise. */
static void *channel_make(banyan_program *program, plan_channel_type type, int destination,
                          int source)
{
    program_call call = {.operation = type == PLAN_MEMORY ? "memory channel" : "port channel",
                         .rank = -1};
    if (!program_call_begin(program, call) ||
        !program_has_rank(program, destination, "destination rank") ||
        !program_has_rank(program, source, "source rank"))
        return NULL;
    if (source == destination) {
        program_fail(program, "it leads from rank %d to itself", source);
        return NULL;
    }
    program_rank *of = &program->ranks[source];
    program_channel *made = program_take(program, 1, sizeof *made);
    if (made)
        *made =
            (program_channel){program, type, source, destination, (uint32_t)of->peers[type].count};
    if (made && !array_push(&of->peers[type], destination)) {
        program_fail_memory(program);
        return NULL;
    }
    return made;
}

static bool channel_begin(const program_channel *channel, const char *operation)
{
    program_call call = {.operation = operation, .channel = channel, .rank = -1};
    return program_call_begin(channel ? channel->program : NULL, call);
}

/* Return the channel's number in the block, as a list of one. */
static uint32_t *use_channel(const program_channel *channel, program_block *block)
{
    uint32_t number;
    if (!program_use_channel(channel->program, block, channel->type, channel->number, &number))
        return NULL;
    return program_number(channel->program, number);
}

/* Add a signal, wait or flush. `channel` NULL: do nothing. */
static void channel_add_sync(const program_channel *channel, const char *operation,
                             plan_op_kind kind, int thread_block, banyan_sync sync)
{
    if (!channel_begin(channel, operation))
        return;
    program_block *block = program_block_of(channel->program, channel->source, thread_block);
    uint32_t *number = block ? use_channel(channel, block) : NULL;
    if (number)
        program_add(channel->program, block,
                    (plan_op){.kind = kind,
                              .channel_type = channel->type,
                              .sync = program_sync_bits(sync),
                              .channels = number,
                              .channel_count = 1});
}

static bool valid_put(const program_channel *channel, plan_op_kind kind, banyan_chunk remote,
                      banyan_chunk local)
{
    banyan_program *program = channel->program;
    bool packets = kind == PLAN_PUT_PACKET || kind == PLAN_READ_PUT_PACKET;
    return program_has_chunk(program, local, channel->source, "source") &&
           program_has_chunk(program, remote, channel->destination, "destination") &&
           program_same_size(program, local, "source", remote, "destination") &&
           (!packets || program_in_scratch(program, remote, "destination")) &&
           (kind != PLAN_READ_PUT_PACKET || program_in_scratch(program, local, "source"));
}

/* Add the operation of a thread block that moves `local` to `remote`, or back. */
static void channel_add_move(const program_channel *channel, plan_op_kind kind, banyan_chunk remote,
                             banyan_chunk local, program_share share)
{
    banyan_program *program = channel->program;
    program_block *block = program_block_of(program, channel->source, share.thread_block);
    plan_operand far;
    if (!block || !program_use_remote(program, channel->source, block, channel->type, remote, &far))
        return;
    uint32_t *number = use_channel(channel, block);
    plan_operand *there = program_operand(program, far);
    plan_operand *here = program_operand(program, program_local(local));
    if (!number || !there || !here)
        return;
    bool named = channel->type == PLAN_PORT || kind == PLAN_GET;
    program_add(program, block,
                (plan_op){.kind = kind,
                          .channel_type = channel->type,
                          .sources = kind == PLAN_GET ? there : here,
                          .source_count = 1,
                          .destinations = kind == PLAN_GET ? here : there,
                          .destination_count = 1,
                          .channels = named ? number : NULL,
                          .channel_count = named ? 1 : 0,
                          .group_index = share.index,
                          .group_size = share.size});
}

static void add_moves(const program_channel *channel, plan_op_kind kind, banyan_chunk remote,
                      banyan_chunk local, banyan_program_by by)
{
    int count = program_by_count(channel->program, by);
    for (int i = 0; i < count; i++)
        channel_add_move(channel, kind, remote, local, program_by_share(by, i));
}

/* Add a put: `local` at the source to `remote` at the destination. */
static void channel_add_put(const program_channel *channel, const char *operation,
                            plan_op_kind kind, banyan_chunk remote, banyan_chunk local,
                            banyan_program_by by)
{
    if (channel_begin(channel, operation) && valid_put(channel, kind, remote, local))
        add_moves(channel, kind, remote, local, by);
}

static void channel_add_get(const program_channel *channel, banyan_chunk local, banyan_chunk remote,
                            banyan_program_by by)
{
    if (channel_begin(channel, "get") &&
        program_has_chunk(channel->program, local, channel->source, "destination") &&
        program_has_chunk(channel->program, remote, channel->destination, "source") &&
        program_same_size(channel->program, remote, "source", local, "destination"))
        add_moves(channel, PLAN_GET, remote, local, by);
}

static bool valid_reduce(const program_channel *channel, banyan_chunk local,
                         const banyan_chunk *remote, int count, banyan_chunk destination)
{
    banyan_program *program = channel->program;
    if (!program_has_chunk(program, local, channel->source, "local source") ||
        !program_has_chunk(program, destination, channel->source, "destination") ||
        !program_same_size(program, local, "local source", destination, "destination"))
        return false;
    if (count < 1) {
        program_fail(program, "there is nothing to reduce the source with: %d remote chunks",
                     count);
        return false;
    }
    for (int i = 0; i < count; i++) {
        if (!program_has_chunk(program, remote[i], channel->destination, "remote source") ||
            !program_same_size(program, local, "local source", remote[i], "remote source"))
            return false;
    }
    return true;
}

static void channel_add_reduction(const program_channel *channel, const banyan_chunk *remote,
                                  int count, plan_op op, program_share share, banyan_chunk local)
{
    banyan_program *program = channel->program;
    program_block *block = program_block_of(program, channel->source, share.thread_block);
    op.sources = program_take(program, (size_t)count + 1, sizeof *op.sources);
    if (!block || !op.sources)
        return;
    op.sources[0] = program_local(local);
    for (int i = 0; i < count; i++) {
        if (!program_use_remote(program, channel->source, block, channel->type, remote[i],
                                &op.sources[i + 1]))
            return;
    }
    if (!use_channel(channel, block))
        return;
    op.source_count = (uint32_t)count + 1;
    op.group_index = share.index;
    op.group_size = share.size;
    program_add(program, block, op);
}

static void channel_add_reduce(const program_channel *channel, banyan_chunk local,
                               const banyan_chunk *remote, int count, banyan_chunk destination,
                               banyan_reduce_op reduce_op, banyan_program_by by)
{
    if (destination.rank < 0)
        destination = local;
    if (!channel_begin(channel, "reduce") ||
        !valid_reduce(channel, local, remote, count, destination) ||
        !program_has_reduce_op(channel->program, reduce_op))
        return;
    plan_op op = {.kind = PLAN_READ_REDUCE,
                  .channel_type = channel->type,
                  .reduce_op = reduce_op,
                  .destinations = program_operand(channel->program, program_local(destination)),
                  .destination_count = 1};
    int blocks = op.destinations ? program_by_count(channel->program, by) : 0;
    for (int i = 0; i < blocks; i++)
        channel_add_reduction(channel, remote, count, op, program_by_share(by, i), local);
}

#define CHANNEL_OF(handle) ((const program_channel *)(handle))

banyan_program_memory_channel *banyan_program_memory_channel_create(banyan_program *program,
                                                                    int destination, int source)
{
    return channel_make(program, PLAN_MEMORY, destination, source);
}

void banyan_program_memory_signal(banyan_program_memory_channel *channel, int thread_block,
                                  banyan_sync sync)
{
    channel_add_sync(CHANNEL_OF(channel), "signal", PLAN_SIGNAL, thread_block, sync);
}

void banyan_program_memory_wait(banyan_program_memory_channel *channel, int thread_block,
                                banyan_sync sync)
{
    channel_add_sync(CHANNEL_OF(channel), "wait", PLAN_WAIT, thread_block, sync);
}

void banyan_program_memory_signal_relaxed(banyan_program_memory_channel *channel, int thread_block,
                                          banyan_sync sync)
{
    channel_add_sync(CHANNEL_OF(channel), "relaxed signal", PLAN_RELAXED_SIGNAL, thread_block,
                     sync);
}

void banyan_program_memory_wait_relaxed(banyan_program_memory_channel *channel, int thread_block,
                                        banyan_sync sync)
{
    channel_add_sync(CHANNEL_OF(channel), "relaxed wait", PLAN_RELAXED_WAIT, thread_block, sync);
}

void banyan_program_memory_get(banyan_program_memory_channel *channel, banyan_chunk local,
                               banyan_chunk remote, banyan_program_by by)
{
    channel_add_get(CHANNEL_OF(channel), local, remote, by);
}

void banyan_program_memory_put(banyan_program_memory_channel *channel, banyan_chunk remote,
                               banyan_chunk local, banyan_program_by by)
{
    channel_add_put(CHANNEL_OF(channel), "put", PLAN_PUT, remote, local, by);
}

void banyan_program_memory_put_packets(banyan_program_memory_channel *channel, banyan_chunk remote,
                                       banyan_chunk local, banyan_program_by by)
{
    channel_add_put(CHANNEL_OF(channel), "put packets", PLAN_PUT_PACKET, remote, local, by);
}

void banyan_program_memory_read_put_packets(banyan_program_memory_channel *channel,
                                            banyan_chunk remote, banyan_chunk local,
                                            banyan_program_by by)
{
    channel_add_put(CHANNEL_OF(channel), "read-and-put packets", PLAN_READ_PUT_PACKET, remote,
                    local, by);
}

void banyan_program_memory_reduce(banyan_program_memory_channel *channel, banyan_chunk local,
                                  const banyan_chunk *remote, int count, banyan_chunk destination,
                                  banyan_reduce_op op, banyan_program_by by)
{
    channel_add_reduce(CHANNEL_OF(channel), local, remote, count, destination, op, by);
}

banyan_program_port_channel *banyan_program_port_channel_create(banyan_program *program,
                                                                int destination, int source)
{
    return channel_make(program, PLAN_PORT, destination, source);
}

void banyan_program_port_signal(banyan_program_port_channel *channel, int thread_block,
                                banyan_sync sync)
{
    channel_add_sync(CHANNEL_OF(channel), "signal", PLAN_SIGNAL, thread_block, sync);
}

void banyan_program_port_wait(banyan_program_port_channel *channel, int thread_block,
                              banyan_sync sync)
{
    channel_add_sync(CHANNEL_OF(channel), "wait", PLAN_WAIT, thread_block, sync);
}

void banyan_program_port_flush(banyan_program_port_channel *channel, int thread_block,
                               banyan_sync sync)
{
    channel_add_sync(CHANNEL_OF(channel), "flush", PLAN_FLUSH, thread_block, sync);
}

void banyan_program_port_put(banyan_program_port_channel *channel, banyan_chunk remote,
                             banyan_chunk local, int thread_block)
{
    channel_add_put(CHANNEL_OF(channel), "put", PLAN_PUT, remote, local, BANYAN_TB(thread_block));
}

void banyan_program_port_put_with_signal(banyan_program_port_channel *channel, banyan_chunk remote,
                                         banyan_chunk local, int thread_block)
{
    channel_add_put(CHANNEL_OF(channel), "put with signal", PLAN_PUT_WITH_SIGNAL, remote, local,
                    BANYAN_TB(thread_block));
}

void banyan_program_port_put_with_signal_and_flush(banyan_program_port_channel *channel,
                                                   banyan_chunk remote, banyan_chunk local,
                                                   int thread_block)
{
    channel_add_put(CHANNEL_OF(channel), "put with signal and flush",
                    PLAN_PUT_WITH_SIGNAL_AND_FLUSH, remote, local, BANYAN_TB(thread_block));
}

void banyan_program_port_put_packets(banyan_program_port_channel *channel, banyan_chunk remote,
                                     banyan_chunk local, int thread_block)
{
    channel_add_put(CHANNEL_OF(channel), "put packets", PLAN_PUT_PACKET, remote, local,
                    BANYAN_TB(thread_block));
}

void banyan_program_port_read_put_packets(banyan_program_port_channel *channel, banyan_chunk remote,
                                          banyan_chunk local, banyan_program_by by)
{
    channel_add_put(CHANNEL_OF(channel), "read-and-put packets", PLAN_READ_PUT_PACKET, remote,
                    local, by);
}
