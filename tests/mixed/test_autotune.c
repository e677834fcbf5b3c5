/* The autotuned table: the nearest size's fastest mode is chosen, and files that do not match are
 * refused. */
#include <stddef.h>

#include "mixed/mixed_check.h"
#include "support/folder.h"

#define HEAD                                                                                       \
    "{\"format\": \"banyan mixed tuning\", \"version\": 1, \"local_tp\": 2, \"local_dp\": 1, "     \
    "\"inter_tp\": 1, \"inter_dp\": 1, \"dtype\": \"F32\", \"device\": \"host\", \"rows\": ["
#define ROW(bytes, mode, ns)                                                                       \
    "{\"op\": \"allreduce\", \"bytes\": " #bytes ", \"mode\": \"" mode "\", \"ns\": " #ns "}"
#define AND_ROW(bytes, mode, ns) "," ROW(bytes, mode, ns)
#define TABLE                                                                                      \
    HEAD ROW(1024, "fewest_waits", 10) "," ROW(1024, "world", 20) "," ROW(                         \
        4096, "one_shot", 50) "," ROW(4096, "single", 40) "," ROW(65536, "two_shot",               \
                                                                  80) "," ROW(65536, "single",     \
                                                                              95) "]}"

static void write_table(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    CHECK(file && fputs(text, file) >= 0 && fclose(file) == 0, "cannot write %s", path);
}

/* Call `run` on two ranks with the path of a file with this text. */
static void with_table(void **state, const char *text, void (*run)(banyan_world *, void *))
{
    char *path = folder_path(*state, "table.json");
    write_table(path, text);
    ranks_run(2, run, path);
    free(path);
}

static banyan_mixed_options in_one_node(void)
{
    static const grid_sizes sizes = {1, 2, 1, 1, 1};
    return options_of(&sizes, BANYAN_F32);
}

static void check_choice(const banyan_mixed *mixed, uint64_t bytes, banyan_mixed_mode expected)
{
    banyan_mixed_mode mode;
    CHECK_OK(banyan_mixed_select_autotune_mode(mixed, BANYAN_MIXED_ALLREDUCE, bytes, &mode));
    CHECK(mode == expected, "%s is chosen for %llu bytes", banyan_mixed_mode_name(mode),
          (unsigned long long)bytes);
}

static banyan_mixed *open_with(banyan_world *world, const char *table)
{
    banyan_mixed_options options = in_one_node();
    banyan_mixed *mixed;
    options.autotune = table;
    CHECK_OK(banyan_mixed_open(world, &options, &mixed));
    return mixed;
}

static void choose(banyan_world *world, void *context)
{
    banyan_mixed *mixed = open_with(world, context);
    check_choice(mixed, 1, BANYAN_MIXED_ONE_SHOT);
    check_choice(mixed, 1024, BANYAN_MIXED_ONE_SHOT);
    check_choice(mixed, 2047, BANYAN_MIXED_ONE_SHOT);
    check_choice(mixed, 2049, BANYAN_MIXED_SINGLE);
    check_choice(mixed, 16383, BANYAN_MIXED_SINGLE);
    check_choice(mixed, 16385, BANYAN_MIXED_TWO_SHOT);
    check_choice(mixed, UINT64_MAX, BANYAN_MIXED_TWO_SHOT);
    CHECK_OK(banyan_mixed_close(mixed));
}

static void the_fastest_mode_of_the_nearest_size_is_chosen(void **state)
{
    with_table(state, TABLE, choose);
}

#define CLOSE_TABLE                                                                                \
    HEAD ROW(1024, "one_shot", 8000) AND_ROW(1024, "single", 8999) AND_ROW(4096, "one_shot", 8000) \
        AND_ROW(4096, "single", 9001) AND_ROW(16384, "one_shot", 8000)                             \
            AND_ROW(16384, "two_shot", 7999) AND_ROW(65536, "one_shot", 2000000)                   \
                AND_ROW(65536, "single", 2040001) "]}"

