/* Reshards between GPUs: random layouts; every element arrives at its place with its newest value,
 * padding is zero, and nothing else is touched. */
#include "reshard/filled.h"
#include "reshard/random_case.h"
#include "support/gpu/gpu_stream.h"

#define PASSES 3
#define DELAY_BYTES ((size_t)1 << 20)

/* One side's tensors on the device, with a copy on the host for filling and checking. */
typedef struct twins {
    banyan_layout *layout;
    banyan_tensors *here, *there;
} twins;

typedef struct gpu_run {
    uint64_t seed;
    const char *backend;
    int cases;
    bool graph;
} gpu_run;

static twins twins_make(const random_case *of, banyan_world *world, DLDevice device,
                        bool is_destination)
{
    twins made = {.layout = case_layout(of, banyan_world_rank(world), is_destination)};
    CHECK_OK(banyan_tensors_alloc(made.layout, NULL, &made.here));
    CHECK_OK(
        banyan_tensors_alloc_on(made.layout, is_destination ? world : NULL, device, &made.there));
    return made;
}

static void twins_free(twins *of)
{
    banyan_tensors_destroy(of->here);
    banyan_tensors_destroy(of->there);
    banyan_layout_destroy(of->layout);
}

static size_t tensor_bytes(const DLTensor *tensor)
{
    return filled_elems(tensor) * banyan_dtype_bytes(tensor->dtype);
}

static void upload(const twins *of)
{
    for (size_t i = 0; i < banyan_tensors_count(of->here); i++) {
        const DLTensor *here = banyan_tensors_get(of->here, i);
        gpu_copy(banyan_tensors_get(of->there, i)->data, here->data, tensor_bytes(here));
    }
}

static void download(const twins *of)
{
    for (size_t i = 0; i < banyan_tensors_count(of->here); i++) {
        const DLTensor *here = banyan_tensors_get(of->here, i);
        gpu_copy(here->data, banyan_tensors_get(of->there, i)->data, tensor_bytes(here));
    }
}

/* The device's tensors receive the host's values milliseconds after this is queued. */
static void update_later(const twins *of, DLDevice device, void *stream, void *scratch)
{
    gpu_stream_delay(device, stream, scratch, DELAY_BYTES);
    for (size_t i = 0; i < banyan_tensors_count(of->here); i++) {
        const DLTensor *here = banyan_tensors_get(of->here, i);
        gpu_stream_copy(device, stream, banyan_tensors_get(of->there, i)->data, here->data,
                        tensor_bytes(here));
    }
}

static void run_case(banyan_world *world, const gpu_run *run, uint64_t seed,
                     banyan_copy_service *service, DLDevice device, void *stream, void *scratch)
{
    random_state random = random_from(seed);
    case_options options = {.world_size = banyan_world_size(world),
                            .max_elems = random_between(&random, 1, 4000)};
    if (options.world_size > 1 && random_next(&random) % 2)
        options.first_destination_rank = (int)random_between(&random, 1, options.world_size - 1);
    random_case *of = case_make(random_next(&random), &options);
    twins source = twins_make(of, world, device, false);
    twins destination = twins_make(of, world, device, true);
    banyan_reshard_plan *plan;
    CHECK_OK(banyan_reshard_plan_create(source.layout, destination.layout, world, NULL, &plan));
    void *graph = NULL;
    for (int pass = 1; pass <= PASSES; pass++) {
        filled_make(source.layout, source.here, pass);
        filled_poison(destination.here);
        upload(&destination);
        CHECK_OK(banyan_world_barrier(world));
        bool captures = run->graph && pass == 2;
        if (captures)
            gpu_capture_begin(device, stream);
        if (!graph) {
            update_later(&source, device, stream, scratch);
            CHECK_OK(banyan_reshard_execute(plan, source.there, destination.there, service, world,
                                            NULL, stream));
            CHECK(banyan_tensors_get_state(destination.there) == BANYAN_TENSORS_WHOLE);
            CHECK(banyan_tensors_version(destination.there) == (uint64_t)pass);
        }
        if (captures)
            graph = gpu_capture_end(device, stream);
        if (graph)
            gpu_graph_launch(device, graph, stream);
        gpu_stream_wait(device, stream);
        CHECK_OK(banyan_copy_service_check(service));
        download(&destination);
        filled_check(destination.layout, destination.here, pass, false);
    }
    CHECK_OK(banyan_world_barrier(world));
    if (graph)
        gpu_graph_destroy(device, graph);
    banyan_reshard_plan_destroy(plan);
    twins_free(&source);
    twins_free(&destination);
    free(of);
}

