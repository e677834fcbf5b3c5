/* Pieces under a value map: every route computes -exp(x) at the receiver, in float32; a source
 * under the map moves unchanged, and nothing inverts it. */
#include "support/test.h"

#include <math.h>

#include "reshard/filled.h"
#include "reshard/sides.h"
#include "support/float_reference.h"
#include "support/folder.h"

enum { RANKS = 3, ROWS = 11, COLS = 301, KINDS = 3 };

static const DLDataType kinds[KINDS] = {{kDLFloat, 32, 1}, {kDLFloat, 16, 1}, {kDLBfloat, 16, 1}};
static const float_format formats[KINDS] = {{8, 23}, {5, 10}, {8, 7}};

/* Rows [first, first + rows) of "A_log", transposed in the destination, beside a tensor that moves
 * unchanged. */
static banyan_layout *hold(int64_t first, int64_t rows, DLDataType dtype, uint32_t flags,
                           bool transposed)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    banyan_piece piece = {.name = "A_log",
                          .ndim = 2,
                          .shape = {ROWS, COLS},
                          .box = {2, {first, 0}, {rows, COLS}},
                          .dim_map = {transposed, !transposed},
                          .flags = flags};
    int64_t shape[2] = {transposed ? COLS : rows, transposed ? rows : COLS};
    piece.tensor = banyan_layout_add_tensor(layout, "mixer.A", dtype, 2, shape);
    banyan_layout_add_piece(layout, &piece);
    piece = (banyan_piece){
        .name = "D", .ndim = 1, .shape = {ROWS}, .box = {1, {first}, {rows}}, .dim_map = {0}};
    piece.tensor = banyan_layout_add_tensor(layout, "mixer.D", BANYAN_F32, 1, &rows);
    banyan_layout_add_piece(layout, &piece);
    CHECK_OK(banyan_layout_check_as(layout, BANYAN_DESTINATION));
    return layout;
}

/* Typical values of A_log, subnormal results, overflow, zeros and infinities. */
static double value_of(uint64_t flat)
{
    static const double edges[] = {0,    -0.0,  (double)INFINITY, -(double)INFINITY,
                                   100,  -100,  88.72284,         -103.97,
                                   1e-8, -1e-8, -87.33655,        0.5};
    if (flat < sizeof edges / sizeof *edges)
        return edges[flat];
    return 8 * sin((double)flat);
}

static int kind_of(DLDataType dtype)
{
    int kind = 0;
    while (!banyan_dtype_equal(kinds[kind], dtype))
        kind++;
    return kind;
}

struct look {
    DLDataType sent;
    uint32_t map;
};

static uint32_t sent_bits(DLDataType sent, uint64_t flat)
{
    return format_encode(formats[kind_of(sent)], value_of(flat));
}

static void write_value(const banyan_piece *piece, const int64_t *index, uint64_t flat,
                        unsigned char *element, size_t elem_bytes, void *context)
{
    (void)index;
    uint32_t bits = sent_bits(*(const DLDataType *)context, flat);
    if (strcmp(piece->name, "A_log") != 0)
        bits = (uint32_t)flat;
    memcpy(element, &bits, elem_bytes);
}

/* The element is the nearest float to -exp of the sent value, rounded to its type. */
static void check_value(const banyan_piece *piece, const int64_t *index, uint64_t flat,
                        unsigned char *element, size_t elem_bytes, void *context)
{
    (void)index;
    const struct look *look = context;
    int kind = kind_of(elem_bytes == 4 ? BANYAN_F32 : BANYAN_F16);
    uint32_t got = 0, expected = (uint32_t)flat;
    memcpy(&got, element, elem_bytes);
    if (strcmp(piece->name, "A_log") == 0) {
        kind = look->map >> 8 ? (int)(look->map >> 8) - 1 : kind;
        double value = format_decode(formats[kind_of(look->sent)], sent_bits(look->sent, flat));
        if (look->map & 0xff)
            value = format_decode(format_f32, format_encode(format_f32, -exp(value)));
        expected = format_encode(formats[kind], value);
    }
    CHECK(got == expected, "%s, element %llu: 0x%x, not 0x%x", piece->name,
          (unsigned long long)flat, got, expected);
}

