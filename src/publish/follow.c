#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/deadline.h"
#include "core/log.h"
#include "publish/background.h"
#include "publish/fetch/fetch.h"
#include "publish/subscription.h"
#include "reshard/run/tensors.h"
#include "world/connect/connect.h"
#include "world/control.h"

/* The longest time of one attempt to connect, and the times between two. */
#define CONNECT_NS (30 * NS_PER_S)
#define PAUSE_NS (NS_PER_S)
#define LONGEST_PAUSE_NS (16 * NS_PER_S)

static void keep_error(banyan_subscription *subscription, banyan_status status)
{
    error_kept kept = error_keep(status);
    pthread_mutex_lock(&subscription->lock);
    bool is_new = strcmp(kept.message, subscription->failed.message) != 0;
    subscription->failed = kept;
    pthread_mutex_unlock(&subscription->lock);
    if (status != BANYAN_OK && is_new)
        log_warn("the subscription to %s: %s", subscription->address, kept.message);
}

/* True if a version may come while others wait for a commit: not if it changes the shadow, nor if
 * its boxes are verified. */
static bool takes_early(const banyan_subscription *subscription)
{
    return !subscription->options.verify && !subscription->options.shadow;
}

/* Wait until the subscription takes a version, for one beat at most. */
static void wait_for_commit(banyan_subscription *subscription)
{
    uint64_t until_ns = deadline_after(SESSION_BEAT_NS);
    pthread_mutex_lock(&subscription->lock);
    while (!takes_early(subscription) && subscription->staged.first && !subscription->closing &&
           deadline_left_ns(until_ns) > 0)
        background_wait(&subscription->changed, &subscription->lock, until_ns);
    pthread_mutex_unlock(&subscription->lock);
}

/* Free what commits have left. */
static void free_replaced(banyan_subscription *subscription)
{
    pthread_mutex_lock(&subscription->lock);
    struct staged_list replaced = subscription->replaced;
    subscription->replaced = (struct staged_list){0};
    pthread_mutex_unlock(&subscription->lock);
    staged_list_free(&replaced);
}

/* A session, and the version that it fetches. */
struct following_session {
    struct session session;
    bool whole; /* all elements are wanted, since changes did not fit */
    /* The fetches of the version so far, oldest first. None counts before one ends without a pause.
     * The next one builds on the version of the last. */
    struct staged_list pending;
    uint64_t fetch_ns;    /* of these fetches */
    uint64_t base_number; /* of the version that the first of them builds on */
};

/* Fill in what this engine has: rank 0's counts. */
static struct session_report subscription_report(banyan_subscription *subscription,
                                                 const struct following_session *following)
{
    struct session_report state = {.whole = following->whole};
    uint64_t publication = following->session.welcome.publication;
    const struct staged *last, *pending = following->pending.last;
    pthread_mutex_lock(&subscription->lock);
    last = subscription->staged.last;
    state.ends = subscription->closing;
    state.base_number = subscription_last_number(subscription);
    state.number = ++subscription->next_number;
    state.publication = last ? last->publication : subscription->publication;
    state.base = last ? last->version : subscription->version;
    state.above = subscription->above_publication == publication ? subscription->above : 0;
    state.in_place = state.base_number == 0;
    state.on_device = subscription->on_device;
    state.takes = takes_early(subscription) || !last;
    state.in_waves = subscription->needs_waves;
    pthread_mutex_unlock(&subscription->lock);
    if (pending) {
        state.goes_on = state.takes = true;
        state.publication = pending->publication;
        state.base = pending->version;
    }
    return state;
}

/* Let nothing change the tensors, and wait until the versions before are committed. */
static bool begin_verify(void *context)
{
    banyan_subscription *subscription = context;
    bool is_of_use;
    pthread_mutex_lock(&subscription->lock);
    while (subscription->staged.first && !subscription->closing)
        pthread_cond_wait(&subscription->changed, &subscription->lock);
    pthread_mutex_unlock(&subscription->lock);
    pthread_mutex_lock(&subscription->contents);
    pthread_mutex_lock(&subscription->lock);
    is_of_use = !subscription->closing && !subscription->staged.first;
    pthread_mutex_unlock(&subscription->lock);
    if (!is_of_use)
        pthread_mutex_unlock(&subscription->contents);
    return is_of_use;
}

