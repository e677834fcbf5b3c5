#include "channel/remote_port.h"

#include <stdlib.h>

#include "channel/packet.h"
#include "core/containers.h"
#include "core/error.h"
#include "transport/tables.h"
#include "world/control.h"

/* Room for packets on their way, at first. */
#define PACKETS_ROOM ((size_t)64 << 10)

struct remote_port {
    banyan_world *world;
    banyan_transport *transport;
    int peer;
    banyan_remote signal, arrival;
    char *packets; /* NULL: none were put yet */
    size_t room, used;
    error_kept failed;
};

banyan_status remote_port_create(banyan_world *world, banyan_transport *transport,
                                 const banyan_remote *signal, const banyan_remote *arrival,
                                 remote_port **port)
{
    remote_port *made = alloc_zeroed(1, sizeof *made, "a port channel");
    RETURN_IF_NO_MEMORY(made);
    made->world = world;
    made->transport = transport;
    made->peer = signal->handle.rank;
    made->signal = *signal;
    made->arrival = *arrival;
    *port = made;
    return BANYAN_OK;
}

void remote_port_destroy(remote_port *port)
{
    if (!port)
        return;
    free(port->packets);
    free(port);
}

bool remote_port_is_done(const remote_port *port)
{
    return banyan_transport_pending(port->transport, port->peer) == 0;
}

/* Find room for packets. NULL, with success: earlier packets still need it. */
static banyan_status take_room(remote_port *port, size_t bytes, char **room)
{
    *room = NULL;
    if (bytes > port->room - port->used) {
        if (!remote_port_is_done(port))
            return BANYAN_OK;
        port->used = 0;
    }
    if (bytes > port->room) {
        size_t larger = bytes > PACKETS_ROOM ? bytes : PACKETS_ROOM;
        free(port->packets);
        port->room = 0;
        port->packets = malloc(larger);
        if (!port->packets)
            return error_no_memory(larger, "packets for another node");
        port->room = larger;
    }
    *room = port->packets + port->used;
    port->used += bytes;
    return BANYAN_OK;
}

static banyan_status put_packets(remote_port *port, const banyan_remote *to, const void *packets,
                                 size_t bytes)
{
    RETURN_IF_FAILED(banyan_transport_put_begin(port->transport, to, packets, bytes));
    return transport_add(port->transport, &port->arrival, 1);
}

static banyan_status remote_port_start(remote_port *port, const port_request *request, bool *posted)
{
    char *room;
    const banyan_remote remote = {
        .handle = {.rank = port->peer,
                   .kind = BANYAN_MEMORY_SYMMETRIC,
                   .id = request->memory,
                   .bytes = request->memory_bytes},
        .offset = (uint64_t)((char *)request->destination - REMOTE_PORT_START),
    };
    const banyan_remote *to = &remote;
    switch (request->kind) {
    case PORT_SIGNAL:
        return transport_add(port->transport, &port->signal, 1);
    case PORT_PUT:
        return banyan_transport_put_begin(port->transport, to, request->source, request->bytes);
    case PORT_FORWARD_PACKETS:
        return put_packets(port, to, request->source, packets_room(request->bytes));
    case PORT_PUT_PACKETS:
        break;
    }
    RETURN_IF_FAILED(take_room(port, packets_room(request->bytes), &room));
    *posted = room;
    if (!room)
        return BANYAN_OK;
    packets_write(room, request->source, request->bytes, request->flag);
    return put_packets(port, to, room, packets_room(request->bytes));
}

bool remote_port_post(remote_port *port, const port_request *request)
{
    bool posted = true;
    if (port->failed.status != BANYAN_OK)
        return true;
    banyan_status status = remote_port_start(port, request, &posted);
    if (status != BANYAN_OK) {
        port->failed = error_keep(status);
        (void)control_fail(port->world, status);
    }
    return posted;
}

banyan_status remote_port_settle(remote_port *port)
{
    banyan_status status = banyan_transport_settle(port->transport, port->peer);
    return port->failed.status == BANYAN_OK ? status : error_again(&port->failed);
}