static void choose_closely(banyan_world *world, void *context)
{
    banyan_mixed *mixed = open_with(world, context);
    check_choice(mixed, 1024, BANYAN_MIXED_SINGLE);
    check_choice(mixed, 4096, BANYAN_MIXED_ONE_SHOT);
    check_choice(mixed, 16384, BANYAN_MIXED_TWO_SHOT);
    check_choice(mixed, 65536, BANYAN_MIXED_ONE_SHOT);
    CHECK_OK(banyan_mixed_close(mixed));
}

static void collectives_yield_to_modes_faster_by_an_eighth(void **state)
{
    with_table(state, CLOSE_TABLE, choose_closely);
}

static void choose_by_steps(banyan_world *world, void *context)
{
    banyan_mixed_options options = in_one_node();
    banyan_mixed *mixed;
    CHECK_OK(banyan_mixed_open_empty(world, &options, &mixed));
    CHECK_OK(banyan_mixed_load_autotune(mixed, context));
    check_choice(mixed, 1024, BANYAN_MIXED_SINGLE);
    CHECK_OK(banyan_mixed_init_virtual_memory(mixed));
    check_choice(mixed, 1024, BANYAN_MIXED_ONE_SHOT);
    check_choice(mixed, 65536, BANYAN_MIXED_TWO_SHOT);
    CHECK_OK(banyan_mixed_close(mixed));
}

static void modes_that_become_valid_later_are_chosen_then(void **state)
{
    with_table(state, TABLE, choose_by_steps);
}

/* A program built before options had `autotune` has other data after them. */
static void open_with_short_options(banyan_world *world, void *context)
{
    (void)context;
    banyan_mixed_options options = in_one_node();
    banyan_mixed *mixed;
    options.size = offsetof(banyan_mixed_options, autotune);
    options.autotune = "/nowhere/table.json";
    CHECK_OK(banyan_mixed_open(world, &options, &mixed));
    check_choice(mixed, 1024, BANYAN_MIXED_ONE_SHOT);
    CHECK_OK(banyan_mixed_close(mixed));
}

static void options_that_end_before_the_table_have_none(void **state)
{
    (void)state;
    ranks_run(2, open_with_short_options, NULL);
}

#define WIDE_TABLE                                                                                 \
    HEAD ROW(1024, "one_shot", 1999999000) "," ROW(1024, "two_shot", 7) "," ROW(                   \
        1024, "single", 99999900) "," ROW(2048, "single", 100) "]}"

static const char printed_table[] =
    "µs                            bytes    one_shot    two_shot      single\n"
    "allreduce                      1024   1999999.0        0.0*     99999.9\n"
    "allreduce                      2048           -           -        0.1*\n";

static void print(banyan_world *world, void *context)
{
    banyan_mixed_options options = in_one_node();
    banyan_mixed *mixed;
    char text[1024] = "";
    FILE *file = fmemopen(text, sizeof text, "w");
    options.autotune = context;
    CHECK_OK(banyan_mixed_open(world, &options, &mixed));
    CHECK_OK(banyan_mixed_print_autotune(mixed, file));
    CHECK(fclose(file) == 0 && strcmp(text, printed_table) == 0, "\n%s", text);
    CHECK_OK(banyan_mixed_close(mixed));
}

static void columns_of_the_printed_table_keep_apart(void **state)
{
    with_table(state, WIDE_TABLE, print);
}

