/* Models on disk read back as written; an invalid or unfinished file is refused. */
#include "support/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/folder.h"

enum { COUNT = 4 };

struct model {
    const char *names[COUNT];
    DLTensor tensors[COUNT];
    int64_t shapes[COUNT][3], strides[COUNT][3];
    char *memory[COUNT];
};

static size_t strided_offset(const struct model *model, int t, const int64_t *index)
{
    int64_t at = 0;
    for (int d = 0; d < 3; d++)
        at += index[d] * model->strides[t][d];
    return (size_t)at * banyan_dtype_bytes(model->tensors[t].dtype);
}

/* Call fn for each element, in row-major order. */
static void each_element(const struct model *model, int t,
                         void (*fn)(const char *name, uint64_t n, size_t bytes, void *element))
{
    const int64_t *shape = model->shapes[t];
    uint64_t n = 0;
    int64_t index[3];
    for (index[0] = 0; index[0] < shape[0]; index[0]++)
        for (index[1] = 0; index[1] < shape[1]; index[1]++)
            for (index[2] = 0; index[2] < shape[2]; index[2]++)
                fn(model->names[t], n++, banyan_dtype_bytes(model->tensors[t].dtype),
                   model->memory[t] + strided_offset(model, t, index));
}

/* Tensors of several types, including transposed ones and an empty one. */
static void make_model(random_state *random, struct model *model)
{
    static const char *const names[COUNT] = {"model.a", "model.b.weight", "c", "\xc3\xa9.empty"};
    const DLDataType dtypes[COUNT] = {BANYAN_F8_E4M3, BANYAN_BF16, BANYAN_F32, BANYAN_BF16};
    *model = (struct model){0};
    for (int t = 0; t < COUNT; t++) {
        model->names[t] = names[t];
        for (int d = 0; d < 3; d++)
            model->shapes[t][d] = random_between(random, 1, 30);
        if (t == 3)
            model->shapes[t][1] = 0;
        model->strides[t][t == 1 ? 0 : 2] = 1;
        model->strides[t][1] = model->shapes[t][t == 1 ? 0 : 2] + random_between(random, 0, 3);
        model->strides[t][t == 1 ? 2 : 0] = model->strides[t][1] * (model->shapes[t][1] + 1);
        size_t elems =
            (size_t)(model->strides[t][t == 1 ? 2 : 0] * model->shapes[t][t == 1 ? 2 : 0]);
        model->memory[t] = calloc(elems + 1, banyan_dtype_bytes(dtypes[t]));
        model->tensors[t] = (DLTensor){.data = model->memory[t],
                                       .device = {kDLCPU, 0},
                                       .ndim = 3,
                                       .dtype = dtypes[t],
                                       .shape = model->shapes[t],
                                       .strides = model->strides[t]};
        each_element(model, t, pattern_element);
    }
}

static void free_model(struct model *model)
{
    for (int t = 0; t < COUNT; t++)
        free(model->memory[t]);
}

static void check_model(const banyan_checkpoint *checkpoint, const struct model *model)
{
    for (int t = 0; t < COUNT; t++) {
        size_t found;
        CHECK_OK(banyan_checkpoint_find(checkpoint, model->names[t], &found));
        const DLTensor *data = banyan_checkpoint_data(checkpoint, found);
        const banyan_local_tensor *tensor = banyan_checkpoint_tensor(checkpoint, found);
        assert_string_equal(tensor->name, model->names[t]);
        assert_true(banyan_dtype_equal(tensor->dtype, model->tensors[t].dtype));
        assert_int_equal(data->ndim, 3);
        uint64_t elems = 1;
        for (int d = 0; d < 3; d++) {
            assert_int_equal(data->shape[d], model->shapes[t][d]);
            elems *= (uint64_t)data->shape[d];
        }
        size_t bytes = banyan_dtype_bytes(data->dtype);
        for (uint64_t n = 0; n < elems; n++) {
            char want[8];
            pattern_element(model->names[t], n, bytes, want);
            assert_memory_equal((char *)data->data + n * bytes, want, bytes);
        }
    }
}

