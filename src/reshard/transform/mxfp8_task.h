/* Relate the box of a transform's task to the blocks of its local tensor. */
#ifndef RESHARD_TRANSFORM_MXFP8_TASK_H
#define RESHARD_TRANSFORM_MXFP8_TASK_H

#include "reshard/transform/mxfp8_box.h"

/* Return the task's box in the local tensor's coordinates. */
void mxfp8_task_box(const banyan_transform_task *task, mxfp8_box *box);

/* Return the box on its own, in the order in which its elements travel. */
void mxfp8_task_wire_box(const banyan_transform_task *task, mxfp8_box *box);

void mxfp8_memory_of(const DLTensor *tensor, mxfp8_memory *memory);

/* Describe the memory of a tensor of the box's shape as it travels, in the local tensor's order of
 * dimensions. */
void mxfp8_task_memory(const banyan_transform_task *task, const DLTensor *tensor,
                       mxfp8_memory *memory);

/* True if the box starts or ends inside a block; `*block` is the first that it cuts. */
bool mxfp8_task_cuts_block(const banyan_transform_task *task, int64_t *block);

/* INVALID, naming tensor, box and block, when the box cuts a block, and when blocks do not run
 * along the dimension in which elements travel fastest. */
banyan_status mxfp8_task_require_whole_blocks(const banyan_transform_task *task);

#endif
