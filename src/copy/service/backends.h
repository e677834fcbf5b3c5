/* The built-in copy backends, and the check of every backend's table. */
#ifndef COPY_SERVICE_BACKENDS_H
#define COPY_SERVICE_BACKENDS_H

#include <banyan/copy.h>

#include "core/device_report.h"
#include "world/control.h"

extern const banyan_copy_backend copy_backend_direct;

/* Check a backend's table. INVALID, naming the missing member, for a table without a name, open,
 * close or either trio. */
banyan_status copy_backend_check(const banyan_copy_backend *backend);

/* True if the table has the second trio (prepare, execute, release). */
bool copy_backend_keeps_schedules(const banyan_copy_backend *backend);

/* Turn a report about runs on a device into a status. `who` is a backend; for a late peer, `lacks`
 * describes the missing action or data; `timeout` is the service's timeout. */
banyan_status device_report_status(banyan_world *world, const char *who, control_timeout timeout,
                                   const device_report *report, const char *lacks);

extern const banyan_copy_backend copy_backend_direct_device;

extern const banyan_copy_backend copy_backend_pipeline_device;

#endif
