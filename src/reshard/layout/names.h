/* Strings kept once, for as long as their pool lives: tensor names, which come by the ten thousand
 * and mostly twice. */
#ifndef RESHARD_LAYOUT_NAMES_H
#define RESHARD_LAYOUT_NAMES_H

#include "core/containers/map.h"

/* Zeroed is empty. */
typedef struct names {
    map known;
    struct names_block *blocks;
} names;

/* The pool's own copy of the text, the same for equal texts. NULL, with the error set, when memory
 * ran out. */
const char *names_keep(names *pool, const char *text);
void names_free(names *pool);

#endif
