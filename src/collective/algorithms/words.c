#include "collective/algorithms/algorithm.h"

/* In place, give one memory one name, so that the compiler sees all dependencies. */
banyan_chunk input_range(const algorithm *a, int rank, int start, int stop)
{
    int own = rank * (int)a->input_chunks;
    if (a->in_place && a->collective == BANYAN_ALLGATHER)
        return output_range(a, rank, own + start, own + stop);
    return banyan_program_input(a->program, rank, (uint64_t)start, (uint64_t)stop);
}

banyan_chunk output_range(const algorithm *a, int rank, int start, int stop)
{
    int own = rank * (int)a->input_chunks / a->ranks;
    if (a->in_place && a->collective == BANYAN_REDUCESCATTER)
        return input_range(a, rank, own + start, own + stop);
    if (a->in_place && a->collective != BANYAN_ALLGATHER)
        return input_range(a, rank, start, stop);
    return banyan_program_output(a->program, rank, (uint64_t)start, (uint64_t)stop);
}

banyan_chunk input_at(const algorithm *a, int rank, int index)
{
    return input_range(a, rank, index, index + 1);
}

banyan_chunk input_all(const algorithm *a, int rank)
{
    return input_range(a, rank, 0, (int)a->input_chunks);
}

banyan_chunk output_at(const algorithm *a, int rank, int index)
{
    return output_range(a, rank, index, index + 1);
}

uint64_t slots_take(algorithm *a, int count)
{
    uint64_t first = a->scratch_chunks;
    for (int rank = 0; rank < a->ranks; rank++)
        (void)banyan_program_scratch(a->program, rank, (uint64_t)count);
    a->scratch_chunks += (uint64_t)count;
    return first;
}

banyan_chunk slot_range(const algorithm *a, int rank, uint64_t start, int count)
{
    (void)a;
    return (banyan_chunk){
        .rank = rank, .buffer = BANYAN_SCRATCH, .index = start, .size = (uint64_t)count};
}

banyan_chunk slot_at(const algorithm *a, int rank, uint64_t index)
{
    return slot_range(a, rank, index, 1);
}

/* After the program has failed, chunks have no valid rank. */
static bool are_ranks(int from, int to)
{
    return from >= 0 && to >= 0;
}

/* Create both directions at once, so that the k-th channel of one is the k-th of the other. */
static banyan_program_memory_channel *mesh_channel(algorithm *a, int mesh, int from, int to)
{
    banyan_program_memory_channel **channels = a->meshes[mesh];
    size_t there = (size_t)from * (size_t)a->ranks + (size_t)to;
    size_t back = (size_t)to * (size_t)a->ranks + (size_t)from;
    if (!are_ranks(from, to))
        return NULL;
    if (!channels[there]) {
        channels[there] = banyan_program_memory_channel_create(a->program, to, from);
        channels[back] = banyan_program_memory_channel_create(a->program, from, to);
    }
    return channels[there];
}

static banyan_program_port_channel *words_port(algorithm *a, banyan_program_port_channel **channels,
                                               int from, int to)
{
    size_t there = (size_t)from * (size_t)a->ranks + (size_t)to;
    size_t back = (size_t)to * (size_t)a->ranks + (size_t)from;
    if (!are_ranks(from, to))
        return NULL;
    if (!channels[there]) {
        channels[there] = banyan_program_port_channel_create(a->program, to, from);
        channels[back] = banyan_program_port_channel_create(a->program, from, to);
    }
    return channels[there];
}

/* Return the port channel of a mesh between nodes. NULL: the ranks share a node. */
static banyan_program_port_channel *mesh_link(algorithm *a, int mesh, int from, int to)
{
    if (from / a->ranks_per_node == to / a->ranks_per_node)
        return NULL;
    return words_port(a, a->links[mesh], from, to);
}

void mesh_signal(algorithm *a, int mesh, int from, int to, int thread_block)
{
    banyan_program_port_channel *link = mesh_link(a, mesh, from, to);
    if (link)
        banyan_program_port_signal(link, thread_block, BANYAN_SYNC_BOTH);
    else
        banyan_program_memory_signal(mesh_channel(a, mesh, from, to), thread_block,
                                     BANYAN_SYNC_BOTH);
}

void mesh_wait(algorithm *a, int mesh, int at, int from, int thread_block)
{
    banyan_program_port_channel *link = mesh_link(a, mesh, at, from);
    if (link)
        banyan_program_port_wait(link, thread_block, BANYAN_SYNC_BOTH);
    else
        banyan_program_memory_wait(mesh_channel(a, mesh, at, from), thread_block, BANYAN_SYNC_BOTH);
}

void mesh_signal_relaxed(algorithm *a, int mesh, int from, int to, int thread_block)
{
    if (mesh_link(a, mesh, from, to))
        mesh_signal(a, mesh, from, to, thread_block);
    else
        banyan_program_memory_signal_relaxed(mesh_channel(a, mesh, from, to), thread_block,
                                             BANYAN_SYNC_BOTH);
}

void mesh_wait_relaxed(algorithm *a, int mesh, int at, int from, int thread_block)
{
    if (mesh_link(a, mesh, at, from))
        mesh_wait(a, mesh, at, from, thread_block);
    else
        banyan_program_memory_wait_relaxed(mesh_channel(a, mesh, at, from), thread_block,
                                           BANYAN_SYNC_BOTH);
}

void mesh_signal_all(algorithm *a, int mesh, int rank, int thread_block)
{
    EACH_PEER(a, rank, peer)
    mesh_signal(a, mesh, rank, peer, thread_block);
}

void mesh_wait_all(algorithm *a, int mesh, int rank, int thread_block)
{
    EACH_PEER(a, rank, peer)
    mesh_wait(a, mesh, rank, peer, thread_block);
}

