/* All-gathers and reduce-scatters of MSCCL++, on one node and on two. */
#include "program/mscclpp/mesh.h"

static void choose_ll_double(banyan_program_options *options)
{
    options->protocol = BANYAN_LL;
    options->double_scratch = true;
}

static void write_allgather(banyan_program *program, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        uint64_t own = (uint64_t)rank;
        for (int peer = 0; peer < ranks; peer++) {
            if (peer == rank)
                continue;
            banyan_program_memory_channel *channel =
                banyan_program_memory_channel_create(program, peer, rank);
            signal_and_wait(channel, 0);
            banyan_program_memory_put(channel, OUT(peer, own, own + 1), OUT(rank, own, own + 1),
                                      BANYAN_TB(0));
            finish(channel, 0);
        }
    }
}

static void write_allgather_switch(banyan_program *program, int ranks)
{
    mesh channels = mesh_create(program, ranks);
    banyan_program_switch_channel *all = switch_of_all(program, ranks, BANYAN_OUTPUT);
    for (int rank = 0; rank < ranks; rank++) {
        uint64_t own = (uint64_t)rank;
        meet_all(&channels, rank, 0);
        banyan_program_switch_broadcast(all, rank, OUT(rank, own, own + 1), own, 1, 0);
        meet_all(&channels, rank, 0);
    }
}

/* Thread block i sends to the i-th peer after the rank; another one unpacks its data. */
static void write_allgather_packets(banyan_program *program, int ranks)
{
    banyan_chunk scratch[MOST];
    take_scratch(program, ranks, (uint64_t)ranks, scratch);
    for (int rank = 0; rank < ranks; rank++) {
        uint64_t own = (uint64_t)rank;
        for (int i = 0; i < ranks - 1; i++) {
            int peer = (rank + 1 + i) % ranks;
            uint64_t theirs = (uint64_t)peer;
            banyan_program_memory_put_packets(
                banyan_program_memory_channel_create(program, peer, rank),
                SCRATCH(peer, own, own + 1), OUT(rank, own, own + 1), BANYAN_TB(i));
            banyan_program_unpack_packets(program, rank, OUT(rank, theirs, theirs + 1),
                                          SCRATCH(rank, theirs, theirs + 1),
                                          BANYAN_TB(ranks - 1 + i));
        }
    }
}

/* The input becomes packets once; these go to all peers unchanged. */
static void write_allgather_read_put(banyan_program *program, int ranks)
{
    banyan_chunk scratch[MOST];
    uint64_t all = (uint64_t)ranks;
    take_scratch(program, ranks, 2 * all, scratch);
    for (int rank = 0; rank < ranks; rank++) {
        uint64_t own = (uint64_t)rank;
        banyan_chunk packets = SCRATCH(rank, all + own, all + own + 1);
        banyan_program_copy_packets(program, rank, packets, IN(rank, 0, 1), BANYAN_TB(0));
        for (int i = 1; i < ranks; i++) {
            int peer = (rank + i) % ranks;
            banyan_program_memory_read_put_packets(
                banyan_program_memory_channel_create(program, peer, rank),
                SCRATCH(peer, own, own + 1), packets, BANYAN_TB(0));
        }
        for (int i = 1; i < ranks; i++) {
            uint64_t theirs = (uint64_t)((rank + i) % ranks);
            banyan_program_unpack_packets(program, rank, OUT(rank, theirs, theirs + 1),
                                          SCRATCH(rank, theirs, theirs + 1), BANYAN_TB(0));
        }
    }
}

/* Channels to the ranks of the same node, and to the one with this local rank on the other node. */
typedef struct two_nodes {
    banyan_program_memory_channel *local[MOST][MOST];
    banyan_program_port_channel *cross[MOST];
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
                made.local[rank][i] = banyan_program_memory_channel_create(program, peer, rank);
        }
        made.cross[rank] =
            banyan_program_port_channel_create(program, (rank + ranks / 2) % ranks, rank);
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
            banyan_program_memory_put(nodes->local[rank][i], OUT(first + i, chunk, chunk + 1),
                                      OUT(rank, chunk, chunk + 1), BANYAN_TB(0));
    }
}

static void write_allgather_nodes(banyan_program *program, int ranks)
{
    two_nodes nodes = two_nodes_create(program, ranks);
    for (int rank = 0; rank < ranks; rank++) {
        int other = (rank + ranks / 2) % ranks;
        uint64_t own = (uint64_t)rank;
        with_local(&nodes, rank, (banyan_program_memory_signal_relaxed));
        with_local(&nodes, rank, (banyan_program_memory_wait_relaxed));
        put_to_node(program, &nodes, rank, own);
        banyan_program_port_signal(nodes.cross[rank], 0, BANYAN_SYNC_BOTH);
        banyan_program_port_wait(nodes.cross[rank], 0, BANYAN_SYNC_BOTH);
        banyan_program_port_put_with_signal_and_flush(nodes.cross[rank], OUT(other, own, own + 1),
                                                      OUT(rank, own, own + 1), 0);
        banyan_program_port_wait(nodes.cross[rank], 0, BANYAN_SYNC_AFTER);
        put_to_node(program, &nodes, rank, (uint64_t)other);
        with_local(&nodes, rank, (banyan_program_memory_signal));
        with_local(&nodes, rank, (banyan_program_memory_wait));
    }
}

