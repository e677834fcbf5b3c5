#include "reshard/move.h"

#include <stdlib.h>
#include <string.h>

#include "cli/clock.h"
#include "core/status.h"
#include "run/measure.h"

#define POISON 0xa5

uint64_t move_tensor_elems(const DLTensor *tensor)
{
    uint64_t elems = 1;
    for (int k = 0; k < tensor->ndim; k++)
        elems *= (uint64_t)tensor->shape[k];
    return elems;
}

uint64_t move_tensor_bytes(const DLTensor *tensor)
{
    return move_tensor_elems(tensor) * banyan_dtype_bytes(tensor->dtype);
}

static banyan_status make_layouts(const job_spec *spec, const char *transform, move *made)
{
    RETURN_IF_FAILED(banyan_layout_create(&made->source));
    RETURN_IF_FAILED(banyan_layout_create(&made->plain));
    job_spec_layouts(spec, made->rank, made->source, made->plain);
    made->destination = made->plain;
    if (!transform)
        return banyan_cast_create(NULL, &made->cast);
    RETURN_IF_FAILED(mxfp8_target_create(made->plain, transform, &made->target));
    made->destination = made->target.layout;
    return BANYAN_OK;
}

static const banyan_transform *reshard_move_transform_of(const move *made)
{
    return made->cast ? made->cast : made->target.transform;
}

#define MAX_SKIPS 64

/* The patterns of --skip, cut out of `text`. */
static size_t split_patterns(char *text, const char *patterns[MAX_SKIPS])
{
    size_t count = 0;
    char *rest = text;
    while (count < MAX_SKIPS && text && (patterns[count] = strtok_r(rest, ",", &rest)))
        count++;
    return count;
}

static banyan_status reshard_move_make_plan(const job_spec *spec, const move_options *how,
                                            const char *const *skip, size_t skip_count, move *made)
{
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.skip = skip;
    options.skip_count = skip_count;
    options.checksums = how->checksums;
    options.require_whole_source = !spec->partial_source;
    options.transform = reshard_move_transform_of(made);
    RETURN_IF_FAILED(banyan_world_barrier(made->world));
    interval planning = {.began = clock_now_s()};
    RETURN_IF_FAILED(banyan_reshard_plan_create(made->source, made->destination, made->world,
                                                &options, &made->plan));
    planning.ended = clock_now_s();
    return measure_durations(made->world, &planning, 1, &made->plan_s);
}

banyan_status move_prepare(const job_spec *spec, const move_options *options, int rank, move *made)
{
    *made = (move){.rank = rank};
    RETURN_IF_FAILED(banyan_world_open(NULL, &made->world));
    RETURN_IF_FAILED(make_layouts(spec, options->transform, made));
    const char *patterns[MAX_SKIPS];
    char *skip = spec->skip ? strdup(spec->skip) : NULL;
    banyan_status status =
        reshard_move_make_plan(spec, options, patterns, split_patterns(skip, patterns), made);
    free(skip);
    RETURN_IF_FAILED(status);
    RETURN_IF_FAILED(banyan_copy_service_open(made->world, options->backend, NULL, &made->service));
    banyan_world *shared = options->ordinary_memory ? NULL : made->world;
    RETURN_IF_FAILED(banyan_tensors_alloc(made->source, shared, &made->source_tensors));
    return banyan_tensors_alloc_planned(made->plan, shared, &made->destination_tensors);
}

banyan_status move_execute(move *prepared)
{
    return banyan_reshard_execute(prepared->plan, prepared->source_tensors,
                                  prepared->destination_tensors, prepared->service, prepared->world,
                                  reshard_move_transform_of(prepared), NULL);
}

void move_poison(move *prepared)
{
    for (size_t i = 0; i < banyan_tensors_count(prepared->destination_tensors); i++) {
        const DLTensor *tensor = banyan_tensors_get(prepared->destination_tensors, i);
        uint64_t bytes = move_tensor_bytes(tensor);
        if (bytes > 0)
            memset((char *)tensor->data + tensor->byte_offset, POISON, bytes);
    }
}

int move_end(move *made, banyan_status status, failure *failed)
{
    if (status != BANYAN_OK)
        failure_note(failed, made->rank, status);
    banyan_tensors_destroy(made->destination_tensors);
    banyan_tensors_destroy(made->source_tensors);
    banyan_reshard_plan_destroy(made->plan);
    banyan_copy_service_close(made->service);
    mxfp8_target_destroy(&made->target);
    banyan_transform_destroy(made->cast);
    banyan_layout_destroy(made->plain);
    banyan_layout_destroy(made->source);
    if (status == BANYAN_OK && (status = banyan_world_close(made->world)) != BANYAN_OK)
        failure_note(failed, made->rank, status);
    return status == BANYAN_OK ? 0 : 1;
}
