/* The CUDA module: Banyan's functions on NVIDIA GPUs. */
#include "core/module.h"

#include <stdio.h>
#include <string.h>

#include "cuda/driver.h"
#include "cuda/execute/engine.h"
#include "cuda/memory/memory.h"
#include "cuda/mixed/engine.h"
#include "cuda/module.h"

static const banyan_copy_backend *const device_backends[] = {&cuda_nccl_backend, NULL};

static const module_tables tables = {
    .abi_version = MODULE_ABI_VERSION,
    .name = "cuda",
    .device_memory = &cuda_memory_ops,
    .gpu_copy = &cuda_gpu_copy_ops,
    .gpu_pipeline = &cuda_gpu_pipeline_ops,
    .engine = &cuda_engine_ops,
    .device_copy_backends = device_backends,
    .mixed = &cuda_mixed_ops,
    .delta = &cuda_delta_ops,
};

BANYAN_API bool banyan_module_entry(uint32_t abi_version, const module_tables **handed_over,
                                    char *reason, size_t reason_bytes);

bool banyan_module_entry(uint32_t abi_version, const module_tables **handed_over, char *reason,
                         size_t reason_bytes)
{
    if (abi_version != MODULE_ABI_VERSION) {
        snprintf(reason, reason_bytes, "it has version %d of the module contract, not %u",
                 MODULE_ABI_VERSION, abi_version);
        return false;
    }
    if (driver_open() != BANYAN_OK) {
        const char *missing = banyan_last_error();
        bool named =
            strncmp(missing, "cuda: ", 6) == 0; /* the loader of a module adds its name, too */
        snprintf(reason, reason_bytes, "%s", missing + (named ? 6 : 0));
        return false;
    }
    *handed_over = &tables;
    return true;
}
