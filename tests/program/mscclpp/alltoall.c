/* All-to-alls of MSCCL++. */
#include "program/mscclpp/mesh.h"

static void choose_2_instances(banyan_program_options *options)
{
    options->instances = 2;
}

static void choose_16_instances(banyan_program_options *options)
{
    options->instances = 16;
}

static void write_alltoall(banyan_program *program, int ranks)
{
    banyan_chunk scratch[MOST];
    take_scratch(program, ranks, (uint64_t)ranks - 1, scratch);
    mesh channels = mesh_create(program, ranks);
    for (int rank = 0; rank < ranks; rank++) {
        int block = 0;
        for (int peer = 0; peer < ranks; peer++) {
            if (peer == rank)
                continue;
            banyan_program_memory_channel *channel = channels.to[rank][peer];
            uint64_t to = slot(rank, peer), from = slot(peer, rank), share = (uint64_t)peer;
            signal_and_wait(channel, block);
            banyan_program_memory_put(channel, SCRATCH(peer, to, to + 1),
                                      IN(rank, share, share + 1), BANYAN_TB(block));
            finish(channel, block);
            banyan_program_copy(program, rank, IN(rank, share, share + 1),
                                SCRATCH(rank, from, from + 1), BANYAN_TB(block));
            block++;
        }
    }
}

/* One thread block sends to a peer while another copies out the peer's data, on one channel for
 * data and one for readiness. */
typedef struct exchange {
    banyan_program_memory_channel *data[MOST][MOST], *ready[MOST][MOST];
    banyan_program_semaphore *sent[MOST][MOST];
} exchange;

static exchange exchange_create(banyan_program *program, int ranks, int semaphores)
{
    exchange made = {0};
    for (int rank = 0; rank < ranks; rank++) {
        for (int peer = 0; peer < ranks; peer++) {
            if (peer == rank)
                continue;
            made.data[rank][peer] = banyan_program_memory_channel_create(program, peer, rank);
            made.ready[rank][peer] = banyan_program_memory_channel_create(program, peer, rank);
        }
        for (int i = 0; i < semaphores; i++)
            made.sent[rank][i] = banyan_program_semaphore_create(program, rank, 0);
    }
    return made;
}

static void meet_in_pairs(const exchange *with, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        for (int peer = 0; peer < ranks; peer++) {
            if (peer != rank)
                signal_and_wait(with->ready[rank][peer], (int)slot(peer, rank));
        }
    }
}

static void exchange_blocks(banyan_program *program, const exchange *with, int ranks,
                            const banyan_chunk scratch[MOST])
{
    for (int rank = 0; rank < ranks; rank++) {
        for (int peer = 0; peer < ranks; peer++) {
            if (peer == rank)
                continue;
            uint64_t to = slot(rank, peer), from = slot(peer, rank), share = (uint64_t)peer;
            int sender = (int)from, receiver = ranks - 1 + (int)from;
            banyan_program_memory_channel *data = with->data[rank][peer];
            banyan_program_memory_put(data, SCRATCH(peer, to, to + 1), IN(rank, share, share + 1),
                                      BANYAN_TB(sender));
            banyan_program_memory_signal(data, sender, BANYAN_SYNC_BEFORE);
            banyan_program_semaphore_release(with->sent[rank][from], sender, BANYAN_SYNC_BOTH);
            banyan_program_semaphore_acquire(with->sent[rank][from], receiver, BANYAN_SYNC_BOTH);
            banyan_program_memory_wait(data, receiver, BANYAN_SYNC_BOTH);
            banyan_program_copy(program, rank, IN(rank, share, share + 1),
                                SCRATCH(rank, from, from + 1), BANYAN_TB(receiver));
        }
    }
}

static void write_alltoall_loop(banyan_program *program, int ranks)
{
    banyan_chunk scratch[MOST];
    take_scratch(program, ranks, (uint64_t)ranks - 1, scratch);
    exchange with = exchange_create(program, ranks, ranks);
    meet_in_pairs(&with, ranks);
    banyan_program_loop_begin(program, 1 << 19, 1);
    exchange_blocks(program, &with, ranks, scratch);
    banyan_program_loop_end(program);
}

static void write_alltoall_ring(banyan_program *program, int ranks)
{
    banyan_chunk scratch[MOST];
    take_scratch(program, ranks, (uint64_t)ranks - 1, scratch);
    exchange with = exchange_create(program, ranks, ranks - 1);
    meet_in_pairs(&with, ranks);
    exchange_blocks(program, &with, ranks, scratch);
}

static const mscclpp_program programs[] = {
    {"single_node_alltoall_2", "prog", 2, IN_PLACE(BANYAN_ALLTOALL, 1), choose_2_instances,
     write_alltoall},
    {"single_node_alltoall_4", "prog", 4, IN_PLACE(BANYAN_ALLTOALL, 1), choose_2_instances,
     write_alltoall},
    {"single_node_alltoall_pipeline_2", "prog", 2, IN_PLACE(BANYAN_ALLTOALL, 1), choose_2_instances,
     write_alltoall_loop},
    {"single_node_alltoall_pipeline_8", "prog", 8, IN_PLACE(BANYAN_ALLTOALL, 1), choose_2_instances,
     write_alltoall_loop},
    {"single_node_alltoall_ring_2", "prog", 2, IN_PLACE(BANYAN_ALLTOALL, 1), choose_16_instances,
     write_alltoall_ring},
    {"single_node_alltoall_ring_peers_2", "prog", 2, IN_PLACE(BANYAN_ALLTOALL, 1),
     choose_16_instances, write_alltoall_ring},
};

const mscclpp_programs mscclpp_alltoall = {programs, sizeof programs / sizeof *programs};
