#include "publish/subscription.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>

#include "core/deadline.h"
#include "core/interrupt.h"
#include "core/threads/thread.h"
#include "publish/background.h"
#include "reshard/layout/layout.h"
#include "reshard/run/tensors.h"
#include "world/control.h"

/* ---- open and close ---- */

static void subscription_destroy(banyan_subscription *subscription)
{
    staged_list_free(&subscription->staged);
    staged_list_free(&subscription->previous);
    staged_list_free(&subscription->replaced);
    if (subscription->threads)
        (void)banyan_world_close(subscription->threads);
    if (subscription->has_shadow && subscription->tensors)
        tensors_close_shadow(subscription->tensors);
    publish_device_close(&subscription->device);
    free(subscription->layers);
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
    RETURN_IF_FAILED(
        publish_device_open(tensors, subscription->options.stream, &subscription->device));
    RETURN_IF_FAILED(staged_layers(tensors, &subscription->layers));
    if (tensors)
        tensors_set_torn(subscription->tensors);
    return BANYAN_OK;
}

/* A rank that keeps nothing could not go back with the others. Versions are taken one at a time by
 * all ranks if one has a shadow. */
static banyan_status subscription_agree_on_options(banyan_subscription *subscription)
{
    banyan_world *world = subscription->world;
    bool options[] = {subscription->options.keep_previous, subscription->options.shadow};
    RETURN_IF_FAILED(banyan_world_broadcast(world, options, sizeof options, 0));
    subscription->options.keep_previous = options[0];
    subscription->options.shadow = options[1];
    if (!subscription->options.shadow)
        return BANYAN_OK;
    banyan_status status = BANYAN_OK;
    if (subscription->tensors)
        status = tensors_open_shadow(subscription->tensors, &subscription->shadow_shift);
    subscription->has_shadow = status == BANYAN_OK;
    return control_agree(world, status);
}

