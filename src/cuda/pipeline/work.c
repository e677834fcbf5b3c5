/* A schedule on the device, and the order in which its runs are queued.
 *
 * Streams do not guarantee concurrency: devices have few queues, and graphs run in any order that
 * their edges permit. A waiting kernel may therefore block anything that is not ordered before it.
 * Three rules ensure that every such order completes. For each round r of a batch:
 *
 * - no wait for a batch of round r precedes this rank's own sends up to round r;
 * - no wait for a slot in round r precedes this rank's grants of its own slots, initially and again
 *   after everything that it received up to round r - 2;
 * - no wait for a slot in round r precedes all of this rank's sends before round r - 1.
 *
 * Proof: let r be the first round with a batch that has not been unpacked. Only earlier rounds
 * precede its sender's wait for a slot. The slot has been granted: the grant depends on batches
 * before round r - 1, and no wait for a slot in a round after r precedes it. So all batches of
 * round r are sent. At most the wait for a slot in round r + 1 may block a send, and that wait
 * depends on batches up to round r - 1 in the same way. A receiver's wait for a batch of round r
 * may be blocked by its own sends of round r, and by no wait for a slot beyond round r + 1. */
#include "cuda/pipeline/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/copy/layout.h"
#include "cuda/memory/memory.h"

/* Lists of moves on the device; one launch of the copy kernel performs a list. Zeroed, it is
 * empty. */
typedef struct gpu_pipeline_copies {
    const gpu_pipeline *gpu_pipeline;
    CUdeviceptr memory; /* all arrays of args */
    copy_args args;     /* of list 0 */
    CUfunction kernel;
    uint32_t blocks;
} gpu_pipeline_copies;

static uint32_t copies_warps_a_block(const gpu_pipeline *owner)
{
    return owner->copies.threads / COPY_WARP;
}

static banyan_status copies_alloc_on_device(gpu_pipeline_copies *of, size_t bytes)
{
    int device = of->gpu_pipeline->device;
    return DRIVER_WITHIN_UNCAPTURED(device, DRIVER(device, cuMemAlloc, &of->memory, bytes));
}

/* Use no more thread blocks than the longest list has tiles: the description of warps' parts must
 * not exceed the parts. */
static uint32_t blocks_for(const gpu_pipeline *owner, const copy_layout *layout)
{
    uint64_t most = 1;
    for (size_t i = 0; i < layout->lane_count; i++)
        most = layout->lanes[i].tiles > most ? layout->lanes[i].tiles : most;
    uint64_t blocks = (most - 1) / copies_warps_a_block(owner) + 1;
    return blocks < owner->blocks ? (uint32_t)blocks : owner->blocks;
}

static banyan_status copies_upload(gpu_pipeline_copies *of, const copy_layout *layout)
{
    const gpu_pipeline *owner = of->gpu_pipeline;
    copy_image image;
    if (!copy_image_make(layout, of->blocks * copies_warps_a_block(owner), &image))
        return gpu_pipeline_no_memory(image.bytes, "a schedule");
    for (size_t i = 0; i < layout->lane_count; i++)
        copy_image_lanes(&image)[i].peer = owner->rank;
    banyan_status status = copies_alloc_on_device(of, image.bytes);
    const char *there = (const char *)(uintptr_t)of->memory;
    if (status == BANYAN_OK)
        status = bytes_copy((void *)(uintptr_t)of->memory, image.data, image.bytes);
    free(image.data);
    of->args = (copy_args){
        .shared = owner->shared,
        .reports = owner->reports,
        .timeout_ns = owner->timeout_ns,
        .lane_count = 1,
        .phases = COPY_MOVE,
    };
    copy_image_point(&image, there, &of->args);
    return status;
}

/* The arguments, except for the GPU pipeline, may be freed afterwards. Local. */
static banyan_status gpu_pipeline_copies_make(const gpu_pipeline *owner,
                                              const direct_moves *const *lists, size_t count,
                                              gpu_pipeline_copies *copies)
{
    gpu_copy_lane *lanes = calloc(count + 1, sizeof *lanes);
    if (!lanes)
        return gpu_pipeline_no_memory((count + 1) * sizeof *lanes, "a schedule");
    for (size_t i = 0; i < count; i++)
        lanes[i] = (gpu_copy_lane){.peer = owner->rank, .moves = lists[i]};
    copy_layout layout;
    banyan_status status = copy_layout_make(lanes, count, 0, &layout);
    free(lanes);
    if (status != BANYAN_OK)
        return status;
    *copies = (gpu_pipeline_copies){.gpu_pipeline = owner,
                                    .kernel = layout.converts ? owner->copies.converts
                                                              : owner->copies.moves,
                                    .blocks = blocks_for(owner, &layout)};
    status = copies_upload(copies, &layout);
    copy_layout_free(&layout);
    return status;
}

