/* Whole collectives compile to the plans that MSCCL++ makes of the same algorithms. */
#include "program/shared_plan.h"

enum { MOST = 8, BLOCKS = 8 };

/* Channels from each rank to the others, in ascending order of these; [rank][rank] stays NULL. */
typedef struct mesh {
    banyan_memory_channel *to[MOST][MOST];
} mesh;

static mesh mesh_create(banyan_program *program, int ranks)
{
    mesh made = {0};
    for (int rank = 0; rank < ranks; rank++) {
        for (int peer = 0; peer < ranks; peer++) {
            if (peer != rank)
                made.to[rank][peer] = banyan_memory_channel_create(program, peer, rank);
        }
    }
    return made;
}

typedef void (*channel_call)(banyan_memory_channel *channel, int thread_block, banyan_sync sync);

static void with_all(const mesh *channels, int rank, channel_call call, int thread_block)
{
    for (int peer = 0; peer < MOST; peer++) {
        if (channels->to[rank][peer])
            call(channels->to[rank][peer], thread_block, BANYAN_SYNC_BOTH);
    }
}

/* All ranks have come to this point, in this thread block. */
static void meet_all(const mesh *channels, int rank, int thread_block)
{
    with_all(channels, rank, (banyan_memory_signal_relaxed), thread_block);
    with_all(channels, rank, (banyan_memory_wait_relaxed), thread_block);
}

static void finish_all(const mesh *channels, int rank, int thread_block)
{
    with_all(channels, rank, (banyan_memory_signal), thread_block);
    with_all(channels, rank, (banyan_memory_wait), thread_block);
}

static void meet(banyan_memory_channel *channel, int thread_block)
{
    banyan_memory_signal_relaxed(channel, thread_block, BANYAN_SYNC_BOTH);
    banyan_memory_wait_relaxed(channel, thread_block, BANYAN_SYNC_BOTH);
}

static void finish(banyan_memory_channel *channel, int thread_block)
{
    banyan_memory_signal(channel, thread_block, BANYAN_SYNC_BEFORE);
    banyan_memory_wait(channel, thread_block, BANYAN_SYNC_AFTER);
}

static void take_scratch(banyan_program *program, int ranks, uint64_t chunks,
                         banyan_chunk scratch[MOST])
{
    for (int rank = 0; rank < ranks; rank++)
        scratch[rank] = banyan_scratch(program, rank, chunks);
}

#define SCRATCH(rank, start, stop) banyan_slice(program, scratch[rank], (start), (stop))

static banyan_switch_channel *switch_of_all(banyan_program *program, int ranks,
                                            banyan_buffer buffer)
{
    const int all[MOST] = {0, 1, 2, 3, 4, 5, 6, 7};
    return banyan_switch_channel_create(program, all, ranks, buffer);
}

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

static void choose_2_instances(banyan_program_options *options)
{
    options->instances = 2;
}

static void choose_8_instances(banyan_program_options *options)
{
    options->instances = 8;
}

static void choose_16_instances(banyan_program_options *options)
{
    options->instances = 16;
}

/* ---- all-gather, in place: a rank's block of the output is its input ---- */

static void write_allgather(banyan_program *program, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        uint64_t own = (uint64_t)rank;
        for (int peer = 0; peer < ranks; peer++) {
            if (peer == rank)
                continue;
            banyan_memory_channel *channel = banyan_memory_channel_create(program, peer, rank);
            meet(channel, 0);
            banyan_memory_put(channel, OUT(peer, own, own + 1), OUT(rank, own, own + 1),
                              BANYAN_TB(0));
            finish(channel, 0);
        }
    }
}

static void write_allgather_switch(banyan_program *program, int ranks)
{
    mesh channels = mesh_create(program, ranks);
    banyan_switch_channel *all = switch_of_all(program, ranks, BANYAN_OUTPUT);
    for (int rank = 0; rank < ranks; rank++) {
        uint64_t own = (uint64_t)rank;
        meet_all(&channels, rank, 0);
        banyan_switch_broadcast(all, rank, OUT(rank, own, own + 1), own, 1, 0);
        meet_all(&channels, rank, 0);
    }
}

