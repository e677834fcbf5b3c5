/* Exchanges over distances that halve or double: log2(ranks) steps (Thakur, Rabenseifner and Gropp
 * 2005; Bruck et al. 1997 for the all-gather).
 *
 * If the number of ranks is not a power of two, each of the last ranks sends its input to a proxy
 * among the first `core` ranks. The core ranks exchange, and the proxy returns the result. */
#include "collective/algorithms/algorithm.h"

enum { MESH_EXCHANGE, MESH_EXTRA };

#define MOST_STEPS 32 /* the number of ranks is an int */

static int core_of(int ranks)
{
    int core = 1;
    while (core * 2 <= ranks)
        core *= 2;
    return core;
}

/* Chunks for each rank in an all-reduce, so that the vector divides into `core` equal blocks. */
int factor_halving(int ranks)
{
    int core = core_of(ranks), common = core;
    while (ranks % common)
        common /= 2;
    return core / common;
}

/* Put data into a peer's slot and signal it. */
static void doubling_send(algorithm *a, int mesh, banyan_chunk slot, banyan_chunk data)
{
    remote_put(a, slot, data, 0);
    mesh_signal(a, mesh, data.rank, slot.rank, 0);
}

static int extra_of(const algorithm *a, int rank, int core)
{
    return rank + core < a->ranks ? rank + core : -1;
}

/* Write an extra rank's program in an all-reduce: it sends to its proxy and receives the result. */
static void lean_on_proxy(algorithm *a, int rank, int proxy, uint64_t slot)
{
    int size = (int)a->input_chunks;
    doubling_send(a, MESH_EXTRA, slot_range(a, proxy, slot, size), input_all(a, rank));
    mesh_wait(a, MESH_EXTRA, rank, proxy, 0);
    local_copy(a, output_range(a, rank, 0, size), slot_range(a, rank, slot, size), 0);
}

/* Add the extra rank's input to the proxy's. Returns the data that the proxy exchanges. */
static banyan_chunk take_in_extra(algorithm *a, int rank, int extra, uint64_t slot)
{
    int size = (int)a->input_chunks;
    if (extra < 0)
        return input_all(a, rank);
    banyan_chunk both = output_range(a, rank, 0, size);
    mesh_wait(a, MESH_EXTRA, rank, extra, 0);
    local_reduce(a, input_all(a, rank), slot_range(a, rank, slot, size), both, 0);
    return both;
}

static void serve_extra(algorithm *a, int rank, int extra, uint64_t slot)
{
    int size = (int)a->input_chunks;
    if (extra >= 0)
        doubling_send(a, MESH_EXTRA, slot_range(a, extra, slot, size),
                      output_range(a, rank, 0, size));
}

/* Exchange whole vectors log2(ranks) times. */
void allreduce_doubling(algorithm *a)
{
    int size = (int)a->input_chunks, core = core_of(a->ranks);
    uint64_t extra_slot = slots_take(a, size);
    uint64_t slots[MOST_STEPS];
    for (int step = 0; 1 << step < core; step++)
        slots[step] = slots_take(a, size);
    for (int rank = 0; rank < core; rank++) {
        int extra = extra_of(a, rank, core);
        banyan_chunk held = take_in_extra(a, rank, extra, extra_slot);
        banyan_chunk result = output_range(a, rank, 0, size);
        for (int step = 0; 1 << step < core; step++) {
            int partner = rank ^ 1 << step;
            doubling_send(a, MESH_EXCHANGE, slot_range(a, partner, slots[step], size), held);
            mesh_wait(a, MESH_EXCHANGE, rank, partner, 0);
            local_reduce(a, held, slot_range(a, rank, slots[step], size), result, 0);
            held = result;
        }
        serve_extra(a, rank, extra, extra_slot);
    }
    for (int rank = core; rank < a->ranks; rank++)
        lean_on_proxy(a, rank, rank - core, extra_slot);
}

/* Return `count` blocks of `size` chunks from block `first` of a buffer that begins at `base`. */
static banyan_chunk doubling_blocks(banyan_chunk base, int size, int first, int count)
{
    base.index += (uint64_t)(first * size);
    base.size = (uint64_t)(count * size);
    return base;
}

/* Exchange and reduce halves of the remaining vector until each rank has its own block, then
 * gather in reverse order. */
void allreduce_halving_doubling(algorithm *a)
{
    int core = core_of(a->ranks), total = (int)a->input_chunks, size = total / core;
    uint64_t extra_slot = slots_take(a, total);
    uint64_t halving = slots_take(a, total), doubling = slots_take(a, total);
    for (int rank = 0; rank < core; rank++) {
        int extra = extra_of(a, rank, core), used = 0;
        banyan_chunk held = take_in_extra(a, rank, extra, extra_slot);
        banyan_chunk result = output_range(a, rank, 0, total);
        for (int distance = core / 2; distance >= 1; distance /= 2) {
            int partner = rank ^ distance, keep = rank & -distance, give = partner & -distance;
            uint64_t slot = halving + (uint64_t)(used * size);
            doubling_send(a, MESH_EXCHANGE, slot_range(a, partner, slot, distance * size),
                          doubling_blocks(held, size, give, distance));
            mesh_wait(a, MESH_EXCHANGE, rank, partner, 0);
            local_reduce(a, doubling_blocks(held, size, keep, distance),
                         slot_range(a, rank, slot, distance * size),
                         doubling_blocks(result, size, keep, distance), 0);
            held = result;
            used += distance;
        }
        for (int distance = 1; distance < core; distance *= 2) {
            int partner = rank ^ distance, mine = rank & -distance, theirs = partner & -distance;
            doubling_send(
                a, MESH_EXCHANGE,
                slot_range(a, partner, doubling + (uint64_t)(mine * size), distance * size),
                doubling_blocks(result, size, mine, distance));
            mesh_wait(a, MESH_EXCHANGE, rank, partner, 0);
            local_copy(a, doubling_blocks(result, size, theirs, distance),
                       slot_range(a, rank, doubling + (uint64_t)(theirs * size), distance * size),
                       0);
        }
        serve_extra(a, rank, extra, extra_slot);
    }
    for (int rank = core; rank < a->ranks; rank++)
        lean_on_proxy(a, rank, rank - core, extra_slot);
}

