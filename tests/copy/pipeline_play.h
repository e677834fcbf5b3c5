/* Schedules for tests of the executor: batches between ranks, listed by each of them in one order,
 * with tensors of random shape and strides and computable elements. */
#ifndef TESTS_COPY_PIPELINE_PLAY_H
#define TESTS_COPY_PIPELINE_PLAY_H

#include "copy/pipeline_board.h"

typedef struct play_tensor {
    DLTensor tensor;
    int64_t shape[2], strides[2];
    unsigned char *memory;
    size_t bytes;
} play_tensor;

/* A segment at both of its ends. */
typedef struct play_segment {
    char name[32];
    size_t elem_bytes;
    int receiver;
    play_tensor source, destination;
    banyan_segment send, recv;
} play_segment;

typedef struct play_list {
    banyan_iteration *iterations;
    size_t count, capacity;
} play_list;

typedef struct play {
    board *board;
    random_state random;
    play_list lists[BOARD_RANKS];
    play_segment **segments;
    size_t segment_count, batch_count;
    void **owned; /* arrays of segments */
    size_t owned_count;
} play;

static inline size_t play_elem_offset(const play_tensor *t, uint64_t index)
{
    int64_t columns = t->shape[1];
    return (size_t)((int64_t)index / columns * t->strides[0] +
                    (int64_t)index % columns * t->strides[1]);
}

/* At least `elems` elements, row-major, column-major or with gaps. */
static inline void play_tensor_make(random_state *random, uint64_t elems, size_t elem_bytes,
                                    play_tensor *t)
{
    int64_t columns = random_between(random, 1, 40), gap = random_between(random, 0, 3);
    int64_t rows = ((int64_t)elems + columns - 1) / columns;
    rows = rows < 1 ? 1 : rows;
    t->shape[0] = rows;
    t->shape[1] = columns;
    bool transposed = random_next(random) % 2;
    t->strides[0] = transposed ? 1 : columns + gap;
    t->strides[1] = transposed ? rows + gap : 1;
    t->bytes = (size_t)((transposed ? columns : rows) * ((transposed ? rows : columns) + gap)) *
               elem_bytes;
    t->memory = malloc(t->bytes);
    board_poison(t->memory, t->bytes);
    t->tensor = (DLTensor){.data = t->memory,
                           .device = {kDLCPU, 0},
                           .ndim = 2,
                           .dtype = {kDLUInt, (uint8_t)(8 * elem_bytes), 1},
                           .shape = t->shape,
                           .strides = t->strides};
}

static inline play_segment *play_segment_make(play *p, uint64_t count, size_t elem_bytes)
{
    play_segment *s = calloc(1, sizeof *s);
    snprintf(s->name, sizeof s->name, "segment %zu", p->segment_count);
    s->elem_bytes = elem_bytes;
    s->send.elem_count = s->recv.elem_count = count;
    s->send.first_elem = (uint64_t)random_between(&p->random, 0, 50);
    s->recv.first_elem = (uint64_t)random_between(&p->random, 0, 50);
    play_tensor_make(&p->random, s->send.first_elem + count, elem_bytes, &s->source);
    play_tensor_make(&p->random, s->recv.first_elem + count, elem_bytes, &s->destination);
    for (uint64_t i = 0; i < count; i++)
        pattern_element(s->name, i, elem_bytes,
                        s->source.memory +
                            play_elem_offset(&s->source, s->send.first_elem + i) * elem_bytes);
    s->send.tensor = s->source.tensor;
    s->recv.tensor = s->destination.tensor;
    p->segments = realloc(p->segments, (p->segment_count + 1) * sizeof *p->segments);
    p->segments[p->segment_count++] = s;
    return s;
}

/* Check that every element of the segment, and nothing else of its destination, was written;
 * poison it again. */
static inline void play_segment_check(play_segment *s)
{
    unsigned char *expected = malloc(s->destination.bytes);
    board_poison(expected, s->destination.bytes);
    for (uint64_t i = 0; i < s->recv.elem_count; i++)
        pattern_element(s->name, i, s->elem_bytes,
                        expected + play_elem_offset(&s->destination, s->recv.first_elem + i) *
                                       s->elem_bytes);
    CHECK(memcmp(s->destination.memory, expected, s->destination.bytes) == 0, "%s", s->name);
    free(expected);
    board_poison(s->destination.memory, s->destination.bytes);
}

static inline void play_check(play *p)
{
    for (size_t i = 0; i < p->segment_count; i++)
        play_segment_check(p->segments[i]);
}