static banyan_copy_service *open_on(banyan_world *world, const char *backend, DLDevice device)
{
    banyan_copy_service *service;
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.device = device;
    CHECK_OK(banyan_copy_service_open(world, backend, &options, &service));
    return service;
}

static void run_many(banyan_world *world, void *context)
{
    const gpu_run *run = context;
    random_state random = random_from(run->seed);
    DLDevice device = gpu_device_for(banyan_world_rank(world));
    banyan_copy_service *service = open_on(world, run->backend, device);
    void *stream = gpu_stream_create(device), *scratch;
    CHECK_OK(gpu_memory()->alloc(device.device_id, DELAY_BYTES, &scratch));
    for (int i = 0; i < run->cases; i++)
        run_case(world, run, random_next(&random), service, device, stream, scratch);
    gpu_memory()->free(device.device_id, scratch);
    gpu_stream_destroy(device, stream);
    banyan_copy_service_close(service);
}

static void every_element_lands_on_gpus(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks += 3) {
        gpu_run run = {.seed = random_seed() + (uint64_t)ranks, .cases = 8};
        ranks_run(ranks, run_many, &run);
    }
}

static void a_reshard_can_be_captured(void **state)
{
    (void)state;
    gpu_run run = {.seed = random_seed() + 10, .cases = 4, .graph = true};
    ranks_run(3, run_many, &run);
}

#define CAST_TENSORS 5
#define ALL_OF_IT 2 /* the dimension of a tensor that each rank has */

static const struct cast_tensor {
    const char *name;
    int64_t shape[2];
    int source_dim, destination_dim; /* sharded */
    DLDataType source, destination;
} cast_tensors[CAST_TENSORS] = {
    {"up", {48, 64}, 0, 1, {kDLFloat, 32, 1}, {kDLBfloat, 16, 1}},
    {"down", {36, 50}, 1, 0, {kDLBfloat, 16, 1}, {kDLFloat, 16, 1}},
    {"same", {12, 24}, 0, 1, {kDLFloat, 32, 1}, {kDLFloat, 32, 1}},
    {"norm", {36, 40}, 0, ALL_OF_IT, {kDLFloat, 32, 1}, {kDLBfloat, 16, 1}},
    {"router", {60, 28}, 1, ALL_OF_IT, {kDLBfloat, 16, 1}, {kDLFloat, 32, 1}},
};

static banyan_placement placement_of(int dim)
{
    return (banyan_placement){dim == ALL_OF_IT ? BANYAN_REPLICATE : BANYAN_SHARD,
                              dim == ALL_OF_IT ? 0 : dim};
}

static banyan_layout *cast_layout(int ranks, int rank, bool is_destination)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    banyan_mesh mesh = {.ndim = 1, .extent = {ranks}};
    for (int t = 0; t < CAST_TENSORS; t++) {
        const struct cast_tensor *of = &cast_tensors[t];
        banyan_placement placement =
            placement_of(is_destination ? of->destination_dim : of->source_dim);
        banyan_layout_add_sharded(layout, of->name, is_destination ? of->destination : of->source,
                                  2, of->shape, &mesh, &placement, rank);
    }
    CHECK_OK(banyan_layout_check(layout));
    return layout;
}

