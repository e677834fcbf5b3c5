#include "core/threads/futex.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/deadline.h"

void futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns)
{
    struct timespec timeout = {
        .tv_sec = (time_t)(timeout_ns / NS_PER_S),
        .tv_nsec = (long)(timeout_ns % NS_PER_S),
    };
    syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, NULL, 0);
}

void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
