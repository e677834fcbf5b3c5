/* Find the name that a misspelt one may stand for.
 *
 * Nothing else of Banyan is needed: the library and its command line are both built with this. */
#ifndef CORE_NEAREST_H
#define CORE_NEAREST_H

#include <stddef.h>

/* Characters to insert, delete, replace or swap with their neighbour until `a` is `b`; `limit` when
 * there are as many or more. */
int names_distance(const char *a, const char *b, int limit);

/* The distance from which on a name is no help for this one: a third of its length, at most 16. */
int names_limit(const char *name);

/* A search of a list for the name nearest to `wanted`. `nearest` is the first of the nearest names
 * so far, or NULL while none is below names_limit. */
typedef struct names_search {
    const char *wanted, *nearest;
    int limit;
} names_search;

names_search names_search_for(const char *wanted);
void names_search_try(names_search *search, const char *name);

#endif
