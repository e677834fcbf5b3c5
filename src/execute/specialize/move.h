/* Steps that move bytes. */
#ifndef EXECUTE_SPECIALIZE_MOVE_H
#define EXECUTE_SPECIALIZE_MOVE_H

#include "execute/host/task.h"

/* True when the step is done. False: it waits, and t->moved says whether it made progress. */
bool move_copy(const plan_run *of, task *t, const step *s);
bool move_pack(const plan_run *of, task *t, const step *s);
bool move_unpack(const plan_run *of, task *t, const step *s);
bool move_forward(const plan_run *of, task *t, const step *s);
bool move_combine(const plan_run *of, task *t, const step *s);
bool move_post(const plan_run *of, task *t, const step *s);

/* Post to the proxy. False: the queue is full. */
bool move_request(const plan_run *of, channel_end *end, const port_request *request);

/* Wake the waiters for the packets that the step has written. */
void move_doorbell(task *t, const step *s);

#endif
