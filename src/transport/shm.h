/* The built-in transport between ranks of one node. */
#ifndef TRANSPORT_SHM_H
#define TRANSPORT_SHM_H

#include <banyan/transport.h>

extern const banyan_transport_ops shm_transport;

#endif
