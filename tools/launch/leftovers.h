/* Folders that a command must not leave behind, however it ends: its work folder, and the library's
 * hidden folders. */
#ifndef TOOLS_LEFTOVERS_H
#define TOOLS_LEFTOVERS_H

#include "launch/helper.h"
#include "launch/work_folder.h"

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
