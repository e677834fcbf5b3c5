/* Launches that begin while the one before them in their stream still runs (begin.h). */
#ifndef CUDA_RUNTIME_BEGIN_CUH
#define CUDA_RUNTIME_BEGIN_CUH

#include <banyan/device/access.cuh>

/* Compute capability 9.0. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define BEGIN_EARLY 1
#else
#define BEGIN_EARLY 0
#endif

/* A launch may begin while the one before it in its stream still runs, as far as
 * begin_await_stream; until then it reads nothing that a kernel writes. */
BANYAN_DEVICE void begin_await_stream(void)
{
#if BEGIN_EARLY
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Let the next launch of the stream begin, once all thread blocks have come here: none of this
 * launch then lacks room because of it. Since every launch does so behind its own wait, no more
 * than two of a stream are on the device. */
BANYAN_DEVICE void begin_next(void)
{
#if BEGIN_EARLY
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

#endif
