/* The MXFP8 transform gives equal blocks however a tensor is cut and wherever it is converted. */
#include "support/test.h"

#include "core/error.h"
#include "reshard/mxfp8_reference.h"
#include "reshard/simulate.h"
#include "reshard/transform/mxfp8_box.h"

static DLDataType random_float(random_state *random, float_format *format)
{
    const DLDataType dtypes[] = {BANYAN_BF16, BANYAN_F32, BANYAN_F16};
    const float_format formats[] = {format_bf16, format_f32, format_f16};
    int64_t kind = random_between(random, 0, 2);
    *format = formats[kind];
    return dtypes[kind];
}

/* Scales for a local tensor, in one layout or the other. */
struct scales {
    DLTensor tensor;
    int64_t shape[BANYAN_MAX_DIMS];
    mxfp8_scales view;
};

static void make_scales(banyan_mxfp8_layout layout, const sim_side *side, struct scales *scales)
{
    int ndim;
    size_t bytes = 1;
    CHECK_OK(
        banyan_mxfp8_scales_shape(layout, side->whole.ndim, side->shape, &ndim, scales->shape));
    for (int d = 0; d < ndim; d++)
        bytes *= (size_t)scales->shape[d];
    scales->tensor = (DLTensor){.data = malloc(bytes),
                                .device = {kDLCPU, 0},
                                .ndim = ndim,
                                .dtype = BANYAN_F8_E8M0,
                                .shape = scales->shape};
    memset(scales->tensor.data, 0xa5, bytes);
    CHECK_OK(mxfp8_scales_of(layout, side->name, side->whole.ndim, side->shape, &scales->tensor,
                             &scales->view));
}

static void fill_values(const sim_side *side, const int64_t *shape, const char *pattern)
{
    int64_t index[3];
    uint64_t n = 0;
    for (index[0] = 0; index[0] < shape[0]; index[0]++)
        for (index[1] = 0; index[1] < shape[1]; index[1]++)
            for (index[2] = 0; index[2] < shape[2]; index[2]++)
                pattern_element(pattern, n++, banyan_dtype_bytes(side->whole.dtype),
                                sim_at(side, index));
}

static double value_at(const sim_side *side, float_format format, const int64_t *index)
{
    uint32_t bits = 0;
    memcpy(&bits, sim_at(side, index), banyan_dtype_bytes(side->whole.dtype));
    return format_decode(format, bits);
}

/* The block of the destination around local index `local`: values, 0 outside of the tensor. */
static int block_around(const sim_side *source, float_format format, const sim_side *destination,
                        const int64_t *shape, const int64_t *local, double *values)
{
    int along = 2, count = 0;
    int64_t first = local[along] / 32 * 32;
    for (int64_t i = first; i < first + 32 && i < destination->shape[along]; i++, count++) {
        int64_t index[3];
        bool inside = true;
        for (int g = 0; g < 3; g++) {
            int d = destination->dim_map[g];
            index[g] = (d == along ? i : local[d]) - destination->offset[d];
            inside = inside && index[g] >= 0 && index[g] < shape[g];
        }
        values[count] = inside ? value_at(source, format, index) : 0;
    }
    return count;
}

/* One block of the destination, from local index `local` on, against the reference. */
static void check_block(const sim_side *source, float_format format, const sim_side *destination,
                        const struct scales *scales, banyan_mxfp8_rule rule, const int64_t *shape,
                        int64_t *local)
{
    double values[32];
    uint8_t want[32], scale, stored;
    int64_t first = local[2];
    bool holds_some = false;
    int count = block_around(source, format, destination, shape, local, values);
    mxfp8_reference_block(rule, values, count, want, &scale);
    for (int i = 0; i < count; i++) {
        int64_t index[3];
        bool inside = true;
        local[2] = first + i;
        for (int g = 0; g < 3; g++) {
            index[g] =
                local[destination->dim_map[g]] - destination->offset[destination->dim_map[g]];
            inside = inside && index[g] >= 0 && index[g] < shape[g];
        }
        if (inside)
            assert_int_equal(*(uint8_t *)sim_at(destination, index), want[i]);
        holds_some = holds_some || inside;
    }
    local[2] = first;
    mxfp8_scales_read(&scales->view, local, first / 32, 1, &stored);
    if (holds_some)
        assert_int_equal(stored, scale);
}

