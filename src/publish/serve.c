#include <inttypes.h>
#include <stdlib.h>

#include "core/deadline.h"
#include "core/log.h"
#include "core/threads/thread.h"
#include "publish/background.h"
#include "publish/fetch/fetch.h"
#include "publish/publication.h"
#include "world/control.h"

/* The time for which one look for new subscriptions waits. */
#define ACCEPT_NS (200 * NS_PER_MS)

/* ---- one subscription ---- */

/* Let this rank's thread of a subscription read `kept` and the maps of `version`. False: they
 * change, or are those of another version, since the joined world has ended on rank 0. */
static bool begin_to_read(struct subscriber *subscriber, uint64_t version)
{
    banyan_publication *publication = subscriber->publication;
    pthread_mutex_lock(&publication->lock);
    subscriber->reads = !publication->changes && publication->version == version;
    publication->readers += subscriber->reads;
    pthread_mutex_unlock(&publication->lock);
    return subscriber->reads;
}

static void end_reading(struct subscriber *subscriber)
{
    banyan_publication *publication = subscriber->publication;
    pthread_mutex_lock(&publication->lock);
    publication->readers -= subscriber->reads;
    subscriber->reads = false;
    pthread_cond_broadcast(&publication->changed);
    pthread_mutex_unlock(&publication->lock);
}

/* Read the version, or end the joined world: it has ended on rank 0. */
static banyan_status enter_or_fail(struct subscriber *subscriber, uint64_t version)
{
    if (begin_to_read(subscriber, version))
        return BANYAN_OK;
    return control_fail(subscriber->joined,
                        error_set(BANYAN_ERR_ABORTED,
                                  "version %" PRIu64 " is not the current one any more", version));
}

/* Begin to fetch the current version if the subscription wants it. At rank 0, with the lock held.
 */
static void begin_fetch(struct subscriber *subscriber)
{
    banyan_publication *publication = subscriber->publication;
    const struct session_report *has = subscriber->waits;
    if (!has || subscriber->fetching || !publication->open || publication->closing || has->ends ||
        !has->takes || publication->version <= has->above ||
        (has->publication == publication->id && publication->version <= has->base))
        return;
    subscriber->fetching = true;
    publication->fetching++;
}

void publication_begin_fetches(banyan_publication *publication)
{
    for (size_t i = 0; i < publication->subscribers.count; i++)
        begin_fetch(publication->subscribers.data[i]);
}

/* Choose what comes next: at rank 0, in at most one beat, and at once for a subscription that takes
 * nothing, which has waited already. A chosen fetch has begun. */
static struct session_turn choose_turn(struct subscriber *subscriber,
                                       const struct session_report *state)
{
    banyan_publication *publication = subscriber->publication;
    struct session_turn turn = {.kind = TURN_WAIT};
    uint64_t until_ns = deadline_after(SESSION_BEAT_NS);
    pthread_mutex_lock(&publication->lock);
    subscriber->waits = state;
    if (!state->goes_on)
        subscriber->needs_above = NEEDS_NO_MAPS;
    for (begin_fetch(subscriber); turn.kind == TURN_WAIT;) {
        if (subscriber->fetching)
            turn.kind = TURN_FETCH;
        else if (publication->closing || state->ends)
            turn.kind = TURN_END;
        else if (state->takes && deadline_left_ns(until_ns) > 0)
            background_wait(&publication->changed, &publication->lock, until_ns);
        else
            break;
    }
    subscriber->waits = NULL;
    if (turn.kind == TURN_FETCH) {
        bool has_base = state->publication == publication->id && state->base != 0 &&
                        state->base >= publication->history.data[0].since;
        turn.version = publication->version;
        turn.whole = !has_base || state->whole;
        turn.in_waves = state->on_device || publication->on_device || state->in_waves ||
                        publication->compression == BANYAN_COMPRESSION_ALWAYS;
        subscriber->is_whole = turn.whole;
        subscriber->needs_above = turn.whole ? turn.version : state->base;
        subscriber->reads_up_to = turn.whole ? 0 : turn.version;
    }
    pthread_mutex_unlock(&publication->lock);
    return turn;
}

