#include "publish/source_folder.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <banyan/checkpoint.h>

#include "cli/clock.h"

/* A checkpoint whose files have not changed for so long is not watched before it is published. */
#define OLD_SECONDS 60

/* A checkpoint that is not published yet. */
struct source_seen {
    source_checkpoint found;
    double since_s;
    bool refused; /* it cannot be opened as it is */
    bool present; /* in the last look */
};

/* ---- contents ---- */

static uint64_t mix(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash ^ hash >> 29;
}

static uint64_t hash_of_file(const char *name, const struct stat *info)
{
    uint64_t words[] = {(uint64_t)info->st_dev,          (uint64_t)info->st_ino,
                        (uint64_t)info->st_size,         (uint64_t)info->st_mtim.tv_sec,
                        (uint64_t)info->st_mtim.tv_nsec, (uint64_t)info->st_ctim.tv_sec,
                        (uint64_t)info->st_ctim.tv_nsec};
    return mix(mix(0xcbf29ce484222325u, name, strlen(name)), words, sizeof words);
}

/* State of a checkpoint's files. */
struct contents {
    uint64_t hash, last;
    int64_t last_mtime_s, newest_ctime_s;
};

static bool has_ending(const char *name, const char *end)
{
    size_t length = strlen(name), end_length = strlen(end);
    return length >= end_length && strcmp(name + length - end_length, end) == 0;
}

static bool join(char path[PATH_MAX], const char *folder, const char *name)
{
    return snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX;
}

/* Add the weights and indexes of a folder, and of the folders of ranks in it. */
static void add_files(const char *path, int depth, struct contents *all)
{
    char below[PATH_MAX];
    struct dirent *entry;
    struct stat info;
    DIR *folder = opendir(path);
    while (folder && (entry = readdir(folder))) {
        const char *name = entry->d_name;
        bool is_rank = depth == 0 && strncmp(name, "rank-", 5) == 0;
        bool counts = has_ending(name, ".safetensors") || has_ending(name, ".index.json");
        if (name[0] == '.' || (!is_rank && !counts) || !join(below, path, name))
            continue;
        if (is_rank)
            add_files(below, depth + 1, all);
        else if (stat(below, &info) == 0) {
            all->hash += hash_of_file(below, &info);
            if (info.st_ctim.tv_sec > all->newest_ctime_s)
                all->newest_ctime_s = info.st_ctim.tv_sec;
        }
    }
    if (folder)
        closedir(folder);
}

/* False if the last file of a checkpoint is not there. */
static bool look_at_files(const char *path, struct contents *all)
{
    static const char *const lasts[] = {"model.safetensors.index.json", "banyan.index.json",
                                        "model.safetensors"};
    struct stat info;
    char last[PATH_MAX];
    *all = (struct contents){0};
    if (stat(path, &info) != 0)
        return false;
    if (S_ISREG(info.st_mode)) {
        all->hash = all->last = hash_of_file(path, &info);
        all->last_mtime_s = info.st_mtim.tv_sec;
        all->newest_ctime_s = info.st_ctim.tv_sec;
        return true;
    }
    for (size_t i = 0; i < sizeof lasts / sizeof lasts[0]; i++) {
        if (!join(last, path, lasts[i]) || stat(last, &info) != 0)
            continue;
        all->last = hash_of_file(last, &info);
        all->last_mtime_s = info.st_mtim.tv_sec;
        add_files(path, 0, all);
        return true;
    }
    return false;
}

bool source_checkpoint_is_unchanged(const source_checkpoint *found)
{
    struct contents now;
    return look_at_files(found->path, &now) && now.hash == found->contents &&
           now.last == found->last;
}

/* ---- versions ---- */

uint64_t source_step_of(const char *name)
{
    static const char *const words[] = {"step", "global_step", "checkpoint", "ckpt",
                                        "iter", "iteration",   "version"};
    size_t length = strlen(name), front = length;
    while (front > 0 && name[front - 1] >= '0' && name[front - 1] <= '9')
        front--;
    if (front == length || length - front > 18)
        return 0;
    uint64_t number = strtoull(name + front, NULL, 10);
    if (front > 0 && strchr("-_=", name[front - 1]))
        front--;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strlen(words[i]) == front && strncasecmp(name, words[i], front) == 0)
            return number;
    }
    return 0;
}

/* Return the step in the name of the file or folder that a path leads to. */
static uint64_t step_of_path(const char *path)
{
    char *real = realpath(path, NULL);
    const char *slash = real ? strrchr(real, '/') : NULL;
    uint64_t step = slash ? source_step_of(slash + 1) : 0;
    free(real);
    return step;
}

/* ---- looking ---- */

static struct source_seen *seen_of(source_folder *folder, const char *path)
{
    for (size_t i = 0; i < folder->seen_count; i++) {
        if (strcmp(folder->seen[i].found.path, path) == 0)
            return &folder->seen[i];
    }
    struct source_seen *grown =
        realloc(folder->seen, (folder->seen_count + 1) * sizeof *folder->seen);
    if (!grown)
        return NULL;
    folder->seen = grown;
    grown[folder->seen_count] = (struct source_seen){0};
    snprintf(grown[folder->seen_count].found.path, PATH_MAX, "%s", path);
    return &grown[folder->seen_count++];
}

