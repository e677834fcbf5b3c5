/* Value maps: pieces whose local elements are computed from the global tensor's. */
#ifndef RESHARD_LAYOUT_VALUE_MAP_H
#define RESHARD_LAYOUT_VALUE_MAP_H

#include <banyan/reshard.h>

#include "core/text/json.h"

/* The flags of a piece that are value maps; a piece has one at most. */
#define VALUE_MAPS ((uint32_t)BANYAN_PIECE_NEGATIVE_EXP)
/* Names in rules and files, for messages. */
#define VALUE_MAP_NAMES "negative_exp"

/* Return the map's name in rules and files; NULL: `flags` has no map. */
const char *value_map_name(uint32_t flags);
/* Return the map's flag; 0: there is no such map. */
uint32_t value_map_find(const char *name);

/* Add to a piece's flags the member "map" of its JSON object, if it has one. FORMAT names the place
 * and the maps that exist. */
banyan_status value_map_read(json_path *path, const json_t *piece, uint32_t *flags);

/* Find the map that turns elements that a source keeps under `from` into those that a destination
 * keeps under `to`; 0 when they are equal. False: there is none. */
bool value_map_between(uint32_t from, uint32_t to, uint32_t *flag);

/* Compute every element of `destination` from that of `source`, in float32, rounded to nearest
 * even. Both are F32, F16 or BF16 in host memory, of any strides; no overlap. INVALID for another
 * type, MISMATCH for unequal element counts. */
banyan_status value_map_apply(uint32_t flag, const DLTensor *destination, const DLTensor *source);

/* Return the transform by which the receiver computes the map of a transfer that has one. */
const banyan_transform *value_map_transform(void);

#endif
