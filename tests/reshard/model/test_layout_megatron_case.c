/* Cases as JSON: their pieces agree with their listed transfers, and invalid ones are refused with
 * the place. */
#include "reshard/elements.h"
#include "support/text_file.h"

#include <glob.h>

/* Two ranks to two ranks: a gated layer in segments, packed blocks, a whole tensor, and an output
 * layer that only the destination has. */
static const char small_case[] =
    "{\"name\": \"small\", \"world_size\": 2,\n"
    " \"ranks\": [\n"
    "  {\"rank\": 0,\n"
    "   \"src\": [\n"
    "    {\"name\": \"embedding.word_embeddings.weight\",\n"
    "     \"resolved_name\": \"embedding.word_embeddings.weight\", \"shape\": [6, 2],\n"
    "     \"dtype\": \"bfloat16\", \"is_tp\": false, \"partition_dim\": 0, \"partition_stride\": "
    "1,\n"
    "     \"partition_sizes\": null, \"tensor_parallel_group_ranks\": [0],\n"
    "     \"data_parallel_group_ranks\": [0]},\n"
    "    {\"name\": \"fc1\", \"resolved_name\": \"layers.3.fc1\", \"shape\": [8, 2],\n"
    "     \"dtype\": \"bfloat16\", \"is_tp\": false, \"partition_dim\": 0, \"partition_stride\": "
    "1,\n"
    "     \"tensor_parallel_group_ranks\": null, \"data_parallel_group_ranks\": [0]},\n"
    "    {\"name\": \"bias\", \"resolved_name\": \"layers.3.bias\", \"shape\": [],\n"
    "     \"dtype\": \"float32\", \"is_tp\": false, \"partition_dim\": -1, \"partition_stride\": "
    "1,\n"
    "     \"persistent_buffer\": true, \"data_parallel_group_ranks\": [0]}],\n"
    "   \"dst\": [\n"
    "    {\"name\": \"fc1\", \"resolved_name\": \"layers.3.fc1\", \"shape\": [4, 2],\n"
    "     \"dtype\": \"bfloat16\", \"is_tp\": true, \"partition_dim\": 0, \"partition_stride\": "
    "2,\n"
    "     \"partition_sizes\": null, \"tensor_parallel_group_ranks\": [0, 1],\n"
    "     \"data_parallel_group_ranks\": [0]}]},\n"
    "  {\"rank\": 1, \"src\": null,\n"
    "   \"dst\": [\n"
    "    {\"name\": \"fc1\", \"resolved_name\": \"layers.3.fc1\", \"shape\": [4, 2],\n"
    "     \"dtype\": \"bfloat16\", \"is_tp\": true, \"partition_dim\": 0, \"partition_stride\": "
    "1,\n"
    "     \"partition_sizes\": [2, 2], \"tensor_parallel_group_ranks\": [0, 1],\n"
    "     \"data_parallel_group_ranks\": [1]},\n"
    "    {\"name\": \"output_layer.weight\", \"resolved_name\": \"output_layer.weight\",\n"
    "     \"shape\": [6, 2], \"dtype\": \"bfloat16\", \"is_tp\": false, \"partition_dim\": 0,\n"
    "     \"partition_stride\": 1, \"data_parallel_group_ranks\": [1]}]}],\n"
    " \"transfers\": [\n"
    "  {\"task_id\": 0, \"src_rank\": 0, \"dst_rank\": 0, \"src_name\": \"fc1\",\n"
    "   \"dst_name\": \"fc1\", \"src_slice\": [[0, 2], [0, 2]], \"dst_slice\": [[0, 2], [0, 2]]},\n"
    "  {\"task_id\": 1, \"src_rank\": 0, \"dst_rank\": 0, \"src_name\": \"fc1\",\n"
    "   \"dst_name\": \"fc1\", \"src_slice\": [[4, 6], [0, 2]], \"dst_slice\": [[2, 4], [0, 2]]},\n"
    "  {\"task_id\": 2, \"src_rank\": 0, \"dst_rank\": 1, \"src_name\": \"fc1\",\n"
    "   \"dst_name\": \"fc1\", \"src_slice\": [[2, 4], [0, 2]], \"dst_slice\": [[0, 2], [0, 2]]},\n"
    "  {\"task_id\": 3, \"src_rank\": 0, \"dst_rank\": 1, \"src_name\": \"fc1\",\n"
    "   \"dst_name\": \"fc1\", \"src_slice\": [[6, 8], [0, 2]], \"dst_slice\": [[2, 4], [0, 2]]},\n"
    "  {\"task_id\": 4, \"src_rank\": 0, \"dst_rank\": 1,\n"
    "   \"src_name\": \"embedding.word_embeddings.weight\", \"dst_name\": "
    "\"output_layer.weight\",\n"
    "   \"src_slice\": [[0, 6], [0, 2]], \"dst_slice\": [[0, 6], [0, 2]]}\n"
    " ]}\n";

