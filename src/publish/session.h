/* Protocol between a publication and a subscription, in their joined world. Every rank of it takes
 * the same steps:
 *
 *     hello     from the subscription: how it wants to be served
 *     welcome   from the publication
 *     then again and again:
 *     state     from the subscription: what it has, and whether it takes another version
 *     turn      from the publication: wait, fetch a version, or end
 *
 * A fetch that takes long lets the trainer publish: it pauses between two of its waves, and goes on
 * with the elements of the newer version. What it brings may then have elements of several
 * versions, none of them older than the version at its beginning. So another fetch follows it, of
 * the changes since that version, until one ends without a pause. Together they are one version.
 */
#ifndef PUBLISH_SESSION_H
#define PUBLISH_SESSION_H

#include <banyan/publish.h>

#include "core/containers.h"
#include "publish/fetch/compression.h"

/* The longest time between two turns. */
#define SESSION_BEAT_NS UINT64_C(500000000)

struct session_hello {
    uint64_t bytes_per_s; /* that each rank of the publication may send; 0: no limit */
    uint64_t verify;      /* not 0: checksums of boxes */
};

struct session_welcome {
    uint64_t publication; /* a random number */
};

struct session_report {
    uint32_t takes;               /* a version, if there is a newer one */
    uint32_t ends;                /* the session */
    uint64_t number, base_number; /* of the version to come, and of the last one (staged.h) */
    uint64_t publication, base;   /* the last one's publication and version; 0: none */
    uint64_t above;               /* versions up to this one are not wanted */
    uint32_t in_place, whole;     /* into the tensors, which hold nothing; all elements */
    uint32_t on_device;           /* tensors of some rank lie in a device's memory */
    uint32_t goes_on;             /* it has what fetches with pauses brought, from `base` on */
    uint32_t in_waves;            /* a fetch by a reshard, which cannot pause, did not end */
};

/* In a pause, TURN_FETCH means that the fetch goes on. */
enum session_turn_kind { TURN_WAIT, TURN_FETCH, TURN_END };

struct session_turn {
    uint32_t kind;  /* enum session_turn_kind */
    uint32_t whole; /* all elements, not the changes since the subscription's version */
    /* A version in place comes in waves, as others do, since a rank of either side has tensors in a
     * device's memory, or all are compressed, or it has to pause; otherwise by a reshard. */
    uint32_t in_waves;
    uint64_t version;
};

/* State of both sides of one joined world. */
struct session {
    banyan_world *joined;
    banyan_reshard_plan *plan;
    banyan_copy_service *service;
    struct session_hello hello;
    struct session_welcome welcome;
    struct compression compression;
    uint64_t may_send_ns; /* with a limit of bytes per second: when the next bytes may go */
};

/* Exchange hello and welcome, of which the caller has set its own, and plan. The layouts are NULL
 * for a side that this rank is not on. Collective. Errors: those of the plan; UNSUPPORTED (types
 * differ, or a value map). */
banyan_status session_open(struct session *session, const banyan_layout *source,
                           const banyan_layout *destination);
void session_close(struct session *session);

/* At a rank of the subscription: wait until a fetch goes on. Collective. Errors: ABORTED (the
 * publication ends), those of the world's waits. */
banyan_status session_pause(struct session *session);
/* The error of a pause in which the publication ends. */
banyan_status session_fail_pause(uint64_t version);

#endif
