/* The fused modes on the host: plans that an executor runs over the context's world. */
#ifndef MIXED_FUSED_HOST_H
#define MIXED_FUSED_HOST_H

#include "mixed/engine.h"

extern const mixed_engine_ops mixed_host_ops;

#endif