/* The i-th peer after the rank by thread block i, and what comes from it by another one. */
static void write_allgather_packets(banyan_program *program, int ranks)
{
    banyan_chunk scratch[MOST];
    take_scratch(program, ranks, (uint64_t)ranks, scratch);
    for (int rank = 0; rank < ranks; rank++) {
        uint64_t own = (uint64_t)rank;
        for (int i = 0; i < ranks - 1; i++) {
            int peer = (rank + 1 + i) % ranks;
            uint64_t theirs = (uint64_t)peer;
            banyan_memory_put_packets(banyan_memory_channel_create(program, peer, rank),
                                      SCRATCH(peer, own, own + 1), OUT(rank, own, own + 1),
                                      BANYAN_TB(i));
            banyan_unpack_packets(program, rank, OUT(rank, theirs, theirs + 1),
                                  SCRATCH(rank, theirs, theirs + 1), BANYAN_TB(ranks - 1 + i));
        }
    }
}

/* The input becomes packets once, which then go to all peers as they are. */
static void write_allgather_read_put(banyan_program *program, int ranks)
{
    banyan_chunk scratch[MOST];
    uint64_t all = (uint64_t)ranks;
    take_scratch(program, ranks, 2 * all, scratch);
    for (int rank = 0; rank < ranks; rank++) {
        uint64_t own = (uint64_t)rank;
        banyan_chunk packets = SCRATCH(rank, all + own, all + own + 1);
        banyan_copy_packets(program, rank, packets, IN(rank, 0, 1), BANYAN_TB(0));
        for (int i = 1; i < ranks; i++) {
            int peer = (rank + i) % ranks;
            banyan_memory_read_put_packets(banyan_memory_channel_create(program, peer, rank),
                                           SCRATCH(peer, own, own + 1), packets, BANYAN_TB(0));
        }
        for (int i = 1; i < ranks; i++) {
            uint64_t theirs = (uint64_t)((rank + i) % ranks);
            banyan_unpack_packets(program, rank, OUT(rank, theirs, theirs + 1),
                                  SCRATCH(rank, theirs, theirs + 1), BANYAN_TB(0));
        }
    }
}

/* ---- all-reduce, in place ---- */

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
                    banyan_memory_reduce(channels[block].to[rank][peer], own,
                                         CHUNKS(IN(peer, at, at + 1)), 1, BANYAN_IN_SOURCE,
                                         BANYAN_SUM, BANYAN_TB(block));
            }
            for (int peer = 0; peer < ranks; peer++) {
                if (peer != rank)
                    banyan_memory_put(channels[block].to[rank][peer], IN(peer, at, at + 1), own,
                                      BANYAN_TB(block));
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
                banyan_memory_put_packets(channels.to[rank][peer], SCRATCH(peer, own, own + 1),
                                          IN(rank, theirs, theirs + 1), BANYAN_TB(0));
        }
        for (uint64_t peer = 0; peer < all; peer++) {
            if (peer != own)
                banyan_reduce_packets(program, rank, mine, CHUNKS(SCRATCH(rank, peer, peer + 1)), 1,
                                      BANYAN_IN_SOURCE, BANYAN_SUM, BANYAN_TB(0));
        }
        for (int peer = 0; peer < ranks; peer++) {
            if (peer != rank)
                banyan_memory_put_packets(channels.to[rank][peer],
                                          SCRATCH(peer, all + own, all + own + 1), mine,
                                          BANYAN_TB(0));
        }
        for (uint64_t peer = 0; peer < all; peer++) {
            if (peer != own)
                banyan_unpack_packets(program, rank, IN(rank, peer, peer + 1),
                                      SCRATCH(rank, all + peer, all + peer + 1), BANYAN_TB(0));
        }
    }
}

/* Where what `from` sends lies at `to`, among what the others send. */
static uint64_t slot(int from, int to)
{
    return (uint64_t)(from < to ? from : from - 1);
}

