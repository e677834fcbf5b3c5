/* Fusions on request only: puts on port channels with the following signal and flush, and
 * reductions with those that continue from their result. */
#include "program/passes.h"

static banyan_program_port_channel *port(banyan_program *program)
{
    return banyan_program_port_channel_create(program, 1, 0);
}

static void put(banyan_program *program, banyan_program_port_channel *channel)
{
    banyan_program_port_put(channel, OUT(1, 0, 1), IN(0, 0, 1), 0);
}

static void put_and_signal(banyan_program *program)
{
    banyan_program_port_channel *channel = port(program);
    put(program, channel);
    banyan_program_port_signal(channel, 0, BANYAN_SYNC_NONE);
}

static void put_signal_and_flush(banyan_program *program)
{
    banyan_program_port_channel *channel = port(program);
    put(program, channel);
    banyan_program_port_signal(channel, 0, BANYAN_SYNC_BEFORE);
    banyan_program_port_flush(channel, 0, BANYAN_SYNC_AFTER);
}

static void put_and_flush(banyan_program *program)
{
    banyan_program_port_channel *channel = port(program);
    put(program, channel);
    banyan_program_port_flush(channel, 0, BANYAN_SYNC_NONE);
}

static void put_and_signal_elsewhere(banyan_program *program)
{
    put(program, port(program));
    banyan_program_port_signal(port(program), 0, BANYAN_SYNC_NONE);
}

static void put_nop_and_signal(banyan_program *program)
{
    banyan_program_port_channel *channel = port(program);
    put(program, channel);
    banyan_program_barrier(program, 0, (const int[]){0}, 1);
    banyan_program_port_signal(channel, 0, BANYAN_SYNC_NONE);
}

static void memory_put_and_signal(banyan_program *program)
{
    banyan_program_memory_channel *channel = banyan_program_memory_channel_create(program, 1, 0);
    banyan_program_memory_put(channel, OUT(1, 0, 1), IN(0, 0, 1), BANYAN_TB(0));
    banyan_program_memory_signal(channel, 0, BANYAN_SYNC_NONE);
}

static void in_loop(banyan_program *program)
{
    banyan_program_loop_begin(program, 64, 1);
    put_and_signal(program);
    banyan_program_loop_end(program);
}

static banyan_chunk in(banyan_program *program, uint64_t at)
{
    return IN(0, at, at + 1);
}

static void reduce_to(banyan_program *program, banyan_chunk source, uint64_t other,
                      banyan_chunk destination)
{
    banyan_program_reduce(program, 0, source, CHUNKS(in(program, other)), 1, destination,
                          BANYAN_SUM, BANYAN_TB(0));
}

static void chain_of_reductions(banyan_program *program)
{
    reduce_to(program, in(program, 0), 1, OUT(0, 0, 1));
    reduce_to(program, OUT(0, 0, 1), 2, BANYAN_IN_SOURCE);
    reduce_to(program, OUT(0, 0, 1), 3, BANYAN_IN_SOURCE);
}

static void chain_over_channels(banyan_program *program)
{
    banyan_chunk sum = OUT(0, 0, 1), own = in(program, 0);
    for (uint64_t i = 0; i < 2; i++)
        banyan_program_memory_reduce(banyan_program_memory_channel_create(program, 1, 0),
                                     i ? sum : own, CHUNKS(IN(1, i, i + 1)), 1, sum, BANYAN_MAX,
                                     BANYAN_TB(0));
}

static void reductions_of_one_source(banyan_program *program)
{
    reduce_to(program, in(program, 0), 1, OUT(0, 0, 1));
    reduce_to(program, in(program, 0), 2, OUT(0, 0, 1));
}

static void chain_to_another_place(banyan_program *program)
{
    reduce_to(program, in(program, 0), 1, OUT(0, 0, 1));
    reduce_to(program, OUT(0, 0, 1), 2, OUT(0, 1, 2));
}

static void chain_that_reads_its_result_twice(banyan_program *program)
{
    banyan_chunk sum = in(program, 5);
    reduce_to(program, in(program, 0), 1, sum);
    reduce_to(program, sum, 5, sum);
}

static pass_case cases[] = {
    {"put + signal is put with signal", put_and_signal, NULL,
     "pws port i[0] -> o[0]@1 by channel 0 to 1"},
    {"+ flush is put with signal and flush, with the requests of each", put_signal_and_flush, NULL,
     "pwsf port i[0] -> o[0]@1 by channel 0 to 1, sync both"},
    {"put + flush stay apart", put_and_flush, NULL,
     "put port i[0] -> o[0]@1 by channel 0 to 1\nflush port channel 0 to 1"},
    {"a signal on another channel stays apart", put_and_signal_elsewhere, NULL,
     "put port i[0] -> o[0]@1 by channel 0 to 1\nsignal port channel 1 to 1"},
    {"a nop in between keeps them apart", put_nop_and_signal, NULL,
     "put port i[0] -> o[0]@1 by channel 0 to 1\nnop\nsignal port channel 0 to 1"},
    {"memory channels have no put with signal", memory_put_and_signal, NULL,
     "put memory i[0] -> o[0]@1\nsignal memory channel 0 to 1"},
    {"reductions go on from a result", chain_of_reductions, NULL,
     "re sum i[0], i[1], i[2], i[3] -> o[0]"},
    {"over any channels", chain_over_channels, NULL, "rre memory max i[0], i[0]@1, i[1]@1 -> o[0]"},
    {"reductions of one source are left to the next pass", reductions_of_one_source, NULL,
     "re sum i[0], i[1] -> o[0]\nre sum i[0], i[2] -> o[0]"},
    {"a reduction that leaves its result elsewhere stays apart", chain_to_another_place, NULL,
     "re sum i[0], i[1] -> o[0]\nre sum o[0], i[2] -> o[1]"},
    {"a reduction of a result with itself stays apart", chain_that_reads_its_result_twice, NULL,
     "re sum i[0], i[1] -> i[5]\nre sum i[5], i[5] -> i[5]"},
    {"in loops, too", in_loop, NULL,
     "pipeline over 1 chunk in units of 64 bytes {\npws port i[0] -> o[0]@1 by channel 0 to 1\n}"},
};

static void joins(void **state)
{
    check_pass_case(*state, pass_more);
}

int main(void)
{
    return run_pass_cases("more fusion", cases, sizeof cases / sizeof cases[0], joins);
}