static void a_written_file_reads_back(void **state)
{
    const char *folder = *state;
    random_state random = random_from(random_seed());
    char *path = folder_path(folder, "model.safetensors");
    for (int round = 0; round < 20; round++) {
        struct model model;
        make_model(&random, &model);
        CHECK_OK(banyan_checkpoint_write(path, model.names, model.tensors, COUNT, NULL));
        const char *const paths[] = {path, folder};
        for (int i = 0; i < 2; i++) {
            banyan_checkpoint *checkpoint;
            size_t found;
            CHECK_OK(banyan_checkpoint_open(paths[i], &checkpoint));
            assert_int_equal(banyan_checkpoint_tensor_count(checkpoint), COUNT);
            check_model(checkpoint, &model);
            CHECK_FAILS(banyan_checkpoint_find(checkpoint, "model.z", &found), BANYAN_ERR_NOT_FOUND,
                        "has no tensor model.z");
            banyan_checkpoint_close(checkpoint);
        }
        free_model(&model);
        assert_int_equal(folder_entries(folder), 1);
    }
    free(path);
    banyan_checkpoint_close(NULL);
}

struct progress_seen {
    uint64_t done, total;
    int calls;
};

static void see_progress(void *context, uint64_t done, uint64_t total)
{
    struct progress_seen *progress_seen = context;
    assert_true(done > progress_seen->done && done <= total);
    *progress_seen = (struct progress_seen){done, total, progress_seen->calls + 1};
}

static void progress_goes_up_to_the_end(void **state)
{
    random_state random = random_from(random_seed());
    struct model model;
    struct progress_seen progress_seen = {0};
    char *path = folder_path(*state, "m");
    make_model(&random, &model);
    banyan_checkpoint_options options = BANYAN_CHECKPOINT_OPTIONS_INIT;
    options.progress = see_progress;
    options.progress_context = &progress_seen;
    CHECK_OK(banyan_checkpoint_write(path, model.names, model.tensors, COUNT, &options));
    assert_true(progress_seen.calls > 0);
    assert_int_equal(progress_seen.done, progress_seen.total);
    options.size = 0;
    CHECK_FAILS(banyan_checkpoint_write(path, model.names, model.tensors, COUNT, &options),
                BANYAN_ERR_INVALID, "BANYAN_CHECKPOINT_OPTIONS_INIT sets it");
    free_model(&model);
    free(path);
}

