/* The selection of the plan for a call: the table, tuning files, plans that users add. */
#include "support/test.h"

#include "collective/tuning.h"
#include "support/folder.h"

static tuning_row row_of(int ranks, bool registered, uint64_t up_to_bytes, const char *algorithm)
{
    tuning_row row = {.kind = BANYAN_ALLREDUCE,
                      .ranks = ranks,
                      .registered = registered,
                      .up_to_bytes = up_to_bytes};
    snprintf(row.algorithm, sizeof row.algorithm, "%s", algorithm);
    return row;
}

static const char *found_for(const tuning *table, tuning_row wanted, int ranks_per_node,
                             DLDataType dtype)
{
    wanted.ranks_per_node = ranks_per_node;
    wanted.dtype = dtype;
    const tuning_row *row = tuning_find(table, &wanted);
    return row ? row->algorithm : "none";
}

static const char *found(const tuning *table, int ranks, bool registered, uint64_t bytes)
{
    return found_for(table, row_of(ranks, registered, bytes, ""), ranks, BANYAN_F32);
}

static void the_closest_row_serves_and_rows_for_the_ranks_come_first(void **state)
{
    (void)state;
    tuning table = {0};
    tuning_row any[] = {row_of(0, false, 100, "small"), row_of(0, false, UINT64_MAX, "large")};
    tuning_row four[] = {row_of(4, false, 50, "tiny4"), row_of(4, false, 1000, "medium4")};
    assert_int_equal(tuning_replace(&table, any, 2), BANYAN_OK);
    assert_int_equal(tuning_replace(&table, four, 2), BANYAN_OK);
    assert_string_equal(found(&table, 2, false, 0), "small");
    assert_string_equal(found(&table, 2, false, 100), "small");
    assert_string_equal(found(&table, 2, false, 101), "large");
    assert_string_equal(found(&table, 4, false, 50), "tiny4");
    assert_string_equal(found(&table, 4, false, 51), "medium4");
    assert_string_equal(found(&table, 4, false, 1001), "large");
    assert_string_equal(found(&table, 4, true, 50), "none");
    tuning_row again[] = {row_of(4, false, UINT64_MAX, "all4")};
    assert_int_equal(tuning_replace(&table, again, 1), BANYAN_OK);
    assert_string_equal(found(&table, 4, false, 50), "all4");
    assert_string_equal(found(&table, 2, false, 50), "small");
    tuning_row two_nodes[] = {row_of(4, false, UINT64_MAX, "nodes4")};
    two_nodes->ranks_per_node = 2;
    assert_int_equal(tuning_replace(&table, two_nodes, 1), BANYAN_OK);
    assert_string_equal(found(&table, 4, false, 50), "all4");
    tuning_row wanted = row_of(4, false, 50, "");
    assert_string_equal(found_for(&table, wanted, 2, BANYAN_F32), "nodes4");
    tuning_row halves[] = {row_of(4, false, 60, "bf16")};
    halves->dtype = BANYAN_BF16;
    assert_int_equal(tuning_replace(&table, halves, 1), BANYAN_OK);
    assert_string_equal(found_for(&table, wanted, 4, BANYAN_BF16), "bf16");
    assert_string_equal(found_for(&table, wanted, 4, BANYAN_F16), "all4");
    wanted.up_to_bytes = 61;
    assert_string_equal(found_for(&table, wanted, 4, BANYAN_BF16), "all4");
    tuning_free(&table);
}

static void rows_for_gpus_serve_gpus_alone(void **state)
{
    (void)state;
    tuning table = {0};
    tuning_row host[] = {row_of(0, false, UINT64_MAX, "host")};
    tuning_row gpu[] = {row_of(4, false, 1000, "gpu4")};
    gpu->on_gpu = true;
    assert_int_equal(tuning_replace(&table, host, 1), BANYAN_OK);
    assert_int_equal(tuning_replace(&table, gpu, 1), BANYAN_OK);
    assert_string_equal(found(&table, 4, false, 10), "host");
    tuning_row wanted = row_of(4, false, 10, "");
    wanted.on_gpu = true;
    assert_string_equal(found_for(&table, wanted, 4, BANYAN_F32), "gpu4");
    wanted.up_to_bytes = 1001;
    assert_string_equal(found_for(&table, wanted, 4, BANYAN_F32), "none");
    tuning_free(&table);
}

