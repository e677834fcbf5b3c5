/* Channels and barriers of whole collectives, as in the programs of MSCCL++. */
#ifndef TESTS_PROGRAM_MSCCLPP_MESH_H
#define TESTS_PROGRAM_MSCCLPP_MESH_H

#include "program/mscclpp/program.h"

enum { MOST = 8, BLOCKS = 8 };

/* Channels from each rank to the others, in ascending order; [rank][rank] stays NULL. */
typedef struct mesh {
    banyan_program_memory_channel *to[MOST][MOST];
} mesh;

static inline mesh mesh_create(banyan_program *program, int ranks)
{
    mesh made = {0};
    for (int rank = 0; rank < ranks; rank++) {
        for (int peer = 0; peer < ranks; peer++) {
            if (peer != rank)
                made.to[rank][peer] = banyan_program_memory_channel_create(program, peer, rank);
        }
    }
    return made;
}

typedef void (*channel_call)(banyan_program_memory_channel *channel, int thread_block,
                             banyan_sync sync);

static inline void with_all(const mesh *channels, int rank, channel_call call, int thread_block)
{
    for (int peer = 0; peer < MOST; peer++) {
        if (channels->to[rank][peer])
            call(channels->to[rank][peer], thread_block, BANYAN_SYNC_BOTH);
    }
}

/* Synchronize all ranks, in this thread block. */
static inline void meet_all(const mesh *channels, int rank, int thread_block)
{
    with_all(channels, rank, (banyan_program_memory_signal_relaxed), thread_block);
    with_all(channels, rank, (banyan_program_memory_wait_relaxed), thread_block);
}

static inline void finish_all(const mesh *channels, int rank, int thread_block)
{
    with_all(channels, rank, (banyan_program_memory_signal), thread_block);
    with_all(channels, rank, (banyan_program_memory_wait), thread_block);
}

static inline void signal_and_wait(banyan_program_memory_channel *channel, int thread_block)
{
    banyan_program_memory_signal_relaxed(channel, thread_block, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait_relaxed(channel, thread_block, BANYAN_SYNC_BOTH);
}

static inline void finish(banyan_program_memory_channel *channel, int thread_block)
{
    banyan_program_memory_signal(channel, thread_block, BANYAN_SYNC_BEFORE);
    banyan_program_memory_wait(channel, thread_block, BANYAN_SYNC_AFTER);
}

static inline void take_scratch(banyan_program *program, int ranks, uint64_t chunks,
                                banyan_chunk scratch[MOST])
{
    for (int rank = 0; rank < ranks; rank++)
        scratch[rank] = banyan_program_scratch(program, rank, chunks);
}

#define SCRATCH(rank, start, stop) banyan_program_slice(program, scratch[rank], (start), (stop))

static inline banyan_program_switch_channel *switch_of_all(banyan_program *program, int ranks,
                                                           banyan_buffer buffer)
{
    const int all[MOST] = {0, 1, 2, 3, 4, 5, 6, 7};
    return banyan_program_switch_channel_create(program, all, ranks, buffer);
}

/* Return the slot at `to` for data of `from`, among those of the other senders. */
static inline uint64_t slot(int from, int to)
{
    return (uint64_t)(from < to ? from : from - 1);
}

#define IN_PLACE(of, factor)                                                                       \
    {                                                                                              \
        .kind = (of), .chunk_factor = (factor), .in_place = true                                   \
    }

#endif
