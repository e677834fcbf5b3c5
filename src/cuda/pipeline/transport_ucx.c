/* Devices of several nodes. In the node, copy engines put into mapped memory. Between nodes, the
 * world's transport puts: from slot to slot if it reaches memory of GPUs, otherwise between copies
 * of the slots in pinned memory. A kernel posts what is to be done, and a thread does it. Signals
 * are the transport's; the thread shows them to kernels in pinned memory. */
#include "cuda/pipeline/pipeline.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <banyan/transport.h>

#include "core/module.h"
#include "cuda/memory/memory.h"

#define REQUESTS 64 /* a power of two; those under way at once are fewer */
/* Looks without an event before the thread naps; and after so many naps it naps longer. */
#define LOOKS 2000
#define NAP_NS 20000L
#define NAPS 2500
#define LONG_NAP_NS 1000000L

/* The memory of a rank. */
typedef struct wire_handles {
    banyan_memory_handle slots, copies;
} wire_handles;

typedef struct ucx_transport {
    banyan_world *world;
    int device, rank, ranks;
    size_t bytes, word_count;
    banyan_memory *memory; /* slots, of all ranks of the node */
    char **parts;          /* indexed by rank, as mapped here; NULL: on another node */
    bool *is_direct;       /* indexed by rank: the transport reaches memory of its GPU */
    wire_handles *handles;
    banyan_transport *transport;
    uint32_t signals;     /* one for each word */
    char *pinned;         /* words, requests, `done`, and copies of the slots */
    char *words, *copies; /* `copies` NULL: not needed */
    banyan_port_request *requests;
    uint64_t *done;
    banyan_port_queue *queue; /* on the device */
    banyan_memory_handle registered;
    CUfunction kernel;
    pthread_t thread;
    bool has_thread;
    atomic_bool stops;
    bool has_failed;
    uint64_t started, ended; /* requests */
} ucx_transport;

static banyan_status wire_no_memory(const ucx_transport *of)
{
    return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: rank %d is out of memory for a pipeline",
                            of->rank);
}

static bool wire_holds(ucx_transport *of, banyan_status status)
{
    of->has_failed |= !module_world_holds(of->world, status);
    return !of->has_failed;
}

/* Do a request: put a slot, if it has bytes, and add to the peer's word. */
static banyan_status wire_start(const ucx_transport *of, const banyan_port_request *request)
{
    int peer = (int)request->run;
    size_t from = (size_t)(uintptr_t)request->source, to = (size_t)(uintptr_t)request->destination;
    size_t word = (size_t)(uintptr_t)request->signal;
    if (request->bytes > 0) {
        const wire_handles *there = &of->handles[peer];
        bool direct = of->is_direct[peer];
        const char *here = direct ? (const char *)banyan_memory_local(of->memory) : of->copies;
        banyan_remote place = {direct ? there->slots : there->copies, to};
        RETURN_IF_FAILED(
            banyan_transport_put_begin(of->transport, &place, here + from, request->bytes));
    }
    return banyan_transport_signal(of->transport, peer, of->signals + (uint32_t)(word / WORD_BYTES),
                                   1);
}

static bool wire_serve_requests(ucx_transport *of)
{
    uint64_t started = of->started, ended = of->ended;
    while (!of->has_failed) {
        const banyan_port_request *next = &of->requests[of->started % REQUESTS];
        if (__atomic_load_n(&next->number, __ATOMIC_ACQUIRE) != of->started + 1 ||
            of->started - of->ended == REQUESTS || !wire_holds(of, wire_start(of, next)))
            break;
        of->started++;
    }
    while (of->ended < of->started) {
        const banyan_port_request *oldest = &of->requests[of->ended % REQUESTS];
        if (oldest->bytes > 0 && banyan_transport_pending(of->transport, (int)oldest->run) > 0)
            break;
        of->ended++;
    }
    if (of->ended != ended)
        __atomic_store_n(of->done, of->ended, __ATOMIC_RELEASE);
    return of->started != started || of->ended != ended;
}

static bool wire_show_signals(const ucx_transport *of)
{
    bool any = false;
    for (size_t i = 0; i < of->word_count; i++) {
        uint64_t *word = (uint64_t *)(void *)(of->words + i * WORD_BYTES);
        uint64_t value = banyan_transport_read(of->transport, of->signals + (uint32_t)i);
        if (*word != value)
            __atomic_store_n(word, value, __ATOMIC_RELEASE);
        any |= *word != value;
    }
    return any;
}

