/* Banyan: running plans between the processes of a node.
 *
 * A process is a rank; its thread blocks are run by the calling thread, or by several worker
 * threads, as tasks that give way while they wait; or, with a GPU a rank, by one kernel a run. A
 * plan is loaded once, by all ranks together, and run many times; consecutive runs need no barrier
 * between them, as far as the plan is sound.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_EXECUTE_H
#define BANYAN_EXECUTE_H

#include <banyan/memory.h>
#include <banyan/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What plans need to run in a world: its ranks' bells, worker threads, the proxy of port channels.
 */
typedef struct banyan_executor banyan_executor;

/* A plan that is ready to run with messages up to a size. */
typedef struct banyan_loaded_plan banyan_loaded_plan;

typedef struct banyan_executor_options {
    size_t size; /* of this struct; BANYAN_EXECUTOR_OPTIONS_INIT sets it */
    int workers; /* threads that run thread blocks; 1: the calling thread alone */
    /* Not 0: run thread blocks in a random order that the memory model of docs/check.md allows, the
     * same for the same seed; a seed a rank, or one for all. Slow; for tests. 0: BANYAN_SHUFFLE, or
     * in order. */
    uint64_t shuffle_seed;
    /* A GPU (BANYAN_CUDA), one a rank: thread blocks of plans are thread blocks of one kernel a
     * run, and `workers` means nothing. Not named: the host, on all ranks or none. */
    DLDevice device;
} banyan_executor_options;

#define BANYAN_EXECUTOR_OPTIONS_INIT                                                               \
    BANYAN_INIT_WITH(banyan_executor_options, BANYAN_MEMBER(workers, 1))

/* Collective. `options` NULL: the defaults. All ranks must be of one node (UNSUPPORTED). On GPUs at
 * most 16 ranks; UNSUPPORTED also says what this build or machine lacks for them. */
BANYAN_API banyan_status banyan_executor_open(banyan_world *world,
                                              const banyan_executor_options *options,
                                              banyan_executor **executor);
/* Local, after the plans loaded on it are unloaded. NULL is ignored. */
BANYAN_API void banyan_executor_close(banyan_executor *executor);

typedef struct banyan_load_options {
    size_t size;                /* of this struct; BANYAN_LOAD_OPTIONS_INIT sets it */
    uint64_t max_message_bytes; /* the longest input of a rank that runs will bring */
    /* Buffers of banyan_memory_alloc, on a GPU of banyan_memory_alloc_on, in which the runs' input,
     * or output, will lie, at the same offset on every rank; this rank's and the peers' are used in
     * place. NULL: runs bring ordinary memory, which is copied to and from memory that peers reach,
     * where the plan has peers reach it. */
    const banyan_memory *input, *output;
} banyan_load_options;

#define BANYAN_LOAD_OPTIONS_INIT BANYAN_INIT(banyan_load_options)

/* Make a plan ready to run: scratch and counters taken, peers' addresses found. Collective: the
 * same plan and sizes on every rank, or MISMATCH. The plan may be destroyed afterwards. Errors:
 * INVALID (the plan is for another number of ranks, or has more thread blocks than the GPU runs at
 * once), MISMATCH, NO_MEMORY. */
BANYAN_API banyan_status banyan_plan_load(banyan_executor *executor, const banyan_plan *plan,
                                          const banyan_load_options *options,
                                          banyan_loaded_plan **loaded);
/* Collective, so that no peer is still using what is taken away; on a GPU it waits for the runs
 * that were queued, but graphs that hold some must have ended before. NULL is ignored. */
BANYAN_API banyan_status banyan_plan_unload(banyan_loaded_plan *loaded);

