/* What travels on a control connection: the handshake, then frames.
 *
 * The side that connects says hello; the other answers with a challenge that already proves that
 * it knows the key; the first proves the same. A proof is a keyed hash over both nonces, the role
 * and what the hello claims, so that it is good for this one connection only. A tag under the key
 * in the hello tells strangers from newcomers at the first word. Who repeats the hello of another
 * connection passes that test, and no more: only the proof lets in. Frames come after
 * that; between machines header and payload each carry a MAC under a key of this connection and a
 * count, so that none can be changed, repeated or left out. */
#ifndef WORLD_NET_WIRE_H
#define WORLD_NET_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_MAGIC UINT64_C(0x314e41594e4142f5)
#define WIRE_VERSION 4U
#define WIRE_KEY_BYTES 32
#define WIRE_NONCE_BYTES 32
#define WIRE_PROOF_BYTES 32
#define WIRE_HELLO_NONCE_BYTES 16
#define WIRE_TAG_BYTES 16
#define WIRE_MAC_BYTES 16
/* No message of a control plane is longer. */
#define WIRE_PAYLOAD_MAX (UINT64_C(1) << 32)

enum wire_purpose { WIRE_PURPOSE_JOIN = 1, WIRE_PURPOSE_PEER = 2 };

struct wire_hello {
    uint64_t magic;
    uint32_t version;
    uint32_t purpose;
    int32_t from, to; /* ranks of the job; a rendezvous is -1 */
    unsigned char nonce[WIRE_HELLO_NONCE_BYTES];
    unsigned char tag[WIRE_TAG_BYTES]; /* under the key, of all before it */
};

struct wire_challenge {
    uint64_t magic;
    uint64_t version;
    unsigned char nonce[WIRE_NONCE_BYTES];
    unsigned char proof[WIRE_PROOF_BYTES];
};

enum wire_kind {
    WIRE_WELCOME = 1, /* the handshake is complete */
    WIRE_REFUSED,     /* it is not, or a join is not: tag is the status, the payload says why */
    WIRE_JOIN,        /* a rank tells the rendezvous who and where it is */
    WIRE_TABLE,       /* the rendezvous tells a rank where all others are */
    WIRE_NEWS,        /* of the ranks that it waits for: a line for the log */
    WIRE_READY,       /* a rank has the table and all that it takes to be connected to */
    WIRE_GO,          /* all ranks have */
    WIRE_FAILED,     /* a rank cannot open the world: a join request, the status, and the message */
    WIRE_MESSAGE,    /* control_send */
    WIRE_COLLECTIVE, /* a step of a collective operation */
    WIRE_EXCHANGE,   /* a message of control_exchange */
    WIRE_ACK,        /* one exchange message was delivered */
    WIRE_DESCRIPTOR, /* with a descriptor attached */
    WIRE_LOST,       /* tag is the rank that is lost, flags the status, the payload says how */
    WIRE_ABORT,      /* tag is the rank, in the context's numbering, flags the status with which the
                      * world ends; the payload is its reason */
    WIRE_ASK,        /* whom does the receiver wait for? tag is the collective's number */
    WIRE_ANSWER,     /* to it: the same tag; the payload is a rank of the job, or -1 */
    WIRE_GIVE_UP,    /* tag is the number of a collective that all give up; payload: who is late */
    WIRE_GOODBYE     /* the last; tag is OK after a collective close, else the payload says why */
};

/* A flag of WIRE_ASK: the asker's deadline has passed. A receiver that has not entered gives up. */
enum { WIRE_HAS_DESCRIPTOR = 1, WIRE_DEADLINE_PASSED = 2 };

struct wire_frame {
    uint32_t kind;
    uint32_t flags;
    uint64_t context; /* which world */
    uint64_t tag;
    uint64_t bytes; /* of the payload that follows */
};

enum wire_role { WIRE_CONNECTS = 1, WIRE_ACCEPTS = 2 };

/* Fill in the hello's tag; compare it, in constant time. */
void wire_tag(const unsigned char key[WIRE_KEY_BYTES], struct wire_hello *hello);
bool wire_tag_is_right(const unsigned char key[WIRE_KEY_BYTES], const struct wire_hello *hello);

void wire_prove(const unsigned char key[WIRE_KEY_BYTES], enum wire_role role,
                const struct wire_hello *hello, const unsigned char nonce[WIRE_NONCE_BYTES],
                unsigned char proof[WIRE_PROOF_BYTES]);

/* In constant time. */
bool wire_proof_equal(const unsigned char a[WIRE_PROOF_BYTES],
                      const unsigned char b[WIRE_PROOF_BYTES]);

/* The key of frames sent by `role` on the connection that this handshake made. */
void wire_session_key(const unsigned char key[WIRE_KEY_BYTES], enum wire_role role,
                      const struct wire_hello *hello, const unsigned char nonce[WIRE_NONCE_BYTES],
                      unsigned char session_key[WIRE_KEY_BYTES]);

#endif
