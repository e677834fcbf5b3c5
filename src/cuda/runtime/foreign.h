/* Calls of foreign libraries that wait for other ranks, and have neither deadlines nor failure
 * detection. */
#ifndef CUDA_RUNTIME_FOREIGN_H
#define CUDA_RUNTIME_FOREIGN_H

#include <banyan/world.h>

typedef enum foreign_end {
    FOREIGN_NOT_CALLED,
    FOREIGN_CALLED,
    FOREIGN_LEFT /* its thread is left running, and `argument` must remain forever */
} foreign_end;

/* A call of a library. It sets the error when it fails. */
typedef banyan_status (*foreign_function)(void *argument);

/* Run call(argument) in a separate thread, with the device's context entered, and wait for it until
 * the world ends or the timeout expires. Returns the call's error; or TIMEOUT or the world's error,
 * with the call's `name`. */
banyan_status foreign_run(banyan_world *world, int device, const char *name, foreign_function call,
                          void *argument, foreign_end *end);

/* Like foreign_run, for calls that wait for all ranks of the world: no rank calls unless all have
 * a thread for it. When the call fails at one rank, the others do not wait for theirs any longer.
 * All ranks return the same error, and the world goes on. Collective. */
banyan_status foreign_run_together(banyan_world *world, int device, const char *name,
                                   foreign_function call, void *argument, foreign_end *end);

/* Split a world of all ranks, which may end without ending the original. Collective. */
banyan_status foreign_split(banyan_world *world, banyan_world **all);

#endif