/* Every built-in row names an algorithm of its collective, and every call finds one. */
static void the_built_in_table_serves_every_call(void **state)
{
    (void)state;
    tuning table = {0};
    assert_int_equal(tuning_default(&table), BANYAN_OK);
    for (size_t i = 0; i < table.rows.count; i++) {
        const tuning_row *row = &table.rows.data[i];
        banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
        banyan_plan *plan;
        params.ranks = 3;
        params.instances = row->instances;
        params.unit_bytes = row->unit_bytes;
        assert_int_equal(banyan_algorithm_compile(row->algorithm, &params, &plan), BANYAN_OK);
        assert_int_equal(banyan_plan_describe(plan).collective, row->kind);
        banyan_plan_destroy(plan);
    }
    for (int kind = BANYAN_ALLREDUCE; kind <= BANYAN_REDUCE; kind++) {
        tuning_row wanted = row_of(7, false, UINT64_MAX, "");
        wanted.kind = (banyan_collective_kind)kind;
        for (int way = 0; way < 4; way++) {
            wanted.on_gpu = way & 1;
            wanted.registered =
                (way & 2) && kind != BANYAN_REDUCE; /* which never uses registered memory */
            const tuning_row *row = tuning_find(&table, &wanted);
            assert_non_null(row);
            assert_int_equal(row->on_gpu, wanted.on_gpu);
        }
    }
    tuning_free(&table);
}

static void a_table_reads_as_it_was_written(void **state)
{
    (void)state;
    tuning table = {0}, again = {0};
    char *text, *second;
    assert_int_equal(tuning_default(&table), BANYAN_OK);
    tuning_row own[] = {row_of(4, true, 4096, "allreduce_ring"),
                        row_of(4, true, UINT64_MAX, "allreduce_twoshot_direct")};
    own[1].unit_bytes = 65536;
    own[1].instances = 2;
    own[0].dtype = own[1].dtype = BANYAN_BF16;
    assert_int_equal(tuning_replace(&table, own, 2), BANYAN_OK);
    assert_int_equal(tuning_print(&table, &text), BANYAN_OK);
    assert_int_equal(tuning_parse(&again, "text", text, strlen(text)), BANYAN_OK);
    assert_int_equal(tuning_print(&again, &second), BANYAN_OK);
    assert_string_equal(text, second);
    free(text);
    free(second);
    tuning_free(&table);
    tuning_free(&again);
}

#define FILE_OF(rows) "{\"format\": \"banyan tuning\", \"version\": 1, \"rows\": [" rows "]}"
#define ROW(collective, ranks, bytes, algorithm)                                                   \
    "{\"collective\": \"" collective "\", \"ranks\": " ranks ", \"registered\": false, "           \
    "\"up_to_bytes\": " bytes ", \"algorithm\": \"" algorithm                                      \
    "\", \"instances\": 0, \"unit_bytes\": 0}"

static void wrong_tables_are_refused_with_their_place(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } wrong[] = {
        {"{", "t.json:"},
        {"{\"format\": \"other\", \"version\": 1, \"rows\": []}", "format is \"other\""},
        {"{\"format\": \"banyan tuning\", \"version\": 2, \"rows\": []}", "version"},
        {FILE_OF(ROW("allreduce", "-1", "1", "allreduce_ring")), "rows[0].ranks"},
        {FILE_OF("{\"collective\": \"allreduce\", \"algorithm\": \"allreduce_ring\", "
                 "\"device\": \"tpu\"}"),
         "rows[0] device is \"tpu\""},
        {FILE_OF(ROW("allshuffle", "2", "1", "allreduce_ring")), "\"allshuffle\""},
        {FILE_OF(ROW("allreduce", "2", "1", "allreduce_magic")), "allreduce_magic"},
        {FILE_OF(ROW("allreduce", "2", "1", "alltoall_packets")), "alltoall_packets"},
        {FILE_OF(ROW("allreduce", "2, \"dtype\": \"f31\"", "1", "allreduce_ring")),
         "rows[0] dtype is \"f31\""},
        {FILE_OF(ROW("allreduce", "2", "9", "allreduce_ring") ", " ROW("allreduce", "2", "9",
                                                                       "allreduce_ring")),
         "rows[1]"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tuning table = {0};
        CHECK_FAILS(tuning_parse(&table, "t.json", wrong[i].text, strlen(wrong[i].text)),
                    BANYAN_ERR_FORMAT, wrong[i].part);
        assert_int_equal(table.rows.count, 0);
        tuning_free(&table);
    }
}

