/* Casts during copies between GPUs, by each backend and transport: bit for bit the host's results,
 * with any strides. */
#include "core/module.h"
#include "reshard/run/convert.h"
#include "reshard/transform/mxfp8.h"
#include "support/gpu/gpu_stream.h"
#include "support/test.h"

#define DIMS_MAX 4

static const DLDataType formats[] = {{kDLFloat, 32, 1}, {kDLFloat, 16, 1}, {kDLBfloat, 16, 1}};

typedef struct cast_run {
    uint64_t seed;
    const char *backend, *transport;
    size_t slot_bytes; /* small ones cut tensors, between two blocks */
    int cases;
} cast_run;

/* A task from each rank to the next; all ranks draw equal ones. */
typedef struct cast_case {
    int ndim;
    int64_t shape[DIMS_MAX];
    int64_t to_strides[DIMS_MAX], from_strides[DIMS_MAX];
    DLDataType to, from;
    size_t to_elems, from_elems; /* elements of the memory */
    size_t to_offset, from_offset;
} cast_case;

/* Dense, dense with gaps between rows, or in reverse order. */
static size_t choose_strides(random_state *random, int ndim, const int64_t *shape, int64_t *strides)
{
    int64_t stride = random_between(random, 0, 3) == 0 ? 2 : 1;
    bool turned = random_between(random, 0, 2) == 0, roomy = random_between(random, 0, 1);
    for (int i = 0; i < ndim; i++) {
        int d = turned ? i : ndim - 1 - i;
        strides[d] = stride;
        stride *= shape[d];
        if (i == 0 && roomy)
            stride += random_between(random, 0, 1) ? 4 : random_between(random, 1, 3);
    }
    return (size_t)stride;
}

static cast_case draw_case(random_state *random)
{
    cast_case made = {.ndim = (int)random_between(random, 1, DIMS_MAX)};
    for (int d = 0; d < made.ndim; d++)
        made.shape[d] = random_between(random, 1, 3) == 1 ? random_between(random, 1, 9)
                                                          : 4 * random_between(random, 1, 9);
    made.from = formats[random_between(random, 0, 2)];
    made.to = formats[random_between(random, 0, 2)];
    made.from_offset = random_between(random, 0, 2) ? 0 : (size_t)random_between(random, 1, 7);
    made.to_offset = random_between(random, 0, 2) ? 0 : (size_t)random_between(random, 1, 7);
    made.from_elems = choose_strides(random, made.ndim, made.shape, made.from_strides);
    made.to_elems = choose_strides(random, made.ndim, made.shape, made.to_strides);
    return made;
}

static DLTensor tensor_of(cast_case *of, bool to, void *memory, DLDevice device)
{
    DLDataType dtype = to ? of->to : of->from;
    return (DLTensor){.data = memory,
                      .device = device,
                      .ndim = of->ndim,
                      .dtype = dtype,
                      .shape = of->shape,
                      .strides = to ? of->to_strides : of->from_strides,
                      .byte_offset =
                          (to ? of->to_offset : of->from_offset) * banyan_dtype_bytes(dtype)};
}

static size_t memory_bytes(const cast_case *of, bool to)
{
    return to ? (of->to_elems + of->to_offset) * banyan_dtype_bytes(of->to)
              : (of->from_elems + of->from_offset) * banyan_dtype_bytes(of->from);
}

/* All bit patterns, including all kinds of NaN, infinities and subnormals. */
static void fill(const cast_case *of, uint64_t seed, int rank, unsigned char *memory)
{
    random_state random = random_from(seed ^ (uint64_t)rank);
    for (size_t i = 0; i < memory_bytes(of, false); i++)
        memory[i] = (unsigned char)random_next(&random);
    if (of->from.bits == 32)
        for (size_t i = 3; i < memory_bytes(of, false); i += 16)
            memory[i] = (unsigned char)(random_next(&random) % 4 + 0x7d);
}

