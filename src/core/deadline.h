/* Time and deadlines. */
#ifndef CORE_DEADLINE_H
#define CORE_DEADLINE_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define NS_PER_S UINT64_C(1000000000)
#define NS_PER_MS UINT64_C(1000000)

/* Every message of a timeout ends with the name of its limit and these words. */
#define TIMEOUT_SETS " sets how long"
#define TIMEOUT_OF_WORLD "BANYAN_TIMEOUT or the world's timeout_ns"
#define TIMEOUT_HINT TIMEOUT_OF_WORLD TIMEOUT_SETS

/* Return the name of the option that sets a limit; `option` NULL: the world's. */
static inline const char *timeout_name(const char *option)
{
    return option ? option : TIMEOUT_OF_WORLD;
}

/* Return CLOCK_MONOTONIC in nanoseconds. */
static inline uint64_t time_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

/* Return the time at which a wait of `timeout_ns` from now ends; saturates. */
static inline uint64_t deadline_after(uint64_t timeout_ns)
{
    uint64_t now = time_now_ns();
    return timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
}

static inline uint64_t deadline_left_ns(uint64_t deadline_ns)
{
    uint64_t now = time_now_ns();
    return deadline_ns > now ? deadline_ns - now : 0;
}

#endif
