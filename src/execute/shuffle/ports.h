/* What a shuffled run gives its port channels, held back: puts reach the proxy at any moment before
 * a flush is over or a signal that was posted behind them is sent, in any order between those. */
#ifndef EXECUTE_SHUFFLE_PORTS_H
#define EXECUTE_SHUFFLE_PORTS_H

#include "execute/shuffle/random.h"
#include "execute/specialize/step.h"

/* Of a channel; more are passed on. */
#define HELD_MOST 32

typedef struct held_port {
    shuffle_random random;
    uint32_t count;
    port_request requests[HELD_MOST]; /* in the order that they were posted in */
} held_port;

/* False: neither held nor posted, as the queue is full. Any thread. */
bool held_port_take(held_port *port, channel_end *end, const port_request *request);
/* Pass on one that may go next. False: there is none, or the queue is full. Any thread. */
bool held_port_pass_on(held_port *port, channel_end *end);
/* False: some are left, as the queue is full. Any thread. */
bool held_port_drain(held_port *port, channel_end *end);
/* A run ends: the same, but that puts which nothing was posted behind may be left for later runs.
 */
bool held_port_end(held_port *port, channel_end *end);

#endif
