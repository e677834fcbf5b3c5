/* Banyan: run plans between ranks.
 *
 * On the host, a rank is a process (or thread) and runs its thread blocks as tasks. The calling
 * thread, or several worker threads, switch between tasks that wait. With one GPU a rank, a run is
 * one kernel, and the thread blocks are the kernel's.
 *
 * To run a plan: open an executor, load the plan on all ranks together, and run it many times.
 * Consecutive runs of a sound plan (check.h) need no barrier between them.
 * docs/internals/execution.md and docs/gpu.md have the details.
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

/* Resources that the plans of a world share: worker threads or the GPU, wake-ups, and the proxy of
 * port channels. */
typedef struct banyan_executor banyan_executor;

/* A plan with its scratch, counters and peers' addresses, ready to run with messages up to a size.
 */
typedef struct banyan_loaded_plan banyan_loaded_plan;

/* Options of banyan_executor_open. */
typedef struct banyan_executor_options {
    size_t size; /* of this struct; BANYAN_EXECUTOR_OPTIONS_INIT sets it */
    int workers; /* threads that run thread blocks, from 1 to 1,024; 1: only the calling thread */
    /* For tests, on the host; slow. If not 0, run thread blocks in a random order that the memory
     * model (docs/internals/memory-model.md) allows. The order depends on the seed alone. Ranks may
     * have different seeds. 0: the seed in the environment variable BANYAN_SHUFFLE, else program
     * order. */
    uint64_t shuffle_seed;
    /* GPU of this rank (BANYAN_CUDA); `workers` has no effect then. Zero-initialized: the host. All
     * ranks use GPUs, or all use the host. */
    DLDevice device;
    uint64_t timeout_ns; /* of every wait of its plans' calls (world.h); 0: the world's */
} banyan_executor_options;

#define BANYAN_EXECUTOR_OPTIONS_INIT                                                               \
    BANYAN_INIT_WITH(banyan_executor_options, BANYAN_MEMBER(workers, 1))

/* Open an executor. `options` NULL means the defaults. Collective. Errors:
 * - INVALID: an option is out of range.
 * - UNSUPPORTED: on GPUs, the world has more than 16 ranks, or a rank of another node cannot be
 *   reached. This build or machine has no GPU support; the message has the reason.
 * - MISMATCH: some ranks use GPUs and others the host.
 * - NO_MEMORY, SYSTEM. */
BANYAN_API banyan_status banyan_executor_open(banyan_world *world,
                                              const banyan_executor_options *options,
                                              banyan_executor **executor);

/* Close an executor, after its plans are unloaded and before its world is closed. NULL is ignored.
 * Local. */
BANYAN_API void banyan_executor_close(banyan_executor *executor);

/* Options of banyan_loaded_plan_open. */
typedef struct banyan_loaded_plan_options {
    size_t size;                /* of this struct; BANYAN_LOADED_PLAN_OPTIONS_INIT sets it */
    uint64_t max_message_bytes; /* longest message of a run (banyan_plan_sizes); has no default */
    /* Symmetric buffers (memory.h; on GPUs of banyan_memory_alloc_on or _adopt) that contain the
     * input, or output, of every run, at the same offset on every rank. Peers access them in place.
     * NULL: runs use ordinary memory. If peers access it in this plan, the runs copy it to or from
     * staging memory. The buffers must outlive the loaded plan. */
    const banyan_memory *input, *output;
} banyan_loaded_plan_options;

#define BANYAN_LOADED_PLAN_OPTIONS_INIT BANYAN_INIT(banyan_loaded_plan_options)

/* Load a plan. All ranks pass the same plan and options. `plan` may be destroyed afterwards.
 * Collective. Errors:
 * - INVALID: the plan has another number of ranks, or more thread blocks than the GPU runs at once.
 *   The plan cannot run with max_message_bytes. A symmetric buffer is of another world or device.
 * - UNSUPPORTED: between nodes, the plan has memory or switch channels, or on GPUs packets.
 * - MISMATCH: the ranks differ in the plan or the options.
 * - NO_MEMORY. */
BANYAN_API banyan_status banyan_loaded_plan_open(banyan_executor *executor, const banyan_plan *plan,
                                                 const banyan_loaded_plan_options *options,
                                                 banyan_loaded_plan **loaded);

/* Unload a plan. On a GPU the call first waits for the runs that were queued; CUDA graphs that
 * contain runs of the plan must have finished, and must not be launched again. The plan is freed in
 * any case. The error is the world's, if it has failed. NULL is ignored. Collective. */
BANYAN_API banyan_status banyan_loaded_plan_close(banyan_loaded_plan *loaded);

