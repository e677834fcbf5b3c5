#include "memory/user/user.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"
#include "memory/pieces.h"
#include "memory/staging/staging.h"
#include "memory/stream.h"
#include "world/control.h"

/* The other end of cross-memory attach. */
typedef struct cma_peer {
    int rank, peer; /* for errors */
    pid_t pid;
} cma_peer;

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

/* Copy `count` pieces between this process and `address` + their offsets in the peer. A call may
 * stop early, at a piece's end or a bad page; the next call then reports which. */
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

/* Below this size, handing over to the owner's thread and back takes longer than the kernel's copy.
 */
#define SMALL_BYTES (32 << 10)
#define SMALL_COUNT 32

struct user_memory {
    memory_space *space;
    banyan_memory *mailboxes;
    user_memory_way ways[USER_MEMORY_SHAPES];
    /* some way is staging, but the kernel allows attaching, which is faster for small transfers */
    bool attaches_small;
    staging_service *service;
    staging_requester requester;
};

static mailbox *mailbox_of(const user_memory *user, int local)
{
    return (mailbox *)memory_part_of(user->mailboxes, local);
}

static banyan_status user_check_pieces(const user_memory *user, const banyan_memory_handle *handle,
                                       const banyan_iovec *pieces, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t offset = pieces[i].offset;
        if (offset > handle->bytes || pieces[i].bytes > handle->bytes - offset)
            return error_set(BANYAN_ERR_INVALID,
                             "rank %d: %zu bytes at offset %" PRIu64
                             " extend beyond rank %d's registration of %" PRIu64 " bytes",
                             user->space->rank, pieces[i].bytes, offset, handle->rank,
                             handle->bytes);
    }
    return BANYAN_OK;
}

/* Copy directly: the owner is in this process, and so is its memory. */
static void copy_here(const banyan_memory_handle *handle, const banyan_iovec *pieces, size_t count,
                      bool write, bool past_cache)
{
    pieces_copy((char *)(uintptr_t)handle->address, pieces, count, write, past_cache);
}

static banyan_status copy_own(user_memory *user, const banyan_memory_handle *handle,
                              const banyan_iovec *pieces, size_t count, bool write, bool past_cache)
{
    pthread_rwlock_rdlock(&user->space->lock);
    bool known = registration_covers(user->space, handle);
    pthread_rwlock_unlock(&user->space->lock);
    if (!known)
        return registration_missing(user->space, handle);
    copy_here(handle, pieces, count, write, past_cache);
    return BANYAN_OK;
}

static banyan_status cross_attach(user_memory *user, int local, const banyan_memory_handle *handle,
                                  const banyan_iovec *pieces, size_t count, bool write,
                                  bool past_cache)
{
    memory_space *space = user->space;
    if (!registration_shown_covers(mailbox_of(user, local)->registrations, handle))
        return registration_missing(space, handle);
    RETURN_IF_FAILED(control_check(space->world));
    cma_peer peer = {space->rank, handle->rank, control_pid(space->world, handle->rank)};
    if (peer.pid == getpid()) {
        copy_here(handle, pieces, count, write, past_cache);
        return BANYAN_OK;
    }
    if (write)
        return user_cma_transfer(&peer, "process_vm_writev", process_vm_writev, handle->address,
                                 pieces, count);
    return user_cma_transfer(&peer, "process_vm_readv", process_vm_readv, handle->address, pieces,
                             count);
}

static user_memory_shape user_memory_shape_of(size_t count, uint64_t total)
{
    return total < count * USER_MEMORY_ROW_BYTES && count > 1 ? USER_MEMORY_ROWS
                                                              : USER_MEMORY_WHOLE;
}

