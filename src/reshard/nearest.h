/* Names that somebody may have meant. */
#ifndef RESHARD_NEAREST_H
#define RESHARD_NEAREST_H

#include <stddef.h>

/* Characters to insert, delete, replace or swap with their neighbour until `a` is `b`; `limit` when
 * there are as many or more. */
int names_distance(const char *a, const char *b, int limit);

/* The distance from which on a name is no help for this one: a third of its length, at most 16. */
int names_limit(const char *name);

#endif
