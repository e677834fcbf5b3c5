#include "reshard/checkpoint_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/path.h"

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

banyan_status new_folder_check(const char *path)
{
    struct stat info;
    if (lstat(path, &info) == 0 && !(S_ISDIR(info.st_mode) && folder_is_empty(path)))
        return error_set(BANYAN_ERR_INVALID, "%s is there already: it is not overwritten", path);
    char *parent = path_parent(path);
    if (!parent)
        return BANYAN_ERR_NO_MEMORY;
    banyan_status status = BANYAN_OK;
    if (stat(parent, &info) != 0 || !S_ISDIR(info.st_mode))
        status = error_set(BANYAN_ERR_NOT_FOUND, "there is no folder %s for %s", parent, path);
    free(parent);
    return status;
}

banyan_status new_folder_make(const char *path, char **hidden)
{
    char *parent = path_parent(path);
    char *name = parent ? hidden_name(parent) : NULL;
    banyan_status status = name ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    if (name && mkdir(name, 0777) != 0)
        status = error_set_errno("making a folder in %s", parent);
    free(parent);
    if (status != BANYAN_OK) {
        free(name);
        return status;
    }
    *hidden = name;
    return BANYAN_OK;
}

banyan_status new_folder_publish(const char *hidden, const char *path)
{
    char *parent = path_parent(path);
    if (!parent)
        return BANYAN_ERR_NO_MEMORY;
    banyan_status status = folder_sync(hidden);
    if (status == BANYAN_OK && rename(hidden, path) != 0)
        status = error_set_errno("naming %s", path);
    if (status == BANYAN_OK)
        status = folder_sync(parent);
    free(parent);
    return status;
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
