/* Report about runs on a device, for which no host thread waits: the report of a module, and the
 * message made of it. */
#ifndef COPY_SERVICE_DEVICE_REPORT_H
#define COPY_SERVICE_DEVICE_REPORT_H

#include <stdbool.h>

#include <banyan/world.h>

#include "world/control.h"

typedef enum device_verdict {
    DEVICE_FINE,
    DEVICE_LATE,    /* a wait passed its deadline */
    DEVICE_STOPPED, /* a peer was lost or the world aborted: the world has the message */
    DEVICE_SPOILT   /* data from the peer is invalid: its run has failed */
} device_verdict;

typedef struct device_report {
    device_verdict verdict;
    int peer;      /* the late peer */
    bool for_data; /* it is late to move data, not to arrive */
    uint64_t waited_ns;
} device_report;

/* Turn a report into a status. `who` is a backend; for a late peer, `lacks` describes the missing
 * action or data; `timeout` is the service's timeout. */
banyan_status device_report_status(banyan_world *world, const char *who, control_timeout timeout,
                                   const device_report *report, const char *lacks);

#endif
