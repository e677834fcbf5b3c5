/* All-gather around a ring, in units: while a thread block forwards unit i of one rank's block, the
 * thread block before it already sends unit i + 1.
 *
 *     example_pipelined_allgather 4 > pipeline.json
 */
#include "emit.h"

enum { UNIT_BYTES = 256 << 10 };

/* The two ends of a link between a rank and the next, of one step of the algorithm. */
typedef struct link {
    banyan_program_memory_channel *next, *before;
} link;

static banyan_chunk block_of(banyan_program *program, int rank, int owner)
{
    return banyan_program_output(program, rank, (uint64_t)owner, (uint64_t)owner + 1);
}

/* Thread block s of a rank sends the block of the rank s places before it, unit by unit as they
 * arrive. */
static void write_step(banyan_program *program, link links[MOST_RANKS][MOST_RANKS], int ranks,
                       int rank, int step)
{
    int next = (rank + 1) % ranks, owner = (rank - step + ranks) % ranks;
    if (step > 0)
        banyan_program_memory_wait(links[step - 1][rank].before, step, BANYAN_SYNC_BOTH);
    if (step == ranks - 1)
        return;
    banyan_chunk own =
        step > 0 ? block_of(program, rank, owner) : banyan_program_input(program, rank, 0, 1);
    banyan_program_memory_put(links[step][rank].next, block_of(program, next, owner), own,
                              BANYAN_TB(step));
    banyan_program_memory_signal(links[step][rank].next, step, BANYAN_SYNC_BOTH);
}

static void write_pipeline(banyan_program *program, int ranks)
{
    static link links[MOST_RANKS][MOST_RANKS];
    for (int step = 0; step < ranks - 1; step++) {
        for (int rank = 0; rank < ranks; rank++) {
            int next = (rank + 1) % ranks;
            links[step][rank].next = banyan_program_memory_channel_create(program, next, rank);
            links[step][next].before = banyan_program_memory_channel_create(program, rank, next);
        }
    }
    for (int rank = 0; rank < ranks; rank++) {
        for (int step = 0; step < ranks - 1; step++) { /* allow writes to this rank's output */
            banyan_program_memory_signal_relaxed(links[step][rank].before, step, BANYAN_SYNC_BOTH);
            banyan_program_memory_wait_relaxed(links[step][rank].next, step, BANYAN_SYNC_BOTH);
        }
    }
    banyan_program_loop_begin(program, UNIT_BYTES, 1);
    for (int rank = 0; rank < ranks; rank++) {
        for (int step = 0; step < ranks; step++)
            write_step(program, links, ranks, rank, step);
        banyan_program_copy(program, rank, block_of(program, rank, rank),
                            banyan_program_input(program, rank, 0, 1), BANYAN_TB(ranks));
    }
    banyan_program_loop_end(program);
}

int main(int argc, char **argv)
{
    int ranks = ranks_asked_for(argc, argv);
    banyan_collective allgather = {.kind = BANYAN_ALLGATHER};
    banyan_program *program = begin("pipelined_allgather", allgather, ranks, NULL);
    write_pipeline(program, ranks);
    return emit(program);
}
