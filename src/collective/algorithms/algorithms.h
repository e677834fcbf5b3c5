/* The built-in algorithms: their table, and how one is compiled. */
#ifndef COLLECTIVE_ALGORITHMS_ALGORITHMS_H
#define COLLECTIVE_ALGORITHMS_ALGORITHMS_H

#include "collective/algorithms/algorithm.h"

extern const algorithm_entry algorithm_table[];
extern const size_t algorithm_table_count;

/* NOT_FOUND for a name that is none of them. */
banyan_status algorithm_find(const char *name, const algorithm_entry **entry);

/* Can it be built for these parameters? INVALID with the reason when not. */
banyan_status algorithm_check(const algorithm_entry *entry, const banyan_algorithm_params *params);

#endif
