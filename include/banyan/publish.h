/* Banyan: publish the versions of a model to engines, which fetch what changed while they serve.
 *
 * A trainer's world opens a publication of its layout. Engines' worlds subscribe to it by address
 * and secret, at any time, each with a layout of its own. Both sides are jobs that start and end
 * when they like. An engine that comes later gets the current version whole. One that comes back
 * gets what it missed.
 *
 *     trainer:  banyan_publication_open(world, layout, "10.0.0.5:4711", secret, NULL, &publication)
 *               banyan_publication_publish(publication, weights, version, NULL)   after every step
 *     engine:   banyan_subscription_open(world, layout, weights, address, secret, NULL, &mine)
 *               banyan_subscription_wait(mine, 0, timeout_ns, &version)       the first version
 *               banyan_subscription_commit(mine, &version)                    now it may serve
 *               banyan_subscription_commit(mine, &version)         between its steps: the newest
 *
 * Versions. A version is a number that the trainer chooses; it grows. Elements that did not change
 * since the version that an engine has do not travel. What changed arrives in the background, in a
 * staging area. A commit exchanges it with the elements of the tensors, on all ranks of the engine
 * or on none, and this is the only time that the engine has to pause.
 *
 * Exactness. Elements are compared as bits. NaNs and signed zeros arrive as they are.
 *
 * Fetches that last. A fetch pauses while the trainer publishes, and goes on with the elements of
 * the newer version. A second fetch then brings the changes since the first one began. More follow
 * until one ends without a pause. The version then counts as staged.
 *
 * Memory. A publication keeps a copy of the tensors, and for each kept version a bit for each
 * element; more while a fetch pauses. A subscription keeps what it has fetched and not committed.
 *
 * GPUs. Tensors are in host memory or in a CUDA device's, those of one rank in one memory; trainers
 * and engines need not agree. What is kept and staged lies beside the tensors. Changes are found,
 * written and exchanged there; what travels goes through host memory. Fetches in the background
 * use a stream of the least priority and an eighth of the threads that the device holds.
 *
 * Threads. Each publication and each subscription has threads of its own, which use worlds that
 * they split from the caller's. The caller may use its world at any time.
 *
 * Formats. Engines subscribe to the format that is published, which may be another one than the
 * trainer's (options.published): bf16 of f32 master weights, or MXFP8 of bf16. Between the two
 * sides types and value maps (BANYAN_PIECE_NEGATIVE_EXP) are equal.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_PUBLISH_H
#define BANYAN_PUBLISH_H

#include <banyan/connect.h>
#include <banyan/reshard.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- trainer ---- */

/* Whether the ranks of a publication compress what they send, by zstd, without loss. */
typedef enum banyan_publication_compression {
    /* Each rank measures, and compresses for an engine if its link is slower than the compressor.
     */
    BANYAN_COMPRESSION_AUTOMATIC = 0,
    BANYAN_COMPRESSION_OFF,
    BANYAN_COMPRESSION_ALWAYS
} banyan_publication_compression;

