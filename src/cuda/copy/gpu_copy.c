/* Strided moves between GPUs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/copy/kernels.h"
#include "cuda/copy/layout.h"
#include "cuda/driver.h"
#include "cuda/memory/memory.h"
#include "cuda/module.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/watch.h"

/* Contiguous runs of this many bytes or more use copy engines. These are some percent faster than
 * the kernel and leave the multiprocessors free. But each run costs an engine 4 us, in which the
 * kernel would move 20 MB, and all runs together cost two more launches, so there must be enough
 * of them. */
#define ENGINE_BYTES ((uint64_t)32 << 20)
#define ENGINE_RUNS_WORTH_IT 2

/* One stream for each partner, so that all links are in use; with few partners, several for
 * each. */
#define SIDE_STREAMS 8

#define BLOCKS_A_MULTIPROCESSOR 2

typedef struct gpu_copy {
    banyan_world *world;
    int device;
    uint64_t timeout_ns, engine_bytes;
    uint32_t blocks; /* most blocks of one launch */
    copy_kernels kernels;
    CUstream sides[SIDE_STREAMS];
    CUevent fork, join[SIDE_STREAMS];
    copy_shared *shared;
    report_words *reports; /* one address on host and device */
    watch *watching;
    int peers[COPY_RUNS_MAX]; /* the peers whose runs shared->runs counts */
    int peer_count;
} gpu_copy;

typedef struct copy_launch {
    gpu_copy *gpu_copy;
    char *memory; /* all arrays of args */
    copy_args args;
    uint32_t blocks; /* 0: there are no tiles */
    bool converts;
    copy_engine_move *engine_moves;
    size_t engine_count;
    uint32_t streams_a_lane;
    CUevent ended; /* after the last run outside of graphs */
    bool has_run;
} copy_launch;

static banyan_status gpu_copy_open_streams(gpu_copy *made)
{
    RETURN_IF_FAILED(DRIVER(made->device, cuEventCreate, &made->fork, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < SIDE_STREAMS; i++) {
        RETURN_IF_FAILED(
            DRIVER(made->device, cuStreamCreate, &made->sides[i], CU_STREAM_NON_BLOCKING));
        RETURN_IF_FAILED(
            DRIVER(made->device, cuEventCreate, &made->join[i], CU_EVENT_DISABLE_TIMING));
    }
    return BANYAN_OK;
}

static banyan_status gpu_copy_open_memory(gpu_copy *made)
{
    void *reports, *same, *shared;
    RETURN_IF_FAILED(bytes_alloc(made->device, sizeof *made->shared, &shared));
    made->shared = shared;
    RETURN_IF_FAILED(bytes_fill(made->shared, 0, sizeof *made->shared));
    RETURN_IF_FAILED(pinned_alloc(made->device, sizeof *made->reports, &reports, &same));
    made->reports = reports;
    return BANYAN_OK;
}

/* All thread blocks of all ranks that share the device must fit on it, since they wait for each
 * other. */
static banyan_status gpu_copy_open_kernels(gpu_copy *made, int sharers)
{
    RETURN_IF_FAILED(copy_kernels_find(made->device, &made->kernels));
    uint32_t blocks =
        BLOCKS_A_MULTIPROCESSOR *
        (uint32_t)driver_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, made->device);
    if (made->kernels.room < blocks)
        blocks = made->kernels.room;
    if (blocks < (uint32_t)sharers)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "cuda: device %d holds %u thread blocks of copies at once, too few "
                                "for the %d ranks that share it",
                                made->device, blocks, sharers);
    made->blocks = blocks / (uint32_t)sharers;
    return BANYAN_OK;
}

static void gpu_copy_close_device(gpu_copy *closed)
{
    for (int i = 0; i < SIDE_STREAMS; i++) {
        if (closed->sides[i])
            driver.cuStreamDestroy(closed->sides[i]);
        if (closed->join[i])
            driver.cuEventDestroy(closed->join[i]);
    }
    if (closed->fork)
        driver.cuEventDestroy(closed->fork);
    bytes_free(closed->device, closed->shared);
    pinned_free(closed->reports);
}