struct route {
    const char *backend;
    uint64_t max_staging_bytes;
};

/* Ranks 0 and 1 have the source's rows, ranks 1 and 2 the destination's: one part stays on its
 * rank. */
static void run_pair(banyan_world *world, banyan_copy_service *service, const struct route *route,
                     int from, int to, uint32_t source_flags)
{
    int rank = banyan_world_rank(world);
    banyan_layout *source = NULL, *destination = NULL;
    if (rank < 2)
        source = hold(rank * 4, rank == 0 ? 4 : ROWS - 4, kinds[from], source_flags, false);
    if (rank > 0)
        destination = hold(rank == 1 ? 0 : 6, rank == 1 ? 6 : ROWS - 6, kinds[to],
                           BANYAN_PIECE_NEGATIVE_EXP, true);
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.max_staging_bytes = route->max_staging_bytes;
    options.checksums = true;
    banyan_reshard_plan *plan;
    CHECK_OK(banyan_reshard_plan_create(source, destination, world, &options, &plan));
    banyan_tensors *has, *gets;
    CHECK_OK(banyan_tensors_alloc(source, world, &has));
    CHECK_OK(banyan_tensors_alloc(destination, world, &gets));
    if (source)
        filled_each(source, has, write_value, (void *)&kinds[from]);
    struct look look = {kinds[from], (source_flags == 0) | (uint32_t)(to + 1) << 8};
    for (int pass = 0; pass < 2; pass++) {
        filled_poison(gets);
        CHECK_OK(banyan_reshard_execute(plan, has, gets, service, world, NULL, NULL));
        if (destination)
            filled_each(destination, gets, check_value, &look);
    }
    banyan_reshard_plan_destroy(plan);
    banyan_tensors_destroy(has);
    banyan_tensors_destroy(gets);
    banyan_layout_destroy(source);
    banyan_layout_destroy(destination);
}

static void run_route(banyan_world *world, void *context)
{
    const struct route *route = context;
    banyan_copy_service *service = open_service(world, route->backend);
    for (int pair = 0; pair < KINDS * KINDS; pair++)
        run_pair(world, service, route, pair / KINDS, pair % KINDS, 0);
    for (int kind = 0; kind < KINDS; kind++)
        run_pair(world, service, route, kind, kind, BANYAN_PIECE_NEGATIVE_EXP);
    banyan_copy_service_close(service);
}

static void every_route_computes_the_map(void **state)
{
    (void)state;
    const struct route routes[] = {
        {"direct", 0}, {"pipeline", 0}, {"mailbox", 0}, {"direct", 8192}, {"mailbox", 8192}};
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        ranks_run(RANKS, run_route, (void *)&routes[i]);
}

/* Each rank's destination lies in its source's memory: of its own rows (`shift` 0), or of its
 * neighbour's, which that rank may not have read yet. */
