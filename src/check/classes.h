/* Message sizes that a plan is checked for: one of every class in which chunks, loops or groups
 * behave differently. */
#ifndef CHECK_CLASSES_H
#define CHECK_CLASSES_H

#include "core/containers.h"
#include "plan/geometry/geometry.h"

typedef struct size_class {
    uint64_t message_bytes;
    plan_geometry geometry;
    bool whole; /* no chunk is clipped or empty */
} size_class;

typedef ARRAY(size_class) size_classes;

/* Bytes of an element: sizes are multiples of it. Four bytes, like most reduced elements and like
 * packets, unless the plan's alignment or the unit of a loop that reduces breaks those. */
#define CLASS_ELEM_BYTES 4
size_t class_elem_bytes(const banyan_plan *plan);

/* Make the classes, ascending. `*skipped` counts classes with too many loop iterations: more than
 * one class may have, or so many that the classes up to it exceed `max_steps` steps in loops. */
banyan_status size_classes_make(const banyan_plan *plan, uint64_t max_steps, size_classes *made,
                                size_t *skipped);
/* Add a size that the caller names. INVALID: the plan cannot run at it. */
banyan_status size_classes_add(const banyan_plan *plan, uint64_t message_bytes, size_classes *made,
                               size_t *skipped);

#endif
