#include "core/deadline.h"
#include "core/error.h"
#include "mixed/modes.h"
#include "mixed/through_collectives.h"
#include "world/control.h"

/* On the host the fastest of so many is taken, since what else a machine does only adds; a device
 * repeats by itself, and takes the median. */
#define BATCHES 5
#define BATCH_NS 1000000 /* of so long, about */
#define TIMES_MOST 40    /* calls a batch */

/* What is measured. */
struct call {
    banyan_mixed *mixed;
    banyan_mixed_op op;
    banyan_mixed_mode mode;
    const DLTensor *input, *output;
};

static banyan_status queue(void *context, void *stream)
{
    const struct call *call = context;
    return banyan_mixed_run(call->mixed, call->op, call->input, call->output, call->mode, stream);
}

/* Where calls are done when they return. */
static banyan_status measure_here(struct call *call, uint32_t times, uint64_t *ns)
{
    RETURN_IF_FAILED(queue(call, NULL));
    uint64_t began_ns = time_now_ns();
    for (uint32_t i = 0; i < times; i++)
        RETURN_IF_FAILED(queue(call, NULL));
    *ns = (time_now_ns() - began_ns) / times;
    return BANYAN_OK;
}

/* Of the slowest rank. */
static banyan_status batch(struct call *call, uint32_t times, uint64_t *ns)
{
    banyan_mixed *mixed = call->mixed;
    uint64_t mine = 0;
    banyan_status status = mixed->ops->measure
                               ? mixed->ops->measure(mixed->engine, queue, call, times, &mine)
                               : measure_here(call, times, &mine);
    RETURN_IF_FAILED(control_agree(mixed->world, status));
    return control_max(mixed->world, mine, ns);
}

banyan_status banyan_mixed_measure(banyan_mixed *mixed, banyan_mixed_op op, const DLTensor *input,
                                   const DLTensor *output, banyan_mixed_mode mode, uint64_t *ns)
{
    RETURN_IF_NULL(mixed);
    RETURN_IF_NULL(ns);
    if (!mixed->has_memory)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: a mixed collective is measured before its memory is there "
                         "(banyan_mixed_init_virtual_memory)",
                         mixed->rank);
    RETURN_IF_FAILED(mixed_check_awake(mixed));
    CONTROL_CALL(mixed->world, __func__);
    struct call call = {mixed, op, mode, input, output};
    mixed_call checked;
    RETURN_IF_FAILED(
        control_agree(mixed->world, mixed_check_call(mixed, op, input, output, mode, &checked)));
    uint64_t first, best = UINT64_MAX;
    if (mixed->has_nccl && mode_is_nccl(mode))
        RETURN_IF_FAILED(collectives_open_nccl(mixed)); /* what is captured opens nothing */
    int count = mixed->ops->measure ? 1 : BATCHES;
    RETURN_IF_FAILED(batch(&call, 1, &first));
    uint64_t times = first > 0 ? BATCH_NS / first : TIMES_MOST;
    times = times < 1 ? 1 : times > TIMES_MOST ? TIMES_MOST : times;
    for (int i = 0; i < count; i++) {
        uint64_t one;
        RETURN_IF_FAILED(batch(&call, (uint32_t)times, &one));
        best = one < best ? one : best;
    }
    *ns = best;
    return BANYAN_OK;
}
