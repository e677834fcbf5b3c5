#include "cuda/mixed/nodes/puts.h"

#include <stddef.h>

#ifdef BANYAN_NVSHMEM_VERSION
extern const unsigned long long nodes_puts_bytes[];
const void *const nodes_puts_image = nodes_puts_bytes;
const int nodes_puts_version[3] = {BANYAN_NVSHMEM_VERSION};
#else
const void *const nodes_puts_image = NULL;
const int nodes_puts_version[3] = {0};
#endif
