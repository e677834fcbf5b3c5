/* Puts on port channels take the signal, and the flush, that follow them. */
#include "program/passes.h"

static banyan_port_channel *port(banyan_program *program)
{
    return banyan_port_channel_create(program, 1, 0);
}

static void put(banyan_program *program, banyan_port_channel *channel)
{
    banyan_port_put(channel, OUT(1, 0, 1), IN(0, 0, 1), 0);
}

static void put_and_signal(banyan_program *program)
{
    banyan_port_channel *channel = port(program);
    put(program, channel);
    banyan_port_signal(channel, 0, BANYAN_SYNC_NONE);
}

static void put_signal_and_flush(banyan_program *program)
{
    banyan_port_channel *channel = port(program);
    put(program, channel);
    banyan_port_signal(channel, 0, BANYAN_SYNC_BEFORE);
    banyan_port_flush(channel, 0, BANYAN_SYNC_AFTER);
}

static void put_and_flush(banyan_program *program)
{
    banyan_port_channel *channel = port(program);
    put(program, channel);
    banyan_port_flush(channel, 0, BANYAN_SYNC_NONE);
}

static void put_and_signal_elsewhere(banyan_program *program)
{
    put(program, port(program));
    banyan_port_signal(port(program), 0, BANYAN_SYNC_NONE);
}

static void put_nop_and_signal(banyan_program *program)
{
    banyan_port_channel *channel = port(program);
    put(program, channel);
    banyan_barrier(program, 0, (const int[]){0}, 1);
    banyan_port_signal(channel, 0, BANYAN_SYNC_NONE);
}

static void memory_put_and_signal(banyan_program *program)
{
    banyan_memory_channel *channel = banyan_memory_channel_create(program, 1, 0);
    banyan_memory_put(channel, OUT(1, 0, 1), IN(0, 0, 1), BANYAN_TB(0));
    banyan_memory_signal(channel, 0, BANYAN_SYNC_NONE);
}

static void in_loop(banyan_program *program)
{
    banyan_loop_begin(program, 64, 1);
    put_and_signal(program);
    banyan_loop_end(program);
}

static pass_case cases[] = {
    {"put + signal is put with signal", put_and_signal, NULL,
     "pws port i[0] -> o[0]@1 by channel 0 to 1"},
    {"+ flush is put with signal and flush, with what each asks for", put_signal_and_flush, NULL,
     "| pwsf port i[0] -> o[0]@1 by channel 0 to 1 |"},
    {"put + flush stay apart", put_and_flush, NULL,
     "put port i[0] -> o[0]@1 by channel 0 to 1\nflush port channel 0 to 1"},
    {"a signal on another channel stays apart", put_and_signal_elsewhere, NULL,
     "put port i[0] -> o[0]@1 by channel 0 to 1\nsignal port channel 1 to 1"},
    {"a nop in between keeps them apart", put_nop_and_signal, NULL,
     "put port i[0] -> o[0]@1 by channel 0 to 1\nnop\nsignal port channel 0 to 1"},
    {"memory channels have no put with signal", memory_put_and_signal, NULL,
     "put memory i[0] -> o[0]@1\nsignal memory channel 0 to 1"},
    {"in loops, too", in_loop, NULL,
     "pipeline over 1 chunk in units of 64 bytes {\npws port i[0] -> o[0]@1 by channel 0 to 1\n}"},
};

static void joins(void **state)
{
    check_pass_case(*state, pass_signals);
}

int main(void)
{
    return run_pass_cases("put with signal", cases, sizeof cases / sizeof cases[0], joins);
}
