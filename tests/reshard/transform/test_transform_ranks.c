/* Formats change between real ranks: a trainer in BF16 feeds an engine in MXFP8 with another
 * sharding, at either end, in any layout, run after run. */
#include <unistd.h>

#include "support/test.h"

#include "reshard/mailbox.h"
#include "reshard/mxfp8_reference.h"
#include "reshard/run/memory.h"
#include "reshard/transform/mxfp8_box.h"
#include "support/float_reference.h"

enum { RANKS = 4, TENSORS = 3, MAX_BYTES = 128 * 256 };

/* Tensors and how the two sides shard them. */
struct side {
    DLDataType dtype;
    int dims[TENSORS]; /* sharded over all ranks; -1: replicated */
};

static const char *const names[TENSORS] = {"w.up", "w.down", "w.odd"};
static const int64_t shapes[TENSORS][2] = {{64, 256}, {128, 128}, {24, 100}};

struct run_case {
    bool mailbox; /* a service that takes no strides and keeps no schedules */
    struct side source, destination;
    banyan_transform_side at;
    banyan_mxfp8_layout layout;
    banyan_mxfp8_rule rule;
    uint64_t max_staging_bytes;
};

static banyan_layout *layout_of(const struct side *side, int rank)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    banyan_mesh mesh = {.ndim = 1, .extent = {RANKS}};
    for (int t = 0; t < TENSORS; t++) {
        banyan_placement placement = {side->dims[t] < 0 ? BANYAN_REPLICATE : BANYAN_SHARD,
                                      side->dims[t]};
        banyan_layout_add_sharded(layout, names[t], side->dtype, 2, shapes[t], &mesh, &placement,
                                  rank);
    }
    CHECK_OK(banyan_layout_check(layout));
    return layout;
}

/* A different value for each version. */
static void value_of(int t, uint64_t version, int64_t row, int64_t col, DLDataType dtype,
                     void *element)
{
    char name[32];
    snprintf(name, sizeof name, "%s.%llu", names[t], (unsigned long long)version);
    pattern_element(name, (uint64_t)(row * shapes[t][1] + col), banyan_dtype_bytes(dtype), element);
}

struct local {
    const banyan_piece *piece;
    const DLTensor *tensor;
    int t;
    int64_t rows, cols;
};

static struct local local_of(const banyan_layout *layout, const banyan_tensors *tensors, size_t i)
{
    const banyan_piece *piece = banyan_layout_piece(layout, i);
    struct local local = {piece, banyan_tensors_get(tensors, (size_t)piece->tensor), 0, 0, 0};
    while (strcmp(names[local.t], piece->name) != 0)
        local.t++;
    local.rows = piece->box.extent[0];
    local.cols = piece->box.extent[1];
    return local;
}

static void *element_at(const struct local *local, int64_t row, int64_t col)
{
    const DLTensor *tensor = local->tensor;
    return (char *)tensor->data + (row * tensor->strides[0] + col * tensor->strides[1]) *
                                      (int64_t)banyan_dtype_bytes(tensor->dtype);
}

static void fill(const banyan_layout *layout, const banyan_tensors *tensors, uint64_t version)
{
    for (size_t i = 0; i < banyan_layout_piece_count(layout); i++) {
        struct local local = local_of(layout, tensors, i);
        for (int64_t r = 0; r < local.rows; r++)
            for (int64_t c = 0; c < local.cols; c++)
                value_of(local.t, version, local.piece->box.start[0] + r,
                         local.piece->box.start[1] + c, local.tensor->dtype,
                         element_at(&local, r, c));
    }
}

/* Scales for the local tensors of an MXFP8 side. */
struct scales {
    uint8_t memory[TENSORS][MAX_BYTES / 32 + 4096];
    mxfp8_scales views[TENSORS];
};

static void bind_scales(banyan_transform *transform, banyan_mxfp8_layout layout,
                        const banyan_layout *tensors, struct scales *scales)
{
    for (size_t i = 0; i < banyan_layout_tensor_count(tensors); i++) {
        const banyan_local_tensor *tensor = banyan_layout_tensor(tensors, i);
        int64_t shape[2];
        int ndim;
        CHECK_OK(banyan_mxfp8_scales_shape(layout, tensor->ndim, tensor->shape, &ndim, shape));
        DLTensor bound = {.data = scales->memory[i],
                          .device = {kDLCPU, 0},
                          .ndim = ndim,
                          .dtype = BANYAN_F8_E8M0,
                          .shape = shape};
        CHECK_OK(banyan_mxfp8_bind_scales(transform, tensor->name, &bound));
        CHECK_OK(mxfp8_scales_of(layout, tensor->name, tensor->ndim, tensor->shape, &bound,
                                 &scales->views[i]));
    }
}

