/* Boxes that become MXFP8 cross the network once to each node that needs them, and every rank of
 * the node has the elements and scales of the quantized tensor, however sources and destinations
 * divide it. */
#include "reshard/sides.h"

#include <banyan/transport.h>

#include "reshard/run/execute.h"
#include "reshard/transform/mxfp8_box.h"

enum { RANKS_MOST = 8, TENSORS = 5 };

/* Matrices of which the ranks of node 0 hold slices. */
typedef struct quantized_case {
    int ranks, nodes;
    banyan_transform_side side;
    banyan_mxfp8_layout scales;
    bool cuts_blocks; /* sources and destinations are divided anywhere */
    bool cuts_runs;   /* tiny: a run cuts boxes within blocks to bound its memory */
    int count;        /* of tensors */
    struct {
        char name[32];
        int64_t shape[2];
        int64_t at[4]; /* where the sources, or the destinations of two ranks, are divided */
        int source_dim, destination_dim[RANKS_MOST]; /* of each node; 2: all of it */
    } tensors[TENSORS];
} quantized_case;

static int node_of(const quantized_case *of, int rank)
{
    return rank * of->nodes / of->ranks;
}

static int first_rank(const quantized_case *of, int node)
{
    int rank = 0;
    while (node_of(of, rank) < node)
        rank++;
    return rank;
}

static int64_t on_block(int64_t at)
{
    return at / MXFP8_BLOCK * MXFP8_BLOCK;
}

static void case_fill(quantized_case *made, random_state *random)
{
    made->count = made->cuts_runs ? 1 : TENSORS;
    for (int t = 0; t < made->count; t++) {
        int64_t rows = random_between(random, 2, made->cuts_runs ? 2 : 40);
        int64_t columns =
            made->cuts_runs ? random_between(random, 90, 120) : random_between(random, 2, 300);
        snprintf(made->tensors[t].name, sizeof made->tensors[t].name, "layers.%d.w", t);
        made->tensors[t].shape[0] = rows;
        made->tensors[t].shape[1] = columns;
        made->tensors[t].source_dim = (int)random_between(random, 0, 2);
        for (int node = 0; node < made->nodes; node++)
            made->tensors[t].destination_dim[node] = (int)random_between(random, 0, 2);
        int64_t column = random_between(random, 1, columns - 1);
        made->tensors[t].at[0] = random_between(random, 1, rows - 1);
        made->tensors[t].at[1] = made->cuts_blocks ? column : on_block(column);
        made->tensors[t].at[2] = random_between(random, 1, rows - 1);
        column = random_between(random, 1, columns - 1);
        made->tensors[t].at[3] = made->cuts_blocks ? column : on_block(column);
    }
}

/* The first or second part of a tensor that is divided along `dim` (2: all of it). */
static banyan_box part_of(const int64_t *shape, int dim, const int64_t *at, int part)
{
    banyan_box box = {2, {0, 0}, {shape[0], shape[1]}};
    if (dim == 2)
        return box;
    box.start[dim] = part > 0 ? at[dim] : 0;
    box.extent[dim] = part > 0 ? shape[dim] - at[dim] : at[dim];
    return box;
}

/* A rank's box. The extents of boxes that it does not have are 0. */
static banyan_box case_box(const quantized_case *of, int t, int rank, bool is_destination)
{
    int node = node_of(of, rank), place = rank - first_rank(of, node);
    const int64_t *at = of->tensors[t].at;
    if (is_destination)
        return part_of(of->tensors[t].shape, of->tensors[t].destination_dim[node], at + 2,
                       place % 2);
    banyan_box box = part_of(of->tensors[t].shape, of->tensors[t].source_dim, at, place % 2);
    if (node > 0)
        box.extent[0] = 0;
    return box;
}

static banyan_layout *case_layout_of(const quantized_case *of, int rank, bool is_destination)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    for (int t = 0; t < of->count; t++) {
        banyan_piece piece = {.name = of->tensors[t].name, .ndim = 2, .dim_map = {0, 1}};
        memcpy(piece.shape, of->tensors[t].shape, sizeof of->tensors[t].shape);
        piece.box = case_box(of, t, rank, is_destination);
        if (banyan_box_elems(&piece.box) == 0)
            piece.box.extent[0] = 0;
        piece.tensor = banyan_layout_add_tensor(layout, of->tensors[t].name,
                                                is_destination ? BANYAN_F8_E4M3 : BANYAN_BF16, 2,
                                                piece.box.extent);
        banyan_layout_add_piece(layout, &piece);
    }
    CHECK_OK(banyan_layout_check(layout));
    return layout;
}