static void check_quantized(const sim_side *source, float_format format,
                            const sim_side *destination, const struct scales *scales,
                            banyan_mxfp8_rule rule, const int64_t *shape)
{
    int64_t local[3];
    for (local[0] = 0; local[0] < destination->shape[0]; local[0]++)
        for (local[1] = 0; local[1] < destination->shape[1]; local[1]++)
            for (local[2] = 0; local[2] < destination->shape[2]; local[2] += 32)
                check_block(source, format, destination, scales, rule, shape, local);
}

/* Scales of blocks without any tensor element, and the padding of tiles, are zero. */
static void check_other_scales_are_zero(const sim_side *destination, const struct scales *scales,
                                        const int64_t *shape)
{
    int64_t local[3], bytes = 1, zeros = 0;
    for (int d = 0; d < scales->tensor.ndim; d++)
        bytes *= scales->shape[d];
    for (int64_t i = 0; i < bytes; i++)
        zeros += ((uint8_t *)scales->tensor.data)[i] == 0;
    for (local[0] = 0; local[0] < destination->shape[0]; local[0]++) {
        for (local[1] = 0; local[1] < destination->shape[1]; local[1]++) {
            for (local[2] = 0; local[2] < destination->shape[2]; local[2] += 32) {
                bool inside = true;
                for (int g = 0; g < 3; g++) {
                    int d = destination->dim_map[g];
                    int64_t at = local[d] - destination->offset[d], span = d == 2 ? 31 : 0;
                    inside = inside && at + span >= 0 && at < shape[g];
                }
                uint8_t stored;
                mxfp8_scales_read(&scales->view, local, local[2] / 32, 1, &stored);
                assert_true(inside || stored == 0);
                zeros -= inside && stored == 0;
                bytes -= inside;
            }
        }
    }
    assert_int_equal(zeros, bytes);
}

struct mode {
    banyan_transform_side side;
    bool permute;
    int64_t pad;
    int64_t align; /* of cuts along the last dimension */
};

/* One tensor, several runs, values changing from run to run. */
static void quantize_in_some_way(random_state *random, struct mode mode)
{
    float_format format;
    DLDataType dtype = random_float(random, &format);
    int64_t shape[3] = {random_between(random, 1, 3), random_between(random, 1, 40),
                        random_between(random, 1, 260)};
    int64_t align[3] = {1, 3, mode.align};
    sim_side source, destination;
    sim_side_make(random, "s", dtype, 3, shape, mode.permute, 3, &source);
    sim_side_make(random, "d", BANYAN_F8_E4M3, 3, shape, mode.permute, mode.pad, &destination);
    banyan_mxfp8_options options = BANYAN_MXFP8_OPTIONS_INIT;
    options.side = mode.side;
    options.rule = (banyan_mxfp8_rule)random_between(random, 0, 1);
    options.layout = (banyan_mxfp8_layout)random_between(random, 0, 1);
    struct scales scales;
    make_scales(options.layout, &destination, &scales);
    banyan_transform *sender, *receiver;
    CHECK_OK(banyan_mxfp8_create(&options, &sender));
    CHECK_OK(banyan_mxfp8_create(&options, &receiver));
    CHECK_OK(banyan_mxfp8_bind_scales(receiver, "other", &scales.tensor));
    CHECK_OK(banyan_mxfp8_bind_scales(receiver, "d", &scales.tensor));
    for (int round = 0; round < 2; round++) {
        fill_values(&source, shape, round ? "second" : "first");
        CHECK_OK(sender->begin(sender->context));
        CHECK_OK(receiver->begin(receiver->context));
        sim_run run = {&source, &destination, sender, receiver, 0, 0, false};
        CHECK_OK(sim_move_all(random, &run, shape, align));
        assert_int_equal(run.part_count, mode.side == BANYAN_TRANSFORM_AT_SENDER ? 2 : 1);
        CHECK_OK(sender->finish(sender->context));
        CHECK_OK(receiver->finish(receiver->context));
        check_quantized(&source, format, &destination, &scales, options.rule, shape);
        check_other_scales_are_zero(&destination, &scales, shape);
    }
    banyan_transform_destroy(sender);
    banyan_transform_destroy(receiver);
    free(source.whole.data);
    free(destination.whole.data);
    free(scales.tensor.data);
}

static void whole_blocks_are_quantized_at_the_sender(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 40; round++)
        quantize_in_some_way(&random,
                             (struct mode){.side = BANYAN_TRANSFORM_AT_SENDER, .align = 32});
}

