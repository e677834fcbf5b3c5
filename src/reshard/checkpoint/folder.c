#include "reshard/checkpoint/write.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/files/file.h"
#include "core/log.h"

static bool is_dot(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static bool folder_is_empty(const char *path)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    bool empty = folder != NULL;
    while (empty && (entry = readdir(folder)))
        empty = is_dot(entry->d_name);
    if (folder)
        closedir(folder);
    return empty;
}

static void remove_entries(int folder_fd, int depth)
{
    DIR *folder = fdopendir(folder_fd);
    struct dirent *entry;
    if (!folder) {
        close(folder_fd);
        return;
    }
    while ((entry = readdir(folder))) {
        if (is_dot(entry->d_name) || unlinkat(folder_fd, entry->d_name, 0) == 0 || depth == 0)
            continue;
        int below =
            openat(folder_fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (below >= 0)
            remove_entries(below, depth - 1);
        unlinkat(folder_fd, entry->d_name, AT_REMOVEDIR);
    }
    closedir(folder);
}

void new_folder_remove(const char *hidden)
{
    int fd = open(hidden, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0)
        remove_entries(fd, 1);
    rmdir(hidden);
}

#define RANDOM_DIGITS 16
/* Bytes of the name that go into the hidden one, to bound its length. */
#define MAX_BASE 200

/* Return the start of the hidden names for a path, to be freed; RANDOM_DIGITS hexadecimal digits
 * follow it. */
static char *hidden_prefix(const char *path)
{
    char *base = path_base(path), *prefix = NULL;
    if (base && asprintf(&prefix, ".banyan-%.*s.", MAX_BASE, base) < 0) {
        prefix = NULL;
        error_no_memory(MAX_BASE, "a path");
    }
    free(base);
    return prefix;
}

static char *hidden_path(const char *path)
{
    char *parent = path_parent(path), *prefix = hidden_prefix(path), *hidden = NULL;
    char name[MAX_BASE + RANDOM_DIGITS + 16];
    if (parent && prefix) {
        snprintf(name, sizeof name, "%s%016" PRIx64, prefix, nameless_random());
        hidden = path_join(parent, name);
    }
    free(parent);
    free(prefix);
    return hidden;
}

static bool folder_is_hidden_name(const char *name, const char *prefix)
{
    size_t length = strlen(prefix);
    return strncmp(name, prefix, length) == 0 && strlen(name) == length + RANDOM_DIGITS &&
           strspn(name + length, "0123456789abcdef") == RANDOM_DIGITS;
}

int new_folder_lock(const char *hidden)
{
    int fd = open(hidden, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static void folder_remove_abandoned(int parent_fd, const char *name)
{
    int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        close(fd);
        return;
    }
    log_info("removing %s, left by a killed process", name);
    remove_entries(fd, 1);
    unlinkat(parent_fd, name, AT_REMOVEDIR);
}

static banyan_status remove_all_abandoned(const char *path, const char *parent)
{
    char *prefix = hidden_prefix(path);
    RETURN_IF_NO_MEMORY(prefix);
    DIR *folder = opendir(parent);
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        if (folder_is_hidden_name(entry->d_name, prefix))
            folder_remove_abandoned(dirfd(folder), entry->d_name);
    }
    if (folder)
        closedir(folder);
    free(prefix);
    return BANYAN_OK;
}

banyan_status new_folder_check(const char *path)
{
    struct stat info;
    if (lstat(path, &info) == 0 && !(S_ISDIR(info.st_mode) && folder_is_empty(path)))
        return error_set(BANYAN_ERR_INVALID, "%s exists already: it is not overwritten", path);
    char *parent = path_parent(path);
    RETURN_IF_NO_MEMORY(parent);
    banyan_status status = BANYAN_OK;
    bool found = stat(parent, &info) == 0;
    if (!found && errno != ENOENT && errno != ENOTDIR)
        status = error_set_errno("looking at folder %s for %s", parent, path);
    else if (!found || !S_ISDIR(info.st_mode))
        status = error_set(BANYAN_ERR_NOT_FOUND, "there is no folder %s for %s", parent, path);
    else
        status = remove_all_abandoned(path, parent);
    free(parent);
    return status;
}

banyan_status new_folder_make(const char *path, char **hidden, int *lock)
{
    char *name = hidden_path(path);
    RETURN_IF_NO_MEMORY(name);
    if (mkdir(name, 0777) != 0) {
        banyan_status status = error_set_errno("making a folder for %s", path);
        free(name);
        return status;
    }
    *hidden = name;
    *lock = new_folder_lock(name);
    return BANYAN_OK;
}

banyan_status new_folder_publish(const char *hidden, const char *path)
{
    char *parent = path_parent(path);
    RETURN_IF_NO_MEMORY(parent);
    banyan_status status = folder_sync(hidden);
    if (status == BANYAN_OK && rename(hidden, path) != 0)
        status = error_set_errno("naming %s", path);
    else if (status == BANYAN_OK && (status = folder_sync(parent)) != BANYAN_OK)
        (void)rename(path, hidden); /* after an error there is no folder */
    free(parent);
    return status;
}
