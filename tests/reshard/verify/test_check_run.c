/* Before a first run: no destination overlaps a source that is read, and no wave exceeds the
 * bound. */
#include "support/random.h"
#include "support/test.h"

#include "reshard/verify/run.h"

enum { MEMORY = 4096 };

static strided_view random_view(random_state *random, char *memory)
{
    strided_view view = {.elem_bytes = 1U << random_between(random, 0, 2), .elems = 1};
    view.ndim = (int)random_between(random, 0, 3);
    view.data = memory + MEMORY / 2 + random_between(random, -60, 60);
    for (int d = 0; d < view.ndim; d++) {
        view.extent[d] = random_between(random, 2, 5);
        view.stride[d] = random_between(random, -12, 40) * (d == view.ndim - 1 ? 1 : 4);
        view.elems *= (uint64_t)view.extent[d];
    }
    if (view.ndim > 0 && random_next(random) % 2)
        view.stride[view.ndim - 1] = (int64_t)view.elem_bytes;
    return view;
}

static void mark(const strided_view *view, int level, int64_t at, bool *touched)
{
    if (level == view->ndim) {
        memset(touched + at, true, view->elem_bytes);
        return;
    }
    for (int64_t i = 0; i < view->extent[level]; i++)
        mark(view, level + 1, at + i * view->stride[level], touched);
}

static void views_overlap_when_they_have_a_byte_in_common(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    static char memory[MEMORY];
    int overlapping = 0;
    for (int n = 0; n < 20000; n++) {
        bool touched[2][MEMORY] = {{false}}, common = false;
        strided_view views[2];
        for (int v = 0; v < 2; v++) {
            views[v] = random_view(&random, memory);
            mark(&views[v], 0, views[v].data - memory, touched[v]);
        }
        for (int i = 0; i < MEMORY; i++)
            common |= touched[0][i] && touched[1][i];
        CHECK(check_views_overlap(&views[0], &views[1]) == common, "pair %d", n);
        overlapping += common;
    }
    CHECK(overlapping > 2000 && overlapping < 18000, "%d of 20000 pairs overlap", overlapping);
}

enum { ROWS = 6, COLUMNS = 5 };

/* A matrix that one rank has and keeps, as float16 elements of `memory`. */
typedef struct binding {
    size_t source_at, destination_at; /* elements */
    int64_t strides[2];
    const char *fails; /* part of the message; NULL: it runs */
} binding;

static banyan_tensors *bind(const banyan_layout *layout, uint16_t *memory, size_t at,
                            const int64_t *strides)
{
    int64_t shape[] = {ROWS, COLUMNS}, copied[] = {strides[0], strides[1]};
    DLTensor tensor = {.data = memory + at,
                       .device = {kDLCPU, 0},
                       .ndim = 2,
                       .dtype = BANYAN_F16,
                       .shape = shape,
                       .strides = copied};
    banyan_tensors *set;
    CHECK_OK(banyan_tensors_create(layout, &tensor, 1, &set));
    return set;
}

static banyan_layout *layout_named(const char *local, const char *global)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    banyan_piece piece = {.name = global,
                          .ndim = 2,
                          .shape = {ROWS, COLUMNS},
                          .box = {2, {0, 0}, {ROWS, COLUMNS}},
                          .dim_map = {0, 1}};
    piece.tensor = banyan_layout_add_tensor(layout, local, BANYAN_F16, 2, piece.shape);
    banyan_layout_add_piece(layout, &piece);
    CHECK_OK(banyan_layout_check(layout));
    return layout;
}

static void run_bound(banyan_world *world, void *context)
{
    const binding *of = context;
    static uint16_t memory[200];
    banyan_layout *layouts[] = {layout_named("old", "weight"), layout_named("new", "weight")};
    banyan_tensors *source = bind(layouts[0], memory, of->source_at, of->strides);
    banyan_tensors *destination = bind(layouts[1], memory, of->destination_at, of->strides);
    banyan_copy_service *service;
    banyan_reshard_plan *plan;
    CHECK_OK(banyan_copy_service_open(world, "direct", NULL, &service));
    CHECK_OK(banyan_reshard_plan_create(layouts[0], layouts[1], world, NULL, &plan));
    banyan_status status =
        banyan_reshard_execute(plan, source, destination, service, world, NULL, NULL);
    if (of->fails)
        CHECK_FAILS(status, BANYAN_ERR_INVALID, of->fails);
    else
        CHECK_OK(status);
    banyan_reshard_plan_destroy(plan);
    banyan_copy_service_close(service);
    banyan_tensors_destroy(source);
    banyan_tensors_destroy(destination);
    banyan_layout_destroy(layouts[0]);
    banyan_layout_destroy(layouts[1]);
}

