/* GPUs for tests: those of this machine, else emulated ones.
 *
 * A process that has asked the CUDA driver for anything cannot fork ranks, so nothing here touches
 * a device in the test's own process: what reads or writes device memory belongs into ranks. */
#ifndef TESTS_SUPPORT_GPU_H
#define TESTS_SUPPORT_GPU_H

#include <stdlib.h>

#include "memory/device.h"

/* How many there are; chooses the module for this process and those it forks (BANYAN_MODULE_PATH,
 * unless it is set), and for emulated ones their own NCCL (BANYAN_NCCL). Called first, in main.
 * With none it prints what is missing and ends the program as skipped. */
int gpu_count(void);
bool gpu_is_emulated(void);

/* A world on real GPUs takes a second and more to open: cases that differ from others in nothing
 * that a GPU would notice are for emulated ones, unless BANYAN_TEST_ALL_CASES asks for them. */
static inline bool gpu_worlds_are_cheap(void)
{
    return gpu_is_emulated() || getenv("BANYAN_TEST_ALL_CASES");
}

/* A GPU a rank, and more than one rank a GPU when there are more ranks. */
DLDevice gpu_device_for(int rank);

/* ---- in ranks ---- */

const memory_device_ops *gpu_memory(void);

/* A function of the CUDA driver, real or emulated, for memory that Banyan did not make; NULL: there
 * is no such function. The second version is taken where there are two. tests/emulation/cuda.h has
 * the types of both for virtual memory. */
void *gpu_driver_function(const char *name);

/* What cudaMalloc gives. */
void *gpu_plain_alloc(DLDevice device, size_t bytes);
void gpu_plain_free(DLDevice device, void *address);

/* Between memory of any kind; done when they return. */
void gpu_copy(void *to, const void *from, size_t bytes);
void gpu_fill(void *to, uint8_t value, size_t bytes);

/* What no test expects anywhere. */
void gpu_poison(void *to, size_t bytes);

/* A copy on the host of what lies at the address; to be freed. */
void *gpu_read(const void *from, size_t bytes);

/* What this process has mapped of emulated GPUs' memory, its own and its peers'. */
size_t gpu_mapped_here(void);

/* Free on this rank's GPU while no rank allocates: all ranks call it. */
size_t gpu_free_bytes(banyan_world *world);

#endif
