#include "cuda/execute/interpret.cuh"
#include "cuda/execute/kernels.h"

EXECUTE_DEFINE_KERNEL(e5m2)
