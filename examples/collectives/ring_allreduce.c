/* All-reduce over a ring, in place: the parts go around once to be summed, and once more to reach
 * all ranks.
 *
 *     example_ring_allreduce 4 > ring.json */
#include "emit.h"

/* A rank's place in the ring: a channel to the next rank, on which it sends, and one to the rank
 * before, on which it waits for that rank's data. */
typedef struct place {
    banyan_program_memory_channel *next, *before;
    banyan_chunk scratch;
} place;

static banyan_chunk part(banyan_program *program, int rank, int index)
{
    return banyan_program_input(program, rank, (uint64_t)index, (uint64_t)index + 1);
}

/* Step by step, send a part to the next rank's scratch and add the part that arrived from the one
 * before. */
static void reduce_around(banyan_program *program, const place *ring, int ranks, int rank)
{
    int next = (rank + 1) % ranks;
    for (int step = 0; step < ranks - 1; step++) {
        int sent = (rank - step + ranks) % ranks, added = (rank - step - 1 + ranks) % ranks;
        uint64_t slot = (uint64_t)step;
        banyan_chunk came = banyan_program_slice(program, ring[rank].scratch, slot, slot + 1);
        banyan_program_memory_put(ring[rank].next,
                                  banyan_program_slice(program, ring[next].scratch, slot, slot + 1),
                                  part(program, rank, sent), BANYAN_TB(0));
        banyan_program_memory_signal(ring[rank].next, 0, BANYAN_SYNC_BOTH);
        banyan_program_memory_wait(ring[rank].before, 0, BANYAN_SYNC_BOTH);
        banyan_program_reduce(program, rank, part(program, rank, added), &came, 1, BANYAN_IN_SOURCE,
                              BANYAN_SUM, BANYAN_TB(0));
    }
}

/* Rank r has the sum of part r + 1 now. The last sum that it receives is that of rank r + 1, which
 * has then read all of its scratch: the next run may write there. */
static void gather_around(banyan_program *program, const place *ring, int ranks, int rank)
{
    int next = (rank + 1) % ranks;
    for (int step = 0; step < ranks - 1; step++) {
        int sent = (rank + 1 - step + ranks) % ranks;
        banyan_program_memory_put(ring[rank].next, part(program, next, sent),
                                  part(program, rank, sent), BANYAN_TB(0));
        banyan_program_memory_signal(ring[rank].next, 0, BANYAN_SYNC_BOTH);
        banyan_program_memory_wait(ring[rank].before, 0, BANYAN_SYNC_BOTH);
    }
}

static void write_ring(banyan_program *program, place *ring, int ranks)
{
    for (int rank = 0; rank < ranks; rank++)
        ring[rank].scratch = banyan_program_scratch(program, rank, (uint64_t)ranks - 1);
    /* Create both ends of a link one after the other, so that they also pair up with two ranks,
     * where the next rank is also the one before. */
    for (int rank = 0; rank < ranks; rank++) {
        int next = (rank + 1) % ranks;
        ring[rank].next = banyan_program_memory_channel_create(program, next, rank);
        ring[next].before = banyan_program_memory_channel_create(program, rank, next);
    }
    for (int rank = 0; rank < ranks; rank++) {
        reduce_around(program, ring, ranks, rank);
        gather_around(program, ring, ranks, rank);
    }
}

int main(int argc, char **argv)
{
    place ring[MOST_RANKS];
    int ranks = ranks_asked_for(argc, argv);
    banyan_collective allreduce = {.kind = BANYAN_ALLREDUCE, .in_place = true};
    banyan_program *program = begin("ring_allreduce", allreduce, ranks, NULL);
    write_ring(program, ring, ranks);
    return emit(program);
}
