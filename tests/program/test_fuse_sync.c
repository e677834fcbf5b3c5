/* Fusion of synchronization: runs become one, and a request that a neighbour fulfils is dropped. */
#include "program/passes.h"

static banyan_program_memory_channel *memory(banyan_program *program)
{
    return banyan_program_memory_channel_create(program, 1, 0);
}

static void nop(banyan_program *program)
{
    banyan_program_barrier(program, 0, (const int[]){0}, 1);
}

static void barrier(banyan_program *program)
{
    banyan_program_barrier(program, 0, (const int[]){0, 1}, 2);
}

static void copy(banyan_program *program, uint64_t at)
{
    banyan_program_copy(program, 0, OUT(0, at, at + 1), IN(0, at, at + 1), BANYAN_TB(0));
}

static void two_nops(banyan_program *program)
{
    nop(program);
    nop(program);
}

static void nop_then_barrier(banyan_program *program)
{
    nop(program);
    barrier(program);
}

static void barrier_then_nop(banyan_program *program)
{
    barrier(program);
    nop(program);
}

static void nop_then_signal(banyan_program *program)
{
    nop(program);
    banyan_program_memory_signal(memory(program), 0, BANYAN_SYNC_BOTH);
}

static void barrier_then_signal(banyan_program *program)
{
    barrier(program);
    banyan_program_memory_signal(memory(program), 0, BANYAN_SYNC_BOTH);
}

static void signal_then_nop(banyan_program *program)
{
    banyan_program_memory_signal(memory(program), 0, BANYAN_SYNC_BOTH);
    nop(program);
}

static void signal_then_barrier(banyan_program *program)
{
    banyan_program_memory_signal(memory(program), 0, BANYAN_SYNC_BOTH);
    barrier(program);
}