/* The device's context is entered, and no launch is in progress. */
static void gpu_pipeline_copies_free(gpu_pipeline_copies *copies)
{
    if (copies->memory)
        driver.cuMemFree(copies->memory);
    *copies = (gpu_pipeline_copies){0};
}

/* Queue the moves of one list. The device's context is entered. */
static banyan_status gpu_pipeline_copies_launch(const gpu_pipeline_copies *copies, size_t list,
                                                CUstream stream)
{
    const gpu_pipeline *owner = copies->gpu_pipeline;
    copy_args args = copies->args;
    args.lanes += list;
    args.spans += list * copies->blocks * copies_warps_a_block(owner);
    launch_shape by = {.blocks = copies->blocks, .threads = owner->copies.threads};
    return launch_kernel(owner->device, copies->kernel, by, &args, stream);
}

typedef struct work_batch {
    int peer, slot; /* slot of the receiver */
    uint64_t bytes;
    size_t list; /* of moves */
} work_batch;

typedef struct work_step {
    uint64_t round;
    work_batch send, recv;
} work_step;

typedef struct pipeline_work {
    gpu_pipeline *gpu_pipeline;
    work_step *steps;
    size_t step_count;
    gpu_pipeline_copies batches, local;
    bool has_local;
    CUevent ended; /* after the last run outside of graphs */
    bool has_run;
} pipeline_work;

static work_batch take_batch(const gpu_pipeline_batch *batch, const direct_moves **lists,
                             size_t *count)
{
    work_batch taken = {.peer = batch->peer, .slot = batch->slot, .bytes = batch->bytes};
    if (batch->peer >= 0) {
        taken.list = *count;
        lists[(*count)++] = batch->moves;
    }
    return taken;
}

static banyan_status work_fill_batches(pipeline_work *of, const gpu_pipeline_step *steps)
{
    const direct_moves **lists = calloc(2 * of->step_count + 1, sizeof *lists);
    size_t count = 0;
    if (!lists)
        return gpu_pipeline_no_memory((2 * of->step_count + 1) * sizeof *lists, "a schedule");
    for (size_t i = 0; i < of->step_count; i++) {
        of->steps[i].round = steps[i].round;
        of->steps[i].send = take_batch(&steps[i].send, lists, &count);
        of->steps[i].recv = take_batch(&steps[i].recv, lists, &count);
    }
    banyan_status status = gpu_pipeline_copies_make(of->gpu_pipeline, lists, count, &of->batches);
    free(lists);
    return status;
}

static banyan_status work_make_event(pipeline_work *of)
{
    int device = of->gpu_pipeline->device;
    return DRIVER_WITHIN(device,
                         DRIVER(device, cuEventCreate, &of->ended, CU_EVENT_DISABLE_TIMING));
}

static banyan_status work_fill(pipeline_work *of, const gpu_pipeline_step *steps,
                               const direct_moves *local)
{
    banyan_status status = work_make_event(of);
    if (status == BANYAN_OK)
        status = work_fill_batches(of, steps);
    of->has_local = local->list.count > 0;
    if (status == BANYAN_OK && of->has_local)
        status = gpu_pipeline_copies_make(of->gpu_pipeline, &local, 1, &of->local);
    return status;
}

void gpu_pipeline_release(void *argument)
{
    pipeline_work *of = argument;
    if (driver_enter(of->gpu_pipeline->device) == BANYAN_OK) {
        driver_capture before = driver_capture_relax();
        driver_end_runs(of->ended, of->has_run);
        gpu_pipeline_copies_free(&of->batches);
        gpu_pipeline_copies_free(&of->local);
        driver_capture_restore(before);
        driver_leave();
    }
    free(of->steps);
    free(of);
}

banyan_status gpu_pipeline_prepare(void *argument, const gpu_pipeline_step *steps, size_t count,
                                   const direct_moves *local, void **prepared)
{
    pipeline_work *made = calloc(1, sizeof *made);
    work_step *taken = calloc(count + 1, sizeof *taken);
    if (!made || !taken) {
        free(made);
        free(taken);
        return gpu_pipeline_no_memory((count + 1) * sizeof *taken, "a schedule");
    }
    made->gpu_pipeline = argument;
    made->steps = taken;
    made->step_count = count;
    banyan_status status = work_fill(made, steps, local);
    if (status == BANYAN_OK)
        *prepared = made;
    else
        gpu_pipeline_release(made);
    return status;
}

typedef struct queued_work {
    const pipeline_work *of;
    const gpu_pipeline *gpu_pipeline;
    size_t sent, received, granted; /* batches so far */
    size_t next_grant;              /* step */
    uint64_t sent_in;               /* round of the latest send */
    uint64_t received_in[SLOTS];    /* round of the latest batch in each slot */
} queued_work;

