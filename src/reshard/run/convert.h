/* Casts between f32, f16 and bf16 in host memory: rounded to nearest even, subnormals and
 * infinities kept, NaN stays NaN and becomes quiet. */
#ifndef RESHARD_RUN_CONVERT_H
#define RESHARD_RUN_CONVERT_H

#include <banyan/core.h>

/* f32, f16 or bf16? */
bool convert_is_float(DLDataType dtype);

/* `count` elements from dense memory to dense memory, at any alignment; no overlap. Both types are
 * of the three; equal types are copied as they are. */
void convert_run(void *to, DLDataType to_dtype, const void *from, DLDataType from_dtype,
                 size_t count);

/* The same without the instructions that only some processors have: bit for bit as convert_run. */
void convert_run_portable(void *to, DLDataType to_dtype, const void *from, DLDataType from_dtype,
                          size_t count);

/* Element by element in row-major order, any strides; no overlap. INVALID for another type,
 * MISMATCH for unequal element counts. */
banyan_status convert_tensor(const DLTensor *destination, const DLTensor *source);

typedef void (*convert_values_fn)(float *values, size_t count);

/* As convert_tensor, with every value changed by `compute` on the way, as a float. */
banyan_status convert_tensor_through(const DLTensor *destination, const DLTensor *source,
                                     convert_values_fn compute);

#endif