static void share_memory(banyan_world *world, void *context)
{
    const int64_t *shift = context;
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    banyan_layout *layouts[2];
    for (int side = 0; side < 2; side++) {
        int64_t at = side == 0 ? rank : (rank + *shift) % ranks;
        CHECK_OK(banyan_layout_create(&layouts[side]));
        banyan_piece piece = {.name = "A_log",
                              .ndim = 2,
                              .shape = {ranks, COLS},
                              .box = {2, {at, 0}, {1, COLS}},
                              .dim_map = {0, 1},
                              .flags = side == 0 ? 0 : BANYAN_PIECE_NEGATIVE_EXP};
        int64_t shape[2] = {1, COLS};
        piece.tensor = banyan_layout_add_tensor(layouts[side], "A", BANYAN_F32, 2, shape);
        banyan_layout_add_piece(layouts[side], &piece);
    }
    banyan_tensors *has, *gets;
    CHECK_OK(banyan_tensors_alloc(layouts[0], NULL, &has));
    CHECK_OK(banyan_tensors_create(layouts[1], banyan_tensors_get(has, 0), 1, &gets));
    banyan_reshard_plan *plan;
    CHECK_OK(banyan_reshard_plan_create(layouts[0], layouts[1], world, NULL, &plan));
    banyan_copy_service *service = open_service(world, "direct");
    struct look look = {BANYAN_F32, 1 | 1 << 8};
    filled_each(layouts[0], has, write_value, (void *)&kinds[0]);
    if (*shift == 0) {
        CHECK_OK(banyan_reshard_execute(plan, has, gets, service, world, NULL, NULL));
        filled_each(layouts[1], gets, check_value, &look);
    } else {
        CHECK_FAILS(banyan_reshard_execute(plan, has, gets, service, world, NULL, NULL),
                    BANYAN_ERR_INVALID, "and nothing orders the two");
    }
    banyan_copy_service_close(service);
    banyan_reshard_plan_destroy(plan);
    banyan_tensors_destroy(has);
    banyan_tensors_destroy(gets);
    banyan_layout_destroy(layouts[0]);
    banyan_layout_destroy(layouts[1]);
}

static void a_map_in_place_is_computed_where_nobody_else_reads(void **state)
{
    (void)state;
    for (int64_t shift = 0; shift < 2; shift++)
        ranks_run(2, share_memory, &shift);
}

static void refuse_plans(banyan_world *world, void *context)
{
    (void)context;
    const struct {
        DLDataType from, to;
        uint32_t source_flags[2], destination_flags;
        const char *part;
    } cases[] = {
        {BANYAN_F32,
         BANYAN_F32,
         {BANYAN_PIECE_NEGATIVE_EXP, BANYAN_PIECE_NEGATIVE_EXP},
         0,
         "this rank its own values: no value map is undone"},
        {BANYAN_F32,
         BANYAN_F32,
         {BANYAN_PIECE_NEGATIVE_EXP, 0},
         BANYAN_PIECE_NEGATIVE_EXP,
         "all pieces of a tensor have one value map"},
        {{kDLInt, 32, 1},
         BANYAN_F32,
         {0, 0},
         BANYAN_PIECE_NEGATIVE_EXP,
         "and value maps are between F32, F16 and BF16"},
    };
    int rank = banyan_world_rank(world);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        banyan_layout *source = hold(rank * 4, rank == 0 ? 4 : ROWS - 4, cases[i].from,
                                     cases[i].source_flags[rank], false);
        banyan_layout *destination =
            rank == 1 ? hold(0, ROWS, cases[i].to, cases[i].destination_flags, false) : NULL;
        banyan_reshard_plan *plan;
        CHECK_FAILS(banyan_reshard_plan_create(source, destination, world, NULL, &plan),
                    BANYAN_ERR_MISMATCH, cases[i].part);
        banyan_layout_destroy(source);
        banyan_layout_destroy(destination);
    }
}

static void maps_that_no_run_can_compute_are_refused_by_the_plan(void **state)
{
    (void)state;
    ranks_run(2, refuse_plans, NULL);
}