/* `slot`: the address of the slot, or of the host memory at which it arrives. */
static banyan_status launch_wait(const gpu_pipeline *of, gpu_pipeline_task task, int peer,
                                 const char *slot, uint64_t bytes, CUstream stream)
{
    bool stamps = task == PIPELINE_STAMP;
    size_t word = stamps ? gpu_pipeline_slot_word(of, peer) : gpu_pipeline_batch_word(of, peer);
    gpu_pipeline_args args = {
        .task = task,
        .peer = peer,
        .word = (const uint64_t *)(const void *)(of->words + word),
        .count = gpu_pipeline_count(of, stamps ? COUNT_STAMPED : COUNT_ACCEPTED, peer),
        .check = (gpu_pipeline_sequence_check *)(uintptr_t)slot,
        .bytes = bytes,
        .shared = of->shared,
        .reports = of->reports,
        .timeout_ns = of->timeout_ns,
    };
    return launch_kernel(of->device, of->kernel, LAUNCH_ONE, &args, stream);
}

/* Let `stream` wait for all puts and signals. */
static banyan_status after_sends(const queued_work *run, CUstream stream)
{
    const gpu_pipeline *of = run->gpu_pipeline;
    if (run->sent == 0)
        return BANYAN_OK;
    return DRIVER(of->device, cuStreamWaitEvent, stream, of->sent[(run->sent - 1) % SLOTS], 0);
}

/* The second rule: wait for the grants after the last receive of a round before `round` - 1, which
 * is one of the last two, or for the initial grants. */
static banyan_status after_grants(const queued_work *run, uint64_t round, CUstream stream)
{
    const gpu_pipeline *of = run->gpu_pipeline;
    for (size_t back = 1; back <= SLOTS && back <= run->received; back++) {
        size_t slot = (run->received - back) % SLOTS;
        if (run->received_in[slot] + 1 < round)
            return DRIVER(of->device, cuStreamWaitEvent, stream, of->granted[slot], 0);
    }
    return DRIVER(of->device, cuStreamWaitEvent, stream, of->begun, 0);
}

/* After all unpacking so far, grant as many slots as are empty then. */
static banyan_status work_grant_slots(queued_work *run)
{
    const gpu_pipeline *of = run->gpu_pipeline;
    while (run->next_grant < run->of->step_count && run->granted - run->received < SLOTS) {
        int peer = run->of->steps[run->next_grant++].recv.peer;
        if (peer < 0)
            continue;
        gpu_pipeline_signal how = {of, gpu_pipeline_count(of, COUNT_SIGNALLED_SLOTS, peer), 0, 0,
                                   0};
        banyan_status status =
            of->transport_ops->signal(of->transport, of->streams[STREAM_UNPACK], peer,
                                      gpu_pipeline_slot_word(of, of->rank), &how);
        if (status != BANYAN_OK)
            return status;
        run->granted++;
    }
    return BANYAN_OK;
}

static banyan_status queue_pack(const queued_work *run, const work_batch *batch, size_t slot)
{
    const gpu_pipeline *of = run->gpu_pipeline;
    CUstream stream = of->streams[STREAM_PACK];
    banyan_status status = BANYAN_OK;
    if (run->sent >= SLOTS)
        status = DRIVER(of->device, cuStreamWaitEvent, stream, of->sent[slot], 0);
    if (status == BANYAN_OK)
        status = gpu_pipeline_copies_launch(&run->of->batches, batch->list, stream);
    return status == BANYAN_OK ? DRIVER(of->device, cuEventRecord, of->packed[slot], stream)
                               : status;
}

/* Wait for the packed slot and for the peer's grant, then write the sequence check. */
static banyan_status queue_stamp(const queued_work *run, uint64_t round, const work_batch *batch,
                                 size_t slot)
{
    const gpu_pipeline *of = run->gpu_pipeline;
    CUstream stream = of->streams[STREAM_STAMP];
    RETURN_IF_FAILED(DRIVER(of->device, cuStreamWaitEvent, stream, of->packed[slot], 0));
    RETURN_IF_FAILED(after_grants(run, round, stream));
    if (round > run->sent_in + 1)
        RETURN_IF_FAILED(after_sends(run, stream));
    RETURN_IF_FAILED(launch_wait(of, PIPELINE_STAMP, batch->peer,
                                 of->symmetric + gpu_pipeline_send_slot(of, (int)slot),
                                 batch->bytes, stream));
    return DRIVER(of->device, cuEventRecord, of->stamped[slot], stream);
}

/* Two batches may travel at once, so that the link is busy while one begins and the other ends,
 * but their signals are in order. */
