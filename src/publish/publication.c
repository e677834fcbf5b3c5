#include "publish/publication.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>

#include "core/deadline.h"
#include "core/threads/thread.h"
#include "publish/background.h"
#include "publish/compare.h"
#include "publish/delta/changes.h"
#include "reshard/layout/layout.h"
#include "reshard/run/tensors.h"
#include "world/control.h"

#define KEPT_VERSIONS 4
#define PATIENCE_NS (5 * NS_PER_S)
#define CONVERTED_BYTES ((uint64_t)256 << 20)
#define SCALES_SUFFIX "_scale"
#define KEPT_ALIGNMENT ((size_t)256)

/* ---- memory ---- */

static const struct publish_device host = {0};

/* Allocate memory where versions are kept: zeroed if this rank's tensors lie on the host. */
static banyan_status alloc_where_kept(const banyan_publication *publication, size_t bytes,
                                      const char *what, void **memory)
{
    const struct publish_device *device = &publication->device;
    if (!publish_device_is_host(publication->kept_on))
        return device->memory->alloc(device->id, bytes, memory);
    if (!publish_device_is_host(device))
        return device->delta->host_alloc(device->engine, bytes, memory);
    *memory = calloc(1, bytes);
    return *memory ? BANYAN_OK : error_no_memory(bytes, what);
}

static void free_where_kept(const banyan_publication *publication, void *memory)
{
    const struct publish_device *device = &publication->device;
    if (!memory)
        return;
    if (!publish_device_is_host(publication->kept_on))
        device->memory->free(device->id, memory);
    else if (!publish_device_is_host(device))
        device->delta->host_free(device->engine, memory);
    else
        free(memory);
}

static void free_version(const banyan_publication *publication, struct kept_version *version)
{
    free_where_kept(publication, version->memory);
    free(version->maps);
    *version = (struct kept_version){0};
}

/* Make the tensors of a set that lies in pinned memory. */
static banyan_status keep_pinned(banyan_publication *publication, size_t count)
{
    const banyan_layout *layout = publication->layout;
    DLTensor *tensors = alloc_zeroed(count, sizeof *tensors, "the tensors of a publication");
    size_t bytes = 0;
    RETURN_IF_NO_MEMORY(tensors);
    for (size_t i = 0; i < count; i++) {
        const banyan_local_tensor *local = banyan_layout_tensor(layout, i);
        strided_view view;
        tensors[i] = (DLTensor){.data = (void *)KEPT_ALIGNMENT, /* for the check */
                                .device = BANYAN_HOST,
                                .ndim = local->ndim,
                                .dtype = local->dtype,
                                .shape = (int64_t *)local->shape};
        banyan_status status = strided_view_anywhere(&tensors[i], &view);
        if (status != BANYAN_OK) {
            free(tensors);
            return status;
        }
        tensors[i].byte_offset = bytes;
        bytes +=
            (view.elems * view.elem_bytes + KEPT_ALIGNMENT - 1) / KEPT_ALIGNMENT * KEPT_ALIGNMENT;
    }
    banyan_status status = publication->device.delta->host_alloc(
        publication->device.engine, bytes + KEPT_ALIGNMENT, &publication->kept_memory);
    for (size_t i = 0; i < count; i++)
        tensors[i].data = publication->kept_memory;
    if (status == BANYAN_OK)
        status = banyan_tensors_create(layout, tensors, count, &publication->kept);
    free(tensors);
    return status;
}

/* Make room for the current version, where the tensors of the first one lie. */
static banyan_status keep_first(banyan_publication *publication, const banyan_tensors *tensors)
{
    if (publication->kept)
        return publish_device_check(&publication->device, tensors);
    publication->kept_on = NULL; /* an attempt may have failed */
    publish_device_close(&publication->device);
    RETURN_IF_FAILED(publish_device_open(tensors, publication->stream, &publication->device));
    const struct publish_device *device = &publication->device;
    bool pinned = !publish_device_is_host(device) && publication->keep_on_host;
    publication->kept_on = pinned ? &host : device;
    if (pinned)
        return keep_pinned(publication, banyan_layout_tensor_count(publication->layout));
    return banyan_tensors_alloc_on(publication->layout, NULL, publish_device_place(device),
                                   &publication->kept);
}

