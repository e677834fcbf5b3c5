#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/log.h"
#include "core/threads/thread.h"
#include "publish/fetch.h"
#include "reshard/layout/layout.h"
#include "reshard/run/tensors.h"
#include "world/control.h"

#define ADDRESS_BYTES 300
#define SECRET_BYTES 33
#define NAME_BYTES 128
/* The longest time of one attempt to connect, and between two. */
#define CONNECT_NS (500 * NS_PER_MS)
#define PAUSE_NS (NS_PER_S)
#define LONGEST_PAUSE_NS (16 * NS_PER_S)
/* Fetching must not slow the engine down. */
#define NICE 10

struct banyan_subscription {
    banyan_world *world;   /* the caller's, for its calls */
    banyan_world *threads; /* for the thread that follows */
    banyan_layout *layout;
    banyan_tensors *tensors;
    char address[ADDRESS_BYTES], secret[SECRET_BYTES], name[NAME_BYTES];
    banyan_subscription_options options;
    pthread_t following;
    bool has_thread;

    pthread_mutex_t contents; /* held while the tensors' elements change, or must not */
    pthread_mutex_t lock;     /* of everything below */
    pthread_cond_t changed;
    bool closing;
    struct staged_list staged; /* to be committed */
    struct staged_list
        previous; /* what the last commit replaced; the streams have the old elements */
    uint64_t number, version, publication; /* of the current version; number 0: none */
    uint64_t before_number, before_version, before_publication; /* of that before `previous` */
    uint64_t next_number;
    uint64_t above, above_publication; /* versions up to this one of it are not wanted */
    banyan_subscription_status status;
    error_kept failed; /* the thread's last error */
};

/* ---- what is staged; with the lock held ---- */

/* Return the number of the last version that this rank has. */
static uint64_t last_number(const banyan_subscription *subscription)
{
    return subscription->staged.last ? subscription->staged.last->number : subscription->number;
}

/* ---- the thread ---- */

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

/* Fill in what this engine has: rank 0's counts. */
static struct session_report subscription_report(banyan_subscription *subscription,
                                                 uint64_t publication, bool whole)
{
    struct session_report state = {.whole = whole};
    const struct staged *last;
    pthread_mutex_lock(&subscription->lock);
    last = subscription->staged.last;
    state.ends = subscription->closing;
    state.base_number = last_number(subscription);
    state.number = ++subscription->next_number;
    state.publication = last ? last->publication : subscription->publication;
    state.base = last ? last->version : subscription->version;
    state.above = subscription->above_publication == publication ? subscription->above : 0;
    state.in_place = state.base_number == 0;
    state.takes = !subscription->options.verify || !last;
    pthread_mutex_unlock(&subscription->lock);
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
    tensors_set_torn(subscription->tensors); /* until all ranks commit it */
    return status;
}

