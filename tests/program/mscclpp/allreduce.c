/* All-reduces of MSCCL++. */
#include "program/mscclpp/mesh.h"

static void choose_ll_double(banyan_program_options *options)
{
    options->protocol = BANYAN_LL;
    options->double_scratch = true;
}

static void choose_ll_by_hand(banyan_program_options *options)
{
    choose_ll_double(options);
    options->auto_sync = false;
}

static void choose_reuse(banyan_program_options *options)
{
    options->reuse_resources = true;
}

static void choose_8_instances(banyan_program_options *options)
{
    options->instances = 8;
}

/* Each thread block of a rank reduces one chunk of the rank's share of the message. */
static void write_allreduce(banyan_program *program, int ranks)
{
    mesh channels[BLOCKS];
    for (int block = 0; block < BLOCKS; block++)
        channels[block] = mesh_create(program, ranks);
    for (int rank = 0; rank < ranks; rank++) {
        for (int block = 0; block < BLOCKS; block++) {
            uint64_t at = (uint64_t)(rank * BLOCKS + block);
            banyan_chunk own = IN(rank, at, at + 1);
            meet_all(&channels[block], rank, block);
            for (int peer = 0; peer < ranks; peer++) {
                if (peer != rank)
                    banyan_program_memory_reduce(channels[block].to[rank][peer], own,
                                                 CHUNKS(IN(peer, at, at + 1)), 1, BANYAN_IN_SOURCE,
                                                 BANYAN_SUM, BANYAN_TB(block));
            }
            for (int peer = 0; peer < ranks; peer++) {
                if (peer != rank)
                    banyan_program_memory_put(channels[block].to[rank][peer], IN(peer, at, at + 1),
                                              own, BANYAN_TB(block));
            }
            finish_all(&channels[block], rank, block);
        }
    }
}

/* Two steps of packets by one thread block: the others' parts, then the sums. */
static void write_allreduce_naive(banyan_program *program, int ranks)
{
    banyan_chunk scratch[MOST];
    uint64_t all = (uint64_t)ranks;
    take_scratch(program, ranks, 2 * all, scratch);
    mesh channels = mesh_create(program, ranks);
    for (int rank = 0; rank < ranks; rank++) {
        uint64_t own = (uint64_t)rank;
        banyan_chunk mine = IN(rank, own, own + 1);
        for (int peer = 0; peer < ranks; peer++) {
            uint64_t theirs = (uint64_t)peer;
            if (peer != rank)
                banyan_program_memory_put_packets(channels.to[rank][peer],
                                                  SCRATCH(peer, own, own + 1),
                                                  IN(rank, theirs, theirs + 1), BANYAN_TB(0));
        }
        for (uint64_t peer = 0; peer < all; peer++) {
            if (peer != own)
                banyan_program_reduce_packets(program, rank, mine,
                                              CHUNKS(SCRATCH(rank, peer, peer + 1)), 1,
                                              BANYAN_IN_SOURCE, BANYAN_SUM, BANYAN_TB(0));
        }
        for (int peer = 0; peer < ranks; peer++) {
            if (peer != rank)
                banyan_program_memory_put_packets(channels.to[rank][peer],
                                                  SCRATCH(peer, all + own, all + own + 1), mine,
                                                  BANYAN_TB(0));
        }
        for (uint64_t peer = 0; peer < all; peer++) {
            if (peer != own)
                banyan_program_unpack_packets(program, rank, IN(rank, peer, peer + 1),
                                              SCRATCH(rank, all + peer, all + peer + 1),
                                              BANYAN_TB(0));
        }
    }
}

/* Two steps of packets by as many thread blocks as ranks: block b sends the whole share of the
 * b-th peer, reduces chunk b of its own share, and unpacks the share of rank b. Scratch: the
 * peers' data for the rank's share, then their sums. */
static void write_allreduce_packets(banyan_program *program, int ranks)
{
    banyan_chunk scratch[MOST];
    uint64_t n = (uint64_t)ranks, sums = n * (n - 1);
    take_scratch(program, ranks, 2 * sums, scratch);
    mesh channels = mesh_create(program, ranks);
    for (int rank = 0; rank < ranks; rank++) {
        int block = 0;
        for (int peer = 0; peer < ranks; peer++) {
            uint64_t to = n * slot(rank, peer), share = n * (uint64_t)peer;
            if (peer != rank)
                banyan_program_memory_put_packets(channels.to[rank][peer],
                                                  SCRATCH(peer, to, to + n),
                                                  IN(rank, share, share + n), BANYAN_TB(block++));
        }
        for (uint64_t b = 0; b < n; b++) {
            banyan_chunk own = IN(rank, n * (uint64_t)rank + b, n * (uint64_t)rank + b + 1);
            banyan_chunk others[MOST];
            for (uint64_t i = 0; i < n - 1; i++)
                others[i] = SCRATCH(rank, n * i + b, n * i + b + 1);
            banyan_program_reduce_packets(program, rank, own, others, ranks - 1, BANYAN_IN_SOURCE,
                                          BANYAN_SUM, BANYAN_TB((int)b));
            for (int peer = 0; peer < ranks; peer++) {
                uint64_t to = sums + n * slot(rank, peer) + b;
                if (peer != rank)
                    banyan_program_memory_put_packets(
                        channels.to[rank][peer], SCRATCH(peer, to, to + 1), own, BANYAN_TB((int)b));
            }
        }
        for (int peer = 0; peer < ranks; peer++) {
            uint64_t from = sums + n * slot(peer, rank), share = n * (uint64_t)peer;
            if (peer != rank)
                banyan_program_unpack_packets(program, rank, IN(rank, share, share + n),
                                              SCRATCH(rank, from, from + n), BANYAN_TB(peer));
        }
    }
}

