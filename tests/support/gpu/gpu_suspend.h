/* Suspends the buffers of a world on all ranks. */
#ifndef TESTS_SUPPORT_GPU_SUSPEND_H
#define TESTS_SUPPORT_GPU_SUSPEND_H

#include "memory/symmetric/symmetric.h"
#include "support/test.h"

/* When it returns, the memory is free at all ranks. Collective. */
static inline void gpu_suspend_all(banyan_world *world)
{
    CHECK_OK(banyan_world_barrier(world));
    memory_suspend_all(world);
    CHECK_OK(banyan_world_barrier(world));
}

#endif
