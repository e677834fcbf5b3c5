/* Plays several runs of a plan on messages of one size with symbols in place of data.
 *
 * Signals, semaphores and packets only ever let others go on, so that who can go on once can go on
 * for good: an order in which as many operations run as can is enough to find out what never runs.
 * Who may have seen what is kept as vector clock, so that accesses that nothing orders are found in
 * this one order, whatever order they come in. docs/check.md has the memory model. */
#ifndef CHECK_REPLAY_REPLAY_H
#define CHECK_REPLAY_REPLAY_H

#include "check/findings.h"
#include "check/model/spaces.h"
#include "check/orders/orders.h"
#include "plan/geometry/geometry.h"
#include "plan/pairs.h"

/* An operation that is run once, or what a caller does. */
typedef struct instance {
    int rank;
    uint32_t block, op, loop_op; /* NOBODY: none */
    uint32_t iteration, run;
} instance;

/* Of instances that are the caller's (block NOBODY): what it does. */
enum { CALLER_WRITES, CALLER_READS };

/* How bytes came to be what they are. Place 0: nobody knows. */
typedef struct origin_link {
    uint32_t instance, first, second;
} origin_link;

/* A part of an operation that writes packets, done once: who has read them all knows that what it
 * read has been read. */
typedef struct part {
    uint32_t chain, time;
    uint64_t bytes;
} part;

/* Packets of a part that somebody has read so far. */
typedef struct part_count {
    uint32_t part;
    uint64_t bytes;
} part_count;

typedef struct token {
    vector_clock *known;
    uint32_t chain;   /* of who signalled */
    uint64_t ordinal; /* among that chain's */
    order_need given; /* where in the net */
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
    /* More is given in a run than is taken: after many runs nobody waits there for anything new. */
    bool drifts;
    uint32_t shared; /* its number among those that several give to or take from, else NOBODY */
} counter;

/* A thread block on its way. */
typedef struct walker {
    int rank;
    uint32_t index;
    const plan_thread_block *block;
    uint32_t chain, time;
    uint32_t at, inner; /* operation, and operation in its loop */
    uint64_t iteration;
    uint32_t taken;    /* signals that the operation at hand has */
    uint32_t instance; /* of the operation at hand; NOBODY: not begun */
    bool arrived;      /* at a barrier */
    bool followed;     /* when nobody could go on, and it was asked who waits for whom */
    uint64_t rounds;   /* of it that were over by then */
    vector_clock *start, *pending;     /* at the segment's beginning, and since */
    vector_clock *told, *told_relaxed; /* what it tells others, when somebody has asked */
    ARRAY(part_count) counts;
} walker;

typedef struct meeting {
    int rank;
    uint32_t barrier, members, arrived;
    uint64_t rounds;
    vector_clock *known, *next; /* of the last round that is over; of those who have arrived */
    ARRAY(order_need) over, arrivals; /* the same, in the net */
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
    uint32_t runs, flags; /* that packets of a run use up */
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
    map meetings; /* rank and barrier to the place in the list */
    ARRAY(meeting) meeting_list;
    ARRAY(instance) instances;
    ARRAY(origin_link) origins;
    ARRAY(part) parts;
    uint64_t steps; /* operations, and what they touched: what it cost */
    bool stuck;
    bool raced; /* results of later runs mean nothing */
    findings *findings;

    /* With counters that several give to or take from, what is waited for and given. */
    ARRAY(uint64_t) shared; /* what they hold at first */
    order_net net;
    ARRAY(order_need) event_of; /* by instance: of who writes packets */
    /* What is known of the orders, when that is. */
    const orders *orders;
    const order_take_list *forced; /* who takes from shared counters: these, one by one */
    const char *how;               /* how it comes to that order */
} replay;

typedef enum outcome { DONE, WAITS, FAILED } outcome;

/* Errors: those of the geometry, NO_MEMORY. Findings are added. What comes first where thread
 * blocks take from a counter that they share is tried both ways. */
banyan_status replay_plan(replay *all);

/* ---- its parts ---- */

banyan_status replay_prepare(replay *all);
/* Once it is prepared: in one order. */
banyan_status replay_play(replay *all);
void replay_free(replay *all);

/* The net of what is waited for and given, when there are shared counters. */
bool replay_note_run(replay *all, int rank);
bool replay_note_give(replay *all, walker *by, const counter *to, order_need *at);
/* `from` as it is shared, or as it gave `one`; NULL: it was there at first. */
bool replay_note_take(replay *all, walker *by, const counter *from, const token *one);
bool replay_note_arrival(replay *all, walker *by, meeting *at);
void replay_note_round(meeting *at);
bool replay_note_barrier(replay *all, walker *by, const meeting *at);
/* Packets that the operation at hand waits for, and that it is done. */
bool replay_note_packets(replay *all, walker *by, uint32_t writer);
bool replay_note_data(replay *all, walker *by);
/* Its next event. */
order_need replay_net_place(const replay *all, const walker *by);

/* The operation at hand, in a loop the one in its body. */
const plan_op *walker_op(const walker *by, const plan_op **loop);
banyan_check_place walker_place(const replay *all, const walker *by);
/* An instance of the operation at hand, the same until the walker goes on. False: no memory. */
bool walker_begin(replay *all, walker *by);
/* What it may tell others: what all its threads did before this segment, and knew. */
bool walker_tell(replay *all, walker *by, bool relaxed, vector_clock **told);
/* Its threads meet. */
bool walker_join(replay *all, walker *by);

outcome replay_sync(replay *all, walker *by, const plan_op *op);
outcome replay_data(replay *all, walker *by, const plan_op *op, const plan_op *loop);
/* The rank's signal to the other end of its channel. */
outcome replay_signal(replay *all, walker *by, const plan_op *op, uint32_t number, bool relaxed);
outcome replay_flush(replay *all, walker *by, const plan_op *op);

/* A rank's caller: writes the input and starts a run; reads the output, and is ready for the next.
 */
bool replay_begin_run(replay *all, int rank);
bool replay_end_run(replay *all, int rank);

/* Mark what drifts from run to run; tell of what runs dry some day. */
void replay_mark_drifts(replay *all);
bool replay_tell_dry(replay *all);
/* Tell of what drifts: a warning, for it may be that nobody needs to wait. */
bool replay_warn_of_drifts(replay *all);

/* Nobody can go on: tell who waits for whom. */
bool replay_explain_stuck(replay *all);

/* Which counter the k-th channel or semaphore of an operation is; its giver's and taker's side. */
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

/* "bytes [64, 128) (chunk 1)": bytes from `begin` to `end` of a rank's buffer, `packets` of its
 * packets. */
#define SPAN_TEXT_BYTES 128
const char *replay_bytes_text(const replay *all, plan_buffer buffer, bool packets, uint64_t begin,
                              uint64_t end, char text[SPAN_TEXT_BYTES]);

#endif
