/* Inputs of calls that concern one rank only: texts, layouts, programs, files. */
#include "reshard/elements.h"
#include "soak/inputs.h"
#include "support/folder.h"

#include <banyan/check.h>
#include <banyan/checkpoint.h>
#include <banyan/collective.h>
#include <banyan/mixed.h>
#include <banyan/program.h>
#include <banyan/simulate.h>
#include <banyan/transform.h>

#define ANY(random, list) ((list)[random_next(random) % (sizeof(list) / sizeof((list)[0]))])

static void parse_a_spec(inputs *of)
{
    banyan_spec spec;
    const char *text = input_text(&of->alone);
    if (text && input_taken(of, banyan_spec_parse(text, &spec)))
        CHECK(banyan_spec_world_size(&spec) == spec.tp * spec.pp * spec.dp * spec.fsdp &&
                  spec.tp >= 1 && spec.pp >= 1 && spec.dp >= 1 && spec.fsdp >= 1,
              "\"%s\"", text);
}

static void compile_an_algorithm(inputs *of)
{
    banyan_algorithm_info info;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_plan *plan = NULL;
    if (!input_taken(of, banyan_algorithm_at((size_t)random_between(&of->alone, 0, 70), &info)))
        return;
    params.ranks = (int)random_between(&of->alone, -1, 9);
    params.ranks_per_node = (int)random_between(&of->alone, -1, 5);
    params.in_place = input_chance(&of->alone, 2);
    params.op = (banyan_reduce_op)random_between(&of->alone, -1, 4);
    params.root = (int)random_between(&of->alone, -1, 9);
    params.shift = input_int(&of->alone);
    params.instances = (int)random_between(&of->alone, -1, 5);
    params.unit_bytes = (uint64_t)random_between(&of->alone, 0, 5000);
    params.size = input_chance(&of->alone, 9) ? random_next(&of->alone) % 200 : sizeof params;
    if (input_taken(of, banyan_algorithm_compile(info.name, &params, &plan)) &&
        params.size == sizeof params) {
        banyan_plan_info made = banyan_plan_describe(plan);
        CHECK(made.ranks == params.ranks && made.collective == info.collective, "%s", info.name);
    }
    banyan_plan_destroy(plan);
}

void inputs_texts(inputs *of)
{
    DLDataType dtype;
    banyan_mixed_op op;
    banyan_mixed_mode mode;
    const banyan_copy_backend *backend;
    for (int i = 0; i < 20; i++) {
        const char *text = input_text(&of->alone);
        parse_a_spec(of);
        if (!text)
            continue;
        if (input_taken(of, banyan_dtype_parse(text, &dtype)))
            CHECK(banyan_dtype_bytes(dtype) > 0, "\"%s\"", text);
        if (input_taken(of, banyan_mixed_op_parse(text, &op)))
            CHECK(strcmp(banyan_mixed_op_name(op), text) == 0, "\"%s\"", text);
        if (input_taken(of, banyan_mixed_mode_parse(text, &mode)))
            CHECK(strcmp(banyan_mixed_mode_name(mode), text) == 0, "\"%s\"", text);
        (void)input_taken(of, banyan_copy_backend_find(text, &backend));
    }
    compile_an_algorithm(of);
}

static void any_shape(random_state *random, int *ndim, int64_t *shape)
{
    *ndim = input_chance(random, 20) ? input_int(random) : (int)random_between(random, 0, 3);
    for (int d = 0; d < BANYAN_MAX_DIMS; d++)
        shape[d] = input_extent(random);
}

static banyan_piece any_piece(random_state *random, int tensor, const char *name, int ndim,
                              const int64_t *shape)
{
    banyan_piece piece = {.tensor = tensor, .name = name, .ndim = ndim};
    bool is_wild = input_chance(random, 4);
    memcpy(piece.shape, shape, sizeof piece.shape);
    piece.box.ndim = input_chance(random, 20) ? input_int(random) : ndim;
    for (int d = 0; d < BANYAN_MAX_DIMS; d++) {
        piece.box.start[d] = is_wild ? input_extent(random) : 0;
        piece.box.extent[d] = is_wild ? input_extent(random) : shape[d];
        piece.local_start[d] = is_wild && input_chance(random, 3) ? input_extent(random) : 0;
        piece.dim_map[d] = is_wild && input_chance(random, 3) ? input_int(random) : d;
    }
    if (is_wild && input_chance(random, 4))
        piece.tensor = input_int(random);
    if (is_wild && input_chance(random, 4))
        piece.shape[0] = input_extent(random);
    if (input_chance(random, 10)) {
        piece.replicas.first = input_int(random);
        for (int l = 0; l < BANYAN_RANK_SET_LEVELS; l++) {
            piece.replicas.count[l] = input_int(random);
            piece.replicas.stride[l] = input_int(random);
        }
    }
    if (input_chance(random, 10))
        piece.fallback_name = "embedding";
    return piece;
}

