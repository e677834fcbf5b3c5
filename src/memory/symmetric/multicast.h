/* Multicast addresses of symmetric buffers on devices: one address for corresponding places in the
 * parts of several ranks, for multimem instructions only. Opt-in: BANYAN_MULTICAST=1. */
#ifndef MEMORY_SYMMETRIC_MULTICAST_H
#define MEMORY_SYMMETRIC_MULTICAST_H

#include "memory/space.h"

/* Agree whether the world's ranks use multicast on their devices. They do if all have
 * BANYAN_MULTICAST=1, a device each, and the required support. Otherwise `why_not` (NULL: none is
 * requested) says what is missing, as part of a message. If only some ranks qualify, an info log
 * line says so. Errors are those of the world. Collective. */
banyan_status memory_multicast_agree(banyan_world *world, DLDevice device, bool *usable,
                                     char *why_not, size_t why_not_bytes);

/* Get an address for the first `*bytes` of a buffer in the parts of `ranks`, which are ascending
 * and include this rank. Every rank of the world names its own group, or none (`count` 0,
 * `*address` NULL). `*bytes` is the size of the smallest part, in whole units of the device. The
 * address is created once per group and stays until the buffer is freed. Collective over the world,
 * after memory_multicast_agree has agreed. An error of one rank is the error of all ranks, and
 * leaves nothing behind: UNSUPPORTED for adopted memory, MISMATCH when ranks name different groups.
 */
banyan_status memory_multicast_make(banyan_memory *memory, const int *ranks, int count,
                                    char **address, size_t *bytes);

/* Suspend the addresses before a buffer's memory is released (suspend.h), local; resume them, at
 * unchanged addresses, once the memory is back, collective. After an error they can be suspended
 * again. */
void memory_multicasts_suspend(banyan_memory *memory);
banyan_status memory_multicasts_resume(banyan_memory *memory);

/* Local. */
void memory_multicasts_free(banyan_memory *memory);

#endif