static void cast_one(banyan_world *world, banyan_copy_service *service, DLDevice device,
                     uint64_t seed)
{
    random_state random = random_from(seed);
    cast_case of = draw_case(&random);
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    size_t from_bytes = memory_bytes(&of, false), to_bytes = memory_bytes(&of, true);
    unsigned char *image = malloc(from_bytes), *wanted = malloc(to_bytes);
    void *sent;
    banyan_memory *received;
    CHECK_OK(gpu_memory()->alloc(device.device_id, from_bytes, &sent));
    CHECK_OK(banyan_memory_alloc_on(world, device, to_bytes, &received));
    fill(&of, seed, rank, image);
    gpu_copy(sent, image, from_bytes);
    gpu_fill(banyan_memory_local(received), 0xa5, to_bytes);
    banyan_send_op send = {.tensor = tensor_of(&of, false, sent, device),
                           .peer = (rank + 1) % size,
                           .task_id = 5,
                           .flags = BANYAN_COPY_OP_CAST};
    banyan_recv_op recv = {.tensor = tensor_of(&of, true, banyan_memory_local(received), device),
                           .peer = (rank + size - 1) % size,
                           .task_id = 5,
                           .flags = BANYAN_COPY_OP_CAST};
    CHECK_OK(banyan_world_barrier(world));
    CHECK_OK(banyan_copy_service_submit_send_op(service, &send));
    CHECK_OK(banyan_copy_service_submit_recv_op(service, &recv));
    CHECK_OK(banyan_copy_service_run(service, NULL));
    unsigned char *got = gpu_read(banyan_memory_local(received), to_bytes);
    fill(&of, seed, recv.peer, image);
    memset(wanted, 0xa5, to_bytes);
    DLTensor from = tensor_of(&of, false, image, BANYAN_HOST);
    DLTensor to = tensor_of(&of, true, wanted, BANYAN_HOST);
    if (banyan_dtype_equal(of.to, of.from))
        CHECK_OK(banyan_tensor_copy(&to, &from));
    else
        CHECK_OK(convert_tensor(&to, &from));
    for (size_t i = 0; i < to_bytes; i++)
        CHECK(got[i] == wanted[i], "byte %zu of %zu, %s to %s: %#x, not %#x", i, to_bytes,
              banyan_dtype_name(of.from), banyan_dtype_name(of.to), got[i], wanted[i]);
    CHECK_OK(banyan_world_barrier(world));
    free(got);
    free(wanted);
    free(image);
    gpu_memory()->free(device.device_id, sent);
    banyan_memory_free(received);
}

static banyan_copy_service *open_on(banyan_world *world, const cast_run *run, DLDevice device)
{
    banyan_copy_service *service;
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.device = device;
    options.transport = run->transport;
    options.slot_bytes = run->slot_bytes;
    CHECK_OK(banyan_copy_service_open(world, run->backend, &options, &service));
    CHECK(banyan_copy_service_capabilities(service) & BANYAN_COPY_CASTS);
    return service;
}

static void cast_many(banyan_world *world, void *context)
{
    const cast_run *run = context;
    random_state random = random_from(run->seed);
    DLDevice device = gpu_device_for(banyan_world_rank(world));
    banyan_copy_service *service = open_on(world, run, device);
    for (int i = 0; i < run->cases; i++)
        cast_one(world, service, device, random_next(&random));
    banyan_copy_service_close(service);
}

static void take_nodes(const char *count)
{
    if (count)
        setenv("BANYAN_TEST_NODES", count, 1);
    else
        unsetenv("BANYAN_TEST_NODES");
}