static banyan_status load_text(const char *text, banyan_megatron_case **loaded)
{
    text_file file = text_file_of(text);
    banyan_status status = banyan_megatron_case_load(file.path, loaded);
    text_file_remove(&file);
    return status;
}

/* One rank's layout of one side, and the meaning of each element of its tensors. */
struct side {
    banyan_layout *layout;
    int64_t **held;
    const banyan_piece ***by;
};

static struct side side_build(const banyan_megatron_case *loaded, int rank, banyan_side which)
{
    struct side side;
    CHECK_OK(banyan_layout_create(&side.layout));
    size_t count;
    const banyan_megatron_tensor *tensors =
        banyan_megatron_case_tensors(loaded, rank, which, &count);
    for (size_t i = 0; i < count; i++)
        banyan_layout_add_megatron(side.layout, &tensors[i], rank, 0);
    CHECK_OK(banyan_layout_check_as(side.layout, BANYAN_DESTINATION));
    side.held = calloc(count + 1, sizeof *side.held);
    side.by = calloc(count + 1, sizeof *side.by);
    for (size_t i = 0; i < count; i++)
        side.held[i] = layout_elements(side.layout, i, &side.by[i]);
    return side;
}

static void side_free(struct side *side)
{
    for (size_t i = 0; i < banyan_layout_tensor_count(side->layout); i++) {
        free(side->held[i]);
        free(side->by[i]);
    }
    free(side->held);
    free(side->by);
    banyan_layout_destroy(side->layout);
}

/* By the pieces of both ends, each element that the transfer moves is one element of one global
 * tensor. Marks the destination's as moved. */
static void check_transfer(const banyan_megatron_transfer *transfer, const struct side *source,
                           const struct side *destination)
{
    int s = layout_find_tensor(source->layout, transfer->source_name);
    int d = layout_find_tensor(destination->layout, transfer->destination_name);
    assert_true(s >= 0 && d >= 0);
    const banyan_local_tensor *from = banyan_layout_tensor(source->layout, (size_t)s);
    const banyan_local_tensor *to = banyan_layout_tensor(destination->layout, (size_t)d);
    int64_t at[BANYAN_MAX_DIMS], into[BANYAN_MAX_DIMS];
    memcpy(into, transfer->destination_slice.start, sizeof into);
    FOR_EACH_ELEMENT(&transfer->source_slice, at)
    {
        int64_t i = element_index(from->ndim, from->shape, at);
        int64_t k = element_index(to->ndim, to->shape, into);
        assert_true(source->held[s][i] >= 0);
        assert_int_equal(source->held[s][i], destination->held[d][k]);
        const banyan_piece *sent = source->by[s][i], *filled = destination->by[d][k];
        assert_true(strcmp(sent->name, filled->name) == 0 ||
                    (filled->fallback_name && strcmp(sent->name, filled->fallback_name) == 0));
        destination->by[d][k] = NULL;
        element_step(&transfer->destination_slice, into);
    }
}

static void check_replicas_of_side(const banyan_megatron_case *loaded, banyan_side which)
{
    int ranks = banyan_megatron_case_world_size(loaded);
    banyan_layout **layouts = calloc((size_t)ranks, sizeof *layouts);
    struct side *sides = calloc((size_t)ranks, sizeof *sides);
    for (int rank = 0; rank < ranks; rank++) {
        sides[rank] = side_build(loaded, rank, which);
        layouts[rank] = sides[rank].layout;
    }
    assert_true(check_replica_sets(layouts, ranks, false) > 0);
    for (int rank = 0; rank < ranks; rank++)
        side_free(&sides[rank]);
    free(layouts);
    free(sides);
}

