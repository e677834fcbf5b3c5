/* Waits for runs, and times them. */
#include "core/deadline.h"
#include "core/error.h"
#include "execute/device/device.h"
#include "execute/load/loaded.h"
#include "world/control.h"

banyan_status banyan_loaded_plan_wait(banyan_loaded_plan *loaded)
{
    if (!executor_is_host(loaded->executor))
        RETURN_IF_FAILED(device_drain(loaded));
    return banyan_loaded_plan_status(loaded);
}

struct timed_run {
    banyan_loaded_plan *loaded;
    const void *input;
    void *output;
    uint64_t message_bytes;
    DLDataType dtype;
};

static banyan_status queue_run(void *context, void *stream)
{
    const struct timed_run *run = context;
    return banyan_loaded_plan_run(run->loaded, run->input, run->output, run->message_bytes,
                                  run->dtype, stream);
}

/* Use one graph of runs, so that no host time lies between two runs on a device. */
static banyan_status time_on_device(struct timed_run *run, uint32_t runs, uint64_t *ns)
{
    const banyan_executor *executor = run->loaded->executor;
    void *recorded = NULL;
    banyan_status status =
        control_agree(executor->world, executor->engine_ops->record(executor->engine, queue_run,
                                                                    run, runs, &recorded));
    if (status == BANYAN_OK)
        status = executor->engine_ops->play(recorded, ns);
    executor->engine_ops->forget(recorded);
    return status == BANYAN_OK ? banyan_loaded_plan_status(run->loaded) : status;
}

banyan_status banyan_loaded_plan_time(banyan_loaded_plan *loaded, const void *input, void *output,
                                      uint64_t message_bytes, DLDataType dtype, uint32_t runs,
                                      uint64_t *ns)
{
    struct timed_run run = {loaded, input, output, message_bytes, dtype};
    banyan_world *world = loaded->executor->world;
    CONTROL_ENTER_WITHIN(world, loaded->executor->timeout);
    if (!executor_is_host(loaded->executor))
        return time_on_device(&run, runs, ns);
    RETURN_IF_FAILED(banyan_world_barrier(world));
    uint64_t began_ns = time_now_ns();
    for (uint32_t i = 0; i < runs; i++)
        RETURN_IF_FAILED(queue_run(&run, NULL));
    *ns = time_now_ns() - began_ns;
    return BANYAN_OK;
}
