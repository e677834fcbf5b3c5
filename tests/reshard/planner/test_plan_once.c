/* Worlds of several nodes: each element crosses the network once to each node that needs it, and no
 * more often, and the ranks of a node receive equal shares. */
#include "reshard/planned.h"

typedef struct crossings {
    const plan_world *world;
    const int *node_of;
    int node;
    const case_tensor *tensor;
    unsigned char *needed, *held, *crossed; /* per element: on this node */
} crossings;

static void mark(void *context, uint64_t index)
{
    ((unsigned char *)context)[index] = 1;
}

/* Mark the elements of the tensor that the layouts of the node's ranks have. */
static void mark_layouts(const crossings *of, banyan_layout **layouts, unsigned char *marks)
{
    for (int rank = 0; rank < of->world->size; rank++)
        for (size_t p = 0; p < banyan_layout_piece_count(layouts[rank]); p++) {
            const banyan_piece *piece = banyan_layout_piece(layouts[rank], p);
            if (of->node_of[rank] == of->node && strcmp(piece->name, of->tensor->name) == 0)
                for_each_element(&piece->box, piece->shape, mark, marks);
        }
}

/* Compare what crosses to a node with what it needs and does not hold, element by element. */
static void check_crossings(crossings *of, size_t *crossed_elems)
{
    banyan_box whole = box_whole(of->tensor->ndim, of->tensor->shape);
    size_t elems = banyan_box_elems(&whole);
    of->needed = calloc(3, elems);
    of->held = of->needed + elems;
    of->crossed = of->held + elems;
    mark_layouts(of, of->world->destinations, of->needed);
    mark_layouts(of, of->world->sources, of->held);
    for (int rank = 0; rank < of->world->size; rank++) {
        const planner_result *result = &of->world->results[rank];
        for (size_t i = 0; i < result->recv_count && of->node_of[rank] == of->node; i++) {
            const banyan_transfer *recv = &result->recvs[i];
            bool crosses = of->node_of[recv->source_rank] != of->node;
            CHECK(!crosses || recv->stage == 0);
            if (crosses && strcmp(recv->name, of->tensor->name) == 0)
                for_each_element(&recv->box, of->tensor->shape, count_up, of->crossed);
        }
    }
    for (size_t i = 0; i < elems; i++) {
        int expected = of->needed[i] && !of->held[i];
        CHECK(of->crossed[i] == expected, "element %zu of %s crosses %d times to node %d, not %d",
              i, of->tensor->name, of->crossed[i], of->node, expected);
        *crossed_elems += (size_t)expected;
    }
    free(of->needed);
}

static void each_element_crosses_once_to_each_node_that_needs_it(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    size_t passed_on = 0, crossed = 0;
    for (int round = 0; round < 500; round++) {
        case_options options = {.world_size = (int)random_between(&random, 2, 16),
                                .max_elems = random_between(&random, 1, 600)};
        if (random_next(&random) % 2)
            options.first_destination_rank =
                (int)random_between(&random, 1, options.world_size - 1);
        int node_of[16], nodes = (int)random_between(&random, 2, 4);
        bool in_order = random_next(&random) % 2;
        for (int rank = 0; rank < options.world_size; rank++)
            node_of[rank] = in_order ? rank * nodes / options.world_size
                                     : (int)random_between(&random, 0, nodes - 1);
        random_case *planned = case_make(random_next(&random), &options);
        plan_world *world = plan_case(planned, node_of, (uint64_t)random_between(&random, 1, 200));
        for (int rank = 0; rank < world->size; rank++)
            CHECK(world->statuses[rank] == BANYAN_OK, "round %d: %s", round, world->errors[rank]);
        for (int rank = 0; rank < world->size; rank++) {
            check_receiver(world, rank);
            check_both_ends(world, rank);
            for (size_t i = 0; i < world->results[rank].send_count; i++)
                passed_on += world->results[rank].sends[i].stage;
        }
        for (int node = 0; node < nodes; node++)
            for (int t = 0; t < planned->tensor_count; t++)
                check_crossings(&(crossings){.world = world,
                                             .node_of = node_of,
                                             .node = node,
                                             .tensor = &planned->tensors[t]},
                                &crossed);
        plan_world_free(world);
        free(planned);
    }
    printf("%zu elements cross, %zu transfers of stage 1\n", crossed, passed_on);
    CHECK(passed_on > 2000 && crossed > 20000);
}

/* Sources: `replicas` ranks hold one of `shards` row blocks each. Destinations: nodes of
 * `ranks_each` ranks, each of which holds one of `tp` row blocks. */
typedef struct engines {
    int shards, replicas, nodes, ranks_each, tp;
} engines;

