/* The built-in copy backends, and the check of every backend's table. */
#ifndef COPY_SERVICE_BACKENDS_H
#define COPY_SERVICE_BACKENDS_H

#include <banyan/copy.h>

extern const banyan_copy_backend copy_backend_direct;

/* Check a backend's table. INVALID, naming the missing member, for a table without a name, open,
 * close or either trio. */
banyan_status copy_backend_check(const banyan_copy_backend *backend);

/* True if the table has the second trio (prepare, execute, release). */
bool copy_backend_keeps_schedules(const banyan_copy_backend *backend);

extern const banyan_copy_backend copy_backend_direct_device;

extern const banyan_copy_backend copy_backend_pipeline_device;

#endif