/* By each backend on one node, and by the pipeline between two. */
static void over_all(void (*many)(banyan_world *world, void *context), uint64_t seed)
{
    cast_run direct = {random_seed() + seed, "direct", NULL, 0, 40};
    cast_run peer = {random_seed() + seed + 1, "pipeline", "peer", 640, 10};
    cast_run ucx = {random_seed() + seed + 2, "pipeline", "ucx", 640, 10};
    cast_run nvshmem = {random_seed() + seed + 3, "pipeline", "nvshmem", 640, 10};
    const char *library = getenv("BANYAN_NVSHMEM");
    if (gpu_is_emulated()) {
        ranks_run(1, many, &direct);
        ranks_run(1, many, &peer);
    }
    ranks_run(2, many, &direct);
    ranks_run(2, many, &peer);
    if (library && access(library, R_OK) == 0 && gpu_count() > 1)
        ranks_run(2, many, &nvshmem);
    if (!module_is_there("ucx")) {
        printf("left out: this build has no UCX module\n");
        return;
    }
    take_nodes("2");
    ranks_run(2, many, &ucx);
    take_nodes(NULL);
}

static void casts_are_the_hosts_bit_for_bit(void **state)
{
    (void)state;
    over_all(cast_many, 0);
}

#define BLOCK 32

typedef struct quantize_case {
    int ndim;
    int64_t shape[DIMS_MAX], scales_shape[DIMS_MAX];
    int64_t from_strides[DIMS_MAX], to_strides[DIMS_MAX], scales_strides[DIMS_MAX];
    DLDataType from;
    banyan_mxfp8_rule rule;
    size_t from_elems, to_bytes, scales_bytes;
    size_t to_offset, scales_offset;
} quantize_case;

static quantize_case draw_quantize_case(random_state *random)
{
    quantize_case made = {.ndim = (int)random_between(random, 1, 3)};
    for (int d = 0; d < made.ndim; d++) {
        bool is_last = d == made.ndim - 1;
        made.shape[d] =
            is_last ? BLOCK * random_between(random, 1, 9) : random_between(random, 1, 9);
        made.scales_shape[d] = is_last ? made.shape[d] / BLOCK : made.shape[d];
    }
    made.from = formats[random_between(random, 0, 2)];
    made.rule = (banyan_mxfp8_rule)random_between(random, 0, 1);
    made.to_offset = random_between(random, 0, 1) ? 0 : (size_t)random_between(random, 1, 20);
    made.scales_offset = (size_t)random_between(random, 0, 5);
    made.from_elems = choose_strides(random, made.ndim, made.shape, made.from_strides);
    made.to_bytes = choose_strides(random, made.ndim, made.shape, made.to_strides) + made.to_offset;
    made.scales_bytes = choose_strides(random, made.ndim, made.scales_shape, made.scales_strides) +
                        made.scales_offset;
    return made;
}

/* Values around a magnitude of each block; some are zero, huge, or no numbers. */
static void fill_values(const quantize_case *of, uint64_t seed, int rank, unsigned char *memory)
{
    random_state random = random_from(seed ^ (uint64_t)rank);
    size_t bytes = banyan_dtype_bytes(of->from);
    for (size_t i = 0; i < of->from_elems; i++) {
        float value = (float)random_between(&random, -1000, 1000);
        int64_t kind = random_between(&random, 0, 60);
        for (int64_t e = random_between(&random, 0, 12); e > 0; e--)
            value *= random_next(&random) % 2 ? 0.5f : 2.0f;
        if (kind == 0)
            value = 0;
        convert_run(memory + i * bytes, of->from, &value, BANYAN_F32, 1);
        for (size_t b = 0; kind == 1 && i % 7 == 0 && b < bytes; b++)
            memory[i * bytes + b] = (unsigned char)random_next(&random);
    }
}

static int64_t place_of(const quantize_case *of, const int64_t *strides, const int64_t *index)
{
    int64_t at = 0;
    for (int d = 0; d < of->ndim; d++)
        at += index[d] * strides[d];
    return at;
}