static void end_verify(void *context)
{
    banyan_subscription *subscription = context;
    pthread_mutex_unlock(&subscription->contents);
}

static banyan_status receive_in_place(banyan_subscription *subscription, struct session *session)
{
    banyan_status status = banyan_reshard_execute(session->plan, NULL, subscription->tensors,
                                                  session->service, session->joined, NULL, NULL);
    if (subscription->tensors)
        tensors_set_torn(subscription->tensors); /* until all ranks commit it */
    return status;
}

/* Make the shadow hold a version, whose streams then have the elements of the one before. */
static banyan_status write_shadow(banyan_subscription *subscription,
                                  const struct staged_list *version)
{
    subscription->shadow_number = 0;
    RETURN_IF_FAILED(tensors_copy_to_shadow(subscription->tensors));
    for (const struct staged *one = version->first; one; one = one->next)
        RETURN_IF_FAILED(staged_swap(one, subscription->shadow_shift, false, true));
    subscription->shadow_number = version->last->number;
    return BANYAN_OK;
}

/* Write a version to the shadows of all ranks of the engine, unless it lies in the tensors, or a
 * rollback has taken back what it builds on. All ranks return the same error. */
static banyan_status prepare_commit(banyan_subscription *subscription,
                                    const struct staged_list *version, uint64_t base_number)
{
    banyan_status status = BANYAN_OK;
    if (!subscription->options.shadow || version->last->in_place)
        return BANYAN_OK;
    pthread_mutex_lock(&subscription->contents);
    pthread_mutex_lock(&subscription->lock);
    bool is_of_use = subscription_last_number(subscription) == base_number;
    pthread_mutex_unlock(&subscription->lock);
    if (is_of_use && subscription->tensors)
        status = write_shadow(subscription, version);
    pthread_mutex_unlock(&subscription->contents);
    return control_agree(subscription->threads, status);
}

/* Let the versions that one fetch or several have brought wait for a commit. */
static void stage_version(banyan_subscription *subscription, struct following_session *following)
{
    struct staged_list *version = &following->pending;
    pthread_mutex_lock(&subscription->lock);
    /* A rollback in the meantime has taken back what the version builds on. */
    if (subscription_last_number(subscription) == following->base_number) {
        subscription->needs_waves = false;
        subscription->next_number = version->last->number;
        subscription->status.whole_fetches += version->first->whole;
        subscription->status.delta_fetches += !version->first->whole;
        subscription->status.paused_fetches += version->first != version->last;
        subscription->status.fetch_ns = following->fetch_ns;
        subscription->failed = (error_kept){0};
        staged_list_move(&subscription->staged, version);
    }
    pthread_mutex_unlock(&subscription->lock);
}

static banyan_status receive_into(banyan_subscription *subscription,
                                  struct following_session *following,
                                  const struct session_turn *turn, struct staged *staged,
                                  bool *paused)
{
    struct fetch_target target = {.layout = subscription->layout,
                                  .tensors = subscription->tensors,
                                  .layers = subscription->layers,
                                  .max_bytes = UINT64_MAX,
                                  .begin_verify = begin_verify,
                                  .end_verify = end_verify,
                                  .context = subscription,
                                  .staged = staged,
                                  .before = &following->pending};
    if (staged->in_place && !turn->in_waves)
        return receive_in_place(subscription, &following->session);
    uint64_t bound = subscription->options.max_staging_bytes;
    pthread_mutex_lock(&subscription->lock);
    uint64_t kept = subscription->staged.bytes + following->pending.bytes;
    pthread_mutex_unlock(&subscription->lock);
    if (bound > 0 && !staged->in_place)
        target.max_bytes = bound > kept ? bound - kept : 0;
    return fetch_receive(&following->session, &target, turn->whole, paused);
}

