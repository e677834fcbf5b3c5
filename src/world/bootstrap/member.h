/* A rank's entry in the table of a job, and the messages in which it travels. */
#ifndef WORLD_BOOTSTRAP_MEMBER_H
#define WORLD_BOOTSTRAP_MEMBER_H

#include "core/containers/bytes.h"
#include "world/net/address.h"

#define MEMBER_TOKEN_BYTES 16
#define MEMBER_HOST_BYTES 64

/* Of a process: open files and sockets. */
struct descriptors {
    int limit;
    int free;  /* counted up to what a world takes at most */
    int above; /* open from the limit on, where a higher limit would not free them; as far */
};

struct member {
    char node[ADDRESS_NODE_BYTES];
    char host[MEMBER_HOST_BYTES]; /* the node, for a person */
    int pid;
    char name[ADDRESS_NAME_BYTES];  /* of its Unix listener */
    int port;                       /* of its TCP listener; 0: none */
    struct address tcp;             /* that listener as others reach it; none when nobody saw it */
    struct descriptors descriptors; /* before it joined */
};

struct member_table {
    struct member *members; /* world-size long, to be freed */
    /* Random and the same for all: part of the key between ranks, so that a process of another job
     * is never taken for one of this. */
    unsigned char token[MEMBER_TOKEN_BYTES];
};

struct join_request {
    int rank, world_size;
    uint64_t timeout_ns;
    struct member self;
};

void join_write(bytes_writer *writer, const struct join_request *request);
/* False when the message is malformed. */
bool join_read(const void *data, size_t bytes, struct join_request *request);

/* The end of a report: the request of a rank that cannot open the world comes first. */
void failure_write(bytes_writer *writer, const error_kept *why);
bool failure_read(const void *data, size_t bytes, struct join_request *request, error_kept *why);

/* The table's head; world_size times member_write follow. Chooses the token. */
void table_write(bytes_writer *writer, int world_size);
void member_write(bytes_writer *writer, const struct member *member);
banyan_status table_read(const void *data, size_t bytes, int world_size,
                         struct member_table *table);

#endif
