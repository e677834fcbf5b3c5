/* Replays several runs of a plan on messages of one size, with symbols in place of data.
 *
 * Signals, semaphores and packets only ever enable operations, and an enabled operation stays
 * enabled: one greedy schedule therefore finds every operation that never runs. Visibility is
 * tracked by vector clocks, so that this one schedule also finds all unordered accesses, whatever
 * order they come in. docs/internals/memory-model.md has the memory model. */
#ifndef CHECK_REPLAY_REPLAY_H
#define CHECK_REPLAY_REPLAY_H

#include "check/findings.h"
#include "check/model/spaces.h"
#include "check/orders/orders.h"
#include "plan/geometry/geometry.h"
#include "plan/pairs.h"

/* One execution of an operation, or an action of a caller. */
typedef struct instance {
    int rank;
    uint32_t block, op, loop_op; /* NOBODY: none */
    uint32_t iteration, run;
} instance;

/* For instances of a caller (block NOBODY): its action. */
enum { CALLER_WRITES, CALLER_READS };

/* The history of bytes. Index 0: unknown. */
typedef struct origin_link {
    uint32_t instance, first, second;
} origin_link;

/* One execution of a part of an operation that writes packets: a chain that has read all packets
 * knows that the part's sources have been read. */
typedef struct part {
    uint32_t chain, time;
    uint64_t bytes;
} part;

/* Packets of a part that a chain has read so far. */
typedef struct part_count {
    uint32_t part;
    uint64_t bytes;
} part_count;

typedef struct token {
    vector_clock *known;
    uint32_t chain;   /* of the giver */
    uint64_t ordinal; /* number within that chain */
    order_need given; /* event in the net */
} token;

typedef struct counter_user {
    uint32_t chain;
    uint64_t per_run, so_far;
} counter_user;

/* A channel end's signals, or a semaphore. */
typedef struct counter {
    uint64_t initial, taken;
    ARRAY(token) tokens;
    ARRAY(counter_user) givers, takers;
    /* A run gives more tokens than it takes: after many runs no wait there blocks any more. */
    bool drifts;
    uint32_t shared; /* its number among counters with several givers or takers, otherwise NOBODY */
} counter;

/* A thread block during the replay. */
typedef struct walker {
    int rank;
    uint32_t index;
    const plan_thread_block *block;
    uint32_t chain, time;
    uint32_t at, inner; /* operation, and operation in its loop */
    uint64_t iteration;
    uint32_t taken;                    /* signals of the current operation that were taken */
    uint32_t instance;                 /* of the current operation; NOBODY: not begun */
    bool arrived;                      /* at a barrier */
    bool followed;                     /* visited by the explanation of a deadlock */
    uint64_t rounds;                   /* rounds of the barrier that were over at its arrival */
    vector_clock *start, *pending;     /* at the segment's beginning, and acquired since */
    vector_clock *told, *told_relaxed; /* its releases' clocks, once computed */
    ARRAY(part_count) counts;
} walker;

typedef struct meeting {
    int rank;
    uint32_t barrier, members, arrived;
    uint64_t rounds;
    vector_clock *known, *next; /* of the last completed round; of the blocks that have arrived */
    ARRAY(order_need) over, arrivals; /* likewise, in the net */
} meeting;

typedef enum space_kind {
    SPACE_INPUT, /* in place: the memory of both */
    SPACE_OUTPUT,
    SPACE_SCRATCH,
    SPACE_PACKETS,
    SPACE_KINDS
} space_kind;

typedef struct rank_state {
    space spaces[SPACE_KINDS][2];
    uint64_t bytes[2], places[2]; /* of input and output */
    counter *channels[PLAN_CHANNEL_TYPES];
    counter *semaphores;
    uint32_t *port_times;
    walker *walkers;
    uint32_t run;
    bool running;
    vector_clock *caller;
} rank_state;

typedef struct replay {
    const banyan_plan *plan;
    const plan_geometry *geometry;
    uint32_t runs, flags; /* that packets of a run use */
    bool whole;           /* no chunk is clipped */
    uint64_t max_memory_bytes;
    arena memory;
    chain_list chains;
    vector_clock_store store;
    plan_pairs pairs;
    values values;
    cell_list cells;
    rank_state *ranks;
    walker *walkers;
    size_t walker_count;
    map meetings; /* from rank and barrier to the index in the list */
    ARRAY(meeting) meeting_list;
    ARRAY(instance) instances;
    ARRAY(origin_link) origins;
    ARRAY(part) parts;
    uint64_t steps; /* operations and cells visited: the cost */
    bool stuck;
    bool raced; /* results of later runs are meaningless */
    findings *findings;

    /* With counters that several blocks give to or take from: the net of waits and gives. */
    ARRAY(uint64_t) shared; /* their initial tokens */
    order_net net;
    ARRAY(order_need) event_of; /* by instance, for writers of packets */
    /* The search's result, once known. */
    const orders *orders;
    const order_take_list *forced; /* the takes from shared counters, one by one */
    const char *how;               /* explanation of that order */
} replay;

