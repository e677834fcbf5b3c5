/* Changed elements as bytes: found, written, checked, exchanged and exchanged back, for views of
 * any strides, elements of any size and any share of changes. */
#include "support/test.h"

#include <banyan/publish.h>

#include "publish/delta/changes.h"
#include "publish/delta/example.h"
#include "publish/delta/stream.h"
#include "support/levels.h"

#define ROUNDS 400

static void check_map(const struct example *example, const unsigned char *old,
                      const unsigned char *new, const uint64_t *map)
{
    for (uint64_t i = 0; i < example->elems; i++) {
        bool differs = memcmp(old + i * example->elem_bytes, new + i * example->elem_bytes,
                              example->elem_bytes) != 0;
        if (differs != (map[i / 64] >> i % 64 & 1))
            fail_msg("element %lu of %lu", (unsigned long)i, (unsigned long)example->elems);
    }
    for (uint64_t i = example->elems; i < 64 * changes_words(example->elems); i++)
        assert_false(map[i / 64] >> i % 64 & 1);
}

/* Write a box of the copy in several parts, and exchange it with the old elements of a receiver
 * whose memory has other strides. */
static void send_box(random_state *random, const struct example *source, const unsigned char *old,
                     const unsigned char *new, const delta_source *from, uint64_t changed)
{
    size_t bytes = source->elems * source->elem_bytes;
    int64_t gap = 1 + (int64_t)below(random, 2), count = (int64_t)source->elems;
    unsigned char *memory = malloc(bytes * (size_t)gap), *result = malloc(bytes);
    DLTensor tensor = source->tensor;
    tensor.data = memory;
    tensor.ndim = 1;
    tensor.shape = &count;
    tensor.strides = &gap;
    strided_view view;
    CHECK_OK(strided_view_of(&tensor, &view));
    strided_unpack(&view, 0, source->elems, old);
    uint64_t blocks = delta_blocks(source->elems), cut = below(random, blocks + 1);
    uint64_t parts[] = {0, cut, blocks}, found = 0, sent = 0;
    bytes_writer streams[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++) {
        uint64_t some = parts[i + 1] - parts[i];
        sent += delta_write(from, parts[i], some, &streams[i]);
        assert_false(streams[i].failed);
        assert_true(delta_check(streams[i].data, streams[i].count, source->elems,
                                source->elem_bytes, parts[i], some, &found, NULL));
        assert_true(streams[i].count <= some * 2 + bytes);
        if (streams[i].count > 0)
            assert_false(delta_check(streams[i].data, streams[i].count - 1, source->elems,
                                     source->elem_bytes, parts[i], some, &found, NULL));
    }
    if (!from->whole && changed * 5 < source->elems && source->elem_bytes == 2)
        assert_true(sent == changed);
    for (int i = 0; i < 2; i++)
        delta_swap(&view, parts[i], parts[i + 1] - parts[i], streams[i].data);
    strided_pack(result, &view, 0, source->elems);
    assert_memory_equal(result, new, bytes);
    for (int i = 0; i < 2; i++) {
        assert_true(delta_check(streams[i].data, streams[i].count, source->elems,
                                source->elem_bytes, parts[i], parts[i + 1] - parts[i], &found,
                                NULL));
        delta_swap(&view, parts[i], parts[i + 1] - parts[i], streams[i].data);
    }
    strided_pack(result, &view, 0, source->elems);
    assert_memory_equal(result, old, bytes);
    for (int i = 0; i < 2; i++)
        bytes_writer_free(&streams[i]);
    free(memory);
    free(result);
}

