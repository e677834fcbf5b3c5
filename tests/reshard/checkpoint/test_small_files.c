/* The small files of a model's folder are copied unchanged, and nothing else is. */
#include "support/test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "reshard/checkpoint/write.h"
#include "support/folder.h"

static bool has_proc = true;
static char warnings[8192];

/* Replaces the C library's function; without /proc no descriptor's path can be read. */
ssize_t readlink(const char *restrict path, char *restrict text, size_t bytes)
{
    if (has_proc)
        return readlinkat(AT_FDCWD, path, text, bytes);
    errno = ENOENT;
    return -1;
}

static void keep_warning(banyan_log_level level, const char *text, void *context)
{
    (void)context;
    CHECK(level == BANYAN_LOG_WARN, "%s", text);
    size_t used = strlen(warnings);
    snprintf(warnings + used, sizeof warnings - used, "%s\n", text);
}

/* A thousand files are synced to disk; in memory that takes no time. */
static int setup(void **state)
{
    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0);
    warnings[0] = '\0';
    banyan_log_set(keep_warning, NULL);
    return folder_setup(state);
}

static int teardown(void **state)
{
    banyan_log_set(NULL, NULL);
    return folder_teardown(state);
}

static void make_folder(const char *root, const char *name)
{
    char *path = folder_path(root, name);
    assert_int_equal(mkdir(path, 0777), 0);
    free(path);
}

static void write_file(const char *root, const char *name, const char *text)
{
    char *path = folder_path(root, name);
    folder_write(path, text);
    free(path);
}

static void make_link(const char *root, const char *name, const char *target)
{
    char *path = folder_path(root, name);
    assert_int_equal(symlink(target, path), 0);
    free(path);
}

/* NULL: there must be no such entry. */
static void expect_file(const char *root, const char *name, const char *text)
{
    char *path = folder_path(root, name), found[256] = "";
    struct stat info;
    bool is_there = lstat(path, &info) == 0;
    CHECK(is_there == (text != NULL), "%s", path);
    if (text) {
        FILE *file = fopen(path, "r");
        size_t bytes = fread(found, 1, sizeof found - 1, file);
        fclose(file);
        CHECK(S_ISREG(info.st_mode) && bytes == strlen(text) && strcmp(found, text) == 0, "%s: %s",
              path, found);
    }
    free(path);
}

static void expect_warning(const char *part)
{
    CHECK(strstr(warnings, part), "\"%s\" is not among:\n%s", part, warnings);
}

static void expect_no_warning(const char *part)
{
    CHECK(!strstr(warnings, part), "\"%s\" is among:\n%s", part, warnings);
}

/* A folder that has a copy of the files, and the number of those that were read. */
struct expected {
    const char *copy;
    int count, ends_at; /* the read that fails; 0: none does */
};

static banyan_status expect_as_copied(void *context, const char *name, const void *data,
                                      size_t bytes)
{
    struct expected *expected = context;
    char *text = strndup(data, bytes);
    expect_file(expected->copy, name, text);
    free(text);
    return ++expected->count == expected->ends_at
               ? banyan_error_set(BANYAN_ERR_MISMATCH, "%s is enough", name)
               : BANYAN_OK;
}

/* The files that are read are those that were copied. */
static void check_read(const char *from, const char *copy)
{
    struct expected expected = {.copy = copy};
    CHECK_OK(banyan_checkpoint_read_small_files(from, expect_as_copied, &expected));
    assert_int_equal(expected.count, folder_entries(copy));
    expected = (struct expected){.copy = copy, .ends_at = 1};
    CHECK_FAILS(banyan_checkpoint_read_small_files(from, expect_as_copied, &expected),
                BANYAN_ERR_MISMATCH, " is enough");
    assert_int_equal(expected.count, 1);
}

