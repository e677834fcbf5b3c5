/* Maps, byte messages and rank sets return what was inserted, and refuse everything else. */
#include "support/test.h"

#include "core/containers.h"

static void a_map_holds_every_key(void **state)
{
    (void)state;
    enum { KEYS = 5000 };
    static char keys[KEYS][24];
    hash_map table = {0};
    for (int i = 0; i < KEYS; i++) {
        snprintf(keys[i], sizeof keys[i], "key.%d.%d", i, i * 7);
        assert_true(map_put_string(&table, keys[i], (uint64_t)i));
    }
    for (int i = 0; i < KEYS; i += 3)
        assert_true(map_put_string(&table, keys[i], (uint64_t)i + 100000));
    uint64_t value;
    for (int i = 0; i < KEYS; i++) {
        assert_true(map_get_string(&table, keys[i], &value));
        assert_int_equal(value, i % 3 == 0 ? i + 100000 : i);
    }
    assert_int_equal(table.count, KEYS);
    assert_false(map_get_string(&table, "key", &value));
    assert_false(map_get_string(&table, "", &value));
    map_free(&table);
    assert_false(map_get_string(&table, keys[0], &value));
}

static int compare_values(const void *left, const void *right)
{
    return COMPARE(*(const int *)left, *(const int *)right);
}

/* A bisection of sorted values finds what a search from the start finds, in every range. */
static void a_sorted_array_is_bisected(void **state)
{
    (void)state;
    enum { VALUES = 40 };
    ARRAY(int) values = {0};
    array_sort(&values, compare_values);
    for (int i = 0; i < VALUES; i++)
        assert_true(array_push(&values, i * 7 % VALUES / 2));
    array_sort(&values, compare_values);
    for (size_t i = 1; i < VALUES; i++)
        assert_true(values.data[i - 1] <= values.data[i]);
    for (size_t first = 0; first <= VALUES; first++)
        for (int wanted = -1; wanted <= VALUES / 2; wanted++) {
            size_t expected = first;
            while (expected < VALUES && values.data[expected] < wanted)
                expected++;
            assert_int_equal(BISECT(i, first, VALUES, values.data[i] < wanted), expected);
        }
    array_free(&values);
}

static void a_message_reads_back_and_no_further(void **state)
{
    (void)state;
    bytes_writer writer = {0};
    bytes_write_u32(&writer, 7);
    bytes_write_blob(&writer, "banyan", 6);
    bytes_write_u64(&writer, UINT64_MAX);
    assert_false(writer.failed);

    bytes_reader reader = bytes_reader_of(writer.data, writer.count);
    assert_int_equal(bytes_read_u32(&reader), 7);
    size_t bytes;
    const void *blob = bytes_read_blob(&reader, &bytes);
    assert_int_equal(bytes, 6);
    assert_memory_equal(blob, "banyan", 6);
    /* The last eight bytes, read as a length, exceed the end by far. */
    bytes_reader fork = reader;
    assert_null(bytes_read_blob(&fork, &bytes));
    assert_true(fork.failed);
    assert_true(bytes_read_u64(&reader) == UINT64_MAX);
    assert_false(reader.failed);
    assert_int_equal(bytes_read_u32(&reader), 0);
    assert_true(reader.failed);
    bytes_writer_free(&writer);
}

static void a_rank_set_finds_the_ranks_that_it_lists(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 200; round++) {
        /* A random mesh; some axes span the set, the others are fixed. */
        int extent[4], stride = 1, world = 1;
        banyan_rank_set set = banyan_rank_set_one((int)random_between(&random, 0, 50));
        int fixed = 0;
        for (int k = 3; k >= 0; k--) {
            extent[k] = (int)random_between(&random, 1, 4);
            if (random_next(&random) % 2) {
                set.count[k] = extent[k];
                set.stride[k] = stride;
            } else {
                fixed += (int)random_between(&random, 0, extent[k] - 1) * stride;
            }
            stride *= extent[k];
            world *= extent[k];
        }
        set.first += fixed;
        int64_t listed = 0;
        for (int64_t i = 0; i < banyan_rank_set_size(&set); i++)
            assert_int_equal(banyan_rank_set_find(&set, banyan_rank_set_at(&set, i)), i);
        for (int rank = 0; rank < world + 60; rank++)
            listed += banyan_rank_set_find(&set, rank) >= 0;
        assert_int_equal(listed, banyan_rank_set_size(&set));
    }
    banyan_rank_set empty = {0};
    assert_int_equal(banyan_rank_set_size(&empty), 0);
    assert_int_equal(banyan_rank_set_find(&empty, 0), -1);
}

static void a_dtype_is_known_by_all_its_names(void **state)
{
    (void)state;
    DLDataType dtype;
    assert_int_equal(banyan_dtype_parse("torch.bfloat16", &dtype), BANYAN_OK);
    assert_string_equal(banyan_dtype_name(dtype), "BF16");
    assert_int_equal(banyan_dtype_bytes(dtype), 2);
    assert_int_equal(banyan_dtype_parse("f8_e4m3", &dtype), BANYAN_OK);
    assert_true(banyan_dtype_equal(dtype, BANYAN_F8_E4M3));
    CHECK_FAILS(banyan_dtype_parse("bf17", &dtype), BANYAN_ERR_NOT_FOUND, "bf17");
    assert_string_equal(banyan_version(), "0.1.0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_map_holds_every_key),
        cmocka_unit_test(a_sorted_array_is_bisected),
        cmocka_unit_test(a_message_reads_back_and_no_further),
        cmocka_unit_test(a_rank_set_finds_the_ranks_that_it_lists),
        cmocka_unit_test(a_dtype_is_known_by_all_its_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
