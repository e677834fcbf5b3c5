/* By port channels: proxies move the bytes. On GPUs, copy engines do this faster than thread
 * blocks, and leave these free. For messages of many megabytes.
 *
 * Puts of a channel complete in order, so the k-th signal shows that the k-th put has arrived.
 * Every rank signals first that it has begun: then its scratch and its output may be written. It
 * ends when its own puts have left. */
#include "collective/algorithms/algorithm.h"

enum { MESH_BEGUN, MESH_REDUCED };

/* Number of chunks of a block. Each instance has its own channels and a part of every chunk. */
#define CHUNKS 8

/* Each rank exchanges with one peer after another. Two ranks should rarely write to a third at
 * once, which happens whenever one is late: then all lose much bandwidth. Only the last peer's
 * block is put in parts: arrived parts are reduced, or copied into place, while the rest is on its
 * way. Little work should remain when the last part arrives. So the last part of a copied block is
 * small; a reduction takes longer and must not build up a backlog before it. */
typedef struct part_range {
    int begin, end;
} part_range;

#define PARTS 3
#define EACH_PART(of, parts) for (const part_range *of = (parts); of < (parts) + PARTS; of++)

static const part_range to_reduce[PARTS] = {{0, 4}, {4, 6}, {6, 8}};
static const part_range to_copy[PARTS] = {{0, 4}, {4, 7}, {7, 8}};
static const part_range whole = {0, CHUNKS};

static bool is_last(const part_range *of)
{
    return of->end == CHUNKS;
}

int factor_ports(int ranks)
{
    (void)ranks;
    return CHUNKS;
}

static void algorithms_ports_begin(algorithm *a, int rank)
{
    EACH_PEER(a, rank, peer)
    mesh_signal_relaxed(a, MESH_BEGUN, rank, peer, 0);
    EACH_PEER(a, rank, peer)
    mesh_wait_relaxed(a, MESH_BEGUN, rank, peer, 0);
}

static void algorithms_ports_wait(algorithm *a, int rank, int peer)
{
    banyan_program_port_wait(port_between(a, rank, peer), 0, BANYAN_SYNC_BOTH);
}

static void wait_for_all(algorithm *a, int rank)
{
    EACH_PEER(a, rank, peer)
    algorithms_ports_wait(a, rank, peer);
}

static void algorithms_ports_end(algorithm *a, int rank)
{
    EACH_PEER(a, rank, peer)
    banyan_program_port_flush(port_between(a, rank, peer), 0, BANYAN_SYNC_BOTH);
}

/* Return the index of a rank's block for a peer, or for itself. */
static int block_for(const algorithm *a, int peer)
{
    return a->collective == BANYAN_ALLGATHER ? 0 : peer;
}

static void put_into_outputs(algorithm *a)
{
    for (int rank = 0; rank < a->ranks; rank++) {
        algorithms_ports_begin(a, rank);
        EACH_PEER(a, rank, peer)
        banyan_program_port_put_with_signal(port_between(a, rank, peer), output_at(a, peer, rank),
                                            input_at(a, rank, block_for(a, peer)), 0);
        local_keep(a, output_at(a, rank, rank), input_at(a, rank, block_for(a, rank)), 0);
        wait_for_all(a, rank);
        algorithms_ports_end(a, rank);
    }
}

void allgather_ports(algorithm *a)
{
    put_into_outputs(a);
}

void alltoall_ports(algorithm *a)
{
    put_into_outputs(a);
}

static banyan_chunk algorithms_ports_further(banyan_chunk first, int chunks)
{
    first.index += (uint64_t)chunks;
    return first;
}

static banyan_chunk output_block(const algorithm *a, int rank, int block)
{
    return output_at(a, rank, block * CHUNKS);
}

static banyan_chunk input_block(const algorithm *a, int rank, int peer)
{
    return input_at(a, rank, block_for(a, peer) * CHUNKS);
}

/* Return the place in the peer's scratch where the owner's block arrives. */
static banyan_chunk algorithms_ports_arrived(const algorithm *a, int owner, uint64_t slots,
                                             int peer)
{
    int place = algorithm_rank(a, peer - owner - 1);
    return slot_at(a, owner, slots + (uint64_t)(place * CHUNKS));
}

/* Put a part, and signal after its last chunk. */
static void algorithms_ports_put(algorithm *a, banyan_chunk to, banyan_chunk from,
                                 const part_range *of)
{
    banyan_program_port_channel *channel = port_between(a, from.rank, to.rank);
    for (int chunk = of->begin; chunk < of->end; chunk++) {
        if (chunk + 1 < of->end)
            banyan_program_port_put(channel, algorithms_ports_further(to, chunk),
                                    algorithms_ports_further(from, chunk), 0);
        else
            banyan_program_port_put_with_signal(channel, algorithms_ports_further(to, chunk),
                                                algorithms_ports_further(from, chunk), 0);
    }
}

