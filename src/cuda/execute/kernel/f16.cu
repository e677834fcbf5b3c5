#include "cuda/execute/kernel/kernels.cuh"

EXECUTE_DEFINE_KERNELS(f16)
