/* Saying what a thread block waits for. */
#ifndef EXECUTE_HOST_WAITS_H
#define EXECUTE_HOST_WAITS_H

#include "execute/host/task.h"

/* For this rank's own thread blocks alone? */
bool wait_is_inside(const task *t);

/* Does the step wait for channel ends or packets? Another step than those that wait does not. */
bool wait_is_for_peer(const task *t);

/* The rank that it waits for; -1: none. Where packets are waited for it searches the plan. */
int wait_peer(const plan_run *of, const task *t);

/* "waited for rank 3: thread block 2, operation 7 (wait) on memory channel 0". */
#define WAIT_TEXT_BYTES 256
void wait_describe(const plan_run *of, const task *t, char text[WAIT_TEXT_BYTES]);

#endif
