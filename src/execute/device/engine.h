/* The interface to a device's module: the table of its functions, and a specialized plan as the
 * module receives it.
 *
 * The host specializes a plan for a size and element type (specialize.h). A program is the
 * specialized plan in plain arrays, so that it can be copied to a device unchanged and read by a
 * kernel. Every function in the table but one is local: agreement between ranks takes place above
 * it. */
#ifndef EXECUTE_DEVICE_ENGINE_H
#define EXECUTE_DEVICE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <banyan/world.h>

#include "core/device_report.h"
#include "execute/specialize/step_kind.h"

/* A step of a thread block. Indices are into the program's arrays. */
typedef struct engine_step {
    uint8_t kind;      /* step_kind, or ENGINE_MULTICAST */
    uint8_t op;        /* COMBINE: banyan_reduce_op */
    uint8_t new_flags; /* each iteration's packets have a flag of their own */
    uint8_t in_loop;
    uint16_t source_count, destination_count;
    uint32_t operands; /* sources, then destinations */
    uint32_t ends;     /* SIGNAL, WAIT, POST_…, FLUSH: ends; ACQUIRE, RELEASE: semaphores */
    uint32_t end_count;
    uint32_t barrier, barrier_members;
    uint32_t jump; /* LOOP_END: the step to return to; LOOP: the step after its end; both counted
                      from the block's first */
    uint32_t iterations; /* LOOP and LOOP_END */
    uint32_t number;     /* the operation's number in its thread block, as the plan counts */
    uint32_t relaxed;    /* SIGNAL: 1 if nothing must be visible with it; waits acquire */
    /* Outside of loops, `words` is the first word of `piece_count` pieces. In a loop, `words` is
     * the first of iterations + 1 words: the positions where each iteration's pieces begin, then
     * the end of the last iteration's. */
    uint64_t words, piece_count;
} engine_step;

/* An operand: its base (step_base), and this bit if it consists of packets. */
#define ENGINE_PACKETS (UINT32_C(1) << 31)

/* Groups of ranks that share a multicast address. Their bases follow those of the largest number
 * of ranks, three for each group, as if each group were one more rank. */
#define ENGINE_RANKS_MAX 16 /* kernel arguments hold one entry for each rank */
#define ENGINE_GROUPS_MAX 2
#define ENGINE_GROUP_BASES (ENGINE_RANKS_MAX * 3)

/* The kind of a step that uses multicast memory; it follows the kinds of step_kind. The step has
 * one source and one destination; one or both belong to a group. A group's source is the sum of
 * its ranks' f32, f16 or bf16 values. Bytes, offsets and the run's bases are multiples of 16. */
#define ENGINE_MULTICAST (STEP_LOOP_END + 1)

/* A piece: bytes, then one offset for each operand; offsets of packets count packet bytes. This
 * bit in bytes marks a pad: STEP_PAD of step.h. */
#define ENGINE_PAD (UINT64_C(1) << 63)

/* A factor of elements, by their type. */
typedef struct engine_scaling {
    float factor;  /* of floats: the product is rounded once, from f32 */
    int64_t whole; /* of integers: products wrap around */
    bool divides;  /* integers are divided by `whole` ≥ 1, toward zero */
} engine_scaling;

typedef struct engine_block {
    uint32_t id; /* as in the plan */
    uint32_t first_step, step_count;
    uint32_t first_operand, operand_count;
    uint32_t first_end, end_count;
    uint32_t unused;
    uint64_t first_word, word_count;
} engine_block;

/* A range of output bytes to copy into the caller's buffer. */
typedef struct engine_span {
    uint64_t offset, bytes;
} engine_span;

