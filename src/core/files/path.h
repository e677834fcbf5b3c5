/* Paths as new strings, to be freed. NULL, with the error set, when memory ran out. */
#ifndef CORE_FILES_PATH_H
#define CORE_FILES_PATH_H

#include <banyan/core.h>

/* "folder/name" */
char *path_join(const char *folder, const char *name);

/* Where a path's last component lies, and that component, without slashes at the end: "a/b/" is in
 * "a" and called "b", "b" is in ".". */
char *path_parent(const char *path);
char *path_base(const char *path);

#endif