/* Receive a version. All ranks of the joined world return the same error. */
static banyan_status receive_version(banyan_subscription *subscription, struct session *session,
                                     const struct session_report *state,
                                     const struct session_turn *turn)
{
    struct staged *staged = alloc_zeroed(1, sizeof *staged, "a version");
    struct fetch_target target = {.layout = subscription->layout,
                                  .tensors = subscription->tensors,
                                  .max_bytes = UINT64_MAX,
                                  .begin_verify = begin_verify,
                                  .end_verify = end_verify,
                                  .context = subscription,
                                  .staged = staged};
    banyan_status mine = staged ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    if (!state->in_place)
        RETURN_IF_FAILED(control_agree(session->joined, mine));
    RETURN_IF_FAILED(mine);
    staged->number = state->number;
    staged->version = turn->version;
    staged->publication = session->welcome.publication;
    staged->in_place = state->in_place;
    pthread_mutex_lock(&subscription->lock);
    uint64_t bound = subscription->options.max_staging_bytes;
    if (bound > 0)
        target.max_bytes =
            bound > subscription->staged.bytes ? bound - subscription->staged.bytes : 0;
    pthread_mutex_unlock(&subscription->lock);
    banyan_status status = state->in_place ? receive_in_place(subscription, session)
                                           : fetch_receive(session, &target, turn->whole);
    error_kept kept = error_keep(status);
    pthread_mutex_lock(&subscription->lock);
    if (state->in_place && status == BANYAN_OK) {
        banyan_reshard_plan_bytes bytes = banyan_reshard_plan_count_bytes(session->plan);
        subscription->status.received_bytes += bytes.network_received + bytes.inside_received;
    }
    subscription->status.received_bytes += staged->bytes;
    /* A rollback in the meantime has taken back what the version builds on. */
    bool builds_on_it = last_number(subscription) == state->base_number;
    if (status == BANYAN_OK && builds_on_it) {
        staged_append(&subscription->staged, staged);
        subscription->next_number = state->number;
        subscription->status.whole_fetches += turn->whole;
        subscription->status.delta_fetches += !turn->whole;
        subscription->failed = (error_kept){0};
        staged = NULL;
    }
    pthread_cond_broadcast(&subscription->changed);
    pthread_mutex_unlock(&subscription->lock);
    staged_free(staged);
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

/* Take the turns of a session until it ends. */
static banyan_status follow_turns(banyan_subscription *subscription, struct session *session)
{
    banyan_world *joined = session->joined;
    int first = banyan_world_listening_size(joined);
    bool whole = false;
    for (;;) {
        struct session_report state = {0};
        struct session_turn turn = {0};
        if (banyan_world_rank(joined) == first)
            state = subscription_report(subscription, session->welcome.publication, whole);
        RETURN_IF_FAILED(banyan_world_broadcast(joined, &state, sizeof state, first));
        RETURN_IF_FAILED(banyan_world_broadcast(joined, &turn, sizeof turn, 0));
        if (turn.kind == TURN_END)
            return BANYAN_OK;
        if (turn.kind != TURN_FETCH)
            continue;
        banyan_status status = receive_version(subscription, session, &state, &turn);
        if (status != BANYAN_OK)
            keep_error(subscription, status);
        RETURN_IF_FAILED(control_check(joined));
        whole = status == BANYAN_ERR_CORRUPT;
        if (status == BANYAN_OK || whole)
            continue;
        refuse_up_to(subscription, session->welcome.publication, turn.version);
    }
}

/* Drop versions that not all ranks of the engine have staged: a joined world that ended while they
 * agreed on one. */
static banyan_status drop_incomplete(banyan_subscription *subscription)
{
    uint64_t ends[2] = {0};
    pthread_mutex_lock(&subscription->lock);
    ends[0] = ~last_number(subscription);
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
    struct session session = {.joined = joined,
                              .hello = {.bytes_per_s = subscription->options.bytes_per_s,
                                        .verify = subscription->options.verify}};
    banyan_status status = drop_incomplete(subscription);
    if (status == BANYAN_OK)
        status = session_open(&session, NULL, subscription->layout);
    if (status == BANYAN_OK) {
        pthread_mutex_lock(&subscription->lock);
        subscription->status.connected = true;
        subscription->failed = (error_kept){0};
        pthread_mutex_unlock(&subscription->lock);
        status = follow_turns(subscription, &session);
    }
    error_kept kept = error_keep(status);
    pthread_mutex_lock(&subscription->lock);
    subscription->status.connected = false;
    pthread_mutex_unlock(&subscription->lock);
    session_close(&session);
    return error_again(&kept);
}

/* Rank 0 decides for all whether the subscription ends, after a pause that this ends. */
static banyan_status decide_to_end(banyan_subscription *subscription, uint64_t pause_ns,
                                   uint32_t *ends)
{
    uint64_t until_ns = deadline_after(pause_ns);
    struct timespec at = {(time_t)(until_ns / NS_PER_S), (long)(until_ns % NS_PER_S)};
    pthread_mutex_lock(&subscription->lock);
    while (!subscription->closing && banyan_world_rank(subscription->threads) == 0 &&
           deadline_left_ns(until_ns) > 0)
        pthread_cond_clockwait(&subscription->changed, &subscription->lock, CLOCK_MONOTONIC, &at);
    *ends = subscription->closing;
    pthread_mutex_unlock(&subscription->lock);
    return banyan_world_broadcast(subscription->threads, ends, sizeof *ends, 0);
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
        banyan_status status = banyan_world_connect(subscription->threads, subscription->address,
                                                    subscription->secret, &options, &joined);
        bool is_there = joined != NULL;
        if (is_there)
            status = follow_session(subscription, joined);
        /* Nobody listens: the trainer may not have started. */
        if (status != BANYAN_OK && (is_there || status != BANYAN_ERR_TIMEOUT))
            keep_error(subscription, status);
        RETURN_IF_FAILED(control_check(subscription->threads));
        /* What failed in itself, such as layouts that do not fit, is tried ever more seldom. */
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

static void *follow(void *argument)
{
    banyan_subscription *subscription = argument;
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
    banyan_status status = follow_until_closed(subscription);
    if (status != BANYAN_OK)
        keep_error(subscription, status);
    return NULL;
}

/* ---- open and close ---- */

static void subscription_destroy(banyan_subscription *subscription)
{
    staged_list_free(&subscription->staged);
    staged_list_free(&subscription->previous);
    if (subscription->threads)
        (void)banyan_world_close(subscription->threads);
    banyan_layout_destroy(subscription->layout);
    pthread_cond_destroy(&subscription->changed);
    pthread_mutex_destroy(&subscription->lock);
    pthread_mutex_destroy(&subscription->contents);
    sodium_memzero(subscription->secret, sizeof subscription->secret);
    free(subscription);
}

static banyan_status subscription_keep_text(char *to, size_t bytes, const char *from,
                                            const char *what)
{
    if (!from)
        return error_set(BANYAN_ERR_INVALID, "a subscription needs %s", what);
    if (strlen(from) >= bytes)
        return error_set(BANYAN_ERR_INVALID, "%s has %zu characters, and at most %zu are valid",
                         what, strlen(from), bytes - 1);
    strcpy(to, from);
    return BANYAN_OK;
}

static banyan_status subscription_open_locally(banyan_subscription *subscription,
                                               const banyan_layout *layout, const char *address,
                                               const char *secret)
{
    const banyan_tensors *tensors = subscription->tensors;
    if (banyan_world_rank(subscription->world) == 0) {
        RETURN_IF_FAILED(
            subscription_keep_text(subscription->address, ADDRESS_BYTES, address, "the address"));
        RETURN_IF_FAILED(
            subscription_keep_text(subscription->secret, SECRET_BYTES, secret, "the secret"));
    }
    RETURN_IF_FAILED(subscription_keep_text(
        subscription->name, NAME_BYTES,
        subscription->options.name ? subscription->options.name : "", "the name"));
    RETURN_IF_FAILED(layout_copy(layout, NULL, &subscription->layout));
    RETURN_IF_FAILED(tensors_check(tensors, subscription->layout, "subscribed"));
    for (size_t i = 0; tensors && i < banyan_tensors_count(tensors); i++) {
        strided_view view;
        RETURN_IF_FAILED(strided_view_of(banyan_tensors_get(tensors, i), &view));
    }
    if (tensors)
        tensors_set_torn(subscription->tensors);
    return BANYAN_OK;
}

static banyan_status open_thread(banyan_subscription *subscription)
{
    banyan_world *world = subscription->world;
    int count = banyan_world_size(world);
    int *ranks = malloc((size_t)count * sizeof *ranks);
    for (int i = 0; ranks && i < count; i++)
        ranks[i] = i;
    RETURN_IF_FAILED(control_agree(
        world, ranks ? BANYAN_OK : error_no_memory((size_t)count * sizeof *ranks, "ranks")));
    banyan_status status = banyan_world_split(world, ranks, count, &subscription->threads);
    free(ranks);
    RETURN_IF_FAILED(control_agree(world, status));
    RETURN_IF_FAILED(
        banyan_world_broadcast(world, subscription->address, sizeof subscription->address, 0));
    /* A rank that keeps nothing could not go back with the others. */
    RETURN_IF_FAILED(banyan_world_broadcast(world, &subscription->options.keep_previous,
                                            sizeof subscription->options.keep_previous, 0));
    status = thread_start(&subscription->following, follow, subscription, false);
    subscription->has_thread = status == BANYAN_OK;
    return control_agree(world, status);
}

banyan_status banyan_subscription_open(banyan_world *world, const banyan_layout *layout,
                                       banyan_tensors *tensors, const char *address,
                                       const char *secret,
                                       const banyan_subscription_options *options,
                                       banyan_subscription **subscription)
{
    banyan_subscription_options taken = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    RETURN_IF_NULL(world);
    RETURN_IF_NULL(subscription);
    RETURN_IF_FAILED(
        options_take(options, "BANYAN_SUBSCRIPTION_OPTIONS_INIT", &taken, sizeof taken));
    CONTROL_ENTER(world);
    banyan_subscription *opened = calloc(1, sizeof *opened);
    banyan_status status = opened ? BANYAN_OK : error_no_memory(sizeof *opened, "a subscription");
    if (opened) {
        pthread_mutex_init(&opened->contents, NULL);
        pthread_mutex_init(&opened->lock, NULL);
        pthread_cond_init(&opened->changed, NULL);
        opened->world = world;
        opened->tensors = tensors;
        opened->options = taken;
        status = subscription_open_locally(opened, layout, address, secret);
    }
    status = control_agree(world, status);
    if (status == BANYAN_OK)
        status = open_thread(opened);
    if (status == BANYAN_OK) {
        *subscription = opened;
        return BANYAN_OK;
    }
    error_kept kept = error_keep(status);
    if (opened && opened->threads) /* threads of other ranks may wait there for this one's */
        (void)banyan_world_abort(opened->threads, kept.message);
    banyan_subscription_close(opened);
    return error_again(&kept);
}

void banyan_subscription_close(banyan_subscription *subscription)
{
    if (!subscription)
        return;
    pthread_mutex_lock(&subscription->lock);
    subscription->closing = true;
    pthread_cond_broadcast(&subscription->changed);
    pthread_mutex_unlock(&subscription->lock);
    if (subscription->has_thread)
        pthread_join(subscription->following, NULL);
    subscription_destroy(subscription);
}

/* ---- state ---- */

banyan_subscription_status banyan_subscription_get_status(const banyan_subscription *subscription)
{
    banyan_subscription_status status = {0};
    if (!subscription)
        return status;
    pthread_mutex_t *lock = (pthread_mutex_t *)&subscription->lock;
    pthread_mutex_lock(lock);
    status = subscription->status;
    status.version = subscription->version;
    status.staged =
        subscription->staged.last ? subscription->staged.last->version : subscription->version;
    status.staged_bytes = subscription->staged.bytes;
    pthread_mutex_unlock(lock);
    return status;
}

uint64_t banyan_subscription_staged(const banyan_subscription *subscription)
{
    return banyan_subscription_get_status(subscription).staged;
}

banyan_status banyan_subscription_check(const banyan_subscription *subscription)
{
    RETURN_IF_NULL(subscription);
    pthread_mutex_t *lock = (pthread_mutex_t *)&subscription->lock;
    pthread_mutex_lock(lock);
    error_kept kept = subscription->failed;
    pthread_mutex_unlock(lock);
    return error_again(&kept);
}

banyan_status banyan_subscription_wait(banyan_subscription *subscription, uint64_t above,
                                       uint64_t timeout_ns, uint64_t *version)
{
    RETURN_IF_NULL(subscription);
    RETURN_IF_NULL(version);
    uint64_t until_ns = deadline_after(timeout_ns), staged = 0;
    struct timespec at = {(time_t)(until_ns / NS_PER_S), (long)(until_ns % NS_PER_S)};
    pthread_mutex_lock(&subscription->lock);
    for (;;) {
        const struct staged *last = subscription->staged.last;
        staged = last ? last->version : subscription->version;
        if (staged > above || deadline_left_ns(until_ns) == 0)
            break;
        pthread_cond_clockwait(&subscription->changed, &subscription->lock, CLOCK_MONOTONIC, &at);
    }
    error_kept kept = subscription->failed;
    pthread_mutex_unlock(&subscription->lock);
    if (staged > above) {
        *version = staged;
        return BANYAN_OK;
    }
    return error_set(BANYAN_ERR_TIMEOUT,
                     "waited %.1f s for a version above %" PRIu64 " at %s; the last one is %" PRIu64
                     "%s%s",
                     (double)timeout_ns / 1e9, above, subscription->address, staged,
                     kept.message[0] ? "; " : "", kept.message);
}

/* ---- commit ---- */

/* Agree on the last version that all ranks of the engine have. */
static banyan_status agree_on_number(banyan_subscription *subscription, uint64_t *number)
{
    pthread_mutex_lock(&subscription->lock);
    uint64_t end = ~last_number(subscription);
    pthread_mutex_unlock(&subscription->lock);
    RETURN_IF_FAILED(control_max(subscription->world, end, &end));
    *number = ~end;
    return BANYAN_OK;
}

/* Make versions that were taken from the staged ones current. */
static void apply(banyan_subscription *subscription, struct staged_list *taken)
{
    bool in_place = false;
    for (const struct staged *one = taken->first; one; one = one->next)
        in_place |= one->in_place;
    pthread_mutex_lock(&subscription->contents);
    if (subscription->tensors)
        tensors_set_torn(subscription->tensors);
    staged_list_swap(taken, false);
    if (subscription->tensors)
        tensors_set_whole(subscription->tensors, taken->last->version);
    pthread_mutex_unlock(&subscription->contents);
    pthread_mutex_lock(&subscription->lock);
    staged_list_free(&subscription->previous);
    subscription->before_number = subscription->number;
    subscription->before_version = subscription->version;
    subscription->before_publication = subscription->publication;
    subscription->number = taken->last->number;
    subscription->version = taken->last->version;
    subscription->publication = taken->last->publication;
    if (subscription->options.keep_previous && !in_place) {
        subscription->previous = *taken;
        *taken = (struct staged_list){0};
    }
    pthread_cond_broadcast(&subscription->changed);
    pthread_mutex_unlock(&subscription->lock);
    staged_list_free(taken);
}

banyan_status banyan_subscription_commit(banyan_subscription *subscription, uint64_t *version)
{
    RETURN_IF_NULL(subscription);
    RETURN_IF_NULL(version);
    uint64_t number;
    CONTROL_ENTER(subscription->world);
    RETURN_IF_FAILED(agree_on_number(subscription, &number));
    pthread_mutex_lock(&subscription->lock);
    struct staged_list taken = staged_take(&subscription->staged, number);
    pthread_mutex_unlock(&subscription->lock);
    if (taken.first)
        apply(subscription, &taken);
    *version = subscription->version;
    return BANYAN_OK;
}

banyan_status banyan_subscription_rollback(banyan_subscription *subscription, uint64_t *version)
{
    RETURN_IF_NULL(subscription);
    RETURN_IF_NULL(version);
    CONTROL_ENTER(subscription->world);
    pthread_mutex_lock(&subscription->lock);
    struct staged_list taken = subscription->previous;
    subscription->previous = (struct staged_list){0};
    pthread_mutex_unlock(&subscription->lock);
    if (!taken.first)
        return control_fail_together(
            subscription->world,
            error_set(BANYAN_ERR_NOT_FOUND, "nothing is kept of the version before %" PRIu64 "%s",
                      subscription->version,
                      subscription->options.keep_previous ? "" : ": keep_previous is not set"));
    pthread_mutex_lock(&subscription->contents);
    if (subscription->tensors)
        tensors_set_torn(subscription->tensors);
    staged_list_swap(&taken, true);
    if (subscription->tensors)
        tensors_set_whole(subscription->tensors, subscription->before_version);
    pthread_mutex_unlock(&subscription->contents);
    pthread_mutex_lock(&subscription->lock);
    staged_list_free(&subscription->staged);
    subscription->above = subscription->version;
    subscription->above_publication = subscription->publication;
    subscription->number = subscription->before_number;
    subscription->version = subscription->before_version;
    subscription->publication = subscription->before_publication;
    pthread_cond_broadcast(&subscription->changed);
    pthread_mutex_unlock(&subscription->lock);
    staged_list_free(&taken);
    *version = subscription->version;
    return BANYAN_OK;
}
