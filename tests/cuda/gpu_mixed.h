/* Cases of mixed collectives on GPUs: each rank's has its own GPU and stream. */
#ifndef TESTS_CUDA_GPU_MIXED_H
#define TESTS_CUDA_GPU_MIXED_H

#include "mixed/mixed_check.h"

static inline void gpu_case_open(mixed_case *c, banyan_world *world, banyan_mixed_options options,
                                 uint64_t elems_most)
{
    *c = (mixed_case){.world = world, .device = gpu_device_for(banyan_world_rank(world))};
    options.device = c->device;
    c->stream = gpu_stream_create(c->device);
    case_open(c, &options, elems_most);
}

static inline void gpu_case_close(mixed_case *c)
{
    case_close(c);
    gpu_stream_destroy(c->device, c->stream);
}

/* A peer has died: the call fails, or its status does later. */
static inline void gpu_case_lose_peer(mixed_case *c, const mixed_one *call)
{
    case_fill(c, call);
    banyan_status status = case_call(c, call);
    gpu_stream_wait(c->device, c->stream);
    if (status == BANYAN_OK)
        status = banyan_mixed_status(c->mixed);
    CHECK(status == BANYAN_ERR_PEER_LOST, "%s", banyan_last_error());
}

static inline void *gpu_case_capture(mixed_case *c, const mixed_one *call)
{
    gpu_capture_begin(c->device, c->stream);
    CHECK_OK(case_call(c, call));
    return gpu_capture_end(c->device, c->stream);
}

static inline void gpu_case_replay(mixed_case *c, const mixed_one *call, void *graph)
{
    case_fill(c, call);
    gpu_graph_launch(c->device, graph, c->stream);
    gpu_stream_wait(c->device, c->stream);
    CHECK_OK(banyan_mixed_status(c->mixed));
    case_check(c, call);
}

/* Call it after one run of each, which opens everything they need. */
static inline void gpu_case_capture_all(mixed_case *c, const mixed_one *calls, void **graphs,
                                        size_t count)
{
    for (size_t i = 0; i < count; i++) {
        case_run(c, &calls[i]);
        graphs[i] = gpu_case_capture(c, &calls[i]);
    }
}

static inline void gpu_case_forget_all(const mixed_case *c, void *const *graphs, size_t count)
{
    for (size_t i = 0; i < count; i++)
        gpu_graph_destroy(c->device, graphs[i]);
}

/* Play one of the graphs `plays` times, or make another call of up to `elems_most` elements. */
static inline void gpu_case_play(mixed_case *c, random_state *random, const mixed_one *calls,
                                 void *const *graphs, size_t count, int plays, uint64_t elems_most)
{
    for (int i = 0; i < plays; i++) {
        size_t drawn = (size_t)random_between(random, 0, (int64_t)count);
        mixed_one call = draw_call(c, random, elems_most);
        if (drawn < count)
            gpu_case_replay(c, &calls[drawn], graphs[drawn]);
        else
            case_run(c, &call);
    }
}

static inline banyan_world *world_like(banyan_world *world)
{
    int ranks = banyan_world_size(world), all[8];
    banyan_world *made;
    for (int r = 0; r < ranks; r++)
        all[r] = r;
    CHECK_OK(banyan_world_split(world, all, ranks, &made));
    return made;
}

#endif
