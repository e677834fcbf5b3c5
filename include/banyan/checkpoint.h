/* Banyan: read and write model files in the safetensors format.
 *
 * - Read a Hugging Face folder, and fill the tensors of a layout from it.
 * - Save the tensors of each rank of a layout, in one folder for each rank.
 * - Join a saved folder into one Hugging Face folder.
 *
 * Output appears under its final name only when it is complete. A failure, or the death of the
 * writer, leaves nothing that looks like a result. docs/checkpoints.md has the details.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_CHECKPOINT_H
#define BANYAN_CHECKPOINT_H

#include <banyan/reshard.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Options of reading, saving and joining. */
typedef struct banyan_checkpoint_options {
    size_t size;              /* of this struct; BANYAN_CHECKPOINT_OPTIONS_INIT sets it */
    uint64_t max_shard_bytes; /* data in one file of a joined model; 0: 5 GB */
    /* If not NULL: called from time to time, by the working thread, with the bytes that this
     * process has finished and their total. */
    void (*progress)(void *progress_context, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_context; /* passed to `progress` */
    /* Folder of a model whose small files (config.json, generation_config.json, tokenizer, chat
     * templates, code) are copied, unchanged, into a new saved or joined folder. In a save, rank
     * 0's value counts, and rank 0 copies. NULL: none in a save; those of the saved folder in a
     * join. docs/checkpoints.md defines "small"; a warning in the log names the files that are left
     * out. */
    const char *small_files_from;
    uint64_t timeout_ns; /* of every wait of a save (world.h); 0: the world's */
    /* Allows the types of a load to differ. Casts (banyan_cast_create) fill tensors on GPUs, too.
     * Other transforms fill tensors in host memory, through a copy of each piece in the
     * checkpoint's type, one after another. NULL: types must be equal. */
    const banyan_transform *transform;
    int thread_count; /* of a load; 0: one for each processor of this process, at most 8 */
} banyan_checkpoint_options;

#define BANYAN_CHECKPOINT_OPTIONS_INIT BANYAN_INIT(banyan_checkpoint_options)

/* ---- reading ---- */

/* The tensors of a model's files, mapped into memory and read-only. */
typedef struct banyan_checkpoint banyan_checkpoint;

/* Open a folder with model.safetensors.index.json and its shards, a folder with model.safetensors,
 * a single safetensors file, or a folder of banyan_checkpoint_save. The last one shows its global
 * tensors. Only headers are read. Do not change the files while they are open. Errors: FORMAT (with
 * file, tensor and position), NOT_FOUND (with the missing file), INVALID (a box of a tensor that no
 * rank saved), SYSTEM, NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_checkpoint_open(const char *path, banyan_checkpoint **checkpoint);

/* Close a checkpoint. This unmaps the data of banyan_checkpoint_data. NULL is ignored. */
BANYAN_API void banyan_checkpoint_close(banyan_checkpoint *checkpoint);

/* Return the number of tensors. Any thread. */
BANYAN_API size_t banyan_checkpoint_tensor_count(const banyan_checkpoint *checkpoint);

/* Return the name, type and shape of a tensor. `i` must be below the count. The order is that of
 * the files and of the data in them, or that of the index of a saved folder. The result lives as
 * long as the checkpoint. Any thread. */
BANYAN_API const banyan_local_tensor *banyan_checkpoint_tensor(const banyan_checkpoint *checkpoint,
                                                               size_t i);

/* Return a tensor with its data: dense, read-only, and of any alignment. `i` must be below the
 * count. Return NULL in a saved folder, where a tensor lies in several parts
 * (banyan_checkpoint_load assembles them). The result lives as long as the checkpoint. Any thread.
 */
BANYAN_API const DLTensor *banyan_checkpoint_data(const banyan_checkpoint *checkpoint, size_t i);

/* Find a tensor by its name. Errors: NOT_FOUND (with tensor and checkpoint). Any thread. */
BANYAN_API banyan_status banyan_checkpoint_find(const banyan_checkpoint *checkpoint,
                                                const char *name, size_t *i);

/* Return the number of ranks that saved the folder, or 0 if it is not a saved folder. Any thread.
 */
BANYAN_API int banyan_checkpoint_rank_count(const banyan_checkpoint *checkpoint);

/* Add to a layout everything that `rank` of a saved folder saved: its local tensors with their
 * pieces, padding and elements left alone. A rank that the folder does not have adds nothing. The
 * layout keeps errors (layout.h). */
BANYAN_API void banyan_checkpoint_add_layout(const banyan_checkpoint *checkpoint, int rank,
                                             banyan_layout *layout);

/* Fill every piece of a layout's tensors from the checkpoint, and their padding. The tensors may
 * lie on GPUs, which must not use them meanwhile. `options` NULL means the defaults. Local.
 *
 * Only the layout's boxes are read: in the order of the files, by several threads, and in host
 * memory straight into place. Where less than 4,096 bytes lie between two runs of a box, they are
 * read too.
 *
 * The set is TORN from the first read on. It is WHOLE after success, and its version grows by 1.
 *
 * Errors, before anything is filled:
 * - INVALID: elements belong to no piece and are neither padding nor left alone
 *   (banyan_layout_check_as), or two tensors share memory that would be filled with different
 *   elements.
 * - NOT_FOUND: the checkpoint lacks tensors; the message names them.
 * - MISMATCH: a tensor has another shape or type; the message has its name and both.
 * - UNSUPPORTED: a transform that is no cast, for a tensor on a GPU.
 * - Errors of the transform, such as NOT_FOUND for scales that are not bound.
 *
 * Errors, after which the set stays TORN: FORMAT (a file has changed since it was opened; the
 * message has both sizes), SYSTEM, NO_MEMORY, ABORTED (banyan_interrupt_set). */
BANYAN_API banyan_status banyan_checkpoint_load(const banyan_checkpoint *checkpoint,
                                                const banyan_layout *layout,
                                                banyan_tensors *tensors,
                                                const banyan_checkpoint_options *options);

/* Return the bytes of tensors that loads of this checkpoint have read from its files. Any thread.
 */
BANYAN_API uint64_t banyan_checkpoint_bytes_read(const banyan_checkpoint *checkpoint);

/* Take a small file of a model's folder. `name` is below the folder, such as "config.json" or
 * "templates/tool.jinja". Name and data are valid during the call. An error ends the reading. */
typedef banyan_status (*banyan_small_file_fn)(void *context, const char *name, const void *data,
                                              size_t bytes);

/* Pass the small files of a model's folder to `take`, the smallest first: those that a save copies
 * (banyan_checkpoint_options). Errors: NOT_FOUND or INVALID (there is no such folder), SYSTEM,
 * NO_MEMORY, and those of `take`. Any thread. */
BANYAN_API banyan_status banyan_checkpoint_read_small_files(const char *folder,
                                                            banyan_small_file_fn take,
                                                            void *context);

/* ---- writing ---- */

/* Write one safetensors file. The tensors may have any strides; the names must differ. A file at
 * `path` is replaced, in one step, when the new one is on the disk. `options` NULL means the
 * defaults. Errors: INVALID, SYSTEM (for a full disk, with the bytes needed and free), NO_MEMORY.
 * Any thread. */
BANYAN_API banyan_status banyan_checkpoint_write(const char *path, const char *const *names,
                                                 const DLTensor *tensors, size_t count,
                                                 const banyan_checkpoint_options *options);

/* ---- the ranks of a layout ---- */

/* Save the tensors of every rank in a new folder:
 * - rank-00000/model.safetensors and so on, with the local tensors under their names. The numbers
 *   count the ranks that hold tensors.
 * - banyan.index.json, with the place of every box of every global tensor, and the facts that the
 *   layouts were built with.
 * - Small files, as the options state.
 *
 * `layout` and `tensors` are both NULL on a rank that holds nothing. The folder must not exist, or
 * must be empty. All ranks must see its parent folder. `options` NULL means the defaults.
 * Collective. Every rank receives an error, and then there is no folder. Errors: INVALID, NOT_FOUND
 * (a folder), MISMATCH (ranks save a tensor with different types), SYSTEM (for example, a full
 * disk), NO_MEMORY. */
BANYAN_API banyan_status banyan_checkpoint_save(const char *folder, const banyan_layout *layout,
                                                const banyan_tensors *tensors, banyan_world *world,
                                                const banyan_checkpoint_options *options);

/* Join a saved folder into a Hugging Face folder of global tensors: model.safetensors, or shards
 * and their index, and the small files of the saved folder. The call needs a few megabytes of
 * memory for a model of any size. `folder` is as for banyan_checkpoint_save. Errors: INVALID (the
 * files do not cover a tensor; the message has a missing box), FORMAT (the index is malformed or
 * contradicts the files), NOT_FOUND, SYSTEM, NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_checkpoint_join(const char *saved, const char *folder,
                                                const banyan_checkpoint_options *options);

#ifdef __cplusplus
}
#endif
#endif
