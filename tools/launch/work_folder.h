/* A folder for intermediate files, beside the result and on its file system. The next run with the
 * same result takes over a folder that a killed run has left. */
#ifndef TOOLS_WORK_FOLDER_H
#define TOOLS_WORK_FOLDER_H

#include <limits.h>
#include <stdbool.h>

typedef struct work_folder {
    char path[PATH_MAX]; /* ".banyan-RESULT.work" in the result's folder */
    int lock;            /* held, by the processes forked from this one too, while it is in use */
} work_folder;

/* Give it its path, and no folder yet. False, with a message on stderr behind `who`: the path is
 * too long. */
bool work_folder_name(work_folder *named, const char *result, const char *who);

/* Make the named folder, empty. On failure, print an error on stderr, behind `who`. */
bool work_folder_make(work_folder *made, const char *result, const char *who);

/* Remove it with its contents. */
void work_folder_remove(work_folder *folder);
/* Remove the folder of a process that has ended, unless another process has taken it over. */
void work_folder_remove_abandoned(const work_folder *folder);
/* Remove any folder with its contents. */
void folder_remove(const char *path);

#endif
