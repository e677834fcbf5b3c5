#include "cuda/pipeline/pipeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <banyan/transport.h>

#include "core/module.h"
#include "cuda/memory/memory.h"
#include "cuda/module.h"

/* At the speed of NVLink, a slot of this size takes ten times as long as the launches around it. */
#define DEFAULT_SLOT_BYTES ((size_t)32 << 20)
#define SLOT_BYTES_MAX ((size_t)1 << 40)

/* A rank's parameters, exchanged before anything is created. */
typedef struct pipeline_parameters {
    uint64_t slot_bytes;
    char transport[16];
} pipeline_parameters;

static const gpu_pipeline_transport_ops *const transports[] = {
    &gpu_pipeline_peer_ops, &gpu_pipeline_ucx_ops, &gpu_pipeline_nvshmem_ops};

/* Between nodes UCX, or NVSHMEM where the module is missing. */
static const char *transport_by_default(const banyan_world *world)
{
    const banyan_transport_ops *ops;
    if (banyan_world_node_count(world) == 1)
        return "peer";
    return banyan_transport_find("ucx", &ops) == BANYAN_OK ? "ucx" : "nvshmem";
}

static banyan_status choose_transport(const banyan_world *world, const char *name,
                                      const gpu_pipeline_transport_ops **transport)
{
    if (!name || !*name)
        name = getenv("BANYAN_GPU_TRANSPORT");
    if (!name || !*name)
        name = transport_by_default(world);
    for (size_t i = 0; i < sizeof(transports) / sizeof(transports[0]); i++)
        if (strcmp(transports[i]->name, name) == 0) {
            *transport = transports[i];
            return BANYAN_OK;
        }
    return banyan_error_set(BANYAN_ERR_NOT_FOUND,
                            "pipeline: there is no transport \"%s\" between GPUs; there are peer, "
                            "ucx, nvshmem",
                            name);
}

static void cuda_pipeline_parameters_of(const gpu_pipeline *made, pipeline_parameters *own)
{
    memset(own, 0, sizeof *own);
    own->slot_bytes = made->slot_bytes;
    snprintf(own->transport, sizeof own->transport, "%s", made->transport_ops->name);
}

static banyan_status cuda_pipeline_compare(const gpu_pipeline *made, const pipeline_parameters *all)
{
    for (int rank = 0; rank < made->ranks; rank++) {
        const pipeline_parameters *other = &all[rank];
        if (other->slot_bytes != all[0].slot_bytes)
            return banyan_error_set(BANYAN_ERR_MISMATCH,
                                    "pipeline: rank %d opens slots of %zu bytes, rank 0 of %zu",
                                    rank, (size_t)other->slot_bytes, (size_t)all[0].slot_bytes);
        if (strcmp(other->transport, all[0].transport) != 0)
            return banyan_error_set(BANYAN_ERR_MISMATCH,
                                    "pipeline: rank %d opens transport %s, rank 0 %s", rank,
                                    other->transport, all[0].transport);
    }
    return BANYAN_OK;
}

/* All ranks receive every rank's error. Collective. */
static banyan_status cuda_pipeline_barrier(gpu_pipeline *made, banyan_world *world,
                                           banyan_status mine)
{
    pipeline_parameters own, *all = calloc((size_t)made->ranks, sizeof *all);
    if (mine == BANYAN_OK && !all)
        mine = gpu_pipeline_no_memory((size_t)made->ranks * sizeof *all, "all ranks' parameters");
    if (mine == BANYAN_OK)
        cuda_pipeline_parameters_of(made, &own);
    banyan_status status = banyan_module_agree(world, mine);
    if (status == BANYAN_OK)
        status = banyan_world_allgather(world, &own, sizeof own, all);
    if (status == BANYAN_OK)
        status = cuda_pipeline_compare(made, all);
    free(all);
    return status;
}

static banyan_status cuda_pipeline_open_kernels(gpu_pipeline *made)
{
    RETURN_IF_FAILED(driver_kernel(gpu_pipeline_kernel_symbol(), made->device, &made->kernel));
    RETURN_IF_FAILED(copy_kernels_find(made->device, &made->copies));
    /* Packing with one thread block for each multiprocessor is faster than any link, and unpacking
     * runs beside it. */
    made->blocks =
        (uint32_t)driver_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, made->device);
    return BANYAN_OK;
}

/* Ranks of one process that share a device share its few queues. With one stream for each rank, no
 * rank's wait blocks work that another rank waits for. */
static banyan_status cuda_pipeline_open_streams(gpu_pipeline *made)
{
    banyan_status status = BANYAN_OK;
    for (int i = 0; i < STREAMS && status == BANYAN_OK; i++) {
        if (i > 0 && made->sharers > 1)
            made->streams[i] = made->streams[0];
        else
            status =
                DRIVER(made->device, cuStreamCreate, &made->streams[i], CU_STREAM_NON_BLOCKING);
    }
    CUevent *events[] = {&made->fork,       &made->begun,      &made->packed[0], &made->packed[1],
                         &made->stamped[0], &made->stamped[1], &made->sent[0],   &made->sent[1],
                         &made->granted[0], &made->granted[1]};
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]) && status == BANYAN_OK; i++)
        status = DRIVER(made->device, cuEventCreate, events[i], CU_EVENT_DISABLE_TIMING);
    for (int i = 0; i < STREAMS && status == BANYAN_OK; i++)
        status = DRIVER(made->device, cuEventCreate, &made->join[i], CU_EVENT_DISABLE_TIMING);
    return status;
}