/* Packets of both shares of each local peer, its own and that of its counterpart on the other
 * node. The latter's sum goes there, and is added to the sum inside that node. */
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
            banyan_program_memory_put_packets(nodes.local[rank][i], SCRATCH(peer, place, place + 1),
                                              IN(rank, theirs, theirs + 1), BANYAN_TB(0));
            banyan_program_memory_put_packets(nodes.local[rank][i], SCRATCH(peer, to, to + 1),
                                              IN(rank, across, across + 1), BANYAN_TB(0));
        }
        banyan_chunk others[MOST], sum = IN(rank, (uint64_t)other, (uint64_t)other + 1);
        for (uint64_t i = 0; i < n - 1; i++)
            others[i] = SCRATCH(rank, n + i, n + i + 1);
        banyan_chunk packets = SCRATCH(rank, place, place + 1);
        banyan_program_reduce_packets(program, rank, sum, others, half - 1, BANYAN_IN_SOURCE,
                                      BANYAN_SUM, BANYAN_TB(0));
        banyan_program_copy_packets(program, rank, packets, sum, BANYAN_TB(0));
        banyan_program_port_read_put_packets(nodes.cross[rank], SCRATCH(other, 2 * n - 1, 2 * n),
                                             packets, BANYAN_TB(0));
        int count = 0;
        others[count++] = SCRATCH(rank, 2 * n - 1, 2 * n);
        for (uint64_t i = 0; i < n; i++) {
            if (i != place)
                others[count++] = SCRATCH(rank, i, i + 1);
        }
        banyan_program_reduce_packets(program, rank, IN(rank, (uint64_t)rank, (uint64_t)rank + 1),
                                      others, count, BANYAN_IN_SOURCE, BANYAN_SUM, BANYAN_TB(0));
    }
}

/* One thread block for the other node, four that share the local peer's data, four that copy out;
 * they synchronize before the second half. */
static void write_allgather_groups(banyan_program *program, int ranks)
{
    enum { SHARES = 4 };
    const int all[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    banyan_chunk scratch[MOST];
    take_scratch(program, ranks, (uint64_t)ranks, scratch);
    banyan_program_by senders =
        BANYAN_TB_GROUP(banyan_program_group_create(program, all + 1, SHARES));
    banyan_program_by copiers =
        BANYAN_TB_GROUP(banyan_program_group_create(program, all + 1 + SHARES, SHARES));
    for (int rank = 0; rank < ranks; rank++) {
        int peer = rank ^ 1, other = rank ^ 2;
        uint64_t own = (uint64_t)rank, near = (uint64_t)peer, far = (uint64_t)other;
        uint64_t last = (uint64_t)(peer ^ 2);
        banyan_program_memory_channel *local[SHARES];
        for (int i = 0; i < SHARES; i++)
            local[i] = banyan_program_memory_channel_create(program, peer, rank);
        banyan_program_port_channel *cross =
            banyan_program_port_channel_create(program, other, rank);
        banyan_program_port_signal(cross, 0, BANYAN_SYNC_NONE);
        banyan_program_port_wait(cross, 0, BANYAN_SYNC_AFTER);
        banyan_program_port_put_with_signal_and_flush(cross, SCRATCH(other, own, own + 1),
                                                      IN(rank, 0, 1), 0);
        banyan_program_port_wait(cross, 0, BANYAN_SYNC_BOTH);

        for (int i = 0; i < SHARES; i++) {
            banyan_program_memory_signal_relaxed(local[i], 1 + i, BANYAN_SYNC_NONE);
            banyan_program_memory_wait_relaxed(local[i], 1 + i, BANYAN_SYNC_AFTER);
        }
        banyan_program_memory_put(local[0], SCRATCH(peer, own, own + 1), IN(rank, 0, 1), senders);
        for (int i = 0; i < SHARES; i++)
            finish(local[i], 1 + i);
        banyan_program_copy(program, rank, OUT(rank, near, near + 1), SCRATCH(rank, near, near + 1),
                            senders);
        banyan_program_copy(program, rank, OUT(rank, own, own + 1), IN(rank, 0, 1), copiers);

        banyan_program_barrier(program, rank, all, 1 + 2 * SHARES);
        banyan_program_memory_put(local[0], SCRATCH(peer, far, far + 1),
                                  SCRATCH(rank, far, far + 1), senders);
        for (int i = 0; i < SHARES; i++)
            finish(local[i], 1 + i);
        banyan_program_copy(program, rank, OUT(rank, last, last + 1), SCRATCH(rank, last, last + 1),
                            senders);
        banyan_program_copy(program, rank, OUT(rank, far, far + 1), SCRATCH(rank, far, far + 1),
                            copiers);
    }
}

static const mscclpp_program programs[] = {
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

const mscclpp_programs mscclpp_gather = {programs, sizeof programs / sizeof *programs};
