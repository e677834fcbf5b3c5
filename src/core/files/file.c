#include "core/files/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/containers.h"
#include "core/error.h"
#include "core/files/nameless.h"

/* Bytes of one read from a pipe: the default capacity of a Linux pipe. */
#define PIPE_BYTES ((size_t)64 << 10)

static banyan_status fail_kind(const char *path, mode_t mode)
{
    const char *kind = S_ISDIR(mode)    ? "a folder"
                       : S_ISFIFO(mode) ? "a named pipe"
                       : S_ISSOCK(mode) ? "a socket"
                                        : "a device";
    return error_set(BANYAN_ERR_INVALID, "%s is %s, not a file", path, kind);
}

/* open() fails for sockets and some devices, so the error checks the path's type. */
static banyan_status fail_open(const char *path)
{
    int error = errno;
    struct stat info;
    if (error == ENOENT)
        return error_set(BANYAN_ERR_NOT_FOUND, "there is no file %s", path);
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return fail_kind(path, info.st_mode);
    errno = error;
    return error_set_errno("opening %s", path);
}

/* O_NONBLOCK: opening a pipe without a writer would otherwise wait forever. */
static banyan_status open_any(const char *path, int *fd, struct stat *info)
{
    int opened = TEMP_FAILURE_RETRY(open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (opened < 0)
        return fail_open(path);
    if (fstat(opened, info) != 0) {
        banyan_status status = error_set_errno("looking at %s", path);
        close(opened);
        return status;
    }
    *fd = opened;
    return BANYAN_OK;
}

banyan_status file_open(const char *path, int *fd, uint64_t *bytes)
{
    struct stat info;
    int opened;
    RETURN_IF_FAILED(open_any(path, &opened, &info));
    if (!S_ISREG(info.st_mode)) {
        close(opened);
        return fail_kind(path, info.st_mode);
    }
    *fd = opened;
    *bytes = (uint64_t)info.st_size;
    return BANYAN_OK;
}

static banyan_status files_file_read_all(int fd, const char *path, char *text, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = read(fd, text + done, bytes - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set_errno("reading %s", path);
        if (got == 0)
            return error_set(BANYAN_ERR_FORMAT, "%s ended after %zu of its %zu bytes", path, done,
                             bytes);
        done += (size_t)got;
    }
    return BANYAN_OK;
}

static banyan_status files_file_read_file(int fd, const char *path, uint64_t size, size_t max_bytes,
                                          char **text, size_t *bytes)
{
    if (size > max_bytes)
        return error_set(BANYAN_ERR_INVALID, "%s has %" PRIu64 " bytes: at most %zu are read", path,
                         size, max_bytes);
    char *buffer = malloc((size_t)size + 1);
    if (!buffer)
        return error_no_memory((size_t)size + 1, path);
    banyan_status status = files_file_read_all(fd, path, buffer, (size_t)size);
    if (status != BANYAN_OK) {
        free(buffer);
        return status;
    }
    *text = buffer;
    *bytes = (size_t)size;
    return BANYAN_OK;
}

/* True for a pipe that this process inherited: an anonymous pipe, or a /dev/fd path. */
static bool is_given_pipe(int fd, const char *path, const struct stat *info)
{
    struct statfs system;
    if (!S_ISFIFO(info->st_mode))
        return false;
    return strcmp(path, "/dev/stdin") == 0 || strncmp(path, "/dev/fd/", 8) == 0 ||
           (fstatfs(fd, &system) == 0 && system.f_type == PIPEFS_MAGIC);
}

/* Read until the end of the pipe; its size is not known before. */
static banyan_status read_pipe(int fd, const char *path, size_t max_bytes, char **text,
                               size_t *bytes)
{
    ARRAY(char) all = {0};
    banyan_status status = BANYAN_OK;
    if (fcntl(fd, F_SETFL, 0) != 0)
        return error_set_errno("waiting for %s", path);
    for (ssize_t got = 1; got != 0 && status == BANYAN_OK;) {
        if (!array_reserve(&all, PIPE_BYTES + 1)) {
            status = BANYAN_ERR_NO_MEMORY;
            break;
        }
        got = read(fd, all.data + all.count, PIPE_BYTES);
        if (got < 0 && errno != EINTR)
            status = error_set_errno("reading %s", path);
        all.count += got > 0 ? (size_t)got : 0;
        if (all.count > max_bytes)
            status = error_set(BANYAN_ERR_INVALID, "%s has more than %zu bytes, the limit", path,
                               max_bytes);
    }
    if (status != BANYAN_OK) {
        array_free(&all);
        return status;
    }
    *text = all.data;
    *bytes = all.count;
    return BANYAN_OK;
}

banyan_status file_read(const char *path, size_t max_bytes, char **text, size_t *bytes)
{
    struct stat info;
    int fd;
    char *buffer = NULL;
    RETURN_IF_FAILED(open_any(path, &fd, &info));
    banyan_status status;
    if (S_ISREG(info.st_mode))
        status = files_file_read_file(fd, path, (uint64_t)info.st_size, max_bytes, &buffer, bytes);
    else if (is_given_pipe(fd, path, &info))
        status = read_pipe(fd, path, max_bytes, &buffer, bytes);
    else
        status = fail_kind(path, info.st_mode);
    close(fd);
    RETURN_IF_FAILED(status);
    buffer[*bytes] = '\0';
    *text = buffer;
    return BANYAN_OK;
}

char *path_join(const char *folder, const char *name)
{
    char *joined;
    if (asprintf(&joined, "%s/%s", folder, name) < 0) {
        error_no_memory(strlen(folder) + strlen(name) + 2, "a path");
        return NULL;
    }
    return joined;
}

/* Return the length without trailing slashes; "/" keeps its slash. */
static size_t path_trimmed(const char *path, size_t length)
{
    while (length > 1 && path[length - 1] == '/')
        length--;
    return length;
}

static size_t base_start(const char *path, size_t length)
{
    size_t start = length;
    while (start > 0 && path[start - 1] != '/')
        start--;
    return start;
}

static char *path_copy(const char *text, size_t length)
{
    char *made = strndup(text, length);
    if (!made)
        error_no_memory(length + 1, "a path");
    return made;
}

char *path_parent(const char *path)
{
    char *parent = nameless_folder(path);
    if (!parent)
        error_no_memory(strlen(path) + 1, "a path");
    return parent;
}

char *path_base(const char *path)
{
    size_t length = path_trimmed(path, strlen(path)), start = base_start(path, length);
    return path_copy(path + start, length - start);
}