static banyan_status cuda_pipeline_open_memory(gpu_pipeline *made)
{
    CUdeviceptr shared;
    size_t bytes = sizeof *made->shared + (size_t)made->ranks * COUNTS * sizeof *made->counts;
    void *reports, *same;
    RETURN_IF_FAILED(DRIVER(made->device, cuMemAlloc, &shared, bytes));
    made->shared = (copy_shared *)(uintptr_t)shared;
    made->counts = (uint64_t *)(void *)(made->shared + 1);
    RETURN_IF_FAILED(bytes_fill(made->shared, 0, bytes));
    RETURN_IF_FAILED(pinned_alloc(made->device, sizeof *made->reports, &reports, &same));
    made->reports = reports;
    return BANYAN_OK;
}

static banyan_status cuda_pipeline_open_device(gpu_pipeline *made)
{
    RETURN_IF_FAILED(driver_enter(made->device));
    driver_capture before = driver_capture_relax();
    banyan_status status = cuda_pipeline_open_kernels(made);
    if (status == BANYAN_OK)
        status = cuda_pipeline_open_streams(made);
    if (status == BANYAN_OK)
        status = cuda_pipeline_open_memory(made);
    driver_capture_restore(before);
    driver_leave();
    return status;
}

static void destroy_event(CUevent event)
{
    if (event)
        driver.cuEventDestroy(event);
}

static void cuda_pipeline_close_device(gpu_pipeline *closed)
{
    int streams = closed->sharers > 1 ? 1 : STREAMS;
    for (int i = 0; i < streams; i++)
        if (closed->streams[i]) {
            driver.cuStreamSynchronize(closed->streams[i]);
            driver.cuStreamDestroy(closed->streams[i]);
        }
    destroy_event(closed->fork);
    destroy_event(closed->begun);
    for (int i = 0; i < STREAMS; i++)
        destroy_event(closed->join[i]);
    for (int slot = 0; slot < SLOTS; slot++) {
        destroy_event(closed->packed[slot]);
        destroy_event(closed->stamped[slot]);
        destroy_event(closed->sent[slot]);
        destroy_event(closed->granted[slot]);
    }
    if (closed->shared)
        driver.cuMemFree((CUdeviceptr)(uintptr_t)closed->shared);
}

static void gpu_pipeline_close(void *argument)
{
    gpu_pipeline *closed = argument;
    if (driver_enter(closed->device) == BANYAN_OK) {
        cuda_pipeline_close_device(closed);
        /* Until here the watch reports a lost peer to the device. */
        watch_end(closed->watching);
        pinned_free(closed->reports);
        driver_leave();
    }
    if (closed->transport)
        closed->transport_ops->close(closed->transport);
    free(closed);
}

static void cuda_pipeline_describe_wait(const device_report *wait, char *text, size_t bytes)
{
    snprintf(text, bytes, "for a %s rank %d (pipeline)",
             device_report_own(wait) ? "batch from" : "slot of", device_report_rank(wait));
}

static banyan_status open_all(gpu_pipeline *made, banyan_world *world, const char *transport)
{
    banyan_status status = choose_transport(world, transport, &made->transport_ops);
    if (status == BANYAN_OK && made->slot_bytes > SLOT_BYTES_MAX)
        status =
            banyan_error_set(BANYAN_ERR_INVALID, "pipeline: slots of %zu bytes", made->slot_bytes);
    status = cuda_pipeline_barrier(made, world, status);
    if (status != BANYAN_OK)
        return status;
    gpu_pipeline_memory memory = {NULL, NULL};
    status = made->transport_ops->open(world, made->device, gpu_pipeline_recv_slot(made, SLOTS),
                                       gpu_pipeline_words_bytes(made), &made->transport, &memory);
    made->symmetric = memory.local;
    made->words = memory.words;
    if (status == BANYAN_OK)
        status = cuda_pipeline_open_device(made);
    if (status == BANYAN_OK)
        status = watch_ranks(world, made->reports, cuda_pipeline_describe_wait, &made->watching);
    return status;
}

static banyan_status gpu_pipeline_open(banyan_world *world, int device, int sharers,
                                       const char *transport, size_t slot_bytes, void **opened,
                                       gpu_pipeline_slots *slots)
{
    gpu_pipeline *made = calloc(1, sizeof *made);
    if (!made) /* the others receive the error in the exchange */
        return banyan_module_agree(world, gpu_pipeline_no_memory(sizeof *made, "a pipeline"));
    made->device = device;
    made->sharers = sharers;
    made->rank = banyan_world_rank(world);
    made->ranks = banyan_world_size(world);
    made->timeout_ns = banyan_world_timeout_ns(world);
    made->slot_bytes = slot_bytes > 0 ? slot_bytes : DEFAULT_SLOT_BYTES;
    banyan_status status = open_all(made, world, transport);
    if (status != BANYAN_OK) {
        gpu_pipeline_close(made);
        return status;
    }
    *slots = (gpu_pipeline_slots){.bytes = made->slot_bytes};
    for (int slot = 0; slot < SLOTS; slot++) {
        slots->send[slot] =
            made->symmetric + gpu_pipeline_send_slot(made, slot) + PIPELINE_HEADER_BYTES;
        slots->recv[slot] =
            made->symmetric + gpu_pipeline_recv_slot(made, slot) + PIPELINE_HEADER_BYTES;
    }
    *opened = made;
    return BANYAN_OK;
}

static void gpu_pipeline_check(void *argument, device_report *report)
{
    report_read(((const gpu_pipeline *)argument)->reports, report);
}

const copy_gpu_pipeline_ops cuda_gpu_pipeline_ops = {
    .size = sizeof(copy_gpu_pipeline_ops),
    .name = "cuda",
    .open = gpu_pipeline_open,
    .close = gpu_pipeline_close,
    .prepare = gpu_pipeline_prepare,
    .release = gpu_pipeline_release,
    .run = gpu_pipeline_run,
    .check = gpu_pipeline_check,
};
