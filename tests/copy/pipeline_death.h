/* The time of a rank's death, and the time limit for the others to notice it. */
#ifndef TESTS_COPY_PIPELINE_DEATH_H
#define TESTS_COPY_PIPELINE_DEATH_H

#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/test.h"

#include "core/deadline.h"

/* Sanitizers slow everything down, including the kernel's report of a death and concurrent
 * tests. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DEATH_NOTICED_NS (5 * NS_PER_S)
#else
#define DEATH_NOTICED_NS NS_PER_S
#endif

typedef _Atomic uint64_t death_clock; /* shared by forked ranks */

static inline death_clock *death_clock_create(void)
{
    void *page =
        mmap(NULL, sizeof(death_clock), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    return page;
}

static inline void death_clock_free(death_clock *clock)
{
    munmap((void *)clock, sizeof *clock);
}

static inline void death_now(death_clock *clock, int exit_code)
{
    atomic_store(clock, time_now_ns());
    _exit(exit_code);
}

static inline void death_check_noticed(death_clock *clock)
{
    double seconds = (double)(time_now_ns() - atomic_load(clock)) / (double)NS_PER_S;
    CHECK(seconds < (double)DEATH_NOTICED_NS / (double)NS_PER_S, "it took %.3f s", seconds);
}

#endif
