/* The protocol of a control connection: the handshake, then frames.
 *
 * The connecting side sends a hello. The other side answers with a challenge that already proves
 * that it knows the key; then the connecting side proves it too. A proof is a keyed hash over both
 * nonces, the role and the claims of the hello, so it is valid for this one connection only. A tag
 * under the key in the hello separates strangers from newcomers at the first message. A replayed
 * hello passes that test, but only the proof admits a connection. Frames follow. Between machines,
 * header and payload each carry a MAC under a key of this connection and a count, so that no frame
 * can be changed, repeated or omitted. */
#ifndef WORLD_NET_WIRE_H
#define WORLD_NET_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_MAGIC UINT64_C(0x314e41594e4142f5)
#define WIRE_VERSION 5U
#define WIRE_KEY_BYTES 32
#define WIRE_NONCE_BYTES 32
#define WIRE_PROOF_BYTES 32
#define WIRE_HELLO_NONCE_BYTES 16
#define WIRE_TAG_BYTES 16
#define WIRE_MAC_BYTES 16
/* The control plane sends no longer message. */
#define WIRE_PAYLOAD_MAX (UINT64_C(1) << 32)

enum wire_purpose {
    WIRE_PURPOSE_JOIN = 1, /* a rank and a rendezvous */
    WIRE_PURPOSE_PEER,     /* two ranks of a job */
    WIRE_PURPOSE_CONNECT   /* ranks 0 of two worlds: connect/message.h says how they use frames */
};

struct wire_hello {
    uint64_t magic;
    uint32_t version;
    uint32_t purpose;
    int32_t from, to; /* ranks of the job; -1: a rendezvous */
    unsigned char nonce[WIRE_HELLO_NONCE_BYTES];
    unsigned char tag[WIRE_TAG_BYTES]; /* under the key, over everything before it */
};

struct wire_challenge {
    uint64_t magic;
    uint64_t version;
    unsigned char nonce[WIRE_NONCE_BYTES];
    unsigned char proof[WIRE_PROOF_BYTES];
};

enum wire_kind {
    WIRE_WELCOME = 1, /* the handshake is complete */
    /* a handshake or a join was refused: tag is the status, the payload is the reason */
    WIRE_REFUSED,
    WIRE_JOIN, /* ranks send the rendezvous their entries: requests to join, each as a blob */
    WIRE_LEFT, /* joined ranks are gone: pairs of a rank, and 1 if it died or 0 if it may return */
    WIRE_REDIRECT,   /* rank `tag` joins at another address; none: at the rendezvous itself */
    WIRE_DISMISS,    /* rank `tag` is refused: flags is the status, the payload is the reason */
    WIRE_TABLE,      /* the rendezvous sends the ranks the table */
    WIRE_NEWS,       /* for rank `tag`, or WIRE_ALL: a line for the log about missing ranks */
    WIRE_READY,      /* ranks that have the table and accept connections */
    WIRE_GO,         /* all ranks are ready */
    WIRE_FAILED,     /* a rank cannot open the world: a join request, the status, and the message */
    WIRE_MESSAGE,    /* control_send */
    WIRE_COLLECTIVE, /* a step of a collective operation */
    WIRE_EXCHANGE,   /* a message of control_exchange */
    WIRE_ACK,        /* one exchange message was delivered */
    WIRE_DESCRIPTOR, /* a message with a descriptor attached */
    WIRE_LOST,       /* tag is the lost rank, flags the status, the payload how it was lost */
    /* tag is the rank, in the context's numbering, flags the status with which the world ends; the
     * payload is its reason */
    WIRE_ABORT,
    WIRE_ASK,    /* which rank does the receiver wait for? tag is the collective's number */
    WIRE_ANSWER, /* the answer: the same tag; the payload is a rank of the job, or -1 */
    /* tag is the number of a collective that all give up; the payload is the late rank */
    WIRE_GIVE_UP,
    /* the last frame; tag is OK after a collective close, otherwise the payload is the reason */
    WIRE_GOODBYE
};

/* A flag of WIRE_ASK: the asker's deadline has passed. A receiver that has not entered gives up the
 * gate. Flags of WIRE_REFUSED: it concerns the ranks that join through the receiver, too, and the
 * context is the number of the failure, or 0; the sender does not know whether all ranks are ready
 * by now, so the receiver has to ask the rendezvous. */
enum { WIRE_HAS_DESCRIPTOR = 1, WIRE_DEADLINE_PASSED = 2, WIRE_FOR_ALL = 4, WIRE_IN_DOUBT = 8 };

/* The tag of news for every rank. */
#define WIRE_ALL UINT64_MAX

struct wire_frame {
    uint32_t kind;
    uint32_t flags;
    uint64_t context; /* which world */
    uint64_t tag;
    uint64_t bytes; /* of the payload that follows */
};

enum wire_role { WIRE_CONNECTS = 1, WIRE_ACCEPTS = 2 };

/* Fill in the hello's tag, or compare it in constant time. */
void wire_tag(const unsigned char key[WIRE_KEY_BYTES], struct wire_hello *hello);
bool wire_tag_is_right(const unsigned char key[WIRE_KEY_BYTES], const struct wire_hello *hello);

void wire_prove(const unsigned char key[WIRE_KEY_BYTES], enum wire_role role,
                const struct wire_hello *hello, const unsigned char nonce[WIRE_NONCE_BYTES],
                unsigned char proof[WIRE_PROOF_BYTES]);

/* Compare proofs in constant time. */
bool wire_proof_equal(const unsigned char a[WIRE_PROOF_BYTES],
                      const unsigned char b[WIRE_PROOF_BYTES]);

/* Derive the key of frames that `role` sends on the connection of this handshake. */
void wire_session_key(const unsigned char key[WIRE_KEY_BYTES], enum wire_role role,
                      const struct wire_hello *hello, const unsigned char nonce[WIRE_NONCE_BYTES],
                      unsigned char session_key[WIRE_KEY_BYTES]);

#endif