static void add_megatron(inputs *of, banyan_layout *layout)
{
    random_state *random = &of->alone;
    int64_t sizes[3];
    int ranks[4];
    banyan_megatron_tensor tensor = {.name = "local", .resolved_name = "global"};
    tensor.dtype = input_dtype(random);
    any_shape(random, &tensor.ndim, tensor.shape);
    tensor.is_tp = input_chance(random, 2);
    tensor.is_ep = input_chance(random, 4);
    tensor.partition_dim = input_int(random);
    tensor.partition_stride = input_int(random);
    for (int i = 0; i < 3; i++)
        sizes[i] = input_extent(random);
    for (int i = 0; i < 4; i++)
        ranks[i] = input_chance(random, 5) ? input_int(random) : i;
    tensor.partition_sizes = sizes;
    tensor.partition_size_count = (int)random_between(random, 0, 3);
    tensor.tp_ranks = tensor.dp_ranks = ranks;
    tensor.tp_rank_count = (int)random_between(random, 0, 4);
    tensor.dp_rank_count = (int)random_between(random, 0, 4);
    banyan_layout_add_megatron(layout, &tensor, (int)random_between(random, -1, 4),
                               input_int(random));
}

static void add_sharded(inputs *of, banyan_layout *layout)
{
    random_state *random = &of->alone;
    int64_t shape[BANYAN_MAX_DIMS];
    int ndim;
    banyan_mesh mesh = {.ndim = (int)random_between(random, -1, 3)};
    banyan_placement placements[BANYAN_RANK_SET_LEVELS];
    any_shape(random, &ndim, shape);
    for (int i = 0; i < BANYAN_RANK_SET_LEVELS; i++) {
        mesh.extent[i] = input_chance(random, 9) ? input_int(random) : 2;
        mesh.stride[i] = input_chance(random, 9) ? input_int(random) : 0;
        placements[i].kind = (banyan_placement_kind)random_between(random, -1, 3);
        placements[i].dim = (int)random_between(random, -1, 3);
    }
    mesh.first_rank = input_chance(random, 9) ? input_int(random) : 0;
    banyan_layout_add_sharded(layout, input_text(random), input_dtype(random), ndim, shape, &mesh,
                              placements, input_int(random));
}

/* Every element of every local tensor belongs to at most one piece, and lies in it. */
static void check_layout(const banyan_layout *layout)
{
    for (size_t t = 0; t < banyan_layout_tensor_count(layout); t++) {
        const banyan_local_tensor *local = banyan_layout_tensor(layout, t);
        uint64_t elems = 1;
        for (int d = 0; d < local->ndim && elems <= 100000; d++)
            elems *= (uint64_t)local->shape[d];
        if (elems > 100000)
            continue;
        const banyan_piece **pieces;
        free(layout_elements(layout, t, &pieces));
        free(pieces);
    }
}

void inputs_layouts(inputs *of)
{
    random_state *random = &of->alone;
    for (int round = 0; round < 20; round++) {
        banyan_layout *layout;
        CHECK_OK(banyan_layout_create(&layout));
        for (int64_t i = random_between(random, 1, 4); i > 0; i--) {
            static const char *const names[] = {"a", "b", "c", "d", "e", "f"};
            int64_t shape[BANYAN_MAX_DIMS];
            int ndim;
            any_shape(random, &ndim, shape);
            const char *name = input_chance(random, 9) ? input_text(random) : ANY(random, names);
            int tensor = banyan_layout_add_tensor(layout, name, input_dtype(random), ndim, shape);
            banyan_piece piece = any_piece(random, tensor, ANY(random, names), ndim, shape);
            banyan_layout_add_piece(layout, &piece);
            if (input_chance(random, 3))
                banyan_layout_add_padding(layout, tensor, &piece.box);
            if (input_chance(random, 9))
                add_megatron(of, layout);
            if (input_chance(random, 9))
                add_sharded(of, layout);
        }
        if (input_taken(of, banyan_layout_check(layout)))
            check_layout(layout);
        banyan_layout_destroy(layout);
    }
}

