/* The pipeline backend for tensors in device memory: through slots that a module's GPU pipeline
 * (gpu_pipeline.h) carries, in the order of the caller's stream. */
#ifndef COPY_PIPELINE_DEVICE_H
#define COPY_PIPELINE_DEVICE_H

#include "copy/service/backends.h"

extern const banyan_copy_backend copy_backend_pipeline_device;

#endif
