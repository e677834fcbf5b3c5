/* Quantizing moves as boxes of blocks. */
#ifndef CUDA_COPY_BLOCKS_H
#define CUDA_COPY_BLOCKS_H

#include "cuda/copy/box.h"

/* Return copy_move.cast without the bits that depend on places. */
uint8_t copy_blocks_cast(const direct_move *of);

/* Make the box of a move of elements, or of scales. */
copy_box copy_blocks_of(const direct_move *of);

/* For each move of a list: the move of scales whose blocks it quantizes to elements. */
typedef struct copy_block_pair {
    size_t scales; /* a place in the list; SIZE_MAX: none */
    bool is_taken; /* the move is such a move of scales */
} copy_block_pair;

/* Find moves to elements and to scales of the same blocks: these read each block once. The caller
 * frees `pairs`, which is NULL if nothing is quantized. NO_MEMORY. */
banyan_status copy_blocks_pair(const direct_moves *moves, copy_block_pair **pairs);

/* Make the box that writes both. False if the two have no common loops, or blocks are not
 * contiguous enough. */
bool copy_blocks_join(const direct_move *elements, const direct_move *scales, copy_box *joined);

#endif
