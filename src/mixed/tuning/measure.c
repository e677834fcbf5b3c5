#include "mixed/tuning/measure.h"

#include "core/deadline.h"
#include "core/error.h"
#include "mixed/modes.h"
#include "mixed/through_collectives.h"
#include "world/control.h"

/* The fastest of several batches counts. On the host, other load only adds time, and short batches
 * often avoid it. A device repeats a batch and takes the median; but a graph of short calls may be
 * slower than another graph of equal calls, by a tenth, in every repetition. */
#define BATCH_NS 500000 /* approximate duration of a batch */
#define TIMES_MOST 40   /* calls in a batch */
#define BATCHES_LEAST 5
#define BATCHES_MOST 10
#define ALL_NS 10000000 /* duration of all batches, unless the least number takes longer */
#define GRAPHS_MOST 3   /* batches on a device, for calls shorter than GRAPHS_NS */
#define GRAPHS_NS 20000

static banyan_status tuning_measure_queue(void *context, void *stream)
{
    const measurement *of = context;
    return banyan_mixed_run(of->mixed, of->op, of->input, of->output, of->mode, stream);
}

/* Time calls that are complete when they return. */
static banyan_status measure_here(measurement *of, uint32_t times, uint64_t *ns)
{
    RETURN_IF_FAILED(tuning_measure_queue(of, NULL));
    uint64_t began_ns = time_now_ns();
    for (uint32_t i = 0; i < times; i++)
        RETURN_IF_FAILED(tuning_measure_queue(of, NULL));
    *ns = (time_now_ns() - began_ns) / times;
    return BANYAN_OK;
}

/* The time of the slowest rank. */
static banyan_status time_batch(measurement *of, uint32_t times, uint64_t *ns)
{
    banyan_mixed *mixed = of->mixed;
    uint64_t mine = 0;
    banyan_status status =
        mixed->ops->measure
            ? mixed->ops->measure(mixed->engine, tuning_measure_queue, of, times, &mine)
            : measure_here(of, times, &mine);
    RETURN_IF_FAILED(control_agree(mixed->world, status));
    return control_max(mixed->world, mine, ns);
}

static uint64_t tuning_measure_between(uint64_t number, uint64_t least, uint64_t most)
{
    return number < least ? least : number > most ? most : number;
}

/* Record a batch; no call takes 0 ns. */
static void take_time(measurement *of, uint64_t ns)
{
    of->least_ns = tuning_measure_between(ns, 1, of->least_ns);
    of->times = (uint32_t)tuning_measure_between(BATCH_NS / of->least_ns, 1, TIMES_MOST);
}

static int batches_for(const measurement *of)
{
    if (of->mixed->ops->measure)
        return of->least_ns < GRAPHS_NS ? GRAPHS_MOST : 1;
    return (int)tuning_measure_between(ALL_NS / ((of->times + 1) * of->least_ns), BATCHES_LEAST,
                                       BATCHES_MOST);
}

banyan_status measure_batch(measurement *of)
{
    uint64_t ns;
    RETURN_IF_FAILED(time_batch(of, of->times, &ns));
    take_time(of, ns);
    return BANYAN_OK;
}

banyan_status measure_begin(measurement *of)
{
    banyan_mixed *mixed = of->mixed;
    mixed_call checked;
    RETURN_IF_FAILED(control_agree(
        mixed->world, mixed_check_call(mixed, of->op, of->input, of->output, of->mode, &checked)));
    if (mode_is_nccl(of->mode)) /* nothing can be opened during a capture */
        RETURN_IF_FAILED(collectives_start_nccl(mixed, of->mode));
    /* The first calls open and load things and find peers asleep, so a second batch measures the
     * time. */
    of->times = 1;
    of->least_ns = UINT64_MAX;
    for (int i = 0; i < (mixed->ops->measure ? 1 : 2); i++)
        RETURN_IF_FAILED(measure_batch(of));
    of->batches = batches_for(of);
    of->least_ns = UINT64_MAX;
    return BANYAN_OK;
}

banyan_status banyan_mixed_measure(banyan_mixed *mixed, banyan_mixed_op op, const DLTensor *input,
                                   const DLTensor *output, banyan_mixed_mode mode, uint64_t *ns)
{
    RETURN_IF_NULL(mixed);
    if (!mixed->has_memory)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: a mixed collective is measured before its memory is there "
                         "(banyan_mixed_init_virtual_memory)",
                         mixed->rank);
    RETURN_IF_FAILED(mixed_check_awake(mixed));
    CONTROL_CALL_WITHIN(mixed->world, __func__, mixed->timeout);
    measurement of = {.mixed = mixed, .op = op, .mode = mode, .input = input, .output = output};
    banyan_status status = control_enter(mixed->world);
    if (status == BANYAN_OK)
        status = control_agree(mixed->world, ns ? BANYAN_OK : error_null(__func__, "ns"));
    if (status == BANYAN_OK)
        status = measure_begin(&of);
    for (int i = 0; i < of.batches && status == BANYAN_OK; i++)
        status = measure_batch(&of);
    if (status != BANYAN_OK)
        return mixed_stop_groups(mixed, status);
    *ns = of.least_ns;
    return BANYAN_OK;
}
