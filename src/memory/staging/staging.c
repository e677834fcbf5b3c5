/* The requester's side of staging. */
#include "memory/staging/staging.h"

#include <inttypes.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "memory/pieces.h"
#include "memory/stream.h"
#include "world/control.h"

/* A transfer in progress. Slot i % MAILBOX_SLOTS carries request i. */
struct progress {
    staging_requester *requester;
    const staging_transfer *transfer;
    mailbox *own, *owner;
    int owner_local;
    cursor next; /* next piece to post */
    size_t counts[MAILBOX_SLOTS];
    cursor begin[MAILBOX_SLOTS]; /* the first piece of each slot */
    size_t posted, completed;    /* requests */
    banyan_status status;        /* the first refusal */
};

/* All slots together take a quarter of a core's own cache. The memory being copied and the slots of
 * other ranks on the core need the rest. */
static size_t slot_bytes_for_cache(void)
{
    long cache_bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    size_t bytes = cache_bytes > 0 ? (size_t)cache_bytes / 4 / MAILBOX_SLOTS : 64 << 10;
    bytes &= ~(size_t)4095;
    if (bytes < 16 << 10)
        bytes = 16 << 10;
    return bytes < MAILBOX_SLOT_BYTES ? bytes : MAILBOX_SLOT_BYTES;
}

/* With enough cores, requester and owner work in parallel, each on its own core. Otherwise they
 * alternate on one core, so that a slot is read from the cache it was written to, and each turn
 * handles all slots. */
staging_requester staging_requester_of(memory_space *space, const banyan_memory *mailboxes)
{
    bool crowded = memory_space_is_crowded(space, 2);
    return (staging_requester){
        .space = space,
        .mailboxes = mailboxes,
        .spins = wake_up_spins(crowded),
        .slot_bytes = slot_bytes_for_cache(),
        .refill = crowded ? MAILBOX_SLOTS : MAILBOX_SLOTS / 2,
        .share_a_core = crowded,
    };
}

static void copy_out(void *destination, const void *source, size_t bytes, bool past_cache)
{
    if (past_cache)
        stream_past_cache(destination, source, bytes);
    else
        stream_copy(destination, source, bytes);
}

/* Fill the slot with the next pieces; for a write, with their bytes too. Returns the number of
 * pieces, since peers can write to the slot. */
static size_t slot_fill(mailbox_slot *slot, struct progress *work)
{
    size_t bytes = 0;
    uint32_t count = 0;
    while (count < MAILBOX_SLOT_PIECES && bytes < work->requester->slot_bytes &&
           !cursor_at_end(&work->next)) {
        banyan_iovec piece = cursor_piece(&work->next, work->requester->slot_bytes - bytes);
        slot->pieces[count++] = (slot_piece){piece.offset, piece.bytes};
        if (work->transfer->write)
            stream_into_cache(slot->data + bytes, piece.local, piece.bytes);
        bytes += piece.bytes;
        cursor_advance(&work->next, piece.bytes);
    }
    slot->owner = (uint32_t)work->owner_local;
    slot->write = work->transfer->write;
    slot->past_cache = work->transfer->past_cache;
    slot->piece_count = count;
    slot->processor = work->requester->share_a_core ? sched_getcpu() : -1;
    slot->handle = *work->transfer->handle;
    return count;
}

static void post_more(struct progress *work)
{
    bool any = false;
    while (work->posted - work->completed < MAILBOX_SLOTS && !cursor_at_end(&work->next)) {
        size_t place = work->posted % MAILBOX_SLOTS;
        work->begin[place] = work->next;
        work->counts[place] = slot_fill(&work->own->slots[place], work);
        atomic_store_explicit(&work->own->slots[place].state, SLOT_POSTED, memory_order_release);
        work->posted++;
        any = true;
    }
    if (!any)
        return;
    int me = work->requester->space->local_rank;
    mailbox_queue *queue = mailbox_queue_for(work->owner, me);
    atomic_fetch_or_explicit(&queue->requesters[me / 64], UINT64_C(1) << me % 64,
                             memory_order_release);
    wake_up_notify(&queue->requested);
}

static bool slot_is_done(mailbox_slot *slot)
{
    return atomic_load_explicit(&slot->state, memory_order_acquire) == SLOT_DONE;
}