static void a_layout_has_maps_of_floats_only(void **state)
{
    (void)state;
    const struct {
        DLDataType dtype;
        uint32_t flags;
        const char *part;
    } cases[] = {
        {BANYAN_U8, BANYAN_PIECE_NEGATIVE_EXP,
         "its negative_exp in local tensor \"A\" of type U8: F32, F16 and BF16 are possible"},
        {BANYAN_F32, BANYAN_PIECE_NEGATIVE_EXP | BANYAN_PIECE_PERSISTENT_BUFFER,
         "a persistent buffer takes what the source sends"},
        {BANYAN_F32, 1 << 7, "unknown flags 0x80"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        banyan_layout *layout;
        CHECK_OK(banyan_layout_create(&layout));
        banyan_piece piece = {.name = "A_log",
                              .ndim = 1,
                              .shape = {4},
                              .box = {1, {0}, {4}},
                              .flags = cases[i].flags};
        piece.tensor = banyan_layout_add_tensor(layout, "A", cases[i].dtype, 1, piece.shape);
        banyan_layout_add_piece(layout, &piece);
        CHECK_FAILS(banyan_layout_check(layout), BANYAN_ERR_INVALID, cases[i].part);
        banyan_layout_destroy(layout);
    }
}

static banyan_checkpoint *open_at(const char *folder, const char *name)
{
    banyan_checkpoint *checkpoint;
    char *path = folder_path(folder, name);
    CHECK_OK(banyan_checkpoint_open(path, &checkpoint));
    free(path);
    return checkpoint;
}

/* Save the model's own values, load them under the map, save that and load it again. */
static void save_and_load(banyan_world *world, void *context)
{
    const char *folder = context;
    char *plain = folder_path(folder, "plain"), *mapped = folder_path(folder, "mapped");
    char *joined = folder_path(folder, "joined");
    banyan_layout *own = hold(0, ROWS, BANYAN_BF16, 0, false);
    banyan_layout *half = hold(0, ROWS, BANYAN_F16, BANYAN_PIECE_NEGATIVE_EXP, true);
    banyan_tensors *values, *computed;
    struct look look = {BANYAN_BF16, 1 | 2 << 8};
    CHECK_OK(banyan_tensors_alloc(own, NULL, &values));
    CHECK_OK(banyan_tensors_alloc(half, NULL, &computed));
    filled_each(own, values, write_value, (void *)&kinds[2]);
    CHECK_OK(banyan_checkpoint_save(plain, own, values, world, NULL));
    CHECK_OK(banyan_checkpoint_join(plain, joined, NULL));
    const char *from[] = {"plain", "joined", "mapped"};
    for (int i = 0; i < 3; i++) {
        if (i == 2)
            CHECK_OK(banyan_checkpoint_save(mapped, half, computed, world, NULL));
        banyan_checkpoint *checkpoint = open_at(folder, from[i]);
        filled_poison(computed);
        CHECK_OK(banyan_checkpoint_load(checkpoint, half, computed, NULL));
        filled_each(half, computed, check_value, &look);
        banyan_checkpoint_close(checkpoint);
    }
    banyan_layout_destroy(own);
    own = hold(0, ROWS, BANYAN_F16, 0, false);
    banyan_checkpoint *checkpoint = open_at(folder, "mapped");
    banyan_tensors_destroy(values);
    CHECK_OK(banyan_tensors_alloc(own, NULL, &values));
    CHECK_FAILS(banyan_checkpoint_load(checkpoint, own, values, NULL), BANYAN_ERR_MISMATCH,
                "A_log is saved as its negative_exp in the checkpoint");
    free(joined);
    joined = folder_path(folder, "joined2");
    CHECK_FAILS(banyan_checkpoint_join(mapped, joined, NULL), BANYAN_ERR_MISMATCH,
                "A_log is saved as its negative_exp, and a value map cannot be undone");
    banyan_layout *again;
    CHECK_OK(banyan_layout_create(&again));
    banyan_checkpoint_add_layout(checkpoint, 0, again);
    CHECK_OK(banyan_layout_check(again));
    CHECK(banyan_layout_piece(again, 0)->flags == BANYAN_PIECE_NEGATIVE_EXP);
    banyan_layout_destroy(again);
    banyan_checkpoint_close(checkpoint);
    banyan_tensors_destroy(values);
    banyan_tensors_destroy(computed);
    banyan_layout_destroy(own);
    banyan_layout_destroy(half);
    free(plain);
    free(mapped);
    free(joined);
}

static void files_keep_the_map_and_loads_compute_it(void **state)
{
    ranks_run(1, save_and_load, *state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_route_computes_the_map),
        cmocka_unit_test(a_map_in_place_is_computed_where_nobody_else_reads),
        cmocka_unit_test(maps_that_no_run_can_compute_are_refused_by_the_plan),
        cmocka_unit_test(a_layout_has_maps_of_floats_only),
        cmocka_unit_test_setup_teardown(files_keep_the_map_and_loads_compute_it, folder_setup,
                                        folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
