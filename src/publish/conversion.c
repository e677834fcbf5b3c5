#include "publish/conversion.h"

#include <stdlib.h>

#include "publish/scales.h"
#include "reshard/layout/box.h"
#include "reshard/layout/layout.h"
#include "reshard/transform/object.h"
#include "world/control.h"

#define ALIGNMENT ((uint64_t)256)

/* ---- steps ---- */

/* Return the bytes of a tensor, which a checked layout has bounded. */
static uint64_t published_bytes(const banyan_local_tensor *tensor)
{
    uint64_t bytes = 0;
    (void)shape_bytes(tensor->ndim, tensor->shape, banyan_dtype_bytes(tensor->dtype), &bytes);
    return bytes;
}

static uint64_t conversion_aligned_bytes(const struct conversion *made, size_t tensor)
{
    uint64_t bytes = published_bytes(banyan_layout_tensor(made->published, tensor));
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Mark the tensors that are scales of others. */
static bool *mark_scales(const struct conversion *made, size_t count)
{
    bool *is_scales = alloc_zeroed(count, sizeof *is_scales, "a list of scales");
    for (size_t i = 0; is_scales && i < count; i++) {
        if (made->scales_of[i] != NO_SCALES)
            is_scales[made->scales_of[i]] = true;
    }
    return is_scales;
}

static banyan_status conversion_make_steps(struct conversion *made, uint64_t step_bytes)
{
    size_t count = banyan_layout_tensor_count(made->published);
    uint64_t at = 0;
    made->offsets = alloc_zeroed(count, sizeof *made->offsets, "a conversion");
    bool *is_scales = made->offsets ? mark_scales(made, count) : NULL;
    RETURN_IF_NO_MEMORY(is_scales);
    bool fits = true;
    for (size_t i = 0; i < count && fits; i++) {
        size_t scales = made->scales_of[i];
        if (is_scales[i])
            continue;
        uint64_t bytes = conversion_aligned_bytes(made, i), scales_bytes = 0;
        if (scales != NO_SCALES)
            scales_bytes = conversion_aligned_bytes(made, scales);
        if (made->steps.count == 0 || (at > 0 && at + bytes + scales_bytes > step_bytes)) {
            fits = array_push(&made->steps, (struct conversion_step){0});
            at = 0;
        }
        struct conversion_step *step = fits ? &made->steps.data[made->steps.count - 1] : NULL;
        fits = fits && array_push(&step->filled, i) && array_push(&step->all, i) &&
               (scales == NO_SCALES || array_push(&step->all, scales));
        made->offsets[i] = at;
        if (scales != NO_SCALES)
            made->offsets[scales] = at + bytes;
        at += bytes + scales_bytes;
        made->memory_bytes = at > made->memory_bytes ? at : made->memory_bytes;
    }
    free(is_scales);
    return fits ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

/* ---- open ---- */

static DLTensor describe_tensor(const struct conversion *made, size_t tensor,
                                const struct publish_device *device)
{
    const banyan_local_tensor *local = banyan_layout_tensor(made->published, tensor);
    char *memory = made->memory ? banyan_memory_local(made->memory) : NULL;
    return (DLTensor){.data = memory ? memory + made->offsets[tensor] : NULL,
                      .device = device ? publish_device_place(device) : BANYAN_HOST,
                      .ndim = local->ndim,
                      .dtype = local->dtype,
                      .shape = (int64_t *)local->shape};
}

/* Reserve the transform: no other publication can bind scales to these names. */
static banyan_status reserve_scales(struct conversion *made)
{
    for (size_t i = 0; i < banyan_layout_tensor_count(made->published); i++, made->bound_count++) {
        const char *name = banyan_layout_tensor(made->published, i)->name;
        if (made->scales_of[i] == NO_SCALES)
            continue;
        if (mxfp8_is_bound(made->transform, name))
            return error_set(BANYAN_ERR_INVALID,
                             "the transform of a publication has scales for local tensor \"%s\" "
                             "already: it is used by this publication alone, which binds its own",
                             name);
        DLTensor scales = describe_tensor(made, made->scales_of[i], NULL);
        RETURN_IF_FAILED(banyan_mxfp8_bind_scales(made->transform, name, &scales));
    }
    return BANYAN_OK;
}

static banyan_status conversion_open_locally(struct conversion *made, const banyan_layout *source,
                                             const char *suffix, uint64_t step_bytes)
{
    RETURN_IF_FAILED(layout_copy(source, NULL, &made->source));
    RETURN_IF_FAILED(banyan_layout_check(made->published));
    RETURN_IF_FAILED(scales_find(made->published, made->transform, suffix, &made->scales_of));
    RETURN_IF_FAILED(reserve_scales(made));
    RETURN_IF_FAILED(conversion_make_steps(made, step_bytes));
    for (size_t i = 0; i < made->steps.count; i++) {
        struct conversion_step *step = &made->steps.data[i];
        RETURN_IF_FAILED(
            layout_select(made->published, step->filled.data, step->filled.count, &step->layout));
    }
    return BANYAN_OK;
}

/* Check what the layouts alone do not tell: whether tensors with scales are converted. */
static banyan_status conversion_check_step(const struct conversion *made,
                                           const struct conversion_step *step)
{
    const banyan_transform *transform = made->transform;
    for (size_t i = 0; i < step->filled.count; i++) {
        const banyan_local_tensor *planned = banyan_reshard_plan_tensor(step->plan, i);
        const banyan_local_tensor *local = banyan_layout_tensor(step->layout, i);
        if (!banyan_dtype_equal(planned->dtype, local->dtype))
            return error_set(BANYAN_ERR_UNSUPPORTED,
                             "local tensor \"%s\" is published in %s, as a persistent buffer, and "
                             "the trainer has it in %s: publish it in that type",
                             local->name, banyan_dtype_name(local->dtype),
                             banyan_dtype_name(planned->dtype));
    }
    for (size_t i = 0; i < banyan_reshard_plan_recv_count(step->plan); i++) {
        const banyan_transfer *transfer = banyan_reshard_plan_recv(step->plan, i);
        size_t tensor =
            (size_t)banyan_layout_piece(step->layout, transfer->destination_piece)->tensor;
        bool has_scales = made->scales_of[step->filled.data[tensor]] != NO_SCALES;
        bool converts = transform && transform->should_transform(transform->context, transfer);
        if (has_scales && !converts)
            return error_set(BANYAN_ERR_INVALID,
                             "local tensor \"%s\" is published with scales, and the transform does "
                             "not convert \"%s\" from %s: leave its name out of the transform's "
                             "options",
                             banyan_layout_tensor(step->layout, tensor)->name, transfer->name,
                             banyan_dtype_name(transfer->source_dtype));
    }
    return BANYAN_OK;
}

/* Plan the steps. A rank with fewer steps than others takes part in theirs. */
static banyan_status conversion_plan(struct conversion *made)
{
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.transform = made->transform;
    uint64_t steps = made->steps.count;
    RETURN_IF_FAILED(control_max(made->world, steps, &steps));
    banyan_status status =
        array_reserve(&made->steps, steps - made->steps.count) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    RETURN_IF_FAILED(control_agree(made->world, status));
    while (made->steps.count < steps)
        made->steps.data[made->steps.count++] = (struct conversion_step){0};
    const banyan_layout *source =
        banyan_layout_tensor_count(made->source) > 0 ? made->source : NULL;
    for (size_t i = 0; i < steps; i++) {
        struct conversion_step *step = &made->steps.data[i];
        RETURN_IF_FAILED(
            banyan_reshard_plan_create(source, step->layout, made->world, &options, &step->plan));
        RETURN_IF_FAILED(control_agree(made->world, conversion_check_step(made, step)));
    }
    return BANYAN_OK;
}

banyan_status conversion_open(banyan_world *world, const banyan_layout *source,
                              const banyan_layout *published, banyan_transform *transform,
                              const char *suffix, uint64_t step_bytes, struct conversion **opened)
{
    struct conversion *made = alloc_zeroed(1, sizeof *made, "a conversion");
    banyan_status status = made ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    if (made) {
        *made = (struct conversion){.world = world, .transform = transform, .published = published};
        status = conversion_open_locally(made, source, suffix, step_bytes);
    }
    status = control_agree(world, status);
    if (status == BANYAN_OK)
        status = conversion_plan(made);
    if (status == BANYAN_OK) {
        *opened = made;
        return BANYAN_OK;
    }
    error_kept kept = error_keep(status);
    conversion_close(made);
    return error_again(&kept);
}

/* ---- memory ---- */

/* Free what the first run made. */
static void conversion_release(struct conversion *conversion)
{
    for (size_t i = 0; i < conversion->steps.count; i++) {
        struct conversion_step *step = &conversion->steps.data[i];
        if (step->plan)
            banyan_reshard_plan_release(step->plan);
        banyan_tensors_destroy(step->set);
        step->set = NULL;
    }
    banyan_copy_service_close(conversion->service);
    conversion->service = NULL;
    banyan_memory_free(conversion->memory);
    conversion->memory = NULL;
}

void conversion_close(struct conversion *conversion)
{
    if (!conversion)
        return;
    conversion_release(conversion);
    for (size_t i = 0; i < conversion->bound_count; i++) {
        if (conversion->scales_of[i] != NO_SCALES)
            (void)banyan_mxfp8_bind_scales(
                conversion->transform, banyan_layout_tensor(conversion->published, i)->name, NULL);
    }
    for (size_t i = 0; i < conversion->steps.count; i++) {
        struct conversion_step *step = &conversion->steps.data[i];
        banyan_reshard_plan_destroy(step->plan);
        banyan_layout_destroy(step->layout);
        array_free(&step->filled);
        array_free(&step->all);
    }
    array_free(&conversion->steps);
    free(conversion->offsets);
    free(conversion->scales_of);
    banyan_layout_destroy(conversion->source);
    free(conversion);
}

/* Describe the memory as sets of tensors, and bind the scales in it. */
static banyan_status make_sets(struct conversion *conversion, const struct publish_device *device)
{
    for (size_t i = 0; i < conversion->steps.count; i++) {
        struct conversion_step *step = &conversion->steps.data[i];
        size_t count = step->filled.count;
        if (count == 0)
            continue;
        DLTensor *tensors = alloc_zeroed(count, sizeof *tensors, "the tensors of a conversion");
        RETURN_IF_NO_MEMORY(tensors);
        for (size_t k = 0; k < count; k++)
            tensors[k] = describe_tensor(conversion, step->filled.data[k], device);
        banyan_status status = banyan_tensors_create(step->layout, tensors, count, &step->set);
        free(tensors);
        RETURN_IF_FAILED(status);
    }
    for (size_t i = 0; i < banyan_layout_tensor_count(conversion->published); i++) {
        if (conversion->scales_of[i] == NO_SCALES)
            continue;
        DLTensor scales = describe_tensor(conversion, conversion->scales_of[i], device);
        RETURN_IF_FAILED(banyan_mxfp8_bind_scales(
            conversion->transform, banyan_layout_tensor(conversion->published, i)->name, &scales));
    }
    return BANYAN_OK;
}

banyan_status conversion_prepare(struct conversion *conversion, const struct publish_device *device)
{
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    if (conversion->service)
        return BANYAN_OK;
    options.device = publish_device_place(device);
    banyan_status status = banyan_memory_alloc_on(conversion->world, options.device,
                                                  conversion->memory_bytes, &conversion->memory);
    if (status == BANYAN_OK)
        status = control_agree(conversion->world, make_sets(conversion, device));
    if (status == BANYAN_OK)
        status = banyan_copy_service_open(conversion->world, NULL, &options, &conversion->service);
    error_kept kept = error_keep(status);
    if (status != BANYAN_OK)
        conversion_release(conversion);
    return error_again(&kept);
}

/* ---- run ---- */

banyan_status conversion_run(struct conversion *conversion, size_t number,
                             const banyan_tensors *tensors, const struct publish_device *device)
{
    const struct conversion_step *step = &conversion->steps.data[number];
    bool on_host = publish_device_is_host(device);
    RETURN_IF_FAILED(banyan_reshard_execute(
        step->plan, (banyan_tensors *)tensors, step->set, conversion->service, conversion->world,
        conversion->transform, on_host ? NULL : device->stream));
    if (on_host)
        return BANYAN_OK;
    banyan_status status = publish_device_ready(device);
    if (status == BANYAN_OK)
        status = banyan_copy_service_check(conversion->service);
    return control_agree(conversion->world, status);
}

strided_view conversion_view(const struct conversion *conversion, size_t tensor)
{
    const banyan_local_tensor *local = banyan_layout_tensor(conversion->published, tensor);
    char *memory = banyan_memory_local(conversion->memory);
    size_t elem_bytes = banyan_dtype_bytes(local->dtype);
    return strided_view_dense(memory ? memory + conversion->offsets[tensor] : NULL, elem_bytes,
                              published_bytes(local) / elem_bytes);
}
