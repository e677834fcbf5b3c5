/* Memory channels: loads and stores of peers' buffers. */
#include "program/channel.h"

banyan_program_memory_channel *banyan_program_memory_channel_create(banyan_program *program,
                                                                    int destination, int source)
{
    program_channel ends;
    if (!channel_make(program, PLAN_MEMORY, destination, source, &ends))
        return NULL;
    banyan_program_memory_channel *channel = program_take(program, 1, sizeof *channel);
    if (channel)
        channel->ends = ends;
    return channel;
}

static const program_channel *program_memory_ends_of(const banyan_program_memory_channel *channel)
{
    return channel ? &channel->ends : NULL;
}

void banyan_program_memory_signal(banyan_program_memory_channel *channel, int thread_block,
                                  banyan_sync sync)
{
    channel_add_sync(program_memory_ends_of(channel), "signal", PLAN_SIGNAL, thread_block, sync);
}

void banyan_program_memory_wait(banyan_program_memory_channel *channel, int thread_block,
                                banyan_sync sync)
{
    channel_add_sync(program_memory_ends_of(channel), "wait", PLAN_WAIT, thread_block, sync);
}

void banyan_program_memory_signal_relaxed(banyan_program_memory_channel *channel, int thread_block,
                                          banyan_sync sync)
{
    channel_add_sync(program_memory_ends_of(channel), "relaxed signal", PLAN_RELAXED_SIGNAL,
                     thread_block, sync);
}

void banyan_program_memory_wait_relaxed(banyan_program_memory_channel *channel, int thread_block,
                                        banyan_sync sync)
{
    channel_add_sync(program_memory_ends_of(channel), "relaxed wait", PLAN_RELAXED_WAIT,
                     thread_block, sync);
}

void banyan_program_memory_get(banyan_program_memory_channel *channel, banyan_chunk local,
                               banyan_chunk remote, banyan_program_by by)
{
    channel_add_get(program_memory_ends_of(channel), local, remote, by);
}

void banyan_program_memory_put(banyan_program_memory_channel *channel, banyan_chunk remote,
                               banyan_chunk local, banyan_program_by by)
{
    channel_add_put(program_memory_ends_of(channel), "put", PLAN_PUT, remote, local, by);
}

void banyan_program_memory_put_packets(banyan_program_memory_channel *channel, banyan_chunk remote,
                                       banyan_chunk local, banyan_program_by by)
{
    channel_add_put(program_memory_ends_of(channel), "put packets", PLAN_PUT_PACKET, remote, local,
                    by);
}

void banyan_program_memory_read_put_packets(banyan_program_memory_channel *channel,
                                            banyan_chunk remote, banyan_chunk local,
                                            banyan_program_by by)
{
    channel_add_put(program_memory_ends_of(channel), "read-and-put packets", PLAN_READ_PUT_PACKET,
                    remote, local, by);
}

void banyan_program_memory_reduce(banyan_program_memory_channel *channel, banyan_chunk local,
                                  const banyan_chunk *remote, int count, banyan_chunk destination,
                                  banyan_reduce_op op, banyan_program_by by)
{
    channel_add_reduce(program_memory_ends_of(channel), local, remote, count, destination, op, by);
}
