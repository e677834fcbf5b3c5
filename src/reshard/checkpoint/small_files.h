/* The small files beside a model's weights: config.json, tokenizers, templates, code. */
#ifndef RESHARD_CHECKPOINT_SMALL_FILES_H
#define RESHARD_CHECKPOINT_SMALL_FILES_H

#include <banyan/core.h>

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
