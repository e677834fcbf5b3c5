#include "reshard/checkpoint/write.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/containers.h"
#include "core/files/file.h"
#include "core/files/new_file.h"
#include "core/log.h"

#define COPY_BYTES ((size_t)1 << 20)

struct small_file {
    char *name; /* below the folder: "config.json", "templates/tool.jinja" */
    uint64_t bytes;
};

struct listing {
    const char *from;
    char *real, *blobs; /* where links may lead; blobs NULL: only inside the folder */
    ARRAY(struct small_file) files;
    ARRAY(char *) folders;
};

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), end_length = strlen(end);
    return length >= end_length && strcmp(name + length - end_length, end) == 0;
}

static bool is_weights(const char *name)
{
    static const char *const ends[] = {
        ".index.json", ".safetensors", ".bin",       ".pt", ".pth",      ".ckpt",
        ".gguf",       ".onnx",        ".onnx_data", ".h5", ".msgpack",  ".npy",
        ".npz",        ".distcp",      ".tflite",    ".ot", ".pdparams",
    };
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        if (ends_with(name, ends[i]))
            return true;
    }
    return strcmp(name, "banyan.index.json") == 0;
}

/* True for "rank-00000", a part of a saved folder. */
static bool is_of_rank(const char *name)
{
    return strncmp(name, "rank-", 5) == 0 && name[5] != '\0' &&
           strspn(name + 5, "0123456789") == strlen(name + 5);
}

/* A Hugging Face cache keeps snapshots/REVISION/config.json as a link into blobs/. */
static bool find_roots(struct listing *listing)
{
    listing->real = realpath(listing->from, NULL);
    if (!listing->real)
        return false;
    char *parent = path_parent(listing->real), *base = parent ? path_base(parent) : NULL;
    char *model = parent ? path_parent(parent) : NULL;
    if (base && model && strcmp(base, "snapshots") == 0)
        listing->blobs = path_join(model, "blobs");
    free(parent);
    free(base);
    free(model);
    return true;
}

static bool is_below(const char *path, const char *root)
{
    size_t length = root ? strlen(root) : 0;
    return root && strncmp(path, root, length) == 0 && path[length] == '/';
}

/* Return why the open file may lie outside the folder, whatever links led to it. NULL: it lies
 * inside. */
static const char *why_outside(const struct listing *listing, int fd)
{
    char self[64], path[PATH_MAX];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    ssize_t bytes = readlink(self, path, sizeof path - 1);
    if (bytes < 0)
        return "/proc does not say where it lies";
    path[bytes] = '\0';
    bool is_inside = is_below(path, listing->real) || is_below(path, listing->blobs);
    return is_inside ? NULL : "it is a link out of the folder";
}

static void small_files_leave_out(const struct listing *listing, const char *name, const char *why)
{
    log_warn("%s/%s is left out: %s", listing->from, name, why);
}

/* Open the file. False, with a log line, for a file that is not copied. */
static bool small_files_open_file(const struct listing *listing, const char *name, int *fd,
                                  uint64_t *bytes)
{
    char *path = path_join(listing->from, name);
    banyan_status status = path ? file_open(path, fd, bytes) : BANYAN_ERR_NO_MEMORY;
    free(path);
    if (status != BANYAN_OK) {
        small_files_leave_out(listing, name, banyan_last_error());
        return false;
    }
    const char *why = why_outside(listing, *fd);
    if (!why)
        return true;
    small_files_leave_out(listing, name, why);
    close(*fd);
    return false;
}

static banyan_status small_files_add_file(struct listing *listing, const char *name)
{
    struct small_file file;
    int fd;
    char text[96];
    if (!small_files_open_file(listing, name, &fd, &file.bytes))
        return BANYAN_OK;
    close(fd);
    if (file.bytes > SMALL_FILE_BYTES) {
        snprintf(text, sizeof text, "it has %" PRIu64 " bytes, and at most %" PRIu64 " are copied",
                 file.bytes, SMALL_FILE_BYTES);
        small_files_leave_out(listing, name, text);
        return BANYAN_OK;
    }
    file.name = strdup(name);
    if (!file.name || !array_push(&listing->files, file)) {
        free(file.name);
        return error_no_memory(strlen(name) + 1, "a list of files");
    }
    return BANYAN_OK;
}