static void gpu_copy_close(void *argument)
{
    gpu_copy *closed = argument;
    watch_end(closed->watching);
    if (driver_enter(closed->device) == BANYAN_OK) {
        gpu_copy_close_device(closed);
        driver_leave();
    }
    free(closed);
}

static banyan_status gpu_copy_open_device(gpu_copy *made, int sharers)
{
    RETURN_IF_FAILED(driver_enter(made->device));
    driver_capture before = driver_capture_relax();
    banyan_status status = gpu_copy_open_kernels(made, sharers);
    if (status == BANYAN_OK)
        status = gpu_copy_open_streams(made);
    if (status == BANYAN_OK)
        status = gpu_copy_open_memory(made);
    driver_capture_restore(before);
    driver_leave();
    return status;
}

/* Read BANYAN_COPY_ENGINE_BYTES, an option for measurements. */
static banyan_status read_engine_bytes(uint64_t *bytes)
{
    const char *text = getenv("BANYAN_COPY_ENGINE_BYTES");
    *bytes = ENGINE_BYTES;
    if (!text || !*text)
        return BANYAN_OK;
    char *end;
    *bytes = strtoull(text, &end, 10);
    if (*end == '\0' && *text >= '0' && *text <= '9')
        return BANYAN_OK;
    return banyan_error_set(BANYAN_ERR_INVALID,
                            "BANYAN_COPY_ENGINE_BYTES is \"%s\", and should be a number of bytes",
                            text);
}

static void gpu_copy_describe_wait(const device_report *wait, char *text, size_t bytes)
{
    snprintf(text, bytes, "for rank %d to %s (direct)", device_report_rank(wait),
             device_report_own(wait) ? "finish its part of a run" : "enter the run");
}

static banyan_status gpu_copy_open(banyan_world *world, int device, int sharers,
                                   uint64_t timeout_ns, void **opened)
{
    uint64_t engine_bytes;
    RETURN_IF_FAILED(read_engine_bytes(&engine_bytes));
    gpu_copy *made = calloc(1, sizeof *made);
    if (!made)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY,
                                "cuda: out of memory: %zu bytes for a gpu_copy", sizeof *made);
    made->world = world;
    made->device = device;
    made->timeout_ns = timeout_ns;
    made->engine_bytes = engine_bytes;
    banyan_status status = gpu_copy_open_device(made, sharers);
    if (status == BANYAN_OK)
        status = watch_ranks(world, made->reports, gpu_copy_describe_wait, &made->watching);
    if (status == BANYAN_OK)
        *opened = made;
    else
        gpu_copy_close(made);
    return status;
}

static uint32_t gpu_copy_warps_a_block(const gpu_copy *of)
{
    return of->kernels.threads / COPY_WARP;
}

/* Find the counter of runs with a peer. */
static banyan_status gpu_copy_runs_of(gpu_copy *of, int peer, uint64_t **runs)
{
    int i = 0;
    while (i < of->peer_count && of->peers[i] != peer)
        i++;
    if (i == COPY_RUNS_MAX)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "cuda: device %d moves tensors to more than %d other ranks",
                                of->device, COPY_RUNS_MAX);
    if (i == of->peer_count)
        of->peers[of->peer_count++] = peer;
    *runs = &of->shared->runs[i];
    return BANYAN_OK;
}

static banyan_status fill_lanes(copy_launch *of, const gpu_copy_lane *lanes, size_t count,
                                copy_lane *filled)
{
    for (size_t i = 0; i < count; i++) {
        const gpu_copy_lane *lane = &lanes[i];
        filled[i] = (copy_lane){
            .my_entered = lane->my_entered,
            .their_entered = lane->their_entered,
            .my_finished = lane->my_finished,
            .their_finished = lane->their_finished,
            .peer = lane->peer,
            .receives = lane->receives,
        };
        if (!lane->my_entered)
            continue;
        banyan_status status = gpu_copy_runs_of(of->gpu_copy, lane->peer, &filled[i].runs);
        if (status != BANYAN_OK)
            return status;
    }
    for (size_t i = 0; i < of->engine_count; i++)
        filled[of->engine_moves[i].lane].by_engine = 1;
    return BANYAN_OK;
}

