/* All pairs: in every step each rank exchanges with every other, through scratch. This takes the
 * fewest steps, which suits small and medium messages. */
#include "collective/algorithms/algorithm.h"

enum { MESH_ARRIVED, MESH_GATHER, MESH_BEGUN };

/* Every rank sends its whole input to all others, and each reduces all inputs by itself, in rank
 * order for equal bits on all ranks. */
void allreduce_oneshot(algorithm *a)
{
    int size = (int)a->input_chunks;
    uint64_t slots = slots_take(a, a->ranks * size);
    for (int rank = 0; rank < a->ranks; rank++) {
        EACH_PEER(a, rank, peer)
        remote_put(a, slot_range(a, peer, slots + (uint64_t)(rank * size), size),
                   input_all(a, rank), 0);
        mesh_barrier(a, MESH_ARRIVED, rank, 0);
        for (int source = 0; source < a->ranks; source++)
            a->parts[source] = slot_range(a, rank, slots + (uint64_t)(source * size), size);
        a->parts[rank] = input_all(a, rank);
        local_reduce_parts(a, a->ranks, output_range(a, rank, 0, size), 0);
    }
}

/* Put block r of every rank's input into rank r's scratch. */
static void exchange_blocks(algorithm *a, int rank, uint64_t slots)
{
    EACH_PEER(a, rank, peer)
    remote_put(a, slot_at(a, peer, slots + (uint64_t)rank), input_at(a, rank, peer), 0);
    mesh_barrier(a, MESH_ARRIVED, rank, 0);
}

/* Reduce-scatter, then all-gather. */
void allreduce_twoshot(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks);
    for (int rank = 0; rank < a->ranks; rank++) {
        exchange_blocks(a, rank, slots);
        reduce_block_for_all(a, rank, slots, MESH_GATHER, 0);
        gather_blocks(a, rank, slots, MESH_GATHER, 0);
    }
}

void reducescatter_allpairs(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks);
    for (int rank = 0; rank < a->ranks; rank++) {
        exchange_blocks(a, rank, slots);
        reduce_block_into(a, rank, slots, output_at(a, rank, 0), 0);
    }
}

/* All inputs go to the root. The root signals that it has begun, which implies that its previous
 * run is over. The others wait for that signal before they end, so they are never two runs
 * ahead. */
void reduce_oneshot(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks);
    int root = a->root;
    mesh_signal_all(a, MESH_BEGUN, root, 0);
    EACH_PEER(a, root, rank)
    {
        remote_put(a, slot_at(a, root, slots + (uint64_t)rank), input_at(a, rank, 0), 0);
        mesh_signal(a, MESH_ARRIVED, rank, root, 0);
        mesh_wait(a, MESH_BEGUN, rank, root, 0);
    }
    mesh_wait_all(a, MESH_ARRIVED, root, 0);
    for (int source = 0; source < a->ranks; source++)
        a->parts[source] = slot_at(a, root, slots + (uint64_t)source);
    a->parts[root] = input_at(a, root, 0);
    local_reduce_parts(a, a->ranks, output_at(a, root, 0), 0);
}

/* Reduce-scatter, then the root gathers. All ranks exchange signals, though only the root has a
 * result: these signals allow later runs to reuse scratch. */
void reduce_twoshot(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks);
    for (int rank = 0; rank < a->ranks; rank++) {
        bool is_root = rank == a->root;
        banyan_chunk own = slot_at(a, rank, slots + (uint64_t)rank);
        exchange_blocks(a, rank, slots);
        reduce_block_into(a, rank, slots, is_root ? output_at(a, rank, rank) : own, 0);
        if (!is_root) {
            mesh_signal(a, MESH_GATHER, rank, a->root, 0);
            continue;
        }
        mesh_wait_all(a, MESH_GATHER, rank, 0);
        EACH_PEER(a, rank, peer)
        remote_get(a, output_at(a, rank, peer), slot_at(a, peer, slots + (uint64_t)peer), 0);
    }
}

void allgather_allpairs(algorithm *a)
{
    uint64_t slot = slots_take(a, 1);
    for (int rank = 0; rank < a->ranks; rank++) {
        local_copy(a, slot_at(a, rank, slot), input_at(a, rank, 0), 0);
        mesh_signal_all(a, MESH_ARRIVED, rank, 0);
        local_keep(a, output_at(a, rank, rank), input_at(a, rank, 0), 0);
        mesh_wait_all(a, MESH_ARRIVED, rank, 0);
        EACH_PEER(a, rank, peer)
        remote_get(a, output_at(a, rank, peer), slot_at(a, peer, slot), 0);
    }
}

