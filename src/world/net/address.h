/* Addresses of listeners: Unix sockets without a name in the file system, and TCP. */
#ifndef WORLD_NET_ADDRESS_H
#define WORLD_NET_ADDRESS_H

#include <sys/socket.h>

#include <banyan/world.h>

struct address {
    socklen_t bytes; /* 0: none */
    struct sockaddr_storage socket;
};

#define ADDRESS_TEXT_BYTES 160

/* Return an address in the abstract Unix namespace: it ends with the last socket bound to it. */
struct address address_unix(const char *name);
bool address_is_unix(const struct address *address);
/* True for a whole IPv4 or IPv6 address. */
bool address_is_ip(const struct address *address);

/* Write "@banyan-…" or "10.0.0.1:4711" into `text`, and return it. */
const char *address_text(const struct address *address, char text[ADDRESS_TEXT_BYTES]);

/* Open a non-blocking listener. */
banyan_status address_listen(const struct address *address, int *fd);

/* Listen for TCP at a port (0: any), for this machine only or for all. `*port` is the actual port.
 */
banyan_status address_listen_tcp(bool loopback, int wanted_port, int *fd, int *port);

/* Return the port of an IP address. */
int address_port(const struct address *address);

/* Return the address with another port. */
struct address address_with_port(const struct address *address, int port);
struct address address_loopback(int port);

/* Start to connect; `*fd` is a non-blocking socket. `*error` is 0 when connected, or EINPROGRESS
 * when the socket becomes writable once connected; otherwise it is the error, and there is no
 * socket. */
void address_connect(const struct address *address, int *fd, int *error);

/* True if the process at the other end of a Unix socket belongs to this user; always true for TCP,
 * whose peer is unknown. `who` receives "pid 12 of user 1000" or the address. */
bool address_peer_allowed(int fd, char who[ADDRESS_TEXT_BYTES]);

/* True if another user's process listens at a Unix address; `who` receives it. */
bool address_is_taken(const struct address *address, char who[ADDRESS_TEXT_BYTES]);

/* Set REFUSED: another user's process has taken the rendezvous name of the job. */
banyan_status address_say_taken(const struct address *address, const char *who);

/* Make a unique name: "banyan-" and 32 random hexadecimal digits. */
#define ADDRESS_NAME_BYTES 48
void address_random_name(char name[ADDRESS_NAME_BYTES]);

/* Get a text that identifies this node: shared memory, descriptors and process ids work between
 * processes with equal texts. */
#define ADDRESS_NODE_BYTES 160
banyan_status address_node(char node[ADDRESS_NODE_BYTES]);

#endif
