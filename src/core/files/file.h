/* Files that people name, opened to read: without waiting, and only where they are files. */
#ifndef CORE_FILES_FILE_H
#define CORE_FILES_FILE_H

#include <stddef.h>
#include <stdint.h>

#include <banyan/core.h>

/* Open a regular file to read. The call never waits, whatever has the name: INVALID says what the
 * path is instead (a folder, a named pipe, a socket, a device), NOT_FOUND that there is nothing. */
banyan_status file_open(const char *path, int *fd, uint64_t *bytes);

/* The text of a file, or of a pipe that this process was given (/dev/stdin, /dev/fd/N) up to its
 * end, and its length; to be freed. The byte behind the text is 0. As above, and INVALID for more
 * than `max_bytes`. */
banyan_status file_read(const char *path, size_t max_bytes, char **text, size_t *bytes);

#endif