/* Normal BF16 values of many magnitudes. */
static uint16_t value_at(int t, int64_t row, int64_t column, int pass)
{
    uint64_t place[4] = {(uint64_t)t, (uint64_t)row, (uint64_t)column, (uint64_t)pass};
    uint64_t hash = hash_bytes(place, sizeof place, 0);
    return (uint16_t)((hash & 0x807f) | (120 + hash / 65536 % 16) << 7);
}

typedef struct quantized_rank {
    const quantized_case *of;
    int rank;
    banyan_layout *from, *to;
    banyan_tensors *source, *destination;
    banyan_transform *transform;
    banyan_reshard_plan *plan;
    DLTensor scales[TENSORS];
    int64_t scales_shape[TENSORS][BANYAN_MAX_DIMS];
    size_t scales_bytes[TENSORS];
} quantized_rank;

static void bind_scales(quantized_rank *mine, int t)
{
    const DLTensor *tensor = banyan_tensors_get(mine->destination, (size_t)t);
    DLTensor *scales = &mine->scales[t];
    *scales = (DLTensor){.device = {kDLCPU, 0}, .dtype = BANYAN_U8};
    CHECK_OK(banyan_mxfp8_scales_shape(mine->of->scales, 2, tensor->shape, &scales->ndim,
                                       mine->scales_shape[t]));
    scales->shape = mine->scales_shape[t];
    mine->scales_bytes[t] = 1;
    for (int d = 0; d < scales->ndim; d++)
        mine->scales_bytes[t] *= (size_t)scales->shape[d];
    scales->data = malloc(mine->scales_bytes[t] + 1);
    CHECK_OK(banyan_mxfp8_bind_scales(mine->transform, mine->of->tensors[t].name, scales));
}

static void rank_make(quantized_rank *mine, banyan_world *world,
                      const banyan_reshard_options *options)
{
    banyan_mxfp8_options chosen = BANYAN_MXFP8_OPTIONS_INIT;
    banyan_reshard_options planned = *options;
    chosen.side = mine->of->side;
    chosen.layout = mine->of->scales;
    CHECK_OK(banyan_mxfp8_create(&chosen, &mine->transform));
    planned.transform = mine->transform;
    mine->from = case_layout_of(mine->of, mine->rank, false);
    mine->to = case_layout_of(mine->of, mine->rank, true);
    CHECK_OK(banyan_tensors_alloc(mine->from, NULL, &mine->source));
    CHECK_OK(banyan_tensors_alloc(mine->to, NULL, &mine->destination));
    for (int t = 0; t < mine->of->count; t++)
        bind_scales(mine, t);
    CHECK_OK(banyan_reshard_plan_create(mine->from, mine->to, world, &planned, &mine->plan));
    CHECK_OK(banyan_reshard_plan_prove(mine->plan));
}

static void rank_free(quantized_rank *mine)
{
    banyan_reshard_plan_destroy(mine->plan);
    banyan_transform_destroy(mine->transform);
    banyan_tensors_destroy(mine->source);
    banyan_tensors_destroy(mine->destination);
    banyan_layout_destroy(mine->from);
    banyan_layout_destroy(mine->to);
    for (int t = 0; t < mine->of->count; t++)
        free(mine->scales[t].data);
}

static void fill_source(const quantized_rank *mine, int pass)
{
    for (int t = 0; t < mine->of->count; t++) {
        banyan_box box = case_box(mine->of, t, mine->rank, false);
        uint16_t *at = banyan_tensors_get(mine->source, (size_t)t)->data;
        for (int64_t i = 0; i < (int64_t)banyan_box_elems(&box); i++)
            at[i] = value_at(t, box.start[0] + i / box.extent[1], box.start[1] + i % box.extent[1],
                             pass);
    }
}

static void poison(const quantized_rank *mine, int pass)
{
    for (int t = 0; t < mine->of->count; t++) {
        const DLTensor *tensor = banyan_tensors_get(mine->destination, (size_t)t);
        size_t elems = (size_t)(tensor->shape[0] * tensor->shape[1]);
        if (elems > 0)
            memset(tensor->data, 0x5a + pass, elems);
        memset(mine->scales[t].data, 0xa5 + pass, mine->scales_bytes[t]);
    }
}