static twins cast_twins(banyan_world *world, DLDevice device, bool is_destination)
{
    twins made = {
        .layout = cast_layout(banyan_world_size(world), banyan_world_rank(world), is_destination)};
    CHECK_OK(banyan_tensors_alloc(made.layout, NULL, &made.here));
    CHECK_OK(banyan_tensors_alloc_on(made.layout, world, device, &made.there));
    return made;
}

/* The host's result for the same source is the reference. */
static void cast_on_both(banyan_world *world, void *context)
{
    (void)context;
    DLDevice device = gpu_device_for(banyan_world_rank(world));
    twins source = cast_twins(world, device, false), destination = cast_twins(world, device, true);
    banyan_transform *cast;
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    banyan_reshard_plan *plan;
    banyan_copy_service *on_gpu = open_on(world, NULL, device), *on_host;
    CHECK_OK(banyan_copy_service_open(world, "direct", NULL, &on_host));
    CHECK_OK(banyan_cast_create(NULL, &cast));
    options.transform = cast;
    CHECK_OK(banyan_reshard_plan_create(source.layout, destination.layout, world, &options, &plan));
    void *stream = gpu_stream_create(device);
    for (int pass = 1; pass <= PASSES; pass++) {
        filled_make(source.layout, source.here, pass);
        filled_poison(destination.here);
        upload(&source);
        upload(&destination);
        CHECK_OK(banyan_world_barrier(world));
        CHECK_OK(banyan_reshard_execute(plan, source.there, destination.there, on_gpu, world, cast,
                                        stream));
        gpu_stream_wait(device, stream);
        CHECK_OK(banyan_copy_service_check(on_gpu));
        CHECK_OK(banyan_reshard_execute(plan, source.here, destination.here, on_host, world, cast,
                                        NULL));
        for (size_t i = 0; i < banyan_tensors_count(destination.here); i++) {
            const DLTensor *here = banyan_tensors_get(destination.here, i);
            void *got =
                gpu_read(banyan_tensors_get(destination.there, i)->data, tensor_bytes(here));
            CHECK(memcmp(got, here->data, tensor_bytes(here)) == 0, "tensor %zu in pass %d", i,
                  pass);
            free(got);
        }
    }
    CHECK_OK(banyan_world_barrier(world));
    gpu_stream_destroy(device, stream);
    banyan_reshard_plan_destroy(plan);
    banyan_transform_destroy(cast);
    banyan_copy_service_close(on_gpu);
    banyan_copy_service_close(on_host);
    twins_free(&source);
    twins_free(&destination);
}

static void casts_happen_on_the_way(void **state)
{
    (void)state;
    ranks_run(3, cast_on_both, NULL);
    ranks_run(4, cast_on_both, NULL);
}

typedef struct quantized {
    banyan_mxfp8_layout layout;
    banyan_mxfp8_rule rule;
    int64_t shape[2];
    int source_dim, destination_dim; /* sharded */
    DLDataType from;
    bool stacked; /* the global tensor stacks two such matrices; this is one of them */
    uint64_t min_split_bytes;
} quantized;

/* The layout's matrix as one of two that a global tensor stacks. */
static banyan_layout *stacked_layout(banyan_layout *plain)
{
    banyan_layout *made;
    CHECK_OK(banyan_layout_create(&made));
    for (size_t i = 0; i < banyan_layout_tensor_count(plain); i++) {
        const banyan_local_tensor *local = banyan_layout_tensor(plain, i);
        banyan_layout_add_tensor(made, local->name, local->dtype, local->ndim, local->shape);
    }
    for (size_t i = 0; i < banyan_layout_piece_count(plain); i++) {
        const banyan_piece *of = banyan_layout_piece(plain, i);
        banyan_piece piece = *of;
        piece.ndim = piece.box.ndim = 3;
        piece.shape[0] = 2;
        piece.box.start[0] = piece.box.extent[0] = 1;
        piece.dim_map[0] = BANYAN_NO_DIM;
        for (int d = 0; d < 2; d++) {
            piece.shape[d + 1] = of->shape[d];
            piece.box.start[d + 1] = of->box.start[d];
            piece.box.extent[d + 1] = of->box.extent[d];
            piece.dim_map[d + 1] = of->dim_map[d];
        }
        banyan_layout_add_piece(made, &piece);
    }
    banyan_layout_destroy(plain);
    return made;
}