static void changes_arrive_and_can_be_undone(void **state)
{
    (void)state;
    static const uint64_t shares[] = {0, 1, 10, 30, 100, 400, 1000};
    random_state random = random_from(random_seed());
    for (int round = 0; round < ROUNDS; round++) {
        struct example example;
        make_example(&random, &example);
        size_t bytes = example.elems * example.elem_bytes;
        unsigned char *old = malloc(bytes), *kept = malloc(bytes), *new = malloc(bytes);
        uint64_t *maps[2];
        CHECK_OK(strided_view_of(&example.tensor, &example.view));
        pack(&example, old);
        memcpy(kept, old, bytes);
        /* Two versions; a receiver has the one before both. */
        uint64_t changed = 0;
        for (int i = 0; i < 2; i++) {
            unsigned char *before = malloc(bytes);
            maps[i] = calloc(changes_words(example.elems), sizeof *maps[i]);
            memcpy(before, kept, bytes);
            uint64_t made = change(&random, &example, shares[below(&random, 7)]);
            uint64_t cut = below(&random, example.elems / CHANGES_BITS + 1) * CHANGES_BITS;
            assert_true(changes_find_some(&example.view, kept, maps[i], cut, example.elems - cut) +
                            changes_find_some(&example.view, kept, maps[i], 0, cut) ==
                        made);
            pack(&example, new);
            assert_memory_equal(kept, new, bytes);
            check_map(&example, before, new, maps[i]);
            changed += made;
            free(before);
        }
        int64_t dense = (int64_t)example.elems;
        DLTensor tensor = example.tensor;
        tensor.data = kept;
        tensor.ndim = 1;
        tensor.shape = &dense;
        tensor.strides = NULL;
        delta_source from = {.memory = (const char *)kept,
                             .maps = (const uint64_t *const *)maps,
                             .map_count = 2,
                             .whole = below(&random, 8) == 0};
        CHECK_OK(strided_view_of(&tensor, &from.box));
        uint64_t differ = 0;
        for (uint64_t i = 0; i < example.elems; i++)
            differ += (maps[0][i / 64] | maps[1][i / 64]) >> i % 64 & 1;
        assert_true(differ <= changed);
        send_box(&random, &example, old, new, &from, differ);
        for (int i = 0; i < 2; i++)
            free(maps[i]);
        free(old);
        free(kept);
        free(new);
        free(example.buffer);
    }
}

/* A box of columns of a matrix: rows of the box are apart in the memory and in its map. All
 * elements of the first rows change, and some of the others. */
static void send_columns(int dense_rows)
{
    enum { ROWS = 300, COLUMNS = 131, FIRST = 7, SOME = 90 };
    random_state random = random_from(random_seed());
    static uint16_t old[ROWS * COLUMNS], live[ROWS * COLUMNS], kept[ROWS * COLUMNS];
    static uint16_t received[ROWS * SOME];
    int64_t all = ROWS * COLUMNS, shape[] = {ROWS, SOME}, strides[] = {COLUMNS, 1};
    fill_random(&random, (unsigned char *)old, sizeof old);
    memcpy(live, old, sizeof live);
    memcpy(kept, old, sizeof kept);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        live[i] ^= (uint16_t)(i < dense_rows * COLUMNS || below(&random, 20) == 0);
    DLTensor tensor = {
        .data = live, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLBfloat, 16, 1}, .shape = &all};
    strided_view view;
    CHECK_OK(strided_view_of(&tensor, &view));
    uint64_t *map = calloc(changes_words((uint64_t)all), sizeof *map);
    changes_find(&view, kept, map);
    DLTensor box = {.data = kept + FIRST,
                    .device = {kDLCPU, 0},
                    .ndim = 2,
                    .dtype = {kDLBfloat, 16, 1},
                    .shape = shape,
                    .strides = strides};
    const uint64_t *maps[] = {map};
    delta_source from = {.memory = (const char *)kept, .maps = maps, .map_count = 1};
    CHECK_OK(strided_view_of(&box, &from.box));
    uint64_t expected = 0, found;
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < SOME; i++) {
            int at = row * COLUMNS + FIRST + i;
            expected += old[at] != live[at];
            received[row * SOME + i] = old[at];
        }
    }
    bytes_writer stream = {0};
    uint64_t blocks = delta_blocks(ROWS * SOME);
    assert_true(delta_write(&from, 0, blocks, &stream) == expected);
    assert_true(stream.count < 3 * expected + 8 * blocks);
    assert_true(delta_check(stream.data, stream.count, ROWS * SOME, 2, 0, blocks, &found, NULL));
    assert_true(found == expected);
    box.data = received;
    box.strides = NULL;
    CHECK_OK(strided_view_of(&box, &view));
    delta_swap(&view, 0, blocks, stream.data);
    for (int row = 0; row < ROWS; row++)
        assert_memory_equal(received + row * SOME, live + row * COLUMNS + FIRST, 2 * SOME);
    bytes_writer_free(&stream);
    free(map);
}

static void a_box_of_a_tensor_sends_its_own_changes_alone(void **state)
{
    (void)state;
    send_columns(0);
    send_columns(92); /* two blocks are whole, and the next ones are not */
}

