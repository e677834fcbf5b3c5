/* Port channels: a queue to a proxy that moves the bytes. */
#include "program/channel.h"

banyan_program_port_channel *banyan_program_port_channel_create(banyan_program *program,
                                                                int destination, int source)
{
    program_channel ends;
    if (!channel_make(program, PLAN_PORT, destination, source, &ends))
        return NULL;
    banyan_program_port_channel *channel = program_take(program, 1, sizeof *channel);
    if (channel)
        channel->ends = ends;
    return channel;
}

static const program_channel *program_port_ends_of(const banyan_program_port_channel *channel)
{
    return channel ? &channel->ends : NULL;
}

void banyan_program_port_signal(banyan_program_port_channel *channel, int thread_block,
                                banyan_sync sync)
{
    channel_add_sync(program_port_ends_of(channel), "signal", PLAN_SIGNAL, thread_block, sync);
}

void banyan_program_port_wait(banyan_program_port_channel *channel, int thread_block,
                              banyan_sync sync)
{
    channel_add_sync(program_port_ends_of(channel), "wait", PLAN_WAIT, thread_block, sync);
}

void banyan_program_port_flush(banyan_program_port_channel *channel, int thread_block,
                               banyan_sync sync)
{
    channel_add_sync(program_port_ends_of(channel), "flush", PLAN_FLUSH, thread_block, sync);
}

void banyan_program_port_put(banyan_program_port_channel *channel, banyan_chunk remote,
                             banyan_chunk local, int thread_block)
{
    channel_add_put(program_port_ends_of(channel), "put", PLAN_PUT, remote, local,
                    BANYAN_TB(thread_block));
}

void banyan_program_port_put_with_signal(banyan_program_port_channel *channel, banyan_chunk remote,
                                         banyan_chunk local, int thread_block)
{
    channel_add_put(program_port_ends_of(channel), "put with signal", PLAN_PUT_WITH_SIGNAL, remote,
                    local, BANYAN_TB(thread_block));
}

void banyan_program_port_put_with_signal_and_flush(banyan_program_port_channel *channel,
                                                   banyan_chunk remote, banyan_chunk local,
                                                   int thread_block)
{
    channel_add_put(program_port_ends_of(channel), "put with signal and flush",
                    PLAN_PUT_WITH_SIGNAL_AND_FLUSH, remote, local, BANYAN_TB(thread_block));
}

void banyan_program_port_put_packets(banyan_program_port_channel *channel, banyan_chunk remote,
                                     banyan_chunk local, int thread_block)
{
    channel_add_put(program_port_ends_of(channel), "put packets", PLAN_PUT_PACKET, remote, local,
                    BANYAN_TB(thread_block));
}

void banyan_program_port_read_put_packets(banyan_program_port_channel *channel, banyan_chunk remote,
                                          banyan_chunk local, banyan_program_by by)
{
    channel_add_put(program_port_ends_of(channel), "read-and-put packets", PLAN_READ_PUT_PACKET,
                    remote, local, by);
}