static banyan_chunk any_chunk(random_state *random, banyan_program *program, int ranks)
{
    int rank = (int)random_between(random, 0, ranks - 1);
    uint64_t start = (uint64_t)random_between(random, 0, 3);
    if (input_chance(random, 30))
        return (banyan_chunk){input_int(random), (banyan_buffer)input_int(random),
                              random_next(random), random_next(random)};
    if (input_chance(random, 30))
        return banyan_program_input(program, input_int(random), random_next(random), start);
    if (input_chance(random, 4))
        return banyan_program_scratch(program, rank, (uint64_t)random_between(random, 1, 2));
    return input_chance(random, 2) ? banyan_program_input(program, rank, start, start + 1)
                                   : banyan_program_output(program, rank, start, start + 1);
}

static void any_step(random_state *random, banyan_program *program, int ranks)
{
    int to = (int)random_between(random, 0, ranks - 1), from = (to + 1) % ranks;
    int block = input_chance(random, 40) ? input_int(random) : (int)random_between(random, 0, 2);
    banyan_sync sync = input_chance(random, 40) ? (banyan_sync)input_int(random) : BANYAN_SYNC_BOTH;
    banyan_chunk a = any_chunk(random, program, ranks), b = any_chunk(random, program, ranks);
    banyan_program_memory_channel *channel =
        banyan_program_memory_channel_create(program, to, from);
    banyan_program_memory_channel *back = banyan_program_memory_channel_create(program, from, to);
    banyan_program_port_channel *port = banyan_program_port_channel_create(program, to, from);
    switch (random_next(random) % 9) {
    case 0:
        banyan_program_copy(program, a.rank, a, b, BANYAN_TB(block));
        break;
    case 1:
        banyan_program_reduce(program, a.rank, a, &b, 1, a, BANYAN_SUM, BANYAN_TB(block));
        break;
    case 2:
        banyan_program_memory_put(channel, banyan_program_output(program, to, 0, 1),
                                  banyan_program_input(program, from, 0, 1), BANYAN_TB(block));
        break;
    case 3:
        banyan_program_memory_signal(channel, block, sync);
        banyan_program_memory_wait(back, block, sync);
        break;
    case 4:
        banyan_program_port_put(port, a, b, block);
        break;
    case 5:
        banyan_program_barrier(program, to, (const int[]){0, 1, block},
                               (int)random_between(random, 0, 3));
        break;
    case 6:
        banyan_program_loop_begin(program, (uint64_t)random_between(random, 0, 64), 1);
        banyan_program_loop_end(program);
        break;
    case 7:
        banyan_program_copy_packets(program, a.rank, a, b, BANYAN_TB(block));
        break;
    default:
        banyan_program_memory_get(channel, a, b, BANYAN_TB(block));
    }
}

static void check_plan(inputs *of, const banyan_plan *plan)
{
    banyan_plan *again = NULL;
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    banyan_check_report *report = NULL;
    char *text, *differences;
    size_t bytes, count = 1;
    if (!input_taken(of, banyan_plan_print(plan, &text, &bytes)))
        return; /* a name that no file can have */
    CHECK_OK(banyan_plan_parse(text, bytes, "printed", &again));
    CHECK_OK(banyan_plan_diff(plan, again, 3, &differences, &count));
    CHECK(count == 0, "%s", differences);
    (void)input_taken(of, banyan_plan_check(plan, &options, &report));
    banyan_check_report_destroy(report);
    banyan_plan_destroy(again);
    free(differences);
    free(text);
}

void inputs_programs(inputs *of)
{
    random_state *random = &of->alone;
    int ranks = input_chance(random, 20) ? input_int(random) : (int)random_between(random, 1, 3);
    banyan_collective collective = {.kind = BANYAN_CUSTOM, .input_chunks = 4, .output_chunks = 4};
    banyan_program *program = NULL;
    banyan_plan *plan = NULL;
    if (input_chance(random, 8))
        collective = (banyan_collective){.kind = (banyan_collective_kind)input_int(random),
                                         .chunk_factor = input_int(random),
                                         .in_place = input_chance(random, 2),
                                         .root = input_int(random),
                                         .shift = input_int(random),
                                         .input_chunks = (uint64_t)input_extent(random),
                                         .output_chunks = (uint64_t)input_extent(random)};
    if (!input_taken(of,
                     banyan_program_create(input_text(random), &collective, ranks, NULL, &program)))
        return;
    for (int64_t i = random_between(random, 0, 6); i > 0 && ranks < 10; i--)
        any_step(random, program, ranks);
    if (input_taken(of, banyan_program_compile(program, &plan)) && ranks < 10)
        check_plan(of, plan);
    banyan_plan_destroy(plan);
    banyan_program_destroy(program);
}