/* Make room for the maps of a version. */
static banyan_status make_maps(const banyan_publication *publication, struct kept_version *made)
{
    size_t count = banyan_layout_tensor_count(publication->layout);
    uint64_t words = 0;
    made->maps = alloc_zeroed(count, sizeof *made->maps, "the changes of a version");
    RETURN_IF_NO_MEMORY(made->maps);
    uint64_t *first = NULL;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < count; i++) {
            strided_view view;
            RETURN_IF_FAILED(
                strided_view_anywhere(banyan_tensors_get(publication->kept, i), &view));
            made->maps[i] = pass > 0 ? first + words : NULL;
            words += changes_words(view.elems);
        }
        if (pass > 0 || words == 0)
            return BANYAN_OK;
        made->words = words;
        RETURN_IF_FAILED(alloc_where_kept(publication, words * sizeof *first,
                                          "the changes of a version", &made->memory));
        first = made->memory;
        words = 0;
    }
    return BANYAN_OK;
}

static void publication_destroy(banyan_publication *publication)
{
    for (size_t i = 0; i < publication->history.count; i++)
        free_version(publication, &publication->history.data[i]);
    array_free(&publication->history);
    array_free(&publication->subscribers);
    banyan_listener_close(publication->listener);
    if (publication->threads)
        (void)banyan_world_close(publication->threads);
    banyan_tensors_destroy(publication->kept);
    if (publication->kept_memory)
        publication->device.delta->host_free(publication->device.engine, publication->kept_memory);
    conversion_close(publication->conversion);
    publish_device_close(&publication->device);
    banyan_layout_destroy(publication->layout);
    pthread_cond_destroy(&publication->changed);
    pthread_mutex_destroy(&publication->lock);
    free(publication);
}

/* Decide what is published. If a rank passes a layout for that, all ranks convert. */
static banyan_status open_layouts(banyan_publication *publication, const banyan_layout *tensors,
                                  const banyan_publication_options *options)
{
    banyan_world *world = publication->world;
    uint64_t converts = options->published != NULL;
    RETURN_IF_FAILED(control_max(world, converts, &converts));
    banyan_status status =
        options->transform && !converts
            ? error_set(BANYAN_ERR_INVALID,
                        "a publication with a transform, %s, needs the layout "
                        "that it publishes (options.published)",
                        options->transform->name)
            : layout_copy(converts ? options->published : tensors, NULL, &publication->layout);
    RETURN_IF_FAILED(control_agree(world, status));
    if (!converts)
        return BANYAN_OK;
    return conversion_open(world, tensors, publication->layout, options->transform,
                           options->scales_suffix ? options->scales_suffix : SCALES_SUFFIX,
                           options->max_converted_bytes ? options->max_converted_bytes
                                                        : CONVERTED_BYTES,
                           &publication->conversion);
}

static banyan_status open_threads(banyan_publication *publication, const char *address,
                                  const char *secret, const banyan_publication_options *options)
{
    banyan_world *world = publication->world;
    RETURN_IF_FAILED(background_world_open(world, &publication->threads));
    banyan_connect_options connect = BANYAN_CONNECT_OPTIONS_INIT;
    connect.name = options->name;
    connect.timeout_ns = options->timeout_ns;
    /* Ranks that keep different versions would send different changes. */
    RETURN_IF_FAILED(banyan_world_broadcast(world, &publication->id, sizeof publication->id, 0));
    RETURN_IF_FAILED(banyan_world_broadcast(world, &publication->kept_versions,
                                            sizeof publication->kept_versions, 0));
    banyan_status status = banyan_world_listen(publication->threads, address, secret, &connect,
                                               &publication->listener);
    RETURN_IF_FAILED(control_agree(world, status));
    status = thread_start(&publication->accepting, publication_accept, publication, false);
    publication->has_thread = status == BANYAN_OK;
    return control_agree(world, status);
}

