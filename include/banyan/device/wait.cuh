/* Banyan in kernels: bounded waits.
 *
 *     banyan_device_wait wait = {};
 *     while (banyan_device_load_acquire(counter) < expected) {
 *         if (!banyan_device_wait_on(&limits, &wait))
 *             break; // banyan_device_wait_end(&wait) returns the reason
 *     }
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BANYAN_DEVICE_WAIT_CUH
#define BANYAN_DEVICE_WAIT_CUH

#include <banyan/device/access.cuh>

/* The conditions that end a kernel's waits: the timeout, and any word of `stops` that is not 0
 * (NULL: none). Words may lie in pinned host memory: a warp reads them during one millisecond of
 * every 256. */
typedef struct banyan_device_limits {
    uint64_t timeout_ns;
    const uint32_t *stops[2];
} banyan_device_limits;

/* Reason why a wait ended. */
typedef enum banyan_device_end {
    BANYAN_DEVICE_WAITING, /* it has not ended */
    BANYAN_DEVICE_LATE,    /* the timeout passed */
    BANYAN_DEVICE_STOPPED  /* a word of `stops` is not 0 */
} banyan_device_end;

/* State of one wait of one thread. A zeroed struct is ready for use. */
typedef struct banyan_device_wait {
    uint64_t since; /* nanoseconds, a multiple of 4, plus the reason for the end */
    uint32_t looks;
} banyan_device_wait;

/* Polls between two readings of the clock: a fraction of a millisecond. */
#ifdef __CUDACC__
#define BANYAN_DEVICE_LOOKS 256
#else
#define BANYAN_DEVICE_LOOKS 8
#endif

/* True if it is this warp's turn to read the stops: each warp has one millisecond of 256.
 * Simultaneous reads of host memory by thousands of warps would delay the kernel by as much as its
 * late peer does, and in turn the peer. */
BANYAN_DEVICE bool banyan_device_wait_turn(uint64_t now)
{
#ifdef __CUDACC__
    uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / BANYAN_DEVICE_WARP;
    return (((uint32_t)(now >> 20) ^ warp) & 255) == 0;
#else
    (void)now;
    return true;
#endif
}

/* Read the clock, and from time to time the stops. */
BANYAN_DEVICE uint64_t banyan_device_wait_look(uint64_t since, uint64_t timeout_ns,
                                               const uint32_t *stop, const uint32_t *other)
{
    uint64_t now = banyan_device_time_ns();
    if (since == 0)
        since = now & ~(uint64_t)3;
    if (banyan_device_wait_turn(now) && ((stop && banyan_device_load<uint32_t>(stop) != 0) ||
                                         (other && banyan_device_load<uint32_t>(other) != 0)))
        return since | BANYAN_DEVICE_STOPPED;
    return since | (now - since > timeout_ns ? BANYAN_DEVICE_LATE : BANYAN_DEVICE_WAITING);
}

/* Return the reason why the wait ended (banyan_device_end). */
BANYAN_DEVICE uint32_t banyan_device_wait_end(const banyan_device_wait *wait)
{
    return (uint32_t)wait->since & 3;
}

/* Call it in every iteration of a waiting loop. False: give up. */
BANYAN_DEVICE bool banyan_device_wait_on(const banyan_device_limits *limits,
                                         banyan_device_wait *wait)
{
    banyan_device_pause();
    if (++wait->looks % BANYAN_DEVICE_LOOKS != 0)
        return true;
    wait->since = banyan_device_wait_look(wait->since, limits->timeout_ns, limits->stops[0],
                                          limits->stops[1]);
    return banyan_device_wait_end(wait) == BANYAN_DEVICE_WAITING;
}

/* Return the duration of the wait since its first reading of the clock. */
BANYAN_DEVICE uint64_t banyan_device_waited_ns(const banyan_device_wait *wait)
{
    return wait->since == 0 ? 0 : banyan_device_time_ns() - (wait->since & ~(uint64_t)3);
}

#endif
