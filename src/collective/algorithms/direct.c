/* No staging copies: ranks read and write each other's input and output directly. Requires memory
 * that peers reach.
 *
 * A rank whose memory peers read or write signals first that it has begun, and ends only after
 * they have finished. */
#include "collective/algorithms/algorithm.h"

enum { MESH_BEGUN, MESH_DONE };

/* Begin a run in which peers only write this rank's output. The rank copies its own block while it
 * waits until all have begun. */
static void begin_relaxed(algorithm *a, int rank, banyan_chunk destination, banyan_chunk own)
{
    EACH_PEER(a, rank, peer)
    mesh_signal_relaxed(a, MESH_BEGUN, rank, peer, 0);
    local_keep(a, destination, own, 0);
    EACH_PEER(a, rank, peer)
    mesh_wait_relaxed(a, MESH_BEGUN, rank, peer, 0);
}

/* Every rank reads all inputs and reduces them in rank order in one operation, for equal bits on
 * all ranks. In place, a result may overwrite its input only after all ranks have read it. */
void allreduce_oneshot_direct(algorithm *a)
{
    int size = (int)a->input_chunks;
    uint64_t slots = slots_take(a, a->ranks * size);
    for (int rank = 0; rank < a->ranks; rank++) {
        for (int source = 0; source < a->ranks; source++)
            a->parts[source] = slot_range(a, rank, slots + (uint64_t)(source * size), size);
        mesh_barrier(a, MESH_BEGUN, rank, 0);
        EACH_PEER(a, rank, peer)
        remote_get(a, a->parts[peer], input_all(a, peer), 0);
        mesh_barrier(a, MESH_DONE, rank, 0);
        a->parts[rank] = input_all(a, rank);
        local_reduce_parts(a, a->ranks, output_range(a, rank, 0, size), 0);
    }
}

/* destination = block `block` of all inputs, reduced. */
static void reduce_block(algorithm *a, int rank, int block, banyan_chunk destination)
{
    banyan_chunk so_far = input_at(a, rank, block);
    EACH_PEER(a, rank, peer)
    {
        remote_reduce(a, so_far, input_at(a, peer, block), destination, 0);
        so_far = destination;
    }
}

/* Only rank r reads block r, and only it writes that block. */
void allreduce_twoshot_direct(algorithm *a)
{
    for (int rank = 0; rank < a->ranks; rank++) {
        mesh_barrier(a, MESH_BEGUN, rank, 0);
        reduce_block(a, rank, rank, output_at(a, rank, rank));
        EACH_PEER(a, rank, peer)
        remote_put(a, output_at(a, peer, rank), output_at(a, rank, rank), 0);
        mesh_barrier(a, MESH_DONE, rank, 0);
    }
}

/* allreduce_twoshot_direct with writes only, which GPUs do faster than reads. Inputs go to their
 * owners' scratch, whose halves alternate between runs. The arrival of a peer's input shows that
 * the peer has begun and may be written. */
void allreduce_push_direct(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks);
    for (int rank = 0; rank < a->ranks; rank++) {
        EACH_PEER(a, rank, peer)
        remote_put(a, slot_at(a, peer, slots + (uint64_t)rank), input_at(a, rank, peer), 0);
        mesh_barrier(a, MESH_BEGUN, rank, 0);
        reduce_block_into(a, rank, slots, output_at(a, rank, rank), 0);
        EACH_PEER(a, rank, peer)
        remote_put(a, output_at(a, peer, rank), output_at(a, rank, rank), 0);
        mesh_barrier(a, MESH_DONE, rank, 0);
    }
}

#define PUSH_PARTS 4

int factor_push(int ranks)
{
    (void)ranks;
    return PUSH_PARTS;
}

