#include "memory/pieces.h"

#include <string.h>

#include "memory/device.h"
#include "memory/stream.h"

void pieces_copy(char *there, const banyan_iovec *pieces, size_t count, bool write, bool past_cache)
{
    for (size_t i = 0; i < count; i++) {
        char *remote = there + pieces[i].offset;
        char *to = write ? remote : pieces[i].local;
        const char *from = write ? pieces[i].local : remote;
        if (past_cache)
            stream_past_cache(to, from, pieces[i].bytes);
        else
            stream_copy(to, from, pieces[i].bytes);
    }
    if (past_cache)
        stream_fence();
}

static bool memory_pieces_is_on_device(const memory_device_ops *ops, const void *address)
{
    DLDevice device;
    return ops->locate(address, &device) == BANYAN_OK && !device_is_host(device);
}

bool pieces_touch_device(const char *there, const banyan_iovec *pieces, size_t count)
{
    const memory_device_ops *ops = memory_device_loaded(kDLCUDA);
    bool found = ops && memory_pieces_is_on_device(ops, there);
    for (size_t i = 0; ops && i < count && !found; i++)
        found = memory_pieces_is_on_device(ops, pieces[i].local);
    return found;
}

banyan_status pieces_copy_on_device(char *there, const banyan_iovec *pieces, size_t count,
                                    bool write)
{
    const memory_device_ops *ops = memory_device_loaded(kDLCUDA);
    for (size_t i = 0; i < count; i++) {
        char *remote = there + pieces[i].offset;
        if (write)
            RETURN_IF_FAILED(ops->copy(remote, pieces[i].local, pieces[i].bytes));
        else
            RETURN_IF_FAILED(ops->copy(pieces[i].local, remote, pieces[i].bytes));
    }
    return BANYAN_OK;
}
