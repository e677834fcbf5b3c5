/* Multicast addresses of symmetric buffers on devices: one that stands for the same place in the
 * parts of several ranks, for multimem instructions alone. Opt-in: BANYAN_MULTICAST=1. */
#ifndef MEMORY_SYMMETRIC_MULTICAST_H
#define MEMORY_SYMMETRIC_MULTICAST_H

#include "memory/space.h"

/* May the world's ranks use multicast on their devices? When all have BANYAN_MULTICAST=1, a device
 * each, and what it takes there; else `why_not` (NULL: none is asked for) says what is missing, as
 * part of a sentence. When only some have it, or lack something, the log says so at level info.
 * Errors are those of the world. Collective. */
banyan_status memory_multicast_agree(banyan_world *world, DLDevice device, bool *usable,
                                     char *why_not, size_t why_not_bytes);

/* An address for the first `*bytes` of a buffer in the parts of `ranks`, ascending, this rank among
 * them; every rank of the world names those of its own group, or none (`count` 0: `*address` is
 * NULL then). The smallest part, in whole units of the device's, is how much there is. It is made
 * once a group and stays until the buffer is freed. Collective over the world, once
 * memory_multicast_agree has said yes; an error of one rank is all ranks', and leaves nothing:
 * UNSUPPORTED for adopted memory, MISMATCH when ranks name different groups. */
banyan_status memory_multicast_make(banyan_memory *memory, const int *ranks, int count,
                                    char **address, size_t *bytes);

/* When a buffer's memory is given back for a while (suspend.h): before it goes, local; and once it
 * is there again, at the same addresses, collective. After an error it can be suspended again. */
void memory_multicasts_suspend(banyan_memory *memory);
banyan_status memory_multicasts_resume(banyan_memory *memory);

/* Local. */
void memory_multicasts_free(banyan_memory *memory);

#endif