banyan_status banyan_publication_open(banyan_world *world, const banyan_layout *layout,
                                      const char *address, const char *secret,
                                      const banyan_publication_options *options,
                                      banyan_publication **publication)
{
    banyan_publication_options taken = BANYAN_PUBLICATION_OPTIONS_INIT;
    RETURN_IF_NULL(world);
    RETURN_IF_NULL(publication);
    RETURN_IF_FAILED(
        options_take(options, "BANYAN_PUBLICATION_OPTIONS_INIT", &taken, sizeof taken));
    CONTROL_ENTER(world);
    banyan_publication *opened = calloc(1, sizeof *opened);
    banyan_status status = opened ? BANYAN_OK : error_no_memory(sizeof *opened, "a publication");
    if (opened) {
        pthread_mutex_init(&opened->lock, NULL);
        pthread_cond_init(&opened->changed, NULL);
        opened->world = world;
        opened->kept_versions = taken.kept_versions ? taken.kept_versions : KEPT_VERSIONS;
        opened->patience_ns = taken.patience_ns ? taken.patience_ns : PATIENCE_NS;
        opened->keep_on_host = taken.keep_on_host;
        opened->compression = taken.compression;
        opened->stream = taken.stream;
        randombytes_buf(&opened->id, sizeof opened->id);
        opened->id |= 1;
    }
    status = control_agree(world, status);
    if (status == BANYAN_OK)
        status = open_layouts(opened, layout, &taken);
    if (status == BANYAN_OK)
        status = open_threads(opened, address, secret, &taken);
    if (status == BANYAN_OK) {
        *publication = opened;
        return BANYAN_OK;
    }
    error_kept kept = error_keep(status);
    if (opened && opened->threads) /* threads of other ranks may wait there for this one's */
        (void)banyan_world_abort(opened->threads, kept.message);
    banyan_publication_close(opened);
    return error_again(&kept);
}

const char *banyan_publication_address(const banyan_publication *publication)
{
    return publication ? banyan_listener_address(publication->listener) : NULL;
}

/* ---- publish ---- */