static void check_sum(banyan_comm *comm, size_t count, int rank, int ranks)
{
    int32_t input[64], output[64];
    CHECK(count <= 64);
    for (size_t i = 0; i < count; i++)
        input[i] = (rank + 1) * 1000 + (int)i;
    CHECK_OK(banyan_comm_allreduce(comm, input, output, count, BANYAN_I32, BANYAN_SUM, NULL));
    for (size_t i = 0; i < count; i++)
        CHECK(output[i] == ranks * (ranks + 1) / 2 * 1000 + ranks * (int)i, "element %zu: %d", i,
              output[i]);
}

static void check_choice(banyan_comm *comm, uint64_t bytes, const char *name)
{
    const char *chosen;
    CHECK_OK(banyan_comm_choice(comm, BANYAN_ALLREDUCE, bytes, BANYAN_I32, BANYAN_SUM, false, false,
                                &chosen));
    CHECK(strcmp(chosen, name) == 0, "%llu bytes: %s, not %s", (unsigned long long)bytes, chosen,
          name);
}

/* Rank 0's file decides, whichever files the others would read. */
static void use_file(banyan_world *world, void *context)
{
    banyan_comm_options options = BANYAN_COMM_OPTIONS_INIT;
    banyan_comm *comm;
    if (banyan_world_rank(world) == 0)
        setenv("BANYAN_TUNING", context, 1);
    CHECK_OK(banyan_comm_create(world, &options, &comm));
    check_choice(comm, 100, "allreduce_ring");
    check_choice(comm, 101, "allreduce_tree");
    const char *of_bf16;
    CHECK_OK(banyan_comm_choice(comm, BANYAN_ALLREDUCE, 101, BANYAN_BF16, BANYAN_SUM, false, false,
                                &of_bf16));
    CHECK(strcmp(of_bf16, "allreduce_packets") == 0, "bf16: %s", of_bf16);
    check_sum(comm, 16, banyan_world_rank(world), banyan_world_size(world));
    check_sum(comm, 64, banyan_world_rank(world), banyan_world_size(world));
    CHECK_OK(banyan_comm_destroy(comm));
}

static void lack_file(banyan_world *world, void *context)
{
    (void)context;
    banyan_comm_options options = BANYAN_COMM_OPTIONS_INIT;
    banyan_comm *comm;
    options.tuning = "/nowhere/tuning.json";
    CHECK_FAILS(banyan_comm_create(world, &options, &comm), BANYAN_ERR_NOT_FOUND,
                "/nowhere/tuning.json");
}

static void rank_0s_tuning_file_decides(void **state)
{
    static const char text[] = FILE_OF(ROW("allreduce", "3", "100", "allreduce_ring") ", " ROW(
        "allreduce", "3", "null", "allreduce_tree") ", " ROW("allreduce", "3, \"dtype\": \"bf16\"",
                                                             "null", "allreduce_packets"));
    char *path = folder_path(*state, "tuning.json");
    folder_write(path, text);
    ranks_run(3, use_file, path);
    ranks_run(2, lack_file, NULL);
    free(path);
}

/* A user's plan precedes the table, within its bounds and for its reduction. */
static void add_plan(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_plan *plan, *other;
    banyan_comm *comm;
    params.ranks = ranks;
    CHECK_OK(banyan_algorithm_compile("allreduce_tree", &params, &plan));
    params.ranks = ranks + 1;
    CHECK_OK(banyan_algorithm_compile("allreduce_tree", &params, &other));
    CHECK_OK(banyan_comm_create(world, NULL, &comm));
    check_choice(comm, 256, "allreduce_packets");
    check_sum(comm, 64, rank, ranks);
    CHECK_OK(banyan_comm_add_plan(comm, plan));
    const char *other_op;
    CHECK_OK(banyan_comm_choice(comm, BANYAN_ALLREDUCE, 256, BANYAN_I32, BANYAN_MIN, false, false,
                                &other_op));
    CHECK(strcmp(other_op, "allreduce_packets") == 0, "for the least: %s", other_op);
    check_choice(comm, 256, banyan_plan_describe(plan).name);
    check_sum(comm, 64, rank, ranks);
    CHECK_FAILS(banyan_comm_add_plan(comm, other), BANYAN_ERR_INVALID, "the communicator has 3");
    int32_t input = rank, least = -1;
    CHECK_OK(banyan_comm_allreduce(comm, &input, &least, 1, BANYAN_I32, BANYAN_MIN, NULL));
    CHECK(least == 0, "the least is %d", least);
    CHECK_OK(banyan_comm_destroy(comm));
    banyan_plan_destroy(plan);
    banyan_plan_destroy(other);
}

