/* All pairs in units that stay in the caches: large messages flow through a small ring of scratch.
 *
 * The phases of a unit are separate thread blocks, so that one unit's waits overlap with another's
 * work. A semaphore counts the units that the filling block may be ahead of the emptying one:
 * PIPELINE_AHEAD, or the size of the ring where that is enough. docs/algorithms.md explains why
 * the ring is never overwritten too soon. */
#include "collective/algorithms/algorithm.h"

enum { FILL, REDUCE, EMPTY };
enum { MESH_ARRIVED, MESH_REDUCED };

static banyan_program_semaphore *pipelined_semaphore(algorithm *a, int rank, int initial)
{
    return banyan_program_semaphore_create(a->program, rank, (uint64_t)initial);
}

static void pipelined_acquire(banyan_program_semaphore *semaphore, int thread_block)
{
    banyan_program_semaphore_acquire(semaphore, thread_block, BANYAN_SYNC_BOTH);
}

static void pipelined_release(banyan_program_semaphore *semaphore, int thread_block)
{
    banyan_program_semaphore_release(semaphore, thread_block, BANYAN_SYNC_BOTH);
}

/* Put a unit of each block to its owner. */
static void fill_peers(algorithm *a, int rank, uint64_t slots)
{
    EACH_PEER(a, rank, peer)
    remote_put(a, slot_at(a, peer, slots + (uint64_t)rank), input_at(a, rank, peer), FILL);
    mesh_signal_all(a, MESH_ARRIVED, rank, FILL);
}

static void reduce_unit(algorithm *a, int rank, uint64_t slots, banyan_chunk destination)
{
    mesh_wait_all(a, MESH_ARRIVED, rank, REDUCE);
    reduce_block_into(a, rank, slots, destination, REDUCE);
}

/* Two-shot. When all ranks have reduced unit i, their slots for it are free. When all ranks have
 * sent unit i, they have gathered unit i - PIPELINE_UNITS. */
void allreduce_pipelined(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks);
    banyan_program_loop_begin(a->program, a->unit_bytes, 1);
    for (int rank = 0; rank < a->ranks; rank++) {
        banyan_program_semaphore *room = pipelined_semaphore(a, rank, PIPELINE_UNITS);
        pipelined_acquire(room, FILL);
        fill_peers(a, rank, slots);
        mesh_wait_all(a, MESH_ARRIVED, rank, REDUCE);
        reduce_block_for_all(a, rank, slots, MESH_REDUCED, REDUCE);
        gather_blocks(a, rank, slots, MESH_REDUCED, EMPTY);
        pipelined_release(room, EMPTY);
    }
    banyan_program_loop_end(a->program);
}

void reducescatter_pipelined(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks);
    banyan_program_loop_begin(a->program, a->unit_bytes, 1);
    for (int rank = 0; rank < a->ranks; rank++) {
        banyan_program_semaphore *room = pipelined_semaphore(a, rank, PIPELINE_AHEAD);
        pipelined_acquire(room, FILL);
        fill_peers(a, rank, slots);
        reduce_unit(a, rank, slots, output_at(a, rank, 0));
        pipelined_release(room, REDUCE);
    }
    banyan_program_loop_end(a->program);
}

/* Reduce-scatter, then the root gathers. The root signals all ranks when it has gathered and has
 * reduced its own block. */
void reduce_pipelined(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks);
    banyan_program_loop_begin(a->program, a->unit_bytes, 1);
    for (int rank = 0; rank < a->ranks; rank++) {
        bool is_root = rank == a->root;
        banyan_program_semaphore *room = pipelined_semaphore(a, rank, PIPELINE_UNITS);
        banyan_program_semaphore *reduced = is_root ? pipelined_semaphore(a, rank, 0) : NULL;
        banyan_chunk own = slot_at(a, rank, slots + (uint64_t)rank);
        pipelined_acquire(room, FILL);
        fill_peers(a, rank, slots);
        reduce_unit(a, rank, slots, is_root ? output_at(a, rank, rank) : own);
        if (is_root) {
            pipelined_release(reduced, REDUCE);
            pipelined_acquire(reduced, EMPTY);
            mesh_wait_all(a, MESH_REDUCED, rank, EMPTY);
            EACH_PEER(a, rank, peer)
            remote_get(a, output_at(a, rank, peer), slot_at(a, peer, slots + (uint64_t)peer),
                       EMPTY);
            mesh_signal_all(a, MESH_REDUCED, rank, EMPTY);
        } else {
            mesh_signal(a, MESH_REDUCED, rank, a->root, REDUCE);
            mesh_wait(a, MESH_REDUCED, rank, a->root, EMPTY);
        }
        pipelined_release(room, EMPTY);
    }
    banyan_program_loop_end(a->program);
}

