/* A schedule on the device, and how a run of it is queued.
 *
 * All that a rank queues is, in the order of the calls, also right when done one after the other:
 * first a step's send, then its receive, grants as early as their slots are empty. So a device that
 * has fewer queues than streams, or a graph that keeps to this order, is slower, but gets to the
 * end. */
#include "cuda/courier/courier.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/copy/layout.h"
#include "cuda/memory/memory.h"

#define NO_LANE SIZE_MAX

typedef struct work_batch {
    int peer, slot; /* of the receiver's */
    uint64_t bytes;
    size_t lane;
} work_batch;

typedef struct work_step {
    work_batch send, recv;
} work_step;

typedef struct work {
    courier *courier;
    work_step *steps;
    size_t step_count;
    size_t local;       /* lane */
    CUdeviceptr memory; /* all arrays of args */
    copy_args args;     /* of the first lane */
    uint32_t warps;
    CUevent ended; /* of the last run that is not a graph's */
    bool has_run;
} work;

/* ---- prepare and release ---- */

static size_t add_lane(mover_lane *lanes, size_t *count, int rank, const direct_moves *moves)
{
    if (moves->list.count == 0)
        return NO_LANE;
    lanes[*count] = (mover_lane){.peer = rank, .moves = moves};
    return (*count)++;
}

static work_batch take_batch(const courier_batch *batch, int rank, mover_lane *lanes, size_t *count)
{
    work_batch taken = {.peer = batch->peer, .slot = batch->slot, .bytes = batch->bytes};
    if (batch->peer >= 0)
        taken.lane = add_lane(lanes, count, rank, batch->moves);
    return taken;
}

/* Every batch is a lane, and what moves at home another. */
static size_t take_steps(work *of, const courier_step *steps, const direct_moves *local,
                         mover_lane *lanes)
{
    size_t count = 0;
    int rank = of->courier->rank;
    for (size_t i = 0; i < of->step_count; i++) {
        of->steps[i].send = take_batch(&steps[i].send, rank, lanes, &count);
        of->steps[i].recv = take_batch(&steps[i].recv, rank, lanes, &count);
    }
    of->local = add_lane(lanes, &count, rank, local);
    return count;
}

/* Where each array begins in the one block of memory. */
typedef struct placement {
    size_t lanes, moves, dims, walks, spans, bytes;
} placement;

static size_t place(size_t *bytes, size_t more)
{
    size_t at = *bytes;
    *bytes += (more + 127) / 128 * 128;
    return at;
}

static placement place_all(const copy_layout *layout, size_t warps)
{
    placement at = {0};
    at.lanes = place(&at.bytes, layout->lane_count * sizeof(copy_lane));
    at.moves = place(&at.bytes, layout->move_count * sizeof(copy_move));
    at.dims = place(&at.bytes, layout->dim_count * sizeof(copy_dim));
    at.walks = place(&at.bytes, layout->walk_count * sizeof(copy_walk));
    at.spans = place(&at.bytes, layout->lane_count * warps * sizeof(copy_span));
    return at;
}

static void put_list(char *to, const void *list, size_t bytes)
{
    if (bytes > 0)
        memcpy(to, list, bytes);
}

static banyan_status make_image(const work *of, const copy_layout *layout, const placement *at,
                                char **image)
{
    char *made = calloc(1, at->bytes + 1);
    if (!made)
        return courier_no_memory(at->bytes, "a schedule");
    copy_lane *lanes = (copy_lane *)(void *)(made + at->lanes);
    for (size_t i = 0; i < layout->lane_count; i++)
        lanes[i].peer = of->courier->rank;
    put_list(made + at->moves, layout->moves, layout->move_count * sizeof(copy_move));
    put_list(made + at->dims, layout->dims, layout->dim_count * sizeof(copy_dim));
    put_list(made + at->walks, layout->walks, layout->walk_count * sizeof(copy_walk));
    copy_layout_spans(layout, of->warps, (copy_span *)(void *)(made + at->spans));
    *image = made;
    return BANYAN_OK;
}

static banyan_status alloc_on_device(work *of, size_t bytes)
{
    int device = of->courier->device;
    banyan_status status = driver_enter(device);
    if (status != BANYAN_OK)
        return status;
    driver_capture before = driver_capture_relax();
    status = DRIVER(device, cuMemAlloc, &of->memory, bytes);
    if (status == BANYAN_OK)
        status = DRIVER(device, cuEventCreate, &of->ended, CU_EVENT_DISABLE_TIMING);
    driver_capture_restore(before);
    driver_leave();
    return status;
}