static void check_block(const struct local *local, const mxfp8_scales *scales,
                        banyan_mxfp8_rule rule, uint64_t version, int64_t r, int64_t c)
{
    double values[32];
    uint8_t want[32], scale, stored;
    int count = local->cols - c < 32 ? (int)(local->cols - c) : 32;
    int64_t index[2] = {r, c};
    for (int i = 0; i < count; i++) {
        uint16_t bits;
        value_of(local->t, version, local->piece->box.start[0] + r,
                 local->piece->box.start[1] + c + i, BANYAN_BF16, &bits);
        values[i] = format_decode(format_bf16, bits);
    }
    mxfp8_reference_block(rule, values, count, want, &scale);
    mxfp8_scales_read(scales, index, c / 32, 1, &stored);
    CHECK(stored == scale, "%s, row %lld, column %lld: scale %d, not %d", names[local->t],
          (long long)r, (long long)c, stored, scale);
    for (int i = 0; i < count; i++) {
        uint8_t got = *(uint8_t *)element_at(local, r, c + i);
        CHECK(got == want[i], "%s, row %lld, column %lld: %#x, not %#x", names[local->t],
              (long long)r, (long long)c + i, got, want[i]);
    }
}

static void check_quantized(const banyan_layout *layout, const banyan_tensors *tensors,
                            const struct scales *scales, banyan_mxfp8_rule rule, uint64_t version)
{
    for (size_t i = 0; i < banyan_layout_piece_count(layout); i++) {
        struct local local = local_of(layout, tensors, i);
        for (int64_t r = 0; r < local.rows; r++)
            for (int64_t c = 0; c < local.cols; c += 32)
                check_block(&local, &scales->views[local.piece->tensor], rule, version, r, c);
    }
}

/* A rank's objects for a case. */
struct gpu_copy {
    banyan_layout *from, *to;
    banyan_tensors *source, *destination;
    struct scales *scales;
    banyan_transform *transform;
    banyan_reshard_plan *plan;
    banyan_copy_service *service;
};

static banyan_transform *mxfp8_of(const struct run_case *of)
{
    banyan_mxfp8_options options = BANYAN_MXFP8_OPTIONS_INIT;
    options.side = of->at;
    options.layout = of->layout;
    options.rule = of->rule;
    banyan_transform *transform;
    CHECK_OK(banyan_mxfp8_create(&options, &transform));
    return transform;
}

static struct gpu_copy gpu_copy_open(const struct run_case *of, banyan_world *world)
{
    int rank = banyan_world_rank(world);
    struct gpu_copy gpu_copy = {.from = layout_of(&of->source, rank),
                                .to = layout_of(&of->destination, rank),
                                .scales = malloc(sizeof *gpu_copy.scales),
                                .transform = mxfp8_of(of)};
    CHECK_OK(banyan_tensors_alloc(gpu_copy.from, world, &gpu_copy.source));
    CHECK_OK(banyan_tensors_alloc(gpu_copy.to, NULL, &gpu_copy.destination));
    memset(gpu_copy.scales, 0xa5, sizeof *gpu_copy.scales);
    bind_scales(gpu_copy.transform, of->layout, gpu_copy.to, gpu_copy.scales);
    banyan_reshard_options planning = BANYAN_RESHARD_OPTIONS_INIT;
    planning.transform = gpu_copy.transform;
    planning.min_split_bytes = 512;
    planning.max_staging_bytes = of->max_staging_bytes;
    planning.checksums = true;
    CHECK_OK(
        banyan_reshard_plan_create(gpu_copy.from, gpu_copy.to, world, &planning, &gpu_copy.plan));
    if (of->mailbox)
        CHECK_OK(
            banyan_copy_service_open_backend(world, &mailbox_backend, NULL, &gpu_copy.service));
    else
        CHECK_OK(banyan_copy_service_open(world, "direct", NULL, &gpu_copy.service));
    return gpu_copy;
}