static void *wire_serve(void *argument)
{
    ucx_transport *of = argument;
    uint64_t seen = ~banyan_transport_epoch(of->transport);
    for (uint64_t idle = 0; !atomic_load(&of->stops); idle++) {
        banyan_module_transport_progress(of->transport);
        uint64_t epoch = banyan_transport_epoch(of->transport);
        if (wire_serve_requests(of) | (epoch != seen)) {
            seen = epoch;
            (void)wire_show_signals(of);
            idle = 0;
        } else if (idle > LOOKS) {
            banyan_module_transport_rest(of->transport);
            long nap_ns = idle < LOOKS + NAPS ? NAP_NS : LONG_NAP_NS;
            nanosleep(&(struct timespec){.tv_nsec = nap_ns}, NULL);
        }
    }
    return NULL;
}

static void transport_ucx_close(void *argument)
{
    ucx_transport *of = argument;
    atomic_store(&of->stops, true);
    if (of->has_thread)
        pthread_join(of->thread, NULL);
    for (int rank = 0; rank < of->ranks && of->transport && of->handles; rank++)
        (void)banyan_transport_settle(of->transport, rank);
    if (of->registered.kind != 0)
        (void)banyan_memory_unregister(of->world, &of->registered);
    banyan_transport_close(of->transport);
    if (driver_enter(of->device) == BANYAN_OK) {
        driver_capture before = driver_capture_relax();
        if (of->queue)
            driver.cuMemFree((CUdeviceptr)(uintptr_t)of->queue);
        pinned_free(of->pinned);
        driver_capture_restore(before);
        driver_leave();
    }
    banyan_memory_free(of->memory);
    free(of->parts);
    free(of->is_direct);
    free(of->handles);
    free(of);
}

static bool wire_is_near(const ucx_transport *of, int rank)
{
    return banyan_world_node_of(of->world, rank) == banyan_world_node_of(of->world, of->rank);
}

/* Find out how each rank is reached. `*needs_copies` is set if some need copies of the slots. */
static banyan_status wire_find_ways(ucx_transport *of, bool *needs_copies)
{
    size_t ranks = (size_t)of->ranks;
    of->parts = calloc(ranks, sizeof *of->parts);
    of->is_direct = calloc(ranks, sizeof *of->is_direct);
    of->handles = calloc(ranks, sizeof *of->handles);
    if (!of->parts || !of->is_direct || !of->handles)
        return wire_no_memory(of);
    for (int rank = 0; rank < of->ranks; rank++) {
        void *part;
        size_t bytes;
        uint64_t can = banyan_transport_capabilities(of->transport, rank);
        if (can == 0)
            return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                    "pipeline: no transport joins rank %d "
                                    "with rank %d: %s",
                                    of->rank, rank, banyan_last_error());
        if (wire_is_near(of, rank)) {
            RETURN_IF_FAILED(banyan_memory_peer(of->memory, rank, &part, &bytes));
            of->parts[rank] = part;
        } else {
            of->is_direct[rank] = (can & BANYAN_TRANSPORT_CUDA) && module_network_is_direct();
            *needs_copies |= !of->is_direct[rank];
        }
    }
    return BANYAN_OK;
}

static banyan_status wire_take_device(ucx_transport *of, bool needs_copies)
{
    size_t words = gpu_pipeline_round_up(of->word_count * WORD_BYTES, 4096);
    size_t requests = REQUESTS * sizeof(banyan_port_request), before = words + requests + 4096;
    void *here, *there;
    CUdeviceptr queue;
    RETURN_IF_FAILED(driver_kernel(gpu_pipeline_kernel_symbol(), of->device, &of->kernel));
    RETURN_IF_FAILED(
        pinned_alloc(of->device, before + (needs_copies ? of->bytes : 0), &here, &there));
    of->pinned = of->words = here;
    of->requests = (banyan_port_request *)(void *)(of->pinned + words);
    of->done = (uint64_t *)(void *)(of->pinned + words + requests);
    of->copies = needs_copies ? of->pinned + before : NULL;
    RETURN_IF_FAILED(DRIVER(of->device, cuMemAlloc, &queue, sizeof *of->queue));
    of->queue = (banyan_port_queue *)(uintptr_t)queue;
    banyan_port_queue made = {.capacity = REQUESTS, .requests = of->requests, .done = of->done};
    return bytes_copy(of->queue, &made, sizeof made);
}

static banyan_status wire_take_own(ucx_transport *of)
{
    bool needs_copies = false;
    RETURN_IF_FAILED(wire_find_ways(of, &needs_copies));
    RETURN_IF_FAILED(DRIVER_WITHIN_UNCAPTURED(of->device, wire_take_device(of, needs_copies)));
    wire_handles *mine = &of->handles[of->rank];
    RETURN_IF_FAILED(
        banyan_memory_find(of->world, banyan_memory_local(of->memory), of->bytes, &mine->slots));
    if (of->copies)
        RETURN_IF_FAILED(banyan_memory_register(of->world, of->copies, of->bytes, &of->registered));
    mine->copies = of->registered;
    return BANYAN_OK;
}

/* Put the first word of the slots, which is zero, to every rank of other nodes: the first put to a
 * rank can wait for kernels, and those of runs wait for puts. */