static void small_files_of_a_model_are_copied_and_weights_are_not(void **state)
{
    static const char *const carried[] = {
        "config.json",    "generation_config.json",
        "tokenizer.json", "tokenizer_config.json",
        "vocab.json",     "special_tokens_map.json",
        "merges.txt",     "tokenizer.model",
        "README.md",      "chat_template.jinja",
        "modeling_x.py",  "additional_chat_templates/t.jinja",
        "rank-one",       "1_Pooling/config.json",
        "empty.txt",
    };
    static const char *const passed_over[] = {
        "model.safetensors",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "banyan.index.json",
        ".gitattributes",
        "original/consolidated.00.pth",
        "rank-00000/model.safetensors",
        "rank-00000/x.json",
        "rank-00001",
    };
    char *from = folder_path(*state, "from"), *into = folder_path(*state, "into");
    make_folder(*state, "from");
    make_folder(*state, "into");
    make_folder(from, "additional_chat_templates");
    make_folder(from, "1_Pooling");
    make_folder(from, "original");
    make_folder(from, "rank-00000");
    make_folder(from, ".cache");
    for (size_t i = 0; i < sizeof carried / sizeof carried[0]; i++)
        write_file(from, carried[i], strstr(carried[i], "empty") ? "" : carried[i]);
    for (size_t i = 0; i < sizeof passed_over / sizeof passed_over[0]; i++)
        write_file(from, passed_over[i], passed_over[i]);
    CHECK_OK(small_files_check(from));
    CHECK_OK(small_files_copy(from, into));
    for (size_t i = 0; i < sizeof carried / sizeof carried[0]; i++)
        expect_file(into, carried[i], strstr(carried[i], "empty") ? "" : carried[i]);
    for (size_t i = 0; i < sizeof passed_over / sizeof passed_over[0]; i++)
        expect_file(into, passed_over[i], NULL);
    assert_int_equal(folder_entries(into), sizeof carried / sizeof carried[0]);
    check_read(from, into);
    CHECK(warnings[0] == '\0', "%s", warnings);
    free(from);
    free(into);
}

static void files_outside_the_folder_are_left_out_with_a_warning(void **state)
{
    char *from = folder_path(*state, "from"), *into = folder_path(*state, "into");
    make_folder(*state, "from");
    make_folder(*state, "into");
    make_folder(*state, "blobs");
    make_folder(from, "sub");
    make_folder(from, "sub/deep");
    write_file(*state, "secret", "a key");
    write_file(*state, "blobs/x", "not in a cache");
    write_file(from, "sub/kept.json", "kept");
    make_link(from, "inner.json", "sub/kept.json");
    make_link(from, "outer.json", "../secret");
    make_link(from, "sub/outer.json", "../../secret");
    make_link(from, "blob.json", "../blobs/x");
    make_link(from, "nowhere.json", "nothing");
    make_link(from, "itself", ".");
    char *pipe_path = folder_path(from, "pipe");
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    CHECK_OK(small_files_copy(from, into));
    expect_file(into, "sub/kept.json", "kept");
    expect_file(into, "inner.json", "kept");
    assert_int_equal(folder_entries(into), 2);
    check_read(from, into);
    expect_warning("from/outer.json is left out: it is a link out of the folder");
    expect_warning("from/sub/outer.json is left out: it is a link out of the folder");
    expect_warning("from/blob.json is left out: it is a link out of the folder");
    expect_warning("from/nowhere.json is left out: there is no file ");
    expect_warning("from/itself is left out: ");
    expect_warning("pipe is a named pipe, not a file");
    expect_warning("from/sub/deep is left out: it is a folder inside a folder");
    expect_no_warning("kept.json");
    expect_no_warning("inner.json");
    free(pipe_path);
    free(from);
    free(into);
}

