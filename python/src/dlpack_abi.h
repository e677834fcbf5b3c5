/* The parts of DLPack 1.3's binary interface that Debian's dlpack.h (0.6) lacks: the versioned
 * capsule of __dlpack__, and the table of __dlpack_c_exchange_api__
 * (https://dmlc.github.io/dlpack/latest/c_api.html). */
#ifndef BANYAN_PYTHON_DLPACK_ABI_H
#define BANYAN_PYTHON_DLPACK_ABI_H

#include <cstdint>

#include <dlpack/dlpack.h>

namespace dlpack {

struct Version {
    uint32_t major, minor;
};

constexpr uint64_t READ_ONLY = 1; /* a flag of ManagedVersioned */

struct ManagedVersioned {
    Version version;
    void *manager_ctx;
    void (*deleter)(ManagedVersioned *self);
    uint64_t flags;
    DLTensor tensor;
};

struct ExchangeHeader {
    Version version;
    ExchangeHeader *previous;
};

/* The functions that take or give Python objects return 0, or -1 with a Python exception. */
struct Exchange {
    ExchangeHeader header;
    int (*allocate)(DLTensor *prototype, ManagedVersioned **out, void *context,
                    void (*set_error)(void *context, const char *kind, const char *message));
    int (*managed_from_object)(void *object, ManagedVersioned **out);
    int (*managed_to_object)(ManagedVersioned *tensor, void **object);
    int (*tensor_from_object)(void *object, DLTensor *out); /* may be null */
    int (*current_stream)(DLDeviceType type, int32_t id, void **stream);
};

} // namespace dlpack

#endif
