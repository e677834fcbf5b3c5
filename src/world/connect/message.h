/* The messages that ranks 0 of two worlds exchange before their worlds are joined, on a control
 * connection of the purpose CONNECT. The connecting side sends JOIN with a request; the listener
 * answers with NEWS, which describes its world, and puts the request in its queue. When it accepts
 * the world, it sends TABLE with the joined world's unique id. When all ranks of the connecting
 * world have that, READY follows. Then all ranks of both open the joined world. */
#ifndef WORLD_CONNECT_MESSAGE_H
#define WORLD_CONNECT_MESSAGE_H

#include <banyan/connect.h>

#include "core/containers.h"
#include "world/bootstrap/member.h"
#include "world/net/address.h"
#include "world/net/wire.h"

#define CONNECT_NAME_BYTES 128
#define CONNECT_VERSION_BYTES 32

/* One of the two worlds. */
struct connect_party {
    int size;
    int pid; /* of its rank 0 */
    char host[MEMBER_HOST_BYTES];
};

struct connect_request {
    char version[CONNECT_VERSION_BYTES]; /* of the library */
    char name[CONNECT_NAME_BYTES];       /* banyan_connect_options.name */
    struct connect_party party;
};

/* Describe a world that this process is rank 0 of. */
struct connect_party connect_party_of(const banyan_world *world);

/* Write "a world of 2 ranks (rank 0: pid 12 on node x)" into `text`, and return it. */
#define CONNECT_PARTY_BYTES 160
const char *connect_party_text(const struct connect_party *party, char text[CONNECT_PARTY_BYTES]);

void connect_party_write(bytes_writer *writer, const struct connect_party *party);
bool connect_party_read(const void *data, size_t bytes, struct connect_party *party);

void connect_request_write(bytes_writer *writer, const struct connect_request *request);
/* Read a request; FORMAT when it is malformed, MISMATCH when it is of another version of Banyan. */
banyan_status connect_request_read(const void *data, size_t bytes, struct connect_request *request);

/* Derive the key of connections from a secret. INVALID, without the text, when it is malformed. */
banyan_status connect_key(const char *secret, unsigned char key[WIRE_KEY_BYTES]);

/* Split "host:port" or "[::1]:port"; the host may be empty. INVALID when it is malformed. */
#define CONNECT_HOST_BYTES 256
banyan_status connect_split_address(const char *text, char host[CONNECT_HOST_BYTES], int *port);

/* Look a host up. Returns the number of addresses; 0, with the message set, when there are none. */
int connect_resolve(const char *host, int port, struct address *addresses, int most);

#endif
