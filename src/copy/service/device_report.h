/* How runs went on a device that nobody on the host waits for: what modules tell, and the sentence
 * it becomes. */
#ifndef COPY_SERVICE_DEVICE_REPORT_H
#define COPY_SERVICE_DEVICE_REPORT_H

#include <stdbool.h>

#include <banyan/world.h>

#include "world/control.h"

typedef enum device_verdict {
    DEVICE_FINE,
    DEVICE_LATE,    /* a wait passed its deadline */
    DEVICE_STOPPED, /* a peer was lost or the world aborted: the world has the sentence */
    DEVICE_SPOILT   /* what came from the peer is not what should: its run has failed */
} device_verdict;

typedef struct device_report {
    device_verdict verdict;
    int peer;      /* that was waited for */
    bool for_data; /* that it moves, not for its being there */
    uint64_t waited_ns;
} device_report;

/* `who` is a backend; of a late peer, `lacks` says what it was to do, or give; `timeout` is its
 * service's. */
banyan_status device_report_status(banyan_world *world, const char *who, control_timeout timeout,
                                   const device_report *report, const char *lacks);

#endif
