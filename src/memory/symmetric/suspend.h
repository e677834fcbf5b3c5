/* Giving back the physical memory of buffers on devices for a while.
 *
 * Addresses stay, at the owner and at its peers, so that whoever has noted them need not be told:
 * kernels in graphs, above all. */
#ifndef MEMORY_SYMMETRIC_SUSPEND_H
#define MEMORY_SYMMETRIC_SUSPEND_H

#include "memory/space.h"

/* Of all buffers of this world that lie on devices and that Banyan has allocated: release this
 * rank's part and what it maps of its peers'. Nobody may use them any more. When it returns the
 * memory is free, at all ranks. Those that are suspended already stay so. Collective. */
banyan_status memory_suspend_all(banyan_world *world);

/* Have zeroed memory at the same addresses again. Collective. When one rank cannot, all hear why,
 * everything is as suspended as before, and it can be tried again. */
banyan_status memory_resume_all(banyan_world *world);

/* Take a suspended buffer out of its world, which it then outlives, and put it into another one
 * whose node has as many ranks here, this one in the same place. All ranks do the same in the same
 * order. Meanwhile it can only be freed. Local. INVALID, NO_MEMORY: it is in no world yet. */
void memory_leave(banyan_memory *memory);
banyan_status memory_join(banyan_world *world, banyan_memory *memory);

#endif
