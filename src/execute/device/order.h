/* What a device's signals have to publish.
 *
 * A relaxed signal says that something has happened, and nothing of what was written goes with it.
 * Plans are around that give one behind their last stores all the same, and whose callers wait for
 * all ranks before they look. But a run that stages its buffers looks itself, as soon as its waits
 * are over. So relaxed signals stay what they are only where there is nothing to publish. */
#ifndef EXECUTE_DEVICE_ORDER_H
#define EXECUTE_DEVICE_ORDER_H

#include "execute/device/program.h"

/* Clear `relaxed` of all signals before which their thread block has written data, or learned of
 * other's by a wait, that no signal on the same channel has published since. What runs stage of
 * their input is written before the first step. */
banyan_status engine_order(const banyan_loaded_plan *loaded, engine_arrays *arrays);

#endif