/* models--a--b/snapshots/0123/config.json → ../../blobs/4567, as huggingface_hub keeps models. */
static void a_cache_of_hugging_face_is_followed_into_its_blobs(void **state)
{
    char *into = folder_path(*state, "into");
    char *snapshot = folder_path(*state, "model/snapshots/0123");
    make_folder(*state, "into");
    make_folder(*state, "model");
    make_folder(*state, "model/blobs");
    make_folder(*state, "model/snapshots");
    make_folder(*state, "model/snapshots/0123");
    make_folder(*state, "other");
    write_file(*state, "model/blobs/4567", "{}");
    write_file(*state, "other/secret", "a key");
    make_link(snapshot, "config.json", "../../blobs/4567");
    make_link(snapshot, "outer.json", "../../../other/secret");
    make_link(snapshot, "model.safetensors", "../../blobs/4567");
    make_link(*state, "alias", "model/snapshots/0123");
    char *alias = folder_path(*state, "alias");
    CHECK_OK(small_files_copy(alias, into));
    expect_file(into, "config.json", "{}");
    assert_int_equal(folder_entries(into), 1);
    check_read(alias, into);
    expect_warning("outer.json is left out: it is a link out of the folder");
    free(alias);
    free(into);
    free(snapshot);
}

static void a_file_whose_place_is_not_known_is_left_out(void **state)
{
    char *from = folder_path(*state, "from"), *into = folder_path(*state, "into");
    make_folder(*state, "from");
    make_folder(*state, "into");
    write_file(from, "config.json", "{}");
    has_proc = false;
    CHECK_OK(small_files_copy(from, into));
    has_proc = true;
    assert_int_equal(folder_entries(into), 0);
    expect_warning("config.json is left out: /proc does not say where it lies");
    free(from);
    free(into);
}

static void files_over_a_limit_are_left_out_with_the_limit(void **state)
{
    enum { MORE = 3 };
    char *from = folder_path(*state, "from"), *into = folder_path(*state, "into");
    char *large = folder_path(*state, "from/large.json"), name[32];
    make_folder(*state, "from");
    make_folder(*state, "into");
    write_file(from, "large.json", "");
    assert_int_equal(truncate(large, (off_t)SMALL_FILE_BYTES + 1), 0);
    for (int i = 0; i < SMALL_FILES_COUNT + MORE - 1; i++) {
        snprintf(name, sizeof name, "file-%04d", i);
        write_file(from, name, "12345678");
    }
    write_file(from, "small.json", "1");
    CHECK_OK(small_files_copy(from, into));
    assert_int_equal(folder_entries(into), SMALL_FILES_COUNT);
    expect_file(into, "small.json", "1");
    expect_file(into, "file-1022", "12345678");
    expect_file(into, "file-1023", NULL);
    expect_warning(
        "from: 3 small files are left out, file-1023 first: at most 1024 files of 268435456 bytes");
    expect_warning(
        "large.json is left out: it has 67108865 bytes, and at most 67108864 are copied");
    free(large);
    free(from);
    free(into);
}

static void a_folder_that_is_none_is_refused(void **state)
{
    char *file = folder_path(*state, "file"), *none = folder_path(*state, "none");
    folder_write(file, "");
    CHECK_OK(small_files_check(NULL));
    CHECK_OK(small_files_copy(NULL, *state));
    CHECK_FAILS(small_files_check(file), BANYAN_ERR_INVALID, "file is not a folder");
    CHECK_FAILS(small_files_check(none), BANYAN_ERR_NOT_FOUND, "there is no folder ");
    CHECK_FAILS(banyan_checkpoint_read_small_files(none, expect_as_copied, NULL),
                BANYAN_ERR_NOT_FOUND, "there is no folder ");
    free(file);
    free(none);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(small_files_of_a_model_are_copied_and_weights_are_not),
        IN_FOLDER(files_outside_the_folder_are_left_out_with_a_warning),
        IN_FOLDER(a_cache_of_hugging_face_is_followed_into_its_blobs),
        IN_FOLDER(a_file_whose_place_is_not_known_is_left_out),
        IN_FOLDER(files_over_a_limit_are_left_out_with_the_limit),
        IN_FOLDER(a_folder_that_is_none_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
