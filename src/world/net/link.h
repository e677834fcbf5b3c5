/* One control connection: its handshake, the frames that come and the frames that wait to go. */
#ifndef WORLD_NET_LINK_H
#define WORLD_NET_LINK_H

#include <pthread.h>
#include <sodium.h>

#include <banyan/world.h>

#include "world/net/address.h"
#include "world/net/wire.h"

enum link_stage {
    LINK_CONNECTING, /* a TCP connection on its way */
    LINK_HELLO,      /* accepted, waits for the hello */
    LINK_CHALLENGE,  /* connected, waits for the challenge */
    LINK_PROOF,      /* accepted, its hello has the key's tag, waits for the proof */
    LINK_WELCOME,    /* connected, waits to be let in */
    LINK_READY
};

/* What epoll hands back. */
enum event_kind {
    EVENT_WAKE,
    EVENT_LISTENER,
    EVENT_LINK,
    EVENT_WATCH /* a descriptor of the reactor's owner */
};

struct event_source {
    enum event_kind kind;
    int fd;
    void *context; /* the link, or the owner's */
};

struct link;

struct link_ops {
    /* An accepted link has proved that it knows the key. Any other status refuses it, and its
     * sentence is sent to it. */
    banyan_status (*admit)(void *owner, struct link *link);
    void (*ready)(void *owner, struct link *link);
    /* `payload` and `fd` (-1: none) become the owner's. A failure closes the link. */
    banyan_status (*frame)(void *owner, struct link *link, const struct wire_frame *frame,
                           void *payload, int fd);
};

enum link_part { LINK_PART_HEAD, LINK_PART_PAYLOAD, LINK_PART_SEAL };

#define LINK_HEAD_BYTES 96
#define LINK_DESCRIPTORS 64

struct link {
    int fd;
    bool connects; /* this side said hello */
    bool sealed;   /* frames carry MACs */
    int rank;      /* at the other end; -1 while unknown */
    char who[ADDRESS_TEXT_BYTES];
    const unsigned char *key;
    const struct link_ops *ops;
    void *owner;
    pthread_mutex_t *lock; /* guards the next two and all of the output */
    enum link_stage stage;
    bool peer_said_goodbye;
    bool refused; /* the other side has said why */
    struct wire_hello hello;
    unsigned char nonce[WIRE_NONCE_BYTES]; /* the accepting side's */

    /* Input, of the thread that reads. */
    enum link_part part;
    size_t have;
    unsigned char head[LINK_HEAD_BYTES];
    struct wire_frame frame;
    unsigned char *payload;
    size_t payload_bytes; /* of memory; the message may be longer */
    unsigned char in_key[WIRE_KEY_BYTES];
    uint64_t in_count;
    crypto_generichash_state in_mac;
    int descriptors[LINK_DESCRIPTORS];
    int descriptor_count;

    /* Output. */
    struct link_chunk *first, *last;
    unsigned char out_key[WIRE_KEY_BYTES];
    uint64_t out_count;
    bool broken;   /* nothing can be written any more; reading will tell why */
    int own_error; /* an errno: this side failed, not the peer; 0: it did not */

    /* The reactor's. */
    struct event_source source;
    struct link *next, **previous;
    struct newcomers *among; /* that it waits with, while it has proved nothing; NULL: none */
    uint64_t handshake_ends_ns;
    int connect_error; /* an errno: why it never stood */
    bool watches_output;
    bool reading;
    bool closed;
};

/* Takes `fd`. `purpose`, `from` and `to` are said in the hello of the side that connects, and
 * expected by the other (`to`). */
void link_init(struct link *link, int fd, bool connects, bool connected, uint32_t purpose, int from,
               int to);
void link_destroy(struct link *link);
/* Close its descriptors, and nothing else: in a forked child. */
void link_close_descriptors(struct link *link);

/* Say hello: once the connection stands. With the lock held. */
void link_greet(struct link *link);

/* Take in what was read. Calls the owner, without the lock. FORMAT, REFUSED or what the owner
 * returned when the link must be closed. */
banyan_status link_feed(struct link *link, const unsigned char *data, size_t bytes);

/* Where the next `*room` bytes of a long payload may be read to directly; NULL when there is no
 * such place now. link_filled says how many were. */
unsigned char *link_payload_room(struct link *link, size_t *room);
banyan_status link_filled(struct link *link, size_t bytes);

/* Queue a frame and write what can be written at once. frame->bytes of `data` are copied if need
 * be; `fd` is duplicated. With the lock held; the link is ready. Fails for this side's reasons
 * alone: a connection that the peer broke is noticed by reading. */
banyan_status link_send(struct link *link, const struct wire_frame *frame, const void *data,
                        int fd);

/* Tell the other side why the link is about to be closed. With the lock held. */
banyan_status link_refuse(struct link *link, banyan_status status, const char *sentence);

/* An errno of a connection that its other end, or the way to it, has broken. */
bool link_is_peers_error(int error);

/* Write what is queued, as far as it goes. With the lock held. */
void link_flush(struct link *link);
/* The other side may take it for one that stands: in the last stage its welcome is on the way. */
static inline bool link_may_stand(const struct link *link)
{
    return link->stage == LINK_READY || link->stage == LINK_WELCOME;
}
static inline bool link_has_output(const struct link *link)
{
    return link->first && !link->broken;
}

#endif
