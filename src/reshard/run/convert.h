/* Casts between f32, f16 and bf16 in host memory: rounded to nearest even; subnormals and
 * infinities are kept; NaN stays NaN and becomes quiet. */
#ifndef RESHARD_RUN_CONVERT_H
#define RESHARD_RUN_CONVERT_H

#include <banyan/core.h>
#include <banyan/layout.h>

/* True for f32, f16 and bf16. */
bool convert_is_float(DLDataType dtype);

/* Convert `count` elements from dense memory to dense memory, at any alignment; no overlap. Both
 * types are among the three; equal types are copied unchanged. */
void convert_run(void *to, DLDataType to_dtype, const void *from, DLDataType from_dtype,
                 size_t count);

/* Convert as convert_run, bit for bit, without instructions that only some processors have. */
void convert_run_portable(void *to, DLDataType to_dtype, const void *from, DLDataType from_dtype,
                          size_t count);

/* Convert element by element in row-major order, with any strides; no overlap. INVALID for another
 * type, MISMATCH for unequal element counts. */
banyan_status convert_tensor(const DLTensor *destination, const DLTensor *source);

typedef void (*convert_values_fn)(float *values, size_t count);

/* Convert as convert_tensor, applying `compute` to every value, as a float, on the way. */
banyan_status convert_tensor_through(const DLTensor *destination, const DLTensor *source,
                                     convert_values_fn compute);

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
