/* Open and read files that a user named: without blocking, and regular files only. Paths. */
#ifndef CORE_FILES_FILE_H
#define CORE_FILES_FILE_H

#include <stddef.h>
#include <stdint.h>

#include <banyan/core.h>

/* Open a regular file to read. Never blocks. INVALID, with the type in the message, if the path is
 * a folder, a named pipe, a socket or a device; NOT_FOUND if there is no such file. */
banyan_status file_open(const char *path, int *fd, uint64_t *bytes);

/* Read a whole file, or a pipe that this process was given (/dev/stdin, /dev/fd/N) up to its end.
 * You free `*text`; a zero byte follows the text. Errors as above, and INVALID for more than
 * `max_bytes`. */
banyan_status file_read(const char *path, size_t max_bytes, char **text, size_t *bytes);

/* Paths are new strings that you free; NULL, with the error set, when out of memory.
 * "folder/name" */
char *path_join(const char *folder, const char *name);

/* Return the folder of a path's last component, or that component. Trailing slashes are ignored:
 * "a/b/" is "b" in "a", "b" is in ".". */
char *path_parent(const char *path);
char *path_base(const char *path);

#endif
