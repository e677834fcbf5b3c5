/* Dependencies of captured work, and orders that respect them: a graph need not run in the order
 * of its capture. */
#ifndef EMULATION_FRONTIER_H
#define EMULATION_FRONTIER_H

#include <stddef.h>
#include <stdint.h>

/* Nodes of a graph, by their numbers in the order of capture. Zeroed, it is empty. */
typedef struct frontier {
    size_t *nodes;
    size_t count;
} frontier;

void frontier_set(frontier *to, size_t node);
void frontier_add(frontier *to, const frontier *more);
void frontier_free(frontier *old);

/* `order[i]` is the i-th node to run; needs[n] are earlier than n. Among the possible next nodes,
 * `seed` chooses. */
void frontier_order(const frontier *needs, size_t count, uint64_t seed, size_t *order);

#endif
