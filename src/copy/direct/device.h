/* The direct backend for memory of devices that reach each other: each rank's device writes its
 * sends straight to their destination, in one pass, in the order of the caller's stream. */
#ifndef COPY_DIRECT_DEVICE_H
#define COPY_DIRECT_DEVICE_H

#include "copy/service/backends.h"

extern const banyan_copy_backend copy_backend_direct_device;

#endif
