/* Folders that appear under their name with everything in them, in one step. */
#ifndef RESHARD_CHECKPOINT_FOLDER_H
#define RESHARD_CHECKPOINT_FOLDER_H

#include "core/new_file.h"

/* The name must be free, or an empty folder's; INVALID, or NOT_FOUND for a parent that is missing,
 * says so before any work is done. */
banyan_status new_folder_check(const char *path);

/* Make a hidden folder beside `path`; `*hidden` is to be freed. */
banyan_status new_folder_make(const char *path, char **hidden);

/* Bring the hidden folder's entries to the disk and give it its name. */
banyan_status new_folder_publish(const char *hidden, const char *path);

/* Remove a hidden folder, the files in it and the folders with their files. */
void new_folder_remove(const char *hidden);

#endif
