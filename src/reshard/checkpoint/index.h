/* The index of a saved layout: it maps boxes of global tensors to places in files. */
#ifndef RESHARD_CHECKPOINT_INDEX_H
#define RESHARD_CHECKPOINT_INDEX_H

#include <jansson.h>

#include <banyan/reshard.h>

#include "core/containers.h"
#include "core/text/json.h"
#include "reshard/layout/names.h"
#include "reshard/model/facts.h"

/* Elements of saved local tensors outside all pieces: padding, and boxes that runs leave alone. */

typedef struct index_box {
    size_t file;
    const char *local; /* name of the local tensor */
    banyan_box box;
    bool left_alone, is_filled; /* is_filled: by an element other than zero, of `dtype` */
    DLDataType dtype;
    unsigned char fill[BANYAN_MAX_FILL_BYTES];
    size_t source; /* the local tensor's index in its file; set when files are opened */
} index_box;

typedef ARRAY(index_box) index_boxes;

/* Read "padding" and "left_alone" of one of an index's files. Folders of older releases have
 * neither: `*declared` is false. */
banyan_status index_boxes_read(json_path *path, const json_t *file_object, size_t file, names *pool,
                               index_boxes *boxes, bool *declared);

/* Write the boxes into a file's object. INVALID, or NO_MEMORY. */
banyan_status index_boxes_write(json_t *file_object, const banyan_layout *layout,
                                const banyan_tensors *tensors);

/* Check that the box lies in this tensor, which it names, and that its value has the tensor's type.
 * FORMAT names the index. */
banyan_status index_box_check(const index_box *box, const char *index_path, const char *file,
                              const banyan_local_tensor *local);

/* Add the box to a layout, in the given local tensor. */
void index_box_add(const index_box *box, int tensor, banyan_layout *layout);

#define CHECKPOINT_INDEX_NAME "banyan.index.json"

/* A piece, whose local tensor is one of the file's. */
typedef struct index_piece {
    size_t file;
    size_t tensor;     /* the global one */
    const char *local; /* name of the local one */
    int local_ndim;
    banyan_piece piece; /* all but the index of the local tensor */
} index_piece;

typedef struct checkpoint_index {
    ARRAY(banyan_local_tensor) tensors; /* global */
    ARRAY(const char *) files;          /* relative to the index's folder */
    ARRAY(bool) declares; /* of each file: its "padding" lists every element outside pieces */
    ARRAY(index_piece) pieces;
    index_boxes boxes;
    facts facts; /* of the saved layout; none in older folders */
    names names;
    hash_map by_name;
} checkpoint_index;

/* Parse an index. FORMAT names the place of an error: boxes out of their tensors, files out of the
 * folder, … */
banyan_status checkpoint_index_parse(const char *path, const char *text, size_t bytes,
                                     checkpoint_index *index);
void checkpoint_index_free(checkpoint_index *index);

/* Describe one rank's file as a part of an index. NULL, with the error set, for a name that is not
 * UTF-8, or when memory ran out. */
json_t *checkpoint_index_part(const char *file, const banyan_layout *layout,
                              const banyan_tensors *tensors);

/* Merge parts that ranks sent into one index. MISMATCH when ranks disagree about a tensor or a
 * fact. */
json_t *checkpoint_index_begin(void);
banyan_status checkpoint_index_merge(json_t *whole, const char *text, size_t bytes);

#endif
