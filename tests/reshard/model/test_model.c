/* Tensor lists: a file's entries keep their order, and invalid ones are refused with file, line
 * and tensor. */
#include "support/test.h"

#include <unistd.h>

#include "core/deadline.h"
#include "reshard/model/model.h"
#include "support/folder.h"
#include "support/text_file.h"

static banyan_status load_text(const char *text, banyan_model **model)
{
    text_file file = text_file_of(text);
    banyan_status status = banyan_model_load(file.path, model);
    text_file_remove(&file);
    return status;
}

static void a_model_reads_back_in_file_order(void **state)
{
    (void)state;
    banyan_model *model;
    CHECK_OK(load_text("{\"z.weight\": {\"shape\": [3, 5], \"dtype\": \"BF16\"},\n"
                       " \"a\": {\"shape\": [], \"dtype\": \"F32\"},\n"
                       " \"empty\": {\"dtype\": \"F8_E4M3\", \"shape\": [0, 7], \"more\": 1}}\n",
                       &model));
    assert_int_equal(banyan_model_tensor_count(model), 3);
    assert_int_equal(banyan_model_bytes(model), 34);
    const banyan_local_tensor *tensor = banyan_model_tensor(model, 0);
    assert_string_equal(tensor->name, "z.weight");
    assert_int_equal(tensor->ndim, 2);
    assert_int_equal(tensor->shape[1], 5);
    assert_true(banyan_dtype_equal(tensor->dtype, BANYAN_BF16));
    assert_int_equal(banyan_model_tensor(model, 1)->ndim, 0);
    assert_ptr_equal(model_find(model, "empty"), banyan_model_tensor(model, 2));
    assert_null(model_find(model, "none"));
    banyan_model_destroy(model);
    banyan_model_destroy(NULL);
}

static void expect_refused(const char *text, const char *part)
{
    banyan_model *model = NULL;
    CHECK_FAILS(load_text(text, &model), BANYAN_ERR_FORMAT, part);
    CHECK(strstr(banyan_last_error(), "/tmp/banyan_text_"), "%s", banyan_last_error());
    assert_null(model);
}

static void impossible_tensors_are_refused_with_line_and_tensor(void **state)
{
    (void)state;
    const char *good = "{\"a\": {\"shape\": [2], \"dtype\": \"F32\"},\n\n\"b.w\": %s}";
    static const struct {
        const char *entry, *part;
    } cases[] = {
        {"{\"shape\": [2], \"dtype\": \"F33\"}", ":3: tensor \"b.w\" has an unknown dtype: F33"},
        {"{\"shape\": [2]}", ":3: tensor \"b.w\" has no \"dtype\""},
        {"{\"shape\": [2], \"dtype\": 4}", ":3: tensor \"b.w\" has no \"dtype\""},
        {"{\"dtype\": \"F32\"}", ":3: tensor \"b.w\" has no \"shape\""},
        {"{\"shape\": 2, \"dtype\": \"F32\"}", "has no \"shape\" that is an array"},
        {"{\"shape\": [2, -1], \"dtype\": \"F32\"}",
         "in dimension 1, which is not an integer from 0"},
        {"{\"shape\": [2.5], \"dtype\": \"F32\"}", "in dimension 0"},
        {"{\"shape\": [null], \"dtype\": \"F32\"}", "in dimension 0"},
        {"{\"shape\": [1,1,1,1,1,1,1,1,1], \"dtype\": \"F32\"}", "has 9 dimensions"},
        {"{\"shape\": [4294967296, 4294967296], \"dtype\": \"F32\"}",
         "is larger than any memory: [4294967296, 4294967296]"},
        {"{\"shape\": [99999999999999999999], \"dtype\": \"F32\"}", ":3:"},
        {"[2]", ":3: tensor \"b.w\" is not described by an object"},
        {"{\"shape\": [2], \"dtype\": \"F32\"}, \"a\": {\"shape\": [2], \"dtype\": \"F32\"}",
         "duplicate object key"},
        {"{\"shape\": [2], \"dtype\": \"F32\"", ":3:"},
    };
    char text[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, good, cases[i].entry);
        expect_refused(text, cases[i].part);
    }
    expect_refused("[]", "not an object of tensors");
    expect_refused("{}", "a model without tensors");
    expect_refused("", ":1:");
    /* Each fits; their sum does not. */
    expect_refused("{\"a\": {\"shape\": [4611686018427387904], \"dtype\": \"U8\"},\n"
                   "\"b\": {\"shape\": [4611686018427387904], \"dtype\": \"U8\"}}",
                   "up to tensor \"b\" the model has more than");
    banyan_model *model;
    CHECK_FAILS(banyan_model_load("/no/such/model.json", &model), BANYAN_ERR_NOT_FOUND,
                "/no/such/model.json");
}

