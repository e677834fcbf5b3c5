/* Paths as new strings that you free. NULL, with the error set, when out of memory. */
#ifndef CORE_FILES_PATH_H
#define CORE_FILES_PATH_H

#include <banyan/core.h>

/* "folder/name" */
char *path_join(const char *folder, const char *name);

/* Return the folder of a path's last component, or that component. Trailing slashes are ignored:
 * "a/b/" is "b" in "a", "b" is in ".". */
char *path_parent(const char *path);
char *path_base(const char *path);

#endif
