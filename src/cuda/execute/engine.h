/* Plans on a CUDA device: declarations that the engine's files share. */
#ifndef CUDA_EXECUTE_ENGINE_H
#define CUDA_EXECUTE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "cuda/driver.h"
#include "cuda/execute/kernel.h"
#include "cuda/execute/remote.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/watch.h"

extern const execute_engine_ops cuda_engine_ops;

typedef struct cuda_engine cuda_engine;
typedef struct cuda_plan cuda_plan;

/* A port channel's requests and the stream that executes them. */
typedef struct cuda_port {
    kernel_request *requests; /* pinned */
    uint64_t *values; /* pinned: the new values of counters, one for each request and counter */
    uint64_t room;
    CUdeviceptr done; /* on the device: number of completed requests */
    CUstream stream;
    uint64_t served;     /* requests that are in the stream */
    uint64_t signals;    /* signals given to the peer's counter, which has no other writer */
    int remote;          /* the peer, if it is on another node; otherwise -1 */
    uint64_t passed;     /* bytes of the next request that have started */
    uint64_t done_count; /* requests that `done` counts */
    atomic_bool broken;
    char trouble[256]; /* the error, once it is broken */
} cuda_port;

/* Offsets into a plan's block in device memory. */
typedef struct cuda_layout {
    uint64_t states, broken, barriers, semaphores, semaphore_starts, consumed, queues, done;
    uint64_t bytes;
} cuda_layout;

struct cuda_plan {
    cuda_engine *engine;
    cuda_plan *next, *next_served;
    engine_plan shape; /* the caller owns all arrays except `ends` */
    engine_end *ends;
    uint32_t port_count;
    cuda_port *ports;

    uint32_t threads; /* most threads of a block */
    cuda_layout layout;
    CUdeviceptr block;
    char *start;  /* the block's contents before the first run */
    void *pinned; /* the reports, then the ports' requests */
    report_words *reports;

    CUevent ended;         /* the latest run that `run` queued */
    bool has_run;          /* `ended` was recorded */
    atomic_bool is_staged; /* its programs are stages: the proxy has nothing to do */
    bool is_captured;      /* graphs hold runs of it */
    watched watched;
};

typedef struct cuda_program {
    cuda_plan *plan;
    CUdeviceptr address;
    CUfunction kernel, smaller_kernel; /* NULL: the program needs the whole kernel */
    uint32_t threads, section_bytes, shared_bytes, flags, span_count;
    uint32_t room; /* number of such thread blocks that run at once */
    CUdeviceptr spans;
    engine_span *host_spans;    /* for ranks without thread blocks */
    struct cuda_staged *staged; /* NULL: one kernel runs the whole program */
} cuda_program;

/* A launch's part of a run: steps [first_step, end_step) of every thread block. */
typedef struct program_part {
    uint32_t first_step, end_step;
    bool is_first, is_last; /* part of the run */
} program_part;

/* One moment on two clocks. */
typedef struct cuda_clock {
    uint64_t device_ns, host_ns;
} cuda_clock;

struct cuda_engine {
    banyan_world *world;
    int device;
    uint64_t timeout_ns;
    CUstream stream; /* for work outside of the callers' streams */
    uint32_t most_threads;
    struct cuda_pinned *pinned;
    uint32_t room; /* number of thread blocks of the largest size that run at once */
    watch *watching;

    pthread_mutex_t lock; /* guards the following fields */
    pthread_cond_t wake;
    cuda_plan *plans;
    atomic_bool closing;
    bool serves; /* the proxy exists */
    pthread_t proxy;
    atomic_bool busy; /* runs may be in progress */
    _Atomic uint64_t launches;

    /* The proxy takes the ports' lock for every poll, so other threads announce themselves here
     * first. */
    pthread_mutex_t ports_lock;
    atomic_uint visitors;
    cuda_plan *served;
    remote_peers *remote;                    /* NULL: all ranks are on this node */
    CUstream port_streams[ENGINE_RANKS_MAX]; /* indexed by peer; NULL: not created yet */