/* At rank 0, with the lock held: the fetch does not read any more, on any rank. */
static void stop_fetching(struct subscriber *subscriber)
{
    banyan_publication *publication = subscriber->publication;
    publication->fetching -= subscriber->fetching;
    subscriber->fetching = false;
    pthread_cond_broadcast(&publication->changed);
}

/* At rank 0: a fetch of `version` has ended on all ranks, or the joined world has. If it has
 * paused, another one needs the changes since then. */
static void end_fetch(struct subscriber *subscriber, uint64_t version)
{
    pthread_mutex_lock(&subscriber->publication->lock);
    stop_fetching(subscriber);
    subscriber->needs_above = subscriber->has_paused ? version : NEEDS_NO_MAPS;
    subscriber->reads_up_to = 0;
    pthread_mutex_unlock(&subscriber->publication->lock);
}

/* ---- pauses ---- */

/* A fetch of all elements, which takes long, does not keep the trainer waiting. */
static bool has_to_pause(void *context)
{
    struct subscriber *subscriber = context;
    banyan_publication *publication = subscriber->publication;
    if (banyan_world_rank(publication->world) != 0)
        return false;
    pthread_mutex_lock(&publication->lock);
    bool is_asked = !publication->open && (publication->hurries || subscriber->is_whole);
    pthread_mutex_unlock(&publication->lock);
    return is_asked;
}

/* With the lock held: no version follows. */
static bool publication_is_over(const banyan_publication *publication)
{
    return publication->closing || publication->failed.status != BANYAN_OK;
}

/* At rank 0: decide whether the fetch goes on, in at most one beat. */
static struct session_turn choose_to_go_on(struct subscriber *subscriber)
{
    banyan_publication *publication = subscriber->publication;
    struct session_turn turn = {.kind = TURN_WAIT};
    uint64_t until_ns = deadline_after(SESSION_BEAT_NS);
    pthread_mutex_lock(&publication->lock);
    while (!publication->open && !publication_is_over(publication) &&
           deadline_left_ns(until_ns) > 0)
        background_wait(&publication->changed, &publication->lock, until_ns);
    turn.version = publication->version;
    if (publication_is_over(publication)) {
        turn.kind = TURN_END;
    } else if (publication->open) {
        turn.kind = TURN_FETCH;
        subscriber->fetching = true;
        publication->fetching++;
    }
    pthread_mutex_unlock(&publication->lock);
    return turn;
}

/* Let a version be published. */
static banyan_status pause_fetch(void *context)
{
    struct subscriber *subscriber = context;
    banyan_publication *publication = subscriber->publication;
    struct session_turn turn = {.kind = TURN_WAIT};
    end_reading(subscriber);
    pthread_mutex_lock(&publication->lock);
    stop_fetching(subscriber);
    subscriber->has_paused = true;
    pthread_mutex_unlock(&publication->lock);
    while (turn.kind == TURN_WAIT) {
        if (banyan_world_rank(publication->world) == 0)
            turn = choose_to_go_on(subscriber);
        RETURN_IF_FAILED(banyan_world_broadcast(subscriber->joined, &turn, sizeof turn, 0));
    }
    if (turn.kind == TURN_END)
        return session_fail_pause(turn.version);
    return enter_or_fail(subscriber, turn.version);
}

/* Set the maps of each tensor since `base`; free `*maps`, and `**maps`. With the lock held. */
static banyan_status collect_maps(banyan_publication *publication, uint64_t base,
                                  const uint64_t *const *const **maps, size_t *map_count)
{
    size_t tensors = banyan_tensors_count(publication->kept), first = 0;
    size_t count = publication->history.count;
    while (first < count && publication->history.data[first].version <= base)
        first++;
    *map_count = count - first;
    const uint64_t ***made = alloc_zeroed(tensors, sizeof *made, "the changes since a version");
    const uint64_t **all =
        alloc_zeroed(tensors * *map_count, sizeof *all, "the changes since a version");
    if (!made || !all) {
        free(made);
        free(all);
        return BANYAN_ERR_NO_MEMORY;
    }
    for (size_t t = 0; t < tensors; t++) {
        made[t] = all + t * *map_count;
        for (size_t i = first; i < count; i++)
            made[t][i - first] = publication->history.data[i].maps[t];
    }
    if (tensors == 0)
        free(all);
    *maps = (const uint64_t *const *const *)made;
    return BANYAN_OK;
}

