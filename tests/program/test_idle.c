/* The nops that are dropped on request, and those that stay. */
#include "program/passes.h"

static void nop(banyan_program *program)
{
    banyan_program_barrier(program, 0, (const int[]){0}, 1);
}

static void copy(banyan_program *program, uint64_t from)
{
    banyan_program_copy(program, 0, OUT(0, from, from + 1), IN(0, from, from + 1), BANYAN_TB(0));
}

static banyan_program_memory_channel *channel(banyan_program *program)
{
    return banyan_program_memory_channel_create(program, 1, 0);
}

static void at_the_ends(banyan_program *program)
{
    nop(program);
    copy(program, 0);
    nop(program);
}

static void twice(banyan_program *program)
{
    copy(program, 0);
    nop(program);
    nop(program);
    copy(program, 1);
}

static void signal_and_wait(banyan_program *program)
{
    banyan_program_memory_channel *to = channel(program);
    copy(program, 0);
    banyan_program_memory_signal(to, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(to, 0, BANYAN_SYNC_BOTH);
    copy(program, 1);
}

static void move_and_wait(banyan_program *program)
{
    copy(program, 0);
    banyan_program_memory_wait(channel(program), 0, BANYAN_SYNC_BOTH);
    copy(program, 1);
}

static void waits_at_one_channel(banyan_program *program)
{
    banyan_program_memory_channel *to = channel(program);
    for (int i = 0; i < 2; i++) {
        banyan_program_memory_wait(to, 0, BANYAN_SYNC_NONE);
        nop(program);
    }
    copy(program, 0);
}

static void waits_at_two_channels(banyan_program *program)
{
    for (int i = 0; i < 2; i++) {
        banyan_program_memory_wait(channel(program), 0, BANYAN_SYNC_NONE);
        nop(program);
    }
    copy(program, 0);
}

static void signals_through_one_channel(banyan_program *program)
{
    banyan_program_memory_channel *to = channel(program);
    banyan_program_memory_signal(to, 0, BANYAN_SYNC_NONE);
    nop(program);
    banyan_program_memory_signal(to, 0, BANYAN_SYNC_NONE);
}

static void wait_where_another_block_waits(banyan_program *program)
{
    banyan_program_memory_channel *to = channel(program);
    copy(program, 0);
    nop(program);
    banyan_program_memory_wait(to, 0, BANYAN_SYNC_NONE);
    banyan_program_memory_wait(to, 1, BANYAN_SYNC_NONE);
}

static void acquire_after_wait(banyan_program *program)
{
    banyan_program_semaphore *semaphore = banyan_program_semaphore_create(program, 0, 1);
    banyan_program_memory_wait(channel(program), 0, BANYAN_SYNC_NONE);
    nop(program);
    banyan_program_semaphore_acquire(semaphore, 0, BANYAN_SYNC_NONE);
}

static void release_and_acquire(banyan_program *program)
{
    banyan_program_semaphore *semaphore = banyan_program_semaphore_create(program, 0, 1);
    banyan_program_semaphore_release(semaphore, 0, BANYAN_SYNC_NONE);
    nop(program);
    banyan_program_semaphore_acquire(semaphore, 0, BANYAN_SYNC_NONE);
}

static void port_signal_and_put(banyan_program *program)
{
    banyan_program_port_channel *port = banyan_program_port_channel_create(program, 1, 0);
    banyan_program_port_signal(port, 0, BANYAN_SYNC_NONE);
    nop(program);
    banyan_program_port_put(port, OUT(1, 0, 1), IN(0, 0, 1), 0);
}

static void handed_on_in_units(banyan_program *program)
{
    banyan_program_memory_channel *to = channel(program);
    banyan_program_loop_begin(program, 64, 1);
    banyan_program_memory_wait(to, 0, BANYAN_SYNC_BOTH);
    copy(program, 0);
    banyan_program_memory_signal(to, 0, BANYAN_SYNC_BOTH);
    banyan_program_loop_end(program);
}

static void in_units_after_a_copy(banyan_program *program)
{
    copy(program, 1);
    handed_on_in_units(program);
    copy(program, 2);
}

static void copies_in_units(banyan_program *program)
{
    banyan_program_loop_begin(program, 64, 1);
    nop(program);
    copy(program, 0);
    banyan_program_loop_end(program);
}

#define UNITS "pipeline over 1 chunk in units of 64 bytes {\n"

static pass_case cases[] = {
    {"threads are together when the block begins and ends", at_the_ends, NULL, "copy i[0] -> o[0]"},
    {"one of two will do", twice, NULL, "copy i[0] -> o[0]\nnop\ncopy i[1] -> o[1]"},
    {"a signal does not affect later operations", signal_and_wait, NULL,
     "copy i[0] -> o[0]\nnop\nsignal memory channel 0 to 1\nwait memory channel 0 to 1\nnop\n"
     "copy i[1] -> o[1]"},
    {"a wait may begin early", move_and_wait, NULL,
     "copy i[0] -> o[0]\nwait memory channel 0 to 1\nnop\ncopy i[1] -> o[1]"},
    {"waits at one channel stay apart", waits_at_one_channel, NULL,
     "wait memory channel 0 to 1\nnop\nwait memory channel 0 to 1\nnop\ncopy i[0] -> o[0]"},
    {"waits at two need not", waits_at_two_channels, NULL,
     "wait memory channel 0 to 1\nwait memory channel 1 to 1\nnop\ncopy i[0] -> o[0]"},
    {"signals through one channel stay apart", signals_through_one_channel, NULL,
     "signal memory channel 0 to 1\nnop\nsignal memory channel 0 to 1"},
    {"a wait that another block might miss is not taken early", wait_where_another_block_waits,
     NULL, "copy i[0] -> o[0]\nnop\nwait memory channel 0 to 1"},
    {"nor is a semaphore", acquire_after_wait, NULL,
     "wait memory channel 0 to 1\nnop\nsem_acquire semaphore 0"},
    {"which is not released and acquired at once", release_and_acquire, NULL,
     "sem_release semaphore 0\nnop\nsem_acquire semaphore 0"},
    {"a port channel's requests stay in order", port_signal_and_put, NULL,
     "signal port channel 0 to 1\nnop\nput port i[0] -> o[0]@1 by channel 0 to 1"},
    {"an iteration's end and the next one's beginning overlap likewise", handed_on_in_units, NULL,
     UNITS "wait memory channel 0 to 1\nnop\ncopy i[0] -> o[0]\nnop\nsignal memory channel 0 to 1"
           "\n}"},
    {"but not with operations around the loop", in_units_after_a_copy, NULL,
     "copy i[1] -> o[1]\n" UNITS "nop\nwait memory channel 0 to 1\nnop\ncopy i[0] -> o[0]\nnop\n"
     "signal memory channel 0 to 1\nnop\n}\ncopy i[2] -> o[2]"},
    {"iterations stay apart", copies_in_units, NULL, UNITS "nop\ncopy i[0] -> o[0]\n}"},
};

/* Requests of signals and waits became nops earlier. */
static void drops(void **state)
{
    const pass_case *of = *state;
    banyan_plan *plan = plan_written(2, 8, of->write), *with_nops = run_pass(pass_sync, plan);
    banyan_plan *made = run_pass(pass_idle, with_nops), *again = run_pass(pass_idle, made);
    check_block(made, 0, 0, of->after);
    check_same(made, again);
    banyan_plan_destroy(plan);
    banyan_plan_destroy(with_nops);
    banyan_plan_destroy(made);
    banyan_plan_destroy(again);
}

int main(void)
{
    return run_pass_cases("idle nops", cases, sizeof cases / sizeof cases[0], drops);
}