/* Two steps of packets by as many thread blocks as ranks: block b sends the whole share of the b-th
 * peer, reduces chunk b of its own share, and unpacks the share of rank b. Scratch: what the peers
 * send of the rank's share, then their sums. */
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
                banyan_memory_put_packets(channels.to[rank][peer], SCRATCH(peer, to, to + n),
                                          IN(rank, share, share + n), BANYAN_TB(block++));
        }
        for (uint64_t b = 0; b < n; b++) {
            banyan_chunk own = IN(rank, n * (uint64_t)rank + b, n * (uint64_t)rank + b + 1);
            banyan_chunk others[MOST];
            for (uint64_t i = 0; i < n - 1; i++)
                others[i] = SCRATCH(rank, n * i + b, n * i + b + 1);
            banyan_reduce_packets(program, rank, own, others, ranks - 1, BANYAN_IN_SOURCE,
                                  BANYAN_SUM, BANYAN_TB((int)b));
            for (int peer = 0; peer < ranks; peer++) {
                uint64_t to = sums + n * slot(rank, peer) + b;
                if (peer != rank)
                    banyan_memory_put_packets(channels.to[rank][peer], SCRATCH(peer, to, to + 1),
                                              own, BANYAN_TB((int)b));
            }
        }
        for (int peer = 0; peer < ranks; peer++) {
            uint64_t from = sums + n * slot(peer, rank), share = n * (uint64_t)peer;
            if (peer != rank)
                banyan_unpack_packets(program, rank, IN(rank, share, share + n),
                                      SCRATCH(rank, from, from + n), BANYAN_TB(peer));
        }
    }
}

static void write_allreduce_switch(banyan_program *program, int ranks)
{
    mesh channels = mesh_create(program, ranks);
    banyan_switch_channel *all = switch_of_all(program, ranks, BANYAN_INPUT);
    for (int rank = 0; rank < ranks; rank++) {
        uint64_t own = (uint64_t)rank;
        banyan_chunk sum = IN(rank, own, own + 1);
        meet_all(&channels, rank, 0);
        banyan_switch_reduce(all, rank, own, 1, sum, BANYAN_SUM, 0);
        banyan_switch_broadcast(all, rank, sum, own, 1, 0);
        meet_all(&channels, rank, 0);
    }
}

/* Three thread blocks in a pipeline: into scratch, reduce and broadcast there, and out of it. */
static void write_allreduce_loop(banyan_program *program, int ranks)
{
    banyan_chunk scratch[MOST];
    banyan_semaphore *filled[MOST], *reduced[MOST];
    take_scratch(program, ranks, (uint64_t)ranks, scratch);
    mesh first = mesh_create(program, ranks), second = mesh_create(program, ranks);
    banyan_switch_channel *all = switch_of_all(program, ranks, BANYAN_SCRATCH);
    for (int rank = 0; rank < ranks; rank++) {
        filled[rank] = banyan_semaphore_create(program, rank, 0);
        reduced[rank] = banyan_semaphore_create(program, rank, 0);
    }
    banyan_loop_begin(program, 1 << 20, 1);
    for (int rank = 0; rank < ranks; rank++) {
        uint64_t own = (uint64_t)rank, n = (uint64_t)ranks;
        banyan_memory_channel *to = first.to[rank][1 - rank], *after = second.to[rank][1 - rank];
        for (uint64_t i = 0; i < n; i++)
            banyan_copy(program, rank, SCRATCH(rank, i, i + 1), IN(rank, i, i + 1), BANYAN_TB(0));
        banyan_memory_signal(to, 0, BANYAN_SYNC_BEFORE);
        banyan_memory_wait(to, 0, BANYAN_SYNC_AFTER);
        banyan_semaphore_release(filled[rank], 0, BANYAN_SYNC_AFTER);

        banyan_semaphore_acquire(filled[rank], 1, BANYAN_SYNC_AFTER);
        banyan_chunk sum = SCRATCH(rank, own, own + 1);
        banyan_switch_reduce(all, rank, own, 1, sum, BANYAN_SUM, 1);
        banyan_switch_broadcast(all, rank, sum, own, 1, 1);
        banyan_memory_signal(after, 1, BANYAN_SYNC_BEFORE);
        banyan_semaphore_release(reduced[rank], 1, BANYAN_SYNC_BOTH);

        banyan_semaphore_acquire(reduced[rank], 2, BANYAN_SYNC_BOTH);
        banyan_memory_wait(after, 2, BANYAN_SYNC_AFTER);
        for (uint64_t i = 0; i < n; i++)
            banyan_copy(program, rank, OUT(rank, i, i + 1), SCRATCH(rank, i, i + 1), BANYAN_TB(2));
    }
    banyan_loop_end(program);
}

