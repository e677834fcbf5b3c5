/* Over a switch channel: one load reduces a region of all ranks, and one store reaches all ranks.
 * Only rank r reads and writes block r. (NVLink SHARP's idea; the host does it in software.) */
#include "collective/algorithms/algorithm.h"

enum { MESH_READY, MESH_DONE, MESH_BEGUN };

static banyan_program_switch_channel *switch_of(algorithm *a, banyan_buffer buffer)
{
    return banyan_program_switch_channel_create(a->program, a->everyone, a->ranks, buffer);
}

/* Inputs are copied to scratch, where their sum replaces them. */
void allreduce_switch(algorithm *a)
{
    int size = a->ranks;
    uint64_t shown = slots_take(a, size);
    banyan_program_switch_channel *all = switch_of(a, BANYAN_SCRATCH);
    for (int rank = 0; rank < a->ranks; rank++) {
        uint64_t own = shown + (uint64_t)rank;
        local_copy(a, slot_range(a, rank, shown, size), input_all(a, rank), 0);
        mesh_barrier(a, MESH_READY, rank, 0);
        banyan_program_switch_reduce(all, rank, own, 1, slot_at(a, rank, own), a->op, 0);
        banyan_program_switch_broadcast(all, rank, slot_at(a, rank, own), own, 1, 0);
        mesh_barrier(a, MESH_DONE, rank, 0);
        local_copy(a, output_range(a, rank, 0, size), slot_range(a, rank, shown, size), 0);
    }
}

void allreduce_switch_direct(algorithm *a)
{
    banyan_program_switch_channel *inputs = switch_of(a, BANYAN_INPUT);
    banyan_program_switch_channel *outputs = switch_of(a, BANYAN_OUTPUT);
    for (int rank = 0; rank < a->ranks; rank++) {
        uint64_t own = (uint64_t)rank;
        mesh_barrier(a, MESH_READY, rank, 0);
        banyan_program_switch_reduce(inputs, rank, own, 1, output_at(a, rank, rank), a->op, 0);
        banyan_program_switch_broadcast(outputs, rank, output_at(a, rank, rank), own, 1, 0);
        mesh_barrier(a, MESH_DONE, rank, 0);
    }
}

void allgather_switch(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks);
    banyan_program_switch_channel *all = switch_of(a, BANYAN_SCRATCH);
    for (int rank = 0; rank < a->ranks; rank++) {
        banyan_program_switch_broadcast(all, rank, input_at(a, rank, 0), slots + (uint64_t)rank, 1,
                                        0);
        mesh_barrier(a, MESH_DONE, rank, 0);
        local_copy(a, output_range(a, rank, 0, a->ranks), slot_range(a, rank, slots, a->ranks), 0);
    }
}

void allgather_switch_direct(algorithm *a)
{
    banyan_program_switch_channel *outputs = switch_of(a, BANYAN_OUTPUT);
    for (int rank = 0; rank < a->ranks; rank++) {
        mesh_barrier(a, MESH_READY, rank, 0);
        banyan_program_switch_broadcast(outputs, rank, input_at(a, rank, 0), (uint64_t)rank, 1, 0);
        mesh_barrier(a, MESH_DONE, rank, 0);
    }
}

void reducescatter_switch(algorithm *a)
{
    uint64_t shown = slots_take(a, a->ranks);
    banyan_program_switch_channel *all = switch_of(a, BANYAN_SCRATCH);
    for (int rank = 0; rank < a->ranks; rank++) {
        local_copy(a, slot_range(a, rank, shown, a->ranks), input_all(a, rank), 0);
        mesh_barrier(a, MESH_READY, rank, 0);
        banyan_program_switch_reduce(all, rank, shown + (uint64_t)rank, 1, output_at(a, rank, 0),
                                     a->op, 0);
    }
}

void reducescatter_switch_direct(algorithm *a)
{
    banyan_program_switch_channel *inputs = switch_of(a, BANYAN_INPUT);
    for (int rank = 0; rank < a->ranks; rank++) {
        mesh_barrier(a, MESH_READY, rank, 0);
        banyan_program_switch_reduce(inputs, rank, (uint64_t)rank, 1, output_at(a, rank, 0), a->op,
                                     0);
        mesh_barrier(a, MESH_DONE, rank, 0);
    }
}

/* The others signal that they have begun. The root waits for that before it ends, so that it is
 * never two runs ahead. */
void broadcast_switch(algorithm *a)
{
    uint64_t slot = slots_take(a, 1);
    banyan_program_switch_channel *all = switch_of(a, BANYAN_SCRATCH);
    banyan_program_switch_broadcast(all, a->root, input_at(a, a->root, 0), slot, 1, 0);
    mesh_signal_all(a, MESH_DONE, a->root, 0);
    local_keep(a, output_at(a, a->root, 0), input_at(a, a->root, 0), 0);
    mesh_wait_all(a, MESH_BEGUN, a->root, 0);
    EACH_PEER(a, a->root, rank)
    {
        mesh_signal(a, MESH_BEGUN, rank, a->root, 0);
        mesh_wait(a, MESH_DONE, rank, a->root, 0);
        local_copy(a, output_at(a, rank, 0), slot_at(a, rank, slot), 0);
    }
}
