/* safetensors files that are complete and on the disk, but have no name yet. */
#ifndef RESHARD_CHECKPOINT_WRITE_H
#define RESHARD_CHECKPOINT_WRITE_H

#include <banyan/checkpoint.h>
#include <banyan/core.h>

#include "core/files/new_file.h"
#include "reshard/checkpoint/safetensors.h"

/* Progress of long work, as reported to the caller. */
typedef struct progress_state {
    const banyan_checkpoint_options *options;
    uint64_t done, total;
} progress_state;

void progress_add(progress_state *progress, uint64_t bytes);

/* Merge the caller's options with the defaults. INVALID: their size is not set. */
banyan_status checkpoint_options_take(const banyan_checkpoint_options *options,
                                      banyan_checkpoint_options *taken);

/* Return the bytes of the tensors' elements. */
uint64_t checkpoint_tensors_bytes(const DLTensor *tensors, size_t count);

/* Write a file without a name, with these tensors, to the file system of `folder`. `what` is for
 * errors. */
banyan_status checkpoint_write_tensors(const char *folder, const char *what,
                                       const char *const *tensor_names, const DLTensor *tensors,
                                       size_t count, progress_state *progress, new_file *file);

/* Size of the buffers that data passes through. */
#define CHECKPOINT_BUFFER_BYTES ((size_t)8 << 20)

/* Folders that appear complete under their name, in one step. */

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

/* The small files beside a model's weights: config.json, tokenizers, templates, code. */

/* Limits of what is copied. */
#define SMALL_FILE_BYTES ((uint64_t)64 << 20)
#define SMALL_FILES_BYTES ((uint64_t)256 << 20)
#define SMALL_FILES_COUNT 1024

/* Check the folder; NULL has no files. INVALID or NOT_FOUND when there is no such folder. */
banyan_status small_files_check(const char *from);

/* Copy the small files of `from` (NULL: none), and of the folders in it, into the folder `into`,
 * under their names, the smallest first. Weights, their indexes, hidden names and folders of ranks
 * are skipped. A warning in the log names every other file that is left out: special files, links
 * out of the folder, and files over a limit. */
banyan_status small_files_copy(const char *from, const char *into);

#endif