/* ---- all-to-all, in place: through the peers' scratch ---- */

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
            banyan_memory_channel *channel = channels.to[rank][peer];
            uint64_t to = slot(rank, peer), from = slot(peer, rank), share = (uint64_t)peer;
            meet(channel, block);
            banyan_memory_put(channel, SCRATCH(peer, to, to + 1), IN(rank, share, share + 1),
                              BANYAN_TB(block));
            finish(channel, block);
            banyan_copy(program, rank, IN(rank, share, share + 1), SCRATCH(rank, from, from + 1),
                        BANYAN_TB(block));
            block++;
        }
    }
}

/* One thread block sends to a peer while another unloads what comes from it, on a channel for data
 * and one for being ready. */
typedef struct exchange {
    banyan_memory_channel *data[MOST][MOST], *ready[MOST][MOST];
    banyan_semaphore *sent[MOST][MOST];
} exchange;

static exchange exchange_create(banyan_program *program, int ranks, int semaphores)
{
    exchange made = {0};
    for (int rank = 0; rank < ranks; rank++) {
        for (int peer = 0; peer < ranks; peer++) {
            if (peer == rank)
                continue;
            made.data[rank][peer] = banyan_memory_channel_create(program, peer, rank);
            made.ready[rank][peer] = banyan_memory_channel_create(program, peer, rank);
        }
        for (int i = 0; i < semaphores; i++)
            made.sent[rank][i] = banyan_semaphore_create(program, rank, 0);
    }
    return made;
}

static void meet_in_pairs(const exchange *with, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        for (int peer = 0; peer < ranks; peer++) {
            if (peer != rank)
                meet(with->ready[rank][peer], (int)slot(peer, rank));
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
            banyan_memory_channel *data = with->data[rank][peer];
            banyan_memory_put(data, SCRATCH(peer, to, to + 1), IN(rank, share, share + 1),
                              BANYAN_TB(sender));
            banyan_memory_signal(data, sender, BANYAN_SYNC_BEFORE);
            banyan_semaphore_release(with->sent[rank][from], sender, BANYAN_SYNC_BOTH);
            banyan_semaphore_acquire(with->sent[rank][from], receiver, BANYAN_SYNC_BOTH);
            banyan_memory_wait(data, receiver, BANYAN_SYNC_BOTH);
            banyan_copy(program, rank, IN(rank, share, share + 1), SCRATCH(rank, from, from + 1),
                        BANYAN_TB(receiver));
        }
    }
}

static void write_alltoall_loop(banyan_program *program, int ranks)
{
    banyan_chunk scratch[MOST];
    take_scratch(program, ranks, (uint64_t)ranks - 1, scratch);
    exchange with = exchange_create(program, ranks, ranks);
    meet_in_pairs(&with, ranks);
    banyan_loop_begin(program, 1 << 19, 1);
    exchange_blocks(program, &with, ranks, scratch);
    banyan_loop_end(program);
}

static void write_alltoall_ring(banyan_program *program, int ranks)
{
    banyan_chunk scratch[MOST];
    take_scratch(program, ranks, (uint64_t)ranks - 1, scratch);
    exchange with = exchange_create(program, ranks, ranks - 1);
    meet_in_pairs(&with, ranks);
    exchange_blocks(program, &with, ranks, scratch);
}

/* ---- two nodes ---- */

/* Channels to the ranks of the same node, and to the one in the same place on the other. */
typedef struct two_nodes {
    banyan_memory_channel *local[MOST][MOST];
    banyan_port_channel *cross[MOST];
    int per_node;
} two_nodes;

static two_nodes two_nodes_create(banyan_program *program, int ranks)
{
    two_nodes made = {.per_node = ranks / 2};
    for (int rank = 0; rank < ranks; rank++) {
        int node = rank / made.per_node;
        for (int i = 0; i < made.per_node; i++) {
            int peer = node * made.per_node + i;
            if (peer != rank)
                made.local[rank][i] = banyan_memory_channel_create(program, peer, rank);
        }
        made.cross[rank] = banyan_port_channel_create(program, (rank + ranks / 2) % ranks, rank);
    }
    return made;
}

static void with_local(const two_nodes *nodes, int rank, channel_call call)
{
    for (int i = 0; i < nodes->per_node; i++) {
        if (nodes->local[rank][i])
            call(nodes->local[rank][i], 0, BANYAN_SYNC_BOTH);
    }
}

static void put_to_node(banyan_program *program, const two_nodes *nodes, int rank, uint64_t chunk)
{
    int first = rank / nodes->per_node * nodes->per_node;
    for (int i = 0; i < nodes->per_node; i++) {
        if (nodes->local[rank][i])
            banyan_memory_put(nodes->local[rank][i], OUT(first + i, chunk, chunk + 1),
                              OUT(rank, chunk, chunk + 1), BANYAN_TB(0));
    }
}

