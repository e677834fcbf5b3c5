#include "reshard/transform/object.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

void banyan_transform_destroy(banyan_transform *transform)
{
    transform_object *object = (transform_object *)transform;
    if (object)
        object->destroy(object);
}

banyan_status name_filter_copy(const char *const *globs, size_t count, name_filter *filter)
{
    name_filter copy = {.globs = calloc(count + 1, sizeof *copy.globs)};
    if (!copy.globs)
        return error_no_memory(count * sizeof *copy.globs, "a transform's names");
    for (; copy.count < count; copy.count++) {
        copy.globs[copy.count] = strdup(globs[copy.count]);
        if (!copy.globs[copy.count]) {
            name_filter_free(&copy);
            return error_no_memory(strlen(globs[copy.count]) + 1, "a transform's names");
        }
    }
    *filter = copy;
    return BANYAN_OK;
}

void name_filter_free(name_filter *filter)
{
    for (size_t i = 0; i < filter->count; i++)
        free(filter->globs[i]);
    free(filter->globs);
    *filter = (name_filter){0};
}

bool name_filter_accepts(const name_filter *filter, const char *name)
{
    for (size_t i = 0; i < filter->count; i++) {
        if (fnmatch(filter->globs[i], name, 0) == 0)
            return true;
    }
    return filter->count == 0;
}

banyan_status scratch_tensor(banyan_transform_scratch *scratch, DLDataType dtype, int ndim,
                             const int64_t *shape, DLTensor *tensor)
{
    size_t elems = 1, bytes = banyan_dtype_bytes(dtype), dims = (size_t)ndim * sizeof *shape;
    for (int d = 0; d < ndim; d++) {
        if (__builtin_mul_overflow(elems, (size_t)shape[d], &elems))
            return error_no_memory(SIZE_MAX, "a transform's scratch");
    }
    if (__builtin_mul_overflow(bytes, elems, &bytes))
        return error_no_memory(SIZE_MAX, "a transform's scratch");
    void *data = banyan_transform_scratch_take(scratch, bytes);
    int64_t *own_shape = data ? banyan_transform_scratch_take(scratch, dims) : NULL;
    if (!own_shape)
        return BANYAN_ERR_NO_MEMORY;
    for (int d = 0; d < ndim; d++)
        own_shape[d] = shape[d];
    *tensor = (DLTensor){
        .data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = dtype, .shape = own_shape};
    return BANYAN_OK;
}