static banyan_status upload(work *of, const copy_layout *layout)
{
    placement at = place_all(layout, of->warps);
    char *image = NULL;
    banyan_status status = make_image(of, layout, &at, &image);
    if (status != BANYAN_OK)
        return status;
    status = alloc_on_device(of, at.bytes + 1);
    char *there = (char *)(uintptr_t)of->memory;
    if (status == BANYAN_OK)
        status = bytes_copy(there, image, at.bytes);
    free(image);
    of->args = (copy_args){
        .lanes = (const copy_lane *)(void *)(there + at.lanes),
        .moves = (const copy_move *)(void *)(there + at.moves),
        .dims = (const copy_dim *)(void *)(there + at.dims),
        .walks = (const copy_walk *)(void *)(there + at.walks),
        .spans = (const copy_span *)(void *)(there + at.spans),
        .shared = of->courier->shared,
        .report = of->courier->device_report,
        .timeout_ns = of->courier->timeout_ns,
        .lane_count = 1,
        .phases = COPY_MOVE,
    };
    return status;
}

static banyan_status fill(work *of, const courier_step *steps, const direct_moves *local)
{
    mover_lane *lanes = calloc(2 * of->step_count + 1, sizeof *lanes);
    if (!lanes)
        return courier_no_memory((2 * of->step_count + 1) * sizeof *lanes, "a schedule");
    size_t count = take_steps(of, steps, local, lanes);
    copy_layout layout;
    banyan_status status = copy_layout_make(lanes, count, 0, &layout);
    free(lanes);
    if (status != BANYAN_OK)
        return status;
    status = upload(of, &layout);
    copy_layout_free(&layout);
    return status;
}

void courier_release(void *argument)
{
    work *of = argument;
    if (driver_enter(of->courier->device) == BANYAN_OK) {
        driver_capture before = driver_capture_relax();
        if (of->has_run)
            driver.cuEventSynchronize(of->ended);
        if (of->ended)
            driver.cuEventDestroy(of->ended);
        if (of->memory)
            driver.cuMemFree(of->memory);
        driver_capture_restore(before);
        driver_leave();
    }
    free(of->steps);
    free(of);
}

banyan_status courier_prepare(void *argument, const courier_step *steps, size_t count,
                              const direct_moves *local, void **prepared)
{
    courier *owner = argument;
    work *made = calloc(1, sizeof *made);
    work_step *taken = calloc(count + 1, sizeof *taken);
    if (!made || !taken) {
        free(made);
        free(taken);
        return courier_no_memory((count + 1) * sizeof *taken, "a schedule");
    }
    made->courier = owner;
    made->steps = taken;
    made->step_count = count;
    made->warps = owner->blocks * (owner->threads / COPY_WARP);
    banyan_status status = fill(made, steps, local);
    if (status == BANYAN_OK)
        *prepared = made;
    else
        courier_release(made);
    return status;
}

/* ---- a run ---- */

typedef struct queued {
    const work *of;
    const courier *courier;
    size_t sent, received, granted; /* batches so far */
    size_t next_grant;              /* step */
} queued;

static banyan_status launch_copy(const work *of, size_t lane, CUstream stream)
{
    const courier *owner = of->courier;
    if (lane == NO_LANE)
        return BANYAN_OK;
    copy_args args = of->args;
    args.lanes += lane;
    args.spans += lane * of->warps;
    void *params[] = {&args};
    return DRIVER(owner->device, cuLaunchKernel, owner->copy_kernel, owner->blocks, 1, 1,
                  owner->threads, 1, 1, 0, stream, params, NULL);
}

static banyan_status launch_wait(const courier *of, courier_task task, int peer, size_t slot,
                                 uint64_t bytes, CUstream stream)
{
    bool seals = task == COURIER_SEAL;
    size_t word = seals ? courier_slot_word(of, peer) : courier_batch_word(of, peer);
    courier_args args = {
        .task = task,
        .peer = peer,
        .word = (const uint64_t *)(const void *)(of->symmetric + word),
        .count = courier_count(of, seals ? COUNT_SEALED : COUNT_ACCEPTED, peer),
        .seal = (courier_seal *)(void *)(of->symmetric + slot),
        .bytes = bytes,
        .shared = of->shared,
        .report = of->device_report,
        .timeout_ns = of->timeout_ns,
    };
    void *params[] = {&args};
    return DRIVER(of->device, cuLaunchKernel, of->kernel, 1, 1, 1, 1, 1, 1, 0, stream, params,
                  NULL);
}

static banyan_status fork_streams(const courier *of, CUstream stream)
{
    banyan_status status = DRIVER(of->device, cuEventRecord, of->fork, stream);
    for (int i = 0; i < STREAMS && status == BANYAN_OK; i++)
        status = DRIVER(of->device, cuStreamWaitEvent, of->streams[i], of->fork, 0);
    return status;
}

