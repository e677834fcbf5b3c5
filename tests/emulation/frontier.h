/* What captured work waits for, and orders that respect it: a graph need not be run in the order in
 * which it was captured. */
#ifndef EMULATION_FRONTIER_H
#define EMULATION_FRONTIER_H

#include <stddef.h>
#include <stdint.h>

/* Nodes of a graph, by their numbers in the order of capture. Zeroed is empty. */
typedef struct frontier {
    size_t *nodes;
    size_t count;
} frontier;

void frontier_set(frontier *to, size_t node);
void frontier_add(frontier *to, const frontier *more);
void frontier_free(frontier *old);

/* `order[i]` is the node that comes i-th; needs[n] are earlier than n. Which of those that may come
 * next does is drawn from `seed`. */
void frontier_order(const frontier *needs, size_t count, uint64_t seed, size_t *order);

#endif
