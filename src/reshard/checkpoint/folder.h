/* Folders that appear under their name with everything in them, in one step. */
#ifndef RESHARD_CHECKPOINT_FOLDER_H
#define RESHARD_CHECKPOINT_FOLDER_H

#include "core/files/new_file.h"

/* The name must be free, or an empty folder's; INVALID, or NOT_FOUND for a parent that is missing,
 * says so before any work is done. Hidden folders for this name whose makers are gone are removed.
 */
banyan_status new_folder_check(const char *path);

/* Make a hidden folder beside `path`; `*hidden` is to be freed, `*lock` to be closed. While anyone
 * has it locked nobody takes it for abandoned. */
banyan_status new_folder_make(const char *path, char **hidden, int *lock);

/* Lock a hidden folder that another process has made. -1 where that cannot be. */
int new_folder_lock(const char *hidden);

/* Bring the hidden folder's entries to the disk and give it its name. */
banyan_status new_folder_publish(const char *hidden, const char *path);

/* Remove a hidden folder, the files in it and the folders with their files. */
void new_folder_remove(const char *hidden);

#endif