/* Quantize each row of this rank's part of the global tensor, and compare. */
static void check_destination(const quantized_rank *mine, int t, int pass)
{
    const DLTensor *tensor = banyan_tensors_get(mine->destination, (size_t)t);
    banyan_box box = case_box(mine->of, t, mine->rank, true);
    int64_t columns = box.extent[1], blocks = mxfp8_blocks(columns);
    uint16_t values[512];
    uint8_t elements[512], scales[16], found[16];
    mxfp8_scales view;
    CHECK_OK(mxfp8_scales_of(mine->of->scales, "w", 2, tensor->shape, &mine->scales[t], &view));
    for (int64_t row = 0; row < box.extent[0] && columns > 0; row++) {
        for (int64_t c = 0; c < columns; c++)
            values[c] = value_at(t, box.start[0] + row, box.start[1] + c, pass);
        mxfp8_quantize(BANYAN_MXFP8_ROUND_UP, values, BANYAN_BF16, columns, elements, scales);
        const uint8_t *stored = (const uint8_t *)tensor->data + row * columns;
        CHECK(memcmp(stored, elements, (size_t)columns) == 0,
              "pass %d: row %" PRId64 " of %s differs at rank %d", pass, row,
              mine->of->tensors[t].name, mine->rank);
        mxfp8_scales_read(&view, (int64_t[]){row, 0}, 0, blocks, found);
        CHECK(memcmp(found, scales, (size_t)blocks) == 0,
              "pass %d: scales of row %" PRId64 " of %s differ at rank %d", pass, row,
              mine->of->tensors[t].name, mine->rank);
    }
}

/* Bytes that the service carried to this rank from other nodes, in the run's own tensors. */
static uint64_t carried_bytes(const quantized_rank *mine)
{
    uint64_t bytes = 0;
    const execution *run = mine->plan->execution;
    for (size_t i = 0; i < run->ends.count; i++) {
        const execution_end *end = &run->ends.data[i];
        bool crosses = node_of(mine->of, end->peer) != node_of(mine->of, mine->rank);
        for (int p = 0; p < end->part_count && crosses && !end->is_send; p++)
            bytes += (uint64_t)end->parts[p].elems * banyan_dtype_bytes(end->parts[p].tensor.dtype);
    }
    return bytes;
}

static uint64_t add_up(banyan_world *world, uint64_t mine)
{
    uint64_t all[RANKS_MOST] = {0}, sum = 0;
    CHECK_OK(banyan_world_allgather(world, &mine, sizeof mine, all));
    for (int rank = 0; rank < banyan_world_size(world); rank++)
        sum += all[rank];
    return sum;
}

/* Elements that the nodes other than the first need, and scales of rows as they are divided. */
typedef struct needed_bytes {
    uint64_t elems, scales;
} needed_bytes;

static needed_bytes count_needed(const quantized_case *of)
{
    needed_bytes needed = {0};
    for (int node = 1; node < of->nodes; node++)
        for (int t = 0; t < of->count; t++) {
            const int64_t *shape = of->tensors[t].shape;
            unsigned char marks[40][300] = {0}, scale_marks[40][300] = {0};
            for (int rank = first_rank(of, node); rank < of->ranks && node_of(of, rank) == node;
                 rank++) {
                banyan_box box = case_box(of, t, rank, true);
                for (int64_t r = box.start[0]; r < box.start[0] + box.extent[0]; r++) {
                    memset(&marks[r][box.start[1]], 1, (size_t)box.extent[1]);
                    for (int64_t c = 0; c < box.extent[1]; c += MXFP8_BLOCK)
                        scale_marks[r][box.start[1] + c] = 1;
                }
            }
            for (int64_t r = 0; r < shape[0]; r++)
                for (int64_t c = 0; c < shape[1]; c++) {
                    needed.elems += marks[r][c];
                    needed.scales += scale_marks[r][c];
                }
        }
    return needed;
}