void alltoall_allpairs(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks);
    for (int rank = 0; rank < a->ranks; rank++) {
        EACH_PEER(a, rank, peer)
        remote_put(a, slot_at(a, peer, slots + (uint64_t)rank), input_at(a, rank, peer), 0);
        mesh_signal_all(a, MESH_ARRIVED, rank, 0);
        local_keep(a, output_at(a, rank, rank), input_at(a, rank, rank), 0);
        mesh_wait_all(a, MESH_ARRIVED, rank, 0);
        EACH_PEER(a, rank, peer)
        local_copy(a, output_at(a, rank, peer), slot_at(a, rank, slots + (uint64_t)peer), 0);
    }
}

static void allpairs_take_block(algorithm *a, int rank, int source, uint64_t slots)
{
    mesh_wait(a, MESH_ARRIVED, rank, source, 0);
    local_copy(a, output_at(a, rank, source), slot_at(a, rank, slots + (uint64_t)source), 0);
}

/* Round s: send to the rank s further on, receive from the rank s before (pairwise exchange). In
 * place, a rank writes its output only after it has sent everything. */
void alltoall_pairwise(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks);
    for (int rank = 0; rank < a->ranks; rank++) {
        local_keep(a, output_at(a, rank, rank), input_at(a, rank, rank), 0);
        for (int round = 1; round < a->ranks; round++) {
            int to = algorithm_rank(a, rank + round);
            remote_put(a, slot_at(a, to, slots + (uint64_t)rank), input_at(a, rank, to), 0);
            mesh_signal(a, MESH_ARRIVED, rank, to, 0);
            if (!a->in_place)
                allpairs_take_block(a, rank, algorithm_rank(a, rank - round), slots);
        }
        for (int round = 1; a->in_place && round < a->ranks; round++)
            allpairs_take_block(a, rank, algorithm_rank(a, rank - round), slots);
    }
}

/* The others signal the root that they have begun, which implies that their previous run is over.
 * The root waits for all of these before it ends. So it is never two runs ahead, as the two halves
 * of scratch require. */
void broadcast_allpairs(algorithm *a)
{
    uint64_t slot = slots_take(a, 1);
    banyan_chunk shown = slot_at(a, a->root, slot);
    local_copy(a, shown, input_at(a, a->root, 0), 0);
    mesh_signal_all(a, MESH_ARRIVED, a->root, 0);
    local_keep(a, output_at(a, a->root, 0), input_at(a, a->root, 0), 0);
    mesh_wait_all(a, MESH_BEGUN, a->root, 0);
    EACH_PEER(a, a->root, rank)
    {
        mesh_signal(a, MESH_BEGUN, rank, a->root, 0);
        mesh_wait(a, MESH_ARRIVED, rank, a->root, 0);
        remote_get(a, output_at(a, rank, 0), shown, 0);
    }
}

/* The root scatters the blocks, and all ranks gather them (van de Geijn). */
void broadcast_scatter_allgather(algorithm *a)
{
    uint64_t slot = slots_take(a, 1);
    int root = a->root;
    EACH_PEER(a, root, rank)
    remote_put(a, slot_at(a, rank, slot), input_at(a, root, rank), 0);
    local_copy(a, slot_at(a, root, slot), input_at(a, root, root), 0);
    mesh_signal_all(a, MESH_ARRIVED, root, 0);
    local_keep(a, output_range(a, root, 0, a->ranks), input_all(a, root), 0);
    mesh_wait_all(a, MESH_BEGUN, root, 0);
    EACH_PEER(a, root, rank)
    {
        mesh_signal(a, MESH_BEGUN, rank, root, 0);
        mesh_wait(a, MESH_ARRIVED, rank, root, 0);
        EACH_PEER(a, rank, peer)
        if (peer != root)
            mesh_signal(a, MESH_GATHER, rank, peer, 0);
        local_copy(a, output_at(a, rank, rank), slot_at(a, rank, slot), 0);
        EACH_PEER(a, rank, peer)
        {
            if (peer != root)
                mesh_wait(a, MESH_GATHER, rank, peer, 0);
            remote_get(a, output_at(a, rank, peer), slot_at(a, peer, slot), 0);
        }
    }
}
