/* Pages: anonymous shared memory, where it is mapped, and filling it in. */
#ifndef MEMORY_SYMMETRIC_PAGES_H
#define MEMORY_SYMMETRIC_PAGES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/error.h"

#define PAGES_HUGE_BYTES ((size_t)2 << 20)

/* Shared memory that has no name anywhere, and a mapping of it. */
typedef struct pages {
    char *address; /* NULL when there are none */
    size_t mapped_bytes;
} pages;

/* `bytes` > 0 zeroed bytes, rounded up to pages; `*fd` is to be closed once peers have mapped it.
 * `sparse`: most of it will never be touched, so huge pages would be a waste. */
banyan_status pages_create(size_t bytes, bool sparse, int *fd, pages *made);

/* Map what another process made, mapped_bytes long there. */
banyan_status pages_map(int fd, size_t mapped_bytes, pages *made);

/* Take part in a mapping that this process made with pages_create: ranks that are threads of one
 * process use one mapping. NOT_FOUND when there is none at that address. */
banyan_status pages_share(const void *address, size_t mapped_bytes, pages *made);

/* Unmap, when nobody shares it any more. */
void pages_release(pages *mapped);

/* NO_MEMORY for more than the machine has. Overcommitted memory would fail when it is touched, with
 * SIGBUS or by the kernel's killing somebody. */
banyan_status memory_check_machine(size_t bytes, const char *what);

/* Have every page of [address, address + bytes) in place, so that no later access faults. A hint:
 * what cannot be filled in now faults later. `write`: it will be written. The copy layer calls it
 * when it prepares. */
void memory_prefault(void *address, size_t bytes, bool write);

#endif