static banyan_status user_transfer(user_memory *user, const banyan_memory_handle *handle,
                                   const banyan_iovec *pieces, size_t count, uint64_t total,
                                   bool write)
{
    RETURN_IF_FAILED(user_check_pieces(user, handle, pieces, count));
    int local = memory_space_local(user->space, handle->rank);
    if (local < 0)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "rank %d cannot reach memory of rank %d, which is not on its node",
                         user->space->rank, handle->rank);
    if (pieces_touch_device(NULL, pieces, count))
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "rank %d: ordinary memory of rank %d is not copied from or to a GPU: use "
                         "symmetric memory",
                         user->space->rank, handle->rank);
    bool past_cache = stream_is_worthwhile(total);
    if (local == user->space->local_rank)
        return copy_own(user, handle, pieces, count, write, past_cache);
    bool small = user->attaches_small && total <= SMALL_BYTES && count <= SMALL_COUNT;
    user_memory_shape shape = user_memory_shape_of(count, total);
    if (user->ways[shape] != USER_MEMORY_STAGED || small)
        return cross_attach(user, local, handle, pieces, count, write, past_cache);
    staging_transfer request = {handle, pieces, count, write, past_cache};
    return staging_run(&user->requester, &request);
}

banyan_status user_memory_read(user_memory *user, const banyan_memory_handle *handle,
                               const banyan_iovec *pieces, size_t count, uint64_t total)
{
    return user_transfer(user, handle, pieces, count, total, false);
}

banyan_status user_memory_write(user_memory *user, const banyan_memory_handle *handle,
                                const banyan_iovec *pieces, size_t count, uint64_t total)
{
    return user_transfer(user, handle, pieces, count, total, true);
}

/* Read the way that BANYAN_USER_MEMORY names; 0 when it is not set. */
static banyan_status forced_path(const memory_space *space, uint32_t *path)
{
    const char *text = getenv("BANYAN_USER_MEMORY");
    *path = 0;
    if (!text || text[0] == '\0')
        return BANYAN_OK;
    if (strcmp(text, "cma") == 0)
        *path = BANYAN_USER_MEMORY_CMA;
    else if (strcmp(text, "staging") == 0)
        *path = BANYAN_USER_MEMORY_STAGING;
    else
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: BANYAN_USER_MEMORY is \"%s\", not cma or staging", space->rank,
                         text);
    return BANYAN_OK;
}

/* Check that all ranks of a node set the same way. */
static banyan_status agree_on_forced(memory_space *space, uint32_t *path)
{
    void *gathered;
    banyan_status status = forced_path(space, path);
    status = control_gather(space->world, status, path, sizeof *path,
                            "the ranks' paths to user memory", &gathered);
    const uint32_t *all = gathered;
    for (int i = 0; status == BANYAN_OK && i < space->local_size; i++) {
        int rank = space->local_ranks[i];
        if (all[rank] != *path)
            status = error_set(BANYAN_ERR_MISMATCH,
                               "BANYAN_USER_MEMORY is not the same at ranks %d and %d of one node",
                               space->rank, rank);
    }
    free(gathered);
    return control_agree(space->world, status);
}

/* False if the ranks are all threads of one process, or alone: they copy directly, and there is
 * nothing to compare. */
static bool has_other_processes(const memory_space *space)
{
    for (int i = 0; i < space->local_size; i++) {
        if (control_pid(space->world, space->local_ranks[i]) != getpid())
            return true;
    }
    return false;
}

static banyan_status user_choose(user_memory *user, uint32_t forced)
{
    memory_space *space = user->space;
    bool works = false;
    char reason[256] = "";
    RETURN_IF_FAILED(probe_cma(space, &works, reason, sizeof reason));
    banyan_status status = BANYAN_OK;
    if (forced == BANYAN_USER_MEMORY_CMA && !works)
        status = error_set(BANYAN_ERR_UNSUPPORTED, "BANYAN_USER_MEMORY=cma does not work here: %s",
                           reason);
    RETURN_IF_FAILED(control_agree(space->world, status));
    bool others = has_other_processes(space);
    unsigned ways = 0;
    if (works && forced != BANYAN_USER_MEMORY_STAGING)
        ways |= 1U << USER_MEMORY_CMA;
    if (!works || (forced != BANYAN_USER_MEMORY_CMA && others) ||
        forced == BANYAN_USER_MEMORY_STAGING)
        ways |= 1U << USER_MEMORY_STAGED;
    if (ways >> USER_MEMORY_STAGED & 1)
        status = staging_service_start(space, user->mailboxes, &user->service);
    RETURN_IF_FAILED(control_agree(space->world, status));
    user_memory_way best[USER_MEMORY_SHAPES];
    RETURN_IF_FAILED(measure_ways(space, user, ways, best));
    for (int shape = 0; shape < USER_MEMORY_SHAPES; shape++)
        user_memory_use(user, (user_memory_shape)shape, best[shape]);
    user->attaches_small = works && forced == 0;
    if (user_memory_path(user) != BANYAN_USER_MEMORY_STAGING) {
        staging_service_stop(user->service);
        user->service = NULL;
    }
    log_info("rank %d reaches its node's ordinary memory by %s, rows by %s%s%s", space->rank,
             user_memory_way_names[best[USER_MEMORY_WHOLE]],
             user_memory_way_names[best[USER_MEMORY_ROWS]], works ? "" : ": ", works ? "" : reason);
    return BANYAN_OK;
}

