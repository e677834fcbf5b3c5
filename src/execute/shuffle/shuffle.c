#include "execute/shuffle/shuffle.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "execute/load/loaded.h"
#include "execute/shuffle/ports.h"

/* The first lane synchronizes, the others move bytes. */
#define MOVERS 3
#define LANES (MOVERS + 1)

/* Shares of a piece begin at a multiple of this: a boundary of packets and of elements of every
 * type. */
#define SHARE_BYTES 64

#define NAP_MOST_NS 200000

/* A lagging thread block continues after it has seen all others wait this often. */
#define LAG_LOOKS 3

/* A copy whose source has been read and whose destinations are yet to be written. */
typedef struct late_store {
    char *to;
    char *bytes; /* owned copy */
    uint64_t count;
} late_store;

typedef struct lane {
    task task; /* first, so that a task pointer is also a lane pointer */
    uint32_t share, turn;
    piece_words words;
} lane;

/* A thread block. */
typedef struct shuffled_block {
    shuffle_random seeds; /* seeds of the sequences, one for each time the lanes diverge */
    shuffle_random random;
    lane lanes[LANES];
    bool open;        /* lanes are between two barriers */
    bool rested;      /* the late lanes have yielded once */
    bool stores_late; /* the next step is a relaxed signal that must overtake the copies */
    bool got_on;      /* steps since it last yielded */
    bool lags;        /* continues only when no other block can */
    uint64_t moves;   /* of all blocks, at the last check */
    uint32_t looks;   /* since that check */
    uint32_t late;    /* lanes that continue only when no other can, one bit each */
    ARRAY(late_store) stores;
} shuffled_block;

struct shuffle {
    uint32_t port_count;
    held_port *ports; /* indexed by port channel number */
    _Atomic uint64_t moves;
    uint32_t block_count;
    shuffled_block blocks[];
};

static void shuffle_nap(shuffle_random *random)
{
    struct timespec time = {.tv_nsec = (long)shuffle_below(random, NAP_MOST_NS)};
    nanosleep(&time, NULL);
}

/* Lane i takes the i-th share of every operand of an operation, and another share of the next
 * operation. A pad has one owner. */
banyan_status shuffle_deal(task *t, const step *s)
{
    lane *l = (lane *)t;
    uint32_t width = step_piece_words(s);
    uint64_t number = s->number + (s->loop ? (uint64_t)(s->whole - s->loop->ops) : 0);
    uint64_t mine = (l->share + l->turn + number + t->iteration) % MOVERS;
    l->words.count = 0;
    for (; t->pieces_left > 0; t->pieces_left--, t->piece += width) {
        bool pad = t->piece[0] & STEP_PAD;
        uint64_t bytes = t->piece[0] & ~STEP_PAD;
        uint64_t share = (bytes / MOVERS / SHARE_BYTES + 1) * SHARE_BYTES;
        uint64_t from = pad ? 0 : mine * share, some = pad ? bytes : share;
        if (from >= bytes || (pad && mine != 0))
            continue;
        some = bytes - from < some ? bytes - from : some;
        if (!array_reserve(&l->words, width))
            return BANYAN_ERR_NO_MEMORY;
        uint64_t *to = &l->words.data[l->words.count];
        to[0] = some | (pad ? STEP_PAD : 0);
        for (uint32_t i = 1; i < width; i++)
            to[i] = t->piece[i] + (s->operands[i - 1].packets ? 2 * from : from);
        l->words.count += width;
    }
    t->piece = l->words.data;
    t->pieces_left = l->words.count / width;
    return BANYAN_OK;
}

static bool is_relaxed(const step *s)
{
    return s->kind == STEP_SIGNAL && s->whole->kind == PLAN_RELAXED_SIGNAL;
}

static bool relaxed_signal_is_next(const task *t, uint32_t at)
{
    while (at < t->step_count && t->steps[at].kind == STEP_NOP)
        at++;
    return at < t->step_count && is_relaxed(&t->steps[at]);
}

static banyan_status keep_store(shuffled_block *b, char *to, const char *from, uint64_t bytes)
{
    if (!array_reserve(&b->stores, 1))
        return BANYAN_ERR_NO_MEMORY;
    char *kept = malloc(bytes);
    if (!kept)
        return error_no_memory(bytes, "bytes that are to be stored later");
    memcpy(kept, from, bytes);
    b->stores.data[b->stores.count++] = (late_store){to, kept, bytes};
    return BANYAN_OK;
}

/* A reduction of several parts may read what an earlier part stored, so its stores are not
 * delayed. */
static bool can_store_late(const step *s)
{
    bool packets = false;
    for (uint32_t i = 0; i < step_operand_count(s); i++)
        packets |= s->operands[i].packets;
    return s->kind == STEP_COPY ||
           (s->kind == STEP_COMBINE && !packets && plan_op_part_count(s->whole) == 1);
}

