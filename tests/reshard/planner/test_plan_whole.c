/* All of the source arrives, and names without a partner are reported. */
#include <stdatomic.h>

#include "reshard/plan_world.h"
#include "reshard/random_case.h"
#include "support/ranks.h"

#include "reshard/layout/layout.h"

enum { ROWS = 130, COLUMNS = 4, TAKEN = 128 };

static banyan_layout *new_layout(void)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    return layout;
}

static void add_rows(banyan_layout *layout, const char *name, const char *fallback, int64_t first,
                     int64_t rows)
{
    banyan_piece piece = {.name = name,
                          .fallback_name = fallback,
                          .ndim = 2,
                          .shape = {ROWS, COLUMNS},
                          .box = {2, {first, 0}, {rows, COLUMNS}},
                          .dim_map = {0, 1}};
    piece.tensor = banyan_layout_add_tensor(layout, name, BANYAN_F32, 2, piece.box.extent);
    banyan_layout_add_piece(layout, &piece);
}

static banyan_status plan_of(banyan_layout *source, banyan_layout *destination, bool whole,
                             const char *skip, banyan_world *world)
{
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    banyan_reshard_plan *plan = NULL;
    options.require_whole_source = whole;
    options.skip = &skip;
    options.skip_count = skip ? 1 : 0;
    banyan_status status = banyan_reshard_plan_create(source, destination, world, &options, &plan);
    CHECK(!plan == (status != BANYAN_OK));
    banyan_reshard_plan_destroy(plan);
    return status;
}

/* Two ranks hold the source's rows twice; the third takes 128 of 130 of them. */
static void lose_two_rows(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    banyan_layout *source = new_layout(), *destination = new_layout(), *all = new_layout();
    if (rank < 2)
        add_rows(source, "vocabulary", NULL, 0, ROWS);
    if (rank == 2) {
        add_rows(destination, "vocabulary", NULL, 0, TAKEN);
        add_rows(all, "vocabulary", NULL, 0, ROWS);
    }
    CHECK_OK(plan_of(source, destination, false, NULL, world));
    CHECK_FAILS(plan_of(source, destination, true, NULL, world), BANYAN_ERR_INVALID,
                "holds [128:130, 0:4] of \"vocabulary\" in the source, which no destination takes");
    CHECK(!strstr(banyan_last_error(), "No destination takes"), "%s", banyan_last_error());
    CHECK_OK(plan_of(source, destination, true, "voc*", world));
    CHECK_OK(plan_of(source, all, true, NULL, world));
    banyan_layout_destroy(source);
    banyan_layout_destroy(destination);
    banyan_layout_destroy(all);
}

static void rows_that_nobody_takes_are_named_on_every_rank(void **state)
{
    (void)state;
    ranks_run(3, lose_two_rows, NULL);
}

/* Rank 0's "frequencies" are in no destination; rank 1's rules omit them. */
static void leave_out(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    banyan_layout *source = new_layout(), *destination = new_layout();
    if (rank == 0) {
        add_rows(source, "w", NULL, 0, ROWS);
        add_rows(source, "frequencies", NULL, 0, ROWS);
    }
    if (rank == 1)
        add_rows(destination, "w", NULL, 0, ROWS);
    CHECK_FAILS(plan_of(source, destination, true, NULL, world), BANYAN_ERR_INVALID,
                "[0:130, 0:4] of \"frequencies\" in the source");
    CHECK(
        strstr(banyan_last_error(), "No destination takes 1 tensor of the source: \"frequencies\""),
        "%s", banyan_last_error());
    CHECK_OK(plan_of(source, destination, true, "freq**", world));
    if (rank == 1)
        layout_keep_skipped(destination, "frequencies");
    CHECK_OK(plan_of(source, destination, true, NULL, world));
    banyan_layout_destroy(source);
    banyan_layout_destroy(destination);
}

static void tensors_that_rules_or_patterns_skip_may_stay(void **state)
{
    (void)state;
    ranks_run(2, leave_out, NULL);
}

static void fall_back(banyan_world *world, void *context)
{
    (void)context;
    banyan_layout *source = new_layout(), *destination = new_layout();
    add_rows(source, "embedding", NULL, 0, ROWS);
    add_rows(destination, "head", "embedding", 0, ROWS);
    CHECK_OK(plan_of(source, destination, true, NULL, world));
    /* Once the source has a head of its own, no rank takes the embedding. */
    add_rows(source, "head", NULL, 0, ROWS);
    CHECK_FAILS(plan_of(source, destination, true, NULL, world), BANYAN_ERR_INVALID,
                "[0:130, 0:4] of \"embedding\"");
    banyan_layout_destroy(source);
    banyan_layout_destroy(destination);
}