static void check_case(const banyan_megatron_case *loaded)
{
    int ranks = banyan_megatron_case_world_size(loaded);
    struct side *sides[2];
    for (int which = 0; which < 2; which++) {
        sides[which] = calloc((size_t)ranks, sizeof **sides);
        for (int rank = 0; rank < ranks; rank++)
            sides[which][rank] = side_build(loaded, rank, (banyan_side)which);
        check_replicas_of_side(loaded, (banyan_side)which);
    }
    for (size_t i = 0; i < banyan_megatron_case_transfer_count(loaded); i++) {
        const banyan_megatron_transfer *transfer = banyan_megatron_case_transfer(loaded, i);
        check_transfer(transfer, &sides[BANYAN_SOURCE][transfer->source_rank],
                       &sides[BANYAN_DESTINATION][transfer->destination_rank]);
    }
    /* Every destination element was moved. */
    for (int rank = 0; rank < ranks; rank++) {
        const struct side *side = &sides[BANYAN_DESTINATION][rank];
        for (size_t t = 0; t < banyan_layout_tensor_count(side->layout); t++) {
            const banyan_local_tensor *local = banyan_layout_tensor(side->layout, t);
            for (int64_t i = 0; i < shape_elems(local->ndim, local->shape); i++)
                assert_null(side->by[t][i]);
        }
    }
    for (int which = 0; which < 2; which++) {
        for (int rank = 0; rank < ranks; rank++)
            side_free(&sides[which][rank]);
        free(sides[which]);
    }
}

static void a_case_reads_back(void **state)
{
    (void)state;
    banyan_megatron_case *loaded;
    CHECK_OK(load_text(small_case, &loaded));
    assert_string_equal(banyan_megatron_case_name(loaded), "small");
    assert_int_equal(banyan_megatron_case_world_size(loaded), 2);
    size_t count;
    const banyan_megatron_tensor *tensors =
        banyan_megatron_case_tensors(loaded, 0, BANYAN_SOURCE, &count);
    assert_int_equal(count, 3);
    assert_int_equal(tensors[1].tp_rank_count, 0);
    assert_int_equal(tensors[2].ndim, 0);
    assert_true(tensors[2].persistent_buffer);
    assert_true(banyan_dtype_equal(tensors[2].dtype, BANYAN_F32));
    banyan_megatron_case_tensors(loaded, 1, BANYAN_SOURCE, &count);
    assert_int_equal(count, 0);
    tensors = banyan_megatron_case_tensors(loaded, 1, BANYAN_DESTINATION, &count);
    assert_int_equal(count, 2);
    assert_int_equal(tensors[0].partition_size_count, 2);
    assert_int_equal(tensors[0].partition_sizes[1], 2);
    assert_int_equal(tensors[0].tp_ranks[1], 1);
    assert_int_equal(banyan_megatron_case_transfer_count(loaded), 5);
    const banyan_megatron_transfer *last = banyan_megatron_case_transfer(loaded, 4);
    assert_int_equal(last->task_id, 4);
    assert_string_equal(last->destination_name, "output_layer.weight");
    assert_int_equal(last->source_slice.extent[0], 6);
    check_case(loaded);
    banyan_megatron_case_destroy(loaded);
    banyan_megatron_case_destroy(NULL);
}

/* Load the small case with the first `what` after `after` replaced. */
static banyan_status load_changed(const char *after, const char *what, const char *by,
                                  banyan_megatron_case **loaded)
{
    char text[2 * sizeof small_case];
    const char *start = strstr(small_case, after);
    assert_non_null(start);
    const char *at = strstr(start, what);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - small_case), small_case, by,
             at + strlen(what));
    return load_text(text, loaded);
}

static void a_case_is_checked_as_given_and_as_planned(void **state)
{
    (void)state;
    banyan_megatron_case *loaded;
    banyan_reshard_report *report;
    CHECK_OK(load_text(small_case, &loaded));
    CHECK_OK(banyan_reshard_case_check(loaded, NULL, 0, 0, &report));
    assert_int_equal(banyan_reshard_report_count(report), 0);
    banyan_reshard_report_destroy(report);
    banyan_megatron_case_destroy(loaded);
    CHECK_OK(load_changed("\"task_id\": 2", "[[2, 4]", "[[3, 5]", &loaded));
    CHECK_OK(banyan_reshard_case_check(loaded, NULL, 0, 0, &report));
    assert_int_equal(banyan_reshard_report_count(report), 1);
    const banyan_reshard_finding *finding = banyan_reshard_report_finding(report, 0);
    assert_int_equal(finding->rule, BANYAN_RESHARD_SOURCE);
    assert_int_equal(finding->rank, 1);
    CHECK(strstr(finding->message, "task 2 moves [3:5, 0:2] of \"fc1\" from rank 0"), "%s",
          finding->message);
    banyan_reshard_report_destroy(report);
    banyan_megatron_case_destroy(loaded);
}

static void expect_refused(const char *after, const char *what, const char *by, const char *part)
{
    banyan_megatron_case *loaded = NULL;
    CHECK_FAILS(load_changed(after, what, by, &loaded), BANYAN_ERR_FORMAT, part);
    CHECK(strstr(banyan_last_error(), "/tmp/banyan_text_"), "%s", banyan_last_error());
    assert_null(loaded);
}