static banyan_status wire_greet(const ucx_transport *of)
{
    for (int rank = 0; rank < of->ranks; rank++) {
        if (of->parts[rank])
            continue;
        bool direct = of->is_direct[rank];
        const wire_handles *there = &of->handles[rank];
        banyan_remote place = {direct ? there->slots : there->copies, 0};
        const void *here = direct ? banyan_memory_local(of->memory) : of->copies;
        RETURN_IF_FAILED(banyan_transport_put(of->transport, &place, here, WORD_BYTES));
        RETURN_IF_FAILED(banyan_transport_flush(of->transport, rank));
    }
    return BANYAN_OK;
}

/* Collective. */
static banyan_status wire_open(ucx_transport *of)
{
    RETURN_IF_FAILED(
        banyan_memory_alloc_on(of->world, BANYAN_CUDA(of->device), of->bytes, &of->memory));
    RETURN_IF_FAILED(banyan_transport_open(of->world, NULL, &of->transport));
    RETURN_IF_FAILED(
        banyan_transport_signals_alloc(of->transport, (uint32_t)of->word_count, &of->signals));
    RETURN_IF_FAILED(banyan_module_agree(of->world, wire_take_own(of)));
    wire_handles mine = of->handles[of->rank];
    RETURN_IF_FAILED(banyan_world_allgather(of->world, &mine, sizeof mine, of->handles));
    RETURN_IF_FAILED(banyan_module_agree(of->world, wire_greet(of)));
    banyan_status status = module_thread_start(&of->thread, wire_serve, of, "a pipeline");
    of->has_thread = status == BANYAN_OK;
    return status;
}

static banyan_status transport_ucx_open(banyan_world *world, int device, size_t bytes,
                                        size_t zero_bytes, void **opened,
                                        gpu_pipeline_memory *memory)
{
    ucx_transport *of = calloc(1, sizeof *of);
    banyan_status status =
        of ? BANYAN_OK : banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for a pipeline");
    status = banyan_module_agree(world, status);
    if (status == BANYAN_OK) {
        of->world = world;
        of->device = device;
        of->rank = banyan_world_rank(world);
        of->ranks = banyan_world_size(world);
        of->bytes = bytes;
        of->word_count = 2 * (size_t)of->ranks;
        status = wire_open(of);
    }
    (void)zero_bytes; /* the words are in memory of their own */
    if (status != BANYAN_OK) {
        if (of)
            transport_ucx_close(of);
        return status;
    }
    *opened = of;
    *memory = (gpu_pipeline_memory){banyan_memory_local(of->memory), of->words};
    return BANYAN_OK;
}

static banyan_status wire_post(const ucx_transport *of, CUstream stream,
                               const banyan_port_request *request, const gpu_pipeline *owner)
{
    gpu_pipeline_args args = {
        .task = PIPELINE_POST,
        .peer = (int32_t)request->run,
        .queue = of->queue,
        .request = *request,
        .shared = owner->shared,
        .reports = owner->reports,
        .timeout_ns = owner->timeout_ns,
    };
    return launch_kernel(of->device, of->kernel, LAUNCH_ONE, &args, stream);
}

static banyan_status transport_ucx_signal(void *argument, CUstream stream, int peer, size_t word,
                                          const gpu_pipeline_signal *how)
{
    banyan_port_request request = {.signal = (uint64_t *)word, .run = (uint64_t)peer};
    const ucx_transport *of = argument;
    if (!of->parts[peer]) {
        request.source = (const void *)how->from;
        request.destination = (void *)how->to;
        request.bytes = how->bytes;
    }
    return wire_post(of, stream, &request, how->owner);
}

static banyan_status transport_ucx_put(void *argument, CUstream stream, int peer, size_t to,
                                       size_t from, size_t bytes, size_t word)
{
    (void)word;
    const ucx_transport *of = argument;
    char *there = of->parts[peer] ? of->parts[peer] + to : of->copies + from;
    const char *here = banyan_memory_local(of->memory);
    if (of->is_direct[peer])
        return BANYAN_OK;
    return DRIVER(of->device, cuMemcpyAsync, (CUdeviceptr)(uintptr_t)there,
                  (CUdeviceptr)(uintptr_t)(here + from), bytes, stream);
}

static const char *transport_ucx_arrives(void *argument, int peer, size_t slot)
{
    const ucx_transport *of = argument;
    bool is_copy = !of->parts[peer] && !of->is_direct[peer];
    return is_copy ? of->copies + slot : NULL;
}

const gpu_pipeline_transport_ops gpu_pipeline_ucx_ops = {
    .name = "ucx",
    .open = transport_ucx_open,
    .close = transport_ucx_close,
    .signal = transport_ucx_signal,
    .put = transport_ucx_put,
    .arrives = transport_ucx_arrives,
};
