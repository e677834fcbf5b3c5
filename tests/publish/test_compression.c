/* Publications that compress what they send. */
#include "publish/compressing.h"
#include "publish/fetch/compression.h"

/* Feed measurements of waves to the decision: `travel` and `compress` in ns for each byte. */
static bool decides(double travel, double compress, double ratio, uint64_t bytes_per_s)
{
    struct compression of = {.choice = BANYAN_COMPRESSION_AUTOMATIC};
    const uint64_t bytes = 10000000;
    compression_note_written(&of, bytes, bytes / 5);
    compression_begin_fetch(&of);
    assert_false(compression_pays(&of, 0)); /* nothing has travelled */
    compression_note_travelled(&of, bytes, (uint64_t)(travel * (double)bytes));
    if (!compression_pays(&of, bytes_per_s)) /* not tried */
        return false;
    compression_note_compressed(&of, bytes, (uint64_t)(ratio * (double)bytes),
                                (uint64_t)(compress * (double)bytes));
    return compression_pays(&of, bytes_per_s);
}

static void a_rank_compresses_where_the_link_is_slower(void **state)
{
    (void)state;
    assert_true(decides(8, 1.5, 0.66, 0));          /* 1 Gbit/s */
    assert_false(decides(8, 1.5, 0.97, 0));         /* of no use */
    assert_false(decides(0.8, 1.5, 0.66, 0));       /* 10 Gbit/s */
    assert_false(decides(0.1, 0.11, 0.1, 0));       /* not even tried */
    assert_true(decides(0.1, 1.5, 0.66, 50000000)); /* the engine's own limit */
    struct compression off = {.choice = BANYAN_COMPRESSION_OFF};
    struct compression always = {.choice = BANYAN_COMPRESSION_ALWAYS};
    compression_note_travelled(&off, 1000000, 1000000000);
    assert_false(compression_pays(&off, 1));
    assert_true(compression_pays(&always, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_rank_compresses_where_the_link_is_slower),
                                       cmocka_unit_test(all_versions_take_fewer_bytes_if_told_to),
                                       cmocka_unit_test(a_slow_link_is_found_and_compressed_for)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