/* A safetensors file of zeros. */
static void write_safetensors(const char *path, const char *header, uint64_t data_bytes)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    uint64_t bytes = strlen(header);
    fwrite(&bytes, sizeof bytes, 1, file);
    fputs(header, file);
    for (uint64_t i = 0; i < data_bytes; i++)
        fputc(0, file);
    fclose(file);
}

static void expect_two_tensors(const char *path)
{
    banyan_model *model;
    CHECK_OK(banyan_model_load(path, &model));
    assert_int_equal(banyan_model_tensor_count(model), 2);
    assert_int_equal(banyan_model_bytes(model), 20);
    const banyan_local_tensor *tensor = model_find(model, "b");
    assert_non_null(tensor);
    assert_int_equal(tensor->ndim, 2);
    assert_int_equal(tensor->shape[1], 3);
    assert_true(banyan_dtype_equal(tensor->dtype, BANYAN_BF16));
    banyan_model_destroy(model);
}

static void a_model_loads_from_a_folder_and_from_safetensors(void **state)
{
    (void)state;
    char folder[] = "/tmp/banyan_model_XXXXXX", single[64], first[64], second[64], index[64];
    assert_non_null(mkdtemp(folder));
    snprintf(single, sizeof single, "%s/model.safetensors", folder);
    snprintf(first, sizeof first, "%s/x1.safetensors", folder);
    snprintf(second, sizeof second, "%s/x2.safetensors", folder);
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", folder);
    banyan_model *model;
    CHECK_FAILS(banyan_model_load(folder, &model), BANYAN_ERR_NOT_FOUND, folder);

    write_safetensors(single,
                      "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                      "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]}}",
                      20);
    expect_two_tensors(single);
    expect_two_tensors(folder);
    write_safetensors(single, "{}", 0);
    CHECK_FAILS(banyan_model_load(single, &model), BANYAN_ERR_FORMAT, "a model without tensors");
    unlink(single);

    write_safetensors(first, "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8);
    write_safetensors(second,
                      "{\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]}}", 12);
    FILE *file = fopen(index, "w");
    fputs("{\"weight_map\": {\"a\": \"x1.safetensors\", \"b\": \"x2.safetensors\"}}", file);
    fclose(file);
    expect_two_tensors(folder);
    const char *const left[] = {first, second, index};
    for (int i = 0; i < 3; i++)
        unlink(left[i]);
    rmdir(folder);
}

/* head_dim of a folder's config.json; 0: it has none; -1: the folder is refused. */
static int64_t head_of(const char *folder, const char *config)
{
    char *path = folder_path(folder, "config.json");
    folder_write(path, config);
    banyan_model *model;
    int64_t head = -1;
    if (banyan_model_load(folder, &model) == BANYAN_OK) {
        if (!model_fact_int(model, "head_dim", &head))
            head = 0;
        banyan_model_destroy(model);
    }
    free(path);
    return head;
}