/* allreduce_push_direct in parts: while ranks wait for one part, the next is on its way. */
void allreduce_push_parts_direct(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks * PUSH_PARTS);
    for (int rank = 0; rank < a->ranks; rank++) {
        for (int part = 0; part < PUSH_PARTS; part++) {
            EACH_PEER(a, rank, peer)
            remote_put(a, slot_at(a, peer, slots + (uint64_t)(rank * PUSH_PARTS + part)),
                       input_at(a, rank, peer * PUSH_PARTS + part), 0);
            mesh_signal_all(a, MESH_BEGUN, rank, 0);
        }
        for (int part = 0; part < PUSH_PARTS; part++) {
            int chunk = rank * PUSH_PARTS + part;
            mesh_wait_all(a, MESH_BEGUN, rank, 0);
            for (int source = 0; source < a->ranks; source++)
                a->parts[source] = slot_at(a, rank, slots + (uint64_t)(source * PUSH_PARTS + part));
            a->parts[rank] = input_at(a, rank, chunk);
            local_reduce_parts(a, a->ranks, output_at(a, rank, chunk), 0);
            EACH_PEER(a, rank, peer)
            remote_put(a, output_at(a, peer, chunk), output_at(a, rank, chunk), 0);
        }
        mesh_barrier(a, MESH_DONE, rank, 0);
    }
}

void reducescatter_direct(algorithm *a)
{
    for (int rank = 0; rank < a->ranks; rank++) {
        mesh_barrier(a, MESH_BEGUN, rank, 0);
        reduce_block(a, rank, rank, output_at(a, rank, 0));
        mesh_barrier(a, MESH_DONE, rank, 0);
    }
}

/* Each rank reduces a block into scratch and puts it into the root's output. */
void reduce_direct(algorithm *a)
{
    uint64_t slot = slots_take(a, 1);
    for (int rank = 0; rank < a->ranks; rank++) {
        mesh_barrier(a, MESH_BEGUN, rank, 0);
        if (rank == a->root) {
            reduce_block(a, rank, rank, output_at(a, rank, rank));
        } else {
            reduce_block(a, rank, rank, slot_at(a, rank, slot));
            remote_put(a, output_at(a, a->root, rank), slot_at(a, rank, slot), 0);
        }
        mesh_barrier(a, MESH_DONE, rank, 0);
    }
}

void allgather_direct(algorithm *a)
{
    for (int rank = 0; rank < a->ranks; rank++) {
        begin_relaxed(a, rank, output_at(a, rank, rank), input_at(a, rank, 0));
        EACH_PEER(a, rank, peer)
        remote_put(a, output_at(a, peer, rank), input_at(a, rank, 0), 0);
        mesh_barrier(a, MESH_DONE, rank, 0);
    }
}

void alltoall_direct(algorithm *a)
{
    for (int rank = 0; rank < a->ranks; rank++) {
        begin_relaxed(a, rank, output_at(a, rank, rank), input_at(a, rank, rank));
        EACH_PEER(a, rank, peer)
        remote_put(a, output_at(a, peer, rank), input_at(a, rank, peer), 0);
        mesh_barrier(a, MESH_DONE, rank, 0);
    }
}

/* All ranks read the root's input at once, and the root waits for them. */
void broadcast_direct(algorithm *a)
{
    banyan_chunk source = input_at(a, a->root, 0);
    mesh_signal_all(a, MESH_BEGUN, a->root, 0);
    local_keep(a, output_at(a, a->root, 0), source, 0);
    mesh_wait_all(a, MESH_DONE, a->root, 0);
    EACH_PEER(a, a->root, rank)
    {
        mesh_wait(a, MESH_BEGUN, rank, a->root, 0);
        remote_get(a, output_at(a, rank, 0), source, 0);
        mesh_signal(a, MESH_DONE, rank, a->root, 0);
    }
}

void sendrecv_direct(algorithm *a)
{
    for (int rank = 0; rank < a->ranks; rank++) {
        int to = algorithm_rank(a, rank + a->shift);
        int from = algorithm_rank(a, rank - a->shift);
        mesh_signal_relaxed(a, MESH_BEGUN, rank, from, 0);
        mesh_wait_relaxed(a, MESH_BEGUN, rank, to, 0);
        remote_put(a, output_at(a, to, 0), input_at(a, rank, 0), 0);
        mesh_signal(a, MESH_DONE, rank, to, 0);
        mesh_wait(a, MESH_DONE, rank, from, 0);
    }
}