/* Before the step with distance d, a rank holds the d blocks from its own on. It sends them, or as
 * many as are missing, to the rank d before it. Works for any number of ranks. */
void allgather_bruck(algorithm *a)
{
    int n = a->ranks;
    uint64_t slots = slots_take(a, n);
    for (int rank = 0; rank < n; rank++) {
        local_copy(a, slot_at(a, rank, slots + (uint64_t)rank), input_at(a, rank, 0), 0);
        for (int distance = 1; distance < n; distance *= 2) {
            int to = algorithm_rank(a, rank - distance);
            int count = distance < n - distance ? distance : n - distance;
            int before_end = count < n - rank ? count : n - rank;
            remote_put(a, slot_range(a, to, slots + (uint64_t)rank, before_end),
                       slot_range(a, rank, slots + (uint64_t)rank, before_end), 0);
            if (count > before_end)
                remote_put(a, slot_range(a, to, slots, count - before_end),
                           slot_range(a, rank, slots, count - before_end), 0);
            mesh_signal(a, MESH_EXCHANGE, rank, to, 0);
            mesh_wait(a, MESH_EXCHANGE, rank, algorithm_rank(a, rank + distance), 0);
        }
        local_copy(a, output_range(a, rank, 0, n), slot_range(a, rank, slots, n), 0);
    }
}

/* List the blocks of `count` core ranks from `first` on, and those of their extras, which lie
 * `core` further on. That makes two ranges; the second may be empty. Slots have the input's order
 * of blocks. */
static int extra_blocks(const algorithm *a, int core, int first, int count)
{
    int end = first + count < a->ranks - core ? first + count : a->ranks - core;
    return end > first ? end - first : 0;
}

static void send_halves(algorithm *a, int core, banyan_chunk held, banyan_chunk slots, int first,
                        int count)
{
    int more = extra_blocks(a, core, first, count);
    remote_put(a, doubling_blocks(slots, 1, first, count), doubling_blocks(held, 1, first, count),
               0);
    if (more)
        remote_put(a, doubling_blocks(slots, 1, first + core, more),
                   doubling_blocks(held, 1, first + core, more), 0);
    mesh_signal(a, MESH_EXCHANGE, held.rank, slots.rank, 0);
}

static void reduce_halves(algorithm *a, int core, banyan_chunk held, banyan_chunk slots,
                          banyan_chunk result, int first, int count)
{
    int more = extra_blocks(a, core, first, count);
    local_reduce(a, doubling_blocks(held, 1, first, count), doubling_blocks(slots, 1, first, count),
                 doubling_blocks(result, 1, first, count), 0);
    if (more)
        local_reduce(a, doubling_blocks(held, 1, first + core, more),
                     doubling_blocks(slots, 1, first + core, more),
                     doubling_blocks(result, 1, first + core, more), 0);
}

/* Partial sums are in scratch, since the output holds only one block. Each step has its own slots:
 * the distance distinguishes its half from those of other steps. */
void reducescatter_halving(algorithm *a)
{
    int n = a->ranks, core = core_of(n);
    uint64_t extra_slot = slots_take(a, n), partial = slots_take(a, n), slots[MOST_STEPS];
    for (int step = 0; core >> (step + 1); step++)
        slots[step] = slots_take(a, n);
    for (int rank = 0; rank < core; rank++) {
        int extra = extra_of(a, rank, core), step = 0;
        banyan_chunk held = input_all(a, rank), sums = slot_range(a, rank, partial, n);
        if (extra >= 0) {
            mesh_wait(a, MESH_EXTRA, rank, extra, 0);
            local_reduce(a, held, slot_range(a, rank, extra_slot, n), sums, 0);
            held = sums;
        }
        for (int distance = core / 2; distance >= 1; distance /= 2, step++) {
            int partner = rank ^ distance;
            send_halves(a, core, held, slot_range(a, partner, slots[step], n), partner & -distance,
                        distance);
            mesh_wait(a, MESH_EXCHANGE, rank, partner, 0);
            reduce_halves(a, core, held, slot_range(a, rank, slots[step], n), sums,
                          rank & -distance, distance);
            held = sums;
        }
        local_copy(a, output_at(a, rank, 0), doubling_blocks(held, 1, rank, 1), 0);
        if (extra >= 0)
            doubling_send(a, MESH_EXTRA, slot_at(a, extra, extra_slot),
                          doubling_blocks(held, 1, extra, 1));
    }
    for (int rank = core; rank < n; rank++) {
        doubling_send(a, MESH_EXTRA, slot_range(a, rank - core, extra_slot, n), input_all(a, rank));
        mesh_wait(a, MESH_EXTRA, rank, rank - core, 0);
        local_copy(a, output_at(a, rank, 0), slot_at(a, rank, extra_slot), 0);
    }
}
