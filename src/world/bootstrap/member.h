/* A rank's entry in the table of a job, and the messages that carry it. */
#ifndef WORLD_BOOTSTRAP_MEMBER_H
#define WORLD_BOOTSTRAP_MEMBER_H

#include "core/containers.h"
#include "world/net/address.h"

#define MEMBER_TOKEN_BYTES 16
#define MEMBER_HOST_BYTES 64

/* A process's open files and sockets. */
struct descriptors {
    int limit;
    int free;  /* counted up to the most that a world needs */
    int above; /* open from the limit on, where a higher limit would not free them; as far */
};

struct member {
    char node[ADDRESS_NODE_BYTES];
    char host[MEMBER_HOST_BYTES]; /* the node, for messages */
    int pid;
    char name[ADDRESS_NAME_BYTES];  /* name of its Unix listener */
    int port;                       /* port of its TCP listener; 0: none */
    struct address tcp;             /* that listener's address for others; none while unknown */
    struct descriptors descriptors; /* before it joined */
};

struct member_table {
    struct member *members; /* one per rank; free it */
    /* Random, and equal on all ranks: part of the key between ranks, so that a process of another
     * job is never accepted. */
    unsigned char token[MEMBER_TOKEN_BYTES];
};

struct join_request {
    int rank, world_size;
    uint64_t timeout_ns; /* until this rank gives up */
    uint64_t limit_ns;   /* of its whole wait, for messages */
    struct member self;
    bool relays;      /* it accepts ranks that join through it, at its name in the tree */
    int relay_port;   /* and at this TCP port; 0: not over TCP */
    int lost;         /* 1 + the rank through which it joined before, and which ended; 0: none */
    uint64_t failure; /* the last one of which this rank was informed; 0: none */
};

void join_write(bytes_writer *writer, const struct join_request *request);
/* Read a request; false when the message is malformed. */
bool join_read(const void *data, size_t bytes, struct join_request *request);

/* A rank that has joined and is gone. */
struct member_loss {
    int rank;
    bool died; /* it will not come back */
};

/* Write and read messages that list ranks (READY) and losses (LEFT). Reading returns false at the
 * end, and sets reader->failed at a rank that the world does not have. */
void ready_write(bytes_writer *writer, int rank);
bool ready_read(bytes_reader *reader, int world_size, int *rank);
void loss_write(bytes_writer *writer, const struct member_loss *loss);
bool loss_read(bytes_reader *reader, int world_size, struct member_loss *loss);

/* Write the end of a failure report: the request of the rank that cannot open the world precedes
 * it. */
void failure_write(bytes_writer *writer, const error_kept *why);
bool failure_read(const void *data, size_t bytes, struct join_request *request, error_kept *why);

/* Write the table's head and choose the token; world_size calls of member_write follow. */
void table_write(bytes_writer *writer, int world_size);
/* Write a table that was read. */
void table_write_again(bytes_writer *writer, const struct member_table *table, int world_size);
void member_write(bytes_writer *writer, const struct member *member);
banyan_status table_read(const void *data, size_t bytes, int world_size,
                         struct member_table *table);

#endif
