/* A thread block that is being run: where it stands, so that it can give way and go on later. */
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
    bool moved;   /* something was done; whoever looks at it clears it */
    uint64_t iteration;
    const plan_thread_block *block;

    /* In the step at hand. */
    const uint64_t *piece; /* the current one */
    uint64_t pieces_left;
    uint64_t done;   /* bytes of the piece */
    uint64_t got;    /* bytes of the block, of the packets of one source */
    uint32_t index;  /* source, channel end or semaphore */
    uint64_t target; /* that a counter is to reach; 0: none yet */
    bool quiet;      /* packets were written, and nobody has knocked */

    /* Kept from run to run. */
    char *room; /* see cut_block */
    size_t room_bytes;
    const void **sources;
    uint32_t most_sources;
    piece_words words; /* of an iteration that was not cut beforehand */

    trace_record record;
    uint64_t waiting_since_ns; /* 0: it does not wait */
    bool is_lane;              /* it does a share of each step that moves bytes: shuffle.h */
} task;

/* What the tasks of a run have in common. */
typedef struct plan_run {
    struct banyan_loaded_plan *loaded;
    const plan_cut *cut;
    char *const *bases;
    uint32_t flag;
    bool shared; /* several threads run the rank's thread blocks */
    bool traces;
    _Atomic bool stopped; /* one of them has failed */
} plan_run;

typedef enum task_state {
    TASK_DONE,
    TASK_WAITS,
    TASK_FAILED /* the error is set */
} task_state;

/* Room for a cut's blocks. */
banyan_status task_prepare(task *t, const cut_block *block);
void task_free(task *t);

/* Make the task begin anew. */
void task_reset(task *t, const plan_run *of, uint32_t block);

/* The step at hand only: TASK_DONE when that is done. */
task_state task_take_step(const plan_run *of, task *t, trace_ring *ring);
/* To the step after this one, which may be at the beginning of a loop's next iteration. */
void task_go_past(task *t, const step *s);
/* Of a step that moves bytes, in this iteration. */
banyan_status task_find_pieces(const plan_run *of, task *t, const step *s);

/* Run the task until it waits or is done. */
task_state task_advance(const plan_run *of, task *t, trace_ring *ring);

#endif
