/* The end of a port channel whose peer is on another node. A transport puts and signals, and needs
 * no proxy: its puts go on by themselves. */
#ifndef CHANNEL_REMOTE_PORT_H
#define CHANNEL_REMOTE_PORT_H

#include <banyan/transport.h>

#include "channel/port.h"

typedef struct remote_port remote_port;

/* Addresses in the peer's memory, which is not mapped here, count from this one. */
#define REMOTE_PORT_START ((char *)4096)

/* Create an end towards the rank of `signal`, its counter of the channel's signals. An addition to
 * its counter `arrival` wakes it to look for packets. */
banyan_status remote_port_create(banyan_world *world, banyan_transport *transport,
                                 const banyan_remote *signal, const banyan_remote *arrival,
                                 remote_port **port);
/* After remote_port_settle. NULL is ignored. */
void remote_port_destroy(remote_port *port);

/* Post a request. Any thread, one at a time. False: there is no room for its packets; try again
 * later. A failure ends the world, so that nobody waits for the request; remote_port_settle reports
 * it, and requests are dropped. */
bool remote_port_post(remote_port *port, const port_request *request);

/* True if the sources of all requests may be reused. */
bool remote_port_is_done(const remote_port *port);

/* Wait until they may be reused, also after a failure. Errors: the first one of a request, and
 * those of the wait. */
banyan_status remote_port_settle(remote_port *port);

#endif
