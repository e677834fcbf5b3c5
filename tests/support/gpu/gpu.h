/* GPUs for tests: those of this machine, else emulated ones.
 *
 * A process that has called the CUDA driver cannot fork ranks, so nothing here uses a device in
 * the test's own process: only ranks may access device memory. */
#ifndef TESTS_SUPPORT_GPU_H
#define TESTS_SUPPORT_GPU_H

#include <stdlib.h>

#include "memory/device.h"

/* Return the number of GPUs. Chooses the module for this process and those it forks
 * (BANYAN_MODULE_PATH, unless it is set), and for emulated GPUs their own NCCL (BANYAN_NCCL). Call
 * it first in main. Without GPUs it prints the missing part and ends the program as skipped. */
int gpu_count(void);
bool gpu_is_emulated(void);

/* A world on real GPUs takes a second or more to open. Cases that differ only in ways that do not
 * concern a GPU run only on emulated ones, unless BANYAN_TEST_ALL_CASES is set. */
static inline bool gpu_worlds_are_cheap(void)
{
    return gpu_is_emulated() || getenv("BANYAN_TEST_ALL_CASES");
}

/* One GPU for each rank; with more ranks than GPUs, ranks share. */
DLDevice gpu_device_for(int rank);

const memory_device_ops *gpu_memory(void);

/* Return a function of the CUDA driver, real or emulated, for memory that Banyan did not make;
 * NULL: it does not exist. If there are two versions, returns the second. tests/emulation/cuda.h
 * has the types of both for virtual memory. */
void *gpu_driver_function(const char *name);

/* Memory as from cudaMalloc. */
void *gpu_plain_alloc(DLDevice device, size_t bytes);
void gpu_plain_free(DLDevice device, void *address);

/* Between memory of any kind; complete on return. */
void gpu_copy(void *to, const void *from, size_t bytes);
void gpu_fill(void *to, uint8_t value, size_t bytes);

/* A value that no test expects. */
void gpu_poison(void *to, size_t bytes);

/* Return a host copy of the bytes at the address; the caller frees it. */
void *gpu_read(const void *from, size_t bytes);

/* Bytes of emulated GPUs' memory that this process has mapped, its own and its peers'. */
size_t gpu_mapped_here(void);

/* Free bytes of this rank's GPU while no rank allocates: all ranks call it. */
size_t gpu_free_bytes(banyan_world *world);

#endif
