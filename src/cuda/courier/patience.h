/* Calls of a foreign library that wait for other ranks, and know neither deadlines nor deaths. */
#ifndef CUDA_COURIER_PATIENCE_H
#define CUDA_COURIER_PATIENCE_H

#include <banyan/world.h>

/* Run call(argument) in a thread of its own, with the device's context entered, and wait for it
 * until the world ends or its timeout is over: TIMEOUT or the world's error, with `name` of the
 * call. Then the thread is left where it is, which `*is_left` (or NULL) says, and `argument` must
 * stay for ever. */
banyan_status patience_call(banyan_world *world, int device, const char *name,
                            void (*call)(void *argument), void *argument, bool *is_left);

#endif