static void algorithms_ports_copy(algorithm *a, banyan_chunk to, banyan_chunk from,
                                  const part_range *of)
{
    for (int chunk = of->begin; chunk < of->end; chunk++)
        local_copy(a, algorithms_ports_further(to, chunk), algorithms_ports_further(from, chunk),
                   0);
}

/* Wait for the peer's next put, into `slot`, and process it. */
static void algorithms_ports_take(algorithm *a, int rank, int peer, banyan_chunk slot,
                                  const part_range *of)
{
    algorithms_ports_wait(a, rank, peer);
    algorithms_ports_copy(a, output_block(a, rank, peer), slot, of);
}

/* Process the last block. After it the rank's own puts have left, so that no kernel remains only
 * to wait for them. */
static void take_last(algorithm *a, int rank, int peer, banyan_chunk slot, const part_range *parts)
{
    EACH_PART(of, parts)
    {
        algorithms_ports_wait(a, rank, peer);
        if (is_last(of))
            algorithms_ports_end(a, rank);
        algorithms_ports_copy(a, output_block(a, rank, peer), slot, of);
    }
}

static int last_peer(const algorithm *a, int rank)
{
    return algorithm_rank(a, rank - 1);
}

/* Return the last rank that puts to this rank. */
static int last_source(const algorithm *a, int rank)
{
    return algorithm_rank(a, rank + 1);
}

static void put_inputs(algorithm *a, int rank, uint64_t slots, const part_range *parts)
{
    int last = last_peer(a, rank);
    EACH_PEER(a, rank, peer)
    {
        if (peer != last)
            algorithms_ports_put(a, algorithms_ports_arrived(a, peer, slots, rank),
                                 input_block(a, rank, peer), &whole);
    }
    EACH_PART(of, parts)
    algorithms_ports_put(a, algorithms_ports_arrived(a, last, slots, rank),
                         input_block(a, rank, last), of);
}

/* Wait for the first part of the last source's block, and for the blocks of all others. */
static void wait_for_inputs(algorithm *a, int rank, const part_range *of)
{
    if (of->begin == 0)
        wait_for_all(a, rank);
    else
        algorithms_ports_wait(a, rank, last_source(a, rank));
}

/* Blocks are processed in order of arrival, each while the next ones are on their way. In an
 * all-to-all in place, a block is copied only after the block that it overwrites has left. */
static void put_into_scratch(algorithm *a)
{
    uint64_t slots = slots_take(a, (a->ranks - 1) * CHUNKS);
    for (int rank = 0; rank < a->ranks; rank++) {
        int last = last_source(a, rank);
        algorithms_ports_begin(a, rank);
        put_inputs(a, rank, slots, to_copy);
        if (!a->in_place)
            algorithms_ports_copy(a, output_block(a, rank, rank), input_block(a, rank, rank),
                                  &whole);
        else if (a->collective == BANYAN_ALLTOALL)
            algorithms_ports_end(a, rank);
        for (int step = 1; step < a->ranks - 1; step++) {
            int peer = algorithm_rank(a, rank - step);
            algorithms_ports_take(a, rank, peer, algorithms_ports_arrived(a, rank, slots, peer),
                                  &whole);
        }
        take_last(a, rank, last, algorithms_ports_arrived(a, rank, slots, last), to_copy);
    }
}

void allgather_ports_scratch(algorithm *a)
{
    put_into_scratch(a);
}

void alltoall_ports_scratch(algorithm *a)
{
    put_into_scratch(a);
}

static void reduce_part(algorithm *a, int rank, uint64_t slots, const part_range *of,
                        banyan_chunk output)
{
    for (int chunk = of->begin; chunk < of->end; chunk++) {
        EACH_PEER(a, rank, peer)
        a->parts[peer] =
            algorithms_ports_further(algorithms_ports_arrived(a, rank, slots, peer), chunk);
        a->parts[rank] = algorithms_ports_further(input_block(a, rank, rank), chunk);
        local_reduce_parts(a, a->ranks, algorithms_ports_further(output, chunk), 0);
    }
}