void mesh_barrier(algorithm *a, int mesh, int rank, int thread_block)
{
    mesh_signal_all(a, mesh, rank, thread_block);
    mesh_wait_all(a, mesh, rank, thread_block);
}

banyan_program_port_channel *port_between(algorithm *a, int from, int to)
{
    return words_port(a, a->ports, from, to);
}

/* Return the number of operations: one, or one for each chunk. Instances divide an operation's
 * chunks among them by its size, so all operations on a chunk must have equal sizes. */
static int words_pieces(const algorithm *a, banyan_chunk all)
{
    return a->split ? (int)all.size : 1;
}

static banyan_chunk words_piece(const algorithm *a, banyan_chunk all, int index)
{
    if (!a->split)
        return all;
    all.index += (uint64_t)index;
    all.size = 1;
    return all;
}

void remote_put(algorithm *a, banyan_chunk remote, banyan_chunk local, int thread_block)
{
    for (int i = 0; i < words_pieces(a, remote); i++)
        banyan_program_memory_put(mesh_channel(a, 0, local.rank, remote.rank),
                                  words_piece(a, remote, i), words_piece(a, local, i),
                                  BANYAN_TB(thread_block));
}

void port_put_and_signal(algorithm *a, banyan_chunk remote, banyan_chunk local)
{
    banyan_program_port_channel *channel = port_between(a, local.rank, remote.rank);
    int last = words_pieces(a, remote) - 1;
    for (int i = 0; i < last; i++)
        banyan_program_port_put(channel, words_piece(a, remote, i), words_piece(a, local, i), 0);
    banyan_program_port_put_with_signal(channel, words_piece(a, remote, last),
                                        words_piece(a, local, last), 0);
}

void remote_get(algorithm *a, banyan_chunk local, banyan_chunk remote, int thread_block)
{
    for (int i = 0; i < words_pieces(a, remote); i++)
        banyan_program_memory_get(mesh_channel(a, 0, local.rank, remote.rank),
                                  words_piece(a, local, i), words_piece(a, remote, i),
                                  BANYAN_TB(thread_block));
}

void remote_reduce(algorithm *a, banyan_chunk local, banyan_chunk remote, banyan_chunk destination,
                   int thread_block)
{
    banyan_program_memory_reduce(mesh_channel(a, 0, local.rank, remote.rank), local, &remote, 1,
                                 destination, a->op, BANYAN_TB(thread_block));
}

void remote_put_packets(algorithm *a, banyan_chunk remote, banyan_chunk local, int thread_block)
{
    banyan_program_memory_put_packets(mesh_channel(a, 0, local.rank, remote.rank), remote, local,
                                      BANYAN_TB(thread_block));
}

void local_copy(algorithm *a, banyan_chunk destination, banyan_chunk source, int thread_block)
{
    for (int i = 0; i < words_pieces(a, source); i++)
        banyan_program_copy(a->program, destination.rank, words_piece(a, destination, i),
                            words_piece(a, source, i), BANYAN_TB(thread_block));
}

void local_reduce_parts(algorithm *a, int count, banyan_chunk destination, int thread_block)
{
    if (count == 1) {
        local_copy(a, destination, a->parts[0], thread_block);
        return;
    }
    for (int i = 0; i < words_pieces(a, destination); i++) {
        banyan_chunk *now = a->parts + count;
        for (int part = 0; part < count; part++)
            now[part] = words_piece(a, a->parts[part], i);
        banyan_program_reduce(a->program, destination.rank, now[0], now + 1, count - 1,
                              words_piece(a, destination, i), a->op, BANYAN_TB(thread_block));
    }
}

void local_reduce(algorithm *a, banyan_chunk source, banyan_chunk other, banyan_chunk destination,
                  int thread_block)
{
    a->parts[0] = source;
    a->parts[1] = other;
    local_reduce_parts(a, 2, destination, thread_block);
}

void local_keep(algorithm *a, banyan_chunk destination, banyan_chunk source, int thread_block)
{
    if (!a->in_place)
        local_copy(a, destination, source, thread_block);
}

void reduce_block_into(algorithm *a, int rank, uint64_t slots, banyan_chunk destination,
                       int thread_block)
{
    for (int source = 0; source < a->ranks; source++)
        a->parts[source] = slot_at(a, rank, slots + (uint64_t)source);
    a->parts[rank] = input_at(a, rank, rank);
    local_reduce_parts(a, a->ranks, destination, thread_block);
}

void reduce_block_for_all(algorithm *a, int rank, uint64_t slots, int mesh, int thread_block)
{
    banyan_chunk own = output_at(a, rank, rank);
    banyan_chunk shown = slot_at(a, rank, slots + (uint64_t)rank);
    if (a->ranks == 2) {
        int peer = 1 - rank;
        reduce_block_into(a, rank, slots, own, thread_block);
        remote_put(a, slot_at(a, peer, slots + (uint64_t)peer), own, thread_block);
        mesh_signal(a, mesh, rank, peer, thread_block);
    } else {
        reduce_block_into(a, rank, slots, shown, thread_block);
        mesh_signal_all(a, mesh, rank, thread_block);
        local_copy(a, own, shown, thread_block);
    }
}

void gather_blocks(algorithm *a, int rank, uint64_t slots, int mesh, int thread_block)
{
    mesh_wait_all(a, mesh, rank, thread_block);
    EACH_PEER(a, rank, peer)
    if (a->ranks == 2)
        local_copy(a, output_at(a, rank, peer), slot_at(a, rank, slots + (uint64_t)rank),
                   thread_block);
    else
        remote_get(a, output_at(a, rank, peer), slot_at(a, peer, slots + (uint64_t)peer),
                   thread_block);
}
