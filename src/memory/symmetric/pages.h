/* Pages: anonymous shared memory, its mappings, and prefaulting. */
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

/* Create `bytes` > 0 zeroed bytes, rounded up to pages. Close `*fd` once peers have mapped them.
 * `sparse`: most of the memory is never touched, so huge pages would waste memory. */
banyan_status pages_create(size_t bytes, bool sparse, int *fd, pages *made);

/* Map memory of another process, mapped_bytes long there. */
banyan_status pages_map(int fd, size_t mapped_bytes, pages *made);

/* Share a mapping that this process made with pages_create: ranks that are threads of one process
 * use one mapping. NOT_FOUND when there is none at that address. */
banyan_status pages_share(const void *address, size_t mapped_bytes, pages *made);

/* Unmap when the last user releases it. */
void pages_release(pages *mapped);

/* NO_MEMORY for more than the machine has. Overcommitted memory would fail on first touch, with
 * SIGBUS or the kernel's OOM killer. */
banyan_status memory_check_machine(size_t bytes, const char *what);

/* Prefault every page of [address, address + bytes), so that later accesses do not fault. A hint: a
 * page that cannot be populated now faults later. `write`: the memory will be written. The copy
 * layer calls it when it prepares. */
void memory_prefault(void *address, size_t bytes, bool write);

#endif
