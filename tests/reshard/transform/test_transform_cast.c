/* The casting transform casts at either end, with every division of a tensor into boxes. */
#include "support/test.h"

#include "core/error.h"
#include "reshard/simulate.h"
#include "support/float_reference.h"

enum { KINDS = 3 };

static DLDataType kind_dtype(int kind)
{
    const DLDataType dtypes[KINDS] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16};
    return dtypes[kind];
}

static float_format kind_format(int kind)
{
    const float_format formats[KINDS] = {format_f32, format_f16, format_bf16};
    return formats[kind];
}

static void each_element_arrives_cast(random_state *random, int from, int to,
                                      banyan_transform_side side, uint64_t *wire_bytes)
{
    int64_t shape[3] = {random_between(random, 1, 9), random_between(random, 1, 9),
                        random_between(random, 1, 40)};
    int64_t align[3] = {1, 2, 3}, index[3];
    size_t from_bytes = banyan_dtype_bytes(kind_dtype(from));
    size_t to_bytes = banyan_dtype_bytes(kind_dtype(to));
    sim_side source, destination;
    sim_side_make(random, "s", kind_dtype(from), 3, shape, true, 2, &source);
    sim_side_make(random, "d", kind_dtype(to), 3, shape, true, 2, &destination);
    uint64_t n = 0;
    for (index[0] = 0; index[0] < shape[0]; index[0]++)
        for (index[1] = 0; index[1] < shape[1]; index[1]++)
            for (index[2] = 0; index[2] < shape[2]; index[2]++)
                pattern_element("cast", n++, from_bytes, sim_at(&source, index));

    banyan_cast_options options = BANYAN_CAST_OPTIONS_INIT;
    options.side = side;
    banyan_transform *sender, *receiver;
    CHECK_OK(banyan_cast_create(&options, &sender));
    CHECK_OK(banyan_cast_create(&options, &receiver));
    sim_run run = {&source, &destination, sender, receiver, 0, 0, false};
    CHECK_OK(sim_move_all(random, &run, shape, align));
    assert_int_equal(run.part_count, 1);
    *wire_bytes = run.wire_bytes / n;

    n = 0;
    for (index[0] = 0; index[0] < shape[0]; index[0]++) {
        for (index[1] = 0; index[1] < shape[1]; index[1]++) {
            for (index[2] = 0; index[2] < shape[2]; index[2]++) {
                uint32_t bits = 0, got = 0;
                pattern_element("cast", n++, from_bytes, &bits);
                memcpy(&got, sim_at(&destination, index), to_bytes);
                assert_int_equal(got, format_cast(kind_format(to), kind_format(from), bits));
            }
        }
    }
    banyan_transform_destroy(sender);
    banyan_transform_destroy(receiver);
    free(source.whole.data);
    free(destination.whole.data);
}

static void every_pair_of_types_is_cast_at_either_end(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 20; round++) {
        for (int pair = 0; pair < KINDS * KINDS; pair++) {
            int from = pair / KINDS, to = pair % KINDS;
            if (from == to)
                continue;
            uint64_t at_sender, at_receiver, by_default;
            each_element_arrives_cast(&random, from, to, BANYAN_TRANSFORM_AT_SENDER, &at_sender);
            each_element_arrives_cast(&random, from, to, BANYAN_TRANSFORM_AT_RECEIVER,
                                      &at_receiver);
            each_element_arrives_cast(&random, from, to, BANYAN_TRANSFORM_SIDE_DEFAULT,
                                      &by_default);
            assert_int_equal(at_sender, banyan_dtype_bytes(kind_dtype(to)));
            assert_int_equal(at_receiver, banyan_dtype_bytes(kind_dtype(from)));
            assert_int_equal(by_default, at_sender < at_receiver ? at_sender : at_receiver);
        }
    }
}

static void only_named_tensors_with_different_types_are_cast(void **state)
{
    (void)state;
    const char *names[] = {"*.norm.weight", "lm_head.?eight"};
    banyan_cast_options options = BANYAN_CAST_OPTIONS_INIT;
    options.names = names;
    options.name_count = 2;
    banyan_transform *cast;
    options.size = 0;
    CHECK_FAILS(banyan_cast_create(&options, &cast), BANYAN_ERR_INVALID,
                "BANYAN_CAST_OPTIONS_INIT sets it");
    options.size = sizeof options;
    CHECK_OK(banyan_cast_create(&options, &cast));
    banyan_transfer transfer = {.name = "layers.1.norm.weight",
                                .source_dtype = BANYAN_F32,
                                .destination_dtype = BANYAN_BF16};
    assert_true(cast->should_transform(cast->context, &transfer));
    transfer.name = "lm_head.weight";
    assert_true(cast->should_transform(cast->context, &transfer));
    transfer.name = "norm.weight";
    assert_false(cast->should_transform(cast->context, &transfer));
    transfer.name = "lm_head.weight";
    transfer.destination_dtype = BANYAN_F32;
    assert_false(cast->should_transform(cast->context, &transfer));
    transfer.destination_dtype = BANYAN_F8_E4M3;
    assert_false(cast->should_transform(cast->context, &transfer));
    banyan_transform_destroy(cast);
    banyan_transform_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_types_is_cast_at_either_end),
        cmocka_unit_test(only_named_tensors_with_different_types_are_cast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
