/* Times of operations on the device, converted to the host's clock. */
#include "cuda/execute/engine.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/execute/small_kernels.h"

#define RECORDS (UINT64_C(1) << 16)
#define ANSWER_NS UINT64_C(2000000000)

/* The device's clock was read in the middle between the request and the answer, in the shortest
 * exchange. */
static bool execute_trace_ask(uint64_t *words, cuda_clock *best)
{
    uint64_t shortest_ns = UINT64_MAX, give_up_ns = module_now_ns() + ANSWER_NS;
    for (uint64_t question = 1; question <= CLOCK_ROUNDS; question++) {
        uint64_t begin_ns = module_now_ns(), end_ns;
        __atomic_store_n(&words[0], question, __ATOMIC_RELEASE);
        while (__atomic_load_n(&words[1], __ATOMIC_ACQUIRE) < question) {
            if (module_now_ns() > give_up_ns)
                return false;
            sched_yield();
        }
        end_ns = module_now_ns();
        if (end_ns - begin_ns >= shortest_ns)
            continue;
        shortest_ns = end_ns - begin_ns;
        best->device_ns = words[2];
        best->host_ns = begin_ns + shortest_ns / 2;
    }
    return true;
}

static banyan_status execute_trace_question(cuda_engine *engine, uint64_t *words, cuda_clock *read)
{
    CUfunction kernel;
    clock_args args = {&words[0], &words[1], &words[2], ANSWER_NS};
    RETURN_IF_FAILED(driver_kernel(clock_kernel(), engine->device, &kernel));
    RETURN_IF_FAILED(launch_kernel(engine->device, kernel, LAUNCH_ONE, &args, engine->stream));
    bool answered = execute_trace_ask(words, read);
    RETURN_IF_FAILED(DRIVER(engine->device, cuStreamSynchronize, engine->stream));
    return answered ? BANYAN_OK
                    : banyan_error_set(BANYAN_ERR_TIMEOUT,
                                       "cuda: device %d did not report its time within %.0f s",
                                       engine->device, (double)ANSWER_NS / 1e9);
}

static banyan_status read_clocks(cuda_engine *engine, cuda_clock *read)
{
    void *words;
    RETURN_IF_FAILED(engine_take_pinned(engine, KERNEL_COUNTER_BYTES, &words));
    banyan_status status =
        DRIVER_WITHIN(engine->device, execute_trace_question(engine, words, read));
    engine_give_back_pinned(engine, words);
    return status;
}

/* Interpolate: the clocks were read at two times and ran evenly in between. */
static uint64_t on_host(const cuda_clock *begin, const cuda_clock *end, uint64_t device_ns)
{
    double device = (double)(int64_t)(end->device_ns - begin->device_ns);
    double host = (double)(int64_t)(end->host_ns - begin->host_ns);
    double since = (double)(int64_t)(device_ns - begin->device_ns);
    return begin->host_ns + (uint64_t)(int64_t)(device > 0 ? since * (host / device) : since);
}

static banyan_status set_tracer(cuda_engine *engine, uint64_t room)
{
    kernel_tracer tracer = {.room = room, .records = (kernel_trace *)engine->records};
    return engine_copy(engine, engine->tracer, (CUdeviceptr)&tracer, sizeof tracer);
}

/* Graphs that were captured meanwhile keep the tracer, so it stays until the engine is closed. */
banyan_status trace_begin(void *opened)
{
    cuda_engine *engine = opened;
    if (!engine->tracer)
        RETURN_IF_FAILED(engine_take(engine, sizeof(kernel_tracer), &engine->tracer));
    if (!engine->records)
        RETURN_IF_FAILED(engine_take(engine, RECORDS * sizeof(kernel_trace), &engine->records));
    RETURN_IF_FAILED(read_clocks(engine, &engine->clock));
    RETURN_IF_FAILED(set_tracer(engine, RECORDS));
    engine->traces = true;
    return BANYAN_OK;
}

static engine_trace execute_trace_converted(const cuda_engine *engine, const cuda_clock *end,
                                            const kernel_trace *from)
{
    return (engine_trace){
        .begin_ns = on_host(&engine->clock, end, from->begin_ns),
        .end_ns = on_host(&engine->clock, end, from->end_ns),
        .waited_ns = from->waited_ns,
        .iteration = from->iteration,
        .block = from->block,
        .step = from->step,
        .loaded = (void *)(uintptr_t)from->loaded,
        .uploaded = (void *)(uintptr_t)from->uploaded,
    };
}

static banyan_status hand_over(cuda_engine *engine, const kernel_tracer *tracer,
                               kernel_trace *records,
                               banyan_status (*visit)(void *context, const engine_trace *one),
                               void *context)
{
    cuda_clock end;
    RETURN_IF_FAILED(read_clocks(engine, &end));
    RETURN_IF_FAILED(
        engine_copy(engine, (CUdeviceptr)records, engine->records, RECORDS * sizeof *records));
    uint64_t kept = tracer->count < RECORDS ? tracer->count : RECORDS;
    for (uint64_t n = tracer->count - kept; n < tracer->count; n++) {
        engine_trace one = execute_trace_converted(engine, &end, &records[n % RECORDS]);
        RETURN_IF_FAILED(visit(context, &one));
    }
    return BANYAN_OK;
}

banyan_status trace_take(void *opened,
                         banyan_status (*visit)(void *context, const engine_trace *one),
                         void *context)
{
    cuda_engine *engine = opened;
    kernel_tracer tracer;
    if (!engine->traces)
        return BANYAN_OK;
    RETURN_IF_FAILED(engine_copy(engine, (CUdeviceptr)&tracer, engine->tracer, sizeof tracer));
    kernel_trace *records = malloc(RECORDS * sizeof *records);
    if (!records)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for a trace");
    banyan_status status = hand_over(engine, &tracer, records, visit, context);
    free(records);
    return status == BANYAN_OK ? set_tracer(engine, RECORDS) : status;
}

banyan_status trace_stop(void *opened)
{
    cuda_engine *engine = opened;
    if (!engine->traces)
        return BANYAN_OK;
    engine->traces = false;
    return set_tracer(engine, 0);
}

void trace_close(cuda_engine *engine)
{
    engine_give_back(engine, engine->records);
    engine_give_back(engine, engine->tracer);
}
