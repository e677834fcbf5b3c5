/* Plans on a CUDA device: what the files of the engine share. */
#ifndef CUDA_EXECUTE_ENGINE_H
#define CUDA_EXECUTE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "cuda/driver.h"
#include "cuda/execute/kernel.h"
#include "cuda/runtime/watch.h"

extern const execute_engine_ops cuda_engine_ops;

typedef struct cuda_engine cuda_engine;
typedef struct cuda_plan cuda_plan;

/* ---- port channels ---- */

/* A port channel's requests and the stream that they are done in. */
typedef struct cuda_port {
    kernel_request *requests; /* pinned */
    uint64_t *values;         /* pinned: what counters become, one a request and count */
    uint64_t room;
    CUdeviceptr done; /* on the device: how many are */
    CUstream stream;
    uint64_t served;  /* requests that are in the stream */
    uint64_t signals; /* that the peer's counter has had: nobody else adds to it */
    atomic_bool broken;
    char trouble[256]; /* once it is broken */
} cuda_port;

/* ---- plans ---- */

/* Offsets into a plan's block in the device's memory. */
typedef struct cuda_layout {
    uint64_t states, broken, barriers, semaphores, semaphore_starts, consumed, queues, done;
    uint64_t bytes;
} cuda_layout;

struct cuda_plan {
    cuda_engine *engine;
    cuda_plan *next, *next_served;
    engine_plan shape; /* what it points to is not ours, but for `ends` */
    engine_end *ends;
    uint32_t port_count;
    cuda_port *ports;

    uint32_t threads; /* of a block, at most */
    cuda_layout layout;
    CUdeviceptr block;
    char *start;  /* the block as it is before the first run */
    void *pinned; /* the report, then the ports' requests */
    kernel_report *report;

    CUevent ended;         /* the latest run that `run` queued */
    bool has_run;          /* `ended` was recorded */
    atomic_bool is_staged; /* its programs are stages: there is nothing for the proxy */
    bool is_captured;      /* graphs hold runs of it */
    watch_beat beat;       /* the engine's thread's */
};

typedef struct cuda_program {
    cuda_plan *plan;
    CUdeviceptr address;
    CUfunction kernel, smaller_kernel; /* NULL: it needs the whole one */
    uint32_t threads, section_bytes, shared_bytes, flags, span_count;
    uint64_t room; /* such thread blocks that run at once */
    CUdeviceptr spans;
    engine_span *host_spans;    /* of ranks without thread blocks */
    struct cuda_staged *staged; /* NULL: one kernel does it all */
} cuda_program;

/* What a launch does of a run: steps [first_step, end_step) of every thread block. */
typedef struct program_part {
    uint32_t first_step, end_step;
    bool is_first, is_last; /* of the run's */
} program_part;

/* ---- engines ---- */

/* The same moment on two clocks. */
typedef struct cuda_clock {
    uint64_t device_ns, host_ns;
} cuda_clock;

struct cuda_engine {
    banyan_world *world;
    int device;
    uint64_t timeout_ns;
    CUstream stream; /* for what no caller's stream is for */
    uint32_t *stop;  /* pinned: not 0 when kernels are to end */
    uint32_t most_threads;
    bool launches_early; /* unless BANYAN_EARLY_LAUNCH=0, or driver or device are too old */
    struct cuda_pinned *pinned;
    uint64_t room; /* thread blocks of the largest size that run at once */

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;
    cuda_plan *plans;
    atomic_bool closing;
    bool watches, serves; /* the threads are there */
    pthread_t watcher, proxy;
    atomic_bool busy; /* runs may be under way */
    _Atomic uint64_t launches;

    /* The proxy holds the ports' lock at every look, so that others say first that they want it. */
    pthread_mutex_t ports_lock;
    atomic_uint visitors;
    cuda_plan *served;
    CUstream port_streams[ENGINE_RANKS_MAX]; /* by peer; NULL: not yet */

    /* Of programs that are stages; NULL until there is one. */
    CUstream copier, teller;
    CUevent kernel_done, copies_done;

    CUdeviceptr tracer, records;
    bool traces;
    cuda_clock clock; /* when the trace began */
};

/* The device entered, for calls that are no part of any caller's stream: they are legal while
 * streams of this thread are captured. */
banyan_status engine_enter(const cuda_engine *engine, driver_capture *before);
void engine_leave(driver_capture before);

banyan_status engine_take(const cuda_engine *engine, uint64_t bytes, CUdeviceptr *taken);
void engine_give_back(const cuda_engine *engine, CUdeviceptr taken);
/* Done when it returns. */
banyan_status engine_copy(const cuda_engine *engine, CUdeviceptr to, CUdeviceptr from,
                          uint64_t bytes);
/* Pinned and zeroed; the device has it at the same address. */
banyan_status engine_take_pinned(cuda_engine *engine, uint64_t bytes, void **taken);
void engine_give_back_pinned(cuda_engine *engine, const void *taken);
void engine_free_pinned(cuda_engine *engine);

/* With the lock held: has every run of `run`'s ended, and can graphs bring no others? */
bool engine_is_idle(cuda_engine *engine);
/* How many thread blocks of `threads` run at once. The device is entered. */
banyan_status engine_room(const cuda_engine *engine, CUfunction kernel, uint32_t threads,
                          uint32_t shared_bytes, uint64_t *blocks);
/* May a launch of so many thread blocks, of which the device has room for `room`, begin while the
 * one before it in its stream still runs? */
bool engine_launches_early(const cuda_engine *engine, uint32_t blocks, uint64_t room);
/* Are all engines that this process has on the device one rank's, as far as that can be seen? */
bool engine_has_device(const cuda_engine *engine);
/* A run was queued. */
void engine_was_launched(cuda_engine *engine);

/* plan.c */
banyan_status plan_load(void *engine, const engine_plan *plan, void **loaded);
void plan_unload(void *loaded);
banyan_status plan_drain(void *loaded);
banyan_status plan_reset(void *loaded);
void plan_check(void *loaded, engine_report *report);
/* How many thread blocks run at once; INVALID when the plan has more. */
banyan_status plan_check_room(const cuda_plan *plan, CUfunction kernel, uint32_t threads,
                              uint32_t shared_bytes, uint64_t *room);

/* run.c */
banyan_status program_upload(void *loaded, const engine_program *program, void **uploaded);
void program_discard(void *uploaded);
banyan_status program_run(void *loaded, void *uploaded, const engine_run *run, void *stream,
                          bool *captured);

/* Queue a part of a run. The device is entered. */
banyan_status program_launch(const cuda_program *program, const engine_run *run,
                             const program_part *part, CUstream stream);
/* What the plan's kernels set when they give up. */
const uint32_t *program_broken(const cuda_program *program);

/* ports.c: with the plan's memory in place; and before it goes. */
banyan_status ports_open(cuda_plan *plan);
void ports_close(cuda_plan *plan);
void ports_end(cuda_engine *engine); /* after its thread */
/* Wait until what was posted is done. The device is entered. */
banyan_status ports_drain(cuda_plan *plan);
/* Why copies could not be begun; NULL: they could. */
const char *ports_trouble(const cuda_plan *plan);
/* After the plan's memory is as it was at first. */
void ports_reset(cuda_plan *plan);

/* trace.c */
banyan_status trace_begin(void *engine);
banyan_status trace_take(void *engine,
                         banyan_status (*visit)(void *context, const engine_trace *one),
                         void *context);
banyan_status trace_stop(void *engine);
void trace_close(cuda_engine *engine);

#endif
