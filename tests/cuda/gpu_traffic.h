/* The random traffic of tests/copy/traffic.h between GPUs: every box has an image on the host,
 * where it is filled and checked, and memory on the device, where it is moved. */
#ifndef TESTS_CUDA_GPU_TRAFFIC_H
#define TESTS_CUDA_GPU_TRAFFIC_H

#include "copy/traffic.h"
#include "support/gpu/gpu_stream.h"

#define GPU_SCRATCH_BYTES ((size_t)4 << 20)

typedef struct gpu_traffic {
    traffic *boxes;
    DLDevice device;
    void *stream;
    size_t *send_at, *recv_at; /* offset of each box in the memory of its side */
    size_t send_bytes, recv_bytes;
    char *sends;  /* memory that is sent */
    char *staged; /* the stream copies this to `sends` right before a run */
    banyan_memory *recvs;
    char *received;       /* memory for receiving: `recvs`, or memory of another origin */
    unsigned char *image; /* on the host, with the larger side's size */
    char *scratch;        /* large enough that a few fills take long */
} gpu_traffic;

/* Some boxes begin at a cache line, others anywhere. */
static inline size_t gpu_traffic_lay_out(traffic_end *ends, size_t count, size_t *at)
{
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        boxed_place(&ends[i].box, NULL);
        if (ends[i].task % 2 == 0)
            used = (used + 255) / 256 * 256;
        at[i] = used;
        used += ends[i].box.memory_bytes;
    }
    return used + 1;
}

/* Collective. */
static inline gpu_traffic *gpu_traffic_make(banyan_world *world, DLDevice device, uint64_t seed,
                                            int tasks, traffic_ids ids, int64_t most)
{
    gpu_traffic *made = calloc(1, sizeof *made);
    random_state random = random_from(seed);
    int size = banyan_world_size(world);
    made->device = device;
    made->boxes = calloc(1, sizeof *made->boxes);
    for (int task = 0; task < tasks; task++) {
        int from = (int)random_between(&random, 0, size - 1);
        int to = (int)random_between(&random, 0, size - 1);
        traffic_add(&random, made->boxes, banyan_world_rank(world), from, to, task, ids, most);
    }
    traffic *boxes = made->boxes;
    made->send_at = calloc(boxes->send_count + 1, sizeof *made->send_at);
    made->recv_at = calloc(boxes->recv_count + 1, sizeof *made->recv_at);
    made->send_bytes = gpu_traffic_lay_out(boxes->sends, boxes->send_count, made->send_at);
    made->recv_bytes = gpu_traffic_lay_out(boxes->recvs, boxes->recv_count, made->recv_at);
    size_t larger = made->send_bytes > made->recv_bytes ? made->send_bytes : made->recv_bytes;
    made->image = malloc(larger);
    made->stream = gpu_stream_create(device);
    CHECK_OK(gpu_memory()->alloc(device.device_id, made->send_bytes, (void **)&made->sends));
    CHECK_OK(gpu_memory()->alloc(device.device_id, made->send_bytes, (void **)&made->staged));
    CHECK_OK(gpu_memory()->alloc(device.device_id, GPU_SCRATCH_BYTES, (void **)&made->scratch));
    CHECK_OK(banyan_memory_alloc_on(world, device, made->recv_bytes, &made->recvs));
    made->received = banyan_memory_local(made->recvs);
    return made;
}

static inline void gpu_traffic_free(gpu_traffic *all)
{
    gpu_stream_destroy(all->device, all->stream);
    gpu_memory()->free(all->device.device_id, all->sends);
    gpu_memory()->free(all->device.device_id, all->staged);
    gpu_memory()->free(all->device.device_id, all->scratch);
    banyan_memory_free(all->recvs);
    traffic_free(all->boxes);
    free(all->send_at);
    free(all->recv_at);
    free(all->image);
    free(all);
}

/* New data for the stream's next copy, old data in the sources, poison in the destinations. */
static inline void gpu_traffic_fill(gpu_traffic *all, uint64_t run)
{
    traffic *boxes = all->boxes;
    traffic_fill(boxes, run);
    memset(all->image, 0, all->send_bytes);
    for (size_t i = 0; i < boxes->send_count; i++)
        memcpy(all->image + all->send_at[i], boxes->sends[i].box.memory,
               boxes->sends[i].box.memory_bytes);
    gpu_copy(all->staged, all->image, all->send_bytes);
    gpu_fill(all->received, BOXED_POISON, all->recv_bytes);
}

/* The sources receive the new data milliseconds after this was queued. */
static inline void gpu_traffic_update(gpu_traffic *all)
{
    gpu_stream_delay(all->device, all->stream, all->scratch, GPU_SCRATCH_BYTES);
    gpu_stream_copy(all->device, all->stream, all->sends, all->staged, all->send_bytes);
}

static inline void gpu_traffic_fetch(gpu_traffic *all)
{
    traffic *boxes = all->boxes;
    gpu_copy(all->image, all->received, all->recv_bytes);
    for (size_t i = 0; i < boxes->recv_count; i++)
        memcpy(boxes->recvs[i].box.memory, all->image + all->recv_at[i],
               boxes->recvs[i].box.memory_bytes);
}

/* Call it after synchronizing the stream. */
static inline void gpu_traffic_check(gpu_traffic *all, uint64_t run)
{
    gpu_traffic_fetch(all);
    traffic_check(all->boxes, run);
}

static inline banyan_copy_op gpu_traffic_op(traffic_end *end, DLDevice device, char *memory)
{
    boxed *box = &end->box;
    banyan_copy_op op = {*boxed_tensor(box), end->peer, end->task_id, end->part, 0};
    op.tensor.device = device;
    op.tensor.data = memory + box->first - (int64_t)op.tensor.byte_offset;
    return op;
}

static inline void gpu_traffic_submit(gpu_traffic *all, banyan_copy_service *service)
{
    traffic *boxes = all->boxes;
    for (size_t i = 0; i < boxes->send_count; i++) {
        banyan_copy_op op =
            gpu_traffic_op(&boxes->sends[i], all->device, all->sends + all->send_at[i]);
        CHECK_OK(banyan_copy_service_submit_send_op(service, &op));
    }
    for (size_t i = 0; i < boxes->recv_count; i++) {
        char *memory = all->received + all->recv_at[i];
        banyan_copy_op op = gpu_traffic_op(&boxes->recvs[i], all->device, memory);
        CHECK_OK(banyan_copy_service_submit_recv_op(service, &op));
    }
}

#endif