/* Check the data that the rank receives. */
static inline void play_check_rank(play *p, int rank)
{
    for (size_t i = 0; i < p->segment_count; i++) {
        if (p->segments[i]->receiver == rank)
            play_segment_check(p->segments[i]);
    }
}

static inline play play_create(board *b, uint64_t seed)
{
    return (play){.board = b, .random = random_from(seed)};
}

static inline void play_destroy(play *p)
{
    for (size_t i = 0; i < p->segment_count; i++) {
        free(p->segments[i]->source.memory);
        free(p->segments[i]->destination.memory);
        free(p->segments[i]);
    }
    free(p->segments);
    for (size_t i = 0; i < p->owned_count; i++)
        free(p->owned[i]);
    free(p->owned);
    for (int rank = 0; rank < BOARD_RANKS; rank++)
        free(p->lists[rank].iterations);
}

/* Add an empty iteration of the rank. */
static inline banyan_iteration *play_iteration(play *p, int rank)
{
    play_list *list = &p->lists[rank];
    if (list->count == list->capacity) {
        list->capacity = list->capacity * 2 + 8;
        list->iterations = realloc(list->iterations, list->capacity * sizeof *list->iterations);
    }
    banyan_iteration *iteration = &list->iterations[list->count++];
    *iteration = (banyan_iteration){.send.peer = -1, .recv.peer = -1};
    return iteration;
}

static inline banyan_segment *play_own(play *p, size_t count)
{
    banyan_segment *segments = calloc(count ? count : 1, sizeof *segments);
    p->owned = realloc(p->owned, (p->owned_count + 1) * sizeof *p->owned);
    p->owned[p->owned_count++] = segments;
    return segments;
}

/* Add a batch of random segments to an iteration of the sender's and one of the receiver's. */
static inline void play_batch(play *p, int sender, banyan_iteration *sending, int receiver,
                              banyan_iteration *receiving)
{
    size_t most = (size_t)random_between(&p->random, 0, 5), count = 0;
    banyan_segment *sends = play_own(p, most), *recvs = play_own(p, most);
    uint64_t bytes = 0;
    for (size_t i = 0; i < most; i++) {
        size_t elem_bytes = (size_t)1 << random_between(&p->random, 0, 3);
        uint64_t offset = (bytes + 15) / 16 * 16;
        if (offset + elem_bytes > p->board->slot_bytes)
            break;
        uint64_t room = (p->board->slot_bytes - offset) / elem_bytes;
        uint64_t elems = (uint64_t)random_between(&p->random, 0, (int64_t)room);
        play_segment *s = play_segment_make(p, elems, elem_bytes);
        s->receiver = receiver;
        s->send.slot_offset = s->recv.slot_offset = offset;
        bytes = offset + elems * elem_bytes;
        sends[count] = s->send;
        recvs[count++] = s->recv;
    }
    sending->send = (banyan_slot_batch){receiver, sends, count, bytes};
    receiving->recv = (banyan_slot_batch){sender, recvs, count, bytes};
    p->batch_count++;
}

/* Random rounds: each rank sends at most one batch and receives at most one. A rank lists a round
 * in one iteration or two, with empty ones in between. */
static inline void play_random_rounds(play *p, int rounds)
{
    random_state *random = &p->random;
    int ranks = p->board->ranks;
    for (int round = 0; round < rounds; round++) {
        int receivers[BOARD_RANKS];
        banyan_iteration *sending, *receiving;
        size_t sends_at[BOARD_RANKS], recvs_at[BOARD_RANKS];
        for (int i = 0; i < ranks; i++) {
            for (int64_t k = random_between(random, -4, 2); k > 0; k--)
                play_iteration(p, i);
            play_iteration(p, i);
            sends_at[i] = recvs_at[i] = p->lists[i].count - 1;
            if (random_next(random) % 4 == 0) {
                play_iteration(p, i);
                *(random_next(random) % 2 ? &sends_at[i] : &recvs_at[i]) = p->lists[i].count - 1;
            }
            receivers[i] = i;
        }
        for (int i = ranks - 1; i > 0; i--) {
            int k = (int)random_between(random, 0, i), other = receivers[k];
            receivers[k] = receivers[i];
            receivers[i] = other;
        }
        for (int i = 0; i < ranks; i++) {
            int receiver = receivers[i];
            if (receiver == i || random_next(random) % 5 == 0)
                continue;
            sending = &p->lists[i].iterations[sends_at[i]];
            receiving = &p->lists[receiver].iterations[recvs_at[receiver]];
            play_batch(p, i, sending, receiver, receiving);
        }
    }
}

#endif
