/* Slots of several ranks in one process, for tests of the executor: every hand-over is checked,
 * and released data is poisoned. */
#ifndef TESTS_COPY_PIPELINE_BOARD_H
#define TESTS_COPY_PIPELINE_BOARD_H

#include <pthread.h>
#include <sched.h>

#include "support/test.h"

#include "core/deadline.h"

#define BOARD_RANKS 8
#define BOARD_SLOTS BANYAN_PIPELINE_SLOTS

/* State between a receiver and a sender: granted slots and filled slots, oldest first. */
typedef struct board_link {
    int granted[BOARD_SLOTS], granted_count;
    int filled[BOARD_SLOTS], filled_count;
} board_link;

typedef struct board {
    pthread_mutex_t lock;
    int ranks;
    size_t slot_bytes;
    bool direct[BOARD_RANKS][BOARD_RANKS];      /* [sender][receiver]: has the receiver's slots */
    board_link links[BOARD_RANKS][BOARD_RANKS]; /* [receiver][sender] */
    unsigned char *recv_slots[BOARD_RANKS][BOARD_SLOTS];
    uint64_t deadline_ns;
} board;

/* One rank's view of the board. */
typedef struct board_end {
    board *board;
    int rank;
    banyan_pipeline_buffers buffers;
    int grants, sends, idles;
} board_end;

static inline void board_poison(void *memory, size_t bytes)
{
    memset(memory, 0xab, bytes);
}

static inline int board_take(int *queue, int *count)
{
    if (*count == 0)
        return -1;
    int first = queue[0];
    for (int i = 1; i < *count; i++)
        queue[i - 1] = queue[i];
    --*count;
    return first;
}

static banyan_status board_begin(void *context)
{
    (void)context;
    return BANYAN_OK;
}

static void *board_peer_slot(void *context, int peer, int slot)
{
    board_end *end = context;
    return end->board->direct[end->rank][peer] ? end->board->recv_slots[peer][slot] : NULL;
}

static banyan_status board_grant(void *context, banyan_stream stream, int peer, int slot)
{
    board_end *end = context;
    board *b = end->board;
    (void)stream;
    CHECK(peer >= 0 && peer < b->ranks && peer != end->rank);
    pthread_mutex_lock(&b->lock);
    board_link *link = &b->links[end->rank][peer];
    board_poison(b->recv_slots[end->rank][slot], b->slot_bytes);
    CHECK(link->granted_count + link->filled_count < BOARD_SLOTS);
    link->granted[link->granted_count++] = slot;
    end->grants++;
    pthread_mutex_unlock(&b->lock);
    return BANYAN_OK;
}

static banyan_status board_take_grant(void *context, int peer, int *slot)
{
    board_end *end = context;
    pthread_mutex_lock(&end->board->lock);
    board_link *link = &end->board->links[peer][end->rank];
    *slot = board_take(link->granted, &link->granted_count);
    pthread_mutex_unlock(&end->board->lock);
    return BANYAN_OK;
}

static banyan_status board_send(void *context, banyan_stream stream, int peer, int from, int to,
                                uint64_t bytes)
{
    board_end *end = context;
    board *b = end->board;
    (void)stream;
    CHECK(bytes <= b->slot_bytes && to >= 0 && to < BOARD_SLOTS);
    pthread_mutex_lock(&b->lock);
    CHECK(b->direct[end->rank][peer] == (from < 0));
    if (from >= 0) {
        memcpy(b->recv_slots[peer][to], end->buffers.send_slot[from], bytes);
        board_poison(end->buffers.send_slot[from], b->slot_bytes);
    }
    board_link *link = &b->links[peer][end->rank];
    CHECK(link->filled_count < BOARD_SLOTS);
    link->filled[link->filled_count++] = to;
    end->sends++;
    pthread_mutex_unlock(&b->lock);
    return BANYAN_OK;
}

static banyan_status board_take_arrival(void *context, int peer, int slot, bool *yes)
{
    board_end *end = context;
    pthread_mutex_lock(&end->board->lock);
    board_link *link = &end->board->links[end->rank][peer];
    int filled = board_take(link->filled, &link->filled_count);
    CHECK(filled < 0 || filled == slot, "slot %d arrived instead of %d", filled, slot);
    *yes = filled == slot;
    pthread_mutex_unlock(&end->board->lock);
    return BANYAN_OK;
}

static banyan_status board_idle(void *context, const banyan_pipeline_stall *stall)
{
    board_end *end = context;
    end->idles++;
    if (time_now_ns() > end->board->deadline_ns)
        return banyan_error_set(BANYAN_ERR_TIMEOUT, "rank %d waited for rank %d's slot, %d's batch",
                                end->rank, stall->grant_from, stall->arrival_from);
    sched_yield();
    return BANYAN_OK;
}

static inline board *board_create(int ranks, size_t slot_bytes)
{
    board *b = calloc(1, sizeof *b);
    pthread_mutex_init(&b->lock, NULL);
    b->ranks = ranks;
    b->slot_bytes = slot_bytes;
    b->deadline_ns = deadline_after(60 * NS_PER_S);
    for (int rank = 0; rank < ranks; rank++) {
        for (int slot = 0; slot < BOARD_SLOTS; slot++)
            b->recv_slots[rank][slot] = malloc(slot_bytes);
    }
    return b;
}

static inline void board_destroy(board *b)
{
    for (int rank = 0; rank < b->ranks; rank++) {
        for (int sender = 0; sender < b->ranks; sender++) {
            CHECK(b->links[rank][sender].granted_count == 0);
            CHECK(b->links[rank][sender].filled_count == 0);
        }
        for (int slot = 0; slot < BOARD_SLOTS; slot++)
            free(b->recv_slots[rank][slot]);
    }
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static inline void board_end_open(board *b, int rank, board_end *end)
{
    *end = (board_end){.board = b, .rank = rank};
    end->buffers = (banyan_pipeline_buffers){.size = sizeof end->buffers,
                                             .context = end,
                                             .ranks = b->ranks,
                                             .slot_bytes = b->slot_bytes,
                                             .begin = board_begin,
                                             .peer_slot = board_peer_slot,
                                             .grant = board_grant,
                                             .take_grant = board_take_grant,
                                             .send = board_send,
                                             .take_arrival = board_take_arrival,
                                             .idle = board_idle};
    for (int slot = 0; slot < BOARD_SLOTS; slot++) {
        end->buffers.send_slot[slot] = malloc(b->slot_bytes);
        end->buffers.recv_slot[slot] = b->recv_slots[rank][slot];
    }
}

static inline void board_end_close(board_end *end)
{
    for (int slot = 0; slot < BOARD_SLOTS; slot++)
        free(end->buffers.send_slot[slot]);
}

#endif
