/* Base of the built-in transforms. */
#ifndef RESHARD_TRANSFORM_OBJECT_H
#define RESHARD_TRANSFORM_OBJECT_H

#include <banyan/reshard.h>
#include <banyan/transform.h>

#include "core/containers.h"
#include "reshard/run/memory.h"

/* The table comes first, so that its address is the object's. */
typedef struct transform_object {
    banyan_transform table;
    char **globs; /* names of the global tensors that it takes; none: all */
    size_t glob_count;
    void (*clear)(struct transform_object *object); /* frees its own members; NULL: it has none */
} transform_object;

/* Allocate an object of `bytes`, zeroed behind the base, for banyan_transform_destroy. The table's
 * context becomes the object. */
banyan_status transform_create(size_t bytes, const banyan_transform *table,
                               const char *const *globs, size_t glob_count,
                               void (*clear)(transform_object *object), void **made);
bool transform_accepts(const transform_object *object, const char *name);

/* True if banyan_cast_create, or banyan_mxfp8_create, made it. */
bool transform_is_cast(const banyan_transform *transform);
bool transform_is_mxfp8(const banyan_transform *transform);

/* Return the rule of an MXFP8 transform, and the scales bound to a task's local tensor, wherever
 * they lie. NOT_FOUND when there are none. */
struct mxfp8_scales;
banyan_mxfp8_rule mxfp8_rule_of(const banyan_transform *transform);
banyan_mxfp8_layout mxfp8_scales_layout_of(const banyan_transform *transform);
/* True if scales are bound to a local tensor of this name. */
bool mxfp8_is_bound(const banyan_transform *transform, const char *local_name);
banyan_status mxfp8_scales_of_task(const banyan_transform *transform,
                                   const banyan_transform_task *task, struct mxfp8_scales *scales,
                                   DLDevice *device);

/* Return the bytes that travel for a transfer: those of the type that its ends exchange, with MXFP8
 * scales. Tensors that the caller's own transform makes count in the source's type. */
uint64_t transform_wire_bytes(const banyan_transform *transform, const banyan_transfer *transfer);
uint64_t cast_wire_bytes(const banyan_transform *transform, const banyan_transfer *transfer);
uint64_t mxfp8_wire_bytes(const banyan_transform *transform, const banyan_transfer *transfer);

/* Allocate a dense tensor, with its shape, in scratch memory. */
banyan_status scratch_tensor(banyan_transform_scratch *scratch, DLDataType dtype, int ndim,
                             const int64_t *shape, DLTensor *tensor);

/* The memory behind banyan_transform_scratch_take, which holds the parts of tasks in flight. Zeroed
 * is empty. */
struct banyan_transform_scratch {
    run_memory *arena; /* source of memory, if not NULL; the memory stays with it */
    ARRAY(void *) blocks;
    uint64_t bytes; /* taken since the last release */
    /* While a run is prepared: bytes that the transform itself keeps, and their limit. */
    uint64_t kept_bytes, max_kept_bytes;
};

/* Free everything that was taken. The scratch can be used again. */
void transform_scratch_release(banyan_transform_scratch *scratch);

#endif
