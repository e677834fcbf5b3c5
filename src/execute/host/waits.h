/* Describes the wait of a thread block. */
#ifndef EXECUTE_HOST_WAITS_H
#define EXECUTE_HOST_WAITS_H

#include "execute/host/task.h"

/* True if the step waits only for this rank's own thread blocks. */
bool wait_is_inside(const task *t);

/* True if the step waits for channel ends or packets. False for every step that does not wait. */
bool wait_is_for_peer(const task *t);

/* Return the rank that the step waits for; -1: none. For packets it searches the plan. */
int wait_peer(const plan_run *of, const task *t);

/* "waited for rank 3: thread block 2, operation 7 (wait) on memory channel 0". */
#define WAIT_TEXT_BYTES 256
void wait_describe(const plan_run *of, const task *t, char text[WAIT_TEXT_BYTES]);

#endif