/* Run a loaded plan on a message of `message_bytes`; banyan_plan_sizes gives the sizes of `input`
 * and `output`. On the host (`stream` NULL) the call returns when this rank's part is done: you may
 * read the output and overwrite the input. All ranks run the same loaded plans, in the same order,
 * with the same sizes and types. An empty message does nothing. Collective.
 *
 * The first run with a size and type specializes the plan for them, without the other ranks. The 16
 * most recent specializations are kept.
 *
 * Types: f32, f16, bf16, f8 e4m3, f8 e5m2, i32, u32, i64 and u8. A plan without reductions accepts
 * every type of whole bytes. Sums of 16-bit and 8-bit floats accumulate in f32 and are rounded once
 * for each operation. The plan determines the order of a sum; timing does not affect it.
 *
 * In place. The buffers of a plan that is in place coincide as its collective requires. An
 * all-gather's input is the rank's block of its output. A reduce-scatter's output is the rank's
 * block of its input. Otherwise both pointers are equal. You may also pass two disjoint buffers:
 * the run then copies the input first and does not change it.
 *
 * Errors, before anything moves:
 * - INVALID: the message is longer than max_message_bytes, or the plan or the type does not divide
 *   it. The plan cannot reduce the type. The buffers overlap in another way, or lie outside the
 *   symmetric buffers of the load. A stream was passed on the host.
 * - NO_MEMORY, SYSTEM: this rank cannot start a run that other ranks may have started. On the host
 *   this ends the world for all ranks. On a GPU this rank does not run the plan again before
 *   banyan_loaded_plan_reset.
 * - The status of the world, or of an earlier run on a GPU, if that failed.
 *
 * Later errors are those of the world's waits (world.h).
 *
 * On a GPU, both buffers are in its memory and `stream` is a CUDA stream. The call enqueues the run
 * and returns. Runs of one loaded plan must not overlap: if you use several streams, order them.
 * The stream may be in graph capture. The graph keeps the pointers of the capture. You may launch
 * it any number of times, with other runs of the plan in between, as long as all ranks run the
 * same. Make the first run of a size and type before a capture, to keep its cost out of it.
 *
 * If a wait on a GPU passes its deadline, or its peer is lost, the kernel ends, and so does every
 * later run of the plan on this rank. banyan_loaded_plan_status and the next banyan_loaded_plan_run
 * return the error.
 */
BANYAN_API banyan_status banyan_loaded_plan_run(banyan_loaded_plan *loaded, const void *input,
                                                void *output, uint64_t message_bytes,
                                                DLDataType dtype, void *stream);

/* Return the status of the runs that have ended. On a GPU this is the error of the first run that
 * failed, until banyan_loaded_plan_reset; after you synchronize a stream, the status covers every
 * run queued there. On the host, runs return their own errors, and this is the world's status. The
 * call does not wait. Local. */
BANYAN_API banyan_status banyan_loaded_plan_status(banyan_loaded_plan *loaded);

/* Wait until the runs that this rank queued have ended, except those in graphs, and return their
 * status as banyan_loaded_plan_status does. Local. */
BANYAN_API banyan_status banyan_loaded_plan_wait(banyan_loaded_plan *loaded);

/* Measure `runs` consecutive runs, started after all ranks have arrived, and wait for them. `*ns`
 * is their total time on this rank in nanoseconds. On a GPU the runs are one CUDA graph, and the
 * GPU measures the time. Collective. Errors: as banyan_loaded_plan_run. */
BANYAN_API banyan_status banyan_loaded_plan_time(banyan_loaded_plan *loaded, const void *input,
                                                 void *output, uint64_t message_bytes,
                                                 DLDataType dtype, uint32_t runs, uint64_t *ns);

/* Reset a plan to its state after the load: clear counters, scratch and run numbers, and forget the
 * error of earlier runs. The call first waits for the runs that were queued; graphs that contain
 * runs of the plan must have finished. Use it after a run on GPUs passed its deadline: this does
 * not end the world, as it does on the host. Collective. Errors: the world's, if it has failed. */
BANYAN_API banyan_status banyan_loaded_plan_reset(banyan_loaded_plan *loaded);

/* Start a run on its own thread. Test or wait for `*request` (core.h), which has the status of the
 * run. While it is active, it is the only call that drives the world. Collective. Errors:
 * UNSUPPORTED (on GPUs, where banyan_loaded_plan_run is asynchronous), NO_MEMORY, SYSTEM. The last
 * two end the world for all ranks, since other ranks may have started the run. */
BANYAN_API banyan_status banyan_loaded_plan_start(banyan_loaded_plan *loaded, const void *input,
                                                  void *output, uint64_t message_bytes,
                                                  DLDataType dtype, banyan_request **request);

/* Start to record the operations of this rank: their start, end and waiting time. Recording slows
 * runs down. The latest 65,536 operations of each worker, or of the GPU, are kept. Graphs that were
 * captured before are not recorded. Local. Errors: NO_MEMORY, SYSTEM. */
BANYAN_API banyan_status banyan_executor_trace_begin(banyan_executor *executor);

/* Stop recording on all ranks and write the records of all ranks to `path` (rank 0 writes). The
 * format is Chrome's trace JSON, which Perfetto shows. It has one process for each rank and one
 * thread for each thread block. Times are of a clock that all processes of the machine share. The
 * file appears, or replaces an old one, only when it is complete; a device, pipe or symbolic link
 * is written to as it is. Collective. Errors: SYSTEM, NO_MEMORY, on all ranks. */
BANYAN_API banyan_status banyan_executor_trace_write(banyan_executor *executor, const char *path);

#ifdef __cplusplus
}
#endif
#endif