/* Receive a version. All ranks of the joined world return the same error. */
static banyan_status receive_version(banyan_subscription *subscription,
                                     struct following_session *following,
                                     const struct session_report *state,
                                     const struct session_turn *turn)
{
    struct session *session = &following->session;
    struct staged *staged = alloc_zeroed(1, sizeof *staged, "a version");
    bool by_reshard = state->in_place && !turn->in_waves, paused = false;
    banyan_status status = staged ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    if (!by_reshard)
        status = control_agree(session->joined, status);
    if (status != BANYAN_OK) {
        free(staged);
        return status;
    }
    *staged = (struct staged){.number = state->number,
                              .version = turn->version,
                              .publication = session->welcome.publication,
                              .in_place = state->in_place,
                              .whole = turn->whole,
                              .device = &subscription->device};
    uint64_t began_ns = time_now_ns();
    status = receive_into(subscription, following, turn, staged, &paused);
    if (!following->pending.first) {
        following->fetch_ns = 0;
        following->base_number = state->base_number;
    }
    following->fetch_ns += time_now_ns() - began_ns;
    error_kept kept = error_keep(status);
    pthread_mutex_lock(&subscription->lock);
    if (by_reshard && status == BANYAN_OK) {
        banyan_reshard_plan_bytes bytes = banyan_reshard_plan_count_bytes(session->plan);
        subscription->status.received_bytes += bytes.network_received + bytes.inside_received;
    }
    subscription->status.received_bytes += staged->received;
    pthread_mutex_unlock(&subscription->lock);
    staged_append(&following->pending, staged);
    if (status == BANYAN_OK && !paused) {
        kept =
            error_keep(prepare_commit(subscription, &following->pending, following->base_number));
        if (kept.status == BANYAN_OK)
            stage_version(subscription, following);
    }
    pthread_mutex_lock(&subscription->lock);
    pthread_cond_broadcast(&subscription->changed);
    pthread_mutex_unlock(&subscription->lock);
    if (kept.status != BANYAN_OK || !paused)
        staged_list_free(&following->pending); /* that no commit waits for */
    return error_again(&kept);
}

/* Wait for the next version rather than to ask for this one again at once. */
static void refuse_up_to(banyan_subscription *subscription, uint64_t publication, uint64_t version)
{
    pthread_mutex_lock(&subscription->lock);
    subscription->above = version;
    subscription->above_publication = publication;
    pthread_mutex_unlock(&subscription->lock);
}

/* The next attempt of a fetch that a publish may have ended is one that can pause. */
static void note_need_of_waves(banyan_subscription *subscription, bool needs_waves)
{
    pthread_mutex_lock(&subscription->lock);
    subscription->needs_waves |= needs_waves;
    pthread_mutex_unlock(&subscription->lock);
}

/* Take the turns of a session until it ends. */
static banyan_status follow_turns(banyan_subscription *subscription,
                                  struct following_session *following)
{
    banyan_world *joined = following->session.joined;
    uint64_t publication = following->session.welcome.publication;
    int first = banyan_world_listening_size(joined);
    for (;;) {
        struct session_report state = {0};
        struct session_turn turn = {0};
        free_replaced(subscription);
        if (banyan_world_rank(joined) == first) {
            if (!following->pending.first)
                wait_for_commit(subscription);
            state = subscription_report(subscription, following);
        }
        RETURN_IF_FAILED(banyan_world_broadcast(joined, &state, sizeof state, first));
        RETURN_IF_FAILED(banyan_world_broadcast(joined, &turn, sizeof turn, 0));
        if (turn.kind == TURN_END)
            return BANYAN_OK;
        if (turn.kind != TURN_FETCH)
            continue;
        bool by_reshard = state.in_place && !turn.in_waves;
        banyan_status status = receive_version(subscription, following, &state, &turn);
        if (status != BANYAN_OK)
            keep_error(subscription, status);
        note_need_of_waves(subscription, by_reshard && status != BANYAN_OK);
        RETURN_IF_FAILED(control_check(joined));
        following->whole = status == BANYAN_ERR_CORRUPT;
        if (status != BANYAN_OK && !following->whole)
            refuse_up_to(subscription, publication, turn.version);
    }
}

/* Drop versions that not all ranks of the engine have staged: a joined world that ended while they
 * agreed on one. */