static banyan_status join_streams(const courier *of, CUstream stream)
{
    banyan_status status = BANYAN_OK;
    for (int i = 0; i < STREAMS && status == BANYAN_OK; i++) {
        status = DRIVER(of->device, cuEventRecord, of->join[i], of->streams[i]);
        if (status == BANYAN_OK)
            status = DRIVER(of->device, cuStreamWaitEvent, stream, of->join[i], 0);
    }
    return status;
}

/* Behind everything that was unpacked: as many slots as are empty then. */
static banyan_status grant_slots(queued *run)
{
    const courier *of = run->courier;
    while (run->next_grant < run->of->step_count && run->granted - run->received < SLOTS) {
        int peer = run->of->steps[run->next_grant++].recv.peer;
        if (peer < 0)
            continue;
        banyan_status status = of->wire_ops->tell(of->wire, of->streams[STREAM_UNPACK], peer,
                                                  courier_slot_word(of, of->rank),
                                                  courier_count(of, COUNT_TOLD_SLOTS, peer));
        if (status != BANYAN_OK)
            return status;
        run->granted++;
    }
    return BANYAN_OK;
}

static banyan_status queue_pack(const queued *run, const work_batch *batch, size_t slot)
{
    const courier *of = run->courier;
    CUstream stream = of->streams[STREAM_PACK];
    banyan_status status = BANYAN_OK;
    if (run->sent >= SLOTS)
        status = DRIVER(of->device, cuStreamWaitEvent, stream, of->sent[slot], 0);
    if (status == BANYAN_OK)
        status = launch_copy(run->of, batch->lane, stream);
    return status == BANYAN_OK ? DRIVER(of->device, cuEventRecord, of->packed[slot], stream)
                               : status;
}

static banyan_status queue_send(queued *run, const work_batch *batch)
{
    const courier *of = run->courier;
    size_t slot = run->sent % SLOTS, place_of_slot = courier_send_slot(of, (int)slot);
    CUstream stream = of->streams[STREAM_SEND];
    banyan_status status = queue_pack(run, batch, slot);
    if (status == BANYAN_OK)
        status = DRIVER(of->device, cuStreamWaitEvent, stream, of->packed[slot], 0);
    if (status == BANYAN_OK)
        status = launch_wait(of, COURIER_SEAL, batch->peer, place_of_slot, batch->bytes, stream);
    if (status == BANYAN_OK)
        status = of->wire_ops->put(
            of->wire, stream, batch->peer, courier_recv_slot(of, batch->slot), place_of_slot,
            COURIER_HEADER_BYTES + batch->bytes, courier_batch_word(of, of->rank),
            courier_count(of, COUNT_TOLD_BATCHES, batch->peer));
    if (status == BANYAN_OK)
        status = DRIVER(of->device, cuEventRecord, of->sent[slot], stream);
    run->sent++;
    return status;
}

static banyan_status queue_receive(queued *run, const work_batch *batch)
{
    const courier *of = run->courier;
    CUstream stream = of->streams[STREAM_UNPACK];
    banyan_status status = launch_wait(of, COURIER_ACCEPT, batch->peer,
                                       courier_recv_slot(of, batch->slot), batch->bytes, stream);
    if (status == BANYAN_OK)
        status = launch_copy(run->of, batch->lane, stream);
    run->received++;
    return status == BANYAN_OK ? grant_slots(run) : status;
}

static banyan_status queue_steps(const work *of)
{
    queued run = {.of = of, .courier = of->courier};
    banyan_status status = grant_slots(&run);
    for (size_t i = 0; i < of->step_count && status == BANYAN_OK; i++) {
        const work_step *step = &of->steps[i];
        if (step->send.peer >= 0)
            status = queue_send(&run, &step->send);
        if (status == BANYAN_OK && step->recv.peer >= 0)
            status = queue_receive(&run, &step->recv);
    }
    return status;
}

static banyan_status run_here(work *of, CUstream stream)
{
    const courier *owner = of->courier;
    CUstreamCaptureStatus capture;
    banyan_status status = fork_streams(owner, stream);
    if (status == BANYAN_OK)
        status = launch_copy(of, of->local, owner->streams[STREAM_LOCAL]);
    if (status == BANYAN_OK)
        status = queue_steps(of);
    if (status == BANYAN_OK)
        status = join_streams(owner, stream);
    if (status == BANYAN_OK)
        status = DRIVER(owner->device, cuStreamIsCapturing, stream, &capture);
    if (status != BANYAN_OK || capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return status;
    of->has_run = true;
    return DRIVER(owner->device, cuEventRecord, of->ended, stream);
}

banyan_status courier_run(void *argument, void *stream)
{
    work *of = argument;
    banyan_status status = driver_enter(of->courier->device);
    if (status != BANYAN_OK)
        return status;
    status = run_here(of, stream);
    driver_leave();
    return status;
}