static twins quantized_twins(banyan_world *world, const quantized *of, DLDevice device,
                             bool is_destination)
{
    twins made;
    banyan_mesh mesh = {.ndim = 1, .extent = {banyan_world_size(world)}};
    banyan_placement placement =
        placement_of(is_destination ? of->destination_dim : of->source_dim);
    CHECK_OK(banyan_layout_create(&made.layout));
    banyan_layout_add_sharded(made.layout, "w", is_destination ? BANYAN_F8_E4M3 : of->from, 2,
                              of->shape, &mesh, &placement, banyan_world_rank(world));
    if (of->stacked)
        made.layout = stacked_layout(made.layout);
    CHECK_OK(banyan_tensors_alloc(made.layout, NULL, &made.here));
    CHECK_OK(banyan_tensors_alloc_on(made.layout, world, device, &made.there));
    return made;
}

/* A transform with scales bound to `memory`, whose size is returned. */
static banyan_transform *bind_memory(const quantized *of, const DLTensor *tensor, DLDevice device,
                                     void *memory, size_t *bytes)
{
    banyan_transform *made;
    banyan_mxfp8_options options = BANYAN_MXFP8_OPTIONS_INIT;
    int64_t shape[BANYAN_MAX_DIMS];
    int ndim;
    options.layout = of->layout;
    options.rule = of->rule;
    CHECK_OK(banyan_mxfp8_create(&options, &made));
    CHECK_OK(banyan_mxfp8_scales_shape(of->layout, tensor->ndim, tensor->shape, &ndim, shape));
    DLTensor scales = {
        .data = memory, .device = device, .ndim = ndim, .dtype = BANYAN_F8_E8M0, .shape = shape};
    *bytes = filled_elems(&(DLTensor){.ndim = ndim, .shape = shape});
    CHECK_OK(banyan_mxfp8_bind_scales(made, "w", &scales));
    return made;
}

#define SCALES_BYTES ((size_t)1 << 16)

static banyan_reshard_plan *plan_with(const quantized *of, const twins *source,
                                      const twins *destination, banyan_world *world,
                                      const banyan_transform *transform)
{
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    banyan_reshard_plan *plan;
    options.transform = transform;
    options.min_split_bytes = of->min_split_bytes;
    CHECK_OK(
        banyan_reshard_plan_create(source->layout, destination->layout, world, &options, &plan));
    return plan;
}

