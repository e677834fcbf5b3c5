/* The CUDA module: what Banyan can do on NVIDIA GPUs. */
#include "core/module.h"

#include <stdio.h>

static const module_tables tables = {
    .abi_version = MODULE_ABI_VERSION,
    .name = "cuda",
};

BANYAN_API bool banyan_module_entry(uint32_t abi_version, const module_tables **handed_over,
                                    char *reason, size_t reason_bytes);

bool banyan_module_entry(uint32_t abi_version, const module_tables **handed_over, char *reason,
                         size_t reason_bytes)
{
    if (abi_version != MODULE_ABI_VERSION) {
        snprintf(reason, reason_bytes, "it speaks version %d of the module contract, not %u",
                 MODULE_ABI_VERSION, abi_version);
        return false;
    }
    *handed_over = &tables;
    return true;
}
