/* State that the plans of a world share while they run. */
#ifndef EXECUTE_EXECUTOR_H
#define EXECUTE_EXECUTOR_H

#include <banyan/execute.h>

#include "channel/port.h"
#include "core/containers.h"
#include "execute/device/engine.h"
#include "execute/host/trace.h"
#include "execute/host/workers.h"
#include "memory/device.h"
#include "memory/space.h"
#include "transport/tables.h"
#include "world/control.h"

struct banyan_executor {
    banyan_world *world;
    control_timeout timeout;
    memory_space *space;
    int rank, ranks;
    transport_world
        *transports; /* have a wake-up for each rank; every event for the rank rings it */
    banyan_transport *transport; /* to ranks of other nodes; NULL: there are none */
    port_proxy *proxy;           /* NULL until a plan has port channels */
    worker_pool *pool;           /* NULL when the calling thread does everything */
    int worker_count;
    bool crowded;          /* the node's ranks and workers outnumber its processors */
    uint64_t shuffle_seed; /* 0: thread blocks run in their own order */
    uint64_t large_bytes;  /* larger inputs and outputs leave the caches before their next use */
    trace *trace;          /* NULL while nothing is recorded */

    DLDevice device;
    const execute_engine_ops *engine_ops; /* NULL: plans run on the host */
    void *engine;
    const memory_device_ops *device_memory;
    bool multicast;                        /* switch channels may use it: on all ranks or on none */
    ARRAY(banyan_loaded_plan *) on_device; /* all plans loaded there */
};

static inline bool executor_is_host(const banyan_executor *executor)
{
    return !executor->engine_ops;
}

static inline DLDevice executor_device(const banyan_executor *executor)
{
    return executor->device;
}

/* Take account of the ranks of `world`, a world that contains the executor's, which share
 * processors and devices with it: on the host its threads wait sooner when together they outnumber
 * the processors. Returns the number of thread blocks that a rank's plan may have on its device:
 * the smallest of all ranks. Collective over `world`. The executors must be all on the host, or all
 * on devices. */
banyan_status executor_share_with(banyan_executor *executor, banyan_world *world, uint32_t *blocks);

/* True if graphs hold runs of the plan. */
bool executor_plan_is_captured(const banyan_loaded_plan *loaded);

/* Copy within the memory where plans run: at once on the host, in the stream on a device. */
banyan_status executor_copy(const banyan_executor *executor, void *to, const void *from,
                            uint64_t bytes, void *stream);

/* Scale elements of a type that reductions support, likewise. `to` may be `from`. */
banyan_status executor_scale(const banyan_executor *executor, void *to, const void *from,
                             uint64_t elems, DLDataType dtype, const engine_scaling *by,
                             void *stream);

/* NULL: the rank is on another node. */
static inline wake_up *executor_wake_up(const banyan_executor *executor, int rank)
{
    int local = memory_space_local(executor->space, rank);
    return local < 0 ? NULL : transport_wake_up(executor->transports, local);
}

#endif
