/* A trainer publishes float32 weights in several formats at once. Engines must have what a reshard
 * with the same transform makes of the weights, and get only what changed in their format. */
#ifndef TESTS_PUBLISH_CONVERTING_H
#define TESTS_PUBLISH_CONVERTING_H

#include <banyan/transform.h>
#include <sys/mman.h>

#include "core/containers.h"
#include "publish/following.h"

enum { CONVERTERS = 2, CONVERTED_VERSIONS = 4, CONVERTED_TENSORS = 3 };

/* The formats, and how the ranks of trainers and engines divide matrices. */
struct converted_format {
    const char *name;
    DLDataType dtype;
    banyan_mxfp8_layout order;
    bool published_by_columns, subscribed_by_columns;
    uint64_t step_bytes;
};

static const struct converted_format converted_formats[] = {
    {"bf16", {kDLBfloat, 16, 1}, BANYAN_MXFP8_PLAIN, true, false, 50000},
    {"mxfp8", {BANYAN_DL_FLOAT8_E4M3FN, 8, 1}, BANYAN_MXFP8_PLAIN, true, false, 100000},
    {"mxfp8 by columns", {BANYAN_DL_FLOAT8_E4M3FN, 8, 1}, BANYAN_MXFP8_PLAIN, false, true, 1},
    {"mxfp8 for tensor cores",
     {BANYAN_DL_FLOAT8_E4M3FN, 8, 1},
     BANYAN_MXFP8_SWIZZLED,
     false,
     false,
     0},
};
enum { FORMATS = sizeof converted_formats / sizeof converted_formats[0] };

static const struct {
    const char *name;
    int ndim;
    int64_t shape[2];
} converted_tensors[CONVERTED_TENSORS] = {
    {"layers.0.w", 2, {256, 512}}, {"norm", 1, {100, 1}}, {"layers.1.w", 2, {512, 256}}};

/* In memory that all processes share. */
struct converting {
    char addresses[FORMATS][64];
    _Atomic int open, published, ended;
    _Atomic int ready[CONVERTED_VERSIONS + 1]; /* ranks of engines that have the version */
};
static struct converting *converting;

static bool is_scaled(const struct converted_format *format)
{
    return banyan_dtype_equal(format->dtype, BANYAN_F8_E4M3);
}

static uint64_t converted_hash(size_t tensor, uint64_t flat, uint64_t salt)
{
    uint64_t key[3] = {tensor, flat, salt};
    return hash_bytes(key, sizeof key, 0);
}

/* Return the bits of a weight. From a version to the next, nearly all change in float32, one of 11
 * in bf16, and one of 97 in e4m3. */
static uint32_t weight_bits(size_t tensor, uint64_t flat, int version)
{
    uint64_t jitter = converted_hash(tensor, flat, (uint64_t)version), nudge = 0;
    int last = version, nudged = version;
    while (last > 1 && converted_hash(tensor, flat, 1000 + (uint64_t)last) % 97 != 0)
        last--;
    while (nudged > 1 && converted_hash(tensor, flat, 2000 + (uint64_t)nudged) % 11 != 0)
        nudged--;
    nudge = converted_hash(tensor, flat, 3000 + (uint64_t)nudged) % 7;
    uint64_t base = converted_hash(tensor, flat, 4000 + (uint64_t)last);
    uint64_t sign = base >> 60 & 1, exponent = 119 + base % 8, top = (base >> 20) % 6;
    return (uint32_t)(sign << 31 | exponent << 23 | top << 20 | nudge << 16 | jitter % 0x7000);
}

/* Add a piece: the part-th of two, along `dim`; -1: all of it. */
static void add_part(banyan_layout *layout, const char *name, DLDataType dtype, int ndim,
                     const int64_t *shape, int dim, int part)
{
    banyan_piece piece = {.name = name, .ndim = ndim, .dim_map = {0, 1}, .box = {.ndim = ndim}};
    for (int d = 0; d < ndim; d++) {
        piece.shape[d] = shape[d];
        piece.box.extent[d] = d == dim ? shape[d] / 2 : shape[d];
        piece.box.start[d] = d == dim ? part * (shape[d] / 2) : 0;
    }
    piece.tensor = banyan_layout_add_tensor(layout, name, dtype, ndim, piece.box.extent);
    banyan_layout_add_piece(layout, &piece);
}