/* Whatever the bytes are, a stream that passes the check stays inside its box and itself. */
static void damaged_streams_are_refused_or_stay_in_bounds(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 3000; round++) {
        uint64_t elems = 1 + below(&random, 9000), changed;
        int64_t count = (int64_t)elems;
        uint64_t blocks = delta_blocks(elems);
        unsigned char *memory = malloc(2 * elems);
        uint64_t *map = calloc(changes_words(elems), sizeof *map);
        for (uint64_t i = 0; i < elems; i++)
            map[i / 64] |= (uint64_t)(below(&random, 50) == 0) << i % 64;
        fill_random(&random, memory, 2 * elems);
        DLTensor tensor = {.data = memory,
                           .device = {kDLCPU, 0},
                           .ndim = 1,
                           .dtype = {kDLBfloat, 16, 1},
                           .shape = &count};
        const uint64_t *maps[] = {map};
        delta_source from = {.memory = (const char *)memory, .maps = maps, .map_count = 1};
        CHECK_OK(strided_view_of(&tensor, &from.box));
        bytes_writer stream = {0};
        delta_write(&from, 0, blocks, &stream);
        size_t bytes = stream.count - below(&random, 3) % stream.count;
        unsigned char *damaged = malloc(bytes); /* exact, so that sanitizers see what is outside */
        memcpy(damaged, stream.data, bytes);
        for (uint64_t i = below(&random, 4); i > 0; i--)
            damaged[below(&random, bytes)] ^= (unsigned char)(1u << below(&random, 8));
        if (delta_check(damaged, bytes, elems, 2, 0, blocks, &changed, NULL)) {
            assert_true(changed <= elems);
            delta_swap(&from.box, 0, blocks, damaged);
        }
        free(damaged);
        free(memory);
        free(map);
        bytes_writer_free(&stream);
    }
}

/* Return the bytes that a walk of one gap after the other takes; SIZE_MAX if an element lies
 * outside of the block. */
static size_t walk_gaps(const unsigned char *gaps, size_t bytes, uint64_t elems, uint64_t count)
{
    uint64_t next = 0;
    size_t used = 0;
    while (count > 0) {
        if (used == bytes)
            return SIZE_MAX;
        next += gaps[used];
        if (gaps[used++] == DELTA_LONG_GAP)
            continue;
        if (next++ >= elems)
            return SIZE_MAX;
        count--;
    }
    return used;
}

static void gaps_are_accepted_if_each_element_is_in_its_block(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    int accepted = 0, refused = 0;
    for (int round = 0; round < 20000; round++) {
        uint64_t elems = 1 + below(&random, DELTA_BLOCK), changed, end;
        uint64_t count = 1 + below(&random, 1 + below(&random, elems));
        size_t bytes = count + below(&random, 40);
        /* Mostly as many elements as the gaps leave, or one more. */
        uint64_t most = 2 * elems / count, longs = below(&random, 3);
        unsigned char *stream = malloc(DELTA_HEAD_BYTES + bytes + count);
        unsigned char *gaps = stream + DELTA_HEAD_BYTES;
        delta_head_write(stream, DELTA_GAPS, count);
        for (size_t i = 0; i < bytes; i++)
            gaps[i] = longs > 0 && below(&random, 100) < 20 * longs
                          ? DELTA_LONG_GAP
                          : (unsigned char)below(&random, most < 255 ? most : 255);
        size_t used = walk_gaps(gaps, bytes, elems, count);
        if (used == SIZE_MAX && below(&random, 2)) { /* the last element at the end, or behind it */
            memset(gaps, 0, bytes);
            uint64_t left = elems - count < 200 * count ? elems - count : 0;
            while (left > 0) {
                unsigned char *gap = gaps + below(&random, count);
                uint64_t more = left < 253u - *gap ? left : 253u - *gap;
                *gap = (unsigned char)(*gap + more);
                left -= more;
            }
            gaps[count - 1] = (unsigned char)(gaps[count - 1] + below(&random, 2));
            used = walk_gaps(gaps, bytes, elems, count);
        }
        bool valid = used != SIZE_MAX;
        size_t all = DELTA_HEAD_BYTES + (valid ? used : bytes) + count;
        bool found = delta_check(stream, all, elems, 1, 0, 1, &changed, &end);
        if (found != valid)
            fail_msg("%lu gaps of %lu elements are %s", (unsigned long)count, (unsigned long)elems,
                     found ? "accepted" : "refused");
        assert_true(!valid || (changed == count && end == all));
        accepted += valid;
        refused += !valid;
        free(stream);
    }
    assert_true(accepted > 1000 && refused > 1000);
}

