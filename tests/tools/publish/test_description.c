/* Descriptions of models arrive as they were made, and damaged ones are refused. */
#include "support/test.h"

#include "publish/description.c"
#include "support/folder.h"

/* A model's folder with weights and small files, described. */
static description describe_folder(const char *folder)
{
    static const char *const named[] = {"model.norm.weight", "a \"name\""};
    static uint16_t data[12];
    int64_t shape[] = {3, 4};
    DLTensor tensors[2];
    for (int i = 0; i < 2; i++)
        tensors[i] = (DLTensor){.data = data,
                                .device = BANYAN_HOST,
                                .ndim = 2 - 2 * i,
                                .dtype = {kDLBfloat, 16, 1},
                                .shape = shape};
    char *weights = folder_path(folder, "model.safetensors");
    char *config = folder_path(folder, "config.json"), *text = folder_path(folder, "text");
    CHECK_OK(banyan_checkpoint_write(weights, named, tensors, 2, NULL));
    folder_write(config, "{\"head_dim\": 16}");
    folder_write(text, "");
    banyan_checkpoint *checkpoint;
    description made;
    CHECK_OK(banyan_checkpoint_open(folder, &checkpoint));
    CHECK_OK(description_make(checkpoint, NULL, folder, &made));
    banyan_checkpoint_close(checkpoint);
    free(weights);
    free(config);
    free(text);
    return made;
}

/* A copy of exactly its size, so that sanitizers see a read behind it. */
static description copy_of(const void *data, uint64_t bytes)
{
    description copy = {.data = malloc(bytes > 0 ? bytes : 1), .bytes = bytes};
    memcpy(copy.data, data, bytes);
    return copy;
}

static void a_description_arrives_as_it_was_made(void **state)
{
    description made = describe_folder(*state), arrived = copy_of(made.data, made.bytes);
    banyan_model *model;
    CHECK_OK(description_parse(&arrived));
    assert_int_equal(arrived.file_count, 2);
    CHECK_OK(description_compare(json_object_get(made.header, "model"),
                                 json_object_get(arrived.header, "model")));
    char *path = folder_path(*state, "list.json"), *into = folder_path(*state, "into");
    CHECK_OK(description_write_model(&arrived, path));
    CHECK_OK(banyan_model_load(path, &model));
    assert_int_equal(banyan_model_tensor_count(model), 2);
    banyan_model_destroy(model);
    assert_int_equal(mkdir(into, 0777), 0);
    CHECK_OK(description_write_files(&arrived, into));
    assert_int_equal(folder_entries(into), 2);
    CHECK_FAILS(description_write_files(&arrived, into), BANYAN_ERR_FORMAT, "name of weights");
    free(path);
    free(into);
    description_free(&made);
    description_free(&arrived);
}

static void names_that_lead_elsewhere_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",        "/etc/passwd", "../a", "a/../b",
                                        ".hidden", "a/b/c",       "a/",   "a/.b"};
    static const char *const right[] = {"config.json", "templates/tool.jinja", "a..b"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CHECK(!is_safe_name(wrong[i]), "%s", wrong[i]);
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++)
        CHECK(is_safe_name(right[i]), "%s", right[i]);
}

static void damaged_descriptions_are_refused_or_stay_in_bounds(void **state)
{
    description made = describe_folder(*state);
    random_state random = random_from(random_seed());
    int refused = 0;
    for (int round = 0; round < 3000; round++) {
        uint64_t bytes = random_between(&random, 0, 2)
                             ? made.bytes
                             : (uint64_t)random_between(&random, 0, (int64_t)made.bytes - 1);
        description damaged = copy_of(made.data, bytes);
        for (int64_t i = random_between(&random, 0, 3); i > 0 && bytes > 0; i--)
            damaged.data[random_between(&random, 0, (int64_t)bytes - 1)] =
                (unsigned char)random_next(&random);
        banyan_status status = description_parse(&damaged);
        uint64_t sum = 0;
        for (size_t i = 0; status == BANYAN_OK && i < damaged.file_count; i++) {
            const unsigned char *data = damaged.files[i].data;
            CHECK(is_safe_name(damaged.files[i].name), "%s", damaged.files[i].name);
            for (size_t k = 0; k < damaged.files[i].bytes; k++)
                sum += data[k];
        }
        refused += status != BANYAN_OK;
        CHECK(status == BANYAN_OK || status == BANYAN_ERR_FORMAT, "%lu: %s", (unsigned long)sum,
              banyan_last_error());
        description_free(&damaged);
    }
    assert_true(refused > 100);
    description_free(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_description_arrives_as_it_was_made, folder_setup,
                                        folder_teardown),
        cmocka_unit_test(names_that_lead_elsewhere_are_refused),
        cmocka_unit_test_setup_teardown(damaged_descriptions_are_refused_or_stay_in_bounds,
                                        folder_setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
