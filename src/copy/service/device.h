/* Copies on a device: the module's tables, the ranks that share the device, and the status of runs
 * for which no host thread waits. */
#ifndef COPY_SERVICE_DEVICE_H
#define COPY_SERVICE_DEVICE_H

#include <banyan/world.h>

#include "core/device_report.h"
#include "core/module.h"
#include "memory/device.h"
#include "world/control.h"

/* Open the device, and find its memory's table and those of its module. */
banyan_status copy_device_find(DLDevice device, const memory_device_ops **memory,
                               const module_tables **tables);

/* Count the ranks that use this rank's device, itself included. Collective. */
banyan_status copy_device_sharers(banyan_world *world, const memory_device_ops *memory, int device,
                                  int *sharers);

/* Turn a report into a status. `who` is a backend; for a late peer, `lacks` describes the missing
 * action or data; `timeout` is the service's timeout. */
banyan_status copy_device_status(banyan_world *world, const char *who, control_timeout timeout,
                                 const device_report *report, const char *lacks);

#endif