static void whole_blocks_are_quantized_at_the_receiver(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 40; round++)
        quantize_in_some_way(&random, (struct mode){.align = 32});
}

static void cut_blocks_are_put_together_at_the_receiver(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 40; round++)
        quantize_in_some_way(&random, (struct mode){.align = random_between(&random, 1, 70),
                                                    .pad = random_between(&random, 0, 40)});
}

static void any_order_of_dimensions_is_quantized_at_the_receiver(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 40; round++)
        quantize_in_some_way(&random, (struct mode){.permute = true,
                                                    .align = random_between(&random, 1, 70),
                                                    .pad = random_between(&random, 0, 40)});
}

/* MXFP8 of random blocks on the source's side, read back. */
static void read_in_some_way(random_state *random, struct mode mode)
{
    float_format format;
    DLDataType dtype = random_float(random, &format);
    int64_t shape[3] = {random_between(random, 1, 3), random_between(random, 1, 20),
                        random_between(random, 1, 200)};
    int64_t align[3] = {1, 3, mode.align}, index[3];
    sim_side source, destination;
    sim_side_make(random, "s", BANYAN_F8_E4M3, 3, shape, mode.permute, mode.pad, &source);
    sim_side_make(random, "d", dtype, 3, shape, mode.permute, 3, &destination);
    banyan_mxfp8_options options = BANYAN_MXFP8_OPTIONS_INIT;
    options.side = mode.side;
    options.layout = (banyan_mxfp8_layout)random_between(random, 0, 1);
    struct scales scales;
    make_scales(options.layout, &source, &scales);
    fill_values(&source, shape, "elements");
    int64_t bytes = 1;
    for (int d = 0; d < scales.tensor.ndim; d++)
        bytes *= scales.shape[d];
    for (int64_t i = 0; i < bytes; i++)
        ((uint8_t *)scales.tensor.data)[i] = (uint8_t)random_between(random, 0, 254);
    banyan_transform *sender, *receiver;
    CHECK_OK(banyan_mxfp8_create(&options, &sender));
    CHECK_OK(banyan_mxfp8_create(&options, &receiver));
    CHECK_OK(banyan_mxfp8_bind_scales(sender, "s", &scales.tensor));
    sim_run run = {&source, &destination, sender, receiver, 0, 0, false};
    CHECK_OK(sim_move_all(random, &run, shape, align));
    assert_int_equal(run.part_count, mode.side == BANYAN_TRANSFORM_AT_RECEIVER ? 2 : 1);
    for (index[0] = 0; index[0] < shape[0]; index[0]++) {
        for (index[1] = 0; index[1] < shape[1]; index[1]++) {
            for (index[2] = 0; index[2] < shape[2]; index[2]++) {
                int64_t local[3];
                uint8_t scale, element = *(uint8_t *)sim_at(&source, index);
                uint32_t got = 0;
                for (int g = 0; g < 3; g++)
                    local[source.dim_map[g]] = source.offset[source.dim_map[g]] + index[g];
                mxfp8_scales_read(&scales.view, local, local[2] / 32, 1, &scale);
                memcpy(&got, sim_at(&destination, index), banyan_dtype_bytes(dtype));
                if ((element & 0x7f) == 0x7f)
                    assert_true(isnan(format_decode(format, got)));
                else
                    assert_int_equal(got,
                                     format_encode(format, mxfp8_reference_value(element, scale)));
            }
        }
    }
    banyan_transform_destroy(sender);
    banyan_transform_destroy(receiver);
    free(source.whole.data);
    free(destination.whole.data);
    free(scales.tensor.data);
}

static void mxfp8_is_read_back_at_either_end(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 40; round++) {
        read_in_some_way(&random, (struct mode){.side = BANYAN_TRANSFORM_AT_RECEIVER, .align = 32});
        read_in_some_way(&random, (struct mode){.permute = true,
                                                .align = random_between(&random, 1, 70),
                                                .pad = random_between(&random, 0, 40)});
    }
}

/* A 4 × 96 tensor on both sides. */
struct small {
    sim_side source, destination;
    struct scales scales;
    banyan_transform *sender, *receiver;
    sim_run run;
};