static void add_scales(banyan_layout *layout, size_t i, banyan_mxfp8_layout order, int dim,
                       int part)
{
    char name[64];
    int64_t shape[2];
    int ndim;
    snprintf(name, sizeof name, "%s_scale", converted_tensors[i].name);
    CHECK_OK(banyan_mxfp8_scales_shape(order, 2, converted_tensors[i].shape, &ndim, shape));
    add_part(layout, name, BANYAN_F8_E8M0, ndim, shape, dim, part);
}

/* A side of a format, with scales or without. */
static banyan_layout *format_layout(const struct converted_format *format, bool by_columns,
                                    int rank, bool with_scales)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    for (size_t i = 0; i < CONVERTED_TENSORS; i++) {
        bool is_matrix = converted_tensors[i].ndim == 2;
        int dim = !is_matrix ? -1 : by_columns ? 1 : 0;
        /* Scales come before and after their elements. */
        bool scaled = with_scales && is_matrix && is_scaled(format);
        if (scaled && i > 0)
            add_scales(layout, i, format->order, dim, rank);
        add_part(layout, converted_tensors[i].name,
                 is_matrix || !is_scaled(format) ? format->dtype : BANYAN_F32,
                 converted_tensors[i].ndim, converted_tensors[i].shape, dim, rank);
        if (scaled && i == 0)
            add_scales(layout, i, format->order, dim, rank);
    }
    CHECK_OK(banyan_layout_check(layout));
    return layout;
}

static banyan_transform *format_transform(const struct converted_format *format)
{
    banyan_transform *transform;
    banyan_mxfp8_options options = BANYAN_MXFP8_OPTIONS_INIT;
    options.layout = format->order;
    if (is_scaled(format))
        CHECK_OK(banyan_mxfp8_create(&options, &transform));
    else
        CHECK_OK(banyan_cast_create(NULL, &transform));
    return transform;
}

/* Float32 weights, of which rank 0 has the first rows. */
static struct following weights_open(int rank, bool on_gpu)
{
    struct following made = {0};
    bool before = following_trainers_on_gpu;
    CHECK_OK(banyan_layout_create(&made.layout));
    for (size_t i = 0; i < CONVERTED_TENSORS; i++)
        add_part(made.layout, converted_tensors[i].name, BANYAN_F32, converted_tensors[i].ndim,
                 converted_tensors[i].shape, 0, rank);
    following_trainers_on_gpu = on_gpu;
    following_alloc(&made, rank, false);
    following_trainers_on_gpu = before;
    return made;
}

static void write_weight(const banyan_piece *piece, const int64_t *index, uint64_t flat,
                         unsigned char *element, size_t elem_bytes, void *context)
{
    (void)index;
    uint32_t bits = weight_bits((size_t)piece->tensor, flat, *(const int *)context);
    memcpy(element, &bits, elem_bytes);
}

/* ---- trainer ---- */

static banyan_publication *open_format(banyan_world *world, const struct following *mine,
                                       size_t number, banyan_transform *transform)
{
    const struct converted_format *format = &converted_formats[number];
    banyan_publication_options options = BANYAN_PUBLICATION_OPTIONS_INIT;
    banyan_publication *publication;
    banyan_layout *published =
        format_layout(format, format->published_by_columns, banyan_world_rank(world), true);
    options.published = published;
    options.transform = transform;
    options.max_converted_bytes = format->step_bytes;
    options.stream = mine->stream;
    options.keep_on_host = following_keeps_on_host;
    options.compression = BANYAN_COMPRESSION_OFF; /* bytes are counted */
    CHECK_OK(
        banyan_publication_open(world, mine->layout, NULL, APART_SECRET, &options, &publication));
    banyan_layout_destroy(published);
    if (banyan_world_rank(world) == 0)
        snprintf(converting->addresses[number], sizeof converting->addresses[number], "%s",
                 banyan_publication_address(publication));
    return publication;
}