/* Return the bytes that this rank passes on in its node. */
static uint64_t quantize_on_both(banyan_world *world, const quantized *of)
{
    DLDevice device = gpu_device_for(banyan_world_rank(world));
    twins source = quantized_twins(world, of, device, false);
    twins destination = quantized_twins(world, of, device, true);
    banyan_memory *scales_there;
    unsigned char *scales_here = malloc(SCALES_BYTES);
    size_t bytes;
    CHECK_OK(banyan_memory_alloc_on(world, device, SCALES_BYTES, &scales_there));
    const DLTensor *tensor = banyan_tensors_get(destination.here, 0);
    banyan_transform *here = bind_memory(of, tensor, BANYAN_HOST, scales_here, &bytes);
    banyan_transform *there =
        bind_memory(of, tensor, device, banyan_memory_local(scales_there), &bytes);
    CHECK(bytes <= SCALES_BYTES);
    banyan_reshard_plan *plan_here = plan_with(of, &source, &destination, world, here);
    banyan_reshard_plan *plan_there = plan_with(of, &source, &destination, world, there);
    banyan_reshard_plan_bytes planned = banyan_reshard_plan_count_bytes(plan_there);
    CHECK(planned.fetched_again == 0);
    banyan_copy_service *on_gpu = open_on(world, NULL, device), *on_host;
    CHECK_OK(banyan_copy_service_open(world, "direct", NULL, &on_host));
    for (int pass = 1; pass <= PASSES; pass++) {
        filled_make(source.layout, source.here, pass);
        filled_poison(destination.here);
        upload(&source);
        upload(&destination);
        gpu_poison(banyan_memory_local(scales_there), SCALES_BYTES);
        CHECK_OK(banyan_world_barrier(world));
        CHECK_OK(banyan_reshard_execute(plan_there, source.there, destination.there, on_gpu, world,
                                        there, NULL));
        gpu_stream_wait(device, NULL);
        CHECK_OK(banyan_copy_service_check(on_gpu));
        CHECK_OK(banyan_reshard_execute(plan_here, source.here, destination.here, on_host, world,
                                        here, NULL));
        unsigned char *got =
            gpu_read(banyan_tensors_get(destination.there, 0)->data, tensor_bytes(tensor));
        CHECK(memcmp(got, tensor->data, tensor_bytes(tensor)) == 0, "elements in pass %d", pass);
        free(got);
        got = gpu_read(banyan_memory_local(scales_there), bytes);
        CHECK(memcmp(got, scales_here, bytes) == 0, "scales in pass %d", pass);
        free(got);
    }
    CHECK_OK(banyan_world_barrier(world));
    banyan_reshard_plan_destroy(plan_here);
    banyan_reshard_plan_destroy(plan_there);
    banyan_transform_destroy(here);
    banyan_transform_destroy(there);
    banyan_copy_service_close(on_gpu);
    banyan_copy_service_close(on_host);
    banyan_memory_free(scales_there);
    free(scales_here);
    twins_free(&source);
    twins_free(&destination);
    return planned.passed_on;
}

static void quantize_plainly_and_swizzled(banyan_world *world, void *context)
{
    (void)context;
    quantized plain = {
        BANYAN_MXFP8_PLAIN, BANYAN_MXFP8_ROUND_UP, {24, 320}, 0, 1, BANYAN_BF16, false, 0};
    quantize_on_both(world, &plain);
    plain.stacked = true;
    quantize_on_both(world, &plain);
    quantized swizzled = {
        BANYAN_MXFP8_SWIZZLED, BANYAN_MXFP8_OCP, {256, 512}, 1, 0, BANYAN_F32, false, 0};
    quantize_on_both(world, &swizzled);
    swizzled.stacked = true;
    quantize_on_both(world, &swizzled);
}

static quantized draw_quantized(random_state *random, int ranks)
{
    static const DLDataType formats[] = {{kDLFloat, 32, 1}, {kDLFloat, 16, 1}, {kDLBfloat, 16, 1}};
    quantized of = {
        .layout = random_between(random, 0, 2) ? BANYAN_MXFP8_PLAIN : BANYAN_MXFP8_SWIZZLED,
        .rule = (banyan_mxfp8_rule)random_between(random, 0, 1),
        .source_dim = (int)random_between(random, 0, 1),
        .destination_dim = (int)random_between(random, 0, ALL_OF_IT),
        .from = formats[random_between(random, 0, 2)],
        .stacked = random_between(random, 0, 1),
    };
    of.shape[0] = ranks * random_between(random, 1, 12);
    of.shape[1] = ranks * 32 * random_between(random, 1, 4);
    of.min_split_bytes = (uint64_t)random_between(random, 64, 4000);
    /* Two ranks of a node get half of a box each: whole tiles. */
    if (of.layout == BANYAN_MXFP8_SWIZZLED) {
        of.source_dim = 0;
        of.destination_dim = of.destination_dim > 0 ? ALL_OF_IT : 0;
        of.shape[0] = ranks * 256;
        of.shape[1] = 128;
        of.min_split_bytes = 1 << 14;
    }
    return of;
}