/* The measure of two tensors is what delta_write makes of the parts with changes. */
static void a_measure_is_what_would_travel(void **state)
{
    (void)state;
    static const uint64_t shares[] = {0, 1, 30, 400, 1000};
    random_state random = random_from(random_seed());
    for (int round = 0; round < 60; round++) {
        struct example example;
        make_example(&random, &example);
        size_t bytes = example.elems * example.elem_bytes;
        unsigned char *old = malloc(bytes), *new = malloc(bytes);
        uint64_t *map = calloc(changes_words(example.elems), sizeof *map);
        CHECK_OK(strided_view_of(&example.tensor, &example.view));
        pack(&example, old);
        uint64_t changed = change(&random, &example, shares[below(&random, 5)]);
        pack(&example, new);
        DLTensor before = example.tensor, live = example.tensor;
        before.data = old;
        before.strides = NULL;
        banyan_delta_size size = {.bytes = 7};
        CHECK_OK(banyan_delta_measure(&before, &live, &size));
        assert_true(size.elems == example.elems && size.changed == changed);
        unsigned char *kept = malloc(bytes);
        memcpy(kept, old, bytes);
        assert_true(changes_find(&example.view, kept, map) == changed);
        const uint64_t *maps[] = {map};
        delta_source from = {.memory = (const char *)kept, .maps = maps, .map_count = 1};
        before.data = kept;
        CHECK_OK(strided_view_of(&before, &from.box));
        bytes_writer stream = {0};
        delta_write(&from, 0, delta_blocks(example.elems), &stream);
        assert_true(size.bytes == (changed > 0 ? stream.count : 0));
        bytes_writer_free(&stream);
        free(kept);
        free(map);
        free(old);
        free(new);
        free(example.buffer);
    }
}

/* Parts without changes take no bytes. */
static void a_measure_counts_parts_with_changes_alone(void **state)
{
    (void)state;
    enum { PART = DELTA_PART_BLOCKS * DELTA_BLOCK, ELEMS = 2 * PART + 5000 };
    static uint16_t before[ELEMS], after[ELEMS];
    int64_t count = ELEMS;
    DLTensor tensor = {.data = before,
                       .device = {kDLCPU, 0},
                       .ndim = 1,
                       .dtype = {kDLBfloat, 16, 1},
                       .shape = &count};
    DLTensor other = tensor;
    banyan_delta_size size;
    other.data = after;
    after[PART + 3] = 0x8000;  /* a zero of the other sign */
    before[PART + 9] = 0x7fc1; /* two NaNs */
    after[PART + 9] = 0x7fc2;
    before[PART + 10] = 0x7fc3; /* a NaN that stays */
    after[PART + 10] = 0x7fc3;
    CHECK_OK(banyan_delta_measure(&tensor, &other, &size));
    assert_true(size.elems == ELEMS && size.changed == 2);
    assert_true(size.bytes == 2 * DELTA_PART_BLOCKS + 2 * 3);
    after[ELEMS - 1] = 1;
    CHECK_OK(banyan_delta_measure(&tensor, &other, &size));
    assert_true(size.changed == 3 && size.bytes > 2 * DELTA_PART_BLOCKS + 2 * 3 + 3);
    other.dtype = (DLDataType){kDLFloat, 16, 1};
    CHECK_FAILS(banyan_delta_measure(&tensor, &other, &size), BANYAN_ERR_MISMATCH, "BF16 and F16");
    assert_true(size.changed == 3);
}

static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changes_arrive_and_can_be_undone),
        cmocka_unit_test(a_box_of_a_tensor_sends_its_own_changes_alone),
        cmocka_unit_test(a_measure_is_what_would_travel),
        cmocka_unit_test(a_measure_counts_parts_with_changes_alone),
        cmocka_unit_test(gaps_are_accepted_if_each_element_is_in_its_block),
        cmocka_unit_test(damaged_streams_are_refused_or_stay_in_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return levels_run(run);
}
