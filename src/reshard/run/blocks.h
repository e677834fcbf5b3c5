/* Cutting a box into blocks that fit the staging memory. */
#ifndef RESHARD_RUN_BLOCKS_H
#define RESHARD_RUN_BLOCKS_H

#include <banyan/layout.h>

/* A box cut into blocks of a bounded number of bytes: whole slabs below dimension `dim`, `run`
 * indices along it and single ones above. */
typedef struct execution_blocks {
    int dim;
    int64_t run;
    uint64_t count; /* 1: the whole box */
} execution_blocks;

/* Cut the box. The smallest block is one element, however small `cap_bytes` is. */
execution_blocks execution_blocks_of(const banyan_box *box, size_t elem_bytes, uint64_t cap_bytes);
banyan_box execution_block_at(const execution_blocks *cut, const banyan_box *box, uint64_t number);

#endif