/* Options of banyan_publication_open. Those of rank 0 count, except where it says otherwise. */
typedef struct banyan_publication_options {
    size_t size; /* of this struct; BANYAN_PUBLICATION_OPTIONS_INIT sets it */
    /* Name of the publication, at most 127 bytes; NULL: "". A subscription must give the same. */
    const char *name;
    /* Number of versions before the current one from which a subscription can get the changes. One
     * that has an older version gets all elements. 0: 4. */
    uint32_t kept_versions;
    /* The longest time for which banyan_publication_publish waits for subscriptions that fetch.
     * Those that fetch all elements pause at the end of a wave; those that fetch changes do so when
     * half of the time is over. Engines that do not pause in time are dropped; they may come
     * back. 0: 5 s. */
    uint64_t patience_ns;
    /* Timeout of every wait in the worlds that are joined with engines; 0: the world's. An engine
     * that does not answer for so long is dropped. */
    uint64_t timeout_ns;
    /* For tensors on a CUDA device: keep the copy and the maps in pinned host memory instead of the
     * device's. Each rank's own. */
    bool keep_on_host;
    /* For tensors on a CUDA device: a CUstream (cudaStream_t). Tensors are compared after the work
     * that it has when a version is published; NULL: the default stream. Each rank's own. */
    void *stream;
    /* Publish another format: a layout of the same world, of which engines' layouts then take
     * pieces. Each rank's own; NULL: this rank publishes nothing, or, if it is NULL on all ranks,
     * the tensors are published as they are. A publish first moves the tensors to this layout, in
     * memory of the publication, with `transform`. Then it compares, so elements count as changed
     * if their published bits differ. The layout may be destroyed after the call. */
    const banyan_layout *published;
    /* The transform of this move (transform.h), equal on all ranks; NULL: types are equal. It
     * outlives the publication. Scales of banyan_mxfp8_create are tensors of the published layout:
     * those of the local tensor "w" are the local tensor "w_scale", in the shape of
     * banyan_mxfp8_scales_shape. Plain scales of a piece of the global tensor "g" are a piece of
     * "g_scale", whose shape and box are those of "g", divided by 32 along the dimension of the
     * blocks. The publication binds the scales, so no other one can use the transform. */
    banyan_transform *transform;
    const char *scales_suffix; /* NULL: "_scale"; each rank's own */
    /* Convert about this many bytes of the published tensors at once, a local tensor at least. Each
     * rank has memory for them besides the kept copy. Each rank's own; 0: 256 MiB. */
    uint64_t max_converted_bytes;
    banyan_publication_compression compression; /* each rank's own */
} banyan_publication_options;

#define BANYAN_PUBLICATION_OPTIONS_INIT BANYAN_INIT(banyan_publication_options)

/* A layout whose versions engines can fetch. */
typedef struct banyan_publication banyan_publication;

/* Open a publication of the tensors of `layout`, NULL for a rank that holds none, and listen for
 * subscriptions. The layout may be destroyed afterwards. `address`, `secret`: as in
 * banyan_world_listen. Subscriptions wait until the first version is published. Collective. The
 * caller owns the publication, and closes it before the world. Errors: those of banyan_world_listen
 * and of the layout. With `published`, also those of banyan_reshard_plan_create; NOT_FOUND (a
 * tensor has no scales); INVALID (scales are not those of the tensor, the transform has some
 * already, or does not convert a tensor that has some); UNSUPPORTED (a persistent buffer changes
 * its type). The messages name the tensors. */
BANYAN_API banyan_status banyan_publication_open(banyan_world *world, const banyan_layout *layout,
                                                 const char *address, const char *secret,
                                                 const banyan_publication_options *options,
                                                 banyan_publication **publication);

/* Return the address for subscriptions. It lives as long as the publication. Any thread. */
BANYAN_API const char *banyan_publication_address(const banyan_publication *publication);

/* Result of banyan_publication_publish at this rank. */
typedef struct banyan_publish_report {
    /* Numbers of the published tensors' elements at this rank. The first version changes all. */
    uint64_t elems, changed;
    uint64_t waited_ns;    /* for subscriptions that fetched the version before */
    uint64_t compared_ns;  /* to find what changed */
    uint64_t converted_ns; /* to make the published format; 0 without `published` */
} banyan_publish_report;

/* Publish the contents of `tensors` (NULL: this rank holds none), a set of the layout that
 * banyan_publication_open got, as `version`, which is larger than the one before. Return when the
 * tensors may be overwritten. Subscriptions fetch the version afterwards, from the publication's
 * copy. Those that wait for changes get this version, even if the next call comes soon: it waits
 * for them for half of the patience. Then they pause. `report` may be NULL. Collective. Errors:
 * INVALID (the version is not larger, or not equal on all ranks; the tensors are not the layout's;
 * a rank's stream is captured; the message names rank or tensor), NO_MEMORY, those of the world's
 * waits, and the error that has ended the publication's threads. With `published`, also those of
 * banyan_reshard_execute. */
