/* Banyan: models on disk, as safetensors.
 *
 * Read a Hugging Face folder, fill a layout's tensors from it; save what the ranks of a layout
 * hold, one folder a rank; join what was saved into one Hugging Face folder again. Whatever is
 * written appears under its final name only when it is whole: a failure, and even the death of the
 * writer, leaves nothing that could be taken for a result.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_CHECKPOINT_H
#define BANYAN_CHECKPOINT_H

#include <banyan/reshard.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct banyan_checkpoint_options {
    size_t size;              /* of this struct; BANYAN_CHECKPOINT_OPTIONS_INIT sets it */
    uint64_t max_shard_bytes; /* of the data in one file of a joined model; 0: 5 GB */
    /* Called now and then by the thread that works, with what this process has done. May be NULL.
     */
    void (*progress)(void *progress_context, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_context;
    /* A model's folder whose small files (config.json, generation_config.json, the tokenizer's,
     * chat templates, code) are copied into a new folder that is saved or joined, unchanged. In a
     * save, rank 0 says which, and copies. NULL: none in a save; those of the saved folder in a
     * join. docs/checkpoints.md says what counts as small; a warning in the log names what is left
     * out. */
    const char *small_files_from;
} banyan_checkpoint_options;

#define BANYAN_CHECKPOINT_OPTIONS_INIT BANYAN_INIT(banyan_checkpoint_options)

/* ---- reading ---- */

/* The tensors of a model's files, mapped into memory, read only. */
typedef struct banyan_checkpoint banyan_checkpoint;

/* Open a folder with model.safetensors.index.json and the shards it names, a folder with
 * model.safetensors, one safetensors file, or a folder that banyan_checkpoint_save wrote, whose
 * global tensors these are. Nothing but headers is read. FORMAT names file, tensor and position;
 * NOT_FOUND what is missing; INVALID a box of a tensor that no rank saved. The files must not be
 * changed while they are open. Any thread. */
BANYAN_API banyan_status banyan_checkpoint_open(const char *path, banyan_checkpoint **checkpoint);

/* What banyan_checkpoint_data gave is unmapped. NULL is ignored. */
BANYAN_API void banyan_checkpoint_close(banyan_checkpoint *checkpoint);

/* In the order of the files and of the data in them; of what ranks saved, in that of the index.
 * `i` is below the count. Like all that only asks, these cannot fail, and any thread may call
 * them. */
BANYAN_API size_t banyan_checkpoint_tensor_count(const banyan_checkpoint *checkpoint);
BANYAN_API const banyan_local_tensor *banyan_checkpoint_tensor(const banyan_checkpoint *checkpoint,
                                                               size_t i);

/* The same with its data: dense, read only, at any alignment. NULL in a folder that ranks saved,
 * where tensors lie in parts: banyan_checkpoint_load puts them together. */
BANYAN_API const DLTensor *banyan_checkpoint_data(const banyan_checkpoint *checkpoint, size_t i);

/* NOT_FOUND names tensor and checkpoint. */
BANYAN_API banyan_status banyan_checkpoint_find(const banyan_checkpoint *checkpoint,
                                                const char *name, size_t *i);

/* How many ranks saved the folder; 0 for one that none did. */
BANYAN_API int banyan_checkpoint_rank_count(const banyan_checkpoint *checkpoint);

/* Add to a layout what `rank` of those, from 0, has saved: its local tensors with their pieces,
 * padding and what is left alone. Another rank adds nothing. Errors are kept in the layout. */
BANYAN_API void banyan_checkpoint_add_layout(const banyan_checkpoint *checkpoint, int rank,
                                             banyan_layout *layout);

/* Fill every piece of a layout's tensors from the checkpoint, and their padding. INVALID, before
 * anything is filled, names elements that belong to no piece and are neither padding nor left alone
 * (banyan_layout_check_as), and tensors that do not lie in host memory. NOT_FOUND names all tensors
 * that the checkpoint lacks, MISMATCH another shape or type, with name and both. `options` (NULL:
 * the defaults) give the progress. Local. */
BANYAN_API banyan_status banyan_checkpoint_load(const banyan_checkpoint *checkpoint,
                                                const banyan_layout *layout,
                                                banyan_tensors *tensors,
                                                const banyan_checkpoint_options *options);

/* ---- writing ---- */

/* Write one safetensors file: tensors with any strides, names that differ. What has the name `path`
 * is replaced, in one step, when all is on the disk. `options` NULL: the defaults. SYSTEM, with the
 * bytes that are needed and free, for a full disk. Any thread. */
BANYAN_API banyan_status banyan_checkpoint_write(const char *path, const char *const *names,
                                                 const DLTensor *tensors, size_t count,
                                                 const banyan_checkpoint_options *options);

/* ---- the ranks of a layout ---- */

/* Save what every rank holds into a new folder: rank-00000/model.safetensors, … (ranks that hold
 * something, counted in order; the local tensors, under their names) and banyan.index.json, which
 * says which box of which global tensor lies where in which file, and the facts that the layouts
 * were built by; small files as the options say. `layout` and `tensors` NULL: this rank holds
 * nothing. The folder must not exist, or be empty, and its parent be the same to all ranks.
 * Collective; errors come to every rank, and then there is no folder. INVALID, NOT_FOUND (folders),
 * MISMATCH (ranks save a tensor in different types), SYSTEM (a full disk). */
BANYAN_API banyan_status banyan_checkpoint_save(const char *folder, const banyan_layout *layout,
                                                const banyan_tensors *tensors, banyan_world *world,
                                                const banyan_checkpoint_options *options);

/* Make one Hugging Face folder of global tensors from a saved one: model.safetensors, or shards and
 * their index, and the small files that the saved folder has. Takes a few megabytes of memory,
 * however large the model. `folder` as above. INVALID for a tensor that the files do not cover,
 * with a box that is missing; FORMAT for an index that is malformed or contradicts the files. Any
 * thread. */
BANYAN_API banyan_status banyan_checkpoint_join(const char *saved, const char *folder,
                                                const banyan_checkpoint_options *options);

#ifdef __cplusplus
}
#endif
#endif
