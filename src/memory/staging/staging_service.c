/* The owner's side of staging: threads that serve the requests of peers. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/threads/sanitizer.h"
#include "core/threads/thread.h"
#include "memory/staging/staging.h"
#include "memory/stream.h"
#include "world/control.h"

/* The requester knows that the memory is ready to be read or written, through signals and messages
 * of its own process. The thread sanitizer sees only this process, and would report our copy as a
 * race with an earlier writer. It sees all of the ranks that are threads of one process. */
#ifdef SANITIZER_THREAD
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);

static void copy_unseen_begin(bool foreign)
{
    if (foreign) {
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
}

static void copy_unseen_end(bool foreign)
{
    if (foreign) {
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
}
#else
static void copy_unseen_begin(bool foreign)
{
    (void)foreign;
}

static void copy_unseen_end(bool foreign)
{
    (void)foreign;
}
#endif

/* A thread and its queue. */
typedef struct helper {
    staging_service *service;
    mailbox_queue *queue;
    pthread_t thread;
    int processor; /* the last one it moved to; -1: anywhere */
} helper;

struct staging_service {
    memory_space *space;
    const banyan_memory *mailboxes;
    uint32_t spins;
    helper helpers[MAILBOX_QUEUES];
    int helper_count;
    atomic_bool stop;
};

/* Pieces to prefetch ahead of a copy; a larger number would evict earlier ones. */
#define EXPECTED_AHEAD 2
#define EXPECTED_BYTES 2048

/* Pieces of one size at equal distances in the owner's memory. */
typedef struct slot_rows {
    uint64_t offset, pitch; /* a pitch may stand for a negative number */
    size_t bytes;
    uint32_t count;
} slot_rows;

/* Take the pieces from `first` on that form rows; a single piece if the next does not fit. Slots
 * are shared memory, so each number is read once and checked before use. */
static slot_verdict take_rows(const mailbox_slot *slot, uint32_t first, uint32_t piece_count,
                              const banyan_memory_handle *handle, size_t room, slot_rows *rows)
{
    *rows = (slot_rows){0};
    for (uint32_t i = first; i < piece_count; i++, rows->count++) {
        slot_piece piece = *(const volatile slot_piece *)&slot->pieces[i];
        if (rows->count == 0)
            *rows = (slot_rows){.offset = piece.offset, .bytes = piece.bytes};
        else if (rows->count == 1)
            rows->pitch = piece.offset - rows->offset;
        if (piece.bytes != rows->bytes || piece.offset != rows->offset + rows->count * rows->pitch)
            break;
        if (piece.bytes > room)
            return SLOT_MALFORMED;
        if (piece.offset > handle->bytes || piece.bytes > handle->bytes - piece.offset)
            return SLOT_OUT_OF_RANGE;
        room -= piece.bytes;
    }
    return SLOT_GRANTED;
}

static void staging_service_copy_rows(char *memory, char *data, const slot_rows *rows, bool write,
                                      bool past_cache)
{
    ptrdiff_t pitch = (ptrdiff_t)rows->pitch, dense = (ptrdiff_t)rows->bytes;
    if (!write)
        stream_rows_into_cache(data, dense, memory, pitch, rows->count, rows->bytes);
    else if (past_cache)
        stream_rows_past_cache(memory, pitch, data, dense, rows->count, rows->bytes);
    else
        for (uint32_t i = 0; i < rows->count; i++)
            stream_copy(memory + (ptrdiff_t)i * pitch, data + (ptrdiff_t)i * dense, rows->bytes);
}

/* Prefetch the next piece, whose place hardware prefetchers cannot predict. Prefetching an invalid
 * address is harmless. */
static void expect_piece(const char *memory, const slot_piece *next)
{
    for (size_t i = 0; i < next->bytes && i < EXPECTED_BYTES; i += 64)
        __builtin_prefetch(memory + next->offset + i);
}

static slot_verdict serve_pieces(mailbox_slot *slot, const banyan_memory_handle *handle)
{
    bool write = slot->write, past_cache = slot->past_cache;
    uint32_t count = slot->piece_count;
    if (count > MAILBOX_SLOT_PIECES)
        return SLOT_MALFORMED;
    char *memory = (char *)(uintptr_t)handle->address;
    slot_rows rows;
    size_t used = 0;
    for (uint32_t i = 0; i < count; i += rows.count) {
        slot_verdict verdict = take_rows(slot, i, count, handle, MAILBOX_SLOT_BYTES - used, &rows);
        if (verdict != SLOT_GRANTED)
            return verdict;
        if (!write && i + EXPECTED_AHEAD < count && rows.count <= EXPECTED_AHEAD)
            expect_piece(memory, &slot->pieces[i + EXPECTED_AHEAD]);
        staging_service_copy_rows(memory + rows.offset, slot->data + used, &rows, write,
                                  past_cache);
        used += rows.count * rows.bytes;
    }
    if (write && past_cache)
        stream_fence();
    return SLOT_GRANTED;
}

/* Move the thread to the processor. A hint: if it is not allowed there, it stays. */
static void move_to(helper *self, int processor)
{
    if (processor < 0 || processor >= CPU_SETSIZE || processor == self->processor)
        return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
    self->processor = processor;
}

static void serve_slot(helper *self, mailbox_slot *slot, bool foreign)
{
    memory_space *space = self->service->space;
    banyan_memory_handle handle = slot->handle;
    move_to(self, slot->processor);
    slot_verdict verdict = SLOT_NOT_REGISTERED;
    pthread_rwlock_rdlock(&space->lock);
    if (handle.kind == BANYAN_MEMORY_USER && handle.rank == space->rank &&
        registration_covers(space, &handle)) {
        copy_unseen_begin(foreign);
        verdict = serve_pieces(slot, &handle);
        copy_unseen_end(foreign);
    }
    pthread_rwlock_unlock(&space->lock);
    slot->verdict = verdict;
    atomic_store_explicit(&slot->state, SLOT_DONE, memory_order_release);
}

/* Serve one requester. If it shares this processor, wake it once at the end: it would only displace
 * this thread. */
static void serve_requester(helper *self, int local)
{
    memory_space *space = self->service->space;
    if (local >= space->local_size)
        return;
    mailbox *requester = (mailbox *)memory_part_of(self->service->mailboxes, local);
    bool pending = false;
    bool foreign = control_pid(space->world, space->local_ranks[local]) != getpid();
    for (int i = 0; i < MAILBOX_SLOTS; i++) {
        mailbox_slot *slot = &requester->slots[i];
        if (atomic_load_explicit(&slot->state, memory_order_acquire) != SLOT_POSTED ||
            slot->owner != (uint32_t)space->local_rank)
            continue;
        bool together = slot->processor >= 0;
        serve_slot(self, slot, foreign);
        pending = together;
        if (!together)
            wake_up_notify(&requester->answered);
    }
    if (pending)
        wake_up_notify(&requester->answered);
}

/* Serve all pending requests; false when there were none. */
static bool serve_round(helper *self)
{
    bool any = false;
    for (int word = 0; word * 64 < self->service->space->local_size; word++) {
        uint64_t asking =
            atomic_exchange_explicit(&self->queue->requesters[word], 0, memory_order_acquire);
        for (; asking != 0; asking &= asking - 1) {
            serve_requester(self, word * 64 + __builtin_ctzll(asking));
            any = true;
        }
    }
    return any;
}

static void *staging_service_serve(void *argument)
{
    helper *self = argument;
    uint32_t idle = 0;
    while (!atomic_load_explicit(&self->service->stop, memory_order_acquire)) {
        uint32_t seen = wake_up_read(&self->queue->requested);
        if (serve_round(self))
            idle = 0;
        else if (idle++ < self->service->spins)
            spin_pause();
        else
            wake_up_sleep(&self->queue->requested, seen, NS_PER_S);
    }
    return NULL;
}

static banyan_status start_helper(staging_service *service, mailbox_queue *queue)
{
    helper *self = &service->helpers[service->helper_count];
    *self = (helper){.service = service, .queue = queue, .processor = -1};
    RETURN_IF_FAILED(thread_start(&self->thread, staging_service_serve, self, false));
    service->helper_count++;
    return BANYAN_OK;
}

/* Start a thread for each queue that has a requester other than this rank. */
static banyan_status start_helpers(staging_service *service)
{
    const memory_space *space = service->space;
    mailbox *own = (mailbox *)memory_part_of(service->mailboxes, space->local_rank);
    for (int i = 0; i < MAILBOX_QUEUES && i < space->local_size; i++) {
        bool only_this_rank = i == space->local_rank && i + MAILBOX_QUEUES >= space->local_size;
        if (!only_this_rank)
            RETURN_IF_FAILED(start_helper(service, mailbox_queue_for(own, i)));
    }
    return BANYAN_OK;
}

banyan_status staging_service_start(memory_space *space, const banyan_memory *mailboxes,
                                    staging_service **service)
{
    staging_service *made = calloc(1, sizeof *made);
    if (!made)
        return error_no_memory(sizeof *made, "the staging service");
    made->space = space;
    made->mailboxes = mailboxes;
    made->spins = wake_up_spins(memory_space_is_crowded(space, 2));
    banyan_status status = start_helpers(made);
    if (status == BANYAN_OK)
        *service = made;
    else
        staging_service_stop(made);
    return status;
}

void staging_service_stop(staging_service *service)
{
    if (!service)
        return;
    atomic_store_explicit(&service->stop, true, memory_order_release);
    for (int i = 0; i < service->helper_count; i++) {
        wake_up_notify(&service->helpers[i].queue->requested);
        pthread_join(service->helpers[i].thread, NULL);
    }
    free(service);
}

uint64_t staging_service_cpu_ns(const staging_service *service)
{
    uint64_t sum_ns = 0;
    for (int i = 0; service && i < service->helper_count; i++) {
        clockid_t clock;
        struct timespec used;
        if (pthread_getcpuclockid(service->helpers[i].thread, &clock) == 0 &&
            clock_gettime(clock, &used) == 0)
            sum_ns += (uint64_t)used.tv_sec * NS_PER_S + (uint64_t)used.tv_nsec;
    }
    return sum_ns;
}
