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
#include "plan/stepper.h"

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
typedef struct packet_part {
    uint32_t chain, time;
    uint64_t bytes;
} packet_part;

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
typedef struct replay_counter {
    plan_counter *own;
    ARRAY(token) tokens; /* all that were ever given */
    ARRAY(counter_user) givers, takers;
    /* A run gives more tokens than it takes: after many runs no wait there blocks any more. */
    bool drifts;
    uint32_t shared; /* its number among counters with several givers or takers, otherwise NOBODY */
} replay_counter;

/* A thread block during the replay. */
typedef struct walker {
    plan_position *pos;
    uint32_t chain, time;
    uint32_t instance;                         /* of the current operation; NOBODY: not begun */
    bool followed;                             /* visited by the explanation of a deadlock */
    vector_clock *start, *pending;             /* at the segment's beginning, and acquired since */
    vector_clock *released, *released_relaxed; /* its releases' clocks, once computed */
    ARRAY(part_count) counts;
} walker;

typedef struct barrier_clocks {
    vector_clock *known, *next; /* of the last complete round; of the blocks that have arrived */
    ARRAY(order_need) over, arrivals; /* likewise, in the net */
} barrier_clocks;

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
    bool flushes_lost;    /* the executor's flushes do nothing */
    uint64_t max_memory_bytes;
    arena memory;
    chain_list chains;
    vector_clock_store store;
    plan_stepper stepper;
    values values;
    cell_list cells;
    rank_state *ranks;
    walker *walkers;          /* of the stepper's thread blocks */
    replay_counter *counters; /* of its counters */
    barrier_clocks *barriers; /* of its barriers */
    ARRAY(instance) instances;
    ARRAY(origin_link) origins;
    ARRAY(packet_part) parts;
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

/* The files of this folder, each of which uses those before it.
 *
 * walker.c: "rank 0, thread block 1, operation 2 (put, ring.c:42)", "rank 0's caller". */
#define PLACE_TEXT_BYTES 256
const char *replay_place_text(const replay *all, uint32_t instance, char text[PLACE_TEXT_BYTES]);
banyan_check_place replay_place(const replay *all, uint32_t instance);
banyan_check_place walker_place(const replay *all, const walker *by);
/* ", ring.c:42"; "" for NULL. */
#define LINE_TEXT_BYTES 128
const char *line_text(const plan_line *line, char text[LINE_TEXT_BYTES]);
/* "bytes [64, 128) (chunk 1)": bytes from `begin` to `end` of a rank's buffer, which hold packets
 * if `packets`. */
#define BYTES_TEXT_BYTES 128
const char *replay_bytes_text(const replay *all, plan_buffer buffer, bool packets, uint64_t begin,
                              uint64_t end, char text[BYTES_TEXT_BYTES]);
/* Create an instance of the current operation, kept until the walker continues. False, here as
 * below, when memory ran out. */
bool walker_begin(replay *all, walker *by);
/* Compute the clock of its releases: everything that all its threads did and knew before this
 * segment. */
bool walker_release(replay *all, walker *by, bool relaxed, vector_clock **released);
/* Synchronize its threads. */
bool walker_join(replay *all, walker *by);

/* net.c: record the net of waits and gives, when there are shared counters. */
bool replay_keeps_net(const replay *all);
bool replay_note_run(replay *all, int rank);
bool replay_note_give(replay *all, walker *by, const replay_counter *to, order_need *at);
/* Record a take from the shared counter, or of the token `one`; NULL: an initial token. */
bool replay_note_take(replay *all, walker *by, const replay_counter *from, const token *one);
bool replay_note_arrival(replay *all, walker *by, barrier_clocks *at);
void replay_note_round(barrier_clocks *at);
bool replay_note_barrier(replay *all, walker *by, const barrier_clocks *at);
/* Record packets that the current operation waits for, and its completion. */
bool replay_note_packets(replay *all, walker *by, uint32_t writer);
bool replay_note_data(replay *all, walker *by);
/* Return its next event. */
order_need replay_net_place(const replay *all, const walker *by);

/* sync.c */
outcome replay_sync(replay *all, walker *by, const plan_op *op);
/* Give the rank's signal to the other end of its channel. */
outcome replay_signal(replay *all, walker *by, const plan_op *op, uint32_t number, bool relaxed);
outcome replay_flush(replay *all, walker *by, const plan_op *op);

/* data.c, with motion.c */
outcome replay_data(replay *all, walker *by, const plan_op *op);

/* caller.c: a rank's caller writes the input and starts a run; it reads the output, and is ready
 * for the next run. */
bool replay_begin_run(replay *all, int rank);
bool replay_end_run(replay *all, int rank);

/* balance.c: mark counters that drift from run to run; report those that run dry eventually. */
void replay_mark_drifts(replay *all);
bool replay_report_dry(replay *all);
/* Warn about counters that drift: possibly no block needs to wait there. */
bool replay_warn_of_drifts(replay *all);

/* prepare.c */
banyan_status replay_prepare(replay *all);
void replay_free(replay *all);

/* deadlock.c: report which blocks wait for each other. */
bool replay_explain_stuck(replay *all);

/* replay.c: replay the plan, adding findings. Takes from a counter that several blocks share are
 * tried in every order. Errors: those of the geometry, NO_MEMORY. */
banyan_status replay_plan(replay *all);

#endif
