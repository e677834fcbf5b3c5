/* Plans on a device: the calls of executors, loaded plans and runs to the device's module. */
#ifndef EXECUTE_DEVICE_DEVICE_H
#define EXECUTE_DEVICE_DEVICE_H

#include "execute/load/loaded.h"

/* Open the engine of the device that the options name. Local. */
banyan_status device_open(banyan_executor *executor, DLDevice device);
void device_close(banyan_executor *executor);
/* Connect to ranks of other nodes. Collective. */
banyan_status device_connect(banyan_executor *executor);

/* Hand over everything that does not depend on the message size. Local. */
banyan_status device_load(banyan_loaded_plan *loaded);
/* Release what device_load gave to the device. Call it before any other part of the plan is
 * freed. */
void device_unload(banyan_loaded_plan *loaded);

/* Queue one run of the specialized plan in the stream. */
banyan_status device_run(banyan_loaded_plan *loaded, specialized_plan *specialized,
                         const void *input, void *output, void *stream);
/* Add the specialized plan's records to the trace and free its program on the device. */
void device_drop_specialized(banyan_loaded_plan *loaded, specialized_plan *specialized);

/* Let later runs fail with `status` and the message in banyan_last_error(), until device_reset. */
void device_fail(banyan_loaded_plan *loaded, banyan_status status);
/* Return BANYAN_OK, or the error of the first failed run. */
banyan_status device_status(banyan_loaded_plan *loaded);
banyan_status device_drain(banyan_loaded_plan *loaded);
banyan_status device_reset(banyan_loaded_plan *loaded);

banyan_status device_trace_begin(banyan_executor *executor);
/* Add the recorded operations to the executor's trace. */
banyan_status device_trace_take(banyan_executor *executor);
banyan_status device_trace_stop(banyan_executor *executor);

#endif
