/* JSON documents, with errors that say where. */
#ifndef CORE_TEXT_JSON_H
#define CORE_TEXT_JSON_H

#include <jansson.h>

#include <banyan/core.h>

#include "core/files/file.h"

/* Parse text; FORMAT says file, line and column. A key twice in one object is an error. */
banyan_status json_parse(const char *path, const char *text, size_t bytes, json_t **root);

/* The same for documents with integers up to 2^64 - 1, which jansson has no type for: those above
 * INT64_MAX become strings of their digits, as json_u64 reads them. */
banyan_status json_parse_u64(const char *path, const char *text, size_t bytes, json_t **root);

/* The line of a top-level key's first appearance, counted from 1; 0 when it is not found as it is
 * written. */
size_t json_line_of_key(const char *text, const char *key);

/* Where in a document a value stands: "ranks[2].src[0].shape". Steps are pushed and popped around
 * what they lead to. */
typedef struct json_path {
    const char *file;
    char text[256];
    size_t used;
} json_path;

size_t json_path_key(json_path *path, const char *key);
size_t json_path_index(json_path *path, size_t index);
/* Back to what a push returned. */
void json_path_pop(json_path *path, size_t mark);

/* FORMAT: "<file>: <path> <format…>". */
banyan_status json_path_fail(const json_path *path, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* FORMAT when the text, `what` of what `path` leads to, has control characters: it comes to a
 * terminal sooner or later, which a file from a stranger must not command. */
banyan_status json_path_check_text(const json_path *path, const char *what, const char *text);

/* Members of an object; FORMAT when they are missing or of another type, or an integer is out of
 * its range. */
banyan_status json_member(json_path *path, const json_t *object, const char *key, json_type type,
                          json_t **value);
banyan_status json_member_int(json_path *path, const json_t *object, const char *key, int64_t low,
                              int64_t high, int64_t *value);
banyan_status json_member_string(json_path *path, const json_t *object, const char *key,
                                 const char **value);
banyan_status json_member_bool(json_path *path, const json_t *object, const char *key, bool *value);
/* An integer that is not negative, in a document of json_parse_u64; `path` leads to it. */
banyan_status json_u64(const json_path *path, const json_t *value, uint64_t low, uint64_t high,
                       uint64_t *number);
banyan_status json_member_u64(json_path *path, const json_t *object, const char *key, uint64_t low,
                              uint64_t high, uint64_t *number);
/* An array of integers, at most `max`, into `values`. */
banyan_status json_ints(json_path *path, const json_t *array, int64_t low, int64_t high, size_t max,
                        int64_t *values, size_t *count);

#endif
