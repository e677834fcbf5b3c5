/* Random numbers and data for tests: seeded, printed, reproducible with TEST_SEED. */
#ifndef TESTS_SUPPORT_RANDOM_H
#define TESTS_SUPPORT_RANDOM_H

#include <stddef.h>
#include <stdint.h>

/* TEST_SEED, else the clock; printed, so that a failure can be reproduced. Constant in a
 * process. */
uint64_t random_seed(void);

/* SplitMix64. */
typedef struct random_state {
    uint64_t state;
} random_state;

random_state random_from(uint64_t seed);
uint64_t random_next(random_state *random);
/* low ≤ result ≤ high */
int64_t random_between(random_state *random, int64_t low, int64_t high);

/* Element `index`'s value, as bytes, in the global tensor `name`: no wrong code produces it by
 * chance. Floating types get finite values. */
void pattern_element(const char *name, uint64_t index, size_t elem_bytes, void *element);

#endif