static void write_text(const char *folder, const char *name, const char *text)
{
    char *path = folder_path(folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    free(path);
}

static void write_shards(const char *folder, const struct model *model)
{
    for (int t = 0; t < COUNT; t += 2) {
        char *path = folder_path(folder, t == 0 ? "x-1.safetensors" : "x-2.safetensors");
        CHECK_OK(banyan_checkpoint_write(path, model->names + t, model->tensors + t, 2, NULL));
        free(path);
    }
}

#define INDEX "model.safetensors.index.json"

static void an_index_leads_to_its_shards(void **state)
{
    random_state random = random_from(random_seed());
    struct model model;
    banyan_checkpoint *checkpoint;
    make_model(&random, &model);
    write_shards(*state, &model);
    write_text(*state, INDEX,
               "{\"metadata\":{\"total_size\":1},\"weight_map\":{"
               "\"model.a\":\"x-1.safetensors\",\"model.b.weight\":\"x-1.safetensors\","
               "\"c\":\"x-2.safetensors\",\"\xc3\xa9.empty\":\"x-2.safetensors\"}}");
    CHECK_OK(banyan_checkpoint_open(*state, &checkpoint));
    check_model(checkpoint, &model);
    banyan_checkpoint_close(checkpoint);
    free_model(&model);
}

static void an_index_that_lies_is_refused(void **state)
{
    static const struct {
        const char *index;
        banyan_status status;
        const char *part;
    } cases[] = {
        {"{", BANYAN_ERR_FORMAT, INDEX ":1:"},
        {"[]", BANYAN_ERR_FORMAT, "weight_map"},
        {"{\"weight_map\":[]}", BANYAN_ERR_FORMAT, "weight_map"},
        {"{\"weight_map\":{\"c\":7}}", BANYAN_ERR_FORMAT, "weight_map.c"},
        {"{\"weight_map\":{\"c\":\"../x-2.safetensors\"}}", BANYAN_ERR_FORMAT, "weight_map.c"},
        {"{\"weight_map\":{\"c\":\"..\"}}", BANYAN_ERR_FORMAT, "weight_map.c"},
        {"{\"weight_map\":{\"c\":\"\"}}", BANYAN_ERR_FORMAT, "weight_map.c"},
        {"{\"weight_map\":{\"c\":\"x-9.safetensors\"}}", BANYAN_ERR_NOT_FOUND, "x-9.safetensors"},
        {"{\"weight_map\":{\"c\":\"x-1.safetensors\"}}", BANYAN_ERR_FORMAT,
         "tensor c is listed in x-1.safetensors, which does not have it"},
        {"{\"weight_map\":{\"c\":\"x-2.safetensors\"}}", BANYAN_ERR_FORMAT,
         "x-2.safetensors: tensor \xc3\xa9.empty is not in the weight_map of " INDEX
         ": list it there, or remove it from the file"},
        {"{\"weight_map\":{\"model.a\":\"x-1.safetensors\",\"c\":\"x-2.safetensors\","
         "\"\xc3\xa9.empty\":\"x-2.safetensors\"}}",
         BANYAN_ERR_FORMAT, "x-1.safetensors: tensor model.b.weight is not in the weight_map"},
        {"{\"weight_map\":{\"c\":\"" INDEX "\"}}", BANYAN_ERR_FORMAT, INDEX},
        {"{\"weight_map\":{\"c\":\"a\",\"c\":\"b\"}}", BANYAN_ERR_FORMAT, "duplicate"},
    };
    random_state random = random_from(random_seed());
    struct model model;
    banyan_checkpoint *checkpoint;
    make_model(&random, &model);
    write_shards(*state, &model);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_text(*state, INDEX, cases[i].index);
        CHECK_FAILS(banyan_checkpoint_open(*state, &checkpoint), cases[i].status, cases[i].part);
    }
    free_model(&model);
}

static void a_tensor_in_two_shards_is_refused(void **state)
{
    random_state random = random_from(random_seed());
    struct model model;
    banyan_checkpoint *checkpoint;
    make_model(&random, &model);
    char *one = folder_path(*state, "x-1.safetensors"),
         *two = folder_path(*state, "x-2.safetensors");
    CHECK_OK(banyan_checkpoint_write(one, model.names, model.tensors, 3, NULL));
    CHECK_OK(banyan_checkpoint_write(two, model.names + 2, model.tensors + 2, 2, NULL));
    write_text(*state, INDEX,
               "{\"weight_map\":{"
               "\"model.a\":\"x-1.safetensors\",\"model.b.weight\":\"x-1.safetensors\","
               "\"c\":\"x-1.safetensors\",\"\xc3\xa9.empty\":\"x-2.safetensors\"}}");
    CHECK_FAILS(banyan_checkpoint_open(*state, &checkpoint), BANYAN_ERR_FORMAT,
                "x-2.safetensors: tensor c is in x-1.safetensors too, where " INDEX " places it");
    free(one);
    free(two);
    free_model(&model);
}

static void open_one_tensor(const char *folder, banyan_checkpoint **checkpoint)
{
    CHECK_OK(banyan_checkpoint_open(folder, checkpoint));
    assert_int_equal(banyan_checkpoint_tensor_count(*checkpoint), 1);
    banyan_checkpoint_close(*checkpoint);
}