static void publish_formats(banyan_world *world, struct apart *shared)
{
    struct following mine = weights_open(banyan_world_rank(world), following_trainers_on_gpu);
    banyan_publication *publications[FORMATS];
    banyan_transform *transforms[FORMATS];
    (void)shared;
    for (size_t i = 0; i < FORMATS; i++) {
        transforms[i] = format_transform(&converted_formats[i]);
        publications[i] = open_format(world, &mine, i, transforms[i]);
    }
    CHECK_OK(banyan_world_barrier(world));
    atomic_fetch_add(&converting->open, 1);
    for (int version = 1; version <= CONVERTED_VERSIONS; version++) {
        for (size_t i = 0; i < FORMATS; i++) {
            banyan_publish_report report;
            filled_each(mine.layout, mine.tensors, write_weight, &version);
            following_send(&mine);
            CHECK_OK(
                banyan_publication_publish(publications[i], mine.set, (uint64_t)version, &report));
            following_poison(&mine);
            CHECK(report.converted_ns > 0);
            CHECK(version == 1 ? report.changed == report.elems
                               : report.changed > 0 && report.changed < report.elems / 6,
                  "%s: %lu of %lu elements changed", converted_formats[i].name,
                  (unsigned long)report.changed, (unsigned long)report.elems);
        }
        apart_wait(&converting->ready[version], FORMATS * FOLLOWING_ENGINES);
    }
    apart_wait(&converting->ended, FORMATS * FOLLOWING_ENGINES);
    for (size_t i = 0; i < FORMATS; i++) {
        banyan_publication_close(publications[i]);
        banyan_transform_destroy(transforms[i]);
    }
    following_close(&mine);
}

/* ---- engine ---- */

/* A version as a reshard with the format's transform makes it, in host memory. */
struct expected {
    banyan_layout *layout; /* with scales */
    unsigned char *memory[2 * CONVERTED_TENSORS];
    size_t bytes[2 * CONVERTED_TENSORS];
    size_t count;
};

static struct expected expected_make(const struct following *mine)
{
    struct expected made = {.layout = mine->layout,
                            .count = banyan_layout_tensor_count(mine->layout)};
    for (size_t i = 0; i < made.count; i++) {
        made.bytes[i] = following_bytes(mine, i);
        made.memory[i] = calloc(1, made.bytes[i]);
        CHECK(made.memory[i]);
    }
    return made;
}

static DLTensor expected_tensor(const struct expected *expected, size_t i)
{
    const banyan_local_tensor *local = banyan_layout_tensor(expected->layout, i);
    return (DLTensor){.data = expected->memory[i],
                      .device = BANYAN_HOST,
                      .ndim = local->ndim,
                      .dtype = local->dtype,
                      .shape = (int64_t *)local->shape};
}

static size_t expected_find(const struct expected *expected, const char *name)
{
    size_t i = 0;
    while (i < expected->count &&
           strcmp(banyan_layout_tensor(expected->layout, i)->name, name) != 0)
        i++;
    return i;
}

/* Reshard the weights of a version between the engine's ranks. */
static void expect_version(banyan_world *world, const struct converted_format *format, int version,
                           struct expected *expected)
{
    int rank = banyan_world_rank(world);
    struct following weights = weights_open(rank, false);
    banyan_layout *plain = format_layout(format, format->subscribed_by_columns, rank, false);
    banyan_transform *transform = format_transform(format);
    DLTensor tensors[CONVERTED_TENSORS];
    for (size_t i = 0; i < CONVERTED_TENSORS; i++) {
        char name[64];
        const char *local = converted_tensors[i].name;
        tensors[i] = expected_tensor(expected, expected_find(expected, local));
        snprintf(name, sizeof name, "%s_scale", local);
        size_t scales = expected_find(expected, name);
        if (scales == expected->count)
            continue;
        DLTensor bound = expected_tensor(expected, scales);
        CHECK_OK(banyan_mxfp8_bind_scales(transform, local, &bound));
    }
    banyan_tensors *set;
    banyan_reshard_plan *plan;
    banyan_copy_service *service;
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.transform = transform;
    CHECK_OK(banyan_tensors_create(plain, tensors, CONVERTED_TENSORS, &set));
    CHECK_OK(banyan_reshard_plan_create(weights.layout, plain, world, &options, &plan));
    CHECK_OK(banyan_copy_service_open(world, NULL, NULL, &service));
    filled_each(weights.layout, weights.tensors, write_weight, &version);
    CHECK_OK(banyan_reshard_execute(plan, weights.tensors, set, service, world, transform, NULL));
    banyan_reshard_plan_destroy(plan);
    banyan_copy_service_close(service);
    banyan_tensors_destroy(set);
    banyan_transform_destroy(transform);
    banyan_layout_destroy(plain);
    following_close(&weights);
}

