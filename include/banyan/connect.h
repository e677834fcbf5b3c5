/* Banyan: joining two worlds that were started apart.
 *
 * A trainer and its engines are often jobs of their own, which start and end at different times.
 * One world listens, others connect to it by address and secret. Each connection gives a joined
 * world: an ordinary world of the ranks of both. Everything that runs over a world runs over it.
 *
 *     trainer:  banyan_world_listen(world, NULL, secret, NULL, &listener)
 *               banyan_listener_address(listener)             "10.0.0.5:4711", for the engines
 *               banyan_listener_accept(listener, 0, &joined)  in every step; NULL: nobody asks
 *     engine:   banyan_world_connect(world, "10.0.0.5:4711", secret, NULL, &joined)
 *
 * Ranks. The ranks of the listening world come first, in their order, then those of the connecting
 * world. A rank of the connecting world has its own number plus banyan_world_listening_size.
 *
 * Failures. A joined world is independent of the two worlds: if it ends, by a death, an abort or a
 * timeout, they continue, and may be joined again. When a process dies, the worlds that it belongs
 * to end. Close joined worlds in any order, before or after the worlds that they came from.
 *
 * Secret. Both sides have 128 random bits, as 32 hexadecimal digits ("openssl rand -hex 16"). Each
 * proves that it knows them before the other reads a message of it. Protect it like a password.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_CONNECT_H
#define BANYAN_CONNECT_H

#include <banyan/world.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Options of banyan_world_listen and banyan_world_connect. Those of rank 0 count. */
typedef struct banyan_connect_options {
    size_t size; /* of this struct; BANYAN_CONNECT_OPTIONS_INIT sets it */
    /* Purpose of the joined worlds, at most 127 bytes; NULL: "". Both sides must give the same,
     * so that an engine that found the wrong trainer gets an error. */
    const char *name;
    /* Connecting: the longest time until the joined world is open; 0: the world's timeout. For a
     * listener: the longest time to open a joined world with a world that it accepts; 0: 30 s. */
    uint64_t connect_timeout_ns;
    uint64_t timeout_ns; /* of every wait in joined worlds, at this side; 0: the world's timeout */
} banyan_connect_options;

#define BANYAN_CONNECT_OPTIONS_INIT BANYAN_INIT(banyan_connect_options)

/* A place at which other worlds ask to be joined with a world. */
typedef struct banyan_listener banyan_listener;

/* Listen for worlds that connect, at rank 0's machine. Worlds that ask wait in a queue, from now
 * on, until a banyan_listener_accept takes them. Collective over `world`. `address`, `secret` and
 * `options` of rank 0 count; the other ranks may pass NULL.
 *
 * `address` is "host:port", "[::1]:port", or ":port" for all addresses of the machine. Port 0 takes
 * a free port. NULL is ":0". `options` NULL: the defaults.
 *
 * Close the listener before the world. Errors: INVALID (an address, a secret or an option is
 * malformed), SYSTEM (the port is taken, or the host unknown), NO_MEMORY, and those of the world's
 * waits. */
BANYAN_API banyan_status banyan_world_listen(banyan_world *world, const char *address,
                                             const char *secret,
                                             const banyan_connect_options *options,
                                             banyan_listener **listener);

/* Return the address that banyan_world_connect takes: "10.0.0.5:4711" or "[2001:db8::5]:4711". A
 * listener at all addresses gives one that other machines reach, if there is any. The string
 * belongs to the listener. Any rank, any thread. */
BANYAN_API const char *banyan_listener_address(const banyan_listener *listener);

/* Join the world that has asked first. If none has asked, wait up to `wait_ns` for one, then return
 * BANYAN_OK with `*joined` NULL; 0 only looks. Collective over the listener's world; `wait_ns` of
 * rank 0 counts.
 *
 * A connecting world that dies, leaves or cannot open the joined world is dropped with a warning in
 * the log, and the call goes on. If its processes are stopped, this takes at most
 * connect_timeout_ns. Only a failure of the listener's own world is an error of this call.
 *
 * Errors: those of the world's waits, NO_MEMORY. */
BANYAN_API banyan_status banyan_listener_accept(banyan_listener *listener, uint64_t wait_ns,
                                                banyan_world **joined);

/* Stop listening. Worlds that wait in the queue look for another listener until their deadline.
 * Joined worlds stay. NULL is ignored. Local; call it on every rank. */
BANYAN_API void banyan_listener_close(banyan_listener *listener);

/* Join the world that listens at `address`. While none listens there, and while it does not accept
 * this world, try again and wait, until connect_timeout_ns has passed. A listener that ends and
 * comes back is found again. Collective over `world`; `address`, `secret` and `options` of rank 0
 * count, the other ranks may pass NULL.
 *
 * Errors of the arguments: INVALID (an address, a secret or an option is malformed). Errors of the
 * listener: TIMEOUT (with the last reason: nobody listens, or a named world does not accept);
 * REFUSED (it has another secret); MISMATCH (another name, or another version of Banyan); FORMAT
 * (something else listens there). PEER_LOST or ABORTED: the listening world failed while the joined
 * world was opened. Others: SYSTEM, NO_MEMORY, and those of the world's waits. */
BANYAN_API banyan_status banyan_world_connect(banyan_world *world, const char *address,
                                              const char *secret,
                                              const banyan_connect_options *options,
                                              banyan_world **joined);

/* Return the number of ranks of the listening world in a joined world: they are ranks 0 to that
 * number - 1. For a world that was not joined, and for sub-worlds, return the world's size. Any
 * thread. */
BANYAN_API int banyan_world_listening_size(const banyan_world *world);

#ifdef __cplusplus
}
#endif
#endif