/* One folder, two models: engines differ in which one they read. */
static void a_folder_of_two_models_is_refused(void **state)
{
    random_state random = random_from(random_seed());
    struct model model;
    banyan_checkpoint *checkpoint;
    make_model(&random, &model);
    char *one = folder_path(*state, "x.safetensors");
    char *single = folder_path(*state, "model.safetensors");
    CHECK_OK(banyan_checkpoint_write(one, model.names, model.tensors, 1, NULL));
    CHECK_OK(banyan_checkpoint_write(single, model.names, model.tensors, 1, NULL));
    write_text(*state, INDEX, "{\"weight_map\":{\"model.a\":\"x.safetensors\"}}");
    CHECK_FAILS(banyan_checkpoint_open(*state, &checkpoint), BANYAN_ERR_FORMAT,
                "holds two models, in " INDEX " and in model.safetensors: remove one of them");
    open_one_tensor(single, &checkpoint);
    write_text(*state, INDEX, "{\"weight_map\":{\"model.a\":\"model.safetensors\"}}");
    open_one_tensor(*state, &checkpoint);
    write_text(*state, "banyan.index.json", "{}");
    CHECK_FAILS(banyan_checkpoint_open(*state, &checkpoint), BANYAN_ERR_FORMAT,
                "holds two models, in " INDEX " and in banyan.index.json");
    free(one);
    free(single);
    free_model(&model);
}

static void missing_files_and_tensors_are_named(void **state)
{
    banyan_checkpoint *checkpoint;
    CHECK_FAILS(banyan_checkpoint_open(*state, &checkpoint), BANYAN_ERR_NOT_FOUND,
                "has no " INDEX ", model.safetensors or banyan.index.json");
    char *path = folder_path(*state, "none");
    CHECK_FAILS(banyan_checkpoint_open(path, &checkpoint), BANYAN_ERR_NOT_FOUND, "none");
    free(path);
    write_text(*state, "model.safetensors", "");
    CHECK_FAILS(banyan_checkpoint_open(*state, &checkpoint), BANYAN_ERR_FORMAT, "is empty");
    write_text(*state, "model.safetensors", "1234567");
    CHECK_FAILS(banyan_checkpoint_open(*state, &checkpoint), BANYAN_ERR_FORMAT, "too short");
}

/* A valid file truncated at any length is refused. */
static void a_truncated_file_is_refused(void **state)
{
    random_state random = random_from(random_seed());
    struct model model;
    struct stat info;
    make_model(&random, &model);
    char *path = folder_path(*state, "model.safetensors");
    CHECK_OK(banyan_checkpoint_write(path, model.names, model.tensors, 2, NULL));
    assert_int_equal(stat(path, &info), 0);
    for (off_t length = info.st_size - 1; length >= 0; length -= length > 600 ? 97 : 1) {
        banyan_checkpoint *checkpoint;
        assert_int_equal(truncate(path, length), 0);
        CHECK_FAILS(banyan_checkpoint_open(path, &checkpoint), BANYAN_ERR_FORMAT,
                    "model.safetensors");
    }
    free(path);
    free_model(&model);
}

static void tensors_that_cannot_be_written_leave_nothing(void **state)
{
    int64_t shape = 4;
    float memory[4] = {0};
    DLTensor tensor = {
        .data = memory, .device = {kDLCPU, 0}, .ndim = 1, .dtype = BANYAN_F32, .shape = &shape};
    DLTensor two[2] = {tensor, tensor};
    const char *same[2] = {"w", "w"};
    char *path = folder_path(*state, "m"), *lost = folder_path(*state, "none/m");
    CHECK_FAILS(banyan_checkpoint_write(path, same, two, 2, NULL), BANYAN_ERR_INVALID,
                "two tensors are named w");
    two[0].dtype = (DLDataType){kDLInt, 4, 1};
    CHECK_FAILS(banyan_checkpoint_write(path, same, two, 1, NULL), BANYAN_ERR_INVALID, "tensor");
    two[0] = tensor;
    two[0].device.device_type = kDLCUDA;
    CHECK_FAILS(banyan_checkpoint_write(path, same, two, 1, NULL), BANYAN_ERR_INVALID, "tensor w");
    CHECK_FAILS(banyan_checkpoint_write(lost, same, &tensor, 1, NULL), BANYAN_ERR_NOT_FOUND,
                "none");
    assert_int_equal(folder_entries(*state), 0);
    free(path);
    free(lost);
}