static void check_converted(const struct following *mine, const struct expected *expected,
                            const struct converted_format *format, int version)
{
    following_fetch(mine);
    for (size_t i = 0; i < expected->count; i++) {
        const unsigned char *has = following_at(mine->tensors, i);
        for (size_t k = 0; k < expected->bytes[i]; k++)
            CHECK(has[k] == expected->memory[i][k],
                  "%s, version %d: byte %zu of %zu of \"%s\" is %u, and a reshard makes %u",
                  format->name, version, k, expected->bytes[i],
                  banyan_layout_tensor(expected->layout, i)->name, has[k], expected->memory[i][k]);
    }
}

/* Return the bytes of elements that differ, and of their gaps. */
static uint64_t changed_bytes(const struct expected *a, const struct expected *b)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < a->count; i++) {
        size_t elem = banyan_dtype_bytes(banyan_layout_tensor(a->layout, i)->dtype);
        for (size_t k = 0; k < a->bytes[i]; k += elem)
            bytes += memcmp(a->memory[i] + k, b->memory[i] + k, elem) != 0 ? elem + 1 : 0;
    }
    return bytes;
}

static void follow_format(banyan_world *world, size_t number)
{
    const struct converted_format *format = &converted_formats[number];
    int rank = banyan_world_rank(world);
    struct following mine = {.layout =
                                 format_layout(format, format->subscribed_by_columns, rank, true)};
    following_alloc(&mine, rank, true);
    banyan_subscription *subscription;
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    options.stream = mine.stream;
    options.verify = true;
    apart_wait(&converting->open, CONVERTERS);
    CHECK_OK(banyan_subscription_open(world, mine.layout, mine.set, converting->addresses[number],
                                      APART_SECRET, &options, &subscription));
    struct expected expected[2] = {expected_make(&mine), expected_make(&mine)};
    uint64_t received = 0, version = 0, staged;
    for (int wanted = 1; wanted <= CONVERTED_VERSIONS; wanted++) {
        struct expected *now = &expected[wanted % 2];
        while (version < (uint64_t)wanted) {
            CHECK_OK(banyan_subscription_wait(subscription, (uint64_t)wanted - 1, 60 * NS_PER_S,
                                              &staged));
            CHECK_OK(banyan_subscription_commit(subscription, &version));
        }
        CHECK(version == (uint64_t)wanted);
        expect_version(world, format, wanted, now);
        check_converted(&mine, now, format, wanted);
        banyan_subscription_status status = banyan_subscription_get_status(subscription);
        uint64_t bytes = status.received_bytes - received;
        uint64_t changed = changed_bytes(now, &expected[(wanted + 1) % 2]);
        /* A block without a change in a part with some has a head of two bytes. */
        CHECK(wanted == 1 || (bytes >= changed && bytes < changed + changed / 8 + 400),
              "%s: %lu bytes came for changes of %lu bytes", format->name, (unsigned long)bytes,
              (unsigned long)changed);
        received = status.received_bytes;
        atomic_fetch_add(&converting->ready[wanted], 1);
    }
    CHECK_OK(banyan_world_barrier(world));
    atomic_fetch_add(&converting->ended, 1);
    banyan_subscription_close(subscription);
    for (size_t i = 0; i < 2 * expected[0].count; i++)
        free(expected[i % 2].memory[i / 2]);
    following_close(&mine);
}

static void follow_format_0(banyan_world *world, struct apart *shared)
{
    (void)shared;
    follow_format(world, 0);
}

static void follow_format_1(banyan_world *world, struct apart *shared)
{
    (void)shared;
    follow_format(world, 1);
}

static void follow_format_2(banyan_world *world, struct apart *shared)
{
    (void)shared;
    follow_format(world, 2);
}

static void follow_format_3(banyan_world *world, struct apart *shared)
{
    (void)shared;
    follow_format(world, 3);
}

static void play_formats(struct apart *shared)
{
    static const apart_rank engines[FORMATS] = {follow_format_0, follow_format_1, follow_format_2,
                                                follow_format_3};
    struct apart_job jobs[FORMATS];
    struct apart_job trainer = apart_start(shared, CONVERTERS, 0, publish_formats);
    for (size_t i = 0; i < FORMATS; i++)
        jobs[i] = apart_start(shared, FOLLOWING_ENGINES, 1, engines[i]);
    for (size_t i = 0; i < FORMATS; i++)
        apart_end_well(&jobs[i]);
    apart_end_well(&trainer);
}

static void engines_have_what_a_reshard_makes_in_every_format(void **state)
{
    (void)state;
    converting =
        mmap(NULL, sizeof *converting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(converting != MAP_FAILED);
    apart_test(play_formats);
    munmap(converting, sizeof *converting);
}

#endif
