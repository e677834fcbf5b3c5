/* The owner's side of staging: a thread that serves what peers ask for. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "memory/staging.h"
#include "memory/stream.h"
#include "world/control.h"

/* A peer that asks knows that the memory is ready to be read or written, by signals and messages
 * that went through its own process. The thread sanitizer sees only what happens in this one, and
 * would take our copy for a race with whoever wrote before. Ranks that are threads of one process
 * it sees whole. */
#if defined(__SANITIZE_THREAD__)
#define SEES_THIS_PROCESS_ONLY 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SEES_THIS_PROCESS_ONLY 1
#endif
#endif

#ifdef SEES_THIS_PROCESS_ONLY
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

struct staging_service {
    memory_space *space;
    const banyan_memory *boards;
    board *own;
    pthread_t thread;
    uint32_t spins;
    int processor; /* moved to last; -1: anywhere */
    atomic_bool stop;
};

/* What is asked for ahead of a copy: more than that would be driven out again. */
#define EXPECTED_AHEAD 2
#define EXPECTED_BYTES 2048

/* Pieces of one size that lie equally far apart in the owner's memory. */
typedef struct slot_rows {
    uint64_t offset, pitch; /* a pitch may stand for a negative number */
    size_t bytes;
    uint32_t count;
} slot_rows;

/* The pieces from `first` on that are rows together: one, where nothing fits. Slots are shared
 * memory: every number is read once, and checked before it is used. */