static banyan_status gpu_copy_alloc_on_device(copy_launch *of, size_t bytes)
{
    int device = of->gpu_copy->device;
    void *memory;
    RETURN_IF_FAILED(bytes_alloc(device, bytes, &memory));
    of->memory = memory;
    return DRIVER_WITHIN(device,
                         DRIVER(device, cuEventCreate, &of->ended, CU_EVENT_DISABLE_TIMING));
}

static banyan_status gpu_copy_upload(copy_launch *of, const gpu_copy_lane *lanes,
                                     const copy_layout *layout)
{
    copy_image image;
    if (!copy_image_make(layout, of->blocks * gpu_copy_warps_a_block(of->gpu_copy), &image))
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: out of memory: %zu bytes",
                                image.bytes);
    banyan_status status = fill_lanes(of, lanes, layout->lane_count, copy_image_lanes(&image));
    if (status == BANYAN_OK)
        status = gpu_copy_alloc_on_device(of, image.bytes);
    if (status == BANYAN_OK)
        status = bytes_copy(of->memory, image.data, image.bytes);
    free(image.data);
    of->args = (copy_args){
        .shared = of->gpu_copy->shared,
        .reports = of->gpu_copy->reports,
        .timeout_ns = of->gpu_copy->timeout_ns,
        .lane_count = (uint32_t)layout->lane_count,
    };
    copy_image_point(&image, of->memory, &of->args);
    return status;
}

static void work_release(void *argument)
{
    copy_launch *of = argument;
    if (driver_enter(of->gpu_copy->device) == BANYAN_OK) {
        driver_capture before = driver_capture_relax();
        driver_end_runs(of->ended, of->has_run);
        driver_capture_restore(before);
        driver_leave();
    }
    bytes_free(of->gpu_copy->device, of->memory);
    free(of->engine_moves);
    free(of);
}

/* Use copy engines if there are enough bytes for them. */
static banyan_status gpu_copy_lay_out(const gpu_copy *of, const gpu_copy_lane *lanes, size_t count,
                                      copy_layout *layout)
{
    RETURN_IF_FAILED(copy_layout_make(lanes, count, of->engine_bytes, layout));
    if (layout->engine_count == 0 ||
        layout->engine_bytes / ENGINE_RUNS_WORTH_IT >= of->engine_bytes)
        return BANYAN_OK;
    copy_layout_free(layout);
    return copy_layout_make(lanes, count, 0, layout);
}

static banyan_status prepare_work(copy_launch *made, const gpu_copy_lane *lanes, size_t count)
{
    copy_layout layout;
    RETURN_IF_FAILED(gpu_copy_lay_out(made->gpu_copy, lanes, count, &layout));
    uint32_t warps = gpu_copy_warps_a_block(made->gpu_copy);
    uint64_t wanted = (layout.tiles + warps - 1) / warps;
    made->blocks = wanted < made->gpu_copy->blocks ? (uint32_t)wanted : made->gpu_copy->blocks;
    made->engine_moves = layout.engine_moves;
    made->engine_count = layout.engine_count;
    layout.engine_moves = NULL;
    made->converts = layout.converts;
    made->streams_a_lane = count > 0 && count <= SIDE_STREAMS / 2 ? 2 : 1;
    banyan_status status = gpu_copy_upload(made, lanes, &layout);
    copy_layout_free(&layout);
    return status;
}

static banyan_status gpu_copy_prepare(void *argument, const gpu_copy_lane *lanes, size_t count,
                                      void **prepared)
{
    if (count > GPU_COPY_LANES_MAX)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "cuda: a schedule moves tensors to %zu ranks, itself included; "
                                "%d are possible",
                                count, GPU_COPY_LANES_MAX);
    copy_launch *made = calloc(1, sizeof *made);
    if (!made)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY,
                                "cuda: out of memory: %zu bytes for a schedule", sizeof *made);
    made->gpu_copy = argument;
    banyan_status status = prepare_work(made, lanes, count);
    if (status == BANYAN_OK)
        *prepared = made;
    else
        work_release(made);
    return status;
}