static banyan_status gpu_copy_run(struct gpu_copy *gpu_copy, banyan_world *world)
{
    return banyan_reshard_execute(gpu_copy->plan, gpu_copy->source, gpu_copy->destination,
                                  gpu_copy->service, world, gpu_copy->transform, NULL);
}

static void gpu_copy_close(struct gpu_copy *gpu_copy)
{
    banyan_reshard_plan_destroy(gpu_copy->plan);
    banyan_copy_service_close(gpu_copy->service);
    banyan_transform_destroy(gpu_copy->transform);
    banyan_tensors_destroy(gpu_copy->source);
    banyan_tensors_destroy(gpu_copy->destination);
    banyan_layout_destroy(gpu_copy->from);
    banyan_layout_destroy(gpu_copy->to);
    free(gpu_copy->scales);
}

static void quantize_between_ranks(banyan_world *world, void *context)
{
    const struct run_case *of = context;
    struct gpu_copy gpu_copy = gpu_copy_open(of, world);
    for (uint64_t version = 1; version <= 3; version++) {
        fill(gpu_copy.from, gpu_copy.source, version);
        CHECK_OK(gpu_copy_run(&gpu_copy, world));
        CHECK(of->max_staging_bytes == 0 || run_memory_peak() <= of->max_staging_bytes,
              "%llu of %llu", (unsigned long long)run_memory_peak(),
              (unsigned long long)of->max_staging_bytes);
        check_quantized(gpu_copy.to, gpu_copy.destination, gpu_copy.scales, of->rule, version);
        CHECK_OK(banyan_world_barrier(world));
    }
    gpu_copy_close(&gpu_copy);
}

/* Slices by rows into slices by columns: every box has whole blocks of the engine's tensors. */
static const struct side trainer_rows = {.dtype = {kDLBfloat, 16, 1}, .dims = {0, 0, 0}};
static const struct side engine_columns = {.dtype = {BANYAN_DL_FLOAT8_E4M3FN, 8, 1},
                                           .dims = {1, 1, 1}};
/* 256, 128 and 100 columns over four ranks into whole rows: the last tensor's blocks are cut. */
static const struct side trainer_columns = {.dtype = {kDLBfloat, 16, 1}, .dims = {1, 1, 1}};
static const struct side engine_rows = {.dtype = {BANYAN_DL_FLOAT8_E4M3FN, 8, 1},
                                        .dims = {0, 0, -1}};

static void an_engine_in_mxfp8_is_fed_at_either_end(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct run_case of = {
            .mailbox = i & 4,
            .source = trainer_rows,
            .destination = engine_columns,
            .at = i & 1 ? BANYAN_TRANSFORM_AT_SENDER : BANYAN_TRANSFORM_AT_RECEIVER,
            .layout = i & 2 ? BANYAN_MXFP8_SWIZZLED : BANYAN_MXFP8_PLAIN,
            .rule = i & 1 ? BANYAN_MXFP8_OCP : BANYAN_MXFP8_ROUND_UP,
            .max_staging_bytes = i == 3 || i == 6 ? 16384 : 0,
        };
        ranks_run(RANKS, quantize_between_ranks, &of);
    }
}

static void blocks_that_several_ranks_send_are_put_together(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct run_case of = {
            .mailbox = i & 2,
            .source = trainer_columns,
            .destination = engine_rows,
            .layout = i & 1 ? BANYAN_MXFP8_SWIZZLED : BANYAN_MXFP8_PLAIN,
        };
        ranks_run(RANKS, quantize_between_ranks, &of);
    }
}

/* The last tensor is assembled in 24 × 100 values of BF16 and 24 × 4 marks. */
enum { PUT_TOGETHER_BYTES = 24 * 100 * 2 + 24 * 4 };

static void memory_of_cut_blocks_is_within_the_bound(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct run_case of = {
            .mailbox = i & 1,
            .source = trainer_columns,
            .destination = engine_rows,
            .max_staging_bytes = PUT_TOGETHER_BYTES + (i & 2 ? 8192 : 4096),
        };
        ranks_run(RANKS, quantize_between_ranks, &of);
    }
}