/* Check the arguments, and make room for the version. */
static banyan_status prepare(banyan_publication *publication, const banyan_tensors *tensors,
                             uint64_t version, struct kept_version *made)
{
    pthread_mutex_lock(&publication->lock);
    error_kept failed = publication->failed;
    uint64_t before = publication->version;
    pthread_mutex_unlock(&publication->lock);
    RETURN_IF_FAILED(error_again(&failed));
    if (version <= before)
        return error_set(BANYAN_ERR_INVALID,
                         "version %" PRIu64 " is published after version %" PRIu64, version,
                         before);
    RETURN_IF_FAILED(tensors_check(
        tensors, publication->conversion ? publication->conversion->source : publication->layout,
        "published"));
    RETURN_IF_FAILED(keep_first(publication, tensors));
    RETURN_IF_FAILED(publish_device_ready(&publication->device));
    made->since = before;
    made->version = version;
    RETURN_IF_FAILED(make_maps(publication, made));
    pthread_mutex_lock(&publication->lock);
    bool has_room = array_reserve(&publication->history, 1);
    pthread_mutex_unlock(&publication->lock);
    return has_room ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

/* At rank 0, with the lock held: wait until a time for fetches to end or to pause. */
static void await_fetches(banyan_publication *publication, uint64_t until_ns)
{
    while (publication->fetching > 0 && deadline_left_ns(until_ns) > 0)
        background_wait(&publication->changed, &publication->lock, until_ns);
}

/* At rank 0: let no further fetch begin, and wait until those that have begun end or pause. Those
 * of changes pause when half of the patience is over. Those that take longer than the patience end
 * with their joined worlds. */
static void stop_fetches(banyan_publication *publication)
{
    uint64_t half_ns = deadline_after(publication->patience_ns / 2);
    uint64_t until_ns = deadline_after(publication->patience_ns);
    pthread_mutex_lock(&publication->lock);
    publication->open = false;
    await_fetches(publication, half_ns);
    publication->hurries = true;
    await_fetches(publication, until_ns);
    publication->hurries = false;
    for (size_t i = 0; i < publication->subscribers.count; i++) {
        const struct subscriber *one = publication->subscribers.data[i];
        char reason[160];
        if (!one->fetching || !one->joined)
            continue;
        snprintf(reason, sizeof reason,
                 "the publication has waited %.1f s for subscription %" PRIu64
                 " to fetch version %" PRIu64 ", and publishes the next one",
                 (double)publication->patience_ns / 1e9, one->number, publication->version);
        (void)banyan_world_abort(one->joined, reason);
    }
    while (publication->fetching > 0)
        pthread_cond_wait(&publication->changed, &publication->lock);
    pthread_mutex_unlock(&publication->lock);
}

/* Convert the tensors of a step. */
static banyan_status convert(banyan_publication *publication, size_t step,
                             const banyan_tensors *tensors, banyan_publish_report *report)
{
    uint64_t began_ns = time_now_ns();
    RETURN_IF_FAILED(conversion_run(publication->conversion, step, tensors, &publication->device));
    report->converted_ns += time_now_ns() - began_ns;
    return BANYAN_OK;
}

/* Convert what comes first, before anything of the kept copy changes, and while engines fetch it.
 */
static banyan_status convert_first(banyan_publication *publication, const banyan_tensors *tensors,
                                   banyan_publish_report *report)
{
    RETURN_IF_FAILED(conversion_prepare(publication->conversion, &publication->device));
    return publication->conversion->steps.count > 0 ? convert(publication, 0, tensors, report)
                                                    : BANYAN_OK;
}

/* Compare `count` published tensors, and update the kept copy. Nothing reads it. `which` NULL: all
 * tensors. */
static banyan_status compare(banyan_publication *publication, const banyan_tensors *tensors,
                             const size_t *which, size_t count, struct kept_version *made,
                             banyan_publish_report *report)
{
    const struct publish_device *device = &publication->device;
    uint64_t began_ns = time_now_ns();
    struct delta_compare *compared = alloc_zeroed(count, sizeof *compared, "a list of tensors");
    banyan_status status = compared ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    for (size_t i = 0; i < count && status == BANYAN_OK; i++) {
        size_t tensor = which ? which[i] : i;
        const DLTensor *kept = banyan_tensors_get(publication->kept, tensor);
        if (publication->conversion)
            compared[i].live = conversion_view(publication->conversion, tensor);
        else
            status = strided_view_anywhere(banyan_tensors_get(tensors, tensor), &compared[i].live);
        compared[i].kept = (char *)kept->data + kept->byte_offset;
        compared[i].map = made->maps[tensor];
    }
    if (status == BANYAN_OK)
        status = publish_device_is_host(device)
                     ? compare_on_host(compared, count)
                     : device->delta->find(device->engine, compared, count, device->stream);
    for (size_t i = 0; i < count && status == BANYAN_OK; i++) {
        report->changed += compared[i].changed;
        report->elems += compared[i].live.elems;
    }
    free(compared);
    report->compared_ns += time_now_ns() - began_ns;
    return status;
}

/* Convert and compare all tensors. The first step is converted already. */
static banyan_status update(banyan_publication *publication, const banyan_tensors *tensors,
                            struct kept_version *made, banyan_publish_report *report)
{
    const struct conversion *conversion = publication->conversion;
    if (!conversion)
        return compare(publication, tensors, NULL, banyan_layout_tensor_count(publication->layout),
                       made, report);
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < conversion->steps.count; i++) {
        const struct conversion_step *step = &conversion->steps.data[i];
        if (i > 0) {
            RETURN_IF_FAILED(control_agree(publication->world, status));
            RETURN_IF_FAILED(convert(publication, i, tensors, report));
        }
        status = compare(publication, tensors, step->all.data, step->all.count, made, report);
    }
    return status;
}

