/* What the built-in transforms have in common. */
#ifndef RESHARD_TRANSFORM_OBJECT_H
#define RESHARD_TRANSFORM_OBJECT_H

#include <banyan/transform.h>

/* The table comes first, so that its address is the object's. */
typedef struct transform_object {
    banyan_transform table;
    void (*destroy)(struct transform_object *object);
} transform_object;

/* Did banyan_cast_create, or banyan_mxfp8_create, make it? */
bool transform_is_cast(const banyan_transform *transform);
bool transform_is_mxfp8(const banyan_transform *transform);

/* Of one that banyan_mxfp8_create made: its rule, and the scales that are bound to the local tensor
 * of a task, wherever they lie. NOT_FOUND when there are none. */
struct mxfp8_scales;
banyan_mxfp8_rule mxfp8_rule_of(const banyan_transform *transform);
banyan_status mxfp8_scales_of_task(const banyan_transform *transform,
                                   const banyan_transform_task *task, struct mxfp8_scales *scales,
                                   DLDevice *device);

/* Globs of global tensors' names; none lets all pass. */
typedef struct name_filter {
    char **globs;
    size_t count;
} name_filter;

banyan_status name_filter_copy(const char *const *globs, size_t count, name_filter *filter);
void name_filter_free(name_filter *filter);
bool name_filter_accepts(const name_filter *filter, const char *name);

/* A dense tensor in scratch memory, its shape too. */
banyan_status scratch_tensor(banyan_transform_scratch *scratch, DLDataType dtype, int ndim,
                             const int64_t *shape, DLTensor *tensor);

#endif
