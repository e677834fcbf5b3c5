/* JSON documents, with errors that name the place. */
#ifndef CORE_TEXT_JSON_H
#define CORE_TEXT_JSON_H

#include <jansson.h>

#include <banyan/core.h>

#include "core/files/file.h"

/* Parse text. FORMAT, with file, line and column. A key that appears twice in one object is an
 * error. */
banyan_status json_parse(const char *path, const char *text, size_t bytes, json_t **root);

/* Parse a document with integers up to 2^64 - 1, which jansson has no type for. Integers above
 * INT64_MAX become strings of their digits; json_u64 reads them. */
banyan_status json_parse_u64(const char *path, const char *text, size_t bytes, json_t **root);

/* Return the line of a top-level key's first appearance, from 1; 0 if the key is not found as
 * spelled. */
size_t json_line_of_key(const char *text, const char *key);

/* The path of a value in a document: "ranks[2].src[0].shape". Push a step before you descend, pop
 * it afterwards. */
typedef struct json_path {
    const char *file;
    char text[256];
    size_t used;
} json_path;

size_t json_path_key(json_path *path, const char *key);
size_t json_path_index(json_path *path, size_t index);
/* Return to the length that a push returned. */
void json_path_pop(json_path *path, size_t mark);

/* Set FORMAT: "<file>: <path> <format…>". */
banyan_status json_path_fail(const json_path *path, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* FORMAT when the text (`what` of the value at `path`) contains control characters. The text
 * reaches a terminal sooner or later, and a file from a stranger must not control it. */
banyan_status json_path_check_text(const json_path *path, const char *what, const char *text);

/* Get members of an object. FORMAT when a member is missing, has another type, or is an integer out
 * of range. */
banyan_status json_member(json_path *path, const json_t *object, const char *key, json_type type,
                          json_t **value);
banyan_status json_member_int(json_path *path, const json_t *object, const char *key, int64_t low,
                              int64_t high, int64_t *value);
banyan_status json_member_string(json_path *path, const json_t *object, const char *key,
                                 const char **value);
banyan_status json_member_bool(json_path *path, const json_t *object, const char *key, bool *value);
/* Read a non-negative integer, in a document of json_parse_u64; `path` leads to it. */
banyan_status json_u64(const json_path *path, const json_t *value, uint64_t low, uint64_t high,
                       uint64_t *number);
banyan_status json_member_u64(json_path *path, const json_t *object, const char *key, uint64_t low,
                              uint64_t high, uint64_t *number);
/* Read an element type by its name. FORMAT for another. */
banyan_status json_member_dtype(json_path *path, const json_t *object, DLDataType *dtype);
/* Read an array of at most `max` integers into `values`. */
banyan_status json_ints(json_path *path, const json_t *array, int64_t low, int64_t high, size_t max,
                        int64_t *values, size_t *count);

/* Read a member in this way. */
banyan_status json_member_ints(json_path *path, const json_t *object, const char *key, int64_t low,
                               int64_t high, size_t max, int64_t *values, size_t *count);
/* Read a member that is an array of exactly `count` integers. */
banyan_status json_member_ints_of(json_path *path, const json_t *object, const char *key,
                                  int64_t low, int64_t high, size_t count, int64_t *values);

/* The entries of an array, one after another: `while (json_list_next(&list))`. `path` leads to
 * `entry`, whose index is `i`, and after the last one to the object again. */
typedef struct json_list {
    json_path *path;
    json_t *array, *entry;
    size_t i, count, outer, inner;
} json_list;

/* Begin with a member of an object. FORMAT when it is missing or not an array. */
banyan_status json_list_begin(json_path *path, const json_t *object, const char *key,
                              json_list *list);
/* Begin with a member that may be missing or null: then there are no entries. */
banyan_status json_list_maybe(json_path *path, const json_t *object, const char *key,
                              json_list *list);
/* Begin with an array to which `path` leads, during the list and after it. NULL has no entries. */
json_list json_list_of(json_path *path, json_t *array);
bool json_list_next(json_list *list);

/* Make an array of integers; NULL when out of memory. */
json_t *json_of_ints(const int64_t *values, int count);

/* Kinds of documents, to report a file of the wrong kind. */
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
