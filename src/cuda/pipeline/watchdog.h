/* Calls of a foreign library that wait for other ranks, and know neither deadlines nor deaths. */
#ifndef CUDA_PIPELINE_WATCHDOG_H
#define CUDA_PIPELINE_WATCHDOG_H

#include <banyan/world.h>

typedef enum watchdog_end {
    WATCHDOG_NOT_CALLED,
    WATCHDOG_CALLED,
    WATCHDOG_LEFT /* its thread is left where it is, and `argument` must stay for ever */
} watchdog_end;

/* Run call(argument) in a thread of its own, with the device's context entered, and wait for it
 * until the world ends or its timeout is over: TIMEOUT or the world's error, with `name` of the
 * call. */
banyan_status watchdog_call(banyan_world *world, int device, const char *name,
                            void (*call)(void *argument), void *argument, watchdog_end *end);

/* The same for what waits for all ranks of the world: nobody calls unless all have a thread for it.
 * Collective. */
banyan_status watchdog_call_together(banyan_world *world, int device, const char *name,
                                     void (*call)(void *argument), void *argument,
                                     watchdog_end *end);

#endif