static void signal_then_wait(banyan_program *program)
{
    banyan_program_memory_channel *channel = memory(program);
    banyan_program_memory_signal(channel, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(channel, 0, BANYAN_SYNC_BOTH);
}

static void signal_then_wait_at_once(banyan_program *program)
{
    banyan_program_memory_channel *channel = memory(program);
    banyan_program_memory_signal(channel, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(channel, 0, BANYAN_SYNC_AFTER);
}

static void signal_then_copy(banyan_program *program)
{
    banyan_program_memory_signal(memory(program), 0, BANYAN_SYNC_BOTH);
    copy(program, 0);
}

static void run_of_signals(banyan_program *program)
{
    banyan_program_memory_channel *first = memory(program), *second = memory(program);
    banyan_program_memory_signal(second, 0, BANYAN_SYNC_BEFORE);
    banyan_program_memory_signal(first, 0, BANYAN_SYNC_AFTER);
    banyan_program_memory_signal(second, 0, BANYAN_SYNC_NONE);
}

static void run_of_waits(banyan_program *program)
{
    banyan_program_memory_channel *first = memory(program), *second = memory(program);
    banyan_program_memory_wait(first, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(second, 0, BANYAN_SYNC_BOTH);
}

static void relaxed_beside_others(banyan_program *program)
{
    banyan_program_memory_channel *first = memory(program), *second = memory(program);
    banyan_program_memory_signal(first, 0, BANYAN_SYNC_NONE);
    banyan_program_memory_signal_relaxed(second, 0, BANYAN_SYNC_NONE);
}

static void types_beside_each_other(banyan_program *program)
{
    banyan_program_port_channel *port = banyan_program_port_channel_create(program, 1, 0);
    banyan_program_memory_signal(memory(program), 0, BANYAN_SYNC_NONE);
    banyan_program_port_signal(port, 0, BANYAN_SYNC_NONE);
}

static void run_of_flushes(banyan_program *program)
{
    banyan_program_port_channel *first = banyan_program_port_channel_create(program, 1, 0);
    banyan_program_port_channel *second = banyan_program_port_channel_create(program, 1, 0);
    banyan_program_port_flush(first, 0, BANYAN_SYNC_BEFORE);
    banyan_program_port_flush(second, 0, BANYAN_SYNC_NONE);
    banyan_program_port_flush(first, 0, BANYAN_SYNC_NONE);
}

static void run_of_semaphores(banyan_program *program)
{
    banyan_program_semaphore *first = banyan_program_semaphore_create(program, 0, 1);
    banyan_program_semaphore *second = banyan_program_semaphore_create(program, 0, 1);
    banyan_program_semaphore_acquire(second, 0, BANYAN_SYNC_NONE);
    banyan_program_semaphore_acquire(first, 0, BANYAN_SYNC_AFTER);
    banyan_program_semaphore_release(first, 0, BANYAN_SYNC_NONE);
    banyan_program_semaphore_release(second, 0, BANYAN_SYNC_NONE);
}

/* Around a loop that begins, or ends, with a synchronization of its threads. */
static void around_loop(banyan_program *program, banyan_sync first, banyan_sync last)
{
    banyan_program_semaphore *semaphore = banyan_program_semaphore_create(program, 0, 1);
    banyan_program_semaphore_acquire(semaphore, 0, BANYAN_SYNC_AFTER);
    banyan_program_loop_begin(program, 64, 1);
    banyan_program_semaphore_acquire(semaphore, 0, first);
    copy(program, 0);
    banyan_program_semaphore_release(semaphore, 0, last);
    banyan_program_loop_end(program);
    banyan_program_semaphore_release(semaphore, 0, BANYAN_SYNC_BEFORE);
}

static void loop_with_sync(banyan_program *program)
{
    around_loop(program, BANYAN_SYNC_BEFORE, BANYAN_SYNC_AFTER);
}

static void loop_without_sync(banyan_program *program)
{
    around_loop(program, BANYAN_SYNC_NONE, BANYAN_SYNC_NONE);
}

static void nops_around_loop(banyan_program *program)
{
    banyan_program_semaphore *semaphore = banyan_program_semaphore_create(program, 0, 1);
    nop(program);
    banyan_program_loop_begin(program, 64, 1);
    banyan_program_semaphore_acquire(semaphore, 0, BANYAN_SYNC_BEFORE);
    copy(program, 0);
    nop(program);
    banyan_program_loop_end(program);
    nop(program);
}

/* A nop at the loop's end does not count at its beginning. */
static void nop_before_loop_that_ends_with_one(banyan_program *program)
{
    nop(program);
    banyan_program_loop_begin(program, 64, 1);
    copy(program, 0);
    nop(program);
    banyan_program_loop_end(program);
}

static void fused_inside_loop(banyan_program *program)
{
    banyan_program_semaphore *first = banyan_program_semaphore_create(program, 0, 1);
    banyan_program_semaphore *second = banyan_program_semaphore_create(program, 0, 1);
    banyan_program_loop_begin(program, 64, 1);
    two_nops(program);
    banyan_program_semaphore_acquire(first, 0, BANYAN_SYNC_NONE);
    banyan_program_semaphore_acquire(second, 0, BANYAN_SYNC_NONE);
    banyan_program_loop_end(program);
}

static pass_case cases[] = {
    {"two nops are one", two_nops, "nop\nnop", "nop"},
    {"a barrier replaces the nop before it", nop_then_barrier, NULL,
     "barrier 0 of 2 thread blocks"},
    {"a barrier replaces the nop after it", barrier_then_nop, NULL, "barrier 0 of 2 thread blocks"},
    {"a nop fulfils the next one's request before it", nop_then_signal,
     "nop\nsignal memory channel 0 to 1, sync both",
     "nop\nsignal memory channel 0 to 1, sync after"},
    {"a barrier fulfils the next one's request before it", barrier_then_signal, NULL,
     "barrier 0 of 2 thread blocks\nsignal memory channel 0 to 1, sync after"},
    {"a nop fulfils the previous one's request after it", signal_then_nop, NULL,
     "signal memory channel 0 to 1, sync before\nnop"},
    {"a barrier fulfils the previous one's request after it", signal_then_barrier, NULL,
     "signal memory channel 0 to 1, sync before\nbarrier 0 of 2 thread blocks"},
    {"between two that ask for it there is one", signal_then_wait,
     "signal memory channel 0 to 1, sync both\nwait memory channel 0 to 1, sync both",
     "signal memory channel 0 to 1, sync before\nwait memory channel 0 to 1, sync both"},
    {"a request of only one stays", signal_then_wait_at_once, NULL,
     "signal memory channel 0 to 1, sync both\nwait memory channel 0 to 1, sync after"},
    {"a request before a copy stays", signal_then_copy, NULL,
     "signal memory channel 0 to 1, sync both\ncopy i[0] -> o[0]"},
    {"signals on different channels are one, in ascending order", run_of_signals, NULL,
     "signal memory channel 1 to 1, channel 0 to 1, sync both\nsignal memory channel 1 to 1"},
    {"waits on different channels are one", run_of_waits, NULL,
     "wait memory channel 0 to 1, channel 1 to 1, sync both"},
    {"relaxed signals stay apart from others", relaxed_beside_others, NULL,
     "signal memory channel 0 to 1\nrlxsignal memory channel 1 to 1"},
    {"signals on different types of channels stay apart", types_beside_each_other, NULL,
     "signal memory channel 0 to 1\nsignal port channel 0 to 1"},
    {"flushes are one, each channel once", run_of_flushes, NULL,
     "flush port channel 0 to 1, channel 1 to 1, sync before"},
    {"acquires are one, and so are releases", run_of_semaphores, NULL,
     "sem_acquire semaphore 1, 0, sync after\nsem_release semaphore 0, 1"},
    {"a loop that begins and ends with synchronisation fulfils its neighbours' requests",
     loop_with_sync, NULL,
     "sem_acquire semaphore 0\n"
     "pipeline over 1 chunk in units of 64 bytes {\n"
     "sem_acquire semaphore 0, sync before\ncopy i[0] -> o[0]\nsem_release semaphore 0, sync "
     "after\n}\n"
     "sem_release semaphore 0"},
    {"a loop without synchronisation does not", loop_without_sync, NULL,
     "sem_acquire semaphore 0, sync after\n"
     "pipeline over 1 chunk in units of 64 bytes {\n"
     "sem_acquire semaphore 0\ncopy i[0] -> o[0]\nsem_release semaphore 0\n}\n"
     "sem_release semaphore 0, sync before"},
    {"nops around a loop with synchronisation are dropped", nops_around_loop, NULL,
     "pipeline over 1 chunk in units of 64 bytes {\n"
     "sem_acquire semaphore 0, sync before\ncopy i[0] -> o[0]\nnop\n}"},
    {"a nop before a loop that begins without stays", nop_before_loop_that_ends_with_one, NULL,
     "nop\npipeline over 1 chunk in units of 64 bytes {\ncopy i[0] -> o[0]\nnop\n}"},
    {"bodies of loops are fused", fused_inside_loop, NULL,
     "pipeline over 1 chunk in units of 64 bytes {\nnop\nsem_acquire semaphore 0, 1\n}"},
};

static void fuses(void **state)
{
    check_pass_case(*state, pass_fuse);
}

int main(void)
{
    return run_pass_cases("fusion of synchronisation", cases, sizeof cases / sizeof cases[0],
                          fuses);
}
