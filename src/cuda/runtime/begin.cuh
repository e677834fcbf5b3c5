/* Launches that begin while the previous one in their stream still runs: they fetch their program,
 * then wait for it. */
#ifndef CUDA_RUNTIME_BEGIN_CUH
#define CUDA_RUNTIME_BEGIN_CUH

#include <banyan/device/access.cuh>

/* Compute capability 9.0. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define BEGIN_EARLY 1
#else
#define BEGIN_EARLY 0
#endif

/* A launch may run up to begin_wait_for_stream while the previous one in its stream still runs;
 * until then it must not read anything that a kernel writes. */
BANYAN_DEVICE void begin_wait_for_stream(void)
{
#if BEGIN_EARLY
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Let the next launch of the stream begin, once all thread blocks have arrived here: then it
 * cannot take space that this launch needs. Every launch calls it after its own wait, so at most
 * two of a stream are on the device. */
BANYAN_DEVICE void begin_next(void)
{
#if BEGIN_EARLY
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

#endif
