/* The scales of MXFP8 tensors that a publication has as tensors of their own. */
#ifndef PUBLISH_SCALES_H
#define PUBLISH_SCALES_H

#include <banyan/reshard.h>

/* In `scales_of`: the tensor has no scales. */
#define NO_SCALES SIZE_MAX

/* Find the scales of each local tensor that an MXFP8 transform fills: a local tensor of the same
 * name with the suffix. Any other transform, or NULL, has none. `*scales_of` has an entry for each
 * local tensor; the caller frees it. Errors: INVALID (type, shape or pieces of scales are not those
 * that belong to the elements; the message names both tensors), NOT_FOUND (a tensor has none). */
banyan_status scales_find(const banyan_layout *layout, const banyan_transform *transform,
                          const char *suffix, size_t **scales_of);

#endif
