/* Recognize the kind of a Banyan document, to report a file of the wrong kind. */
#ifndef CORE_TEXT_JSON_KIND_H
#define CORE_TEXT_JSON_KIND_H

#include <jansson.h>

#include <banyan/core.h>

typedef enum json_kind {
    JSON_PLAN,
    JSON_TOPOLOGY,
    JSON_TENSORS,
    JSON_CASE,
    JSON_TUNING,
    JSON_MIXED_TUNING,
    JSON_LAYOUT,
    /* Recognized, but not read by json_parse_as. */
    JSON_TRACE,
    JSON_WEIGHT_MAP,
    JSON_KINDS
} json_kind;

/* Parse as json_parse does, or for plans as json_parse_u64 does. FORMAT, with both kinds, when the
 * document is of another kind. The caller refuses documents of no known kind. */
banyan_status json_parse_as(json_kind expected, const char *path, const char *text, size_t bytes,
                            json_t **root);

#endif
