/* Where a process listens: sockets without names in the file system, and TCP. */
#ifndef WORLD_NET_ADDRESS_H
#define WORLD_NET_ADDRESS_H

#include <sys/socket.h>

#include <banyan/world.h>

struct address {
    socklen_t bytes; /* 0: none */
    struct sockaddr_storage socket;
};

#define ADDRESS_TEXT_BYTES 160

/* In the abstract Unix namespace: it ends with the last socket bound to it. */
struct address address_unix(const char *name);
bool address_is_unix(const struct address *address);

/* For a person: "@banyan-…" or "10.0.0.1:4711". Returns `text`. */
const char *address_text(const struct address *address, char text[ADDRESS_TEXT_BYTES]);

/* A non-blocking listener. */
banyan_status address_listen(const struct address *address, int *fd);

/* TCP at a port (0: any), reachable from this machine only or from everywhere. `*port` is the one
 * it got. */
banyan_status address_listen_tcp(bool loopback, int wanted_port, int *fd, int *port);

/* The same host's other port. */
struct address address_with_port(const struct address *address, int port);
struct address address_loopback(int port);

/* Start to connect: `*fd` is a non-blocking socket. `*error` is 0 when it is connected, EINPROGRESS
 * when it will be writable once it is, else why it failed (and there is no socket). */
void address_connect(const struct address *address, int *fd, int *error);

/* The process at the other end of a Unix socket belongs to this user, or TCP, where that cannot be
 * asked. `who` receives "pid 12 of user 1000" or the address. */
bool address_peer_allowed(int fd, char who[ADDRESS_TEXT_BYTES]);

/* Who listens at a Unix address. False when nobody does, or a process of this user. */
bool address_is_taken(const struct address *address, char who[ADDRESS_TEXT_BYTES]);

/* REFUSED: another user's process has the name where the job's ranks meet. */
banyan_status address_say_taken(const struct address *address, const char *who);

/* A name that nobody has: "banyan-" and 32 random hexadecimal digits. */
#define ADDRESS_NAME_BYTES 48
void address_random_name(char name[ADDRESS_NAME_BYTES]);

/* What tells this node from others: shared memory, descriptors and process ids work between
 * processes that have the same text. */
#define ADDRESS_NODE_BYTES 160
banyan_status address_node(char node[ADDRESS_NODE_BYTES]);

#endif
