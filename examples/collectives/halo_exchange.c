/* A user-defined collective: ranks hold neighbouring slabs of a field, in a ring. Each sends its
 * first chunk to the rank before it and its last one to the rank after, over port channels. The
 * program declares the expected result of every rank, so that the plan can be checked.
 *
 *     example_halo_exchange 4 > halo.json */
#include "emit.h"

enum { SLAB = 4, FROM_BEFORE = 0, FROM_AFTER = 1, HALO = 2 };

static banyan_chunk input(banyan_program *program, int rank, uint64_t chunk)
{
    return banyan_program_input(program, rank, chunk, chunk + 1);
}

static banyan_chunk output(banyan_program *program, int rank, uint64_t chunk)
{
    return banyan_program_output(program, rank, chunk, chunk + 1);
}

/* The i-th channel from a to b pairs with the i-th from b to a: one pair for each direction around
 * the ring, as with two ranks both neighbours are the same one. */
static void write_halo(banyan_program *program, int ranks)
{
    banyan_program_port_channel *after[MOST_RANKS], *before[MOST_RANKS];
    for (int rank = 0; rank < ranks; rank++) {
        int next = (rank + 1) % ranks;
        after[rank] = banyan_program_port_channel_create(program, next, rank);
        before[next] = banyan_program_port_channel_create(program, rank, next);
    }
    for (int rank = 0; rank < ranks; rank++) {
        int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
        /* Allow writes to this rank's output. */
        banyan_program_port_signal(after[rank], 0, BANYAN_SYNC_BOTH);
        banyan_program_port_signal(before[rank], 0, BANYAN_SYNC_BOTH);
        banyan_program_port_wait(after[rank], 0, BANYAN_SYNC_BOTH);
        banyan_program_port_wait(before[rank], 0, BANYAN_SYNC_BOTH);
        banyan_program_port_put_with_signal_and_flush(
            after[rank], output(program, next, FROM_BEFORE), input(program, rank, SLAB - 1), 0);
        banyan_program_port_put_with_signal_and_flush(
            before[rank], output(program, last, FROM_AFTER), input(program, rank, 0), 0);
        banyan_program_port_wait(after[rank], 0, BANYAN_SYNC_BOTH);
        banyan_program_port_wait(before[rank], 0, BANYAN_SYNC_BOTH);
    }
}

int main(int argc, char **argv)
{
    banyan_contribution edges[MOST_RANKS][HALO];
    banyan_expected_chunk expected[MOST_RANKS * HALO];
    int ranks = ranks_asked_for(argc, argv);
    size_t count = 0;
    for (int rank = 0; rank < ranks; rank++) {
        edges[rank][FROM_BEFORE] = (banyan_contribution){(rank + ranks - 1) % ranks, SLAB - 1};
        edges[rank][FROM_AFTER] = (banyan_contribution){(rank + 1) % ranks, 0};
        for (uint64_t side = 0; side < HALO; side++)
            expected[count++] = (banyan_expected_chunk){rank, side, &edges[rank][side], 1};
    }
    banyan_collective halo = {.kind = BANYAN_CUSTOM,
                              .name = "halo",
                              .input_chunks = SLAB,
                              .output_chunks = HALO,
                              .expected = expected,
                              .expected_count = count};
    banyan_program *program = begin("halo_exchange", halo, ranks, NULL);
    write_halo(program, ranks);
    return emit(program);
}
