/* Copies, past and into the caches, move exactly memcpy's bytes, wherever rows lie. */
#include "support/test.h"

#include "memory/stream.h"
#include "support/levels.h"

#define ROOM ((size_t)600000)
#define POISON 0xa5

typedef void (*rows_fn)(void *destination, ptrdiff_t destination_pitch, const void *source,
                        ptrdiff_t source_pitch, size_t rows, size_t bytes);
typedef void (*run_fn)(void *destination, const void *source, size_t bytes);

/* One side of the rows: none overlap, and all lie in the buffer. */
typedef struct side {
    ptrdiff_t pitch;
    size_t first; /* offset of row 0 */
} side;

static side side_of(random_state *random, size_t rows, size_t bytes)
{
    static const size_t steps[] = {1, 64, 4096};
    size_t step = steps[random_between(random, 0, 2)];
    size_t most = (ROOM - 128) / rows, pitch = bytes;
    size_t wanted = (bytes + (size_t)random_between(random, 0, 5000)) / step * step;
    if (wanted >= bytes && wanted <= most)
        pitch = wanted;
    size_t low = random_between(random, 0, 1) ? 0 : (size_t)random_between(random, 0, 127);
    if (random_between(random, 0, 3) > 0)
        return (side){(ptrdiff_t)pitch, low};
    return (side){-(ptrdiff_t)pitch, low + (rows - 1) * pitch};
}

static void check_all(const unsigned char *got, const unsigned char *expected, const char *what,
                      size_t rows, size_t bytes)
{
    for (size_t i = 0; i < ROOM; i++)
        CHECK(got[i] == expected[i], "byte %zu of %s: %zu rows of %zu bytes", i, what, rows, bytes);
}

static void random_rows_arrive_and_nothing_else_is_touched(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 127, 128, 1000, 1024, 1536, 2048, 4096, 33000};
    const rows_fn copies[] = {stream_rows_past_cache, stream_rows_into_cache};
    const char *const names[] = {"stream_rows_past_cache", "stream_rows_into_cache"};
    random_state random = random_from(random_seed());
    unsigned char *from = aligned_alloc(4096, ROOM / 4096 * 4096 + 4096);
    unsigned char *to = aligned_alloc(4096, ROOM / 4096 * 4096 + 4096);
    unsigned char *expected = malloc(ROOM);
    for (size_t i = 0; i < ROOM; i++)
        from[i] = (unsigned char)random_next(&random);
    for (int round = 0; round < 200; round++) {
        size_t bytes = random_between(&random, 0, 1) ? sizes[random_between(&random, 0, 9)]
                                                     : (size_t)random_between(&random, 0, 5000);
        size_t most = (ROOM - 128) / (bytes + 1);
        size_t rows = (size_t)random_between(&random, 1, most < 40 ? (int64_t)most : 40);
        side source = side_of(&random, rows, bytes), there = side_of(&random, rows, bytes);
        memset(expected, POISON, ROOM);
        for (size_t row = 0; row < rows; row++)
            memcpy(expected + there.first + (ptrdiff_t)row * there.pitch,
                   from + source.first + (ptrdiff_t)row * source.pitch, bytes);
        for (int i = 0; i < 2; i++) {
            memset(to, POISON, ROOM);
            copies[i](to + there.first, there.pitch, from + source.first, source.pitch, rows,
                      bytes);
            stream_fence();
            check_all(to, expected, names[i], rows, bytes);
        }
    }
    free(from);
    free(to);
    free(expected);
}

static void runs_of_any_length_arrive_whole(void **state)
{
    (void)state;
    const run_fn copies[] = {stream_copy, stream_past_cache, stream_into_cache};
    const char *const names[] = {"stream_copy", "stream_past_cache", "stream_into_cache"};
    random_state random = random_from(random_seed());
    unsigned char *from = malloc(ROOM), *to = malloc(ROOM), *expected = malloc(ROOM);
    for (size_t i = 0; i < ROOM; i++)
        from[i] = (unsigned char)random_next(&random);
    for (int round = 0; round < 200; round++) {
        size_t bytes = (size_t)random_between(&random, 0, round % 2 ? 3000 : 300000);
        size_t source = (size_t)random_between(&random, 0, 200);
        size_t there =
            source + (size_t)random_between(&random, 0, 40); /* slightly after it, in pages */
        memset(expected, POISON, ROOM);
        memcpy(expected + there, from + source, bytes);
        for (int i = 0; i < 3; i++) {
            memset(to, POISON, ROOM);
            copies[i](to + there, from + source, bytes);
            stream_fence();
            check_all(to, expected, names[i], 1, bytes);
        }
    }
    free(from);
    free(to);
    free(expected);
}

/* Copies are divided where the processor is fastest; the bytes around them must stay. */
static void long_copies_arrive_whole(void **state)
{
    (void)state;
    const size_t piece = (size_t)256 << 10, large = (size_t)16 << 20, margin = 256;
    const size_t sizes[] = {piece - 1,
                            piece,
                            piece + 1,
                            3 * piece + 77,
                            4 * piece + 1,
                            large - 1,
                            large + 2 * piece + 3};
    random_state random = random_from(random_seed());
    size_t room = large + 4 * piece;
    unsigned char *from = aligned_alloc(4096, room), *to = aligned_alloc(4096, room);
    for (size_t i = 0; i < room; i++)
        from[i] = (unsigned char)random_next(&random);
    for (size_t i = 0; i < 4 * sizeof sizes / sizeof *sizes; i++) {
        size_t bytes = sizes[i / 4];
        size_t source = (size_t)random_between(&random, 0, 100);
        size_t there = source + margin / 2 + (i % 2 ? (size_t)random_between(&random, 0, 20) : 0);
        memset(to, POISON, room);
        stream_copy(to + there, from + source, bytes);
        CHECK(memcmp(to + there, from + source, bytes) == 0, "%zu bytes are not what they were",
              bytes);
        for (size_t k = 0; k < margin / 2; k++)
            CHECK(to[there - 1 - k] == POISON && to[there + bytes + k] == POISON,
                  "beside %zu bytes something was written", bytes);
    }
    free(from);
    free(to);
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_copies_arrive_whole),
        cmocka_unit_test(random_rows_arrive_and_nothing_else_is_touched),
        cmocka_unit_test(runs_of_any_length_arrive_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return levels_run(run_all);
}