/* Refuse a checkpoint as it is now. */
static source_state refuse(source_folder *folder, struct source_seen *seen, const char *reason)
{
    seen->refused = true;
    snprintf(folder->reason, sizeof folder->reason, "%s is not published: %s", seen->found.path,
             reason);
    folder->has_news = true;
    return SOURCE_NONE;
}

/* Look at one checkpoint. `step` 0: its version is the time of its last change. */
static source_state consider(source_folder *folder, const char *path, uint64_t step)
{
    struct contents now;
    banyan_checkpoint *opened;
    struct source_seen *seen = seen_of(folder, path);
    if (!seen)
        return SOURCE_NONE;
    seen->present = true;
    if (!look_at_files(path, &now))
        return SOURCE_NONE;
    if (strcmp(path, folder->published.path) == 0 && now.last == folder->published.last)
        return SOURCE_NONE;
    if (seen->since_s == 0 || now.hash != seen->found.contents || now.last != seen->found.last) {
        bool is_old = seen->since_s == 0 && time(NULL) - now.newest_ctime_s > OLD_SECONDS;
        seen->since_s = clock_now_s() - (is_old ? folder->settle_s : 0);
        seen->found.contents = now.hash;
        seen->found.last = now.last;
        seen->refused = false;
        folder->reason[0] = '\0';
    }
    if (seen->refused)
        return SOURCE_NONE;
    if (clock_now_s() - seen->since_s < folder->settle_s)
        return SOURCE_CHANGES;
    uint64_t above = folder->published.version;
    seen->found.version = step ? step : (uint64_t)(now.last_mtime_s > 0 ? now.last_mtime_s : 1);
    if (step > 0 && step <= above) {
        char reason[128];
        snprintf(reason, sizeof reason, "its step is not above version %" PRIu64, above);
        return refuse(folder, seen, reason);
    }
    if (seen->found.version <= above)
        seen->found.version = above + 1;
    if (banyan_checkpoint_open(path, &opened) != BANYAN_OK)
        return refuse(folder, seen, banyan_last_error());
    banyan_checkpoint_close(opened);
    return SOURCE_READY;
}

struct step_folder {
    uint64_t step;
    char name[256];
};

static int later_step_first(const void *a, const void *b)
{
    const struct step_folder *x = a, *y = b;
    return (x->step < y->step) - (x->step > y->step);
}

/* List the folders of steps above the published version, the last step first. */
static struct step_folder *list_step_folders(const source_folder *folder, size_t *count)
{
    struct step_folder *steps = NULL, *grown;
    struct dirent *entry;
    DIR *opened = opendir(folder->path);
    *count = 0;
    while (opened && (entry = readdir(opened))) {
        uint64_t step = source_step_of(entry->d_name);
        if (step <= folder->published.version ||
            !(grown = realloc(steps, (*count + 1) * sizeof *steps)))
            continue;
        steps = grown;
        steps[*count].step = step;
        snprintf(steps[*count].name, sizeof steps->name, "%s", entry->d_name);
        ++*count;
    }
    if (opened)
        closedir(opened);
    if (*count > 0)
        qsort(steps, *count, sizeof *steps, later_step_first);
    return steps;
}

/* Forget checkpoints that are gone. */
static void drop_absent(source_folder *folder)
{
    size_t kept = 0;
    for (size_t i = 0; i < folder->seen_count; i++) {
        if (folder->seen[i].present)
            folder->seen[kept++] = folder->seen[i];
    }
    folder->seen_count = kept;
}

source_state source_folder_look(source_folder *folder, source_checkpoint *found)
{
    struct contents itself;
    source_state state = SOURCE_NONE;
    char path[PATH_MAX];
    size_t count = 0;
    struct step_folder *steps = NULL;
    for (size_t i = 0; i < folder->seen_count; i++)
        folder->seen[i].present = false;
    if (look_at_files(folder->path, &itself)) {
        snprintf(path, sizeof path, "%s", folder->path);
        state = consider(folder, path, step_of_path(path));
    } else {
        steps = list_step_folders(folder, &count);
    }
    for (size_t i = 0; i < count && state != SOURCE_READY; i++) {
        if (!join(path, folder->path, steps[i].name))
            continue;
        source_state one = consider(folder, path, steps[i].step);
        state = one == SOURCE_NONE ? state : one;
    }
    free(steps);
    if (state == SOURCE_READY)
        *found = seen_of(folder, path)->found;
    else
        drop_absent(folder);
    if (folder->reason[0] == '\0')
        snprintf(folder->reason, sizeof folder->reason, "%s has no checkpoint", folder->path);
    return state;
}

void source_folder_refuse(source_folder *folder, const source_checkpoint *found, const char *reason)
{
    struct source_seen *seen = seen_of(folder, found->path);
    if (seen)
        refuse(folder, seen, reason);
}

void source_folder_note(source_folder *folder, const source_checkpoint *published)
{
    folder->published = *published;
    folder->seen_count = 0;
}

void source_folder_free(source_folder *folder)
{
    free(folder->seen);
    folder->seen = NULL;
    folder->seen_count = 0;
}