static banyan_status shuffle_read_piece(const plan_run *of, shuffled_block *b, task *t,
                                        const step *s, char *result)
{
    uint64_t bytes = t->piece[0];
    const char *from = of->placed->bases[s->operands[0].base] + t->piece[1];
    if (s->kind == STEP_COMBINE) {
        for (uint32_t i = 0; i < s->source_count; i++)
            t->sources[i] = of->placed->bases[s->operands[i].base] + t->piece[1 + i];
        s->reduce(result, t->sources, s->source_count, bytes / of->specialized->elem_bytes);
        from = result;
    }
    for (uint32_t i = s->source_count; i < step_operand_count(s); i++)
        RETURN_IF_FAILED(
            keep_store(b, of->placed->bases[s->operands[i].base] + t->piece[1 + i], from, bytes));
    return BANYAN_OK;
}

/* Read a lane's share now and store the result later. */
static banyan_status shuffle_read_sources(const plan_run *of, shuffled_block *b, task *t,
                                          const step *s)
{
    for (; t->pieces_left > 0; t->pieces_left--, t->piece += step_piece_words(s)) {
        char *result = malloc(t->piece[0]);
        if (!result)
            return error_no_memory(t->piece[0], "a result that is to be stored later");
        banyan_status status = shuffle_read_piece(of, b, t, s, result);
        free(result);
        RETURN_IF_FAILED(status);
    }
    return BANYAN_OK;
}

static void store_all(shuffled_block *b)
{
    for (size_t i = 0; i < b->stores.count; i++) {
        late_store *store = &b->stores.data[i];
        memcpy(store->to, store->bytes, store->count);
        free(store->bytes);
    }
    b->stores.count = 0;
}

/* All lanes are at the barrier: perform the signals first, then the copies that precede them. */
static task_state signal_then_store(const plan_run *of, shuffled_block *b, task *t,
                                    trace_ring *ring)
{
    while (t->at < t->step_count &&
           (t->steps[t->at].kind == STEP_NOP || is_relaxed(&t->steps[t->at]))) {
        task_state state = task_take_step(of, t, ring);
        if (state != TASK_DONE)
            return state;
    }
    shuffle_nap(&b->random);
    store_all(b);
    return TASK_DONE;
}

bool shuffle_post(const plan_run *of, channel_end *end, const port_request *request)
{
    return held_port_take(&of->loaded->shuffle->ports[end->number], end, request);
}

/* Post a held request, beginning with a random channel. False: nothing is held, or its queue is
 * full. */
static bool pass_on_any(const plan_run *of, shuffled_block *b)
{
    shuffle *all = of->loaded->shuffle;
    uint32_t first = all->port_count ? (uint32_t)shuffle_below(&b->random, all->port_count) : 0;
    for (uint32_t i = 0; i < all->port_count; i++) {
        uint32_t number = (first + i) % all->port_count;
        if (held_port_pass_on(&all->ports[number], &of->loaded->ends[PLAN_PORT][number]))
            return true;
    }
    return false;
}

static bool drain_ends(const plan_run *of, const step *s)
{
    bool empty = true;
    for (uint32_t i = 0; i < s->end_count; i++)
        empty &= held_port_drain(&of->loaded->shuffle->ports[s->ends[i]->number], s->ends[i]);
    return empty;
}

void shuffle_end(banyan_loaded_plan *loaded)
{
    shuffle *all = loaded->shuffle;
    for (uint32_t i = 0; i < all->port_count; i++) {
        while (!held_port_end(&all->ports[i], &loaded->ends[PLAN_PORT][i]))
            sched_yield();
    }
}

/* True for steps at which all lanes of a thread block synchronize. */
static bool is_barrier_step(const step *s)
{
    return s->kind == STEP_NOP || s->kind == STEP_BARRIER;
}

static bool shuffle_moves(const step *s)
{
    return s->kind == STEP_COPY || s->kind == STEP_PACK || s->kind == STEP_UNPACK ||
           s->kind == STEP_FORWARD || s->kind == STEP_COMBINE;
}

/* Return the end of the stretch that begins at the current step. */
static uint32_t shuffle_find_barrier(const task *t)
{
    task ahead = {
        .steps = t->steps, .step_count = t->step_count, .at = t->at, .iteration = t->iteration};
    while (ahead.at < ahead.step_count && !is_barrier_step(&ahead.steps[ahead.at]))
        task_go_past(&ahead, &ahead.steps[ahead.at]);
    return ahead.at;
}

/* Start a new random sequence, so that the number of polls of a wait has no influence on later
 * choices. */
