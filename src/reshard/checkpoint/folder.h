/* Folders that appear complete under their name, in one step. */
#ifndef RESHARD_CHECKPOINT_FOLDER_H
#define RESHARD_CHECKPOINT_FOLDER_H

#include "core/files/new_file.h"

/* Check that `path` is free, or an empty folder. INVALID, or NOT_FOUND for a missing parent, before
 * any work is done. Removes hidden folders for this name whose makers are gone. */
banyan_status new_folder_check(const char *path);

/* Make a hidden folder beside `path`; `*hidden` is to be freed, `*lock` to be closed. No process
 * considers the folder abandoned while it is locked. */
banyan_status new_folder_make(const char *path, char **hidden, int *lock);

/* Lock a hidden folder that another process has made; -1 on failure. */
int new_folder_lock(const char *hidden);

/* Sync the hidden folder's entries to the disk and rename it to `path`. */
banyan_status new_folder_publish(const char *hidden, const char *path);

/* Remove a hidden folder with its files, and its folders with their files. */
void new_folder_remove(const char *hidden);

#endif
