/* The built-in transforms on a device: its copy service applies them on the way. */
#ifndef RESHARD_TRANSFORM_DEVICE_H
#define RESHARD_TRANSFORM_DEVICE_H

#include <banyan/copy.h>
#include <banyan/transform.h>

#include "core/containers.h"

/* Parts of a task as operations of the service. Both ends have equal parts except for the tensors.
 */
typedef struct transform_parts {
    DLTensor tensors[BANYAN_TRANSFORM_MAX_PARTS];
    uint32_t flags[BANYAN_TRANSFORM_MAX_PARTS]; /* BANYAN_COPY_OP_… */
    int count;
} transform_parts;

/* True if banyan_cast_create or banyan_mxfp8_create made it. */
bool transform_runs_on_devices(const banyan_transform *transform);

/* Set the parts to send, or to receive. Shapes are allocated from `dims`. UNSUPPORTED, naming
 * tensor and box, for conversions that only the host does: reading MXFP8 back, blocks that are cut
 * or not whole, and swizzled scales of boxes that are not whole tiles. */
banyan_status transform_parts_on_device(const banyan_transform *transform,
                                        const banyan_transform_task *task, bool is_send,
                                        arena *dims, transform_parts *parts);

#endif
