/* Which kind of Banyan's documents a file is, for those who were given another than they read. */
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
    /* Have no reader here. */
    JSON_TRACE,
    JSON_WEIGHT_MAP,
    JSON_KINDS
} json_kind;

/* As json_parse, or for plans json_parse_u64. FORMAT says so when the document is of another kind;
 * what is of none is the reader's to refuse. */
banyan_status json_parse_as(json_kind expected, const char *path, const char *text, size_t bytes,
                            json_t **root);

#endif