static void make_small(struct small *small, DLDataType from, DLDataType to,
                       banyan_transform_side side)
{
    random_state random = random_from(1);
    int64_t shape[2] = {4, 96};
    sim_side_make(&random, "local.s", from, 2, shape, false, 0, &small->source);
    sim_side_make(&random, "local.d", to, 2, shape, false, 0, &small->destination);
    memset(small->source.whole.data, 0x11, small->source.memory_bytes);
    banyan_mxfp8_options options = BANYAN_MXFP8_OPTIONS_INIT;
    options.side = side;
    make_scales(options.layout, &small->source, &small->scales);
    CHECK_OK(banyan_mxfp8_create(&options, &small->sender));
    CHECK_OK(banyan_mxfp8_create(&options, &small->receiver));
    CHECK_OK(banyan_mxfp8_bind_scales(small->sender, "local.s", &small->scales.tensor));
    CHECK_OK(banyan_mxfp8_bind_scales(small->receiver, "local.d", &small->scales.tensor));
    small->run =
        (sim_run){&small->source, &small->destination, small->sender, small->receiver, 0, 0, false};
}

static void free_small(struct small *small)
{
    banyan_transform_destroy(small->sender);
    banyan_transform_destroy(small->receiver);
    free(small->source.whole.data);
    free(small->destination.whole.data);
    free(small->scales.tensor.data);
}

static banyan_box box_of(int64_t row, int64_t rows, int64_t col, int64_t cols)
{
    return (banyan_box){.ndim = 2, .start = {row, col}, .extent = {rows, cols}};
}

static void a_cut_block_at_the_sender_is_an_error_with_its_place(void **state)
{
    (void)state;
    struct small small;
    banyan_box cut = box_of(1, 2, 32, 48);
    make_small(&small, BANYAN_BF16, BANYAN_F8_E4M3, BANYAN_TRANSFORM_AT_SENDER);
    CHECK_FAILS(sim_move(&small.run, &cut), BANYAN_ERR_INVALID,
                "tensor global.w, box [1:3, 32:80] from rank 0 to rank 1 cuts MXFP8 block 2 "
                "(elements 64 to 96 along the last dimension of local tensor local.d)");
    free_small(&small);

    make_small(&small, BANYAN_F8_E4M3, BANYAN_BF16, BANYAN_TRANSFORM_AT_RECEIVER);
    cut = box_of(0, 4, 16, 80);
    CHECK_FAILS(sim_move(&small.run, &cut), BANYAN_ERR_INVALID,
                "cuts MXFP8 block 0 (elements 0 to 32 along the last dimension of local tensor "
                "local.s)");
    free_small(&small);
}

static void slices_of_whole_blocks_are_converted_as_they_land(void **state)
{
    (void)state;
    struct small small;
    make_small(&small, BANYAN_BF16, BANYAN_F8_E4M3, BANYAN_TRANSFORM_AT_RECEIVER);
    CHECK_OK(small.receiver->begin(small.receiver->context));
    banyan_box whole = box_of(0, 2, 32, 64), cut = box_of(2, 2, 40, 56);
    int64_t in_whole[2] = {1, 50}, in_cut[2] = {3, 50};
    CHECK_OK(sim_move(&small.run, &whole));
    CHECK_OK(sim_move(&small.run, &cut));
    uint8_t landed = *(uint8_t *)sim_at(&small.destination, in_whole);
    assert_int_not_equal(landed, 0xa5);
    assert_int_equal(*(uint8_t *)sim_at(&small.destination, in_cut), 0xa5);
    CHECK_OK(small.receiver->finish(small.receiver->context));
    assert_int_equal(*(uint8_t *)sim_at(&small.destination, in_cut), landed);
    free_small(&small);
}

/* Data of a failed run do not affect the next. */
static void a_failed_run_leaves_nothing_behind(void **state)
{
    (void)state;
    struct small small;
    make_small(&small, BANYAN_BF16, BANYAN_F8_E4M3, BANYAN_TRANSFORM_AT_RECEIVER);
    banyan_box cut = box_of(0, 1, 0, 40), rest = box_of(0, 1, 64, 32);
    int64_t in_cut[2] = {0, 5};
    CHECK_OK(small.receiver->begin(small.receiver->context));
    CHECK_OK(sim_move(&small.run, &cut));
    CHECK_OK(small.receiver->begin(small.receiver->context));
    CHECK_OK(sim_move(&small.run, &rest));
    CHECK_OK(small.receiver->finish(small.receiver->context));
    assert_int_equal(*(uint8_t *)sim_at(&small.destination, in_cut), 0xa5);
    free_small(&small);
}

