#include "cuda/execute/kernel/direct.cuh"
#include "cuda/execute/kernel/interpret.cuh"
#include "cuda/execute/kernels.h"
#include "cuda/execute/kernel/quick.cuh"

EXECUTE_DEFINE_KERNEL(i32)
EXECUTE_DEFINE_QUICK_KERNEL(i32)
EXECUTE_DEFINE_DIRECT_KERNEL(i32)