static void check_bytes(const quantized_rank *mine, banyan_world *world)
{
    const quantized_case *of = mine->of;
    banyan_reshard_plan_bytes bytes = banyan_reshard_plan_count_bytes(mine->plan);
    needed_bytes needed = count_needed(of);
    uint64_t crossed = add_up(world, bytes.network_received);
    CHECK(bytes.fetched_again == 0);
    CHECK(carried_bytes(mine) == bytes.network_received,
          "rank %d received %" PRIu64 " bytes; its plan has %" PRIu64, mine->rank,
          carried_bytes(mine), bytes.network_received);
    CHECK(crossed == add_up(world, bytes.network_sent));
    uint64_t quantized = needed.elems + needed.scales, values = 2 * needed.elems;
    uint64_t least = of->side == BANYAN_TRANSFORM_AT_RECEIVER ? values : quantized;
    uint64_t most = of->cuts_blocks ? values : least;
    CHECK(crossed >= least && crossed <= most,
          "%" PRIu64 " bytes cross; once are %" PRIu64 " to %" PRIu64, crossed, least, most);
}

typedef struct many_quantized {
    uint64_t seed;
    const char *backend;
    int nodes, cases;
} many_quantized;

static void run_quantized(banyan_world *world, random_state *random, const many_quantized *many,
                          banyan_copy_service *service, uint64_t *passed_on)
{
    quantized_case of = {.ranks = banyan_world_size(world), .nodes = many->nodes};
    of.side = (banyan_transform_side)random_between(random, 0, BANYAN_TRANSFORM_AT_RECEIVER);
    of.scales = (banyan_mxfp8_layout)random_between(random, 0, 1);
    of.cuts_runs = of.side == BANYAN_TRANSFORM_AT_RECEIVER && random_next(random) % 2;
    of.cuts_blocks =
        of.side != BANYAN_TRANSFORM_AT_SENDER && !of.cuts_runs && random_next(random) % 2;
    case_fill(&of, random);
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.min_split_bytes = (uint64_t)random_between(random, 1, 3000);
    options.checksums = random_next(random) % 2;
    if (of.cuts_runs || random_next(random) % 2) /* assembling whole tensors counts */
        options.max_staging_bytes = of.cuts_runs     ? 1100
                                    : of.cuts_blocks ? 150000
                                                     : (uint64_t)random_between(random, 2048, 9000);
    quantized_rank mine = {.of = &of, .rank = banyan_world_rank(world)};
    rank_make(&mine, world, &options);
    *passed_on += add_up(world, banyan_reshard_plan_count_bytes(mine.plan).passed_on);
    for (int pass = 1; pass <= 3; pass++) {
        fill_source(&mine, pass);
        poison(&mine, pass);
        CHECK_OK(banyan_world_barrier(world));
        CHECK_OK(banyan_reshard_execute(mine.plan, mine.source, mine.destination, service, world,
                                        mine.transform, NULL));
        for (int t = 0; t < of.count; t++)
            check_destination(&mine, t, pass);
        check_bytes(&mine, world);
    }
    rank_free(&mine);
}

static void run_many_quantized(banyan_world *world, void *context)
{
    const many_quantized *many = context;
    random_state random = random_from(many->seed);
    banyan_copy_service *service = open_service(world, many->backend);
    uint64_t passed_on = 0;
    for (int i = 0; i < many->cases; i++)
        run_quantized(world, &random, many, service, &passed_on);
    CHECK(passed_on > 1000u * (uint64_t)many->cases, "%" PRIu64 " bytes of stage 1", passed_on);
    banyan_copy_service_close(service);
}

static void take_nodes(int nodes)
{
    char text[16];
    snprintf(text, sizeof text, "%d", nodes);
    setenv("BANYAN_TEST_NODES", text, 1);
}

static void quantized_over(const char *backend, int cases)
{
    random_state random = random_from(random_seed());
    static const int ranks[] = {4, 6, 8}, nodes[] = {2, 3, 2};
    for (int i = 0; i < 3; i++) {
        many_quantized many = {random_next(&random), backend, nodes[i], cases};
        take_nodes(nodes[i]);
        ranks_run(ranks[i], run_many_quantized, &many);
    }
}

static void quantized_boxes_cross_once_over_a_service_of_four_functions(void **state)
{
    (void)state;
    quantized_over("mailbox", 12);
}

static void quantized_boxes_cross_once_over_direct(void **state)
{
    (void)state;
    const banyan_transport_ops *ops;
    if (banyan_transport_find("ucx", &ops) != BANYAN_OK) {
        printf("skipped: %s\n", banyan_last_error());
        skip();
    }
    quantized_over("direct", 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantized_boxes_cross_once_over_a_service_of_four_functions),
        cmocka_unit_test(quantized_boxes_cross_once_over_direct),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
