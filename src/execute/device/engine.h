/* Where plans run when not on the host: the table that a device's module brings, and a plan's cut
 * as that module gets it.
 *
 * The host cuts a plan for a size and element type (specialize.h); a program is that cut in plain
 * arrays, so that it can be copied to a device as it is and read by a kernel. Everything in the
 * table is local: what ranks agree on, they agree on above. */
#ifndef EXECUTE_DEVICE_ENGINE_H
#define EXECUTE_DEVICE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <banyan/world.h>

#include "execute/specialize/step_kind.h"

/* ---- programs ---- */

/* A step of a thread block. Indices are into the program's arrays. */
typedef struct engine_step {
    uint8_t kind;      /* step_kind, or ENGINE_MULTICAST */
    uint8_t op;        /* COMBINE: banyan_reduce_op */
    uint8_t new_flags; /* every iteration's packets have a flag of their own */
    uint8_t in_loop;
    uint16_t source_count, destination_count;
    uint32_t operands; /* sources, then destinations */
    uint32_t ends;     /* SIGNAL, WAIT, POST_…, FLUSH: ends; ACQUIRE, RELEASE: semaphores */
    uint32_t end_count;
    uint32_t barrier, barrier_members;
    uint32_t jump;       /* LOOP_END: the step to go back to; LOOP: the one behind its end; both
                            counted from the block's first */
    uint32_t iterations; /* LOOP and LOOP_END */
    uint32_t number;     /* of the operation in its thread block, as the plan counts */
    uint32_t relaxed;    /* SIGNAL: 1 where nothing has to be visible with it; waits acquire */
    /* Outside of loops: `piece_count` pieces from word `words` on. In a loop: `words` is where
     * iterations + 1 words lie that say where each iteration's pieces begin, and the last's end. */
    uint64_t words, piece_count;
} engine_step;

/* An operand: base (step_base), and whether packets lie there. */
#define ENGINE_PACKETS (UINT32_C(1) << 31)

/* Groups of ranks that one multicast address stands for. Their bases lie behind those of the most
 * ranks, three a group, as if each group were one more rank. */
#define ENGINE_RANKS_MAX 16 /* a kernel holds its ranks in its arguments */
#define ENGINE_GROUPS_MAX 2
#define ENGINE_GROUP_BASES (ENGINE_RANKS_MAX * 3)

/* The kind of a step that goes through multicast memory, behind those of step_kind: one source and
 * one destination, either or both of a group. A group's source is the sum of what its ranks have,
 * of f32, f16 or bf16. Bytes and offsets are multiples of 16, and so are the bases of the run. */
#define ENGINE_MULTICAST (STEP_LOOP_END + 1)

/* A piece: bytes, then an offset an operand, of packets as they lie. Bytes with this bit are a pad:
 * STEP_PAD of step.h. */
#define ENGINE_PAD (UINT64_C(1) << 63)

typedef struct engine_block {
    uint32_t id; /* as the plan has it */
    uint32_t first_step, step_count;
    uint32_t first_operand, operand_count;
    uint32_t first_end, end_count;
    uint32_t unused;
    uint64_t first_word, word_count;
} engine_block;

/* Bytes of the output that are to be copied to where the caller wants them. */
typedef struct engine_span {
    uint64_t offset, bytes;
} engine_span;

typedef struct engine_program {
    DLDataType dtype;
    uint32_t elem_bytes;
    uint32_t flags; /* that packets of a run use up */
    const engine_block *blocks;
    uint32_t block_count;
    const engine_step *steps;
    uint32_t step_count;
    const uint32_t *operands;
    uint32_t operand_count;
    const uint32_t *ends;
    uint32_t end_count;
    const uint64_t *words;
    uint64_t word_count;
    const engine_span *spans;
    uint32_t span_count;
} engine_program;

/* ---- plans ---- */

/* This rank's end of a channel. Counters are 64-bit, a cache line each, in symmetric memory of the
 * device; the peer adds to `incoming`, whose waits take one each, and this rank adds to `outgoing`.
 * In a plan that is alike the peer signals for a port where this rank signals through its twin. */
#define ENGINE_NO_TWIN UINT32_MAX
typedef struct engine_end {
    uint64_t *incoming, *outgoing;
    int32_t peer;
    uint32_t is_port;
    uint32_t twin; /* by number */
} engine_end;

/* The cause that ended a run on the device. */
typedef enum engine_verdict {
    ENGINE_FINE,
    ENGINE_LATE,    /* a wait passed its deadline */
    ENGINE_STOPPED, /* a peer was lost or the world aborted: the world has the sentence */
    ENGINE_BROKEN   /* the device did not take what a port channel's proxy gave it: `trouble` */
} engine_verdict;

