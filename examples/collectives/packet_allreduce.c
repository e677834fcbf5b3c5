/* All-reduce in two steps, for short messages. Every rank sends each rank its part of the input, as
 * packets, which need no signals. Each rank adds up its part and sends the sum to all, so that all
 * have equal bits.
 *
 *     example_packet_allreduce 4 > packets.json */
#include "emit.h"

/* A rank's scratch: the packets from each rank in the first step, then in the second. */
static banyan_chunk slot(banyan_program *program, const banyan_chunk *scratch, int at, int from,
                         int step)
{
    uint64_t index = scratch[at].size / 2 * (uint64_t)step + (uint64_t)from;
    return banyan_program_slice(program, scratch[at], index, index + 1);
}

static banyan_chunk part(banyan_program *program, int rank, int index)
{
    return banyan_program_input(program, rank, (uint64_t)index, (uint64_t)index + 1);
}

static void write_rank(banyan_program *program, const banyan_chunk *scratch, int ranks, int rank)
{
    banyan_program_memory_channel *to[MOST_RANKS];
    banyan_chunk came[MOST_RANKS];
    banyan_program_by by = BANYAN_TB(0);
    int others = 0;
    for (int peer = 0; peer < ranks; peer++) {
        if (peer == rank)
            continue;
        to[peer] = banyan_program_memory_channel_create(program, peer, rank);
        banyan_program_memory_put_packets(to[peer], slot(program, scratch, peer, rank, 0),
                                          part(program, rank, peer), by);
        came[others++] = slot(program, scratch, rank, peer, 0);
    }
    banyan_chunk sum = banyan_program_output(program, rank, (uint64_t)rank, (uint64_t)rank + 1);
    banyan_program_reduce_packets(program, rank, part(program, rank, rank), came, others, sum,
                                  BANYAN_SUM, by);
    for (int peer = 0; peer < ranks; peer++) {
        if (peer != rank)
            banyan_program_memory_put_packets(to[peer], slot(program, scratch, peer, rank, 1), sum,
                                              by);
    }
    for (int peer = 0; peer < ranks; peer++) {
        if (peer != rank)
            banyan_program_unpack_packets(
                program, rank,
                banyan_program_output(program, rank, (uint64_t)peer, (uint64_t)peer + 1),
                slot(program, scratch, rank, peer, 1), by);
    }
}

int main(int argc, char **argv)
{
    banyan_chunk scratch[MOST_RANKS];
    int ranks = ranks_asked_for(argc, argv);
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.protocol = BANYAN_LL;
    options.double_scratch =
        true;              /* the next run's packets do not overwrite those still being read */
    options.instances = 4; /* thread blocks, each with a quarter of every part */
    options.max_message_bytes = 256 << 10;
    banyan_collective allreduce = {.kind = BANYAN_ALLREDUCE};
    banyan_program *program = begin("packet_allreduce", allreduce, ranks, &options);
    for (int rank = 0; rank < ranks; rank++)
        scratch[rank] = banyan_program_scratch(program, rank, 2 * (uint64_t)ranks);
    for (int rank = 0; rank < ranks; rank++)
        write_rank(program, scratch, ranks, rank);
    banyan_program_tag(program, "steps", "2");
    return emit(program);
}
