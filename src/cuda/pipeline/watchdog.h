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

/* A call of a library. It sets the error when it fails. */
typedef banyan_status (*watchdog_function)(void *argument);

/* Run call(argument) in a separate thread, with the device's context entered, and wait for it until
 * the world ends or the timeout expires. Returns the call's error; or TIMEOUT or the world's error,
 * with the call's `name`. */
banyan_status watchdog_call(banyan_world *world, int device, const char *name,
                            watchdog_function call, void *argument, watchdog_end *end);

/* Like watchdog_call, for calls that wait for all ranks of the world: no rank calls unless all have
 * a thread for it. When the call fails at one rank, the others do not wait for theirs any longer.
 * All ranks return the same error, and the world goes on. Collective. */
banyan_status watchdog_call_together(banyan_world *world, int device, const char *name,
                                     watchdog_function call, void *argument, watchdog_end *end);

/* Split a world of all ranks, which may end without ending the original. Collective. */
banyan_status watchdog_split(banyan_world *world, banyan_world **all);

#endif