static banyan_status user_memory_create(memory_space *space, user_memory **user)
{
    if (space->local_size > MAILBOX_RANKS_MAX)
        return error_set(BANYAN_ERR_UNSUPPORTED, "a node has %d ranks, and %d is the limit",
                         space->local_size, MAILBOX_RANKS_MAX);
    user_memory *made = calloc(1, sizeof *made);
    if (!made)
        return error_no_memory(sizeof *made, "the access to user memory");
    made->space = space;
    *user = made;
    return BANYAN_OK;
}

/* Count the processors of all ranks of the node: a launcher may have bound each rank to its own
 * processor. */
static banyan_status user_count_processors(user_memory *user)
{
    memory_space *space = user->space;
    cpu_set_t *mine = &mailbox_of(user, space->local_rank)->processors, all;
    if (sched_getaffinity(0, sizeof *mine, mine) != 0)
        CPU_ZERO(mine);
    RETURN_IF_FAILED(banyan_world_barrier(space->world));
    CPU_ZERO(&all);
    for (int i = 0; i < space->local_size; i++)
        CPU_OR(&all, &all, &mailbox_of(user, i)->processors);
    space->processors = CPU_COUNT(&all);
    return BANYAN_OK;
}

static banyan_status user_memory_set_up(user_memory *user, uint32_t forced)
{
    memory_space *space = user->space;
    RETURN_IF_FAILED(memory_alloc(space->world, sizeof(mailbox), true, &user->mailboxes));
    RETURN_IF_FAILED(user_count_processors(user));
    user->requester = staging_requester_of(space, user->mailboxes);
    registrations_show(space, mailbox_of(user, space->local_rank)->registrations);
    return user_choose(user, forced);
}

banyan_status user_memory_open(memory_space *space, user_memory **user)
{
    if (space->user) {
        *user = space->user;
        return BANYAN_OK;
    }
    uint32_t forced;
    user_memory *made = NULL;
    RETURN_IF_FAILED(agree_on_forced(space, &forced));
    banyan_status status = user_memory_create(space, &made);
    status = control_agree(space->world, status);
    if (status == BANYAN_OK)
        status = user_memory_set_up(made, forced);
    if (status != BANYAN_OK) {
        user_memory_close(made);
        return status;
    }
    space->user = made;
    *user = made;
    return BANYAN_OK;
}

void user_memory_close(user_memory *user)
{
    if (!user)
        return;
    staging_service_stop(user->service);
    user->space->shown = NULL;
    user->space->user = NULL;
    banyan_memory_free(user->mailboxes);
    free(user);
}

void user_memory_use(user_memory *user, user_memory_shape shape, user_memory_way way)
{
    user->ways[shape] = way;
}

uint64_t user_memory_cpu_ns(const user_memory *user)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * NS_PER_S + (uint64_t)used.tv_nsec +
           staging_service_cpu_ns(user->service);
}

banyan_user_memory_path user_memory_path(const user_memory *user)
{
    for (int shape = 0; shape < USER_MEMORY_SHAPES; shape++) {
        if (user->ways[shape] == USER_MEMORY_STAGED)
            return BANYAN_USER_MEMORY_STAGING;
    }
    return BANYAN_USER_MEMORY_CMA;
}

banyan_status banyan_memory_user_path(banyan_world *world, banyan_user_memory_path *path)
{
    CONTROL_CALL(world, __func__);
    memory_space *space;
    user_memory *user;
    RETURN_IF_FAILED(control_fail(world, memory_space_of(world, &space)));
    RETURN_IF_FAILED(user_memory_open(space, &user));
    *path = user_memory_path(user);
    return BANYAN_OK;
}