static void a_fallback_counts_as_an_arrival(void **state)
{
    (void)state;
    ranks_run(2, fall_back, NULL);
}

static bool holds(const case_holding *holding, const int64_t *index)
{
    for (int d = 0; d < holding->box.ndim; d++)
        if (index[d] < holding->box.start[d] ||
            index[d] >= holding->box.start[d] + holding->box.extent[d])
            return false;
    return true;
}

/* True if every element that the rank holds in the source lies in some destination. */
static bool all_is_taken(const random_case *of, int rank)
{
    for (int h = 0; h < of->holding_count; h++) {
        const case_holding *own = &of->holdings[h];
        if (own->is_destination || banyan_rank_set_find(&own->ranks, rank) < 0)
            continue;
        for (uint64_t e = 0; e < banyan_box_elems(&own->box); e++) {
            int64_t index[BANYAN_MAX_DIMS];
            uint64_t rest = e;
            for (int d = own->box.ndim - 1; d >= 0; d--) {
                index[d] = own->box.start[d] + (int64_t)(rest % (uint64_t)own->box.extent[d]);
                rest /= (uint64_t)own->box.extent[d];
            }
            bool taken = false;
            for (int o = 0; o < of->holding_count && !taken; o++)
                taken = of->holdings[o].is_destination && of->holdings[o].tensor == own->tensor &&
                        holds(&of->holdings[o], index);
            if (!taken)
                return false;
        }
    }
    return true;
}

static void random_sources_are_judged_as_every_element_is(void **state)
{
    (void)state;
    enum { RANKS = 5 };
    random_state random = random_from(random_seed());
    int whole = 0, partial = 0;
    for (int round = 0; round < 150; round++) {
        case_options options = {.world_size = RANKS, .max_elems = 60};
        random_case *of = case_make(random_next(&random), &options);
        banyan_layout **sources = calloc(RANKS, sizeof *sources);
        banyan_layout **destinations = calloc(RANKS, sizeof *destinations);
        for (int rank = 0; rank < RANKS; rank++) {
            sources[rank] = case_layout(of, rank, false);
            destinations[rank] = case_layout(of, rank, true);
        }
        banyan_reshard_options required = BANYAN_RESHARD_OPTIONS_INIT;
        required.require_whole_source = true;
        plan_world *world = plan_world_make(RANKS, sources, destinations, &required);
        for (int rank = 0; rank < RANKS; rank++) {
            bool taken = all_is_taken(of, rank);
            CHECK((world->statuses[rank] == BANYAN_OK) == taken, "round %d, rank %d: %s", round,
                  rank, world->errors[rank]);
            CHECK(taken || world->statuses[rank] == BANYAN_ERR_INVALID);
            whole += taken;
            partial += !taken;
        }
        plan_world_free(world);
        free(of);
    }
    assert_true(whole > 20 && partial > 20);
}

/* Twelve tensors whose names are unknown, of two ranks, and one that one more rank has. */
static void misspell(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    banyan_layout *source = new_layout(), *destination = new_layout();
    char name[64];
    for (int layer = 0; layer < 12; layer++) {
        snprintf(name, sizeof name, "model.layers.%02d.mlp.up_proj.weight", layer);
        if (layer % 3 == rank)
            add_rows(source, name, NULL, 0, ROWS);
        snprintf(name, sizeof name, "model.layers.%02d.mlp.up_porj.weight", layer);
        if (rank < 2)
            add_rows(destination, name, NULL, 0, ROWS);
    }
    if (rank == 2)
        add_rows(destination, "a.tensor.like.no.other", NULL, 0, ROWS);
    banyan_reshard_plan *plan = NULL;
    CHECK_FAILS(banyan_reshard_plan_create(source, destination, world, NULL, &plan),
                BANYAN_ERR_NOT_FOUND,
                "No source has 13 tensors of the destination: \"a.tensor.like.no.other\", "
                "\"model.layers.00.mlp.up_porj.weight\" (the source has "
                "\"model.layers.00.mlp.up_proj.weight\"), \"model.layers.01.");
    CHECK(strstr(banyan_last_error(), "\"model.layers.08.mlp.up_porj.weight\" (the source has "
                                      "\"model.layers.08.mlp.up_proj.weight\"), "),
          "%s", banyan_last_error());
    CHECK(strstr(banyan_last_error(), "\"model.layers.11.mlp.up_porj.weight\" (the source has "
                                      "\"model.layers.11.mlp.up_proj.weight\")"),
          "%s", banyan_last_error());
    CHECK(!strstr(banyan_last_error(), " more"), "%s", banyan_last_error());
    CHECK(!plan);
    banyan_layout_destroy(source);
    banyan_layout_destroy(destination);
}

