/* The emulated driver's modules: images that exist already. */
#include <string.h>

#include "image.h"
#include "state.h"

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    if (!emulated_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    *module = (CUmodule)(uintptr_t)image;
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module)
{
    memset(module->nvshmem, 0, sizeof *module->nvshmem);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *kernel, CUmodule module, const char *name)
{
    const emulated_entry *entry = module->entries;
    while (entry->name && strcmp(entry->name, name) != 0)
        entry++;
    if (!entry->name)
        return CUDA_ERROR_NOT_FOUND;
    *kernel = (CUfunction)(uintptr_t)entry->kernel;
    return CUDA_SUCCESS;
}