static void open_lanes(const task *t, shuffled_block *b)
{
    b->random = shuffle_random_from(shuffle_next(&b->seeds));
    b->open = true;
    b->rested = false;
    b->late = shuffle_below(&b->random, 2) ? 0 : (uint32_t)shuffle_below(&b->random, 1 << LANES);
    b->stores_late =
        relaxed_signal_is_next(t, shuffle_find_barrier(t)) && shuffle_below(&b->random, 2);
    uint32_t turn = (uint32_t)shuffle_below(&b->random, MOVERS);
    for (uint32_t i = 0; i < LANES; i++) {
        task *l = &b->lanes[i].task;
        b->lanes[i].turn = turn;
        l->steps = t->steps;
        l->step_count = t->step_count;
        l->at = t->at;
        l->entered = l->quiet = l->moved = false;
        l->iteration = t->iteration;
        l->block = t->block;
        l->waiting_since_ns = l->record.waited_ns = 0;
    }
}

/* Skip steps of other lanes, and follow loops. False: the lane is at the barrier. */
static bool find_step(uint32_t i, task *l)
{
    while (l->at < l->step_count && !is_barrier_step(&l->steps[l->at])) {
        const step *s = &l->steps[l->at];
        if (s->kind != STEP_LOOP && s->kind != STEP_LOOP_END && shuffle_moves(s) == (i > 0))
            return true;
        task_go_past(l, s);
    }
    return false;
}

/* Return a lane that can continue; LANES: none can. */
static uint32_t pick_lane(shuffled_block *b, uint32_t waiting)
{
    uint32_t able = 0;
    for (uint32_t i = 0; i < LANES; i++)
        able |= !(waiting & 1U << i) && find_step(i, &b->lanes[i].task) ? 1U << i : 0;
    uint32_t early = able & ~b->late, from = early ? early : able;
    if (from == 0)
        return LANES;
    uint32_t i;
    do
        i = (uint32_t)shuffle_below(&b->random, LANES);
    while (!(from & 1U << i));
    return i;
}

static task_state take_lane_step(const plan_run *of, shuffled_block *b, task *l, trace_ring *ring)
{
    const step *s = &l->steps[l->at];
    if (s->kind == STEP_FLUSH && !drain_ends(of, s))
        return TASK_WAITS;
    if (!b->stores_late || !can_store_late(s))
        return task_take_step(of, l, ring);
    if (task_find_pieces(of, l, s) != BANYAN_OK || shuffle_read_sources(of, b, l, s) != BANYAN_OK)
        return TASK_FAILED;
    task_go_past(l, s);
    l->moved = true;
    return TASK_DONE;
}

/* Copy the lane's wait into the thread block, for those who report it. */
static void show_wait(task *t, const task *l)
{
    t->at = l->at;
    t->iteration = l->iteration;
    t->index = l->index;
    t->target = l->target;
    t->piece = l->piece;
    t->pieces_left = l->pieces_left;
    t->done = l->done;
    t->got = l->got;
}

/* TASK_WAITS with t->moved: the turn of another block. */
static task_state play_lanes(const plan_run *of, shuffled_block *b, task *t, trace_ring *ring)
{
    uint32_t waiting = 0, done = 0;
    for (;;) {
        uint32_t i = pick_lane(b, waiting);
        if (i == LANES)
            break;
        if (b->late & 1U << i && !b->rested) {
            b->rested = true;
            shuffle_nap(&b->random);
            t->moved = true;
            return TASK_WAITS;
        }
        task *l = &b->lanes[i].task;
        task_state state = take_lane_step(of, b, l, ring);
        if (state == TASK_FAILED)
            return state;
        if (l->moved) {
            l->moved = false;
            t->moved = true;
            waiting = 0;
        }
        if (state == TASK_WAITS) {
            waiting |= 1U << i;
            show_wait(t, l);
        }
        if (t->moved && shuffle_below(&b->random, 8) == 0)
            return TASK_WAITS;
    }
    for (uint32_t i = 0; i < LANES; i++)
        done += !find_step(i, &b->lanes[i].task);
    return done == LANES ? TASK_DONE : TASK_WAITS;
}

static task_state close_lanes(const plan_run *of, shuffled_block *b, task *t, trace_ring *ring)
{
    b->open = false;
    t->at = b->lanes[0].task.at;
    t->iteration = b->lanes[0].task.iteration;
    t->entered = false;
    t->moved = true;
    return b->stores_late ? signal_then_store(of, b, t, ring) : TASK_DONE;
}

/* Decide at random whether a thread block that made progress yields. */
static bool gives_way(shuffled_block *b, task *t)
{
    if (!b->got_on || shuffle_below(&b->random, 3) != 0)
        return false;
    if (shuffle_below(&b->random, 16) == 0)
        shuffle_nap(&b->random);
    b->got_on = false;
    t->moved = true;
    return true;
}