static void write_allgather_nodes(banyan_program *program, int ranks)
{
    two_nodes nodes = two_nodes_create(program, ranks);
    for (int rank = 0; rank < ranks; rank++) {
        int other = (rank + ranks / 2) % ranks;
        uint64_t own = (uint64_t)rank;
        with_local(&nodes, rank, (banyan_memory_signal_relaxed));
        with_local(&nodes, rank, (banyan_memory_wait_relaxed));
        put_to_node(program, &nodes, rank, own);
        banyan_port_signal(nodes.cross[rank], 0, BANYAN_SYNC_BOTH);
        banyan_port_wait(nodes.cross[rank], 0, BANYAN_SYNC_BOTH);
        banyan_port_put_with_signal_and_flush(nodes.cross[rank], OUT(other, own, own + 1),
                                              OUT(rank, own, own + 1), 0);
        banyan_port_wait(nodes.cross[rank], 0, BANYAN_SYNC_AFTER);
        put_to_node(program, &nodes, rank, (uint64_t)other);
        with_local(&nodes, rank, (banyan_memory_signal));
        with_local(&nodes, rank, (banyan_memory_wait));
    }
}

/* Packets of both shares of each local peer, its own and that of its peer on the other node; the
 * latter's sum goes there, and is added to what came inside of that node. */
static void write_reducescatter_nodes(banyan_program *program, int ranks)
{
    banyan_chunk scratch[MOST];
    take_scratch(program, ranks, (uint64_t)ranks, scratch);
    two_nodes nodes = two_nodes_create(program, ranks);
    int half = ranks / 2;
    uint64_t n = (uint64_t)half;
    for (int rank = 0; rank < ranks; rank++) {
        int first = rank / half * half, other = (rank + half) % ranks;
        uint64_t place = (uint64_t)(rank - first);
        for (int i = 0; i < half; i++) {
            int peer = first + i;
            uint64_t theirs = (uint64_t)peer, across = (uint64_t)((peer + half) % ranks);
            uint64_t to = n + slot(rank - first, i);
            if (peer == rank)
                continue;
            banyan_memory_put_packets(nodes.local[rank][i], SCRATCH(peer, place, place + 1),
                                      IN(rank, theirs, theirs + 1), BANYAN_TB(0));
            banyan_memory_put_packets(nodes.local[rank][i], SCRATCH(peer, to, to + 1),
                                      IN(rank, across, across + 1), BANYAN_TB(0));
        }
        banyan_chunk others[MOST], sum = IN(rank, (uint64_t)other, (uint64_t)other + 1);
        for (uint64_t i = 0; i < n - 1; i++)
            others[i] = SCRATCH(rank, n + i, n + i + 1);
        banyan_chunk packets = SCRATCH(rank, place, place + 1);
        banyan_reduce_packets(program, rank, sum, others, half - 1, BANYAN_IN_SOURCE, BANYAN_SUM,
                              BANYAN_TB(0));
        banyan_copy_packets(program, rank, packets, sum, BANYAN_TB(0));
        banyan_port_read_put_packets(nodes.cross[rank], SCRATCH(other, 2 * n - 1, 2 * n), packets,
                                     BANYAN_TB(0));
        int count = 0;
        others[count++] = SCRATCH(rank, 2 * n - 1, 2 * n);
        for (uint64_t i = 0; i < n; i++) {
            if (i != place)
                others[count++] = SCRATCH(rank, i, i + 1);
        }
        banyan_reduce_packets(program, rank, IN(rank, (uint64_t)rank, (uint64_t)rank + 1), others,
                              count, BANYAN_IN_SOURCE, BANYAN_SUM, BANYAN_TB(0));
    }
}

/* One thread block for the other node, four that share what goes to the local peer, four that copy
 * out; they meet before the second half. */