static void a_folders_configuration_gives_the_size_of_heads(void **state)
{
    char *single = folder_path(*state, "model.safetensors");
    write_safetensors(single, "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
                      8);
    static const struct {
        const char *config;
        int64_t head;
    } cases[] = {
        {"{}", 0},
        {"{\"hidden_size\": 2048, \"num_attention_heads\": 32}", 0},
        {"{\"hidden_size\": 2048, \"num_attention_heads\": 32, \"head_dim\": 80}", 80},
        {"{\"hidden_size\": 2048, \"num_attention_heads\": 32, \"head_dim\": null}", 0},
        {"{\"head_dim\": 64, \"v_head_dim\": 128}", 64},
        {"{\"head_dim\": \"64\"}", 0},
        {"{\"head_dim\": 64", -1},
        {"{\"head_dim\": 128.5}", 0},
        {"{\"text_config\": {\"head_dim\": 64}}", 64},
        {"{\"head_dim\": 32, \"text_config\": {\"head_dim\": 64}}", 64},
        {"{\"time_step_limit\": [0.0, Infinity], \"a\": NaN, \"b\": -Infinity, \"head_dim\": 80, "
         "\"c\": 100000000000000000000000, \"d\": \"\\\"Infinity\"}",
         80},
        {"{\"head_dim\": Infinit}", -1},
        {"[]", -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK(head_of(*state, cases[i].config) == cases[i].head, "%s", cases[i].config);
    CHECK(strstr(banyan_last_error(), "config.json"), "%s", banyan_last_error());
    free(single);
}

static void expect_fact(const banyan_model *model, const char *key, const char *text)
{
    const char *found = model_fact(model, key);
    CHECK((found == NULL) == (text == NULL) && (!text || strcmp(found, text) == 0),
          "%s is %s, not %s", key, found ? found : "unknown", text ? text : "unknown");
}

static void every_scalar_of_a_configuration_is_a_fact(void **state)
{
    char *single = folder_path(*state, "model.safetensors");
    char *config = folder_path(*state, "config.json");
    write_safetensors(single, "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
                      8);
    folder_write(config, "{\"model_type\": \"x\", \"tie\": true, \"eps\": 1e-06, \"n\": null, "
                         "\"limit\": [0.0, Infinity], \"huge\": 100000000000000000000, "
                         "\"said\": \"Infinity, \\\"NaN\\\"\", \"experts\": 8, "
                         "\"text_config\": {\"model_type\": \"y\", \"heads\": 4}}");
    banyan_model *model;
    CHECK_OK(banyan_model_load(*state, &model));
    expect_fact(model, "model_type", "\"y\"");
    expect_fact(model, "tie", "true");
    expect_fact(model, "said", "\"Infinity, \\\"NaN\\\"\"");
    expect_fact(model, "heads", "4");
    expect_fact(model, "n", NULL);
    expect_fact(model, "limit", NULL);
    expect_fact(model, "huge", NULL);
    expect_fact(model, "text_config", NULL);
    int64_t value = -1;
    CHECK(model_fact_int(model, "experts", &value) && value == 8);
    CHECK(!model_fact_int(model, "tie", &value) && !model_fact_int(model, "none", &value));
    CHECK(value == 8);
    banyan_model_destroy(model);
    free(single);
    free(config);
}

/* As many tensors as Qwen3-235B has. */
static void a_model_of_many_tensors_loads_and_lays_out_quickly(void **state)
{
    (void)state;
    enum { LAYERS = 94, EXPERTS = 128 };
    char path[] = "/tmp/banyan_model_XXXXXX";
    FILE *file = fdopen(mkstemp(path), "w");
    const char *parts[] = {"gate", "up", "down"};
    fputs("{", file);
    for (int i = 0; i < LAYERS * EXPERTS * 3; i++) {
        bool down = i % 3 == 2;
        fprintf(file,
                "%s\n\"model.layers.%d.mlp.experts.%d.%s_proj.weight\": {\"shape\": [%d, %d], "
                "\"dtype\": \"BF16\"}",
                i > 0 ? "," : "", i / 3 / EXPERTS, i / 3 % EXPERTS, parts[i % 3],
                down ? 4096 : 1536, down ? 1536 : 4096);
    }
    for (int i = 0; i < LAYERS; i++)
        fprintf(file,
                ",\n\"model.layers.%d.mlp.gate.weight\": {\"shape\": [%d, 4096], \"dtype\": "
                "\"BF16\"}",
                i, EXPERTS);
    fputs("}", file);
    fclose(file);
    banyan_model *model;
    banyan_rules *rules;
    banyan_spec spec;
    banyan_layout *layout;
    uint64_t start = time_now_ns();
    CHECK_OK(banyan_model_load(path, &model));
    uint64_t loaded = time_now_ns();
    unlink(path);
    CHECK_OK(banyan_rules_load(NULL, &rules));
    CHECK_OK(banyan_spec_parse("tp=8,pp=8,ep=16,world=1024,packing=megatron", &spec));
    CHECK_OK(banyan_layout_create(&layout));
    uint64_t begun = time_now_ns();
    banyan_layout_add_model(layout, model, rules, &spec, 1000, 0);
    CHECK_OK(banyan_layout_check(layout));
    uint64_t took = time_now_ns() - begun;
    printf("%zu tensors: load %.1f ms, one rank's layout %.1f ms (%zu pieces)\n",
           banyan_model_tensor_count(model), (double)(loaded - start) * 1e-6, (double)took * 1e-6,
           banyan_layout_piece_count(layout));
    assert_int_equal(banyan_layout_piece_count(layout), 11 * (8 * 3 + 1));
    /* Far above a sanitizer build's time; quadratic work would take minutes. */
    assert_true(loaded - start < 5 * TEST_SLOWER * NS_PER_S && took < TEST_SLOWER * NS_PER_S);
    banyan_layout_destroy(layout);
    banyan_rules_destroy(rules);
    banyan_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_reads_back_in_file_order),
        cmocka_unit_test(impossible_tensors_are_refused_with_line_and_tensor),
        cmocka_unit_test(a_model_loads_from_a_folder_and_from_safetensors),
        cmocka_unit_test_setup_teardown(a_folders_configuration_gives_the_size_of_heads,
                                        folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(every_scalar_of_a_configuration_is_a_fact, folder_setup,
                                        folder_teardown),
        cmocka_unit_test(a_model_of_many_tensors_loads_and_lays_out_quickly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
