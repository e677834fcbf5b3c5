/* Plans on a device: what an executor, a loaded plan and its runs ask of the device's module. */
#ifndef EXECUTE_DEVICE_DEVICE_H
#define EXECUTE_DEVICE_DEVICE_H

#include "execute/load/loaded.h"

/* Open the engine of the device that the options name. Local. */
banyan_status device_open(banyan_executor *executor, DLDevice device);
void device_close(banyan_executor *executor);

/* Hand over what stays the same from cut to cut. Local. */
banyan_status device_load(banyan_loaded_plan *loaded);
/* What was given to the device; before anything else of the plan goes. */
void device_unload(banyan_loaded_plan *loaded);

/* Queue one run of the cut in the stream. */
banyan_status device_run(banyan_loaded_plan *loaded, plan_cut *cut, const void *input, void *output,
                         void *stream);
/* The cut's program leaves the device, and what it has recorded is taken over. */
void device_drop_cut(banyan_loaded_plan *loaded, plan_cut *cut);

/* Later runs fail with `status` and the sentence in banyan_last_error(), until device_reset. */
void device_fail(banyan_loaded_plan *loaded, banyan_status status);
/* BANYAN_OK, or the error of the first run that failed. */
banyan_status device_status(banyan_loaded_plan *loaded);
banyan_status device_drain(banyan_loaded_plan *loaded);
banyan_status device_reset(banyan_loaded_plan *loaded);

banyan_status device_trace_begin(banyan_executor *executor);
/* Add what was recorded to the executor's trace. */
banyan_status device_trace_take(banyan_executor *executor);
banyan_status device_trace_stop(banyan_executor *executor);

#endif
