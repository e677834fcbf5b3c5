/* Reports of waits on a device, for which no host thread waits: the one form in which kernels write
 * them, modules hand them over, and the host reads them. */
#ifndef CORE_DEVICE_REPORT_H
#define CORE_DEVICE_REPORT_H

#include <stdint.h>

typedef enum device_verdict {
    DEVICE_FINE,    /* nothing has failed: a wait, if there is one, goes on */
    DEVICE_LATE,    /* a wait passed its deadline */
    DEVICE_STOPPED, /* a peer was lost or the world aborted: the world has the message */
    DEVICE_SPOILT   /* data from the peer is invalid: its run has failed */
} device_verdict;

typedef struct device_report {
    uint64_t what[3]; /* the object of the wait, as the kernel's table defines it */
    uint64_t waited_ns;
    uint32_t verdict; /* enum device_verdict */
    uint32_t unused;
} device_report;

/* Most kernels know the rank that they wait for: then what[0] has it (its number in the world, plus
 * 1), and above it a word of their own. */

/* Return the rank, or -1. */
static inline int device_report_rank(const device_report *report)
{
    return (int)(uint32_t)report->what[0] - 1;
}

static inline uint32_t device_report_own(const device_report *report)
{
    return (uint32_t)(report->what[0] >> 32);
}

#endif
