#include "cuda/runtime/begin.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/driver.h"

#define CAPABILITY 9
/* Before CUDA 12.3 graphs could not contain such launches. */
#define VERSION 12030

bool begin_can_be_early(int device)
{
    const char *wanted = getenv("BANYAN_EARLY_LAUNCH");
    int version = 0;
    return !(wanted && strcmp(wanted, "0") == 0) &&
           driver_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) >= CAPABILITY &&
           driver.cuDriverGetVersion(&version) == CUDA_SUCCESS && version >= VERSION;
}