/* Run it on a message of `message_bytes` (of a rank's input; how long that makes the output:
 * banyan_plan_sizes): returns when this rank's part is done, its output can be read and its input
 * written. The first run of a size and type cuts the plan for it, locally; the latest cuts are
 * kept. All ranks run the same loaded plans in the same order with the same sizes and types.
 *
 * Types: f32, f16, bf16, f8 e4m3 and e5m2, i32, u32, i64, u8; a plan without reductions takes any
 * of whole bytes. Sums of 16- and 8-bit floats are accumulated in f32 and rounded once an
 * operation; the order of a sum is the plan's, whatever the timing.
 *
 * For an in-place plan either pass input and output as they lie in each other (all-gather's input
 * is the rank's block of the output, reduce-scatter's output the rank's block of the input, else
 * they are equal), or apart: then the input is copied first and stays as it is. Errors: those of a
 * world's waits; before anything moves INVALID for a message that is too long or that the plan or
 * type does not divide, for buffers that overlap in another way, or lie outside of the memory that
 * the plan was loaded with. NO_MEMORY and SYSTEM on a rank that cannot begin a run, which others
 * may be making: on the host that ends the world for all, on a GPU this rank makes no more runs of
 * the plan until it is reset.
 *
 * On a GPU both buffers lie in its memory, `stream` is a CUDA stream, and the call returns when the
 * run, one kernel, is queued there. Runs of one loaded plan must not overlap: the caller orders its
 * streams. The stream may be captured in a graph, which may be launched as often as one likes, with
 * other runs of the plan in between, as long as all ranks run the same; the pointers are those of
 * the capture, and the first call of a size and type had better be made before. What fails later,
 * a wait that passes its deadline or whose peer is lost, ends the kernel, and every later run of
 * the plan, on this rank; banyan_plan_status and the next call of banyan_plan_run tell. */
BANYAN_API banyan_status banyan_plan_run(banyan_loaded_plan *loaded, const void *input,
                                         void *output, uint64_t message_bytes, DLDataType dtype,
                                         void *stream);

/* How the runs went that have ended: on a GPU BANYAN_OK, or the error of the first that failed,
 * until banyan_plan_reset; whoever has synchronised the stream has it of all that were queued
 * there. On the host, where runs tell themselves, the world's state. Local; does not wait. */
BANYAN_API banyan_status banyan_plan_status(banyan_loaded_plan *loaded);

/* Wait until the runs have ended that this rank has queued, those in graphs excepted, and say how
 * they went, as banyan_plan_status. Local. */
BANYAN_API banyan_status banyan_plan_wait(banyan_loaded_plan *loaded);

/* For measurements: run it `runs` times in a row, from when all ranks have come, and tell how long
 * that took on this rank. On a GPU the runs are one CUDA graph, timed by the GPU. Returns when they
 * have ended. Collective; errors as of banyan_plan_run. */
BANYAN_API banyan_status banyan_plan_time(banyan_loaded_plan *loaded, const void *input,
                                          void *output, uint64_t message_bytes, DLDataType dtype,
                                          uint32_t runs, uint64_t *ns);

/* Make the plan as it was when it was loaded: counters, scratch and run numbers begin anew, and an
 * error of an earlier run is forgotten. It waits for the runs that were queued; graphs that hold
 * some must have ended before. For after a run that failed on GPUs, while the world is healthy: a
 * deadline that passes there does not end it, as it does on the host. Collective. */
BANYAN_API banyan_status banyan_plan_reset(banyan_loaded_plan *loaded);

/* A run on a thread of its own, to be tested and waited for; one at a time in a world.
 * UNSUPPORTED on GPUs, where runs go on by themselves. */
BANYAN_API banyan_status banyan_plan_start(banyan_loaded_plan *loaded, const void *input,
                                           void *output, uint64_t message_bytes, DLDataType dtype,
                                           banyan_request **request);

/* Record what every operation of this rank does from now on (start, end, how much of it was
 * waiting), until written: Chrome's trace JSON, which Perfetto reads; a process a rank, a thread a
 * thread block, times on the clock that all processes of the machine share. Costs time. Local. */
BANYAN_API banyan_status banyan_trace_begin(banyan_executor *executor);
/* Collective: rank 0 writes everybody's records to `path` and all end recording. A file appears, or
 * is replaced, when it is whole; a device, a pipe or a link is written to as it is. */
BANYAN_API banyan_status banyan_trace_write(banyan_executor *executor, const char *path);

#ifdef __cplusplus
}
#endif
#endif