static banyan_status wait_for_slot(const struct progress *work, mailbox_slot *slot)
{
    for (uint32_t i = 0; i < work->requester->spins; i++) {
        if (slot_is_done(slot))
            return BANYAN_OK;
        spin_pause();
    }
    int owner = work->transfer->handle->rank;
    control_wait wait = control_wait_begin(work->requester->space->world);
    banyan_status status = BANYAN_OK;
    char text[80];
    snprintf(text, sizeof text, "for rank %d to %s its ordinary memory", owner,
             work->transfer->write ? "write" : "read");
    for (;;) {
        uint64_t nap_ns;
        uint32_t seen = wake_up_read(&work->own->answered);
        if (slot_is_done(slot))
            break;
        status = control_wait_on(&wait, owner, text, &nap_ns);
        if (status != BANYAN_OK)
            break;
        wake_up_sleep(&work->own->answered, seen, nap_ns);
    }
    control_wait_end(&wait);
    return status;
}

static banyan_status memory_staging_refusal(const struct progress *work, uint32_t verdict)
{
    const banyan_memory_handle *handle = work->transfer->handle;
    const memory_space *space = work->requester->space;
    if (verdict == SLOT_NOT_REGISTERED)
        return registration_missing(space, handle);
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d asked rank %d for memory outside the %" PRIu64 " bytes at %#" PRIx64,
                     space->rank, handle->rank, handle->bytes, handle->address);
}

/* Return the number of pieces of one size at equal distances, from `first` on. */
static size_t count_rows(const staging_transfer *transfer, const cursor *at, size_t most)
{
    const banyan_iovec *first = &transfer->pieces[at->index];
    size_t rows = 1;
    if (at->done > 0 || at->index + 1 >= transfer->count)
        return rows;
    ptrdiff_t pitch = (char *)first[1].local - (char *)first->local;
    while (rows < most && at->index + rows < transfer->count && first[rows].bytes == first->bytes &&
           (char *)first[rows].local - (char *)first[rows - 1].local == pitch)
        rows++;
    return rows;
}

/* Copy the bytes that a read has fetched to their destinations. */
static void slot_drain(const struct progress *work, const mailbox_slot *slot, cursor at,
                       size_t count)
{
    size_t slot_bytes = work->requester->slot_bytes, used = 0;
    for (size_t i = 0; i < count;) {
        size_t room = slot_bytes - used;
        banyan_iovec piece = cursor_piece(&at, room);
        size_t most = room / piece.bytes < count - i ? room / piece.bytes : count - i;
        size_t rows = work->transfer->past_cache ? count_rows(work->transfer, &at, most) : 1;
        if (rows > 1) {
            ptrdiff_t pitch = (char *)at.pieces[at.index + 1].local - (char *)piece.local;
            stream_rows_past_cache(piece.local, pitch, slot->data + used, (ptrdiff_t)piece.bytes,
                                   rows, piece.bytes);
        } else {
            copy_out(piece.local, slot->data + used, piece.bytes, work->transfer->past_cache);
        }
        used += rows * piece.bytes;
        cursor_advance(&at, rows * piece.bytes);
        i += rows;
    }
}

static banyan_status complete_one(struct progress *work)
{
    size_t place = work->completed % MAILBOX_SLOTS;
    mailbox_slot *slot = &work->own->slots[place];
    RETURN_IF_FAILED(wait_for_slot(work, slot));
    if (slot->verdict != SLOT_GRANTED && work->status == BANYAN_OK)
        work->status = memory_staging_refusal(work, slot->verdict);
    if (slot->verdict == SLOT_GRANTED && !work->transfer->write)
        slot_drain(work, slot, work->begin[place], work->counts[place]);
    work->completed++;
    return BANYAN_OK;
}

banyan_status staging_run(staging_requester *requester, const staging_transfer *transfer)
{
    memory_space *space = requester->space;
    if (requester->stuck)
        return error_set(BANYAN_ERR_TIMEOUT,
                         "rank %d gave up an earlier transfer, and its slots are still in use",
                         space->rank);
    struct progress work = {
        .requester = requester,
        .transfer = transfer,
        .owner_local = memory_space_local(space, transfer->handle->rank),
        .next = cursor_at_start(transfer->pieces, transfer->count),
    };
    work.own = (mailbox *)memory_part_of(requester->mailboxes, space->local_rank);
    work.owner = (mailbox *)memory_part_of(requester->mailboxes, work.owner_local);
    for (;;) {
        size_t room = MAILBOX_SLOTS - (work.posted - work.completed);
        if (work.status == BANYAN_OK && room >= requester->refill)
            post_more(&work);
        if (work.completed == work.posted)
            break;
        banyan_status status = complete_one(&work);
        if (status != BANYAN_OK) {
            requester->stuck = true;
            return status;
        }
    }
    if (transfer->past_cache && !transfer->write)
        stream_fence();
    return work.status;
}
