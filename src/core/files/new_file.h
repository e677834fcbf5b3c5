/* Nameless files (nameless.h) that report errors as messages. */
#ifndef CORE_FILES_NEW_FILE_H
#define CORE_FILES_NEW_FILE_H

#include <stdio.h>

#include <banyan/core.h>

#include "core/files/nameless.h"

typedef nameless new_file;

/* Create a file in the file system of `folder`, which must exist, and reserve `size` bytes where
 * the file system can. SYSTEM, with the bytes needed and free, when the disk is full. In all calls
 * `what` is the file's future name, for error messages. */
banyan_status new_file_open(const char *folder, const char *what, uint64_t size, new_file *file);

/* Create a file that will get this path. A device, a pipe or a link is written in place; use it
 * only as a stream. */
banyan_status new_file_open_for(const char *path, new_file *file);

/* Write all of `data`. */
banyan_status new_file_write(const new_file *file, const char *what, uint64_t offset,
                             const void *data, size_t bytes);

/* Sync the file to disk; then give it its name, in the file system where it was created. A rename
 * replaces an existing file in one step. */
banyan_status new_file_sync(const new_file *file, const char *what);
banyan_status new_file_publish(new_file *file, const char *path);

/* Close the file, and remove it unless it was published. Call once after every open. */
void new_file_close(new_file *file);

/* Write a text file folder/name in one call. */
banyan_status new_file_write_text(const char *folder, const char *name, const char *text);
/* Write a text file at a path in one call. A device, a pipe or a link is written in place. */
banyan_status new_file_write_at(const char *path, const char *text);

/* Return a stream that writes the file. Close it with fclose before you publish the file. NULL,
 * with errno, on failure. */
FILE *new_file_stream(const new_file *file);

/* Sync the folder's entries to disk. */
banyan_status folder_sync(const char *folder);

#endif
