#include "launch/cleanup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/clock.h"
#include "core/files/nameless.h"
#include "launch/launch.h"

/* Fork `helper_main`, which reads from its end of the socket. No signal but SIGKILL ends it. False
 * with errno. */
static bool helper_start(helper *started, void (*helper_main)(int socket, const void *context),
                         const void *context)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return false;
    pid_t pid = fork();
    if (pid == 0) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, NULL);
        setpgid(0, 0);
        close(ends[1]);
        for (int fd = 0; fd <= 2; fd++)
            close(fd);
        helper_main(ends[0], context);
        _exit(0);
    }
    int error = errno;
    close(ends[0]);
    if (pid < 0) {
        close(ends[1]);
        errno = error;
        return false;
    }
    *started = (helper){pid, ends[1]};
    return true;
}

/* Send bytes. A helper that has ended gets none, without a SIGPIPE. */
static void helper_send(const helper *to, const void *data, size_t bytes)
{
    ssize_t sent;
    do
        sent = send(to->socket, data, bytes, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
}

/* Read `bytes` bytes. False when the command has ended. */
static bool helper_receive(int socket, void *data, size_t bytes)
{
    ssize_t got;
    do
        got = recv(socket, data, bytes, MSG_WAITALL);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)bytes;
}

bool helper_ended(const helper *which, siginfo_t *how)
{
    *how = (siginfo_t){0};
    return waitid(P_PID, (id_t)which->pid, how, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           how->si_pid != 0;
}

void helper_stop(helper *stopped)
{
    close(stopped->socket);
    while (waitpid(stopped->pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

/* Watch process groups: positive words add a group, negative ones remove it. Kill the remaining
 * groups when the launcher has ended. */
static void guard_watch(int from, const void *nothing)
{
    static pid_t groups[LAUNCH_MAX_RANKS];
    int count = 0;
    pid_t word;
    (void)nothing;
    while (helper_receive(from, &word, sizeof word)) {
        if (word > 0 && count < LAUNCH_MAX_RANKS)
            groups[count++] = word;
        for (int i = 0; word < 0 && i < count; i++) {
            if (groups[i] == -word)
                groups[i--] = groups[--count];
        }
    }
    for (int i = 0; i < count; i++)
        kill(-groups[i], SIGKILL);
}

bool guard_start(helper *guard)
{
    return helper_start(guard, guard_watch, NULL);
}

void guard_add(const helper *guard, pid_t group)
{
    helper_send(guard, &group, sizeof group);
}

void guard_remove(const helper *guard, pid_t group)
{
    pid_t word = -group;
    helper_send(guard, &word, sizeof word);
}

/* Time that the processes of a killed run may take to end. */
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

static bool lock_it(work_folder *folder, bool is_new)
{
    bool locked = flock(folder->lock, LOCK_EX | LOCK_NB) == 0;
    /* On a file system without locks, the maker of the folder owns it. */
    locked |= is_new && !locked && (errno == ENOSYS || errno == EOPNOTSUPP || errno == ENOLCK);
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

/* Remove it with its contents. */
static void work_folder_remove(work_folder *folder)
{
    if (is_current(folder))
        folder_remove(folder->path);
    close(folder->lock);
}

/* Remove the folder of a process that has ended, unless another process has taken it over. */
static void work_folder_remove_abandoned(const work_folder *folder)
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
    if (helper_receive(from, &done, sizeof done))
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
    helper_send(&watched->keeper, &done, sizeof done);
    helper_stop(&watched->keeper);
}
