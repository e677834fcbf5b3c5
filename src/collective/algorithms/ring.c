/* Rings: every rank communicates with its two neighbours only, and no link carries a byte twice.
 *
 * Block b is reduced on its way from rank b + 1 around the ring to rank b, where it is complete.
 * Then it goes around once more (Patarasuk and Yuan 2009). In step s rank r works on block r - 1 -
 * s. */
#include "collective/algorithms/algorithm.h"

enum { MESH_RIGHT, MESH_LEFT };

static int left_of(const algorithm *a, int rank)
{
    return algorithm_rank(a, rank - 1);
}
static int right_of(const algorithm *a, int rank)
{
    return algorithm_rank(a, rank + 1);
}

/* Reduce around the ring; `destination` receives the rank's own block. */
static void reduce_around(algorithm *a, int rank, uint64_t slots, banyan_chunk destination)
{
    int left = left_of(a, rank), right = right_of(a, rank);
    local_copy(a, slot_at(a, rank, slots), input_at(a, rank, left), 0);
    mesh_signal(a, MESH_RIGHT, rank, right, 0);
    for (int step = 1; step < a->ranks; step++) {
        bool last = step == a->ranks - 1;
        uint64_t arrived = slots + (uint64_t)step - 1;
        banyan_chunk block = input_at(a, rank, algorithm_rank(a, rank - 1 - step));
        mesh_wait(a, MESH_RIGHT, rank, left, 0);
        remote_reduce(a, block, slot_at(a, left, arrived),
                      last ? destination : slot_at(a, rank, arrived + 1), 0);
        if (!last)
            mesh_signal(a, MESH_RIGHT, rank, right, 0);
    }
}

/* Gather around the ring, from slots and outputs that hold the rank's own block. */
static void gather_around(algorithm *a, int rank, uint64_t slots)
{
    int left = left_of(a, rank), right = right_of(a, rank);
    mesh_signal(a, MESH_RIGHT, rank, right, 0);
    for (int step = 1; step < a->ranks; step++) {
        uint64_t arrived = slots + (uint64_t)step - 1;
        banyan_chunk block = output_at(a, rank, algorithm_rank(a, rank - step));
        mesh_wait(a, MESH_RIGHT, rank, left, 0);
        remote_get(a, block, slot_at(a, left, arrived), 0);
        if (step == a->ranks - 1)
            break;
        local_copy(a, slot_at(a, rank, arrived + 1), block, 0);
        mesh_signal(a, MESH_RIGHT, rank, right, 0);
    }
}

void reducescatter_ring(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks - 1);
    for (int rank = 0; rank < a->ranks; rank++)
        reduce_around(a, rank, slots, output_at(a, rank, 0));
}

void allgather_ring(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks - 1);
    for (int rank = 0; rank < a->ranks; rank++) {
        local_copy(a, slot_at(a, rank, slots), input_at(a, rank, 0), 0);
        local_keep(a, output_at(a, rank, rank), input_at(a, rank, 0), 0);
        gather_around(a, rank, slots);
    }
}

void allreduce_ring(algorithm *a)
{
    uint64_t partial = slots_take(a, a->ranks - 1);
    uint64_t whole = slots_take(a, a->ranks - 1);
    for (int rank = 0; rank < a->ranks; rank++) {
        banyan_chunk own = output_at(a, rank, rank);
        reduce_around(a, rank, partial, own);
        local_copy(a, slot_at(a, rank, whole), own, 0);
        gather_around(a, rank, whole);
    }
}

/* A rank that has finished reading signals its left neighbour, which waits for that. */
static void end_ring(algorithm *a, int rank)
{
    mesh_signal(a, MESH_LEFT, rank, left_of(a, rank), 0);
    mesh_wait(a, MESH_LEFT, rank, right_of(a, rank), 0);
}

/* Gather with outputs as slots. A complete block that returns has passed every rank that still
 * needed the bytes it overwrites. */
static void gather_outputs(algorithm *a, int rank)
{
    int left = left_of(a, rank), right = right_of(a, rank);
    for (int step = 1; step < a->ranks; step++) {
        int block = algorithm_rank(a, rank - step);
        mesh_signal(a, MESH_RIGHT, rank, right, 0);
        mesh_wait(a, MESH_RIGHT, rank, left, 0);
        remote_get(a, output_at(a, rank, block), output_at(a, left, block), 0);
    }
    end_ring(a, rank);
}

void allreduce_ring_direct(algorithm *a)
{
    for (int rank = 0; rank < a->ranks; rank++) {
        int left = left_of(a, rank), right = right_of(a, rank);
        for (int step = 1; step < a->ranks; step++) {
            int block = algorithm_rank(a, rank - 1 - step);
            mesh_signal(a, MESH_RIGHT, rank, right, 0);
            mesh_wait(a, MESH_RIGHT, rank, left, 0);
            remote_reduce(a, input_at(a, rank, block),
                          step == 1 ? input_at(a, left, block) : output_at(a, left, block),
                          output_at(a, rank, block), 0);
        }
        gather_outputs(a, rank);
    }
}

void allgather_ring_direct(algorithm *a)
{
    for (int rank = 0; rank < a->ranks; rank++) {
        local_keep(a, output_at(a, rank, rank), input_at(a, rank, 0), 0);
        gather_outputs(a, rank);
    }
}