/* A tensor of 4 MiB to one file, in a child process. */
static banyan_status write_large(const char *path)
{
    int64_t elems = 1 << 22;
    char *memory = calloc(1, (size_t)elems);
    const char *name = "large";
    DLTensor tensor = {
        .data = memory, .device = {kDLCPU, 0}, .ndim = 1, .dtype = BANYAN_U8, .shape = &elems};
    banyan_status status = banyan_checkpoint_write(path, &name, &tensor, 1, NULL);
    free(memory);
    return status;
}

static void in_child(void (*fn)(const char *folder), const char *folder, int *status)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        ranks_become_child();
        fn(folder);
        _exit(0);
    }
    assert_int_equal(waitpid(child, status, 0), child);
}

static void write_over_limit(const char *folder)
{
    struct rlimit limit = {1 << 20, 1 << 20};
    char *path = folder_path(folder, "model.safetensors");
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK_FAILS(write_large(path), BANYAN_ERR_SYSTEM, "File too large");
    CHECK(folder_entries(folder) == 1);
    free(path);
}

static void a_limit_on_file_sizes_leaves_the_old_file(void **state)
{
    int status;
    write_text(*state, "model.safetensors", "old");
    in_child(write_over_limit, *state, &status);
    assert_int_equal(status, 0);
    char *path = folder_path(*state, "model.safetensors"), text[8] = {0};
    FILE *file = fopen(path, "r");
    assert_int_equal(fread(text, 1, sizeof text - 1, file), 3);
    assert_string_equal(text, "old");
    fclose(file);
    free(path);
}

enum { CANNOT_MOUNT = 7 };

static void write_on_full_disk(const char *folder)
{
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        _exit(CANNOT_MOUNT);
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", folder, "tmpfs", 0, "size=1m") != 0)
        _exit(CANNOT_MOUNT);
    char *path = folder_path(folder, "model.safetensors");
    CHECK_FAILS(write_large(path), BANYAN_ERR_SYSTEM, "the disk is full");
    CHECK(strstr(banyan_last_error(), "model.safetensors takes 4194"), "%s", banyan_last_error());
    CHECK(folder_entries(folder) == 0);
    free(path);
}

static void a_full_disk_is_said_to_be_full(void **state)
{
    int status;
    in_child(write_on_full_disk, *state, &status);
    if (WIFEXITED(status) && WEXITSTATUS(status) == CANNOT_MOUNT) {
        print_message("skipped: a small file system cannot be mounted here\n");
        skip();
    }
    assert_int_equal(status, 0);
}

static void die(void *context, uint64_t done, uint64_t total)
{
    (void)context;
    if (done > total / 2)
        raise(SIGKILL);
}

static void die_half_way(const char *folder)
{
    random_state random = random_from(1);
    struct model model;
    make_model(&random, &model);
    banyan_checkpoint_options options = BANYAN_CHECKPOINT_OPTIONS_INIT;
    options.progress = die;
    char *path = folder_path(folder, "model.safetensors");
    CHECK_OK(banyan_checkpoint_write(path, model.names, model.tensors, COUNT, &options));
}

static void a_writer_that_is_killed_leaves_nothing(void **state)
{
    int status;
    int fd = open(*state, O_TMPFILE | O_RDWR, 0600);
    bool unnamed = fd >= 0;
    if (unnamed)
        close(fd);
    in_child(die_half_way, *state, &status);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    char *path = folder_path(*state, "model.safetensors");
    assert_int_not_equal(access(path, F_OK), 0);
    free(path);
    if (unnamed)
        assert_int_equal(folder_entries(*state), 0);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_written_file_reads_back),
        IN_FOLDER(progress_goes_up_to_the_end),
        IN_FOLDER(an_index_leads_to_its_shards),
        IN_FOLDER(an_index_that_lies_is_refused),
        IN_FOLDER(a_tensor_in_two_shards_is_refused),
        IN_FOLDER(a_folder_of_two_models_is_refused),
        IN_FOLDER(missing_files_and_tensors_are_named),
        IN_FOLDER(a_truncated_file_is_refused),
        IN_FOLDER(tensors_that_cannot_be_written_leave_nothing),
        IN_FOLDER(a_limit_on_file_sizes_leaves_the_old_file),
        IN_FOLDER(a_full_disk_is_said_to_be_full),
        IN_FOLDER(a_writer_that_is_killed_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
