#include "core/files/new_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/error.h"
#include "core/files/file.h"

/* The free space may have grown since the write failed, when other processes freed theirs. */
static banyan_status fail_full_of(const char *what, uint64_t size, uint64_t free_bytes)
{
    if (free_bytes < size)
        return error_set(BANYAN_ERR_SYSTEM,
                         "the disk is full: %s takes %" PRIu64 " bytes, and %" PRIu64 " are free",
                         what, size, free_bytes);
    return error_set(BANYAN_ERR_SYSTEM,
                     "the disk is full: %s takes %" PRIu64 " bytes, which were not free when they "
                     "were asked for, since others write there at the same time; %" PRIu64
                     " are free now",
                     what, size, free_bytes);
}

/* Return the error of a disk that is full or would become full. */
static banyan_status fail_full(int fd, const char *what, uint64_t size)
{
    int error = errno;
    struct statvfs space;
    if (error == ENOSPC && fstatvfs(fd, &space) == 0)
        return fail_full_of(what, size, (uint64_t)space.f_bavail * space.f_frsize);
    errno = error;
    return error_set_errno("writing the %" PRIu64 " bytes of %s", size, what);
}

static banyan_status new_file_reserve(int fd, const char *what, uint64_t size)
{
    if (size > INT64_MAX)
        return error_set(BANYAN_ERR_INVALID, "%s cannot have %" PRIu64 " bytes", what, size);
    while (size > 0 && fallocate(fd, 0, 0, (off_t)size) != 0) {
        if (errno == EOPNOTSUPP || errno == ENOSYS)
            break;
        if (errno != EINTR)
            return fail_full(fd, what, size);
    }
    return BANYAN_OK;
}

banyan_status new_file_open(const char *folder, const char *what, uint64_t size, new_file *file)
{
    new_file made;
    if (!nameless_open(folder, &made)) {
        if (errno == ENOENT || errno == ENOTDIR)
            return error_set(BANYAN_ERR_NOT_FOUND, "there is no folder %s", folder);
        return error_set_errno("making a file in %s", folder);
    }
    banyan_status status = new_file_reserve(made.fd, what, size);
    if (status != BANYAN_OK) {
        nameless_close(&made);
        return status;
    }
    *file = made;
    return BANYAN_OK;
}

banyan_status new_file_open_for(const char *path, new_file *file)
{
    if (nameless_open_for(path, file))
        return BANYAN_OK;
    if (errno == ENOENT || errno == ENOTDIR)
        return error_set(BANYAN_ERR_NOT_FOUND, "there is no folder for %s", path);
    return error_set_errno("making %s", path);
}

banyan_status new_file_write(const new_file *file, const char *what, uint64_t offset,
                             const void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t wrote =
            pwrite(file->fd, (const char *)data + done, bytes - done, (off_t)(offset + done));
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0)
            return fail_full(file->fd, what, offset + bytes);
        done += (size_t)wrote;
    }
    return BANYAN_OK;
}

banyan_status new_file_sync(const new_file *file, const char *what)
{
    if (fsync(file->fd) != 0)
        return error_set_errno("syncing %s", what);
    return BANYAN_OK;
}

banyan_status new_file_publish(new_file *file, const char *path)
{
    if (!nameless_publish(file, path))
        return error_set_errno("naming %s", path);
    return BANYAN_OK;
}

void new_file_close(new_file *file)
{
    nameless_close(file);
}

static banyan_status write_named(const char *folder, const char *path, const char *text)
{
    new_file file;
    RETURN_IF_FAILED(new_file_open(folder, path, strlen(text), &file));
    banyan_status status = new_file_write(&file, path, 0, text, strlen(text));
    if (status == BANYAN_OK)
        status = new_file_sync(&file, path);
    if (status == BANYAN_OK)
        status = new_file_publish(&file, path);
    new_file_close(&file);
    return status;
}

banyan_status new_file_write_text(const char *folder, const char *name, const char *text)
{
    char *path = path_join(folder, name);
    if (!path)
        return BANYAN_ERR_NO_MEMORY;
    banyan_status status = write_named(folder, path, text);
    free(path);
    return status;
}

/* Write text to a pipe or a device. */
static banyan_status write_special(const char *path, const char *text)
{
    int fd = nameless_open_taken(path);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file) {
        banyan_status status = error_set_errno("opening %s", path);
        if (fd >= 0)
            close(fd);
        return status;
    }
    bool written = fputs(text, file) >= 0 && fflush(file) == 0;
    banyan_status status = written ? BANYAN_OK : error_set_errno("writing %s", path);
    fclose(file);
    return status;
}

banyan_status new_file_write_at(const char *path, const char *text)
{
    if (nameless_is_taken(path))
        return write_special(path, text);
    char *folder = path_parent(path);
    banyan_status status = folder ? write_named(folder, path, text) : BANYAN_ERR_NO_MEMORY;
    free(folder);
    return status;
}

FILE *new_file_stream(const new_file *file)
{
    int fd = fcntl(file->fd, F_DUPFD_CLOEXEC, 0);
    FILE *stream = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (fd >= 0 && !stream)
        close(fd);
    return stream;
}

banyan_status folder_sync(const char *folder)
{
    int fd = TEMP_FAILURE_RETRY(open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0)
        return error_set_errno("opening %s", folder);
    banyan_status status = BANYAN_OK;
    /* File systems that cannot sync a folder return EINVAL; ignore it. */
    if (fsync(fd) != 0 && errno != EINVAL)
        status = error_set_errno("syncing %s", folder);
    close(fd);
    return status;
}