typedef struct engine_report {
    uint32_t verdict; /* enum engine_verdict */
    uint32_t block;   /* its place among the rank's thread blocks */
    uint32_t step;    /* counted from the block's first */
    uint32_t index;   /* source, channel end or semaphore of the step */
    uint64_t iteration;
    uint64_t waited_ns;
    void *uploaded; /* the program; it may have been discarded since */
    const char *trouble;
} engine_report;

/* What stays the same from cut to cut. */
typedef struct engine_plan {
    int rank, ranks;
    uint32_t block_count;
    uint32_t threads_per_block; /* as the plan asks */
    const engine_end *ends;     /* of memory channels, then of port channels */
    uint32_t end_count;
    const uint64_t *semaphores; /* their values at the start of every run */
    uint32_t semaphore_count;
    uint32_t barrier_count;
    char *cleared; /* this rank's counters and scratch: zero before the first run */
    uint64_t cleared_bytes;
    uint64_t scratch_half; /* what odd runs add to bases of scratch; 0: nothing */
    /* All thread blocks, of which ranks have equally many, do the same operations in order, and may
     * do so in step: every wait is for signals of operations before it. */
    bool alike;
    /* From the engine's thread, while a run waits: for what, in the report. NULL: it does not wait.
     */
    void (*waits)(void *owner, const engine_report *report);
    void *owner;
} engine_plan;

/* One run. Bases are by step_base (rank × 3 + buffer), those of scratch are an even run's. */
typedef struct engine_run {
    char *const *bases;
    char *const *group_bases; /* ENGINE_GROUPS_MAX × 3, what no step uses NULL */
    char *copy_in_to;         /* NULL: nothing is copied */
    const char *copy_in_from;
    uint64_t copy_in_bytes;
    char *copy_out_to; /* NULL: nothing is copied; else the program's spans */
    const char *copy_out_from;
} engine_run;

/* What an operation did, in the host's CLOCK_MONOTONIC. */
typedef struct engine_trace {
    uint64_t begin_ns, end_ns, waited_ns;
    uint64_t iteration;
    uint32_t block, step; /* as above */
    void *loaded;         /* the plan, as load gave it */
    void *uploaded;       /* the program */
} engine_trace;

/* ---- the table ---- */

typedef struct execute_engine_ops {
    size_t size;      /* of this struct */
    const char *name; /* "cuda" */

    /* `timeout_ns`: the deadline of every wait on the device. The engine asks the world, from a
     * thread of its own, whether all is well (banyan_world_check), and ends its kernels when not.
     */
    banyan_status (*open)(banyan_world *world, int device, uint64_t timeout_ns, void **engine);
    void (*close)(void *engine);

    /* Thread blocks of the largest size that run at once, of a plan that keeps nothing in shared
     * memory. */
    banyan_status (*blocks_at_once)(void *engine, uint32_t *blocks);

    /* Connect a plan. INVALID when its thread blocks do not fit on the device at once, with both
     * numbers. What `plan` points to may go afterwards. */
    banyan_status (*load)(void *engine, const engine_plan *plan, void **loaded);
    /* Drains. */
    void (*unload)(void *loaded);

    /* Wait until all runs have ended that `run` has queued; of those in graphs the caller knows. */
    banyan_status (*drain)(void *loaded);

    /* Have a program where the device reads it. Legal while streams are captured. */
    banyan_status (*upload)(void *loaded, const engine_program *program, void **uploaded);
    /* Drains. NULL is ignored. */
    void (*discard)(void *uploaded);

    /* One kernel in the caller's stream; returns when it is queued. `*captured`: the stream is
     * being captured, so that the program must stay until the plan is unloaded. The error of an
     * earlier run (check) is told before anything is queued. */
    banyan_status (*run)(void *loaded, void *uploaded, const engine_run *run, void *stream,
                         bool *captured);

    /* Queue a copy inside the device's memory in the caller's stream. */
    banyan_status (*copy)(void *engine, void *to, const void *from, uint64_t bytes, void *stream);

    /* For measurements: what `queue` queues in a stream, so many times, becomes one piece of work;
     * play does it and waits, and tells how long it took by the device. */
    banyan_status (*record)(void *engine, banyan_status (*queue)(void *context, void *stream),
                            void *context, uint32_t times, void **recorded);
    banyan_status (*play)(void *recorded, uint64_t *ns);
    void (*forget)(void *recorded);

    /* How the runs went that have ended so far. Does not wait. */
    void (*check)(void *loaded, engine_report *report);
    /* Forget a report, and clear counters, scratch and run numbers. Local: all ranks have drained
     * before, and none runs until all are done. */
    banyan_status (*reset)(void *loaded);

    /* Record from now on; hand over, and drop, what was recorded (after all kernels are done); end
     * recording. Graphs that were captured before are not recorded. */
    banyan_status (*trace_begin)(void *engine);
    banyan_status (*trace_take)(void *engine,
                                banyan_status (*visit)(void *context, const engine_trace *one),
                                void *context);
    banyan_status (*trace_stop)(void *engine);
} execute_engine_ops;

#endif