typedef enum outcome { DONE, WAITS, FAILED } outcome;

/* Replay the plan, adding findings. Takes from a counter that several blocks share are tried in
 * every order. Errors: those of the geometry, NO_MEMORY. */
banyan_status replay_plan(replay *all);

/* ---- stages ---- */

banyan_status replay_prepare(replay *all);
/* Replay a prepared plan in one order. */
banyan_status replay_play(replay *all);
void replay_free(replay *all);

/* Record the net of waits and gives, when there are shared counters. */
bool replay_note_run(replay *all, int rank);
bool replay_note_give(replay *all, walker *by, const counter *to, order_need *at);
/* Record a take from the shared counter, or of the token `one`; NULL: an initial token. */
bool replay_note_take(replay *all, walker *by, const counter *from, const token *one);
bool replay_note_arrival(replay *all, walker *by, meeting *at);
void replay_note_round(meeting *at);
bool replay_note_barrier(replay *all, walker *by, const meeting *at);
/* Record packets that the current operation waits for, and its completion. */
bool replay_note_packets(replay *all, walker *by, uint32_t writer);
bool replay_note_data(replay *all, walker *by);
/* Return its next event. */
order_need replay_net_place(const replay *all, const walker *by);

/* Return the current operation; in a loop, the one in its body. */
const plan_op *walker_op(const walker *by, const plan_op **loop);
banyan_check_place walker_place(const replay *all, const walker *by);
/* Create an instance of the current operation, kept until the walker continues. False when memory
 * ran out. */
bool walker_begin(replay *all, walker *by);
/* Compute the clock of its releases: everything that all its threads did and knew before this
 * segment. */
bool walker_tell(replay *all, walker *by, bool relaxed, vector_clock **told);
/* Synchronize its threads. */
bool walker_join(replay *all, walker *by);

outcome replay_sync(replay *all, walker *by, const plan_op *op);
outcome replay_data(replay *all, walker *by, const plan_op *op, const plan_op *loop);
/* Give the rank's signal to the other end of its channel. */
outcome replay_signal(replay *all, walker *by, const plan_op *op, uint32_t number, bool relaxed);
outcome replay_flush(replay *all, walker *by, const plan_op *op);

/* Replay a rank's caller: it writes the input and starts a run; it reads the output, and is ready
 * for the next run. */
bool replay_begin_run(replay *all, int rank);
bool replay_end_run(replay *all, int rank);

/* Mark counters that drift from run to run; report those that run dry eventually. */
void replay_mark_drifts(replay *all);
bool replay_tell_dry(replay *all);
/* Warn about counters that drift: possibly no block needs to wait there. */
bool replay_warn_of_drifts(replay *all);

/* Report a deadlock: which blocks wait for each other. */
bool replay_explain_stuck(replay *all);

/* Return the counter of an operation's k-th channel or semaphore, on the giver's and the taker's
 * side. */
counter *replay_given(replay *all, int rank, const plan_thread_block *block, const plan_op *op,
                      uint32_t k);
counter *replay_taken(replay *all, int rank, const plan_thread_block *block, const plan_op *op,
                      uint32_t k);

banyan_check_place replay_place(const replay *all, uint32_t instance);
/* "rank 0, thread block 1, operation 2 (put, ring.c:42)", "rank 0's caller". */
#define PLACE_TEXT_BYTES 256
const char *replay_place_text(const replay *all, uint32_t instance, char text[PLACE_TEXT_BYTES]);

/* ", ring.c:42"; "" for NULL. */
#define LINE_TEXT_BYTES 128
const char *line_text(const plan_line *line, char text[LINE_TEXT_BYTES]);

/* "bytes [64, 128) (chunk 1)": bytes from `begin` to `end` of a rank's buffer, which hold packets
 * if `packets`. */
#define SPAN_TEXT_BYTES 128
const char *replay_bytes_text(const replay *all, plan_buffer buffer, bool packets, uint64_t begin,
                              uint64_t end, char text[SPAN_TEXT_BYTES]);

#endif