/* A decision about the maps when a version is published. */
struct keeping {
    uint32_t drops;  /* of the oldest */
    uint32_t merges; /* those of the new version with the newest */
};

/* Make it, at rank 0: fetches that have paused need some of them. */
static struct keeping choose_keeping(banyan_publication *publication)
{
    struct keeping keeping = {0};
    uint64_t needs_above = NEEDS_NO_MAPS, reads_up_to = 0;
    pthread_mutex_lock(&publication->lock);
    for (size_t i = 0; i < publication->subscribers.count; i++) {
        const struct subscriber *one = publication->subscribers.data[i];
        if (one->needs_above == NEEDS_NO_MAPS)
            continue;
        needs_above = one->needs_above < needs_above ? one->needs_above : needs_above;
        reads_up_to = one->reads_up_to > reads_up_to ? one->reads_up_to : reads_up_to;
    }
    size_t count = publication->history.count;
    const struct kept_version *history = publication->history.data;
    while (count - keeping.drops >= publication->kept_versions &&
           history[keeping.drops].version <= needs_above)
        keeping.drops++;
    keeping.merges = count - keeping.drops >= publication->kept_versions &&
                     history[count - 1].version > reads_up_to;
    pthread_mutex_unlock(&publication->lock);
    return keeping;
}

/* Add the changes of a version to those of the newest one. */
static banyan_status merge_maps(const banyan_publication *publication,
                                const struct kept_version *into, const struct kept_version *made)
{
    if (!made->memory)
        return BANYAN_OK;
    const struct publish_device *device = &publication->device;
    if (!publish_device_is_host(publication->kept_on))
        return device->delta->merge(device->engine, into->memory, made->memory, made->words);
    changes_merge(into->memory, made->memory, made->words);
    return BANYAN_OK;
}

/* Keep the maps of a version. With the lock held. */
static void keep_version(banyan_publication *publication, struct kept_version *made,
                         const struct keeping *keeping)
{
    struct kept_version *history = publication->history.data;
    size_t count = publication->history.count - keeping->drops;
    for (size_t i = 0; i < keeping->drops; i++)
        free_version(publication, &history[i]);
    memmove(history, history + keeping->drops, count * sizeof *history);
    publication->version = made->version;
    if (keeping->merges) {
        history[count - 1].version = made->version;
    } else {
        history[count++] = *made;
        *made = (struct kept_version){0};
    }
    publication->history.count = count;
}

/* Agree that all ranks may publish this version. */
static banyan_status agree_on(banyan_publication *publication, banyan_status mine, uint64_t version)
{
    banyan_world *world = publication->world;
    RETURN_IF_FAILED(control_agree(world, mine));
    uint64_t ends[] = {version, ~version, !publish_device_is_host(publication->kept_on)};
    RETURN_IF_FAILED(control_max_each(world, ends, 3));
    pthread_mutex_lock(&publication->lock);
    publication->on_device = ends[2];
    pthread_mutex_unlock(&publication->lock);
    if (ends[0] == ~ends[1])
        return BANYAN_OK;
    return control_fail_together(world, error_set(BANYAN_ERR_INVALID,
                                                  "ranks publish different versions: %" PRIu64
                                                  " to %" PRIu64 ", and this one %" PRIu64,
                                                  ~ends[1], ends[0], version));
}