static void a_broken_case_is_refused_with_the_place(void **state)
{
    (void)state;
    expect_refused("ranks", "\"rank\": 0,", "\"rank\": 0", ":4:");
    expect_refused("{", "\"world_size\": 2", "\"world_size\": 3", "ranks has 2 entries for 3");
    expect_refused("{", "\"world_size\": 2", "\"world_size\": -2", "world_size is -2");
    expect_refused("{", "\"world_size\": 2", "\"world_size\": \"2\"", "world_size is a string");
    expect_refused("{", "\"name\": \"small\", ", "", "the document has no \"name\"");
    expect_refused("ranks", "\"rank\": 1", "\"rank\": 0", "ranks[1] is rank 0 a second time");
    expect_refused("fc1", "[8, 2]", "[8, \"2\"]", "ranks[0].src[1].shape[1] is a string");
    expect_refused("fc1", "[8, 2]", "[8, -2]", "ranks[0].src[1].shape[1] is -2");
    expect_refused("fc1", "[8, 2]", "[4611686018427387904, 4611686018427387904]",
                   "ranks[0].src[1].shape is larger than any memory");
    expect_refused("fc1", "[8, 2]", "[1,1,1,1,1,1,1,1,1]", "shape has 9 entries");
    expect_refused("fc1", "bfloat16", "bfloat17", "src[1].dtype is \"bfloat17\"");
    expect_refused("fc1", "\"is_tp\": false", "\"is_tp\": 0", "src[1].is_tp is an integer");
    expect_refused("\"fc1\"", "\"fc1\"", "\"embedding.word_embeddings.weight\"",
                   "src[1] has the name \"embedding.word_embeddings.weight\" of entry 0");
    expect_refused("dst", "[0, 1]", "[0, 2]", "dst[0].tensor_parallel_group_ranks[1] is 2");
    expect_refused("\"rank\": 1", "[2, 2]", "[2, null]", "ranks[1].dst[0].partition_sizes[1]");
    expect_refused("\"task_id\": 2", "\"src_rank\": 0", "\"src_rank\": 1",
                   "transfers[2] names \"fc1\" (src_name), which rank 1 does not hold");
    expect_refused("\"task_id\": 2", "[[2, 4]", "[[2, 9]", "transfers[2].src_slice[0][1] is 9");
    expect_refused("\"task_id\": 2", "[[2, 4]", "[[4, 2]",
                   "transfers[2].src_slice[0] is not a pair");
    expect_refused("\"task_id\": 2", "[[2, 4]", "[[2, 3]", "sends 2 elements and receives 4");
    expect_refused("\"task_id\": 2", "[[2, 4], [0, 2]]", "[[2, 4]]", "src_slice has 1 dimensions");
    banyan_megatron_case *loaded;
    CHECK_FAILS(load_text("[]", &loaded), BANYAN_ERR_FORMAT, "the document is not an object");
    CHECK_FAILS(banyan_megatron_case_load("/no/such/case.json", &loaded), BANYAN_ERR_NOT_FOUND,
                "/no/such/case.json");
    CHECK_FAILS(banyan_megatron_case_load("/tmp", &loaded), BANYAN_ERR_INVALID,
                "/tmp is a folder, not a file");
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    char text[sizeof small_case];
    for (size_t bytes = 0; bytes + 3 < sizeof small_case; bytes += 7) {
        memcpy(text, small_case, bytes);
        text[bytes] = '\0';
        banyan_megatron_case *loaded;
        CHECK_FAILS(load_text(text, &loaded), BANYAN_ERR_FORMAT, "/tmp/banyan_text_");
    }
}

static void the_golden_cases_agree_with_their_transfers(void **state)
{
    (void)state;
    glob_t files;
    CHECK(glob(BANYAN_BINARY_DIR "/tests/transfers/*.json", 0, NULL, &files) == 0, "no cases");
    glob(BANYAN_SOURCE_DIR "/../shared/golden/reshard/*.json", GLOB_APPEND, NULL, &files);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        banyan_megatron_case *loaded;
        CHECK_OK(banyan_megatron_case_load(files.gl_pathv[i], &loaded));
        printf("%s: %zu transfers\n", banyan_megatron_case_name(loaded),
               banyan_megatron_case_transfer_count(loaded));
        assert_true(banyan_megatron_case_transfer_count(loaded) > 0);
        check_case(loaded);
        banyan_megatron_case_destroy(loaded);
    }
    globfree(&files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_case_reads_back),
        cmocka_unit_test(a_case_is_checked_as_given_and_as_planned),
        cmocka_unit_test(a_broken_case_is_refused_with_the_place),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(the_golden_cases_agree_with_their_transfers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
