/* The direct backend for tensors in memory of devices that reach each other: each rank's device
 * writes what it sends straight to its place, in one pass, in the order of the caller's stream. */
#ifndef COPY_DIRECT_DEVICE_H
#define COPY_DIRECT_DEVICE_H

#include "copy/service/backends.h"

extern const banyan_copy_backend copy_backend_direct_device;

#endif