static banyan_status send_version(struct subscriber *subscriber, struct session *session,
                                  const struct session_report *state,
                                  const struct session_turn *turn)
{
    banyan_publication *publication = subscriber->publication;
    struct fetch_source source = {.layout = publication->layout,
                                  .kept = publication->kept,
                                  .device = publication->kept_on,
                                  .whole = turn->whole,
                                  .goes_on = state->goes_on != 0,
                                  .bytes_per_s = state->in_place ? 0 : session->hello.bytes_per_s,
                                  .has_to_pause = has_to_pause,
                                  .pause = pause_fetch,
                                  .context = subscriber};
    banyan_status mine = BANYAN_OK;
    if (state->in_place && !turn->in_waves) {
        banyan_reshard_plan_bytes bytes = banyan_reshard_plan_count_bytes(session->plan);
        publication->sent_bytes += bytes.network_sent + bytes.inside_sent;
        return banyan_reshard_execute(session->plan, publication->kept, NULL, session->service,
                                      session->joined, NULL, NULL);
    }
    pthread_mutex_lock(&publication->lock);
    if (!turn->whole)
        mine = collect_maps(publication, state->base, &source.maps, &source.map_count);
    pthread_mutex_unlock(&publication->lock);
    banyan_status status = control_agree(session->joined, mine);
    if (status == BANYAN_OK)
        status = fetch_send(session, &source, &publication->sent_bytes);
    error_kept kept = error_keep(status);
    if (source.maps && banyan_tensors_count(publication->kept) > 0)
        free((void *)source.maps[0]);
    free((void *)source.maps);
    return error_again(&kept);
}

/* Take the turns of a session until it ends. */
static banyan_status serve_turns(struct subscriber *subscriber, struct session *session)
{
    banyan_world *joined = session->joined;
    int first = banyan_world_listening_size(joined);
    for (;;) {
        struct session_report state = {0};
        struct session_turn turn = {0};
        RETURN_IF_FAILED(banyan_world_broadcast(joined, &state, sizeof state, first));
        if (banyan_world_rank(joined) == 0)
            turn = choose_turn(subscriber, &state);
        RETURN_IF_FAILED(banyan_world_broadcast(joined, &turn, sizeof turn, 0));
        if (turn.kind == TURN_END)
            return BANYAN_OK;
        if (turn.kind != TURN_FETCH)
            continue;
        uint64_t began_ns = time_now_ns();
        subscriber->has_paused = false;
        RETURN_IF_FAILED(enter_or_fail(subscriber, turn.version));
        banyan_status status = send_version(subscriber, session, &state, &turn);
        error_kept kept = error_keep(status);
        end_reading(subscriber);
        end_fetch(subscriber, turn.version);
        RETURN_IF_FAILED(control_check(joined));
        /* The subscription has the error, too, and its next state says what it wants now. */
        if (status != BANYAN_OK)
            log_warn("subscription %" PRIu64 " does not take version %" PRIu64 ": %s",
                     subscriber->number, turn.version, kept.message);
        else
            log_info("subscription %" PRIu64 " has %sversion %" PRIu64 "%s, after %.3f s",
                     subscriber->number, subscriber->has_paused ? "fetched, with pauses, " : "",
                     turn.version, turn.whole ? ", whole" : "",
                     (double)(time_now_ns() - began_ns) / 1e9);
    }
}

