/* Banyan: the transforms that come with it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_TRANSFORM_H
#define BANYAN_TRANSFORM_H

#include <banyan/reshard.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __cplusplus
}
#endif
#endif