static void half_the_bytes_travel_when_the_sender_quantizes(void **state)
{
    (void)state;
    struct small small;
    banyan_box all = box_of(0, 4, 0, 96);
    make_small(&small, BANYAN_BF16, BANYAN_F8_E4M3, BANYAN_TRANSFORM_AT_SENDER);
    CHECK_OK(sim_move(&small.run, &all));
    assert_int_equal(small.run.wire_bytes, 4 * 96 + 4 * 3);
    free_small(&small);
    make_small(&small, BANYAN_BF16, BANYAN_F8_E4M3, BANYAN_TRANSFORM_SIDE_DEFAULT);
    CHECK_OK(sim_move(&small.run, &all));
    assert_int_equal(small.run.wire_bytes, 2 * 4 * 96);
    free_small(&small);
}

static void scales_must_be_bound_and_fit(void **state)
{
    (void)state;
    struct small small;
    banyan_box all = box_of(0, 4, 0, 96);
    make_small(&small, BANYAN_BF16, BANYAN_F8_E4M3, BANYAN_TRANSFORM_AT_RECEIVER);
    CHECK_OK(banyan_mxfp8_bind_scales(small.receiver, "local.d", NULL));
    CHECK_FAILS(sim_move(&small.run, &all), BANYAN_ERR_NOT_FOUND,
                "no scales are bound to local tensor local.d, which holds MXFP8 of tensor "
                "global.w");
    DLTensor wrong = small.scales.tensor;
    int64_t shape[2] = {3, 4};
    wrong.shape = shape;
    CHECK_OK(banyan_mxfp8_bind_scales(small.receiver, "local.d", &wrong));
    CHECK_FAILS(sim_move(&small.run, &all), BANYAN_ERR_INVALID, "[3, 4] and must have [4, 3]");
    banyan_transform *cast;
    CHECK_OK(banyan_cast_create(NULL, &cast));
    CHECK_FAILS(banyan_mxfp8_bind_scales(cast, "local.d", &wrong), BANYAN_ERR_INVALID, "cast");
    banyan_transform_destroy(cast);
    free_small(&small);
}

static bool no_experts(void *context, const banyan_transfer *transfer)
{
    ++*(int *)context;
    return !strstr(transfer->name, "expert");
}

static void tensors_are_chosen_by_type_name_and_function(void **state)
{
    (void)state;
    const char *names[] = {"layers.*"};
    int calls = 0;
    banyan_mxfp8_options options = BANYAN_MXFP8_OPTIONS_INIT;
    options.names = names;
    options.name_count = 1;
    options.accepts = no_experts;
    options.accepts_context = &calls;
    banyan_transform *mxfp8;
    CHECK_OK(banyan_mxfp8_create(&options, &mxfp8));
    banyan_transfer transfer = {
        .name = "layers.0.up", .source_dtype = BANYAN_BF16, .destination_dtype = BANYAN_F8_E4M3};
    assert_true(mxfp8->should_transform(mxfp8->context, &transfer));
    transfer.name = "layers.0.expert.0";
    assert_false(mxfp8->should_transform(mxfp8->context, &transfer));
    assert_int_equal(calls, 2);
    transfer.name = "embedding";
    assert_false(mxfp8->should_transform(mxfp8->context, &transfer));
    transfer.name = "layers.0.up";
    transfer.destination_dtype = BANYAN_BF16;
    assert_false(mxfp8->should_transform(mxfp8->context, &transfer));
    transfer.source_dtype = BANYAN_F8_E4M3;
    assert_true(mxfp8->should_transform(mxfp8->context, &transfer));
    transfer.destination_dtype = BANYAN_F8_E4M3;
    assert_false(mxfp8->should_transform(mxfp8->context, &transfer));
    banyan_transform_destroy(mxfp8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_blocks_are_quantized_at_the_sender),
        cmocka_unit_test(whole_blocks_are_quantized_at_the_receiver),
        cmocka_unit_test(cut_blocks_are_put_together_at_the_receiver),
        cmocka_unit_test(any_order_of_dimensions_is_quantized_at_the_receiver),
        cmocka_unit_test(mxfp8_is_read_back_at_either_end),
        cmocka_unit_test(a_cut_block_at_the_sender_is_an_error_with_its_place),
        cmocka_unit_test(slices_of_whole_blocks_are_converted_as_they_land),
        cmocka_unit_test(a_failed_run_leaves_nothing_behind),
        cmocka_unit_test(half_the_bytes_travel_when_the_sender_quantizes),
        cmocka_unit_test(scales_must_be_bound_and_fit),
        cmocka_unit_test(tensors_are_chosen_by_type_name_and_function),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