static void write_allreduce_switch(banyan_program *program, int ranks)
{
    mesh channels = mesh_create(program, ranks);
    banyan_program_switch_channel *all = switch_of_all(program, ranks, BANYAN_INPUT);
    for (int rank = 0; rank < ranks; rank++) {
        uint64_t own = (uint64_t)rank;
        banyan_chunk sum = IN(rank, own, own + 1);
        meet_all(&channels, rank, 0);
        banyan_program_switch_reduce(all, rank, own, 1, sum, BANYAN_SUM, 0);
        banyan_program_switch_broadcast(all, rank, sum, own, 1, 0);
        meet_all(&channels, rank, 0);
    }
}

/* Three thread blocks in a pipeline: into scratch, reduce and broadcast there, and out of it. */
static void write_allreduce_loop(banyan_program *program, int ranks)
{
    banyan_chunk scratch[MOST];
    banyan_program_semaphore *filled[MOST], *reduced[MOST];
    take_scratch(program, ranks, (uint64_t)ranks, scratch);
    mesh first = mesh_create(program, ranks), second = mesh_create(program, ranks);
    banyan_program_switch_channel *all = switch_of_all(program, ranks, BANYAN_SCRATCH);
    for (int rank = 0; rank < ranks; rank++) {
        filled[rank] = banyan_program_semaphore_create(program, rank, 0);
        reduced[rank] = banyan_program_semaphore_create(program, rank, 0);
    }
    banyan_program_loop_begin(program, 1 << 20, 1);
    for (int rank = 0; rank < ranks; rank++) {
        uint64_t own = (uint64_t)rank, n = (uint64_t)ranks;
        banyan_program_memory_channel *to = first.to[rank][1 - rank],
                                      *after = second.to[rank][1 - rank];
        for (uint64_t i = 0; i < n; i++)
            banyan_program_copy(program, rank, SCRATCH(rank, i, i + 1), IN(rank, i, i + 1),
                                BANYAN_TB(0));
        banyan_program_memory_signal(to, 0, BANYAN_SYNC_BEFORE);
        banyan_program_memory_wait(to, 0, BANYAN_SYNC_AFTER);
        banyan_program_semaphore_release(filled[rank], 0, BANYAN_SYNC_AFTER);

        banyan_program_semaphore_acquire(filled[rank], 1, BANYAN_SYNC_AFTER);
        banyan_chunk sum = SCRATCH(rank, own, own + 1);
        banyan_program_switch_reduce(all, rank, own, 1, sum, BANYAN_SUM, 1);
        banyan_program_switch_broadcast(all, rank, sum, own, 1, 1);
        banyan_program_memory_signal(after, 1, BANYAN_SYNC_BEFORE);
        banyan_program_semaphore_release(reduced[rank], 1, BANYAN_SYNC_BOTH);

        banyan_program_semaphore_acquire(reduced[rank], 2, BANYAN_SYNC_BOTH);
        banyan_program_memory_wait(after, 2, BANYAN_SYNC_AFTER);
        for (uint64_t i = 0; i < n; i++)
            banyan_program_copy(program, rank, OUT(rank, i, i + 1), SCRATCH(rank, i, i + 1),
                                BANYAN_TB(2));
    }
    banyan_program_loop_end(program);
}

static const mscclpp_program programs[] = {
    {"single_node_allreduce_2", "prog", 2, IN_PLACE(BANYAN_ALLREDUCE, BLOCKS), NULL,
     write_allreduce},
    {"single_node_allreduce_4", "prog", 4, IN_PLACE(BANYAN_ALLREDUCE, BLOCKS), NULL,
     write_allreduce},
    {"single_node_allreduce_naivy_2", "prog", 2, IN_PLACE(BANYAN_ALLREDUCE, 1), choose_ll,
     write_allreduce_naive},
    {"single_node_allreduce_naivy_8", "prog", 8, IN_PLACE(BANYAN_ALLREDUCE, 1), choose_ll,
     write_allreduce_naive},
    {"single_node_allreduce_nvls_zero_copy_2", "prog", 2, IN_PLACE(BANYAN_ALLREDUCE, 1),
     choose_8_instances, write_allreduce_switch},
    {"single_node_allreduce_nvls_zero_copy_8", "prog", 8, IN_PLACE(BANYAN_ALLREDUCE, 1),
     choose_8_instances, write_allreduce_switch},
    {"single_node_allreduce_pipeline_2", "prog", 2, IN_PLACE(BANYAN_ALLREDUCE, 1), choose_reuse,
     write_allreduce_loop},
    {"single_node_allreduce_pkt_2", "prog", 2, IN_PLACE(BANYAN_ALLREDUCE, 2), choose_ll_by_hand,
     write_allreduce_packets},
    {"single_node_allreduce_pkt_4", "prog", 4, IN_PLACE(BANYAN_ALLREDUCE, 4), choose_ll_by_hand,
     write_allreduce_packets},
};

const mscclpp_programs mscclpp_allreduce = {programs, sizeof programs / sizeof *programs};
