/* Compare tensors in host memory with their copies. */
#ifndef PUBLISH_COMPARE_H
#define PUBLISH_COMPARE_H

#include "publish/delta/device.h"

/* Compare tensors as changes_find does, by several threads (parallel.h). Maps are zeroed before.
 * Errors: NO_MEMORY. */
banyan_status compare_on_host(struct delta_compare *tensors, size_t count);

#endif
