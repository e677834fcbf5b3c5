/* Multicast addresses for a context's memory on GPUs: fills setup.multicast. */
#ifndef MIXED_MEMORY_MULTICAST_H
#define MIXED_MEMORY_MULTICAST_H

#include "mixed/mixed.h"

/* Call it once the grid and the device are known, before the engine is opened. Collective. */
banyan_status multicast_agree(banyan_mixed *mixed);

/* Call it once the memory exists, and again after a resume, when the addresses are as before. If
 * an address cannot be created, the log says so and there are none. Collective. */
banyan_status multicast_make(banyan_mixed *mixed);

#endif
