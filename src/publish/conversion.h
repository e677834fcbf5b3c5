/* The conversion of a trainer's tensors to the format that is published.
 *
 * A reshard with a transform fills memory of the publication, in steps that bound it: each step
 * fills some of the published tensors, which are then compared with the copy and may be
 * overwritten. All ranks take the same number of steps. */
#ifndef PUBLISH_CONVERSION_H
#define PUBLISH_CONVERSION_H

#include "copy/strided/strided.h"
#include "core/containers.h"
#include "publish/device.h"

struct conversion_step {
    ARRAY(size_t) filled;  /* the published tensors that the reshard fills */
    ARRAY(size_t) all;     /* those, and their scales */
    banyan_layout *layout; /* of `filled` */
    banyan_reshard_plan *plan;
    banyan_tensors *set;
};

struct conversion {
    banyan_world *world;
    banyan_transform *transform;
    banyan_layout *source; /* of the tensors that the caller passes */
    const banyan_layout *published;
    size_t *scales_of;  /* of each published tensor (scales.h) */
    size_t bound_count; /* tensors whose scales, if any, are bound to the transform */
    uint64_t *offsets;  /* of each published tensor in `memory` */
    ARRAY(struct conversion_step) steps;
    uint64_t memory_bytes;
    /* From the first run on: */
    banyan_memory *memory;
    banyan_copy_service *service;
};

/* Plan the conversion from `source` to `published`, each NULL for a rank that holds none, which
 * outlives it. `suffix` makes the names of scales. A step fills at most about `step_bytes` bytes.
 * Collective. Errors: those of banyan_reshard_plan_create and of scales_find; INVALID (the
 * transform has scales already, or a tensor with scales is not converted); UNSUPPORTED (a published
 * tensor takes the type of its source). */
banyan_status conversion_open(banyan_world *world, const banyan_layout *source,
                              const banyan_layout *published, banyan_transform *transform,
                              const char *suffix, uint64_t step_bytes, struct conversion **opened);
void conversion_close(struct conversion *conversion);

/* Make the memory that is filled, on the device of the tensors, unless it is there. Collective. */
banyan_status conversion_prepare(struct conversion *conversion,
                                 const struct publish_device *device);

/* Fill the tensors of a step, after the work that the device's stream has. Return when they can be
 * read. Collective. */
banyan_status conversion_run(struct conversion *conversion, size_t step,
                             const banyan_tensors *tensors, const struct publish_device *device);

/* View a published tensor of the step that ran last. */
strided_view conversion_view(const struct conversion *conversion, size_t tensor);

#endif
