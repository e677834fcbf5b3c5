/* Multicast addresses for the memory of a context on GPUs: what setup.multicast says. */
#ifndef MIXED_MEMORY_MULTICAST_H
#define MIXED_MEMORY_MULTICAST_H

#include "mixed/mixed.h"

/* Once the grid and the device are known, before the engine is opened. Collective. */
banyan_status multicast_agree(banyan_mixed *mixed);

/* Once the memory is there, and again after a resume: the addresses are the same then. When some
 * cannot be made the log says so, and there are none. Collective. */
banyan_status multicast_make(banyan_mixed *mixed);

#endif