static banyan_status add_folder(struct listing *listing, const char *below);

static banyan_status small_files_add_entry(struct listing *listing, const char *below,
                                           const char *entry)
{
    char *name = below ? path_join(below, entry) : strdup(entry);
    char *path = name ? path_join(listing->from, name) : NULL;
    banyan_status status = BANYAN_OK;
    struct stat info;
    if (!name || !path)
        status = error_no_memory(strlen(entry) + 1, "a path");
    else if (lstat(path, &info) != 0)
        small_files_leave_out(listing, name, strerror(errno));
    else if (!S_ISDIR(info.st_mode))
        status = small_files_add_file(listing, name);
    else if (below)
        small_files_leave_out(listing, name, "it is a folder inside a folder");
    else if (array_push(&listing->folders, name)) {
        status = add_folder(listing, name);
        name = NULL;
    } else
        status = BANYAN_ERR_NO_MEMORY;
    free(name);
    free(path);
    return status;
}

/* Add the folder itself (`below` NULL), or a folder in it. */
static banyan_status add_folder(struct listing *listing, const char *below)
{
    char *path = below ? path_join(listing->from, below) : strdup(listing->from);
    DIR *folder = path ? opendir(path) : NULL;
    struct dirent *entry;
    banyan_status status = BANYAN_OK;
    if (!path)
        status = error_no_memory(strlen(listing->from) + 1, "a path");
    else if (!folder)
        status = error_set_errno("opening %s", path);
    while (folder && status == BANYAN_OK && (entry = readdir(folder))) {
        bool passed_over = entry->d_name[0] == '.' || is_weights(entry->d_name) ||
                           (!below && is_of_rank(entry->d_name));
        if (!passed_over)
            status = small_files_add_entry(listing, below, entry->d_name);
    }
    if (folder)
        closedir(folder);
    free(path);
    return status;
}

static int smaller_first(const void *a, const void *b)
{
    const struct small_file *first = a, *second = b;
    RETURN_IF_UNEQUAL(first->bytes, second->bytes);
    return strcmp(first->name, second->name);
}

static banyan_status small_files_copy_bytes(int from, const new_file *to, const char *what,
                                            uint64_t bytes)
{
    char *buffer = malloc(COPY_BYTES);
    banyan_status status = buffer ? BANYAN_OK : error_no_memory(COPY_BYTES, "a buffer");
    for (uint64_t done = 0; done < bytes && status == BANYAN_OK;) {
        uint64_t some = bytes - done < COPY_BYTES ? bytes - done : COPY_BYTES;
        ssize_t got = read(from, buffer, (size_t)some);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            status = error_set_errno("reading %s", what);
        else if (got == 0)
            status = error_set(BANYAN_ERR_SYSTEM, "%s became shorter while it was copied", what);
        else
            status = new_file_write(to, what, done, buffer, (size_t)got);
        done += got > 0 ? (uint64_t)got : 0;
    }
    free(buffer);
    return status == BANYAN_OK ? new_file_sync(to, what) : status;
}

static banyan_status small_files_write_file(int from, uint64_t bytes, const char *path)
{
    char *folder = path_parent(path);
    new_file file;
    RETURN_IF_NO_MEMORY(folder);
    banyan_status status = BANYAN_OK;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        status = error_set_errno("making %s", folder);
    if (status == BANYAN_OK)
        status = new_file_open(folder, path, bytes, &file);
    if (status == BANYAN_OK) {
        status = small_files_copy_bytes(from, &file, path, bytes);
        if (status == BANYAN_OK)
            status = new_file_publish(&file, path);
        new_file_close(&file);
    }
    free(folder);
    return status;
}

static banyan_status copy_file(const struct listing *listing, const char *name, void *context)
{
    const char *into = context;
    uint64_t bytes;
    int fd;
    if (!small_files_open_file(listing, name, &fd, &bytes))
        return BANYAN_OK;
    char *path = path_join(into, name);
    banyan_status status = BANYAN_ERR_NO_MEMORY;
    if (path && bytes > SMALL_FILE_BYTES)
        status = error_set(BANYAN_ERR_SYSTEM, "%s/%s became longer while it was copied",
                           listing->from, name);
    else if (path)
        status = small_files_write_file(fd, bytes, path);
    free(path);
    close(fd);
    return status;
}

