/* Find the name that a misspelt one may stand for.
 *
 * This file depends on nothing else of Banyan: the library and the command line are both built with
 * it. */
#ifndef CORE_NEAREST_H
#define CORE_NEAREST_H

#include <stddef.h>

/* Return the number of characters to insert, delete, replace or swap with their neighbour to turn
 * `a` into `b`; at most `limit`. */
int names_distance(const char *a, const char *b, int limit);

/* Return the distance from which a name is not a useful suggestion: a third of its length, at
 * most 16.
 */
int names_limit(const char *name);

/* A search of a list for the name nearest to `wanted`. `nearest` is the first of the nearest names
 * so far; NULL while none is closer than names_limit. */
typedef struct names_search {
    const char *wanted, *nearest;
    int limit;
} names_search;

names_search names_search_for(const char *wanted);
void names_search_try(names_search *search, const char *name);

#endif