static bool stays_behind(shuffle *all, shuffled_block *b)
{
    uint64_t moves = atomic_load_explicit(&all->moves, memory_order_relaxed);
    b->looks = moves == b->moves ? b->looks + 1 : 0;
    b->moves = moves;
    return b->lags && b->looks < LAG_LOOKS;
}

static task_state shuffle_go_on(const plan_run *of, shuffled_block *b, task *t, trace_ring *ring)
{
    while (b->open || t->at < t->step_count) {
        task_state state;
        if (!b->open && is_barrier_step(&t->steps[t->at])) {
            state = task_take_step(of, t, ring);
        } else {
            if (!b->open)
                open_lanes(t, b);
            state = play_lanes(of, b, t, ring);
            if (state == TASK_DONE)
                state = close_lanes(of, b, t, ring);
        }
        if (state != TASK_DONE)
            return state;
    }
    return TASK_DONE;
}

task_state shuffle_advance(const plan_run *of, task *t, trace_ring *ring)
{
    shuffled_block *b = &of->loaded->shuffle->blocks[t - of->loaded->tasks];
    if (gives_way(b, t) || stays_behind(of->loaded->shuffle, b))
        return TASK_WAITS;
    if (shuffle_below(&b->random, 8) == 0)
        pass_on_any(of, b);
    task_state state = shuffle_go_on(of, b, t, ring);
    if (state == TASK_WAITS && !t->moved)
        t->moved = pass_on_any(of, b);
    b->got_on = t->moved;
    if (t->moved)
        atomic_fetch_add_explicit(&of->loaded->shuffle->moves, 1, memory_order_relaxed);
    return state;
}

static banyan_status shuffle_make(banyan_loaded_plan *loaded)
{
    const plan_rank *rank = &loaded->plan->ranks[loaded->executor->rank];
    size_t bytes = sizeof(shuffle) + loaded->task_count * sizeof(shuffled_block);
    shuffle *made = calloc(1, bytes);
    if (!made)
        return error_no_memory(bytes, "thread blocks in random order");
    made->block_count = loaded->task_count;
    made->port_count = rank->channel_count[PLAN_PORT];
    made->ports = calloc(made->port_count + 1, sizeof *made->ports);
    if (!made->ports) {
        free(made);
        return error_no_memory((rank->channel_count[PLAN_PORT] + 1) * sizeof(held_port),
                               "requests of port channels");
    }
    loaded->shuffle = made;
    return BANYAN_OK;
}

static banyan_status begin_block(shuffled_block *b, uint64_t seed, const specialized_block *block)
{
    b->seeds = b->random = shuffle_random_from(seed);
    b->open = b->got_on = false;
    b->lags = shuffle_below(&b->seeds, 4) == 0;
    b->looks = 0;
    b->stores.count = 0;
    for (uint32_t i = 0; i < LANES; i++) {
        b->lanes[i].share = i;
        b->lanes[i].task.is_lane = i > 0;
        RETURN_IF_FAILED(task_prepare(&b->lanes[i].task, block));
    }
    return BANYAN_OK;
}

banyan_status shuffle_begin(banyan_loaded_plan *loaded, const plan_run *of)
{
    const banyan_executor *executor = loaded->executor;
    if (!loaded->shuffle)
        RETURN_IF_FAILED(shuffle_make(loaded));
    const uint64_t place[] = {executor->shuffle_seed, (uint64_t)executor->rank, loaded->runs};
    shuffle_random random = shuffle_random_from(hash_bytes(place, sizeof place, 0));
    for (uint32_t i = 0; i < loaded->shuffle->block_count; i++)
        RETURN_IF_FAILED(begin_block(&loaded->shuffle->blocks[i], shuffle_next(&random),
                                     &of->specialized->blocks[i]));
    for (uint32_t i = 0; i < loaded->shuffle->port_count; i++)
        loaded->shuffle->ports[i].random = shuffle_random_from(shuffle_next(&random));
    if (shuffle_below(&random, 3) == 0)
        shuffle_nap(&random);
    return BANYAN_OK;
}

void shuffle_free(shuffle *old)
{
    for (uint32_t i = 0; old && i < old->block_count; i++) {
        shuffled_block *b = &old->blocks[i];
        for (size_t k = 0; k < b->stores.count; k++)
            free(b->stores.data[k].bytes);
        array_free(&b->stores);
        for (uint32_t k = 0; k < LANES; k++) {
            task_free(&b->lanes[k].task);
            array_free(&b->lanes[k].words);
        }
    }
    if (old)
        free(old->ports);
    free(old);
}