static void write_tensors(inputs *of)
{
    random_state *random = &of->alone;
    enum { MOST = 3 };
    static float data[4096];
    static const char *const names[] = {"a", "b", "a", "", "__metadata__"};
    const char *named[MOST];
    DLTensor tensors[MOST] = {0};
    int64_t shapes[MOST][BANYAN_MAX_DIMS];
    size_t count = (size_t)random_between(random, 0, MOST);
    for (size_t i = 0; i < count; i++) {
        named[i] = ANY(random, names);
        for (int d = 0; d < BANYAN_MAX_DIMS; d++)
            shapes[i][d] = input_chance(random, 9) ? -1 : random_between(random, 0, 7);
        tensors[i].data = input_chance(random, 9) ? NULL : data;
        tensors[i].ndim = input_chance(random, 9) ? input_int(random) : 3;
        tensors[i].dtype = input_chance(random, 2) ? BANYAN_F32 : input_dtype(random);
        tensors[i].shape = shapes[i];
        tensors[i].device = (DLDevice){kDLCPU, 0};
        if (input_chance(random, 20))
            tensors[i].device.device_type = (DLDeviceType)random_between(random, 0, 14);
        if (tensors[i].dtype.bits > 64 || tensors[i].dtype.lanes > 1 || tensors[i].ndim > 3)
            tensors[i].ndim = 1; /* the shape stays in the data */
    }
    char *path = folder_path(of->folder, "written.safetensors");
    if (input_taken(of, banyan_checkpoint_write(path, named, tensors, count, NULL))) {
        banyan_checkpoint *checkpoint;
        CHECK_OK(banyan_checkpoint_open(path, &checkpoint));
        CHECK(banyan_checkpoint_tensor_count(checkpoint) == count, "%zu tensors", count);
        banyan_checkpoint_close(checkpoint);
    }
    free(path);
}

static void read_anything(inputs *of, const char *path)
{
    banyan_checkpoint *checkpoint = NULL;
    banyan_model *model = NULL;
    banyan_rules *rules = NULL;
    banyan_megatron_case *made = NULL;
    banyan_plan *plan = NULL;
    banyan_topology *topology = NULL;
    (void)input_taken(of, banyan_checkpoint_open(path, &checkpoint));
    (void)input_taken(of, banyan_model_load(path, &model));
    (void)input_taken(of, banyan_rules_load(path, &rules));
    (void)input_taken(of, banyan_megatron_case_load(path, &made));
    (void)input_taken(of, banyan_plan_read(path, &plan));
    (void)input_taken(of, banyan_topology_read(path, &topology));
    banyan_topology_destroy(topology);
    banyan_plan_destroy(plan);
    banyan_megatron_case_destroy(made);
    banyan_rules_destroy(rules);
    banyan_model_destroy(model);
    banyan_checkpoint_close(checkpoint);
}

static void create_transforms(inputs *of)
{
    random_state *random = &of->alone;
    banyan_cast_options cast = BANYAN_CAST_OPTIONS_INIT;
    banyan_mxfp8_options mxfp8 = BANYAN_MXFP8_OPTIONS_INIT;
    banyan_transform *made = NULL;
    cast.side = (banyan_transform_side)random_between(random, -1, 4);
    mxfp8.side = cast.side;
    if (input_chance(random, 5))
        cast.size = mxfp8.size = random_next(random) % 100;
    (void)input_taken(of, banyan_cast_create(&cast, &made));
    banyan_transform_destroy(made);
    made = NULL;
    (void)input_taken(of, banyan_mxfp8_create(&mxfp8, &made));
    banyan_transform_destroy(made);
    int64_t shape[BANYAN_MAX_DIMS], scales[BANYAN_MAX_DIMS];
    int ndim, scales_ndim;
    any_shape(random, &ndim, shape);
    (void)input_taken(of, banyan_mxfp8_scales_shape((banyan_mxfp8_layout)input_int(random), ndim,
                                                    shape, &scales_ndim, scales));
}

void inputs_files(inputs *of)
{
    static const char *const paths[] = {"/dev/null", "/proc/self/mem", "/", "/nowhere/at/all",
                                        "/dev/zero", "/dev/full",      ".", ""};
    read_anything(of, ANY(&of->alone, paths));
    read_anything(of, of->folder);
    char *path = folder_path(of->folder, "text");
    const char *text = input_text(&of->alone);
    folder_write(path, text ? text : "");
    read_anything(of, path);
    free(path);
    write_tensors(of);
    create_transforms(of);
}