/* Quantize on the host, block by block. */
static void expect_blocks(const quantize_case *of, const unsigned char *values,
                          unsigned char *elements, unsigned char *scales)
{
    uint64_t blocks = 1;
    size_t bytes = banyan_dtype_bytes(of->from);
    for (int d = 0; d < of->ndim; d++)
        blocks *= (uint64_t)of->scales_shape[d];
    for (uint64_t b = 0; b < blocks; b++) {
        int64_t index[DIMS_MAX];
        uint64_t rest = b;
        for (int d = of->ndim - 1; d >= 0; d--) {
            index[d] = (int64_t)(rest % (uint64_t)of->scales_shape[d]);
            rest /= (uint64_t)of->scales_shape[d];
        }
        unsigned char in[BLOCK * 4];
        uint8_t out[BLOCK], scale;
        int64_t scale_at = place_of(of, of->scales_strides, index);
        index[of->ndim - 1] *= BLOCK;
        int64_t from = place_of(of, of->from_strides, index);
        int64_t to = place_of(of, of->to_strides, index);
        for (int i = 0; i < BLOCK; i++)
            memcpy(in + (size_t)i * bytes,
                   values + (size_t)(from + i * of->from_strides[of->ndim - 1]) * bytes, bytes);
        mxfp8_quantize(of->rule, in, of->from, BLOCK, out, &scale);
        for (int i = 0; i < BLOCK; i++)
            elements[of->to_offset + (size_t)(to + i * of->to_strides[of->ndim - 1])] = out[i];
        scales[of->scales_offset + (size_t)scale_at] = scale;
    }
}

static void check_bytes(const char *what, const quantize_case *of, const void *there, size_t bytes,
                        const unsigned char *wanted)
{
    unsigned char *got = gpu_read(there, bytes);
    for (size_t i = 0; i < bytes; i++)
        CHECK(got[i] == wanted[i], "byte %zu of %zu of the %s of %s by rule %d: %#x, not %#x", i,
              bytes, what, banyan_dtype_name(of->from), (int)of->rule, got[i], wanted[i]);
    free(got);
}

static void quantize_one(banyan_world *world, banyan_copy_service *service, DLDevice device,
                         uint64_t seed)
{
    random_state random = random_from(seed);
    quantize_case of = draw_quantize_case(&random);
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    int from_rank = (rank + size - 1) % size;
    size_t from_bytes = of.from_elems * banyan_dtype_bytes(of.from);
    unsigned char *values = malloc(from_bytes), *elements = malloc(of.to_bytes);
    unsigned char *scales = malloc(of.scales_bytes);
    void *sent;
    banyan_memory *received;
    CHECK_OK(gpu_memory()->alloc(device.device_id, from_bytes, &sent));
    CHECK_OK(banyan_memory_alloc_on(world, device, of.to_bytes + of.scales_bytes, &received));
    char *there = banyan_memory_local(received), *scales_there = there + of.to_bytes;
    fill_values(&of, seed, rank, values);
    gpu_copy(sent, values, from_bytes);
    gpu_fill(there, 0xa5, of.to_bytes + of.scales_bytes);
    uint32_t flags = BANYAN_COPY_OP_MXFP8 | (of.rule == BANYAN_MXFP8_OCP ? BANYAN_COPY_OP_OCP : 0);
    DLTensor source = {.data = sent,
                       .device = device,
                       .ndim = of.ndim,
                       .dtype = of.from,
                       .shape = of.shape,
                       .strides = of.from_strides};
    DLTensor parts[] = {{.data = there,
                         .device = device,
                         .ndim = of.ndim,
                         .dtype = BANYAN_F8_E4M3,
                         .shape = of.shape,
                         .strides = of.to_strides,
                         .byte_offset = of.to_offset},
                        {.data = scales_there,
                         .device = device,
                         .ndim = of.ndim,
                         .dtype = BANYAN_F8_E8M0,
                         .shape = of.scales_shape,
                         .strides = of.scales_strides,
                         .byte_offset = of.scales_offset}};
    CHECK_OK(banyan_world_barrier(world));
    for (uint32_t part = 0; part < 2; part++) {
        uint32_t all = flags | (part == 1 ? BANYAN_COPY_OP_SCALES : 0);
        banyan_send_op send = {source, (rank + 1) % size, 5, part, all};
        banyan_recv_op recv = {parts[part], from_rank, 5, part, all};
        CHECK_OK(banyan_copy_service_submit_send_op(service, &send));
        CHECK_OK(banyan_copy_service_submit_recv_op(service, &recv));
    }
    CHECK_OK(banyan_copy_service_run(service, NULL));
    fill_values(&of, seed, from_rank, values);
    memset(elements, 0xa5, of.to_bytes);
    memset(scales, 0xa5, of.scales_bytes);
    expect_blocks(&of, values, elements, scales);
    check_bytes("elements", &of, there, of.to_bytes, elements);
    check_bytes("scales", &of, scales_there, of.scales_bytes, scales);
    CHECK_OK(banyan_world_barrier(world));
    free(values);
    free(elements);
    free(scales);
    gpu_memory()->free(device.device_id, sent);
    banyan_memory_free(received);
}