static void write_allgather_groups(banyan_program *program, int ranks)
{
    enum { SHARES = 4 };
    const int all[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    banyan_chunk scratch[MOST];
    take_scratch(program, ranks, (uint64_t)ranks, scratch);
    banyan_by senders = BANYAN_TB_GROUP(banyan_group_create(program, all + 1, SHARES));
    banyan_by copiers = BANYAN_TB_GROUP(banyan_group_create(program, all + 1 + SHARES, SHARES));
    for (int rank = 0; rank < ranks; rank++) {
        int peer = rank ^ 1, other = rank ^ 2;
        uint64_t own = (uint64_t)rank, near = (uint64_t)peer, far = (uint64_t)other;
        uint64_t last = (uint64_t)(peer ^ 2);
        banyan_memory_channel *local[SHARES];
        for (int i = 0; i < SHARES; i++)
            local[i] = banyan_memory_channel_create(program, peer, rank);
        banyan_port_channel *cross = banyan_port_channel_create(program, other, rank);
        banyan_port_signal(cross, 0, BANYAN_SYNC_NONE);
        banyan_port_wait(cross, 0, BANYAN_SYNC_AFTER);
        banyan_port_put_with_signal_and_flush(cross, SCRATCH(other, own, own + 1), IN(rank, 0, 1),
                                              0);
        banyan_port_wait(cross, 0, BANYAN_SYNC_BOTH);

        for (int i = 0; i < SHARES; i++) {
            banyan_memory_signal_relaxed(local[i], 1 + i, BANYAN_SYNC_NONE);
            banyan_memory_wait_relaxed(local[i], 1 + i, BANYAN_SYNC_AFTER);
        }
        banyan_memory_put(local[0], SCRATCH(peer, own, own + 1), IN(rank, 0, 1), senders);
        for (int i = 0; i < SHARES; i++)
            finish(local[i], 1 + i);
        banyan_copy(program, rank, OUT(rank, near, near + 1), SCRATCH(rank, near, near + 1),
                    senders);
        banyan_copy(program, rank, OUT(rank, own, own + 1), IN(rank, 0, 1), copiers);

        banyan_barrier(program, rank, all, 1 + 2 * SHARES);
        banyan_memory_put(local[0], SCRATCH(peer, far, far + 1), SCRATCH(rank, far, far + 1),
                          senders);
        for (int i = 0; i < SHARES; i++)
            finish(local[i], 1 + i);
        banyan_copy(program, rank, OUT(rank, last, last + 1), SCRATCH(rank, last, last + 1),
                    senders);
        banyan_copy(program, rank, OUT(rank, far, far + 1), SCRATCH(rank, far, far + 1), copiers);
    }
}

#define IN_PLACE(of, factor)                                                                       \
    {                                                                                              \
        .kind = (of), .chunk_factor = (factor), .in_place = true                                   \
    }

static shared_case cases[] = {
    {"single_node_allgather_2", "prog", 2, IN_PLACE(BANYAN_ALLGATHER, 1), NULL, write_allgather},
    {"single_node_allgather_nvls_zero_copy_2", "prog", 2, IN_PLACE(BANYAN_ALLGATHER, 1), NULL,
     write_allgather_switch},
    {"single_node_allgather_nvls_zero_copy_4", "prog", 4, IN_PLACE(BANYAN_ALLGATHER, 1), NULL,
     write_allgather_switch},
    {"single_node_allgather_pkt_2", "prog", 2, IN_PLACE(BANYAN_ALLGATHER, 1), choose_ll_double,
     write_allgather_packets},
    {"single_node_allgather_pkt_4", "prog", 4, IN_PLACE(BANYAN_ALLGATHER, 1), choose_ll_double,
     write_allgather_packets},
    {"single_node_allgather_pkt_rppkt_2", "prog", 2, IN_PLACE(BANYAN_ALLGATHER, 1),
     choose_ll_double, write_allgather_read_put},
    {"single_node_allgather_pkt_rppkt_8", "prog", 8, IN_PLACE(BANYAN_ALLGATHER, 1),
     choose_ll_double, write_allgather_read_put},
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
    {"multi_node_allgather_8", "prog", 8, IN_PLACE(BANYAN_ALLGATHER, 1), NULL,
     write_allgather_nodes},
    {"multi_node_allgather_tbg_4",
     "prog",
     4,
     {.kind = BANYAN_ALLGATHER},
     NULL,
     write_allgather_groups},
    {"multi_node_reducescatter_pkt_8", "prog", 8, IN_PLACE(BANYAN_REDUCESCATTER, 1),
     choose_ll_double, write_reducescatter_nodes},
};

int main(void)
{
    return run_shared_cases("shared collectives", cases, sizeof cases / sizeof cases[0]);
}
