/* Casts between f32, f16 and bf16 in host memory: rounded to nearest even; subnormals and
 * infinities are kept; NaN stays NaN and becomes quiet. */
#ifndef RESHARD_RUN_CONVERT_H
#define RESHARD_RUN_CONVERT_H

#include <banyan/core.h>

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

#endif