static slot_verdict take_rows(const board_slot *slot, uint32_t first, uint32_t piece_count,
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

static void copy_rows(char *memory, char *data, const slot_rows *rows, bool write, bool past_cache)
{
    ptrdiff_t pitch = (ptrdiff_t)rows->pitch, dense = (ptrdiff_t)rows->bytes;
    if (!write)
        stream_rows_into_cache(data, dense, memory, pitch, rows->count, rows->bytes);
    else if (past_cache)
        stream_rows_past_cache(memory, pitch, data, dense, rows->count, rows->bytes);
    else
        for (uint32_t i = 0; i < rows->count; i++)
            memcpy(memory + (ptrdiff_t)i * pitch, data + (ptrdiff_t)i * dense, rows->bytes);
}

/* Prefetchers do not know where the next piece lies. Asking for memory that is not there is
 * harmless. */
static void expect_piece(const char *memory, const slot_piece *next)
{
    for (size_t i = 0; i < next->bytes && i < EXPECTED_BYTES; i += 64)
        __builtin_prefetch(memory + next->offset + i);
}

static slot_verdict serve_pieces(board_slot *slot, const banyan_memory_handle *handle)
{
    bool write = slot->write, past_cache = slot->past_cache;
    uint32_t count = slot->piece_count;
    if (count > BOARD_SLOT_PIECES)
        return SLOT_MALFORMED;
    char *memory = (char *)(uintptr_t)handle->address;
    slot_rows rows;
    size_t used = 0;
    for (uint32_t i = 0; i < count; i += rows.count) {
        slot_verdict verdict = take_rows(slot, i, count, handle, BOARD_SLOT_BYTES - used, &rows);
        if (verdict != SLOT_GRANTED)
            return verdict;
        if (!write && i + EXPECTED_AHEAD < count && rows.count <= EXPECTED_AHEAD)
            expect_piece(memory, &slot->pieces[i + EXPECTED_AHEAD]);
        copy_rows(memory + rows.offset, slot->data + used, &rows, write, past_cache);
        used += rows.count * rows.bytes;
    }
    if (write && past_cache)
        stream_fence();
    return SLOT_GRANTED;
}

/* A hint: where it is not allowed to run it stays. */
static void move_to(staging_service *service, int processor)
{
    if (processor < 0 || processor >= CPU_SETSIZE || processor == service->processor)
        return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
    service->processor = processor;
}

static void serve_slot(staging_service *service, board_slot *slot, bool foreign)
{
    banyan_memory_handle handle = slot->handle;
    move_to(service, slot->processor);
    slot_verdict verdict = SLOT_NOT_REGISTERED;
    pthread_mutex_lock(&service->space->lock);
    if (handle.rank == service->space->rank && registration_covers(service->space, &handle)) {
        copy_unseen_begin(foreign);
        verdict = serve_pieces(slot, &handle);
        copy_unseen_end(foreign);
    }
    pthread_mutex_unlock(&service->space->lock);
    slot->verdict = verdict;
    atomic_store_explicit(&slot->state, SLOT_DONE, memory_order_release);
}

/* A requester that shares this processor is woken once for all: it would only displace us. */
static void serve_requester(staging_service *service, int local)
{
    if (local >= service->space->local_size)
        return;
    board *requester = (board *)memory_part_of(service->boards, local);
    bool unheard = false;
    int rank = service->space->local_ranks[local];
    bool foreign = control_pid(service->space->world, rank) != getpid();
    for (int i = 0; i < BOARD_SLOTS; i++) {
        board_slot *slot = &requester->slots[i];
        if (atomic_load_explicit(&slot->state, memory_order_acquire) != SLOT_POSTED ||
            slot->owner != (uint32_t)service->space->local_rank)
            continue;
        bool together = slot->processor >= 0;
        serve_slot(service, slot, foreign);
        unheard = together;
        if (!together)
            bell_ring(&requester->answered);
    }
    if (unheard)
        bell_ring(&requester->answered);
}

/* Serve all that is asked for now; false when nothing was. */
static bool serve_round(staging_service *service)
{
    bool any = false;
    for (int word = 0; word * 64 < service->space->local_size; word++) {
        uint64_t asking =
            atomic_exchange_explicit(&service->own->requesters[word], 0, memory_order_acquire);
        for (; asking != 0; asking &= asking - 1) {
            serve_requester(service, word * 64 + __builtin_ctzll(asking));
            any = true;
        }
    }
    return any;
}

static void *serve(void *argument)
{
    staging_service *service = argument;
    uint32_t idle = 0;
    while (!atomic_load_explicit(&service->stop, memory_order_acquire)) {
        uint32_t seen = bell_read(&service->own->requested);
        if (serve_round(service))
            idle = 0;
        else if (idle++ < service->spins)
            spin_pause();
        else
            bell_sleep(&service->own->requested, seen, NS_PER_S);
    }
    return NULL;
}

/* The program's signals are for its own threads. */
static int start_thread(staging_service *service)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&service->thread, NULL, serve, service);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

banyan_status staging_service_start(memory_space *space, const banyan_memory *boards,
                                    staging_service **service)
{
    staging_service *made = calloc(1, sizeof *made);
    if (!made)
        return error_no_memory(sizeof *made, "the staging service");
    made->space = space;
    made->boards = boards;
    made->own = (board *)memory_part_of(boards, space->local_rank);
    made->processor = -1;
    made->spins = bell_spins(memory_space_is_crowded(space, 2));
    int error = start_thread(made);
    if (error != 0) {
        free(made);
        return error_set(BANYAN_ERR_SYSTEM, "rank %d cannot start its staging thread: %s",
                         space->rank, strerror(error));
    }
    *service = made;
    return BANYAN_OK;
}

void staging_service_stop(staging_service *service)
{
    if (!service)
        return;
    atomic_store_explicit(&service->stop, true, memory_order_release);
    bell_ring(&service->own->requested);
    pthread_join(service->thread, NULL);
    free(service);
}

uint64_t staging_service_cpu_ns(const staging_service *service)
{
    clockid_t clock;
    struct timespec used;
    if (!service || pthread_getcpuclockid(service->thread, &clock) != 0 ||
        clock_gettime(clock, &used) != 0)
        return 0;
    return (uint64_t)used.tv_sec * NS_PER_S + (uint64_t)used.tv_nsec;
}