enum { MANY = 100 };
static _Atomic int logged, last_logged;

static void count_lines(banyan_log_level level, const char *message, void *context)
{
    (void)context;
    if (level == BANYAN_LOG_WARN && strstr(message, "no source has the destination's tensor"))
        atomic_fetch_add(&logged, 1);
    if (strstr(message, "\"t099.up_porj\"; the nearest name there is \"t099.up_proj\""))
        atomic_fetch_add(&last_logged, 1);
}

/* More names than a message holds. */
static void misspell_many(banyan_world *world, void *context)
{
    (void)context;
    banyan_layout *source = new_layout(), *destination = new_layout();
    char name[64];
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "t%03d.up_proj", i);
        add_rows(source, name, NULL, 0, ROWS);
        snprintf(name, sizeof name, "t%03d.up_porj", i);
        add_rows(destination, name, NULL, 0, ROWS);
    }
    banyan_reshard_plan *plan = NULL;
    CHECK_FAILS(banyan_reshard_plan_create(source, destination, world, NULL, &plan),
                BANYAN_ERR_NOT_FOUND, "No source has 100 tensors of the destination: \"t000");
    const char *more = strstr(banyan_last_error(), " and ");
    int others = 0, all = 0;
    CHECK(more && sscanf(more, " and %d more; the log of rank 0 has all %d", &others, &all) == 2 &&
              others == all && others > 0,
          "%s", banyan_last_error());
    CHECK(banyan_world_barrier(world) == BANYAN_OK, "%s", banyan_last_error());
    CHECK(atomic_load(&logged) == others && atomic_load(&last_logged) == 1,
          "%d lines, %d of the last name, for %d others", atomic_load(&logged),
          atomic_load(&last_logged), others);
    banyan_layout_destroy(source);
    banyan_layout_destroy(destination);
}

static void names_that_a_message_cannot_hold_are_logged(void **state)
{
    (void)state;
    banyan_log_set(count_lines, NULL);
    ranks_run_threads(2, misspell_many, NULL);
    banyan_log_set(NULL, NULL);
}

static void all_misspelt_tensors_are_reported_with_the_nearest_name(void **state)
{
    (void)state;
    ranks_run(3, misspell, NULL);
    ranks_run(4, misspell, NULL);
}

static void other_patterns(banyan_world *world, void *context)
{
    (void)context;
    banyan_layout *source = new_layout(), *destination = new_layout();
    CHECK_FAILS(plan_of(source, destination, true, banyan_world_rank(world) ? "a*" : "b*", world),
                BANYAN_ERR_MISMATCH, "skip (as a hash)");
    CHECK_FAILS(plan_of(source, destination, banyan_world_rank(world), NULL, world),
                BANYAN_ERR_MISMATCH, "require_whole_source");
    CHECK_FAILS(plan_of(source, destination, true, "a{b}", world), BANYAN_ERR_INVALID,
                "pattern \"a{b}\" of tensors to skip");
    banyan_layout_destroy(source);
    banyan_layout_destroy(destination);
}

static void options_that_differ_are_refused(void **state)
{
    (void)state;
    ranks_run(2, other_patterns, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_nobody_takes_are_named_on_every_rank),
        cmocka_unit_test(tensors_that_rules_or_patterns_skip_may_stay),
        cmocka_unit_test(a_fallback_counts_as_an_arrival),
        cmocka_unit_test(random_sources_are_judged_as_every_element_is),
        cmocka_unit_test(all_misspelt_tensors_are_reported_with_the_nearest_name),
        cmocka_unit_test(names_that_a_message_cannot_hold_are_logged),
        cmocka_unit_test(options_that_differ_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
