/* Elements of saved local tensors outside all pieces: padding, and boxes that runs leave alone. */
#ifndef RESHARD_CHECKPOINT_INDEX_BOXES_H
#define RESHARD_CHECKPOINT_INDEX_BOXES_H

#include <banyan/reshard.h>

#include "core/containers/array.h"
#include "core/text/json.h"
#include "reshard/layout/names.h"

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

#endif