/* Let nothing read the kept copy and the maps. */
static banyan_status stop_readers(banyan_publication *publication, struct keeping *keeping,
                                  banyan_publish_report *report)
{
    banyan_world *world = publication->world;
    uint64_t began_ns = time_now_ns();
    if (banyan_world_rank(world) == 0) {
        stop_fetches(publication);
        *keeping = choose_keeping(publication);
    }
    RETURN_IF_FAILED(banyan_world_broadcast(world, keeping, sizeof *keeping, 0));
    pthread_mutex_lock(&publication->lock);
    while (publication->readers > 0) /* their joined world has ended */
        pthread_cond_wait(&publication->changed, &publication->lock);
    publication->changes = true;
    pthread_mutex_unlock(&publication->lock);
    report->waited_ns = time_now_ns() - began_ns;
    return BANYAN_OK;
}

/* The part of a call after which the kept copy may be half of a version. */
static banyan_status publish_agreed(banyan_publication *publication, const banyan_tensors *tensors,
                                    struct kept_version *made, banyan_publish_report *report)
{
    banyan_world *world = publication->world;
    bool is_first = publication->version == 0;
    struct keeping keeping = {0};
    RETURN_IF_FAILED(stop_readers(publication, &keeping, report));
    banyan_status status = update(publication, tensors, made, report);
    if (is_first)
        report->changed = report->elems;
    if (status == BANYAN_OK && keeping.merges)
        status = merge_maps(publication, &publication->history.data[publication->history.count - 1],
                            made);
    RETURN_IF_FAILED(control_agree(world, status));
    pthread_mutex_lock(&publication->lock);
    keep_version(publication, made, &keeping);
    publication->changes = false;
    pthread_mutex_unlock(&publication->lock);
    RETURN_IF_FAILED(banyan_world_barrier(world));
    pthread_mutex_lock(&publication->lock);
    publication->open = true;
    publication_begin_fetches(publication);
    pthread_cond_broadcast(&publication->changed);
    pthread_mutex_unlock(&publication->lock);
    return BANYAN_OK;
}

banyan_status banyan_publication_publish(banyan_publication *publication,
                                         const banyan_tensors *tensors, uint64_t version,
                                         banyan_publish_report *report)
{
    RETURN_IF_NULL(publication);
    struct kept_version made = {0};
    banyan_publish_report filled = {0};
    CONTROL_ENTER(publication->world);
    banyan_status status = prepare(publication, tensors, version, &made);
    status = agree_on(publication, status, version);
    if (status == BANYAN_OK && publication->conversion)
        status = convert_first(publication, tensors, &filled);
    if (status == BANYAN_OK) {
        status = publish_agreed(publication, tensors, &made, &filled);
        if (status != BANYAN_OK) {
            pthread_mutex_lock(&publication->lock);
            publication->failed = error_keep(status);
            pthread_cond_broadcast(&publication->changed);
            pthread_mutex_unlock(&publication->lock);
        }
    }
    error_kept kept = error_keep(status);
    free_version(publication, &made);
    if (status == BANYAN_OK && report)
        *report = filled;
    return error_again(&kept);
}

/* ---- state and end ---- */

banyan_publication_status banyan_publication_get_status(const banyan_publication *publication)
{
    banyan_publication_status status = {0};
    if (!publication)
        return status;
    pthread_mutex_t *lock = (pthread_mutex_t *)&publication->lock;
    pthread_mutex_lock(lock);
    status.version = publication->version;
    for (size_t i = 0; i < publication->subscribers.count; i++)
        status.subscribers += publication->subscribers.data[i]->joined != NULL;
    status.fetching = publication->readers;
    status.joined = publication->joined;
    status.dropped = publication->dropped;
    status.sent_bytes = publication->sent_bytes;
    pthread_mutex_unlock(lock);
    return status;
}

void banyan_publication_close(banyan_publication *publication)
{
    if (!publication)
        return;
    pthread_mutex_lock(&publication->lock);
    publication->closing = true;
    pthread_cond_broadcast(&publication->changed);
    pthread_mutex_unlock(&publication->lock);
    if (publication->has_thread)
        pthread_join(publication->accepting, NULL);
    publication_destroy(publication);
}
