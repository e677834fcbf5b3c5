/* What a command that writes a folder must not leave behind, however it ends: its work folder, and
 * the hidden folders of the library's. */
#ifndef TOOLS_LEFTOVERS_H
#define TOOLS_LEFTOVERS_H

#include "launch/helper.h"
#include "launch/work_folder.h"

typedef struct leftovers {
    const char *result;
    work_folder *work; /* NULL: none */
    helper keeper;     /* removes them if this process is killed */
} leftovers;

/* Call before ranks are started. `work` (NULL: none) has its name; make it afterwards. Without a
 * helper, what is wrong is told on stderr behind `who`, and the work folder is removed. */
bool leftovers_watch(leftovers *watched, const char *result, work_folder *work, const char *who);

/* The result is there, or is not to be. No rank runs any more. */
void leftovers_remove(leftovers *watched);

#endif