/* A run that is refused with this text, and has moved nothing. */
static void check_refused(struct gpu_copy *gpu_copy, banyan_world *world, const char *first,
                          const char *second)
{
    fill(gpu_copy->from, gpu_copy->source, 1);
    CHECK_FAILS(gpu_copy_run(gpu_copy, world), BANYAN_ERR_INVALID, first);
    CHECK(strstr(banyan_last_error(), second), "%s", banyan_last_error());
    for (size_t i = 0; i < banyan_tensors_count(gpu_copy->destination); i++) {
        const DLTensor *tensor = banyan_tensors_get(gpu_copy->destination, i);
        for (int64_t n = 0; n < tensor->shape[0] * tensor->shape[1]; n++)
            CHECK(((uint8_t *)tensor->data)[n] == 0, "an element has moved");
    }
}

static void put_together_in_too_little(banyan_world *world, void *context)
{
    (void)context;
    /* The first bound has no space for the values, the second none beside them. */
    const uint64_t bounds[2] = {PUT_TOGETHER_BYTES - 1, PUT_TOGETHER_BYTES + 64};
    const char *const words[2][2] = {
        {"tensor w.odd is assembled in 4896 bytes", "max_staging_bytes is 4895"},
        {" bytes of staging at once for ", "beside 4896 to assemble tensors"}};
    for (int i = 0; i < 2; i++) {
        struct run_case of = {
            .source = trainer_columns, .destination = engine_rows, .max_staging_bytes = bounds[i]};
        struct gpu_copy gpu_copy = gpu_copy_open(&of, world);
        check_refused(&gpu_copy, world, words[i][0], words[i][1]);
        gpu_copy_close(&gpu_copy);
    }
}

static void memory_of_cut_blocks_beyond_the_bound_is_refused(void **state)
{
    (void)state;
    ranks_run(RANKS, put_together_in_too_little, NULL);
}

static void cut_at_the_sender(banyan_world *world, void *context)
{
    (void)context;
    struct run_case of = {
        .source = trainer_columns, .destination = engine_rows, .at = BANYAN_TRANSFORM_AT_SENDER};
    struct gpu_copy gpu_copy = gpu_copy_open(&of, world);
    check_refused(&gpu_copy, world, "tensor w.odd, box [0:24, ", "cuts MXFP8 block ");
    gpu_copy_close(&gpu_copy);
}

static void a_cut_block_at_the_sender_comes_to_every_rank(void **state)
{
    (void)state;
    ranks_run(RANKS, cut_at_the_sender, NULL);
}

struct back_case {
    struct side source, destination;
    banyan_transform_side at;
    banyan_mxfp8_layout layout;
};

/* Rows are whole on the source's side, so that a local block is a global one. */
static uint8_t source_scale(int64_t row, int64_t block)
{
    return (uint8_t)(100 + (row * 7 + block) % 40);
}

static void fill_scales(const banyan_layout *layout, const banyan_tensors *tensors,
                        const struct scales *scales)
{
    for (size_t i = 0; i < banyan_layout_piece_count(layout); i++) {
        struct local local = local_of(layout, tensors, i);
        for (int64_t r = 0; r < local.rows; r++) {
            for (int64_t b = 0; b < (local.cols + 31) / 32; b++) {
                int64_t index[2] = {r, 0};
                uint8_t scale = source_scale(local.piece->box.start[0] + r, b);
                mxfp8_scales_write(&scales->views[local.piece->tensor], index, b, 1, &scale);
            }
        }
    }
}

static void check_back(const struct back_case *of, const struct local *local, int64_t r, int64_t c)
{
    int64_t row = local->piece->box.start[0] + r, col = local->piece->box.start[1] + c;
    uint32_t bits = 0, got = 0, want;
    value_of(local->t, 7, row, col, of->source.dtype, &bits);
    memcpy(&got, element_at(local, r, c), banyan_dtype_bytes(of->destination.dtype));
    if (banyan_dtype_equal(of->source.dtype, BANYAN_BF16)) {
        want = format_cast(format_f32, format_bf16, bits);
    } else if (banyan_dtype_equal(of->source.dtype, BANYAN_F32)) {
        want = format_cast(format_bf16, format_f32, bits);
    } else if ((bits & 0x7f) == 0x7f) {
        CHECK(isnan(format_decode(format_bf16, got)), "%#x is not a NaN", got);
        return;
    } else {
        double value = mxfp8_reference_value((uint8_t)bits, source_scale(row, col / 32));
        want = format_encode(format_bf16, value);
    }
    CHECK(got == want, "%s, row %lld, column %lld: %#x, not %#x", names[local->t], (long long)row,
          (long long)col, got, want);
}