static banyan_status open_thread(banyan_subscription *subscription)
{
    banyan_world *world = subscription->world;
    RETURN_IF_FAILED(subscription_agree_on_options(subscription));
    RETURN_IF_FAILED(background_world_open(world, &subscription->threads));
    RETURN_IF_FAILED(
        banyan_world_broadcast(world, subscription->address, sizeof subscription->address, 0));
    uint64_t on_device = !publish_device_is_host(&subscription->device);
    RETURN_IF_FAILED(control_max(world, on_device, &on_device));
    subscription->on_device = on_device;
    banyan_status status =
        thread_start(&subscription->following, subscription_follow, subscription, false);
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
    pthread_mutex_lock(&subscription->lock);
    for (;;) {
        const struct staged *last = subscription->staged.last;
        staged = last ? last->version : subscription->version;
        if (staged > above || deadline_left_ns(until_ns) == 0)
            break;
        background_wait(&subscription->changed, &subscription->lock, interrupt_until(until_ns));
        pthread_mutex_unlock(&subscription->lock);
        if (interrupt_requested())
            return error_set(BANYAN_ERR_ABORTED, "waiting for a version at %s: " INTERRUPT_TEXT,
                             subscription->address);
        pthread_mutex_lock(&subscription->lock);
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

/* Find out before anything moves whether a rank's stream can take an exchange. */
static banyan_status agree_to_exchange(banyan_subscription *subscription)
{
    if (!subscription->on_device)
        return BANYAN_OK;
    return control_agree(subscription->world, publish_device_ready(&subscription->device));
}

/* Agree on the last version that all ranks of the engine have. */
static banyan_status agree_on_number(banyan_subscription *subscription, uint64_t *number)
{
    pthread_mutex_lock(&subscription->lock);
    uint64_t end = ~subscription_last_number(subscription);
    pthread_mutex_unlock(&subscription->lock);
    RETURN_IF_FAILED(control_max(subscription->world, end, &end));
    *number = ~end;
    return BANYAN_OK;
}

/* Exchange the tensors with their shadow, which then holds what they had: version `before`. */
static banyan_status swap_shadow(banyan_subscription *subscription, uint64_t before)
{
    banyan_status status = BANYAN_OK;
    if (subscription->tensors)
        status = tensors_swap_shadow(subscription->tensors);
    subscription->shadow_number = status == BANYAN_OK ? before : 0;
    return status;
}

/* Make the staged versions up to a number current. The thread takes them for current from the
 * moment at which they leave the staged ones, so that it does not fetch them again during the
 * exchange. */
static banyan_status apply(banyan_subscription *subscription, uint64_t number)
{
    bool in_place = false;
    pthread_mutex_lock(&subscription->contents);
    pthread_mutex_lock(&subscription->lock);
    struct staged_list taken = staged_take(&subscription->staged, number);
    if (taken.first) {
        staged_list_move(&subscription->replaced, &subscription->previous);
        subscription->before_number = subscription->number;
        subscription->before_version = subscription->version;
        subscription->before_publication = subscription->publication;
        subscription->number = taken.last->number;
        subscription->version = taken.last->version;
        subscription->publication = taken.last->publication;
    }
    pthread_mutex_unlock(&subscription->lock);
    if (!taken.first) {
        pthread_mutex_unlock(&subscription->contents);
        return BANYAN_OK;
    }
    for (const struct staged *one = taken.first; one; one = one->next)
        in_place |= one->in_place;
    if (subscription->tensors)
        tensors_set_torn(subscription->tensors);
    bool is_in_shadow = subscription->shadow_number == taken.last->number;
    banyan_status status = is_in_shadow ? swap_shadow(subscription, subscription->before_number)
                                        : staged_list_swap(&taken, false);
    if (subscription->tensors && status == BANYAN_OK)
        tensors_set_whole(subscription->tensors, taken.last->version);
    pthread_mutex_unlock(&subscription->contents);
    pthread_mutex_lock(&subscription->lock);
    if (subscription->options.keep_previous && !in_place && status == BANYAN_OK) {
        subscription->previous = taken;
        taken = (struct staged_list){0};
    }
    staged_list_move(&subscription->replaced, &taken);
    pthread_cond_broadcast(&subscription->changed);
    pthread_mutex_unlock(&subscription->lock);
    return status;
}

banyan_status banyan_subscription_commit(banyan_subscription *subscription, uint64_t *version)
{
    RETURN_IF_NULL(subscription);
    RETURN_IF_NULL(version);
    uint64_t number;
    CONTROL_ENTER(subscription->world);
    RETURN_IF_FAILED(agree_to_exchange(subscription));
    RETURN_IF_FAILED(agree_on_number(subscription, &number));
    if (number > subscription->number)
        RETURN_IF_FAILED(apply(subscription, number));
    *version = subscription->version;
    return BANYAN_OK;
}

banyan_status banyan_subscription_rollback(banyan_subscription *subscription, uint64_t *version)
{
    RETURN_IF_NULL(subscription);
    RETURN_IF_NULL(version);
    CONTROL_ENTER(subscription->world);
    RETURN_IF_FAILED(agree_to_exchange(subscription));
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
    bool is_in_shadow = subscription->before_number > 0 &&
                        subscription->shadow_number == subscription->before_number;
    error_kept kept =
        error_keep(is_in_shadow ? swap_shadow(subscription, 0) : staged_list_swap(&taken, true));
    subscription->shadow_number = 0;
    if (subscription->tensors && kept.status == BANYAN_OK)
        tensors_set_whole(subscription->tensors, subscription->before_version);
    pthread_mutex_unlock(&subscription->contents);
    pthread_mutex_lock(&subscription->lock);
    staged_list_free(&subscription->staged);
    subscription->above = subscription->version;
    subscription->above_publication = subscription->publication;
    subscription->number = subscription->before_number;
    subscription->version = subscription->before_version;
    subscription->publication = subscription->before_publication;
    staged_list_move(&subscription->replaced, &taken);
    pthread_cond_broadcast(&subscription->changed);
    pthread_mutex_unlock(&subscription->lock);
    RETURN_IF_FAILED(error_again(&kept));
    *version = subscription->version;
    return BANYAN_OK;
}
