/* The table of built-in algorithms, and their compilation. */
#ifndef COLLECTIVE_ALGORITHMS_ALGORITHMS_H
#define COLLECTIVE_ALGORITHMS_ALGORITHMS_H

#include "collective/algorithms/algorithm.h"

extern const algorithm_entry algorithm_table[];
extern const size_t algorithm_table_count;

/* NOT_FOUND if no algorithm has this name. */
banyan_status algorithm_find(const char *name, const algorithm_entry **entry);

/* Check that it can be built for these parameters. INVALID, with the reason, if not. */
banyan_status algorithm_check(const algorithm_entry *entry, const banyan_algorithm_params *params);

#endif