static banyan_status queue_put(const queued_work *run, const work_batch *batch, size_t slot)
{
    const gpu_pipeline *of = run->gpu_pipeline;
    const gpu_pipeline_transport_ops *transport = of->transport_ops;
    CUstream stream = of->streams[transport->put_signals ? STREAM_SEND : STREAM_SEND + (int)slot];
    size_t word = gpu_pipeline_batch_word(of, of->rank);
    gpu_pipeline_signal how = {of, gpu_pipeline_count(of, COUNT_SIGNALLED_BATCHES, batch->peer),
                               gpu_pipeline_recv_slot(of, batch->slot),
                               gpu_pipeline_send_slot(of, (int)slot),
                               PIPELINE_HEADER_BYTES + batch->bytes};
    RETURN_IF_FAILED(DRIVER(of->device, cuStreamWaitEvent, stream, of->stamped[slot], 0));
    RETURN_IF_FAILED(
        transport->put(of->transport, stream, batch->peer, how.to, how.from, how.bytes, word));
    if (!transport->put_signals)
        RETURN_IF_FAILED(after_sends(run, stream));
    if (!transport->put_signals)
        RETURN_IF_FAILED(transport->signal(of->transport, stream, batch->peer, word, &how));
    return DRIVER(of->device, cuEventRecord, of->sent[slot], stream);
}

static banyan_status queue_send(queued_work *run, uint64_t round, const work_batch *batch)
{
    size_t slot = run->sent % SLOTS;
    banyan_status status = queue_pack(run, batch, slot);
    if (status == BANYAN_OK)
        status = queue_stamp(run, round, batch, slot);
    if (status == BANYAN_OK)
        status = queue_put(run, batch, slot);
    run->sent++;
    run->sent_in = round;
    return status;
}

static banyan_status queue_receive(queued_work *run, uint64_t round, const work_batch *batch)
{
    const gpu_pipeline *of = run->gpu_pipeline;
    size_t slot = run->received % SLOTS;
    CUstream stream = of->streams[STREAM_UNPACK];
    char *arrived = of->symmetric + gpu_pipeline_recv_slot(of, batch->slot);
    const char *on_host = NULL;
    if (of->transport_ops->arrives)
        on_host = of->transport_ops->arrives(of->transport, batch->peer,
                                             gpu_pipeline_recv_slot(of, batch->slot));
    banyan_status status = after_sends(run, stream); /* the first rule */
    if (status == BANYAN_OK)
        status = launch_wait(of, PIPELINE_ACCEPT, batch->peer, on_host ? on_host : arrived,
                             batch->bytes, stream);
    if (status == BANYAN_OK && on_host)
        status =
            DRIVER(of->device, cuMemcpyAsync, (CUdeviceptr)(uintptr_t)arrived,
                   (CUdeviceptr)(uintptr_t)on_host, PIPELINE_HEADER_BYTES + batch->bytes, stream);
    if (status == BANYAN_OK)
        status = gpu_pipeline_copies_launch(&run->of->batches, batch->list, stream);
    run->received_in[slot] = round;
    run->received++;
    if (status == BANYAN_OK)
        status = work_grant_slots(run);
    return status == BANYAN_OK ? DRIVER(of->device, cuEventRecord, of->granted[slot], stream)
                               : status;
}

static banyan_status queue_steps(const pipeline_work *of)
{
    queued_work run = {.of = of, .gpu_pipeline = of->gpu_pipeline};
    RETURN_IF_FAILED(work_grant_slots(&run));
    RETURN_IF_FAILED(DRIVER(of->gpu_pipeline->device, cuEventRecord, of->gpu_pipeline->begun,
                            of->gpu_pipeline->streams[STREAM_UNPACK]));
    for (size_t i = 0; i < of->step_count; i++) {
        const work_step *step = &of->steps[i];
        if (step->send.peer >= 0)
            RETURN_IF_FAILED(queue_send(&run, step->round, &step->send));
        if (step->recv.peer >= 0)
            RETURN_IF_FAILED(queue_receive(&run, step->round, &step->recv));
    }
    return BANYAN_OK;
}

static banyan_status work_run_here(pipeline_work *of, CUstream stream)
{
    const gpu_pipeline *owner = of->gpu_pipeline;
    RETURN_IF_FAILED(driver_fork(owner->device, owner->fork, stream, owner->streams, STREAMS));
    if (of->has_local)
        RETURN_IF_FAILED(gpu_pipeline_copies_launch(&of->local, 0, owner->streams[STREAM_LOCAL]));
    RETURN_IF_FAILED(queue_steps(of));
    RETURN_IF_FAILED(driver_join(owner->device, owner->join, owner->streams, STREAMS, stream));
    return driver_record_run(owner->device, stream, of->ended, &of->has_run);
}

banyan_status gpu_pipeline_run(void *argument, void *stream)
{
    pipeline_work *of = argument;
    return DRIVER_WITHIN(of->gpu_pipeline->device, work_run_here(of, stream));
}
