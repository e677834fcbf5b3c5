/* Runs thread blocks in orders that the memory model allows and that rarely occur, drawn from a
 * seed. Such runs expose faults of a plan, and show that a sound plan has none.
 *
 * A thread block has a few lanes, in place of the many threads on a GPU. Each operation's bytes
 * are divided among the lanes; one more lane signals, waits and posts. Lanes synchronize at nops
 * and barriers, and run independently between them. */
#ifndef EXECUTE_SHUFFLE_SHUFFLE_H
#define EXECUTE_SHUFFLE_SHUFFLE_H

#include "execute/host/task.h"

typedef struct shuffle shuffle;

/* Call it before a run of `loaded`, after its tasks were reset. The first call creates
 * `loaded->shuffle`. */
banyan_status shuffle_begin(struct banyan_loaded_plan *loaded, const plan_run *of);
/* Call it after a run: it posts the requests still held. */
void shuffle_end(struct banyan_loaded_plan *loaded);
/* Ignores NULL. */
void shuffle_free(shuffle *old);

/* Like task_advance, in another order. */
task_state shuffle_advance(const plan_run *of, task *t, trace_ring *ring);

/* Hold back a request to the proxy. False: the queue is full. */
bool shuffle_post(const plan_run *of, channel_end *end, const port_request *request);

/* Reduce a step that a lane enters to the lane's share of the pieces. */
banyan_status shuffle_deal(task *lane, const step *s);

#endif
