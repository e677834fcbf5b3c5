/* Read steps from a trace. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/files.h"
#include "core/status.h"
#include "draw/picture.h"

/* Traces of simulations have proxies' lanes behind those of the thread blocks. */
#define PROXY_LANE 100000

static json_int_t picture_trace_number_of(const json_t *object, const char *key,
                                          json_int_t otherwise)
{
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) ? json_integer_value(value) : otherwise;
}

static bool is_step(const json_t *event)
{
    const char *phase = json_string_value(json_object_get(event, "ph"));
    return phase && strcmp(phase, "X") == 0;
}

/* Return the event's run; traces of simulations have one run and do not number it. */
static json_int_t run_of(const json_t *event)
{
    return picture_trace_number_of(json_object_get(event, "args"), "run", 0);
}

static json_int_t last_run(const json_t *events)
{
    size_t i;
    json_t *event;
    json_int_t last = 0;
    json_array_foreach(events, i, event)
    {
        if (is_step(event) && run_of(event) > last)
            last = run_of(event);
    }
    return last;
}

/* Check that the event belongs to this plan. */
static banyan_status check_step(const picture *of, const char *path, const json_t *event,
                                const picture_step *step)
{
    const char *name = json_string_value(json_object_get(event, "name"));
    const json_t *block = picture_block_of(of, step);
    if (!block || !name)
        return banyan_error_set(BANYAN_ERR_FORMAT,
                                "%s is not a trace of this plan, which has no thread block %d on a "
                                "rank %d",
                                path, step->thread_block, step->rank);
    if (step->operation >= 0 && !picture_op_of(of, step))
        return banyan_error_set(BANYAN_ERR_FORMAT,
                                "%s is not a trace of this plan: rank %d, thread block %d has no "
                                "operation %d",
                                path, step->rank, step->thread_block, step->operation);
    if (strcmp(picture_op_name(of, step), name) != 0)
        return banyan_error_set(
            BANYAN_ERR_FORMAT,
            "%s is not a trace of this plan: rank %d, thread block %d, operation "
            "%d is %s in the plan and %s in the trace",
            path, step->rank, step->thread_block, step->operation, picture_op_name(of, step), name);
    return BANYAN_OK;
}

static int picture_trace_index_of(const json_t *object, const char *key)
{
    json_int_t value = picture_trace_number_of(object, key, -1);
    return value < 0 || value > INT32_MAX ? -1 : (int)value;
}

static banyan_status take_event(picture *of, const char *path, const json_t *event)
{
    const json_t *args = json_object_get(event, "args");
    double began_us = json_number_value(json_object_get(event, "ts"));
    double took_us = json_number_value(json_object_get(event, "dur"));
    picture_step step = {.rank = picture_trace_index_of(event, "pid"),
                         .thread_block = picture_trace_index_of(event, "tid"),
                         .operation = picture_trace_index_of(args, "operation"),
                         .loop_operation = picture_trace_index_of(args, "loop_operation"),
                         .iteration = (uint64_t)picture_trace_number_of(args, "iteration", 0),
                         .began_s = began_us * 1e-6,
                         .ended_s = (began_us + (took_us > 0 ? took_us : 0)) * 1e-6,
                         .after = PICTURE_NONE};
    step.proxy = step.thread_block >= PROXY_LANE;
    step.thread_block -= step.proxy ? PROXY_LANE : 0;
    RETURN_IF_FAILED(check_step(of, path, event, &step));
    return picture_add_step(of, &step);
}

static int picture_trace_compare_ends(const void *a, const void *b)
{
    const picture_step *first = a, *second = b;
    if (first->ended_s != second->ended_s)
        return first->ended_s < second->ended_s ? -1 : 1;
    return first->began_s < second->began_s ? -1 : first->began_s > second->began_s;
}

static bool picture_trace_same_operation(const picture_step *a, const picture_step *b)
{
    return a->rank == b->rank && a->thread_block == b->thread_block && a->proxy == b->proxy &&
           a->operation == b->operation && a->loop_operation == b->loop_operation &&
           a->iteration == b->iteration;
}

static int picture_trace_compare_places(const void *a, const void *b)
{
    const picture_step *first = a, *second = b;
    if (first->rank != second->rank)
        return first->rank < second->rank ? -1 : 1;
    if (first->thread_block != second->thread_block)
        return first->thread_block < second->thread_block ? -1 : 1;
    if (first->proxy != second->proxy)
        return first->proxy ? 1 : -1;
    return first->began_s < second->began_s ? -1 : first->began_s > second->began_s;
}

/* An operation of several parts was recorded part by part; it is one step. */
static void join_parts(picture *of)
{
    size_t kept = 0;
    qsort(of->steps, of->step_count, sizeof *of->steps, picture_trace_compare_places);
    for (size_t i = 1; i < of->step_count; i++) {
        if (picture_trace_same_operation(&of->steps[kept], &of->steps[i]))
            of->steps[kept].ended_s = of->steps[i].ended_s;
        else
            of->steps[++kept] = of->steps[i];
    }
    of->step_count = kept + 1;
    qsort(of->steps, of->step_count, sizeof *of->steps, picture_trace_compare_ends);
}

/* Shift times, which are those of a clock, to begin at 0. */
static void begin_at_zero(picture *of)
{
    double first = of->steps[0].began_s;
    for (size_t i = 1; i < of->step_count; i++)
        first = of->steps[i].began_s < first ? of->steps[i].began_s : first;
    for (size_t i = 0; i < of->step_count; i++) {
        of->steps[i].began_s -= first;
        of->steps[i].ended_s -= first;
    }
}

static banyan_status take_events(picture *of, const char *path, const json_t *events)
{
    size_t i;
    json_t *event;
    json_int_t run = last_run(events);
    json_array_foreach(events, i, event)
    {
        if (is_step(event) && run_of(event) == run)
            RETURN_IF_FAILED(take_event(of, path, event));
    }
    if (of->step_count == 0)
        return banyan_error_set(BANYAN_ERR_FORMAT,
                                "%s has no operations: banyan run --trace and banyan simulate "
                                "--trace write traces",
                                path);
    join_parts(of);
    begin_at_zero(of);
    return BANYAN_OK;
}

banyan_status picture_take_trace(picture *of, const char *path)
{
    json_error_t error;
    json_t *root = json_file_load(path, &error);
    if (!root)
        return banyan_error_set(BANYAN_ERR_FORMAT, "cannot read the trace %s: %s", path,
                                error.text);
    banyan_status status = take_events(of, path, json_object_get(root, "traceEvents"));
    json_decref(root);
    return status;
}