static void a_destination_over_its_source_is_refused(void **state)
{
    (void)state;
    binding shifted = {0, 1, {COLUMNS, 1}, "(destination tensor \"new\"), shares memory with"};
    ranks_run(1, run_bound, &shifted);
    shifted.fails = "[0:6, 0:5] of \"weight\", read at";
    ranks_run(1, run_bound, &shifted);
}

static void a_destination_in_the_very_place_of_its_source_runs(void **state)
{
    (void)state;
    binding same = {3, 3, {COLUMNS, 1}, NULL};
    ranks_run(1, run_bound, &same);
}

static void columns_between_columns_run(void **state)
{
    (void)state;
    binding interleaved = {0, COLUMNS, {2 * COLUMNS, 1}, NULL};
    ranks_run(1, run_bound, &interleaved);
    interleaved.destination_at--;
    interleaved.fails = "shares memory";
    ranks_run(1, run_bound, &interleaved);
}

/* Each rank sends its tensor to the other, and receives the other's in place of its own. */
static void swap_in_place(banyan_world *world, void *context)
{
    (void)context;
    static uint16_t memory[200];
    const int64_t strides[] = {COLUMNS, 1};
    bool first = banyan_world_rank(world) == 0;
    banyan_layout *source = layout_named("old", first ? "a" : "b");
    banyan_layout *destination = layout_named("new", first ? "b" : "a");
    banyan_tensors *from = bind(source, memory, 0, strides);
    banyan_tensors *over = bind(destination, memory, 0, strides);
    banyan_tensors *beside = bind(destination, memory, 100, strides);
    banyan_copy_service *service;
    banyan_reshard_plan *plan;
    CHECK_OK(banyan_copy_service_open(world, "pipeline", NULL, &service));
    CHECK_OK(banyan_reshard_plan_create(source, destination, world, NULL, &plan));
    CHECK_FAILS(banyan_reshard_execute(plan, from, over, service, world, NULL, NULL),
                BANYAN_ERR_INVALID, "shares memory with [0:6, 0:5] of \"");
    CHECK_OK(banyan_reshard_execute(plan, from, beside, service, world, NULL, NULL));
    banyan_reshard_plan_destroy(plan);
    banyan_copy_service_close(service);
    banyan_tensors_destroy(beside);
    banyan_tensors_destroy(over);
    banyan_tensors_destroy(from);
    banyan_layout_destroy(destination);
    banyan_layout_destroy(source);
}

static void a_receive_over_a_source_is_refused(void **state)
{
    (void)state;
    ranks_run(2, swap_in_place, NULL);
}

static void a_wave_that_takes_more_than_the_bound_is_refused(void **state)
{
    (void)state;
    execution_end ends[2] = {{.need_bytes = 600}, {.need_bytes = 400}};
    execution_end *order[] = {&ends[0], &ends[1]};
    execution_wave wave = {.ends = order, .end_count = 2};
    banyan_reshard_plan plan = {.rank = 3, .world_size = 4, .max_staging_bytes = 1000};
    execution run = {.plan = &plan, .waves = {&wave, 1, 1}};
    CHECK_OK(check_run_staging(&run));
    run.kept_bytes = 1;
    CHECK_FAILS(check_run_staging(&run), BANYAN_ERR_INVALID,
                "rank 3: a wave takes 1000 bytes of staging, beside 1 ");
    run.kept_bytes = 0;
    ends[1].need_bytes++;
    CHECK_FAILS(check_run_staging(&run), BANYAN_ERR_INVALID, "max_staging_bytes is 1000");
    plan.max_staging_bytes = 0;
    CHECK_OK(check_run_staging(&run));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views_overlap_when_they_have_a_byte_in_common),
        cmocka_unit_test(a_destination_over_its_source_is_refused),
        cmocka_unit_test(a_destination_in_the_very_place_of_its_source_runs),
        cmocka_unit_test(columns_between_columns_run),
        cmocka_unit_test(a_receive_over_a_source_is_refused),
        cmocka_unit_test(a_wave_that_takes_more_than_the_bound_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
