#include "execute/shuffle/ports.h"

#include <string.h>

static void shuffle_ports_lock(channel_end *end)
{
    while (atomic_flag_test_and_set_explicit(&end->posting, memory_order_acquire))
        spin_pause();
}

static void shuffle_ports_unlock(channel_end *end)
{
    atomic_flag_clear_explicit(&end->posting, memory_order_release);
}

/* Return how many requests at the front may be reordered: the puts up to a signal. Signals and
 * packets announce earlier requests, so they leave only from the front. */
static uint32_t count_able(const held_port *port)
{
    uint32_t able = 0;
    while (able < port->count && port->requests[able].kind == PORT_PUT)
        able++;
    return able > 0 || port->count == 0 ? able : 1;
}

static bool shuffle_ports_pass_on(held_port *port, channel_end *end)
{
    if (port->count == 0)
        return false;
    uint32_t i = (uint32_t)shuffle_below(&port->random, count_able(port));
    if (!channel_end_post(end, &port->requests[i]))
        return false;
    memmove(&port->requests[i], &port->requests[i + 1],
            (--port->count - i) * sizeof port->requests[0]);
    return true;
}

bool held_port_take(held_port *port, channel_end *end, const port_request *request)
{
    shuffle_ports_lock(end);
    bool room = port->count < HELD_MOST || shuffle_ports_pass_on(port, end);
    if (room)
        port->requests[port->count++] = *request;
    shuffle_ports_unlock(end);
    return room;
}

bool held_port_pass_on(held_port *port, channel_end *end)
{
    shuffle_ports_lock(end);
    bool passed = shuffle_ports_pass_on(port, end);
    shuffle_ports_unlock(end);
    return passed;
}

/* Return the number of requests up to the last one that is not a put. */
static uint32_t count_pending(const held_port *port)
{
    uint32_t pending = port->count;
    while (pending > 0 && port->requests[pending - 1].kind == PORT_PUT)
        pending--;
    return pending;
}

bool held_port_end(held_port *port, channel_end *end)
{
    shuffle_ports_lock(end);
    bool all = shuffle_below(&port->random, 2), passed = true;
    while (passed && (all ? port->count : count_pending(port)) > 0)
        passed = shuffle_ports_pass_on(port, end);
    shuffle_ports_unlock(end);
    return passed;
}

bool held_port_drain(held_port *port, channel_end *end)
{
    shuffle_ports_lock(end);
    while (shuffle_ports_pass_on(port, end))
        continue;
    bool empty = port->count == 0;
    shuffle_ports_unlock(end);
    return empty;
}
