#include "core/options.h"

#include <string.h>

#include "core/error.h"

banyan_status options_take(const void *given, const char *init, void *taken, size_t bytes)
{
    size_t size = bytes;
    if (!given)
        return BANYAN_OK;
    memcpy(&size, given, sizeof size);
    if (size == 0)
        return error_set(BANYAN_ERR_INVALID, "options have size 0: %s sets it", init);
    memcpy(taken, given, size < bytes ? size : bytes);
    memcpy(taken, &bytes, sizeof bytes);
    return BANYAN_OK;
}

uint64_t options_read_u64(const void *given, size_t offset)
{
    size_t size = 0;
    uint64_t value = 0;
    if (given)
        memcpy(&size, given, sizeof size);
    if (size >= offset + sizeof value)
        memcpy(&value, (const char *)given + offset, sizeof value);
    return value;
}
