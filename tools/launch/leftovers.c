#include "launch/leftovers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/files/nameless.h"

/* The library's hidden folders are named ".banyan-RESULT." and this many hexadecimal digits. */
#define RANDOM_DIGITS 16
#define MAX_BASE 200

static bool leftovers_is_hidden_name(const char *name, const char *prefix)
{
    size_t length = strlen(prefix);
    return strncmp(name, prefix, length) == 0 && strlen(name) == length + RANDOM_DIGITS &&
           strspn(name + length, "0123456789abcdef") == RANDOM_DIGITS;
}

/* Remove unused folders: makers of used ones hold a lock. */
static void leftovers_remove_abandoned(const char *result)
{
    const char *slash = strrchr(result, '/');
    char prefix[MAX_BASE + 16], path[PATH_MAX];
    char *parent = nameless_folder(result);
    DIR *folder = parent ? opendir(parent) : NULL;
    snprintf(prefix, sizeof prefix, ".banyan-%.*s.", MAX_BASE, slash ? slash + 1 : result);
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        if (!leftovers_is_hidden_name(entry->d_name, prefix) ||
            snprintf(path, sizeof path, "%s/%s", parent, entry->d_name) >= (int)sizeof path)
            continue;
        int lock = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0)
            folder_remove(path);
        if (lock >= 0)
            close(lock);
    }
    if (folder)
        closedir(folder);
    free(parent);
}

/* Wait for the end: a byte reports success. The other end closes when the command and its ranks
 * have ended, so that none of them writes any more. */
static void leftovers_keep(int from, const void *context)
{
    const leftovers *watched = context;
    char done;
    if (helper_hear(from, &done, sizeof done))
        return;
    if (watched->work)
        work_folder_remove_abandoned(watched->work);
    leftovers_remove_abandoned(watched->result);
}

bool leftovers_watch(leftovers *watched, const char *result, work_folder *work, const char *who)
{
    *watched = (leftovers){.result = result, .work = work};
    if (helper_start(&watched->keeper, leftovers_keep, watched))
        return true;
    fprintf(stderr, "%s: cannot start a process: %s\n", who, strerror(errno));
    if (work)
        work_folder_remove(work);
    return false;
}

void leftovers_remove(leftovers *watched)
{
    char done = 1;
    if (watched->work)
        work_folder_remove(watched->work);
    leftovers_remove_abandoned(watched->result);
    helper_tell(&watched->keeper, &done, sizeof done);
    helper_stop(&watched->keeper);
}
