#include "cuda/mixed/kernels.cuh"

MIXED_DEFINE_KERNELS(f16)
