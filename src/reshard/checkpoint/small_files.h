/* The small files beside a model's weights: config.json, tokenizers, templates, code. */
#ifndef RESHARD_CHECKPOINT_SMALL_FILES_H
#define RESHARD_CHECKPOINT_SMALL_FILES_H

#include <banyan/core.h>

/* Bounds of what is carried. */
#define SMALL_FILE_BYTES ((uint64_t)64 << 20)
#define SMALL_FILES_BYTES ((uint64_t)256 << 20)
#define SMALL_FILES_COUNT 1024

/* INVALID or NOT_FOUND when there is no such folder. NULL is one without files. */
banyan_status small_files_check(const char *from);

/* Copy the small files of `from` (NULL: none), and of the folders in it, into the folder `into`,
 * under their names, the smallest first. Weights, their indexes, hidden names and folders of ranks
 * are passed over. A log line at the level of a warning names every other file that is left out:
 * what is no file, a link out of the folder, what is over a bound. */
banyan_status small_files_copy(const char *from, const char *into);

#endif
