#include "support/random.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/containers.h"
#include "core/deadline.h"

uint64_t random_seed(void)
{
    static uint64_t seed;
    if (seed == 0) {
        const char *text = getenv("TEST_SEED");
        seed = text ? strtoull(text, NULL, 0) : time_now_ns() | 1;
        printf("TEST_SEED=%" PRIu64 "\n", seed);
        fflush(stdout);
    }
    return seed;
}

random_state random_from(uint64_t seed)
{
    return (random_state){seed};
}

uint64_t random_next(random_state *random)
{
    uint64_t z = random->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

int64_t random_between(random_state *random, int64_t low, int64_t high)
{
    return low + (int64_t)(random_next(random) % ((uint64_t)(high - low) + 1));
}

/* The top exponent bit of each 16-bit half is cleared: never NaN or infinity in bf16, f16 or
 * f32. */
void pattern_element(const char *name, uint64_t index, size_t elem_bytes, void *element)
{
    random_state random =
        random_from(hash_string(name, 0) ^ (index * UINT64_C(0x2545f4914f6cdd1d)));
    unsigned char *out = element;
    for (size_t done = 0; done < elem_bytes; done += 8) {
        uint64_t word = random_next(&random) & UINT64_C(0xbfffbfffbfffbfff);
        memcpy(out + done, &word, elem_bytes - done < 8 ? elem_bytes - done : 8);
    }
}