BANYAN_API banyan_status banyan_publication_publish(banyan_publication *publication,
                                                    const banyan_tensors *tensors, uint64_t version,
                                                    banyan_publish_report *report);

/* State of a publication, as this rank sees it. */
typedef struct banyan_publication_status {
    uint64_t version;     /* the current one; 0: none yet */
    uint32_t subscribers; /* that are connected */
    uint32_t fetching;    /* that fetch a version now, and do not pause */
    uint64_t joined;      /* connections that were opened so far */
    uint64_t dropped;     /* of them ended by an error, such as the death of an engine */
    uint64_t sent_bytes;  /* by this rank so far, as they travel */
} banyan_publication_status;

/* Return the state. Any thread. */
BANYAN_API banyan_publication_status
banyan_publication_get_status(const banyan_publication *publication);

/* End the publication. Subscriptions keep what they have, and look for another publication at the
 * address. NULL is ignored. Collective. */
BANYAN_API void banyan_publication_close(banyan_publication *publication);

/* ---- engine ---- */

/* Options of banyan_subscription_open. Those of rank 0 count, except max_staging_bytes and
 * stream, which are each rank's own. */
typedef struct banyan_subscription_options {
    size_t size;      /* of this struct; BANYAN_SUBSCRIPTION_OPTIONS_INIT sets it */
    const char *name; /* of the publication; NULL: "" */
    /* The most bytes per second that each trainer rank sends to this engine, except for the first
     * version, which it sends as fast as it can; 0: no limit. */
    uint64_t bytes_per_s;
    /* The most bytes that a rank keeps staged. A version that needs more is not fetched, with an
     * error; the engine keeps what it has. 0: no limit. */
    uint64_t max_staging_bytes;
    /* Verify a checksum of every box that a version changes, as it will be after the commit. The
     * trainer and the engine each read the box once more for it, in the background. If one differs,
     * the error names it, and the version is fetched whole. A version is fetched when the one
     * before has been committed. */
    bool verify;
    /* Keep what a commit replaces, for banyan_subscription_rollback. */
    bool keep_previous;
    uint64_t timeout_ns; /* of every wait in the worlds joined with the trainer; 0: the world's */
    /* For tensors on a CUDA device: a CUstream (cudaStream_t), in which commits and rollbacks
     * exchange elements. They return when that has ended. NULL: the default stream. Each rank's
     * own. */
    void *stream;
    /* For tensors of banyan_tensors_alloc_swappable on all ranks that have some: keep a second copy
     * of them, bring it up to date in the background, and commit by exchanging the memory behind
     * the addresses. Addresses stay, and so do graphs. The pause is that of the remapping, and does
     * not depend on how much has changed. Nothing may use the tensors during a commit, in any
     * stream. A version is fetched when the one before has been committed. A rollback is another
     * exchange until a newer version has come; then it is the exchange of single elements. */
    bool shadow;
} banyan_subscription_options;

#define BANYAN_SUBSCRIPTION_OPTIONS_INIT BANYAN_INIT(banyan_subscription_options)

/* An engine's tensors, which follow the versions of a publication. */
typedef struct banyan_subscription banyan_subscription;

/* Subscribe to the publication at `address`, for `tensors`, a set of `layout` (both NULL: this rank
 * holds none). The layout may be destroyed afterwards; the set outlives the subscription, which
 * changes its elements only in the first fetch, in commits and in rollbacks. The set is TORN until
 * the first commit. Ranks that the layout names are those of `world`. Return at once: a thread
 * connects, fetches every new version, and connects again when the trainer has ended. Collective.
 * The caller owns the subscription, and closes it before the world. Errors: INVALID (the tensors
 * are not the layout's, an address or a secret is malformed, a stream for tensors on the host),
 * UNSUPPORTED (tensors in several memories; no CUDA; a shadow for tensors of another allocation),
 * NO_MEMORY, SYSTEM. */
