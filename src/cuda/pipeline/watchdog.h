/* Calls of foreign libraries that wait for other ranks, and have neither deadlines nor failure
 * detection. */
#ifndef CUDA_PIPELINE_WATCHDOG_H
#define CUDA_PIPELINE_WATCHDOG_H

#include <banyan/world.h>

typedef enum watchdog_end {
    WATCHDOG_NOT_CALLED,
    WATCHDOG_CALLED,
    WATCHDOG_LEFT /* its thread is left running, and `argument` must remain forever */
} watchdog_end;

/* Run call(argument) in a separate thread, with the device's context entered, and wait for it
 * until the world ends or the timeout expires: TIMEOUT or the world's error, with the call's
 * `name`. */
banyan_status watchdog_call(banyan_world *world, int device, const char *name,
                            void (*call)(void *argument), void *argument, watchdog_end *end);

/* Like watchdog_call, for calls that wait for all ranks of the world: no rank calls unless all
 * have a thread for it. Collective. */
banyan_status watchdog_call_together(banyan_world *world, int device, const char *name,
                                     void (*call)(void *argument), void *argument,
                                     watchdog_end *end);

#endif