/* Sync the folders in `into` to the disk; the caller that renames `into` syncs it. */
static banyan_status sync_folders(const struct listing *listing, const char *into)
{
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < listing->folders.count && status == BANYAN_OK; i++) {
        char *path = path_join(into, listing->folders.data[i]);
        RETURN_IF_NO_MEMORY(path);
        if (access(path, F_OK) == 0)
            status = folder_sync(path);
        free(path);
    }
    return status;
}

/* Take the files, the smallest first, up to the limits. */
static banyan_status take_all(struct listing *listing,
                              banyan_status (*take)(const struct listing *listing, const char *name,
                                                    void *context),
                              void *context)
{
    uint64_t total = 0;
    size_t left = 0;
    const char *first = NULL;
    if (!find_roots(listing))
        return error_set_errno("looking at %s", listing->from);
    RETURN_IF_FAILED(add_folder(listing, NULL));
    array_sort(&listing->files, smaller_first);
    for (size_t i = 0; i < listing->files.count; i++) {
        const struct small_file *file = &listing->files.data[i];
        if (i >= SMALL_FILES_COUNT || file->bytes > SMALL_FILES_BYTES - total) {
            first = left++ == 0 ? file->name : first;
            continue;
        }
        total += file->bytes;
        RETURN_IF_FAILED(take(listing, file->name, context));
    }
    if (left > 0)
        log_warn("%s: %zu small files are left out, %s first: at most %d files of %" PRIu64
                 " bytes together are copied, the smallest first",
                 listing->from, left, first, SMALL_FILES_COUNT, SMALL_FILES_BYTES);
    return BANYAN_OK;
}

static void listing_free(struct listing *listing)
{
    for (size_t i = 0; i < listing->files.count; i++)
        free(listing->files.data[i].name);
    for (size_t i = 0; i < listing->folders.count; i++)
        free(listing->folders.data[i]);
    array_free(&listing->files);
    array_free(&listing->folders);
    free(listing->real);
    free(listing->blobs);
}

banyan_status small_files_copy(const char *from, const char *into)
{
    struct listing listing = {.from = from};
    if (!from)
        return BANYAN_OK;
    banyan_status status = take_all(&listing, copy_file, (void *)into);
    if (status == BANYAN_OK)
        status = sync_folders(&listing, into);
    listing_free(&listing);
    return status;
}

/* A caller's function that takes files. */
struct small_reader {
    banyan_small_file_fn take;
    void *context;
};

static banyan_status read_file(const struct listing *listing, const char *name, void *context)
{
    const struct small_reader *reader = context;
    char self[64], *text;
    uint64_t expected;
    size_t bytes;
    int fd;
    if (!small_files_open_file(listing, name, &fd, &expected))
        return BANYAN_OK;
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    banyan_status status = file_read(self, SMALL_FILE_BYTES, &text, &bytes);
    close(fd);
    RETURN_IF_FAILED(status);
    status = reader->take(reader->context, name, text, bytes);
    free(text);
    return status;
}

banyan_status banyan_checkpoint_read_small_files(const char *folder, banyan_small_file_fn take,
                                                 void *context)
{
    struct listing listing = {.from = folder};
    struct small_reader reader = {take, context};
    RETURN_IF_NULL(folder);
    RETURN_IF_NULL(take);
    RETURN_IF_FAILED(small_files_check(folder));
    banyan_status status = take_all(&listing, read_file, &reader);
    listing_free(&listing);
    return status;
}

banyan_status small_files_check(const char *from)
{
    struct stat info;
    if (!from)
        return BANYAN_OK;
    if (stat(from, &info) != 0)
        return error_set(errno == ENOENT ? BANYAN_ERR_NOT_FOUND : BANYAN_ERR_SYSTEM,
                         "there is no folder %s to copy small files from", from);
    if (!S_ISDIR(info.st_mode))
        return error_set(BANYAN_ERR_INVALID, "%s is not a folder to copy small files from", from);
    return BANYAN_OK;
}