void allgather_pipelined(algorithm *a)
{
    uint64_t slot = slots_take(a, 1);
    banyan_program_loop_begin(a->program, a->unit_bytes, 1);
    for (int rank = 0; rank < a->ranks; rank++) {
        banyan_program_semaphore *room = pipelined_semaphore(a, rank, PIPELINE_AHEAD);
        pipelined_acquire(room, FILL);
        local_copy(a, slot_at(a, rank, slot), input_at(a, rank, 0), FILL);
        mesh_signal_all(a, MESH_ARRIVED, rank, FILL);
        local_keep(a, output_at(a, rank, rank), input_at(a, rank, 0), FILL);
        mesh_wait_all(a, MESH_ARRIVED, rank, EMPTY);
        EACH_PEER(a, rank, peer)
        remote_get(a, output_at(a, rank, peer), slot_at(a, peer, slot), EMPTY);
        pipelined_release(room, EMPTY);
    }
    banyan_program_loop_end(a->program);
}

/* In place, a rank overwrites a unit only after it has sent its own. */
void alltoall_pipelined(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks);
    banyan_program_loop_begin(a->program, a->unit_bytes, 1);
    for (int rank = 0; rank < a->ranks; rank++) {
        banyan_program_semaphore *room = pipelined_semaphore(a, rank, PIPELINE_AHEAD);
        banyan_program_semaphore *sent = pipelined_semaphore(a, rank, 0);
        pipelined_acquire(room, FILL);
        fill_peers(a, rank, slots);
        pipelined_release(sent, FILL);
        local_keep(a, output_at(a, rank, rank), input_at(a, rank, rank), FILL);
        pipelined_acquire(sent, EMPTY);
        mesh_wait_all(a, MESH_ARRIVED, rank, EMPTY);
        EACH_PEER(a, rank, peer)
        local_copy(a, output_at(a, rank, peer), slot_at(a, rank, slots + (uint64_t)peer), EMPTY);
        pipelined_release(room, EMPTY);
    }
    banyan_program_loop_end(a->program);
}

/* The root publishes unit after unit, and reuses the space when all ranks have read a unit. */
void broadcast_pipelined(algorithm *a)
{
    uint64_t slot = slots_take(a, 1);
    int root = a->root;
    banyan_program_semaphore *room = pipelined_semaphore(a, root, PIPELINE_UNITS);
    banyan_program_loop_begin(a->program, a->unit_bytes, 1);
    pipelined_acquire(room, FILL);
    local_copy(a, slot_at(a, root, slot), input_at(a, root, 0), FILL);
    mesh_signal_all(a, MESH_ARRIVED, root, FILL);
    local_keep(a, output_at(a, root, 0), input_at(a, root, 0), FILL);
    mesh_wait_all(a, MESH_ARRIVED, root, EMPTY);
    pipelined_release(room, EMPTY);
    EACH_PEER(a, root, rank)
    {
        mesh_wait(a, MESH_ARRIVED, rank, root, FILL);
        remote_get(a, output_at(a, rank, 0), slot_at(a, root, slot), FILL);
        mesh_signal(a, MESH_ARRIVED, rank, root, FILL);
    }
    banyan_program_loop_end(a->program);
}

/* Each rank is a sender and a receiver. Its third thread block waits for its receiver's signals
 * about units it has read. */
void sendrecv_pipelined(algorithm *a)
{
    enum { MESH_SENT, MESH_TAKEN };
    enum { SEND, TAKE, HEAR };
    uint64_t slot = slots_take(a, 1);
    banyan_program_loop_begin(a->program, a->unit_bytes, 1);
    for (int rank = 0; rank < a->ranks; rank++) {
        int to = algorithm_rank(a, rank + a->shift);
        int from = algorithm_rank(a, rank - a->shift);
        banyan_program_semaphore *room = pipelined_semaphore(a, rank, PIPELINE_UNITS);
        banyan_program_semaphore *sent = pipelined_semaphore(a, rank, 0);
        pipelined_acquire(room, SEND);
        local_copy(a, slot_at(a, rank, slot), input_at(a, rank, 0), SEND);
        mesh_signal(a, MESH_SENT, rank, to, SEND);
        pipelined_release(sent, SEND);
        pipelined_acquire(sent, TAKE);
        mesh_wait(a, MESH_SENT, rank, from, TAKE);
        remote_get(a, output_at(a, rank, 0), slot_at(a, from, slot), TAKE);
        mesh_signal(a, MESH_TAKEN, rank, from, TAKE);
        mesh_wait(a, MESH_TAKEN, rank, to, HEAR);
        pipelined_release(room, HEAR);
    }
    banyan_program_loop_end(a->program);
}