void reducescatter_ports(algorithm *a)
{
    uint64_t slots = slots_take(a, (a->ranks - 1) * CHUNKS);
    for (int rank = 0; rank < a->ranks; rank++) {
        algorithms_ports_begin(a, rank);
        put_inputs(a, rank, slots, to_reduce);
        EACH_PART(of, to_reduce)
        {
            wait_for_inputs(a, rank, of);
            if (is_last(of))
                algorithms_ports_end(a, rank);
            reduce_part(a, rank, slots, of, output_at(a, rank, 0));
        }
    }
}

/* In place, a peer's sums overwrite an input only after it has been read: the sums include that
 * input. */
void allreduce_ports(algorithm *a)
{
    uint64_t slots = slots_take(a, (a->ranks - 1) * CHUNKS);
    for (int rank = 0; rank < a->ranks; rank++) {
        int last = last_peer(a, rank);
        banyan_chunk sums = output_block(a, rank, rank);
        algorithms_ports_begin(a, rank);
        put_inputs(a, rank, slots, to_reduce);
        EACH_PART(of, to_reduce)
        {
            wait_for_inputs(a, rank, of);
            reduce_part(a, rank, slots, of, sums);
            algorithms_ports_put(a, output_block(a, last, rank), sums, of);
        }
        for (int step = a->ranks - 2; step > 0; step--) {
            int peer = algorithm_rank(a, rank + step);
            algorithms_ports_put(a, output_block(a, peer, rank), sums, &whole);
        }
        wait_for_all(a, rank);
        for (int more = 1; more < PARTS; more++)
            algorithms_ports_wait(a, rank, last_source(a, rank));
        algorithms_ports_end(a, rank);
    }
}

/* Sums leave for the last peer as soon as they exist, into slots of their own. They leave for
 * another peer after it has reduced all inputs, and overwrite the slot of the input that they
 * include. */
static banyan_chunk sums_arrived(const algorithm *a, int owner, uint64_t slots, int peer)
{
    if (peer == last_source(a, owner))
        return slot_at(a, owner, slots + (uint64_t)((a->ranks - 1) * CHUNKS));
    return algorithms_ports_arrived(a, owner, slots, peer);
}

static void put_sums(algorithm *a, int rank, int peer, uint64_t slots, const part_range *of)
{
    algorithms_ports_put(a, sums_arrived(a, peer, slots, rank), output_block(a, rank, rank), of);
}

static void let_others_write(algorithm *a, int rank)
{
    EACH_PEER(a, rank, peer)
    {
        if (peer != last_source(a, rank))
            mesh_signal(a, MESH_REDUCED, rank, peer, 0);
    }
}

static void wait_for_others_room(algorithm *a, int rank)
{
    EACH_PEER(a, rank, peer)
    {
        if (peer != last_peer(a, rank))
            mesh_wait(a, MESH_REDUCED, rank, peer, 0);
    }
}

/* Put to all peers but the last; to the next one in parts. */
static void put_to_others(algorithm *a, int rank, uint64_t slots)
{
    wait_for_others_room(a, rank);
    for (int step = a->ranks - 2; step > 1; step--)
        put_sums(a, rank, algorithm_rank(a, rank + step), slots, &whole);
    EACH_PART(of, to_copy)
    put_sums(a, rank, algorithm_rank(a, rank + 1), slots, of);
}

/* Process sums in order of arrival. */
static void take_sums(algorithm *a, int rank, uint64_t slots)
{
    int first = last_source(a, rank), last = algorithm_rank(a, rank - 1);
    if (first == last) {
        take_last(a, rank, first, sums_arrived(a, rank, slots, first), to_reduce);
        return;
    }
    EACH_PART(of, to_reduce)
    algorithms_ports_take(a, rank, first, sums_arrived(a, rank, slots, first), of);
    for (int step = a->ranks - 2; step > 1; step--) {
        int peer = algorithm_rank(a, rank - step);
        algorithms_ports_take(a, rank, peer, sums_arrived(a, rank, slots, peer), &whole);
    }
    take_last(a, rank, last, sums_arrived(a, rank, slots, last), to_copy);
}

void allreduce_ports_scratch(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks * CHUNKS);
    for (int rank = 0; rank < a->ranks; rank++) {
        algorithms_ports_begin(a, rank);
        put_inputs(a, rank, slots, to_reduce);
        EACH_PART(of, to_reduce)
        {
            wait_for_inputs(a, rank, of);
            reduce_part(a, rank, slots, of, output_block(a, rank, rank));
            if (is_last(of))
                let_others_write(a, rank);
            put_sums(a, rank, last_peer(a, rank), slots, of);
        }
        if (a->ranks > 2)
            put_to_others(a, rank, slots);
        take_sums(a, rank, slots);
    }
}
