/* By port channels: proxies carry the bytes, on GPUs the copy engines, which do it faster than
 * thread blocks and leave these alone. For messages of many megabytes; for memory that peers reach.
 *
 * All puts of a channel go in order, so that the k-th signal says that its k-th put is there. Every
 * rank says first that it has begun: then its scratch and its output may be written. It ends when
 * what it has put has left. */
#include "collective/algorithm.h"

enum { MESH_BEGUN };

/* Blocks travel in so many parts, of which some are reduced while others are under way. Instances
 * have channels of their own, and divide every part. */
#define PARTS 4

int factor_ports(int ranks)
{
    (void)ranks;
    return PARTS;
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

/* Where a peer's part lies in the scratch of its owner. */
static banyan_chunk arrived(const algorithm *a, int owner, uint64_t slots, int peer, int part)
{
    int place = algorithm_rank(a, peer - owner - 1);
    return slot_at(a, owner, slots + (uint64_t)(place * PARTS + part));
}

static void send_inputs(algorithm *a, int rank, uint64_t slots)
{
    for (int part = 0; part < PARTS; part++) {
        EACH_PEER(a, rank, peer)
        put(a, rank, peer, arrived(a, peer, slots, rank, part),
            input_at(a, rank, peer * PARTS + part));
    }
}

static void reduce_part(algorithm *a, int rank, uint64_t slots, int part, banyan_chunk destination)
{
    EACH_PEER(a, rank, peer)
    a->parts[peer] = arrived(a, rank, slots, peer, part);
    a->parts[rank] = input_at(a, rank, rank * PARTS + part);
    wait_for_all(a, rank);
    local_reduce_parts(a, a->ranks, destination, 0);
}

void reducescatter_ports(algorithm *a)
{
    uint64_t slots = slots_take(a, (a->ranks - 1) * PARTS);
    for (int rank = 0; rank < a->ranks; rank++) {
        begin(a, rank);
        send_inputs(a, rank, slots);
        for (int part = 0; part < PARTS; part++)
            reduce_part(a, rank, slots, part, output_at(a, rank, part));
        end(a, rank);
    }
}

/* In place a peer's sums may come to where an input lay only when that has been read: they are of
 * that input. */
void allreduce_ports(algorithm *a)
{
    uint64_t slots = slots_take(a, (a->ranks - 1) * PARTS);
    for (int rank = 0; rank < a->ranks; rank++) {
        begin(a, rank);
        send_inputs(a, rank, slots);
        for (int part = 0; part < PARTS; part++) {
            int chunk = rank * PARTS + part;
            reduce_part(a, rank, slots, part, output_at(a, rank, chunk));
            EACH_PEER(a, rank, peer)
            put(a, rank, peer, output_at(a, peer, chunk), output_at(a, rank, chunk));
        }
        for (int part = 0; part < PARTS; part++)
            wait_for_all(a, rank);
        end(a, rank);
    }
}
