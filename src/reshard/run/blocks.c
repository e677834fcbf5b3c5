#include "reshard/run/blocks.h"

/* As in the planner's cuts, blocks of a block-scaled format stay whole where possible. */
#define FASTEST_BLOCK_ELEMS 128
#define BLOCK_ELEMS 32

static uint64_t whole_blocks(uint64_t run, bool is_fastest)
{
    uint64_t block = is_fastest ? FASTEST_BLOCK_ELEMS : BLOCK_ELEMS;
    return run < block ? run : run / block * block;
}

execution_blocks execution_blocks_of(const banyan_box *box, size_t elem_bytes, uint64_t cap_bytes)
{
    execution_blocks cut = {.count = 1};
    if (box->ndim == 0)
        return cut;
    uint64_t slab = banyan_box_elems(box) * elem_bytes;
    for (cut.dim = 0; cut.dim < box->ndim; cut.dim++) {
        slab /= (uint64_t)box->extent[cut.dim];
        if (slab <= cap_bytes || cut.dim == box->ndim - 1)
            break;
        cut.count *= (uint64_t)box->extent[cut.dim];
    }
    uint64_t extent = (uint64_t)box->extent[cut.dim];
    uint64_t run = cap_bytes / slab > 0 ? cap_bytes / slab : 1;
    cut.run = (int64_t)(run < extent ? whole_blocks(run, cut.dim == box->ndim - 1) : extent);
    cut.count *= (extent + (uint64_t)cut.run - 1) / (uint64_t)cut.run;
    return cut;
}

banyan_box execution_block_at(const execution_blocks *cut, const banyan_box *box, uint64_t number)
{
    banyan_box block = *box;
    if (cut->count == 1)
        return block;
    int64_t extent = box->extent[cut->dim];
    uint64_t runs = (uint64_t)((extent + cut->run - 1) / cut->run);
    int64_t before = (int64_t)(number % runs) * cut->run;
    block.start[cut->dim] += before;
    block.extent[cut->dim] = extent - before < cut->run ? extent - before : cut->run;
    number /= runs;
    for (int d = cut->dim - 1; d >= 0; d--) {
        block.start[d] += (int64_t)(number % (uint64_t)box->extent[d]);
        block.extent[d] = 1;
        number /= (uint64_t)box->extent[d];
    }
    return block;
}
