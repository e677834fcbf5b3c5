/* By port channels: proxies carry the bytes, on GPUs the copy engines, which do it faster than
 * thread blocks and leave these alone. For messages of many megabytes; for memory that peers reach.
 *
 * All puts of a channel go in order, so that the k-th signal says that its k-th put is there. Every
 * rank says first that it has begun: then its scratch and its output may be written. It ends when
 * what it has put has left. */
#include "collective/algorithm.h"

enum { MESH_BEGUN };

/* Blocks have so many chunks; instances have channels of their own, and divide every chunk. */
#define CHUNKS 4

/* Each rank turns to one peer after the other, as rarely as may be: when two write to a third at
 * once, which happens whenever one of them is late, all get much less. Only the block of the last
 * peer is put in parts, so many chunks each: what has come of it is reduced while the rest is under
 * way, and sums leave for that peer first. */
static const int part_chunks[] = {2, 1, 1};
#define PARTS ((int)(sizeof part_chunks / sizeof *part_chunks))

int factor_ports(int ranks)
{
    (void)ranks;
    return CHUNKS;
}

static void begin(algorithm *a, int rank)
{
    EACH_PEER(a, rank, peer)
    mesh_signal_relaxed(a, MESH_BEGUN, rank, peer, 0);
    EACH_PEER(a, rank, peer)
    mesh_wait_relaxed(a, MESH_BEGUN, rank, peer, 0);
}

static void put(algorithm *a, int rank, int peer, banyan_chunk remote, banyan_chunk local)
{
    banyan_port_put_with_signal(port_between(a, rank, peer), remote, local, 0);
}

static void wait_for_all(algorithm *a, int rank)
{
    EACH_PEER(a, rank, peer)
    banyan_port_wait(port_between(a, rank, peer), 0, BANYAN_SYNC_BOTH);
}

static void end(algorithm *a, int rank)
{
    EACH_PEER(a, rank, peer)
    banyan_port_flush(port_between(a, rank, peer), 0, BANYAN_SYNC_BOTH);
}

void allgather_ports(algorithm *a)
{
    for (int rank = 0; rank < a->ranks; rank++) {
        begin(a, rank);
        EACH_PEER(a, rank, peer)
        put(a, rank, peer, output_at(a, peer, rank), input_at(a, rank, 0));
        local_keep(a, output_at(a, rank, rank), input_at(a, rank, 0), 0);
        wait_for_all(a, rank);
        end(a, rank);
    }
}

/* ---- reductions ---- */

static int last_peer(const algorithm *a, int rank)
{
    return algorithm_rank(a, rank - 1);
}

/* Of those that put to the rank. */
static int last_source(const algorithm *a, int rank)
{
    return algorithm_rank(a, rank + 1);
}

/* Where a chunk of a peer's lies in the scratch of its owner. */
static banyan_chunk arrived(const algorithm *a, int owner, uint64_t slots, int peer, int chunk)
{
    int place = algorithm_rank(a, peer - owner - 1);
    return slot_at(a, owner, slots + (uint64_t)(place * CHUNKS + chunk));
}

/* With a signal behind the last. */
static void put_input(algorithm *a, int rank, int peer, uint64_t slots, int chunk, int end)
{
    for (; chunk < end; chunk++) {
        banyan_chunk to = arrived(a, peer, slots, rank, chunk);
        banyan_chunk from = input_at(a, rank, peer * CHUNKS + chunk);
        banyan_port_channel *channel = port_between(a, rank, peer);
        if (chunk + 1 < end)
            banyan_port_put(channel, to, from, 0);
        else
            banyan_port_put_with_signal(channel, to, from, 0);
    }
}

static void put_sums(algorithm *a, int rank, int peer, int chunk, int end)
{
    for (; chunk < end; chunk++) {
        banyan_chunk to = output_at(a, peer, rank * CHUNKS + chunk);
        banyan_chunk from = output_at(a, rank, rank * CHUNKS + chunk);
        banyan_port_channel *channel = port_between(a, rank, peer);
        if (chunk + 1 < end)
            banyan_port_put(channel, to, from, 0);
        else
            banyan_port_put_with_signal(channel, to, from, 0);
    }
}

static void put_inputs(algorithm *a, int rank, uint64_t slots)
{
    EACH_PEER(a, rank, peer)
    {
        if (peer != last_peer(a, rank))
            put_input(a, rank, peer, slots, 0, CHUNKS);
    }
    for (int part = 0, chunk = 0; part < PARTS; chunk += part_chunks[part++])
        put_input(a, rank, last_peer(a, rank), slots, chunk, chunk + part_chunks[part]);
}

/* Its chunks from `chunk` on, into the output from `first` on. */
static void reduce_part(algorithm *a, int rank, uint64_t slots, int part, int chunk, int first)
{
    if (part == 0)
        wait_for_all(a, rank);
    else
        banyan_port_wait(port_between(a, rank, last_source(a, rank)), 0, BANYAN_SYNC_BOTH);
    for (int end = chunk + part_chunks[part]; chunk < end; chunk++) {
        EACH_PEER(a, rank, peer)
        a->parts[peer] = arrived(a, rank, slots, peer, chunk);
        a->parts[rank] = input_at(a, rank, rank * CHUNKS + chunk);
        local_reduce_parts(a, a->ranks, output_at(a, rank, first + chunk), 0);
    }
}

void reducescatter_ports(algorithm *a)
{
    uint64_t slots = slots_take(a, (a->ranks - 1) * CHUNKS);
    for (int rank = 0; rank < a->ranks; rank++) {
        begin(a, rank);
        put_inputs(a, rank, slots);
        for (int part = 0, chunk = 0; part < PARTS; chunk += part_chunks[part++])
            reduce_part(a, rank, slots, part, chunk, 0);
        end(a, rank);
    }
}

/* In place a peer's sums may come to where an input lay only when that has been read: they are of
 * that input. */
void allreduce_ports(algorithm *a)
{
    uint64_t slots = slots_take(a, (a->ranks - 1) * CHUNKS);
    for (int rank = 0; rank < a->ranks; rank++) {
        int last = last_peer(a, rank);
        begin(a, rank);
        put_inputs(a, rank, slots);
        for (int part = 0, chunk = 0; part < PARTS; chunk += part_chunks[part++]) {
            reduce_part(a, rank, slots, part, chunk, rank * CHUNKS);
            put_sums(a, rank, last, chunk, chunk + part_chunks[part]);
        }
        for (int step = a->ranks - 2; step > 0; step--)
            put_sums(a, rank, algorithm_rank(a, rank + step), 0, CHUNKS);
        wait_for_all(a, rank);
        for (int part = 1; part < PARTS; part++)
            banyan_port_wait(port_between(a, rank, last_source(a, rank)), 0, BANYAN_SYNC_BOTH);
        end(a, rank);
    }
}