static void quantize_many(banyan_world *world, void *context)
{
    const cast_run *run = context;
    random_state random = random_from(run->seed);
    DLDevice device = gpu_device_for(banyan_world_rank(world));
    banyan_copy_service *service = open_on(world, run, device);
    for (int i = 0; i < run->cases; i++)
        quantize_one(world, service, device, random_next(&random));
    banyan_copy_service_close(service);
}

static void blocks_are_the_hosts_bit_for_bit(void **state)
{
    (void)state;
    over_all(quantize_many, 100);
}

static void refuse(banyan_world *world, void *context)
{
    int peer = 1 - banyan_world_rank(world);
    DLDevice device = gpu_device_for(banyan_world_rank(world));
    banyan_copy_service *service = open_on(world, context, device), *on_host;
    static int64_t shape[] = {8};
    float values[8] = {0};
    banyan_memory *memory;
    CHECK_OK(banyan_memory_alloc_on(world, device, 64, &memory));
    banyan_copy_op op = {.tensor = {.data = banyan_memory_local(memory),
                                    .device = device,
                                    .ndim = 1,
                                    .dtype = BANYAN_I32,
                                    .shape = shape},
                         .peer = peer,
                         .task_id = 1,
                         .flags = BANYAN_COPY_OP_CAST};
    CHECK_FAILS(banyan_copy_service_submit_send_op(service, &op), BANYAN_ERR_INVALID,
                "I32 is not cast");
    op.tensor.dtype = BANYAN_F32;
    CHECK_OK(banyan_copy_service_submit_send_op(service, &op));
    op.tensor.data = (char *)banyan_memory_local(memory) + 32;
    op.flags = 0;
    CHECK_OK(banyan_copy_service_submit_recv_op(service, &op));
    CHECK_FAILS(banyan_copy_service_run(service, NULL), BANYAN_ERR_MISMATCH, "task ids 1");
    CHECK_OK(banyan_copy_service_open(world, "direct", NULL, &on_host));
    op.tensor.data = values;
    op.tensor.device = BANYAN_HOST;
    op.flags = BANYAN_COPY_OP_CAST;
    CHECK_FAILS(banyan_copy_service_submit_send_op(on_host, &op), BANYAN_ERR_UNSUPPORTED,
                "does not cast elements");
    banyan_copy_service_close(on_host);
    banyan_copy_service_close(service);
    banyan_memory_free(memory);
}

static void types_that_cannot_be_cast_are_refused(void **state)
{
    (void)state;
    cast_run direct = {.backend = "direct"}, pipeline = {.backend = "pipeline"};
    ranks_run(2, refuse, &direct);
    ranks_run(2, refuse, &pipeline);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(casts_are_the_hosts_bit_for_bit),
        cmocka_unit_test(blocks_are_the_hosts_bit_for_bit),
        cmocka_unit_test(types_that_cannot_be_cast_are_refused),
    };
    gpu_count();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