BANYAN_API banyan_status banyan_subscription_open(banyan_world *world, const banyan_layout *layout,
                                                  banyan_tensors *tensors, const char *address,
                                                  const char *secret,
                                                  const banyan_subscription_options *options,
                                                  banyan_subscription **subscription);

/* Return the newest version that this rank has staged or committed; 0 if there is none. Other ranks
 * of the engine may be a moment behind. Any thread. */
BANYAN_API uint64_t banyan_subscription_staged(const banyan_subscription *subscription);

/* Wait at most `timeout_ns` until this rank has staged a version above `above`. Local; any thread.
 * Errors: TIMEOUT (the message has the last error of the subscription's thread, if any), ABORTED
 * (the function of banyan_interrupt_set ends the wait). */
BANYAN_API banyan_status banyan_subscription_wait(banyan_subscription *subscription, uint64_t above,
                                                  uint64_t timeout_ns, uint64_t *version);

/* Make the newest version that all ranks have staged current, and set `*version` to it; to the
 * current one (0: none) if there is nothing newer. Nothing may use the tensors meanwhile. They are
 * TORN during the call and WHOLE with the version afterwards. Collective over the world. Errors:
 * those of the world's waits, and INVALID (a rank's stream is captured). The tensors then keep the
 * version that they have, as a whole. SYSTEM (a GPU fails in the exchange): the tensors of this
 * rank stay TORN. */
BANYAN_API banyan_status banyan_subscription_commit(banyan_subscription *subscription,
                                                    uint64_t *version);

/* Return to the version before the last commit, and set `*version` to it. Later commits skip the
 * versions that were taken back, until a newer one is staged. Only with keep_previous, and once for
 * each commit. Collective. Errors: NOT_FOUND (nothing to return to), and those of
 * banyan_subscription_commit. */
BANYAN_API banyan_status banyan_subscription_rollback(banyan_subscription *subscription,
                                                      uint64_t *version);

/* State of a subscription, as this rank sees it. */
typedef struct banyan_subscription_status {
    uint64_t version;        /* the current one; 0: none */
    uint64_t staged;         /* the newest one that is staged; 0: none */
    bool connected;          /* to a publication */
    uint64_t staged_bytes;   /* that are kept for the next commit */
    uint64_t received_bytes; /* by this rank so far, as they travel */
    uint64_t whole_fetches;  /* versions that came whole */
    uint64_t delta_fetches;  /* versions that came as changes */
    uint64_t paused_fetches; /* of both: versions that came by several fetches, with pauses */
    uint64_t fetch_ns;       /* that the last of them took */
} banyan_subscription_status;

/* Return the state. Any thread. */
BANYAN_API banyan_subscription_status
banyan_subscription_get_status(const banyan_subscription *subscription);

/* Return BANYAN_OK if the subscription is connected or looks for its publication, otherwise the
 * last error of its thread: layouts that do not fit, a staging area that is full, a wrong secret.
 * The thread tries again, at intervals of 1 s to 16 s. Any thread. */
BANYAN_API banyan_status banyan_subscription_check(const banyan_subscription *subscription);

/* End the subscription. The tensors keep the version that they have. NULL is ignored. Collective.
 */
BANYAN_API void banyan_subscription_close(banyan_subscription *subscription);

/* ---- comparing ---- */

/* Size of a tensor's changes. */
typedef struct banyan_delta_size {
    uint64_t elems;   /* of the tensor */
    uint64_t changed; /* of them, whose bits differ */
    uint64_t bytes;   /* that travel to an engine's rank that holds the whole tensor */
} banyan_delta_size;

/* Compare two tensors of one type and shape in host memory, with any strides and alignment, and
 * compute what a publication sends if `after` follows `before`. The call needs a few megabytes of
 * memory for tensors of any size. Local; any thread. Errors: MISMATCH (types or shapes differ),
 * INVALID (a tensor is malformed, or not in host memory), NO_MEMORY. */
BANYAN_API banyan_status banyan_delta_measure(const DLTensor *before, const DLTensor *after,
                                              banyan_delta_size *size);

#ifdef __cplusplus
}
#endif
#endif
