/* Running thread blocks in orders that the memory model allows and that hardly ever happen, drawn
 * from a seed: for showing what is wrong with a plan, and that nothing is.
 *
 * A thread block is a few lanes, as it is many threads on a GPU. Every operation's bytes are dealt
 * out among the lanes; one more lane signals, waits and posts. Lanes meet at nops and barriers, and
 * between two meetings each of them goes on by itself. */
#ifndef EXECUTE_SHUFFLE_SHUFFLE_H
#define EXECUTE_SHUFFLE_SHUFFLE_H

#include "execute/host/task.h"

typedef struct shuffle shuffle;

/* What the caller asks for, else BANYAN_SHUFFLE; 0: none. INVALID when that is no number. */
banyan_status shuffle_find_seed(uint64_t asked, uint64_t *seed);

/* Before a run of `loaded`, whose tasks have been reset; the first one makes `loaded->shuffle`. */
banyan_status shuffle_begin(struct banyan_loaded_plan *loaded, const plan_run *of);
/* After a run: post what is held back still. */
void shuffle_end(struct banyan_loaded_plan *loaded);
/* NULL is ignored. */
void shuffle_free(shuffle *old);

/* What task_advance does, in another order. */
task_state shuffle_advance(const plan_run *of, task *t, trace_ring *ring);

/* Hold a request to the proxy back. False: the queue is full. */
bool shuffle_post(const plan_run *of, channel_end *end, const port_request *request);

/* Of a lane that enters a step: leave it with its share of the pieces. */
banyan_status shuffle_deal(task *lane, const step *s);

#endif