typedef struct engine_program {
    DLDataType dtype;
    uint32_t elem_bytes;
    uint32_t flags; /* number of flags that a run's packets use */
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

/* This rank's end of a channel. Counters have 64 bits and a cache line each; they lie in the
 * device's symmetric memory. The peer adds to `incoming`, and each wait takes one from it; this
 * rank adds to `outgoing`. In an SPMD plan, the peer signals a port at the point where this rank
 * signals through its mirror. */
#define ENGINE_NO_MIRROR UINT32_MAX
typedef struct engine_end {
    uint64_t *incoming, *outgoing;
    int32_t peer;
    uint32_t is_port;
    uint32_t is_remote; /* a port to another node; `outgoing` is a remote address */
    uint32_t mirror;    /* by number */
} engine_end;

/* A remote address stands for a byte of a symmetric buffer at a rank of another node: the buffer's
 * number, and the offset. Kernels only add to it. */
#define ENGINE_REMOTE_SHIFT 40

static inline char *engine_remote(uint64_t memory, uint64_t offset)
{
    return (char *)(uintptr_t)(memory << ENGINE_REMOTE_SHIFT | offset);
}

static inline uint64_t engine_remote_memory(const void *remote)
{
    return (uint64_t)(uintptr_t)remote >> ENGINE_REMOTE_SHIFT;
}

static inline uint64_t engine_remote_offset(const void *remote)
{
    return (uint64_t)(uintptr_t)remote & ((UINT64_C(1) << ENGINE_REMOTE_SHIFT) - 1);
}

/* This rank's part of a symmetric buffer that peers of other nodes write to. */
typedef struct engine_memory {
    uint64_t id; /* 0: none */
    char *address;
    uint64_t bytes;
} engine_memory;

#define ENGINE_MEMORIES 3

/* The object of a wait, in the words of a report. */
typedef struct engine_wait {
    uint32_t block; /* index among the rank's thread blocks */
    uint32_t step;  /* counted from the block's first */
    uint32_t index; /* the step's source, channel end or semaphore */
    uint32_t iteration;
    void *uploaded; /* the program; it may have been discarded already */
} engine_wait;

/* Word 0: block and step << 32; 1: index and iteration << 32; 2: uploaded. */
static inline engine_wait engine_wait_of(const device_report *report)
{
    engine_wait wait;
    wait.block = (uint32_t)report->what[0];
    wait.step = (uint32_t)(report->what[0] >> 32);
    wait.index = (uint32_t)report->what[1];
    wait.iteration = (uint32_t)(report->what[1] >> 32);
    wait.uploaded = (void *)(uintptr_t)report->what[2];
    return wait;
}

/* The part of a plan that does not depend on the message size. */
typedef struct engine_plan {
    int rank, ranks;
    uint32_t block_count;
    uint32_t threads_per_block; /* as the plan requests */
    const engine_end *ends;     /* memory channels, then port channels */
    uint32_t end_count;
    const uint64_t *semaphores; /* values at the start of every run */
    uint32_t semaphore_count;
    uint32_t barrier_count;
    engine_memory memories[ENGINE_MEMORIES]; /* given for input and output, and the plan's block */
    char *cleared; /* this rank's counters and scratch: zero before the first run */
    uint64_t cleared_bytes;
    uint64_t scratch_half; /* added to the bases of scratch in odd runs; 0: nothing */
    /* True if all ranks have equally many thread blocks, all of these do the same operations in
     * order, and they may run in lock-step: every wait is for signals of earlier operations. */
    bool lock_step;
    /* Called from the engine's thread while a run waits; the report describes the wait. NULL: the
     * run does not wait. */
    void (*waits)(void *owner, const device_report *report);
    void *owner;
} engine_plan;

/* One run. Bases are indexed by step_base (rank × 3 + buffer). Scratch bases are those of an even
 * run. */
typedef struct engine_run {
    char *const *bases;
    char *const *group_bases; /* ENGINE_GROUPS_MAX × 3; NULL where no step uses the base */
    char *copy_in_to;         /* NULL: copy nothing */
    const char *copy_in_from;
    uint64_t copy_in_bytes;
    char *copy_out_to; /* NULL: copy nothing; else the program's spans */
    const char *copy_out_from;
} engine_run;

/* One operation, timed by the host's CLOCK_MONOTONIC. */
typedef struct engine_trace {
    uint64_t begin_ns, end_ns, waited_ns;
    uint64_t iteration;
    uint32_t block, step; /* as in engine_wait */
    void *loaded;         /* the plan, as `load` returned it */
    void *uploaded;       /* the program */
} engine_trace;

typedef struct execute_engine_ops {
    size_t size;      /* of this struct */
    const char *name; /* "cuda" */

    /* `timeout_ns` is the deadline of every wait on the device. A thread of the engine checks the
     * world (banyan_world_check) and ends the kernels after a failure. */
    banyan_status (*open)(banyan_world *world, int device, uint64_t timeout_ns, void **engine);
    void (*close)(void *engine);
    /* Let plans have port channels to ranks of other nodes. Collective, in a world of several. */
    banyan_status (*connect)(void *engine);

    /* Thread blocks of the largest size that run at once, for a plan that uses no shared memory. */
    banyan_status (*blocks_at_once)(void *engine, uint32_t *blocks);

    /* Connect a plan. INVALID if its thread blocks do not fit on the device at once; the message
     * has both numbers. The caller may free the contents of `plan` afterwards. */
    banyan_status (*load)(void *engine, const engine_plan *plan, void **loaded);
    /* Drains first. */
    void (*unload)(void *loaded);

    /* Wait until all runs queued by `run` have ended. For runs in graphs, the caller waits. */
    banyan_status (*drain)(void *loaded);

    /* Copy a program to the device. Legal while streams are captured. */
    banyan_status (*upload)(void *loaded, const engine_program *program, void **uploaded);
    /* Drains first. Ignores NULL. */
    void (*discard)(void *uploaded);

    /* Queue one kernel in the caller's stream and return. `*captured`: the stream is being
     * captured, so the program must remain until the plan is unloaded. Reports the error of an
     * earlier run (check) before it queues anything. */
    banyan_status (*run)(void *loaded, void *uploaded, const engine_run *run, void *stream,
                         bool *captured);

    /* Queue a copy inside the device's memory in the caller's stream. */
    banyan_status (*copy)(void *engine, void *to, const void *from, uint64_t bytes, void *stream);
    /* Queue `elems` elements of `from`, scaled, into `to`, which may be `from`. Any alignment. */
    banyan_status (*scale)(void *engine, void *to, const void *from, uint64_t elems,
                           DLDataType dtype, const engine_scaling *by, void *stream);

    /* For measurements. record: capture a number of `queue` calls in a stream as one unit of work.
     * play: run it, wait, and return the time it took on the device. */
    banyan_status (*record)(void *engine, banyan_status (*queue)(void *context, void *stream),
                            void *context, uint32_t times, void **recorded);
    banyan_status (*play)(void *recorded, uint64_t *ns);
    void (*forget)(void *recorded);

    /* Report the result of the runs that have ended so far. Does not wait. Returns the error of a
     * request from a port channel's proxy that the device rejected, or NULL. */
    const char *(*check)(void *loaded, device_report *report);
    /* Forget a report, and clear counters, scratch and run numbers. Local: all ranks must have
     * drained before, and none may run until all ranks are done. */
    banyan_status (*reset)(void *loaded);

    /* begin: record from now on. take: after all kernels are done, hand over and drop the records.
     * end: stop recording. Graphs captured before begin are not recorded. */
    banyan_status (*trace_begin)(void *engine);
    banyan_status (*trace_take)(void *engine,
                                banyan_status (*visit)(void *context, const engine_trace *one),
                                void *context);
    banyan_status (*trace_stop)(void *engine);
} execute_engine_ops;

#endif