static banyan_status drop_incomplete(banyan_subscription *subscription)
{
    uint64_t ends[2] = {0};
    pthread_mutex_lock(&subscription->lock);
    ends[0] = ~subscription_last_number(subscription);
    ends[1] = subscription->next_number;
    pthread_mutex_unlock(&subscription->lock);
    RETURN_IF_FAILED(control_max_each(subscription->threads, ends, 2));
    pthread_mutex_lock(&subscription->lock);
    staged_drop_above(&subscription->staged, ~ends[0]);
    subscription->next_number = ends[1];
    pthread_mutex_unlock(&subscription->lock);
    return BANYAN_OK;
}

static banyan_status follow_session(banyan_subscription *subscription, banyan_world *joined)
{
    struct following_session following = {
        .session = {.joined = joined,
                    .hello = {.bytes_per_s = subscription->options.bytes_per_s,
                              .verify = subscription->options.verify}}};
    banyan_status status = drop_incomplete(subscription);
    if (status == BANYAN_OK)
        status = session_open(&following.session, NULL, subscription->layout);
    if (status == BANYAN_OK) {
        pthread_mutex_lock(&subscription->lock);
        subscription->status.connected = true;
        subscription->failed = (error_kept){0};
        pthread_mutex_unlock(&subscription->lock);
        status = follow_turns(subscription, &following);
    }
    error_kept kept = error_keep(status);
    pthread_mutex_lock(&subscription->lock);
    subscription->status.connected = false;
    pthread_mutex_unlock(&subscription->lock);
    staged_list_free(&following.pending);
    session_close(&following.session);
    return error_again(&kept);
}

/* Rank 0 decides for all whether the subscription ends, after a pause that this ends. */
static banyan_status decide_to_end(banyan_subscription *subscription, uint64_t pause_ns,
                                   uint32_t *ends)
{
    uint64_t until_ns = deadline_after(pause_ns);
    pthread_mutex_lock(&subscription->lock);
    while (!subscription->closing && banyan_world_rank(subscription->threads) == 0 &&
           deadline_left_ns(until_ns) > 0)
        background_wait(&subscription->changed, &subscription->lock, until_ns);
    *ends = subscription->closing;
    pthread_mutex_unlock(&subscription->lock);
    return banyan_world_broadcast(subscription->threads, ends, sizeof *ends, 0);
}

static bool is_closing(void *context)
{
    banyan_subscription *subscription = context;
    pthread_mutex_lock(&subscription->lock);
    bool closing = subscription->closing;
    pthread_mutex_unlock(&subscription->lock);
    return closing;
}

static banyan_status follow_until_closed(banyan_subscription *subscription)
{
    banyan_connect_options options = BANYAN_CONNECT_OPTIONS_INIT;
    options.name = subscription->name;
    options.timeout_ns = subscription->options.timeout_ns;
    options.connect_timeout_ns = CONNECT_NS;
    uint64_t pause_ns = PAUSE_NS;
    for (;;) {
        banyan_world *joined = NULL;
        uint32_t ends;
        banyan_status status =
            connect_until_over(subscription->threads, subscription->address, subscription->secret,
                               &options, is_closing, subscription, &joined);
        bool is_there = joined != NULL;
        if (is_there)
            status = follow_session(subscription, joined);
        /* Nobody listens: the trainer may not have started. */
        if (status != BANYAN_OK && (is_there || status != BANYAN_ERR_TIMEOUT))
            keep_error(subscription, status);
        RETURN_IF_FAILED(control_check(subscription->threads));
        /* After an error that is no loss, such as layouts that do not fit: ever more seldom. */
        bool fails = is_there && status != BANYAN_OK && status != BANYAN_ERR_PEER_LOST &&
                     status != BANYAN_ERR_ABORTED;
        pause_ns = !fails                        ? PAUSE_NS
                   : pause_ns < LONGEST_PAUSE_NS ? 2 * pause_ns
                                                 : LONGEST_PAUSE_NS;
        RETURN_IF_FAILED(
            decide_to_end(subscription, is_there && status == BANYAN_OK ? 0 : pause_ns, &ends));
        if (ends)
            return BANYAN_OK;
    }
}

void *subscription_follow(void *argument)
{
    banyan_subscription *subscription = argument;
    background_lower_priority();
    banyan_status status = follow_until_closed(subscription);
    if (status != BANYAN_OK)
        keep_error(subscription, status);
    return NULL;
}
