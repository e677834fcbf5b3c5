#include "memory/user/cma.h"

#include <errno.h>
#include <limits.h>
#include <sys/uio.h>

#include "core/error.h"
#include "memory/user/cursor.h"

/* Entries per call: fewer than IOV_MAX, so that both lists fit a small stack. */
#define BATCH 512

typedef ssize_t (*cma_call)(pid_t pid, const struct iovec *local, unsigned long local_count,
                            const struct iovec *remote, unsigned long remote_count,
                            unsigned long flags);

static banyan_status cma_failed(const cma_peer *peer, const char *call, const struct iovec *local,
                                const struct iovec *remote)
{
    int error = errno;
    if (error == ESRCH)
        return error_set(BANYAN_ERR_PEER_LOST, "rank %d has lost rank %d: process %d has ended",
                         peer->rank, peer->peer, (int)peer->pid);
    if (error == ENOMEM)
        return error_no_memory(local->iov_len, call);
    if (error == EFAULT)
        return error_set(BANYAN_ERR_SYSTEM,
                         "rank %d: %s of %zu bytes: memory is missing, at %p of rank %d or at %p "
                         "here",
                         peer->rank, call, local->iov_len, remote->iov_base, peer->peer,
                         local->iov_base);
    errno = error;
    return error_set_errno("rank %d: %s of %zu bytes at %p of rank %d (process %d)", peer->rank,
                           call, local->iov_len, remote->iov_base, peer->peer, (int)peer->pid);
}

/* Fill the two lists of one call with the next pieces. */
static size_t fill_batch(cursor at, uint64_t address, struct iovec *local, struct iovec *remote)
{
    size_t entries = 0;
    while (entries < BATCH && !cursor_at_end(&at)) {
        banyan_iovec piece = cursor_piece(&at, SSIZE_MAX);
        remote[entries] = (struct iovec){(void *)(uintptr_t)(address + piece.offset), piece.bytes};
        local[entries] = (struct iovec){piece.local, piece.bytes};
        entries++;
        cursor_advance(&at, piece.bytes);
    }
    return entries;
}

/* A call may stop early, at a piece's end or a bad page; the next call then reports which. */
static banyan_status user_cma_transfer(const cma_peer *peer, const char *name, cma_call call,
                                       uint64_t address, const banyan_iovec *pieces, size_t count)
{
    cursor at = cursor_at_start(pieces, count);
    struct iovec local[BATCH], remote[BATCH];
    while (!cursor_at_end(&at)) {
        size_t entries = fill_batch(at, address, local, remote);
        ssize_t moved = call(peer->pid, local, entries, remote, entries, 0);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return cma_failed(peer, name, local, remote);
        cursor_advance(&at, (size_t)moved);
    }
    return BANYAN_OK;
}

banyan_status cma_read(const cma_peer *peer, uint64_t address, const banyan_iovec *pieces,
                       size_t count)
{
    return user_cma_transfer(peer, "process_vm_readv", process_vm_readv, address, pieces, count);
}

banyan_status cma_write(const cma_peer *peer, uint64_t address, const banyan_iovec *pieces,
                        size_t count)
{
    return user_cma_transfer(peer, "process_vm_writev", process_vm_writev, address, pieces, count);
}