static void quantize_many(banyan_world *world, void *context)
{
    random_state random = random_from(*(const uint64_t *)context);
    int ranks = banyan_world_size(world);
    uint64_t passed_on = 0, all[8] = {0};
    for (int i = 0; i < 3; i++) {
        quantized of = draw_quantized(&random, ranks);
        passed_on += quantize_on_both(world, &of);
    }
    quantized all_of_it = {BANYAN_MXFP8_PLAIN, BANYAN_MXFP8_OCP, {8, 256}, 0,
                           ALL_OF_IT,          BANYAN_BF16,      false,    64};
    passed_on += quantize_on_both(world, &all_of_it);
    CHECK_OK(banyan_world_allgather(world, &passed_on, sizeof passed_on, all));
    for (int rank = 1; rank < ranks; rank++)
        all[0] += all[rank];
    CHECK((all[0] > 0) == (banyan_world_node_count(world) > 1),
          "%llu bytes of blocks are passed on in the nodes", (unsigned long long)all[0]);
}

static void blocks_are_quantized_on_the_way(void **state)
{
    (void)state;
    uint64_t seed = random_seed() + 20;
    ranks_run(2, quantize_plainly_and_swizzled, NULL);
    ranks_run(4, quantize_many, &seed);
}

/* An MXFP8 feature that only the host has. */
typedef struct refusal {
    quantized of;
    bool reads_back;
    bool pads; /* the destination */
    const char *sentence;
} refusal;

/* Rank r holds rows 4 × r to 4 × r + 3 of eight, followed by a row of padding. */
static twins padded_twins(banyan_world *world, const quantized *of, DLDevice device)
{
    twins made;
    int64_t rows = of->shape[0] / banyan_world_size(world), cols = of->shape[1];
    int64_t shape[] = {rows + 1, cols};
    CHECK_OK(banyan_layout_create(&made.layout));
    int tensor = banyan_layout_add_tensor(made.layout, "w", BANYAN_F8_E4M3, 2, shape);
    banyan_piece piece = {.tensor = tensor,
                          .name = "w",
                          .ndim = 2,
                          .shape = {of->shape[0], cols},
                          .box = {2, {banyan_world_rank(world) * rows, 0}, {rows, cols}},
                          .dim_map = {0, 1}};
    banyan_layout_add_piece(made.layout, &piece);
    banyan_layout_add_padding(made.layout, tensor, &(banyan_box){2, {rows, 0}, {1, cols}});
    CHECK_OK(banyan_tensors_alloc(made.layout, NULL, &made.here));
    CHECK_OK(banyan_tensors_alloc_on(made.layout, world, device, &made.there));
    return made;
}

/* Check that nothing moves when it is refused. */
static void refuse_one(banyan_world *world, const refusal *what)
{
    const quantized *of = &what->of;
    DLDevice device = gpu_device_for(banyan_world_rank(world));
    twins values = quantized_twins(world, of, device, false);
    twins blocks =
        what->pads ? padded_twins(world, of, device) : quantized_twins(world, of, device, true);
    twins *source = what->reads_back ? &blocks : &values;
    twins *destination = what->reads_back ? &values : &blocks;
    banyan_memory *scales;
    size_t bytes;
    CHECK_OK(banyan_memory_alloc_on(world, device, SCALES_BYTES, &scales));
    banyan_transform *transform = bind_memory(of, banyan_tensors_get(blocks.here, 0), device,
                                              banyan_memory_local(scales), &bytes);
    banyan_reshard_plan *plan = plan_with(of, source, destination, world, transform);
    banyan_copy_service *service = open_on(world, NULL, device);
    filled_poison(destination->here);
    upload(destination);
    CHECK_FAILS(banyan_reshard_execute(plan, source->there, destination->there, service, world,
                                       transform, NULL),
                BANYAN_ERR_UNSUPPORTED, what->sentence);
    CHECK_OK(banyan_world_barrier(world));
    gpu_stream_wait(device, NULL);
    const DLTensor *here = banyan_tensors_get(destination->here, 0);
    void *got = gpu_read(banyan_tensors_get(destination->there, 0)->data, tensor_bytes(here));
    CHECK(memcmp(got, here->data, tensor_bytes(here)) == 0, "something moved: %s", what->sentence);
    free(got);
    banyan_reshard_plan_destroy(plan);
    banyan_transform_destroy(transform);
    banyan_copy_service_close(service);
    banyan_memory_free(scales);
    twins_free(&values);
    twins_free(&blocks);
}