static void move_back(banyan_world *world, void *context)
{
    const struct back_case *of = context;
    int rank = banyan_world_rank(world);
    banyan_layout *from = layout_of(&of->source, rank), *to = layout_of(&of->destination, rank);
    banyan_tensors *source, *destination;
    CHECK_OK(banyan_tensors_alloc(from, world, &source));
    CHECK_OK(banyan_tensors_alloc(to, world, &destination));
    struct scales *scales = calloc(1, sizeof *scales);
    banyan_transform *transform;
    fill(from, source, 7);
    if (banyan_dtype_equal(of->source.dtype, BANYAN_F8_E4M3)) {
        banyan_mxfp8_options options = BANYAN_MXFP8_OPTIONS_INIT;
        options.side = of->at;
        options.layout = of->layout;
        CHECK_OK(banyan_mxfp8_create(&options, &transform));
        bind_scales(transform, of->layout, from, scales);
        fill_scales(from, source, scales);
    } else {
        banyan_cast_options options = BANYAN_CAST_OPTIONS_INIT;
        options.side = of->at;
        CHECK_OK(banyan_cast_create(&options, &transform));
    }
    banyan_reshard_options planning = BANYAN_RESHARD_OPTIONS_INIT;
    planning.transform = transform;
    banyan_reshard_plan *plan;
    banyan_copy_service *service;
    CHECK_OK(banyan_reshard_plan_create(from, to, world, &planning, &plan));
    CHECK_OK(banyan_copy_service_open(world, NULL, NULL, &service));
    for (int pass = 0; pass < 2; pass++)
        CHECK_OK(
            banyan_reshard_execute(plan, source, destination, service, world, transform, NULL));
    for (size_t i = 0; i < banyan_layout_piece_count(to); i++) {
        struct local local = local_of(to, destination, i);
        for (int64_t r = 0; r < local.rows; r++)
            for (int64_t c = 0; c < local.cols; c++)
                check_back(of, &local, r, c);
    }
    banyan_reshard_plan_destroy(plan);
    banyan_copy_service_close(service);
    banyan_transform_destroy(transform);
    banyan_tensors_destroy(source);
    banyan_tensors_destroy(destination);
    banyan_layout_destroy(from);
    banyan_layout_destroy(to);
    free(scales);
}

static void mxfp8_is_read_back_between_ranks(void **state)
{
    (void)state;
    struct back_case of = {
        .source = {.dtype = {BANYAN_DL_FLOAT8_E4M3FN, 8, 1}, .dims = {0, 0, 0}},
        .destination = trainer_columns,
        .at = BANYAN_TRANSFORM_AT_SENDER,
        .layout = BANYAN_MXFP8_SWIZZLED,
    };
    ranks_run(RANKS, move_back, &of);
    of.at = BANYAN_TRANSFORM_AT_RECEIVER;
    of.layout = BANYAN_MXFP8_PLAIN;
    of.destination.dims[2] = -1;
    ranks_run(RANKS, move_back, &of);
}

static void casts_happen_between_ranks(void **state)
{
    (void)state;
    struct back_case widen = {
        .source = trainer_columns,
        .destination = {.dtype = {kDLFloat, 32, 1}, .dims = {0, -1, 0}},
    };
    struct back_case narrow = {
        .source = {.dtype = {kDLFloat, 32, 1}, .dims = {0, 0, 0}},
        .destination = trainer_columns,
    };
    ranks_run(RANKS, move_back, &widen);
    ranks_run(RANKS, move_back, &narrow);
    widen.at = narrow.at = BANYAN_TRANSFORM_AT_SENDER;
    ranks_run(RANKS, move_back, &widen);
    narrow.at = BANYAN_TRANSFORM_AT_RECEIVER;
    ranks_run_threads(RANKS, move_back, &narrow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_engine_in_mxfp8_is_fed_at_either_end),
        cmocka_unit_test(blocks_that_several_ranks_send_are_put_together),
        cmocka_unit_test(memory_of_cut_blocks_is_within_the_bound),
        cmocka_unit_test(memory_of_cut_blocks_beyond_the_bound_is_refused),
        cmocka_unit_test(a_cut_block_at_the_sender_comes_to_every_rank),
        cmocka_unit_test(mxfp8_is_read_back_between_ranks),
        cmocka_unit_test(casts_happen_between_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
