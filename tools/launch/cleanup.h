/* Cleaning up after a command that may be killed. */
#ifndef TOOLS_CLEANUP_H
#define TOOLS_CLEANUP_H

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

/* A process that outlives the command briefly. */
typedef struct helper {
    pid_t pid;
    int socket; /* its other end closes when the command and all its forks have ended */
} helper;

/* True once it has ended, by itself or by a signal. */
bool helper_ended(const helper *which, siginfo_t *how);

/* Close the socket and wait for its end. */
void helper_stop(helper *stopped);

/* Start the helper that cleans up after a killed launcher: it kills the ranks, and processes that
 * they started. Call it before opening descriptors that the helper must not inherit. False with
 * errno. */
bool guard_start(helper *guard);
/* Watch a process group, or stop watching it. */
void guard_add(const helper *guard, pid_t group);
void guard_remove(const helper *guard, pid_t group);

/* A folder for intermediate files, beside the result and on its file system. The next run with the
 * same result takes over a folder that a killed run has left. */
typedef struct work_folder {
    char path[PATH_MAX]; /* ".banyan-RESULT.work" in the result's folder */
    int lock;            /* held, by the processes forked from this one too, while it is in use */
} work_folder;

/* Give it its path, and no folder yet. False, with a message on stderr behind `who`: the path is
 * too long. */
bool work_folder_name(work_folder *named, const char *result, const char *who);

/* Make the named folder, empty. On failure, print an error on stderr, behind `who`. */
bool work_folder_make(work_folder *made, const char *result, const char *who);

/* Remove any folder with its contents. */
void folder_remove(const char *path);

/* Folders that a command must not leave behind, however it ends: its work folder, and the library's
 * hidden folders. */
typedef struct leftovers {
    const char *result;
    work_folder *work; /* NULL: none */
    helper keeper;     /* removes them if this process is killed */
} leftovers;

/* Call before ranks are started. `work` (NULL: none) has its name; make it afterwards. On failure
 * of the helper, print an error on stderr behind `who` and remove the work folder. */
bool leftovers_watch(leftovers *watched, const char *result, work_folder *work, const char *who);

/* Remove leftovers after success or failure. No rank may be running. */
void leftovers_remove(leftovers *watched);

#endif