    /* For programs that are stages; NULL until the first one. */
    CUstream copier, signaller;
    CUevent kernel_done, copies_done;

    CUdeviceptr tracer, records;
    bool traces;
    cuda_clock clock; /* at the start of the trace */
};

/* Enter the device for calls outside of all callers' streams: these are legal while this thread
 * captures streams. */
banyan_status engine_enter(const cuda_engine *engine, driver_capture *before);
void engine_leave(driver_capture before);

banyan_status engine_take(const cuda_engine *engine, uint64_t bytes, CUdeviceptr *taken);
void engine_give_back(const cuda_engine *engine, CUdeviceptr taken);
/* Complete on return. */
banyan_status engine_copy(const cuda_engine *engine, CUdeviceptr to, CUdeviceptr from,
                          uint64_t bytes);
/* Allocate pinned, zeroed memory, with one address on host and device. */
banyan_status engine_take_pinned(cuda_engine *engine, uint64_t bytes, void **taken);
void engine_give_back_pinned(cuda_engine *engine, const void *taken);
void engine_free_pinned(cuda_engine *engine);

/* launch.c. Record that a run was queued. */
void engine_was_launched(cuda_engine *engine);

/* Queue a part of a run. The device is entered. */
banyan_status program_launch(const cuda_program *program, const engine_run *run,
                             const program_part *part, CUstream stream);
/* Return the word that the plan's kernels set when they give up. */
const uint32_t *program_broken(const cuda_program *program);

/* Return the address of a counter in an array of the plan's memory. */
static inline char *plan_at(const cuda_plan *plan, uint64_t offset, uint64_t counter)
{
    return (char *)plan->block + offset + counter * KERNEL_COUNTER_BYTES;
}

/* plan.c */
banyan_status plan_load(void *engine, const engine_plan *plan, void **loaded);
void plan_unload(void *loaded);
banyan_status plan_drain(void *loaded);
banyan_status plan_reset(void *loaded);
const char *plan_check(void *loaded, device_report *report);
/* Return the number of thread blocks that run at once; INVALID if the plan has more. */
banyan_status plan_check_room(const cuda_plan *plan, CUfunction kernel, uint32_t threads,
                              uint32_t shared_bytes, uint32_t *room);

/* run.c */
banyan_status program_upload(void *loaded, const engine_program *program, void **uploaded);
void program_discard(void *uploaded);
banyan_status program_run(void *loaded, void *uploaded, const engine_run *run, void *stream,
                          bool *captured);

/* ports.c: open once the plan's memory exists; close before it is freed. */
banyan_status ports_open(cuda_plan *plan);
void ports_close(cuda_plan *plan);
void ports_end(cuda_engine *engine); /* after its thread has ended */
/* The operation `connect` of the table. */
banyan_status ports_connect(void *engine);
/* Wait until all posted requests are done. The device is entered. */
banyan_status ports_drain(cuda_plan *plan);
/* Return the reason why copies could not be started; NULL: no error. */
const char *ports_trouble(const cuda_plan *plan);
/* Call it after the plan's memory was reset. */
void ports_reset(cuda_plan *plan);

/* trace.c */
banyan_status trace_begin(void *engine);
banyan_status trace_take(void *engine,
                         banyan_status (*visit)(void *context, const engine_trace *one),
                         void *context);
banyan_status trace_stop(void *engine);
void trace_close(cuda_engine *engine);

/* staged.c: runs of programs that are stages (stages.h). */
typedef struct cuda_staged cuda_staged;

/* `*made` is NULL for programs that are not stages. */
banyan_status staged_make(const cuda_plan *plan, const engine_program *fused, cuda_staged **made);
void staged_free(const cuda_plan *plan, cuda_staged *old);

/* The device is entered. */
banyan_status staged_queue(const cuda_program *program, const engine_run *run, CUstream stream);

/* Call it after the last program. */
void staged_end(cuda_engine *engine);

#endif