static banyan_status gpu_copy_launch(const copy_launch *of, uint32_t blocks, uint32_t phases,
                                     CUstream stream)
{
    copy_args args = of->args;
    args.phases = phases;
    const copy_kernels *kernels = &of->gpu_copy->kernels;
    launch_shape by = {.blocks = blocks, .threads = kernels->threads};
    return launch_kernel(of->gpu_copy->device, of->converts ? kernels->converts : kernels->moves,
                         by, &args, stream);
}

/* Each partner has its own streams, as far as there are enough. */
static size_t gpu_copy_side_of(const copy_launch *of, size_t i)
{
    return (of->engine_moves[i].lane * of->streams_a_lane + i % of->streams_a_lane) % SIDE_STREAMS;
}

static banyan_status copy_by_engine(const copy_launch *of)
{
    for (size_t i = 0; i < of->engine_count; i++) {
        const copy_engine_move *move = &of->engine_moves[i];
        RETURN_IF_FAILED(DRIVER(of->gpu_copy->device, cuMemcpyAsync,
                                (CUdeviceptr)(uintptr_t)move->to,
                                (CUdeviceptr)(uintptr_t)move->from, move->bytes,
                                of->gpu_copy->sides[gpu_copy_side_of(of, i)]));
    }
    return BANYAN_OK;
}

/* Engines write to a partner only after it has entered, and the end is signalled only after their
 * copies. */
static banyan_status run_with_engines(const copy_launch *of, CUstream stream)
{
    RETURN_IF_FAILED(gpu_copy_launch(of, 1, COPY_ENTER | COPY_WAIT, stream));
    RETURN_IF_FAILED(driver_fork(of->gpu_copy->device, of->gpu_copy->fork, stream,
                                 of->gpu_copy->sides, SIDE_STREAMS));
    RETURN_IF_FAILED(copy_by_engine(of));
    if (of->blocks > 0)
        RETURN_IF_FAILED(gpu_copy_launch(of, of->blocks, COPY_MOVE, stream));
    RETURN_IF_FAILED(driver_join(of->gpu_copy->device, of->gpu_copy->join, of->gpu_copy->sides,
                                 SIDE_STREAMS, stream));
    return gpu_copy_launch(of, 1, COPY_FINISH, stream);
}

static banyan_status gpu_copy_run_here(copy_launch *of, CUstream stream)
{
    if (of->engine_count > 0)
        RETURN_IF_FAILED(run_with_engines(of, stream));
    else if (of->blocks > 0)
        RETURN_IF_FAILED(
            gpu_copy_launch(of, of->blocks, COPY_ENTER | COPY_MOVE | COPY_FINISH, stream));
    else if (of->args.lane_count > 0)
        RETURN_IF_FAILED(gpu_copy_launch(of, 1, COPY_ENTER | COPY_FINISH, stream));
    else
        return BANYAN_OK;
    return driver_record_run(of->gpu_copy->device, stream, of->ended, &of->has_run);
}

static banyan_status gpu_copy_run(void *argument, void *stream)
{
    copy_launch *of = argument;
    return DRIVER_WITHIN(of->gpu_copy->device, gpu_copy_run_here(of, stream));
}

static void gpu_copy_check(void *argument, device_report *report)
{
    report_read(((const gpu_copy *)argument)->reports, report);
}

const copy_gpu_copy_ops cuda_gpu_copy_ops = {
    .size = sizeof(copy_gpu_copy_ops),
    .name = "cuda",
    .open = gpu_copy_open,
    .close = gpu_copy_close,
    .prepare = gpu_copy_prepare,
    .release = work_release,
    .run = gpu_copy_run,
    .check = gpu_copy_check,
};