static void refuse_mxfp8(banyan_world *world)
{
    static const refusal all[] = {
        {{BANYAN_MXFP8_PLAIN, BANYAN_MXFP8_ROUND_UP, {8, 80}, 0, 1, BANYAN_BF16, false, 0},
         .sentence = "rows are not whole MXFP8 blocks"},
        {{BANYAN_MXFP8_SWIZZLED, BANYAN_MXFP8_ROUND_UP, {64, 128}, 1, 0, BANYAN_BF16, false, 0},
         .sentence = "swizzled scales are not whole tiles, of 128 × 128 elements"},
        {{BANYAN_MXFP8_PLAIN, BANYAN_MXFP8_OCP, {64, 128}, 1, 0, BANYAN_F32, false, 0},
         .reads_back = true,
         .sentence = "read back from MXFP8"},
        {{BANYAN_MXFP8_PLAIN, BANYAN_MXFP8_OCP, {8, 64}, 1, 0, BANYAN_F32, false, 0},
         .pads = true,
         .sentence = "has padding, whose scales are written on the host only"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        refuse_one(world, &all[i]);
}

/* Check that nothing moves when a run with a value map is refused. */
static void refuse_value_map(banyan_world *world)
{
    DLDevice device = gpu_device_for(banyan_world_rank(world));
    banyan_layout *layouts[2];
    banyan_tensors *tensors[2];
    for (int side = 0; side < 2; side++) {
        CHECK_OK(banyan_layout_create(&layouts[side]));
        banyan_piece piece = {.name = "A_log",
                              .ndim = 1,
                              .shape = {8},
                              .box = {1, {0}, {8}},
                              .flags = side == 0 ? 0 : BANYAN_PIECE_NEGATIVE_EXP};
        piece.tensor = banyan_layout_add_tensor(layouts[side], "A", BANYAN_F32, 1, piece.shape);
        banyan_layout_add_piece(layouts[side], &piece);
        CHECK_OK(banyan_tensors_alloc_on(layouts[side], world, device, &tensors[side]));
    }
    banyan_reshard_plan *plan;
    CHECK_OK(banyan_reshard_plan_create(layouts[0], layouts[1], world, NULL, &plan));
    banyan_copy_service *service = open_on(world, NULL, device);
    CHECK_FAILS(banyan_reshard_execute(plan, tensors[0], tensors[1], service, world, NULL, NULL),
                BANYAN_ERR_UNSUPPORTED, "of \"A_log\" from rank");
    CHECK(strstr(banyan_last_error(), "is to become its negative_exp, which runs compute on the "
                                      "host only, and the copy service moves tensors in GPU ") &&
              strstr(banyan_last_error(), ": move this tensor in host memory, with a copy service "
                                          "on the host, and copy the result to the GPU"),
          "%s", banyan_last_error());
    banyan_copy_service_close(service);
    banyan_reshard_plan_destroy(plan);
    for (int side = 0; side < 2; side++) {
        banyan_tensors_destroy(tensors[side]);
        banyan_layout_destroy(layouts[side]);
    }
}

/* Files require host memory: neither the error path nor an argument on a GPU is touched. */
static void refuse_checkpoints(const twins *of, banyan_world *world)
{
    size_t count = banyan_tensors_count(of->there);
    DLTensor *lying = calloc(count + 1, sizeof *lying);
    for (size_t i = 0; i < count; i++) {
        lying[i] = *banyan_tensors_get(of->there, i);
        lying[i].device = BANYAN_HOST;
    }
    banyan_tensors *claimed, *sets[2] = {of->there, NULL};
    CHECK_OK(banyan_tensors_create(of->layout, lying, count, &claimed));
    sets[1] = claimed;
    for (int i = 0; i < 2; i++)
        CHECK_FAILS(banyan_checkpoint_save("/tmp/banyan-never", of->layout, sets[i], world, NULL),
                    BANYAN_ERR_INVALID, "checkpoints are saved from host memory");
    CHECK(strstr(banyan_last_error(), "tensor local.") &&
              strstr(banyan_last_error(), " lies in GPU "),
          "%s", banyan_last_error());
    CHECK(access("/tmp/banyan-never", F_OK) != 0);
    banyan_tensors_destroy(claimed);
    free(lying);
}

static void refuse(banyan_world *world, void *context)
{
    (void)context;
    DLDevice device = gpu_device_for(banyan_world_rank(world));
    case_options options = {.world_size = banyan_world_size(world), .max_elems = 500};
    random_case *of = case_make(3, &options);
    twins source = twins_make(of, world, device, false);
    twins destination = twins_make(of, world, device, true);
    banyan_reshard_options summed = BANYAN_RESHARD_OPTIONS_INIT;
    summed.checksums = true;
    banyan_reshard_plan *plan;
    CHECK_OK(banyan_reshard_plan_create(source.layout, destination.layout, world, &summed, &plan));
    banyan_copy_service *service = open_on(world, NULL, device), *on_host;
    CHECK_FAILS(
        banyan_reshard_execute(plan, source.there, destination.there, service, world, NULL, NULL),
        BANYAN_ERR_UNSUPPORTED, "checksums");
    banyan_reshard_plan_destroy(plan);
    CHECK_OK(banyan_reshard_plan_create(source.layout, destination.layout, world, NULL, &plan));
    CHECK_FAILS(
        banyan_reshard_execute(plan, source.here, destination.there, service, world, NULL, NULL),
        BANYAN_ERR_INVALID,
        "of the source lies in host memory, and the copy service moves tensors in GPU ");
    CHECK(strstr(banyan_last_error(), "tensor \"local.") &&
              strstr(banyan_last_error(), "open the service without banyan_copy_options.device"),
          "%s", banyan_last_error());
    CHECK_OK(banyan_copy_service_open(world, "direct", NULL, &on_host));
    CHECK_FAILS(
        banyan_reshard_execute(plan, source.there, destination.here, on_host, world, NULL, NULL),
        BANYAN_ERR_INVALID, "tensor \"local.");
    CHECK(
        strstr(banyan_last_error(), "of the source lies in GPU ") &&
            strstr(banyan_last_error(), "open the service with banyan_copy_options.device = GPU "),
        "%s", banyan_last_error());
    CHECK_FAILS(
        banyan_reshard_execute(plan, source.here, destination.there, on_host, world, NULL, NULL),
        BANYAN_ERR_INVALID, "of the destination lies in GPU ");
    refuse_checkpoints(&destination, world);
    refuse_value_map(world);
    banyan_reshard_plan_destroy(plan);
    banyan_copy_service_close(service);
    banyan_copy_service_close(on_host);
    twins_free(&source);
    twins_free(&destination);
    free(of);
}

static void refuse_all(banyan_world *world, void *context)
{
    refuse(world, context);
    refuse_mxfp8(world);
}

static void runs_that_need_the_host_are_refused(void **state)
{
    (void)state;
    ranks_run(2, refuse_all, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_lands_on_gpus),
        cmocka_unit_test(a_reshard_can_be_captured),
        cmocka_unit_test(casts_happen_on_the_way),
        cmocka_unit_test(blocks_are_quantized_on_the_way),
        cmocka_unit_test(runs_that_need_the_host_are_refused),
    };
    gpu_count();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
