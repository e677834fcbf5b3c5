/* Requests for synchronization become nops. */
#include "program/passes.h"

static void requests(banyan_program *program)
{
    banyan_program_semaphore *semaphore = banyan_program_semaphore_create(program, 0, 1);
    banyan_program_semaphore_acquire(semaphore, 0, BANYAN_SYNC_BOTH);
    banyan_program_semaphore_release(semaphore, 0, BANYAN_SYNC_BEFORE);
    banyan_program_semaphore_acquire(semaphore, 0, BANYAN_SYNC_AFTER);
    banyan_program_semaphore_release(semaphore, 0, BANYAN_SYNC_NONE);
}

static void requests_in_loop(banyan_program *program)
{
    banyan_program_loop_begin(program, 64, 1);
    requests(program);
    banyan_program_loop_end(program);
}

#define PLACED                                                                                     \
    "nop\nsem_acquire semaphore 0\nnop\n"                                                          \
    "nop\nsem_release semaphore 0\n"                                                               \
    "sem_acquire semaphore 0\nnop\n"                                                               \
    "sem_release semaphore 0"

static pass_case cases[] = {
    {"every request is a nop", requests, NULL, PLACED},
    {"in loops, too", requests_in_loop, NULL,
     "pipeline over 1 chunk in units of 64 bytes {\n" PLACED "\n}"},
};

static void places(void **state)
{
    check_pass_case(*state, pass_sync);
}

int main(void)
{
    return run_pass_cases("synchronisation", cases, sizeof cases / sizeof cases[0], places);
}
