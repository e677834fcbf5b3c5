/* Patterns of tensor names: * (any run of characters without a dot), {layer} and {expert}
 * (numbers), ** (any run of characters). Templates make names from the captures of a pattern. */
#ifndef RESHARD_MODEL_GLOB_H
#define RESHARD_MODEL_GLOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GLOB_MAX_TOKENS 16
#define GLOB_MAX_STARS 4

typedef enum glob_kind { GLOB_TEXT, GLOB_LAYER, GLOB_EXPERT, GLOB_STAR, GLOB_ANY } glob_kind;

typedef struct glob_token {
    glob_kind kind;
    const char *text; /* GLOB_TEXT: in the pattern */
    size_t bytes;
} glob_token;

typedef struct glob {
    glob_token tokens[GLOB_MAX_TOKENS];
    int count;
} glob;

typedef struct glob_captures {
    int64_t layer, expert; /* -1: not in the pattern */
    const char *stars[GLOB_MAX_STARS];
    size_t star_bytes[GLOB_MAX_STARS];
    int star_count;
} glob_captures;

/* Compile a pattern, which must outlive the glob. Returns NULL, or a message about the mistake. */
const char *glob_compile(const char *pattern, glob *compiled);

/* True if the pattern matches all of these bytes. */
bool glob_match(const glob *compiled, const char *name, size_t bytes, glob_captures *captures);

/* Numbers beside the captures that a template may name: the positions of a layer and an expert on
 * this rank. */
typedef struct glob_local {
    int64_t layer, expert;
} glob_local;

/* Return why a template does not fit the names that this pattern matches; NULL: it fits. `experts`:
 * it may name experts even if the pattern does not. */
const char *glob_check_template(const char *text, const glob *pattern, bool experts);

/* Fill in {layer}, {expert}, {local_layer}, {local_expert} and each * in order. False when the
 * result does not fit `bytes`. */
bool glob_expand(const char *text, const glob_captures *captures, const glob_local *local,
                 char *name, size_t bytes);

#endif
