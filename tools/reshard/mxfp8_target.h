/* A destination whose matrices are MXFP8, and scalar arithmetic that checks them. */
#ifndef TOOLS_MXFP8_TARGET_H
#define TOOLS_MXFP8_TARGET_H

#include <banyan/transform.h>

#include "reshard/pattern.h"

typedef struct mxfp8_target {
    banyan_layout *layout; /* as the plain one, with F8_E4M3 for every matrix of BF16 or F32 */
    banyan_transform *transform;
    DLTensor *scales; /* of each local tensor; data NULL: none */
    size_t count;
} mxfp8_target;

/* Add everything of `plain` to an empty layout, with matrices in F8_E4M3. */
banyan_status mxfp8_target_convert(const banyan_layout *plain, banyan_layout *made);

/* Create the transform that `name` says: "mxfp8", or "mxfp8-at-sender". */
banyan_status mxfp8_target_transform(const char *name, banyan_transform **made);

/* `plain` is the destination as it would be without the transform, which `name` says. */
banyan_status mxfp8_target_create(const banyan_layout *plain, const char *name,
                                  mxfp8_target *target);
void mxfp8_target_destroy(mxfp8_target *target);

/* Compare elements and scales of the i-th local tensor with what the pattern's values give, block
 * by block; `wrong` counts blocks. Only for tensors with scales. */
banyan_status mxfp8_target_check(const mxfp8_target *target, const banyan_layout *plain,
                                 const DLTensor *received, size_t i, pattern_result *result);

#endif
