#include "core/new_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/path.h"

#define MODE 0666

uint64_t file_random(void)
{
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) < 0)
        random = time_now_ns();
    return random;
}

static char *hidden_name(const char *folder)
{
    char name[40];
    snprintf(name, sizeof name, ".banyan-%016" PRIx64, file_random());
    return path_join(folder, name);
}

static banyan_status open_named(const char *folder, new_file *file)
{
    char *name = hidden_name(folder);
    if (!name)
        return BANYAN_ERR_NO_MEMORY;
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, MODE);
    if (fd < 0) {
        banyan_status status = error_set_errno("making a file in %s", folder);
        free(name);
        return status;
    }
    *file = (new_file){fd, name};
    return BANYAN_OK;
}

/* A disk that is full now, or will be. */
static banyan_status fail_full(int fd, const char *what, uint64_t size)
{
    int error = errno;
    struct statvfs space;
    if (error == ENOSPC && fstatvfs(fd, &space) == 0)
        return error_set(BANYAN_ERR_SYSTEM,
                         "the disk is full: %s takes %" PRIu64 " bytes, and %" PRIu64 " are free",
                         what, size, (uint64_t)space.f_bavail * space.f_frsize);
    errno = error;
    return error_set_errno("writing the %" PRIu64 " bytes of %s", size, what);
}

static banyan_status reserve(int fd, const char *what, uint64_t size)
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
    new_file made = {open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, MODE), NULL};
    if (made.fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return error_set(BANYAN_ERR_NOT_FOUND, "there is no folder %s", folder);
    if (made.fd < 0)
        RETURN_IF_FAILED(open_named(folder, &made));
    banyan_status status = reserve(made.fd, what, size);
    if (status != BANYAN_OK) {
        new_file_close(&made);
        return status;
    }
    *file = made;
    return BANYAN_OK;
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
        return error_set_errno("bringing %s to the disk", what);
    return BANYAN_OK;
}

/* Give an unnamed file this name, which must be free. */
static int link_as(const new_file *file, const char *path)
{
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", file->fd);
    return linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
}

/* A hidden name, for the moment before a rename takes the place of what has the name now. */
static banyan_status link_hidden(new_file *file, const char *path)
{
    char *folder = path_parent(path);
    char *name = folder ? hidden_name(folder) : NULL;
    free(folder);
    if (!name)
        return BANYAN_ERR_NO_MEMORY;
    if (link_as(file, name) != 0) {
        banyan_status status = error_set_errno("naming %s", path);
        free(name);
        return status;
    }
    file->name = name;
    return BANYAN_OK;
}

banyan_status new_file_publish(new_file *file, const char *path)
{
    if (!file->name && link_as(file, path) == 0)
        return BANYAN_OK;
    if (!file->name && errno != EEXIST)
        return error_set_errno("naming %s", path);
    if (!file->name)
        RETURN_IF_FAILED(link_hidden(file, path));
    if (rename(file->name, path) != 0)
        return error_set_errno("naming %s", path);
    free(file->name);
    file->name = NULL;
    return BANYAN_OK;
}

void new_file_close(new_file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    if (file->name)
        unlink(file->name);
    free(file->name);
    *file = (new_file){-1, NULL};
}

banyan_status new_file_write_text(const char *folder, const char *name, const char *text)
{
    char *path = path_join(folder, name);
    new_file file;
    if (!path)
        return BANYAN_ERR_NO_MEMORY;
    banyan_status status = new_file_open(folder, path, strlen(text), &file);
    if (status == BANYAN_OK) {
        status = new_file_write(&file, path, 0, text, strlen(text));
        if (status == BANYAN_OK)
            status = new_file_sync(&file, path);
        if (status == BANYAN_OK)
            status = new_file_publish(&file, path);
        new_file_close(&file);
    }
    free(path);
    return status;
}

banyan_status new_file_write_at(const char *path, const char *text)
{
    char *folder = path_parent(path), *name = path_base(path);
    banyan_status status =
        folder && name ? new_file_write_text(folder, name, text) : BANYAN_ERR_NO_MEMORY;
    free(folder);
    free(name);
    return status;
}

banyan_status folder_sync(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return error_set_errno("opening %s", folder);
    banyan_status status = BANYAN_OK;
    /* File systems that cannot sync a folder say EINVAL; there is nothing to be done then. */
    if (fsync(fd) != 0 && errno != EINVAL)
        status = error_set_errno("bringing %s to the disk", folder);
    close(fd);
    return status;
}