static banyan_layout *layout_of_rows(const char *const *tensor_names, int count, int64_t rows,
                                     int64_t columns, int part, int parts)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    for (int t = 0; t < count; t++) {
        banyan_piece piece = {.name = tensor_names[t], .ndim = 2, .shape = {rows, columns}};
        piece.box = (banyan_box){2, {rows * part / parts, 0}, {rows / parts, columns}};
        piece.dim_map[1] = 1;
        piece.tensor =
            banyan_layout_add_tensor(layout, tensor_names[t], BANYAN_BF16, 2, piece.box.extent);
        banyan_layout_add_piece(layout, &piece);
    }
    return layout;
}

enum { TENSORS = 8, ROWS = 1024, COLUMNS = 256 };

static plan_world *plan_engines(const engines *of, int **nodes, bool each_rank_fetches)
{
    static const char *const tensor_names[TENSORS] = {
        "layers.0.up", "layers.0.down", "layers.1.up", "layers.1.down",
        "layers.2.up", "layers.2.down", "layers.3.up", "layers.3.down"};
    int sources = of->shards * of->replicas, size = sources + of->nodes * of->ranks_each;
    banyan_layout **from = calloc((size_t)size, sizeof *from);
    banyan_layout **to = calloc((size_t)size, sizeof *to);
    *nodes = calloc((size_t)size, sizeof **nodes);
    for (int rank = 0; rank < size; rank++) {
        bool sends = rank < sources;
        (*nodes)[rank] = sends ? rank / of->ranks_each : size + (rank - sources) / of->ranks_each;
        from[rank] = layout_of_rows(tensor_names, sends ? TENSORS : 0, ROWS, COLUMNS,
                                    rank % of->shards, of->shards);
        to[rank] = layout_of_rows(tensor_names, sends ? 0 : TENSORS, ROWS, COLUMNS,
                                  (rank - sources) % of->tp, of->tp);
    }
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.min_split_bytes = 1024;
    options.each_rank_fetches = each_rank_fetches;
    return plan_world_make_on(size, *nodes, from, to, &options);
}

/* Add what crosses out of and into each rank. */
static uint64_t add_cards(const plan_world *world, const int *nodes, uint64_t *out, uint64_t *in)
{
    uint64_t total = 0;
    for (int rank = 0; rank < world->size; rank++)
        for (size_t i = 0; i < world->results[rank].recv_count; i++) {
            const banyan_transfer *recv = &world->results[rank].recvs[i];
            if (nodes[rank] == nodes[recv->source_rank])
                continue;
            out[recv->source_rank] += recv->bytes;
            in[rank] += recv->bytes;
            total += recv->bytes;
        }
    return total;
}

static void every_card_carries_an_equal_share(void **state)
{
    (void)state;
    static const engines all[] = {{8, 2, 4, 8, 8}, {8, 2, 4, 8, 4}, {8, 2, 4, 8, 2},
                                  {8, 2, 4, 8, 1}, {4, 4, 1, 4, 2}, {16, 4, 8, 8, 1},
                                  {2, 8, 3, 4, 4}, {1, 8, 2, 8, 2}};
    for (size_t e = 0; e < sizeof all / sizeof all[0]; e++) {
        int *nodes;
        plan_world *world = plan_engines(&all[e], &nodes, false);
        uint64_t *cards = calloc(2 * (size_t)world->size, sizeof *cards);
        uint64_t *in = cards + world->size;
        int sources = all[e].shards * all[e].replicas;
        uint64_t model = UINT64_C(2) * TENSORS * ROWS * COLUMNS;
        CHECK(add_cards(world, nodes, cards, in) == model * (uint64_t)all[e].nodes);
        for (int rank = 0; rank < world->size; rank++) {
            check_receiver(world, rank);
            check_both_ends(world, rank);
            uint64_t mean = model * (uint64_t)all[e].nodes /
                            (uint64_t)(rank < sources ? sources : world->size - sources);
            uint64_t has = rank < sources ? cards[rank] : in[rank];
            CHECK(has >= mean - mean / 16 && has <= mean + mean / 16,
                  "engines %zu: rank %d carries %" PRIu64 " bytes; the mean is %" PRIu64, e, rank,
                  has, mean);
        }
        plan_world_free(world);
        free(cards);
        free(nodes);
    }
}

static void each_rank_fetches_its_own_where_the_option_says_so(void **state)
{
    (void)state;
    static const engines of = {8, 2, 4, 8, 2};
    int *nodes;
    plan_world *world = plan_engines(&of, &nodes, true);
    uint64_t *cards = calloc(2 * (size_t)world->size, sizeof *cards);
    uint64_t model = UINT64_C(2) * TENSORS * ROWS * COLUMNS;
    CHECK(add_cards(world, nodes, cards, cards + world->size) == 4 * 4 * model);
    plan_world_free(world);
    free(cards);
    free(nodes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_element_crosses_once_to_each_node_that_needs_it),
        cmocka_unit_test(every_card_carries_an_equal_share),
        cmocka_unit_test(each_rank_fetches_its_own_where_the_option_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
