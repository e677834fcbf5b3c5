/* Versions as folders, each of which appears when it is complete. */
#ifndef TOOLS_VERSION_FOLDER_H
#define TOOLS_VERSION_FOLDER_H

#include <banyan/checkpoint.h>

#include "publish/description.h"

#define VERSION_FOLDER_PREFIX "version"

typedef struct version_folder {
    const char *out;  /* folder of the versions */
    const char *work; /* folder for those that are not complete, in the same file system */
    int keep;         /* newest versions that stay; 0: all */
    bool by_rank;     /* one folder for each rank; else one Hugging Face folder of one rank */
    const description *about; /* its files go into every version; NULL: none. Used at rank 0 */
} version_folder;

/* Write a version, and remove those that are too many. A folder of this version is replaced.
 * Collective; all ranks return the same status, and those that have its cause its message. */
banyan_status version_folder_write(const version_folder *to, uint64_t version,
                                   const banyan_layout *layout, const banyan_tensors *tensors,
                                   banyan_world *world);

/* Write the path of a version's folder. False if it is too long. */
bool version_folder_path(const version_folder *of, uint64_t version, char *path, size_t bytes);

#endif