static void an_added_plan_serves_its_calls(void **state)
{
    (void)state;
    ranks_run(3, add_plan, NULL);
}

/* 100 to 200 bytes of output are 34 to 66 bytes for each rank. */
static void add_bounded_gather(banyan_world *world, void *context)
{
    (void)context;
    static const struct {
        uint64_t bytes;
        bool is_served;
    } messages[] = {{33, false}, {34, true}, {66, true}, {67, false}};
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.min_message_bytes = 100;
    options.max_message_bytes = 200;
    banyan_collective gather = {.kind = BANYAN_ALLGATHER, .chunk_factor = 1};
    banyan_program *program;
    banyan_plan *plan;
    banyan_comm *comm;
    CHECK_OK(
        banyan_program_create("bounded", &gather, banyan_world_size(world), &options, &program));
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    CHECK_OK(banyan_comm_create(world, NULL, &comm));
    CHECK_OK(banyan_comm_add_plan(comm, plan));
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        const char *chosen;
        CHECK_OK(banyan_comm_choice(comm, BANYAN_ALLGATHER, messages[i].bytes, BANYAN_U8,
                                    BANYAN_SUM, false, false, &chosen));
        CHECK((strcmp(chosen, "bounded") == 0) == messages[i].is_served, "%llu bytes: %s",
              (unsigned long long)messages[i].bytes, chosen);
    }
    CHECK_OK(banyan_comm_destroy(comm));
    banyan_plan_destroy(plan);
}

static void the_bounds_of_an_added_all_gather_count_its_output(void **state)
{
    (void)state;
    ranks_run(3, add_bounded_gather, NULL);
}

static void tune(banyan_world *world, void *context)
{
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    banyan_tune_options options = BANYAN_TUNE_OPTIONS_INIT;
    banyan_comm *comm;
    options.min_bytes = 64;
    options.max_bytes = 4096;
    options.seconds = 20;
    CHECK_OK(banyan_comm_create(world, NULL, &comm));
    CHECK_OK(banyan_comm_tune(comm, &options));
    check_sum(comm, 64, rank, ranks);
    CHECK_OK(banyan_comm_save_tuning(comm, context));
    CHECK_OK(banyan_comm_destroy(comm));
    banyan_comm_options with = BANYAN_COMM_OPTIONS_INIT;
    with.size = 0;
    CHECK_FAILS(banyan_comm_create(world, &with, &comm), BANYAN_ERR_INVALID,
                "BANYAN_COMM_OPTIONS_INIT");
    with.size = sizeof with;
    with.tuning = context;
    CHECK_OK(banyan_comm_create(world, &with, &comm));
    check_sum(comm, 16, rank, ranks);
    options.min_bytes = 0;
    CHECK_FAILS(banyan_comm_tune(comm, &options), BANYAN_ERR_INVALID, "from 0 to 4096 bytes");
    options.size = 0;
    CHECK_FAILS(banyan_comm_tune(comm, &options), BANYAN_ERR_INVALID, "BANYAN_TUNE_OPTIONS_INIT");
    CHECK_OK(banyan_comm_destroy(comm));
}

static void tuning_measures_and_is_saved(void **state)
{
    char *path = folder_path(*state, "tuned.json");
    ranks_run(2, tune, path);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char text[65536];
    size_t bytes = fread(text, 1, sizeof text, file);
    fclose(file);
    tuning table = {0};
    assert_int_equal(tuning_parse(&table, path, text, bytes), BANYAN_OK);
    tuning_row wanted = row_of(2, false, 1 << 30, "");
    wanted.ranks_per_node = 2;
    const tuning_row *row = tuning_find(&table, &wanted);
    assert_non_null(row);
    assert_int_equal(row->ranks, 2);
    tuning_free(&table);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_closest_row_serves_and_rows_for_the_ranks_come_first),
        cmocka_unit_test(the_built_in_table_serves_every_call),
        cmocka_unit_test(a_table_reads_as_it_was_written),
        cmocka_unit_test(rows_for_gpus_serve_gpus_alone),
        cmocka_unit_test(wrong_tables_are_refused_with_their_place),
        cmocka_unit_test_setup_teardown(rank_0s_tuning_file_decides, folder_setup, folder_teardown),
        cmocka_unit_test(an_added_plan_serves_its_calls),
        cmocka_unit_test(the_bounds_of_an_added_all_gather_count_its_output),
        cmocka_unit_test_setup_teardown(tuning_measures_and_is_saved, folder_setup,
                                        folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
