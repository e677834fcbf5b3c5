#include "publish/version_folder.h"

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

#include "core/status.h"
#include "launch/cleanup.h"

#define DIGITS 8

static banyan_status version_folder_fail(const char *what, const char *path)
{
    return banyan_error_set(BANYAN_ERR_SYSTEM, "cannot %s %s: %s", what, path, strerror(errno));
}

bool version_folder_path(const version_folder *of, uint64_t version, char *path, size_t bytes)
{
    return snprintf(path, bytes, "%s/" VERSION_FOLDER_PREFIX "-%0*" PRIu64, of->out, DIGITS,
                    version) < (int)bytes;
}

/* Write a Hugging Face folder. */
static banyan_status write_whole(const char *folder, const banyan_layout *layout,
                                 const banyan_tensors *tensors)
{
    size_t count = banyan_layout_tensor_count(layout);
    char path[PATH_MAX];
    const char **named = calloc(count + 1, sizeof *named);
    if (!named)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for %zu names", count);
    for (size_t i = 0; i < count; i++)
        named[i] = banyan_layout_tensor(layout, i)->name;
    banyan_status status = BANYAN_OK;
    if (snprintf(path, sizeof path, "%s/model.safetensors", folder) >= (int)sizeof path)
        status = banyan_error_set(BANYAN_ERR_INVALID, "the path %.100s… is too long", folder);
    else if (mkdir(folder, 0777) != 0)
        status = version_folder_fail("make", folder);
    else
        status = banyan_checkpoint_write(path, named, banyan_tensors_get(tensors, 0), count, NULL);
    free(named);
    return status;
}

static banyan_status sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool synced = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    banyan_status status = synced ? BANYAN_OK : version_folder_fail("sync", path);
    if (fd >= 0)
        close(fd);
    return status;
}

/* Give a complete folder its name. An older one of the name is exchanged with it, and removed. */
static banyan_status place(const version_folder *to, const char *made, const char *path)
{
    if (rename(made, path) == 0)
        return sync_folder(to->out);
    if (errno != ENOTEMPTY && errno != EEXIST)
        return version_folder_fail("name", path);
    if (renameat2(AT_FDCWD, made, AT_FDCWD, path, RENAME_EXCHANGE) != 0)
        return version_folder_fail("replace", path);
    folder_remove(made);
    return sync_folder(to->out);
}

struct listed {
    uint64_t version;
    char name[64];
};

static int newest_first(const void *a, const void *b)
{
    const struct listed *x = a, *y = b;
    return (x->version < y->version) - (x->version > y->version);
}

/* Return the version of a folder's name; 0 if it is none. */
static uint64_t version_of(const char *name)
{
    size_t prefix = strlen(VERSION_FOLDER_PREFIX "-");
    const char *digits = name + prefix;
    if (strncmp(name, VERSION_FOLDER_PREFIX "-", prefix) != 0)
        return 0;
    size_t count = strspn(digits, "0123456789");
    return count >= DIGITS && count <= 20 && digits[count] == '\0' ? strtoull(digits, NULL, 10) : 0;
}

/* Remove the oldest versions, but never the current one. Each disappears in one step. */
static void remove_old(const version_folder *to, uint64_t current)
{
    struct listed *found = NULL, *grown;
    size_t count = 0;
    char path[PATH_MAX], gone[PATH_MAX];
    struct dirent *entry;
    DIR *folder = to->keep > 0 ? opendir(to->out) : NULL;
    while (folder && (entry = readdir(folder))) {
        uint64_t version = version_of(entry->d_name);
        if (version == 0 || version == current ||
            !(grown = realloc(found, (count + 1) * sizeof *found)))
            continue;
        found = grown;
        found[count].version = version;
        snprintf(found[count++].name, sizeof found->name, "%s", entry->d_name);
    }
    if (folder)
        closedir(folder);
    if (count > 0)
        qsort(found, count, sizeof *found, newest_first);
    for (size_t i = (size_t)to->keep - 1; to->keep > 0 && i < count; i++) {
        if (snprintf(path, sizeof path, "%s/%s", to->out, found[i].name) < (int)sizeof path &&
            snprintf(gone, sizeof gone, "%s/old", to->work) < (int)sizeof gone) {
            folder_remove(gone);
            if (rename(path, gone) == 0)
                folder_remove(gone);
        }
    }
    free(found);
}

/* Rank 0's part: small files, the name, and what is too much. */
static banyan_status finish(const version_folder *to, uint64_t version, const char *made)
{
    char path[PATH_MAX];
    if (!version_folder_path(to, version, path, sizeof path))
        return banyan_error_set(BANYAN_ERR_INVALID, "the path %.100s… is too long", to->out);
    if (to->about)
        RETURN_IF_FAILED(description_write_files(to->about, made));
    RETURN_IF_FAILED(sync_folder(made));
    RETURN_IF_FAILED(place(to, made, path));
    remove_old(to, version);
    return BANYAN_OK;
}

banyan_status version_folder_write(const version_folder *to, uint64_t version,
                                   const banyan_layout *layout, const banyan_tensors *tensors,
                                   banyan_world *world)
{
    char made[PATH_MAX];
    banyan_status status;
    if (snprintf(made, sizeof made, "%s/new", to->work) >= (int)sizeof made)
        status = banyan_error_set(BANYAN_ERR_INVALID, "the path %.100s… is too long", to->work);
    else if (to->by_rank)
        status = banyan_checkpoint_save(made, layout, tensors, world, NULL);
    else
        status = write_whole(made, layout, tensors);
    if (status == BANYAN_OK && banyan_world_rank(world) == 0)
        status = finish(to, version, made);
    error_kept kept = error_keep(status);
    int result = (int)status;
    RETURN_IF_FAILED(banyan_world_broadcast(world, &result, sizeof result, 0));
    if (status == BANYAN_OK && result == BANYAN_OK)
        return BANYAN_OK;
    return banyan_error_set(status != BANYAN_OK ? status : (banyan_status)result, "%s",
                            status != BANYAN_OK ? kept.message
                                                : "rank 0 could not write a version");
}
