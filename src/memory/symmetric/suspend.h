/* Release the physical memory of device buffers for a while.
 *
 * Addresses stay reserved, at the owner and at its peers, so that kernels in graphs, above all,
 * need no update. */
#ifndef MEMORY_SYMMETRIC_SUSPEND_H
#define MEMORY_SYMMETRIC_SUSPEND_H

#include "memory/space.h"

/* Release this rank's part, and its mappings of peers' parts, of all buffers of this world that
 * Banyan allocated on devices. Suspended buffers stay suspended. Local: no rank may use the buffers
 * any more when it is called, and the memory is free when all ranks have called it. */
void memory_suspend_all(banyan_world *world);

/* Map zeroed memory at the old addresses again. Collective. When one rank fails, all get its error,
 * all buffers stay suspended, and you can try again. */
banyan_status memory_resume_all(banyan_world *world);

/* Take a suspended buffer out of its world, which it then outlives, and add it to another world.
 * That world's node must have as many ranks, with this rank at the same index. All ranks do so in
 * the same order. Between the calls the buffer can only be freed. Local. On INVALID or NO_MEMORY it
 * is still in no world. */
void memory_leave(banyan_memory *memory);
banyan_status memory_join(banyan_world *world, banyan_memory *memory);

#endif