static void *serve(void *argument)
{
    struct subscriber *subscriber = argument;
    banyan_publication *publication = subscriber->publication;
    struct session session = {.joined = subscriber->joined,
                              .welcome = {.publication = publication->id},
                              .compression = {.choice = publication->compression}};
    background_lower_priority();
    banyan_status status = session_open(&session, publication->layout, NULL);
    if (status == BANYAN_OK)
        status = serve_turns(subscriber, &session);
    error_kept kept = error_keep(status);
    pthread_mutex_lock(&publication->lock);
    stop_fetching(subscriber);
    subscriber->needs_above = NEEDS_NO_MAPS;
    subscriber->joined = NULL;
    publication->dropped += status != BANYAN_OK;
    pthread_mutex_unlock(&publication->lock);
    session_close(&session);
    if (status == BANYAN_OK)
        log_info("subscription %" PRIu64 " has ended", subscriber->number);
    else
        log_warn("subscription %" PRIu64 " is dropped: %s", subscriber->number, kept.message);
    pthread_mutex_lock(&publication->lock);
    subscriber->ended = true;
    pthread_cond_broadcast(&publication->changed);
    pthread_mutex_unlock(&publication->lock);
    return NULL;
}

/* ---- all subscriptions ---- */

/* Free the subscriptions that have ended; `all`: wait until all have. */
static void reap(banyan_publication *publication, bool all)
{
    size_t kept = 0;
    pthread_mutex_lock(&publication->lock);
    for (size_t i = 0; i < publication->subscribers.count; i++) {
        struct subscriber *one = publication->subscribers.data[i];
        while (all && !one->ended)
            pthread_cond_wait(&publication->changed, &publication->lock);
        if (!one->ended) {
            publication->subscribers.data[kept++] = one;
            continue;
        }
        pthread_mutex_unlock(&publication->lock);
        pthread_join(one->thread, NULL);
        free(one);
        pthread_mutex_lock(&publication->lock);
    }
    publication->subscribers.count = kept;
    pthread_mutex_unlock(&publication->lock);
}

/* Serve a world that has connected. A rank that cannot ends the joined world. */
static void begin_to_serve(banyan_publication *publication, banyan_world *joined)
{
    struct subscriber *one = calloc(1, sizeof *one);
    banyan_status status = one ? BANYAN_OK : error_no_memory(sizeof *one, "a subscription");
    pthread_mutex_lock(&publication->lock);
    uint64_t number = ++publication->joined;
    if (status == BANYAN_OK && !array_reserve(&publication->subscribers, 1))
        status = BANYAN_ERR_NO_MEMORY;
    if (status == BANYAN_OK) {
        *one = (struct subscriber){.publication = publication,
                                   .joined = joined,
                                   .number = number,
                                   .needs_above = NEEDS_NO_MAPS};
        status = thread_start(&one->thread, serve, one, false);
    }
    if (status == BANYAN_OK)
        publication->subscribers.data[publication->subscribers.count++] = one;
    else
        publication->dropped++;
    pthread_mutex_unlock(&publication->lock);
    if (status == BANYAN_OK)
        return;
    log_warn("subscription %" PRIu64 " cannot be served: %s", number, banyan_last_error());
    (void)control_fail(joined, status);
    (void)banyan_world_close(joined);
    free(one);
}

static banyan_status accept_until_closed(banyan_publication *publication)
{
    for (;;) {
        banyan_world *joined = NULL;
        uint32_t closing;
        RETURN_IF_FAILED(banyan_listener_accept(publication->listener, ACCEPT_NS, &joined));
        if (joined)
            begin_to_serve(publication, joined);
        pthread_mutex_lock(&publication->lock);
        closing = publication->closing;
        pthread_mutex_unlock(&publication->lock);
        RETURN_IF_FAILED(banyan_world_broadcast(publication->threads, &closing, sizeof closing, 0));
        if (closing)
            return BANYAN_OK;
        reap(publication, false);
    }
}

void *publication_accept(void *argument)
{
    banyan_publication *publication = argument;
    banyan_status status = accept_until_closed(publication);
    error_kept kept = error_keep(status);
    pthread_mutex_lock(&publication->lock);
    if (status != BANYAN_OK && publication->failed.status == BANYAN_OK)
        publication->failed = kept;
    publication->closing = true;
    for (size_t i = 0; i < publication->subscribers.count && status != BANYAN_OK; i++) {
        if (publication->subscribers.data[i]->joined)
            (void)banyan_world_abort(publication->subscribers.data[i]->joined, kept.message);
    }
    pthread_cond_broadcast(&publication->changed);
    pthread_mutex_unlock(&publication->lock);
    reap(publication, true);
    return NULL;
}
