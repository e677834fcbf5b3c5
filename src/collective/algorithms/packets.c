/* Packets: data with its own arrival flag, so that no signals are needed (NCCL's LL protocol).
 * They take twice the bytes, for the smallest messages. Slots lie in scratch, whose halves
 * alternate between runs. */
#include "collective/algorithms/algorithm.h"

enum { MESH_BEGUN };

static void algorithms_packets_unpack(algorithm *a, banyan_chunk destination, banyan_chunk packets)
{
    banyan_program_unpack_packets(a->program, destination.rank, destination, packets, BANYAN_TB(0));
}

static void reduce_with_packets(algorithm *a, banyan_chunk source, const banyan_chunk *packets,
                                int count, banyan_chunk destination)
{
    banyan_program_reduce_packets(a->program, destination.rank, source, packets, count, destination,
                                  a->op, BANYAN_TB(0));
}

/* destination = own block ⊕ the packets of all peers in `slots`. */
static void reduce_with_peers(algorithm *a, banyan_chunk own, uint64_t slots,
                              banyan_chunk destination)
{
    int count = 0;
    EACH_PEER(a, own.rank, peer)
    a->parts[count++] = slot_at(a, own.rank, slots + (uint64_t)peer);
    reduce_with_packets(a, own, a->parts, count, destination);
}

/* Return the slot for the whole input of `source`; slots are in rank order. */
static banyan_chunk whole_slot(const algorithm *a, int rank, uint64_t slots, int source)
{
    return slot_range(a, rank, slots + (uint64_t)source * a->input_chunks, (int)a->input_chunks);
}

/* One-shot. Every rank adds in rank order, for equal bits on all ranks. The first two ranks begin
 * with their own data, since the order of two summands does not matter; the others begin with rank
 * 0's packets. */
void allreduce_packets(algorithm *a)
{
    int size = (int)a->input_chunks;
    uint64_t slots = slots_take(a, a->ranks * size);
    for (int rank = 0; rank < a->ranks; rank++) {
        banyan_chunk own = input_all(a, rank), result = output_range(a, rank, 0, size);
        EACH_PEER(a, rank, peer)
        remote_put_packets(a, whole_slot(a, peer, slots, rank), own, 0);
        int count = 0;
        for (int source = 0; source < a->ranks; source++)
            if (source != (rank < 2 ? rank : 0))
                a->parts[count++] = whole_slot(a, rank, slots, source);
        if (rank < 2) {
            reduce_with_packets(a, own, a->parts, count, result);
        } else {
            banyan_program_copy_packets(a->program, rank, whole_slot(a, rank, slots, rank), own,
                                        BANYAN_TB(0));
            algorithms_packets_unpack(a, result, whole_slot(a, rank, slots, 0));
            reduce_with_packets(a, result, a->parts, count, result);
        }
    }
}

/* Put block r of every rank's input as packets to rank r. */
static void put_blocks(algorithm *a, int rank, uint64_t slots)
{
    EACH_PEER(a, rank, peer)
    remote_put_packets(a, slot_at(a, peer, slots + (uint64_t)rank), input_at(a, rank, peer), 0);
}

static void put_to_all(algorithm *a, banyan_chunk own, uint64_t slots)
{
    EACH_PEER(a, own.rank, peer)
    remote_put_packets(a, slot_at(a, peer, slots + (uint64_t)own.rank), own, 0);
}

static void unpack_all(algorithm *a, int rank, uint64_t slots)
{
    EACH_PEER(a, rank, peer)
    algorithms_packets_unpack(a, output_at(a, rank, peer),
                              slot_at(a, rank, slots + (uint64_t)peer));
}

void allreduce_packets_twoshot(algorithm *a)
{
    uint64_t partial = slots_take(a, a->ranks);
    uint64_t whole = slots_take(a, a->ranks);
    for (int rank = 0; rank < a->ranks; rank++) {
        banyan_chunk own = output_at(a, rank, rank);
        put_blocks(a, rank, partial);
        reduce_with_peers(a, input_at(a, rank, rank), partial, own);
        put_to_all(a, own, whole);
        unpack_all(a, rank, whole);
    }
}

void allgather_packets(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks);
    for (int rank = 0; rank < a->ranks; rank++) {
        put_to_all(a, input_at(a, rank, 0), slots);
        local_keep(a, output_at(a, rank, rank), input_at(a, rank, 0), 0);
        unpack_all(a, rank, slots);
    }
}

void reducescatter_packets(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks);
    for (int rank = 0; rank < a->ranks; rank++) {
        put_blocks(a, rank, slots);
        reduce_with_peers(a, input_at(a, rank, rank), slots, output_at(a, rank, 0));
    }
}

void alltoall_packets(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks);
    for (int rank = 0; rank < a->ranks; rank++) {
        put_blocks(a, rank, slots);
        local_keep(a, output_at(a, rank, rank), input_at(a, rank, rank), 0);
        unpack_all(a, rank, slots);
    }
}

/* Data flow in one direction only, so the receiver signals the sender that it has begun, which
 * implies that its previous run is over. The sender waits for that signal before it ends, so it is
 * never two runs ahead. */
void broadcast_packets(algorithm *a)
{
    uint64_t slot = slots_take(a, 1);
    banyan_chunk source = input_at(a, a->root, 0);
    EACH_PEER(a, a->root, rank)
    remote_put_packets(a, slot_at(a, rank, slot), source, 0);
    local_keep(a, output_at(a, a->root, 0), source, 0);
    mesh_wait_all(a, MESH_BEGUN, a->root, 0);
    EACH_PEER(a, a->root, rank)
    {
        mesh_signal(a, MESH_BEGUN, rank, a->root, 0);
        algorithms_packets_unpack(a, output_at(a, rank, 0), slot_at(a, rank, slot));
    }
}

void reduce_packets(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks);
    mesh_signal_all(a, MESH_BEGUN, a->root, 0);
    EACH_PEER(a, a->root, rank)
    {
        remote_put_packets(a, slot_at(a, a->root, slots + (uint64_t)rank), input_at(a, rank, 0), 0);
        mesh_wait(a, MESH_BEGUN, rank, a->root, 0);
    }
    reduce_with_peers(a, input_at(a, a->root, 0), slots, output_at(a, a->root, 0));
}

void sendrecv_packets(algorithm *a)
{
    uint64_t slot = slots_take(a, 1);
    for (int rank = 0; rank < a->ranks; rank++) {
        int to = algorithm_rank(a, rank + a->shift);
        int from = algorithm_rank(a, rank - a->shift);
        mesh_signal(a, MESH_BEGUN, rank, from, 0);
        remote_put_packets(a, slot_at(a, to, slot), input_at(a, rank, 0), 0);
        algorithms_packets_unpack(a, output_at(a, rank, 0), slot_at(a, rank, slot));
        mesh_wait(a, MESH_BEGUN, rank, to, 0);
    }
}
