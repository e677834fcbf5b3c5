/* A running thread block with its position, so that it can yield and continue later. */
#ifndef EXECUTE_HOST_TASK_H
#define EXECUTE_HOST_TASK_H

#include "execute/host/trace.h"
#include "execute/specialize/specialize.h"

struct banyan_loaded_plan;

typedef struct task {
    const step *steps;
    uint32_t step_count;
    uint32_t at;
    bool entered; /* the step at hand has begun */
    bool moved;   /* made progress; the reader clears it */
    uint64_t iteration;
    const plan_thread_block *block;

    /* State of the current step. */
    const uint64_t *piece; /* the current piece */
    uint64_t pieces_left;
    uint64_t done;   /* bytes of the piece that are done */
    uint64_t got;    /* packet bytes of one source that are in the block */
    uint32_t index;  /* source, channel end or semaphore */
    uint64_t target; /* value that a counter must reach; 0: none yet */
    bool quiet;      /* packets were written, and no peer was woken yet */

    /* Kept from run to run. */
    char *room; /* see specialized_block */
    size_t room_bytes;
    const void **sources;
    uint32_t most_sources;
    piece_words words; /* of an iteration that was not prepared in advance */

    trace_record record;
    uint64_t waiting_since_ns; /* 0: the task does not wait */
    bool is_lane;              /* performs a share of each step that moves bytes: shuffle.h */
} task;

/* State that the tasks of a run share. */
typedef struct plan_run {
    struct banyan_loaded_plan *loaded;
    const specialized_plan *specialized;
    const struct binding *placed;
    uint32_t flag;
    bool shared; /* several threads run the rank's thread blocks */
    bool traces;
    _Atomic bool stopped; /* one of these threads has failed */
} plan_run;

typedef enum task_state {
    TASK_DONE,
    TASK_WAITS,
    TASK_FAILED /* banyan_last_error() has the message */
} task_state;

/* Allocate memory for the specialized plan's blocks. */
banyan_status task_prepare(task *t, const specialized_block *block);
void task_free(task *t);

/* Return the task to its beginning. */
void task_reset(task *t, const plan_run *of, uint32_t block);

/* Run the current step only. TASK_DONE: the step is done. */
task_state task_take_step(const plan_run *of, task *t, trace_ring *ring);
/* Go to the step after this one, which may be the first of a loop's next iteration. */
void task_go_past(task *t, const step *s);
/* Find the pieces of a step that moves bytes, in this iteration. */
banyan_status task_find_pieces(const plan_run *of, task *t, const step *s);

/* Run the task until it waits or is done. */
task_state task_advance(const plan_run *of, task *t, trace_ring *ring);

/* Steps that move bytes: move.c. */

/* True when the step is done. False: it waits, and t->moved is true if it made progress. */
bool move_copy(const plan_run *of, task *t, const step *s);
bool move_pack(const plan_run *of, task *t, const step *s);
bool move_unpack(const plan_run *of, task *t, const step *s);
bool move_forward(const plan_run *of, task *t, const step *s);
bool move_combine(const plan_run *of, task *t, const step *s);
bool move_post(const plan_run *of, task *t, const step *s);

/* Post to the proxy or the transport. False: the queue is full. */
bool move_request(const plan_run *of, channel_end *end, const port_request *request);

/* Wake the waiters for the packets that the step has written. */
void move_doorbell(task *t, const step *s);

/* Run every `stride`-th thread block from `first` on until all are done. The calling thread sleeps
 * only when none of them can go on. Fails, with a message, when the world ends, after the world's
 * timeout, or, without a message, when another thread stops `of`. */
banyan_status scheduler_run(plan_run *of, uint32_t first, uint32_t stride, trace_ring *ring);

#endif
