/* Every destination gets the bytes, and nothing beside it changes. */
#include "support/test.h"

#include "channel/multi_copy.h"

#define PLACES 5
#define MARGIN 64

static void check_copies(random_state *random, size_t bytes, uint32_t count, multi_copy_way way)
{
    size_t room = bytes + 2 * MARGIN;
    char *memory[PLACES], *source = malloc(room);
    void *destinations[PLACES];
    size_t source_at = (size_t)random_between(random, 0, MARGIN);
    for (size_t i = 0; i < room; i++)
        source[i] = (char)(random_next(random) >> 13);
    for (uint32_t i = 0; i < count; i++) {
        memory[i] = malloc(room);
        memset(memory[i], 0x5a, room);
        destinations[i] = memory[i] + MARGIN + random_between(random, -8, 8);
    }
    uint32_t itself = (uint32_t)random_between(random, 0, PLACES);
    if (itself < count)
        destinations[itself] = source + source_at;
    multi_copy_bytes(destinations, count, source + source_at, bytes, way);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(memcmp(destinations[i], source + source_at, bytes) == 0, "%zu bytes to %u of %u",
              bytes, i, count);
        if (i != itself)
            memset(destinations[i], 0x5a, bytes);
        for (size_t k = 0; k < room; k++)
            CHECK(memory[i][k] == 0x5a, "%zu bytes to %u of %u", bytes, i, count);
        free(memory[i]);
    }
    free(source);
}

static void all_destinations_get_all_bytes(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int i = 0; i < 400; i++)
        check_copies(&random, (size_t)random_between(&random, 0, i % 10 == 0 ? 150000 : 3000),
                     (uint32_t)random_between(&random, 0, PLACES), (multi_copy_way)(i % 3));
    for (uint32_t count = 1; count <= PLACES; count++) {
        size_t bytes = ((size_t)1 << 20) + (size_t)random_between(&random, 0, 100000);
        for (int way = MULTI_COPY_PLAIN; way <= MULTI_COPY_INTO_CACHE; way++)
            check_copies(&random, bytes, count, (multi_copy_way)way);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_destinations_get_all_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
