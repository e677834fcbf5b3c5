/* The copy backends that Banyan brings, and what every backend's table is checked for. */
#ifndef COPY_SERVICE_BACKENDS_H
#define COPY_SERVICE_BACKENDS_H

#include <banyan/copy.h>

extern const banyan_copy_backend copy_backend_direct;

/* INVALID, naming what it lacks, for a table without a name, open, close or either trio. */
banyan_status copy_backend_check(const banyan_copy_backend *backend);

/* True when the second trio (prepare, execute, release) is there. */
bool copy_backend_keeps_schedules(const banyan_copy_backend *backend);

#endif
