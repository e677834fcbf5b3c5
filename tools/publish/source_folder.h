/* A folder in which checkpoints appear: which of them is complete, and what its version is.
 *
 * The folder is a checkpoint itself, which is replaced, or it has checkpoints in folders whose
 * names end with a number of a step. A checkpoint is complete when:
 * - its last file is there: the index of shards or ranks, or model.safetensors. It is another one
 *   than in the published version, if files of the folder are replaced one by one;
 * - every file has the size that its header states, and every tensor of the index;
 * - nothing changes for some time, nor while it is read. */
#ifndef TOOLS_SOURCE_FOLDER_H
#define TOOLS_SOURCE_FOLDER_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct source_checkpoint {
    char path[PATH_MAX];
    uint64_t version;
    uint64_t contents; /* a hash of its files' names, sizes and times */
    uint64_t last;     /* a hash of its last file's */
} source_checkpoint;

typedef struct source_folder {
    const char *path;
    double settle_s; /* the time for which nothing may change */
    source_checkpoint published;
    struct source_seen *seen; /* checkpoints that were not complete yet */
    size_t seen_count;
    char reason[2048]; /* why nothing is published */
    bool has_news;     /* `reason` is new: a checkpoint is damaged. The caller resets it */
} source_folder;

typedef enum source_state {
    SOURCE_NONE,    /* there is no new checkpoint, or it is damaged */
    SOURCE_CHANGES, /* there is one, and it has changed a moment ago */
    SOURCE_READY
} source_state;

/* Look for the newest complete checkpoint above the published version. */
source_state source_folder_look(source_folder *folder, source_checkpoint *found);

/* True if a checkpoint is what it was when it was found. */
bool source_checkpoint_is_unchanged(const source_checkpoint *found);

/* Do not return a checkpoint again before it changes. */
void source_folder_refuse(source_folder *folder, const source_checkpoint *found,
                          const char *reason);

/* Note that a checkpoint is published. */
void source_folder_note(source_folder *folder, const source_checkpoint *published);

void source_folder_free(source_folder *folder);

/* Return the number at the end of a name such as step_000100, checkpoint-500 or iter_0000100; 0 if
 * it is none. */
uint64_t source_step_of(const char *name);

#endif
