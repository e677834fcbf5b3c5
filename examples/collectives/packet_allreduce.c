/* All-reduce in one step, for short messages: everybody sends its whole input to everybody as
 * packets, which need no signals, and adds up what comes.
 *
 *     example_packet_allreduce 4 > packets.json
 */
#include "emit.h"

/* Where the packets of `from` lie in the scratch of `at`, among those of the other ranks. */
static banyan_chunk slot(banyan_program *program, const banyan_chunk *scratch, int from, int at,
                         uint64_t chunks)
{
    uint64_t index = chunks * (uint64_t)(from < at ? from : from - 1);
    return banyan_slice(program, scratch[at], index, index + chunks);
}

static void write_packets(banyan_program *program, int ranks)
{
    uint64_t chunks = (uint64_t)ranks; /* of the input */
    banyan_chunk scratch[MOST_RANKS], came[MOST_RANKS];
    for (int rank = 0; rank < ranks; rank++)
        scratch[rank] = banyan_scratch(program, rank, chunks * (uint64_t)(ranks - 1));
    for (int rank = 0; rank < ranks; rank++) {
        banyan_chunk input = banyan_input(program, rank, 0, chunks);
        int count = 0;
        for (int peer = 0; peer < ranks; peer++) {
            if (peer == rank)
                continue;
            banyan_memory_put_packets(banyan_memory_channel_create(program, peer, rank),
                                      slot(program, scratch, rank, peer, chunks), input,
                                      BANYAN_TB(0));
            came[count++] = slot(program, scratch, peer, rank, chunks);
        }
        banyan_reduce_packets(program, rank, input, came, count,
                              banyan_output(program, rank, 0, chunks), BANYAN_SUM, BANYAN_TB(0));
    }
}

int main(int argc, char **argv)
{
    int ranks = ranks_asked_for(argc, argv);
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.protocol = BANYAN_LL;
    options.double_scratch = true; /* the next run's packets do not meet those still being read */
    options.instances = 4;         /* thread blocks, each with a share of every chunk */
    options.max_message_bytes = 64 << 10;
    banyan_collective allreduce = {.kind = BANYAN_ALLREDUCE};
    banyan_program *program = begin("packet_allreduce", allreduce, ranks, &options);
    write_packets(program, ranks);
    banyan_program_tag(program, "step", "one");
    return emit(program);
}
