/* Nameless files, with errors in sentences. */
#ifndef CORE_FILES_NEW_FILE_H
#define CORE_FILES_NEW_FILE_H

#include <stdio.h>

#include <banyan/core.h>

#include "core/files/nameless.h"

typedef nameless new_file;

/* Make one in the file system of `folder`, which must exist. `size` bytes are reserved where the
 * file system can: SYSTEM says what is needed and what is free when they are not there. `what`,
 * here and below, is for errors: the name it will have. */
banyan_status new_file_open(const char *folder, const char *what, uint64_t size, new_file *file);

/* The same for what will have this path; a device, a pipe or a link is written to as it is. Only as
 * a stream. */
banyan_status new_file_open_for(const char *path, new_file *file);

/* Write all of `data`. */
banyan_status new_file_write(const new_file *file, const char *what, uint64_t offset,
                             const void *data, size_t bytes);

/* Bring it to the disk, and then under its name, in the file system that it was made in; a file
 * that has the name is replaced in one step. */
banyan_status new_file_sync(const new_file *file, const char *what);
banyan_status new_file_publish(new_file *file, const char *path);

/* Close it, and let it vanish unless it was published. Once after every open. */
void new_file_close(new_file *file);

/* A whole file of text at once: folder/name. */
banyan_status new_file_write_text(const char *folder, const char *name, const char *text);
/* The same with the path in one; a device, a pipe or a link is written to as it is. */
banyan_status new_file_write_at(const char *path, const char *text);

/* To write it as a stream, which is to be closed with fclose before the file is published. NULL
 * with errno. */
FILE *new_file_stream(const new_file *file);

/* Bring a folder's entries to the disk. */
banyan_status folder_sync(const char *folder);

#endif
