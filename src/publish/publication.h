/* A publication's state at one rank, for its threads. */
#ifndef PUBLISH_PUBLICATION_H
#define PUBLISH_PUBLICATION_H

#include <pthread.h>
#include <stdatomic.h>

#include "publish/conversion.h"
#include "publish/session.h"

/* Changes from a version to a later one. */
struct kept_version {
    uint64_t since, version;
    uint64_t **maps; /* one for each local tensor (delta/changes.h) */
    void *memory;    /* that all of them lie in */
    uint64_t words;  /* of it */
};

/* An engine that is connected. */
struct subscriber {
    banyan_publication *publication;
    pthread_t thread;
    banyan_world *joined;
    uint64_t number; /* from 1 on, equal on all ranks */
    bool reads;      /* this rank is one of publication->readers */
    /* At rank 0: what it has, while it waits for a version; NULL: it does not wait. */
    const struct session_report *waits;
    bool fetching;   /* at rank 0: from the announcement on, but not in a pause */
    bool is_whole;   /* at rank 0: the fetch is of all elements */
    bool has_paused; /* in this fetch: another one has to follow */
    /* At rank 0: maps of later versions than `needs_above` must be kept for it. Those up to
     * `reads_up_to` are in use, and must not change. */
    uint64_t needs_above, reads_up_to;
    bool ended;
};

/* A subscriber that needs no maps. */
#define NEEDS_NO_MAPS UINT64_MAX

struct banyan_publication {
    banyan_world *world;   /* the caller's, for its calls */
    banyan_world *threads; /* for the thread that accepts */
    banyan_listener *listener;
    banyan_layout *layout;         /* that is published */
    struct conversion *conversion; /* NULL: the tensors are published as they are */
    /* From the first version on: the memory of the tensors, and the current version, which is
     * published to or read by fetches. It lies on `kept_on`: the device, or the host. */
    struct publish_device device;
    const struct publish_device *kept_on;
    banyan_tensors *kept;
    void *kept_memory; /* of the host, pinned; NULL: the set has its own */
    bool keep_on_host;
    void *stream;
    uint64_t id;
    uint32_t kept_versions;
    uint64_t patience_ns;
    banyan_publication_compression compression;
    pthread_t accepting;
    bool has_thread;
    _Atomic uint64_t sent_bytes;

    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t changed;
    bool closing;
    bool open;      /* at rank 0: fetches of `version` may begin */
    bool hurries;   /* at rank 0: a publish has waited for half of its patience */
    bool changes;   /* `kept` and the maps change, and must not be read */
    bool on_device; /* at rank 0: some rank's tensors are kept on a device */
    uint64_t version;
    uint32_t fetching;                  /* at rank 0: announced fetches that have not ended */
    uint32_t readers;                   /* of `kept` at this rank */
    ARRAY(struct kept_version) history; /* the oldest first */
    ARRAY(struct subscriber *) subscribers;
    uint64_t joined, dropped;
    error_kept failed; /* no version can be published any more */
};

/* At rank 0, with the lock held: let the subscriptions that wait for the current version fetch it.
 * A subscription gets it even if the next version is published soon, since publishing waits for it.
 */
void publication_begin_fetches(banyan_publication *publication);

/* Accept subscriptions until the publication closes. A thread's function; the argument is the
 * publication. */
void *publication_accept(void *publication);

#endif
