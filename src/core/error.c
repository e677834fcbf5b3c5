#include "core/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "core/text/escape.h"

#define ERROR_BYTES 4096

static _Thread_local char last_error[ERROR_BYTES];

static const char *const status_names[] = {
    [BANYAN_OK] = "BANYAN_OK",
    [BANYAN_ERR_INVALID] = "BANYAN_ERR_INVALID",
    [BANYAN_ERR_NO_MEMORY] = "BANYAN_ERR_NO_MEMORY",
    [BANYAN_ERR_SYSTEM] = "BANYAN_ERR_SYSTEM",
    [BANYAN_ERR_TIMEOUT] = "BANYAN_ERR_TIMEOUT",
    [BANYAN_ERR_PEER_LOST] = "BANYAN_ERR_PEER_LOST",
    [BANYAN_ERR_ABORTED] = "BANYAN_ERR_ABORTED",
    [BANYAN_ERR_UNSUPPORTED] = "BANYAN_ERR_UNSUPPORTED",
    [BANYAN_ERR_FORMAT] = "BANYAN_ERR_FORMAT",
    [BANYAN_ERR_MISMATCH] = "BANYAN_ERR_MISMATCH",
    [BANYAN_ERR_NOT_FOUND] = "BANYAN_ERR_NOT_FOUND",
    [BANYAN_ERR_CORRUPT] = "BANYAN_ERR_CORRUPT",
    [BANYAN_ERR_REFUSED] = "BANYAN_ERR_REFUSED",
    [BANYAN_ERR_NVSHMEM] = "BANYAN_ERR_NVSHMEM",
};

const char *banyan_status_name(banyan_status status)
{
    size_t i = (size_t)status;
    if (i >= sizeof(status_names) / sizeof(status_names[0]))
        return "BANYAN_ERR_UNKNOWN";
    return status_names[i];
}

const char *banyan_last_error(void)
{
    return last_error;
}

/* Format into a temporary buffer first: the arguments may point into last_error. */
static void error_set_message(const char *format, va_list args, const char *suffix)
{
    char text[ERROR_BYTES];
    vsnprintf(text, sizeof text, format, args);
    escape_controls(text, last_error, sizeof last_error);
    size_t used = strlen(last_error);
    snprintf(last_error + used, sizeof last_error - used, "%s", suffix);
}

banyan_status banyan_error_set(banyan_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    error_set_message(format, args, "");
    va_end(args);
    return status;
}

banyan_status error_set_errno(const char *format, ...)
{
    int error = errno;
    char suffix[192], buffer[96], limit_text[64] = "";
    struct rlimit limit;
    if (error == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0)
        snprintf(limit_text, sizeof limit_text, "; the limit is %llu, see \"ulimit -n\"",
                 (unsigned long long)limit.rlim_cur);
    snprintf(suffix, sizeof suffix, ": %s (errno %d)%s", strerror_r(error, buffer, sizeof buffer),
             error, limit_text);
    va_list args;
    va_start(args, format);
    error_set_message(format, args, suffix);
    va_end(args);
    return BANYAN_ERR_SYSTEM;
}

banyan_status error_no_memory(size_t bytes, const char *what)
{
    return error_set(BANYAN_ERR_NO_MEMORY, "out of memory: %zu bytes for %s", bytes, what);
}

banyan_status error_null(const char *call, const char *argument)
{
    return error_set(BANYAN_ERR_INVALID, "%s: %s is NULL", call, argument);
}

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
