/* Choose which signals of a device publish data.
 *
 * A relaxed signal says that something has happened and publishes no writes. Some plans still give
 * one after their last stores; their callers wait for all ranks before they read. But a run that
 * stages its buffers reads them as soon as its waits are over. So a signal remains relaxed only
 * where it has nothing to publish. */
#ifndef EXECUTE_DEVICE_ORDER_H
#define EXECUTE_DEVICE_ORDER_H

#include "execute/device/program.h"

/* Clear `relaxed` of a signal if its thread block wrote data, or acquired a peer's data by a wait,
 * that no signal on the same channel has published since. A run writes its staged input before the
 * first step. */
banyan_status engine_order(const banyan_loaded_plan *loaded, engine_arrays *arrays);

#endif
