/* One control connection: its handshake, its incoming frames, and its queue of outgoing frames. */
#ifndef WORLD_NET_LINK_H
#define WORLD_NET_LINK_H

#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>

#include <banyan/world.h>

#include "world/net/address.h"
#include "world/net/wire.h"

enum link_stage {
    LINK_CONNECTING, /* a TCP connection in progress */
    LINK_HELLO,      /* accepted, waits for the hello */
    LINK_CHALLENGE,  /* connected, waits for the challenge */
    LINK_PROOF,      /* accepted, has a hello with the key's tag, waits for the proof */
    LINK_WELCOME,    /* connected, waits to be admitted */
    LINK_READY
};

/* The kind of object that epoll reports. */
enum event_kind {
    EVENT_WAKE,
    EVENT_LISTENER,
    EVENT_LINK,
    EVENT_WATCH /* a descriptor of the reactor's owner */
};

struct event_source {
    enum event_kind kind;
    int fd;
    void *context; /* the link, or the owner's object */
};

struct link;

struct link_ops {
    /* An accepted link has proved that it knows the key. Any status but OK refuses it, and the
     * message is sent to it. */
    banyan_status (*admit)(void *owner, struct link *link);
    void (*ready)(void *owner, struct link *link);
    /* Handle a frame. The owner takes `payload` and `fd` (-1: none). A failure closes the link. */
    banyan_status (*frame)(void *owner, struct link *link, const struct wire_frame *frame,
                           void *payload, int fd);
};

enum link_part { LINK_PART_HEAD, LINK_PART_PAYLOAD, LINK_PART_MAC };

#define LINK_HEAD_BYTES 96
#define LINK_DESCRIPTORS 64

struct link {
    int fd;
    bool connects;      /* this side sent the hello */
    bool authenticated; /* frames carry MACs */
    int rank;           /* of the other end; -1 while unknown */
    char who[ADDRESS_TEXT_BYTES];
    const unsigned char *key;
    const struct link_ops *ops;
    void *owner;
    pthread_mutex_t *lock; /* guards the next two and all of the output */
    enum link_stage stage;
    bool peer_said_goodbye;
    bool refused;     /* the other side has sent a reason */
    bool refused_all; /* and it concerns the ranks behind this one, too */
    bool in_doubt;    /* and the rendezvous has to be asked */
    uint64_t failure; /* the number of that failure; 0: none */
    struct wire_hello hello;
    unsigned char nonce[WIRE_NONCE_BYTES]; /* the accepting side's */

    /* Input, used by the reading thread. */
    enum link_part part;
    size_t have;
    unsigned char head[LINK_HEAD_BYTES];
    struct wire_frame frame;
    unsigned char *payload;
    size_t payload_bytes; /* allocated; the message may be longer */
    unsigned char in_key[WIRE_KEY_BYTES];
    _Atomic uint64_t in_count; /* also read for the log */
    crypto_generichash_state in_mac;
    int descriptors[LINK_DESCRIPTORS];
    int descriptor_count;

    /* Output. */
    struct link_chunk *first, *last;
    unsigned char out_key[WIRE_KEY_BYTES];
    uint64_t out_count;
    bool broken;   /* nothing can be written any more; reading will return the error */
    int own_error; /* an errno: this side failed, not the peer; 0: no failure */

    /* Used by the reactor. */
    struct event_source source;
    struct link *next, **previous;
    struct newcomers *among; /* the list that holds it while it is unproved; NULL: none */
    uint64_t handshake_ends_ns;
    int connect_error; /* an errno: why the connection failed; 0: it did not */
    bool watches_output;
    bool reading;
    bool closed;
};

/* Initialize a link. Takes ownership of `fd`. The connecting side sends `purpose`, `from` and `to`
 * in its hello; the other side expects them (`to`). */
void link_init(struct link *link, int fd, bool connects, bool connected, uint32_t purpose, int from,
               int to);
void link_destroy(struct link *link);
/* Close only its descriptors: in a forked child. */
void link_close_descriptors(struct link *link);

/* Send the hello, once connected. With the lock held. */
void link_greet(struct link *link);

/* Process received bytes. Calls the owner, without the lock. FORMAT, REFUSED or the owner's error
 * when the link must be closed. */
banyan_status link_feed(struct link *link, const unsigned char *data, size_t bytes);

/* Return memory into which the next `*room` bytes of a long payload may be read directly; NULL when
 * there is none now. Report the bytes read with link_filled. */
unsigned char *link_payload_room(struct link *link, size_t *room);
banyan_status link_filled(struct link *link, size_t bytes);

/* Queue a frame and write as much as possible at once. frame->bytes of `data` are copied if
 * necessary; `fd` is duplicated. With the lock held; the link is ready. Fails only for reasons of
 * this side: reading detects a connection that the peer broke. */
banyan_status link_send(struct link *link, const struct wire_frame *frame, const void *data,
                        int fd);

/* Send the other side the reason why the link is about to be closed. With the lock held. */
banyan_status link_refuse(struct link *link, banyan_status status, const char *text);
/* Send the reason to the other side, and to the ranks that join through it. `failure` is its
 * number.
 */
banyan_status link_refuse_all(struct link *link, uint64_t failure, banyan_status status,
                              const char *text);
/* Send the reason to ranks that are ready. They have to ask the rendezvous whether all ranks are
 * ready by now, and open the world in that case. */
banyan_status link_refuse_in_doubt(struct link *link, banyan_status status, const char *text);

/* True for an errno of a connection that the peer, or the network, broke. */
bool link_is_peers_error(int error);

/* Write queued data, as much as possible. With the lock held. */
void link_flush(struct link *link);
/* True if the other side may regard the link as established: in the last stage its welcome is on
 * the way. */
static inline bool link_may_stand(const struct link *link)
{
    return link->stage == LINK_READY || link->stage == LINK_WELCOME;
}
static inline bool link_has_output(const struct link *link)
{
    return link->first && !link->broken;
}

#endif