static void save_and_load(banyan_world *world, void *context)
{
    banyan_mixed_options options = in_one_node();
    banyan_mixed *mixed, *other;
    banyan_mixed_timing one, same;
    size_t count = 0;
    options.use_autotune = true;
    options.max_bytes = 4096;
    CHECK_OK(banyan_mixed_open(world, &options, &mixed));
    CHECK_OK(banyan_mixed_save_autotune(mixed, context));
    options.autotune = context;
    CHECK_OK(banyan_mixed_open(world, &options, &other));
    for (; banyan_mixed_timing_at(mixed, count, &one) == BANYAN_OK; count++) {
        CHECK_OK(banyan_mixed_timing_at(other, count, &same));
        CHECK(one.op == same.op && one.bytes == same.bytes && one.mode == same.mode &&
              one.ns == same.ns && one.is_best == same.is_best);
    }
    CHECK(count == 3 * 3, "%zu timings of 3 modes and sizes", count);
    CHECK_FAILS(banyan_mixed_timing_at(other, count, &same), BANYAN_ERR_NOT_FOUND, "9 timings");
    CHECK_OK(banyan_mixed_close(mixed));
    CHECK_OK(banyan_mixed_close(other));
}

static void a_saved_table_is_the_same_when_it_is_loaded(void **state)
{
    with_table(state, "", save_and_load);
}

typedef struct bad_table {
    const char *text;
    banyan_status status;
    const char *part;
} bad_table;

static const bad_table bad_tables[] = {
    {"", BANYAN_ERR_FORMAT, "table.json:1"},
    {HEAD, BANYAN_ERR_FORMAT, "table.json:1"},
    {"{}", BANYAN_ERR_FORMAT, "\"format\""},
    {HEAD "7]}", BANYAN_ERR_FORMAT, "rows[0]"},
    {HEAD ROW(0, "single", 1) "]}", BANYAN_ERR_FORMAT, "rows[0].bytes is 0"},
    {HEAD ROW(1024, "single", -1) "]}", BANYAN_ERR_FORMAT, "rows[0].ns is -1"},
    {HEAD ROW(1024, "auto", 1) "]}", BANYAN_ERR_FORMAT, "rows[0] mode is \"auto\""},
    {HEAD "{\"op\": \"allgather\", \"bytes\": 1, \"mode\": \"world\", \"ns\": 1}]}",
     BANYAN_ERR_FORMAT, "rows[0] op is \"allgather\""},
    {HEAD ROW(1024, "single", 1) "," ROW(1024, "single", 2) "]}", BANYAN_ERR_FORMAT, "rows[1]"},
    {"{\"format\": \"banyan mixed tuning\", \"version\": 1, \"local_tp\": 4}", BANYAN_ERR_MISMATCH,
     "for local_tp 4, and the grid has 2"},
};

static void load_bad_tables(banyan_world *world, void *context)
{
    banyan_mixed_options options = in_one_node();
    banyan_mixed *mixed;
    CHECK_OK(banyan_mixed_open(world, &options, &mixed));
    for (size_t i = 0; i < sizeof bad_tables / sizeof *bad_tables; i++) {
        if (banyan_world_rank(world) == 0)
            write_table(context, bad_tables[i].text);
        CHECK_FAILS(banyan_mixed_load_autotune(mixed, context), bad_tables[i].status,
                    bad_tables[i].part);
    }
    CHECK_FAILS(banyan_mixed_load_autotune(mixed, "/nowhere/table.json"), BANYAN_ERR_NOT_FOUND,
                "/nowhere/table.json");
    CHECK_FAILS(banyan_mixed_save_autotune(mixed, context), BANYAN_ERR_INVALID,
                "nothing was measured");
    check_choice(mixed, 1024, BANYAN_MIXED_ONE_SHOT);
    CHECK_OK(banyan_mixed_close(mixed));
}

static void tables_that_do_not_fit_are_refused_by_all(void **state)
{
    with_table(state, "", load_bad_tables);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fastest_mode_of_the_nearest_size_is_chosen),
        cmocka_unit_test(collectives_yield_to_modes_faster_by_an_eighth),
        cmocka_unit_test(modes_that_become_valid_later_are_chosen_then),
        cmocka_unit_test(options_that_end_before_the_table_have_none),
        cmocka_unit_test(columns_of_the_printed_table_keep_apart),
        cmocka_unit_test(a_saved_table_is_the_same_when_it_is_loaded),
        cmocka_unit_test(tables_that_do_not_fit_are_refused_by_all),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
