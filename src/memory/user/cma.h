/* Cross-memory attach: the kernel copies between two processes. */
#ifndef MEMORY_USER_CMA_H
#define MEMORY_USER_CMA_H

#include <sys/types.h>

#include "memory/space.h"

typedef struct cma_peer {
    int rank, peer; /* for errors */
    pid_t pid;
} cma_peer;

/* Copy `count` pieces between this process and `address` + their offsets in the peer. */
banyan_status cma_read(const cma_peer *peer, uint64_t address, const banyan_iovec *pieces,
                       size_t count);
banyan_status cma_write(const cma_peer *peer, uint64_t address, const banyan_iovec *pieces,
                        size_t count);

#endif
