#include "launch/work_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/clock.h"

/* How long the processes of a killed run may take to end. */
#define TAKE_OVER_SECONDS 2.0

static bool set_path(work_folder *folder, const char *result)
{
    const char *slash = strrchr(result, '/');
    int parent = slash ? (int)(slash + 1 - result) : 0;
    int length = snprintf(folder->path, sizeof folder->path, "%.*s.banyan-%s.work", parent, result,
                          result + parent);
    if (length > 0 && (size_t)length < sizeof folder->path)
        return true;
    errno = ENAMETOOLONG;
    return false;
}

/* True if the name still leads to the locked folder; its last user removes it. */
static bool is_current(const work_folder *folder)
{
    struct stat locked, named;
    return fstat(folder->lock, &locked) == 0 && lstat(folder->path, &named) == 0 &&
           locked.st_dev == named.st_dev && locked.st_ino == named.st_ino;
}

/* On a file system without locks, the maker of the folder owns it. */
static bool has_no_locks(int error)
{
    return error == ENOSYS || error == EOPNOTSUPP || error == ENOLCK;
}

static bool lock_it(work_folder *folder, bool is_new)
{
    bool locked = flock(folder->lock, LOCK_EX | LOCK_NB) == 0 || (has_no_locks(errno) && is_new);
    if (locked && is_current(folder))
        return true;
    int error = locked ? ESTALE : errno;
    close(folder->lock);
    folder->lock = -1;
    errno = error;
    return false;
}

/* Make or open the folder, and lock it. False with errno: EWOULDBLOCK while another process owns
 * it, ESTALE when that one has just removed it. */
static bool try_take(work_folder *folder)
{
    bool is_new = mkdir(folder->path, 0700) == 0;
    if (!is_new && errno != EEXIST)
        return false;
    folder->lock = open(folder->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder->lock >= 0)
        return lock_it(folder, is_new);
    errno = errno == ENOENT ? ESTALE : errno;
    return false;
}

static bool work_folder_take(work_folder *folder)
{
    double until = clock_now_s() + TAKE_OVER_SECONDS;
    while (!try_take(folder)) {
        if ((errno != EWOULDBLOCK && errno != ESTALE) || clock_now_s() > until)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    return true;
}

static int remove_entry(const char *path, const struct stat *about, int kind, struct FTW *at)
{
    (void)about;
    (void)kind;
    if (at->level > 0)
        remove(path);
    return 0;
}

static void work_folder_clear(const char *path)
{
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

void folder_remove(const char *path)
{
    work_folder_clear(path);
    rmdir(path);
}

bool work_folder_name(work_folder *named, const char *result, const char *who)
{
    named->lock = -1;
    if (set_path(named, result))
        return true;
    fprintf(stderr, "%s: cannot make a folder beside %s: %s\n", who, result, strerror(errno));
    return false;
}

bool work_folder_make(work_folder *made, const char *result, const char *who)
{
    if (work_folder_take(made)) {
        work_folder_clear(made->path);
        return true;
    }
    if (errno == EWOULDBLOCK || errno == ESTALE)
        fprintf(stderr, "%s: another process is writing %s: it has %s\n", who, result, made->path);
    else
        fprintf(stderr, "%s: cannot make a folder beside %s: %s\n", who, result, strerror(errno));
    return false;
}

void work_folder_remove(work_folder *folder)
{
    if (is_current(folder))
        folder_remove(folder->path);
    close(folder->lock);
}

void work_folder_remove_abandoned(const work_folder *folder)
{
    work_folder left = *folder;
    double until = clock_now_s() + TAKE_OVER_SECONDS;
    left.lock = open(left.path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    /* A process that is ending may hold the lock after all its other files are closed. */
    while (left.lock >= 0 && flock(left.lock, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK || clock_now_s() > until) {
            close(left.lock);
            return;
        }
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    if (left.lock >= 0)
        work_folder_remove(&left);
}
