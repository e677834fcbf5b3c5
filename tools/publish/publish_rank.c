#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <banyan/banyan.h>

#include "cli/clock.h"
#include "cli/text.h"
#include "core/status.h"
#include "publish/description.h"
#include "publish/publish_job.h"
#include "publish/service.h"
#include "publish/source_folder.h"
#include "publish/whole_tensor.h"

#define WHO "banyan publish"
#define POLL_NS 100000000

/* A rank's share of the tensors, in whole tensors. */
struct publishing {
    const publish_job *job;
    banyan_world *world;
    source_folder folder;        /* used by rank 0 */
    json_t *tensors;             /* of the first version: those of all versions */
    DLDataType dtype;            /* of --cast */
    const DLDataType *cast;      /* that, or NULL */
    banyan_transform *transform; /* that casts */
    banyan_layout *share, *layout;
    banyan_tensors *share_set, *set; /* `set` and `layout` have rank 0's description besides */
    description about;
    uint64_t about_bytes, about_elems; /* elements of the description's tensors */
    banyan_publication *publication;
};

/* Rank 0 decides for all. */
enum turn_kind { TURN_WAITS, TURN_PUBLISHES, TURN_ENDS, TURN_FAILS };

struct turn {
    int kind;
    source_checkpoint found;
};

/* How a rank's load has ended. */
enum load_result { LOADED, LOAD_AGAIN, LOAD_FAILED };

struct load_report {
    int result;
    int status;
    char message[1024];
};

/* ---- opening ---- */

static bool publish_is_first(const struct publishing *all)
{
    return banyan_world_rank(all->world) == 0;
}

/* Divide the tensors, in their order, into shares of about equal bytes. */
static banyan_status make_share(struct publishing *all, const banyan_checkpoint *checkpoint)
{
    size_t count = banyan_checkpoint_tensor_count(checkpoint);
    uint64_t total = 0, before = 0;
    RETURN_IF_FAILED(banyan_layout_create(&all->share));
    for (size_t i = 0; i < count; i++)
        total += whole_tensor_bytes(banyan_checkpoint_tensor(checkpoint, i));
    for (size_t i = 0; i < count; i++) {
        banyan_local_tensor tensor = *banyan_checkpoint_tensor(checkpoint, i);
        double middle = (double)before + (double)whole_tensor_bytes(&tensor) / 2;
        double place = total > 0 ? middle / (double)total * banyan_world_size(all->world) : 0;
        before += whole_tensor_bytes(&tensor);
        tensor.dtype = description_dtype(&tensor, all->cast);
        if ((int)place == banyan_world_rank(all->world))
            whole_tensor_add(all->share, &tensor);
    }
    RETURN_IF_FAILED(banyan_layout_check(all->share));
    return banyan_tensors_alloc(all->share, NULL, &all->share_set);
}

/* Make the published layout: the share, and at rank 0 the description. */
static banyan_status make_published(struct publishing *all)
{
    static const DLDataType byte = {kDLUInt, 8, 1}, word = {kDLUInt, 64, 1};
    size_t count = banyan_layout_tensor_count(all->share);
    int64_t one = 1, bytes = (int64_t)all->about.bytes;
    DLTensor *tensors = calloc(count + 2, sizeof *tensors);
    RETURN_IF_FAILED(banyan_layout_create(&all->layout));
    for (size_t i = 0; i < count; i++) {
        whole_tensor_add(all->layout, banyan_layout_tensor(all->share, i));
        if (tensors)
            tensors[i] = *banyan_tensors_get(all->share_set, i);
    }
    if (publish_is_first(all) && tensors) {
        all->about_bytes = all->about.bytes;
        all->about_elems = all->about.bytes + 1;
        whole_tensor_add(all->layout,
                         &(banyan_local_tensor){DESCRIPTION_BYTES_NAME, word, 1, {one}});
        whole_tensor_add(all->layout, &(banyan_local_tensor){DESCRIPTION_NAME, byte, 1, {bytes}});
        tensors[count++] = (DLTensor){.data = &all->about_bytes,
                                      .device = BANYAN_HOST,
                                      .ndim = 1,
                                      .dtype = word,
                                      .shape = &one};
        tensors[count++] = (DLTensor){.data = all->about.data,
                                      .device = BANYAN_HOST,
                                      .ndim = 1,
                                      .dtype = byte,
                                      .shape = &bytes};
    }
    banyan_status status =
        tensors ? banyan_layout_check(all->layout)
                : banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for %zu tensors", count);
    if (status == BANYAN_OK)
        status = banyan_tensors_create(all->layout, tensors, count, &all->set);
    free(tensors);
    return status;
}

static banyan_status open_locally(struct publishing *all, const banyan_checkpoint *checkpoint,
                                  const char *path)
{
    all->tensors = description_tensors(checkpoint, all->cast);
    if (!all->tensors)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for a list of tensors");
    RETURN_IF_FAILED(make_share(all, checkpoint));
    if (publish_is_first(all))
        RETURN_IF_FAILED(description_make(checkpoint, all->cast, path, &all->about));
    if (all->about.bytes > DESCRIPTION_MOST)
        return banyan_error_set(BANYAN_ERR_INVALID,
                                "the list of tensors and the small files of %s take %" PRIu64
                                " bytes, more than %" PRIu64,
                                path, all->about.bytes, DESCRIPTION_MOST);
    return make_published(all);
}

static banyan_status open_publication(struct publishing *all)
{
    const publish_job *job = all->job;
    banyan_publication_options options = BANYAN_PUBLICATION_OPTIONS_INIT;
    options.name = job->name;
    options.kept_versions = (uint32_t)job->kept;
    options.patience_ns = (uint64_t)(job->patience_s * 1e9);
    if (job->compress && strcmp(job->compress, "auto") != 0)
        options.compression =
            strcmp(job->compress, "off") == 0 ? BANYAN_COMPRESSION_OFF : BANYAN_COMPRESSION_ALWAYS;
    bool holds = banyan_layout_tensor_count(all->layout) > 0;
    RETURN_IF_FAILED(banyan_publication_open(all->world, holds ? all->layout : NULL, job->listen,
                                             job->secret, &options, &all->publication));
    if (!publish_is_first(all))
        return BANYAN_OK;
    const char *address = banyan_publication_address(all->publication);
    char text[512];
    snprintf(text, sizeof text, "publishing %.200s at %s", job->in, address);
    return service_print(job->json ? json_pack("{s:s}", "address", address) : NULL, text);
}

/* ---- a version ---- */

/* Gather how loads went; return the worst of them. */
static banyan_status agree_on_load(struct publishing *all, struct load_report *mine)
{
    size_t ranks = (size_t)banyan_world_size(all->world);
    struct load_report *every = calloc(ranks, sizeof *every), worst = *mine;
    if (!every)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for %zu ranks", ranks);
    banyan_status status = banyan_world_allgather(all->world, mine, sizeof *mine, every);
    for (size_t i = 0; i < ranks && status == BANYAN_OK; i++)
        worst = every[i].result > worst.result ? every[i] : worst;
    free(every);
    *mine = worst;
    return status;
}

static struct load_report load_failed(int result, banyan_status status)
{
    struct load_report report = {.result = result, .status = status};
    snprintf(report.message, sizeof report.message, "%s", banyan_last_error());
    return report;
}

/* Read this rank's share of a checkpoint. At the first version, make the layouts. */
static struct load_report load_share(struct publishing *all, const char *path)
{
    banyan_checkpoint *checkpoint;
    struct load_report report = {.result = LOADED};
    banyan_status status = banyan_checkpoint_open(path, &checkpoint);
    if (status != BANYAN_OK)
        return load_failed(LOAD_AGAIN, status);
    if (!all->tensors) {
        status = open_locally(all, checkpoint, path);
        if (status != BANYAN_OK)
            report = load_failed(LOAD_FAILED, status);
    } else {
        json_t *now = description_tensors(checkpoint, all->cast);
        status = now ? description_compare(all->tensors, now) : BANYAN_ERR_NO_MEMORY;
        json_decref(now);
        if (status != BANYAN_OK)
            report = load_failed(LOAD_FAILED, status);
    }
    if (report.result == LOADED) {
        banyan_checkpoint_options options = BANYAN_CHECKPOINT_OPTIONS_INIT;
        options.transform = all->transform;
        status = banyan_checkpoint_load(checkpoint, all->share, all->share_set, &options);
        if (status != BANYAN_OK)
            report = load_failed(LOAD_AGAIN, status);
    }
    banyan_checkpoint_close(checkpoint);
    return report;
}

/* Load a checkpoint on all ranks. `*loaded` is false if it has changed meanwhile, or cannot be
 * read. */
static banyan_status load_version(struct publishing *all, const struct turn *turn, bool *loaded)
{
    struct load_report report = load_share(all, turn->found.path);
    RETURN_IF_FAILED(agree_on_load(all, &report));
    int unchanged = publish_is_first(all) && source_checkpoint_is_unchanged(&turn->found);
    RETURN_IF_FAILED(banyan_world_broadcast(all->world, &unchanged, sizeof unchanged, 0));
    *loaded = report.result == LOADED && unchanged;
    if (report.result == LOAD_FAILED && unchanged)
        return banyan_error_set((banyan_status)report.status, "%s is not published: %s",
                                turn->found.path, report.message);
    if (!*loaded && unchanged && publish_is_first(all))
        source_folder_refuse(&all->folder, &turn->found, report.message);
    return BANYAN_OK;
}

struct rank_report {
    banyan_publish_report publish;
    uint64_t bytes;
};

static banyan_status publish_report(struct publishing *all, const struct turn *turn,
                                    const banyan_publish_report *mine, double load_s)
{
    size_t ranks = (size_t)banyan_world_size(all->world);
    struct rank_report sum = {*mine, banyan_layout_bytes(all->share)};
    struct rank_report *every = calloc(ranks, sizeof *every);
    if (!every)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for %zu ranks", ranks);
    /* The description changes in the first version alone. */
    sum.publish.changed -= sum.publish.changed == sum.publish.elems ? all->about_elems : 0;
    sum.publish.elems -= all->about_elems;
    banyan_status status = banyan_world_allgather(all->world, &sum, sizeof sum, every);
    sum = (struct rank_report){.bytes = 0};
    for (size_t i = 0; i < ranks; i++) {
        const banyan_publish_report *one = &every[i].publish;
        sum.bytes += every[i].bytes;
        sum.publish.elems += one->elems;
        sum.publish.changed += one->changed;
        if (one->waited_ns > sum.publish.waited_ns)
            sum.publish.waited_ns = one->waited_ns;
        if (one->compared_ns > sum.publish.compared_ns)
            sum.publish.compared_ns = one->compared_ns;
    }
    free(every);
    if (status != BANYAN_OK || !publish_is_first(all))
        return status;
    banyan_publication_status now = banyan_publication_get_status(all->publication);
    char text[PATH_MAX + 512], part[5][TEXT_NUMBER_BYTES];
    double compared_s = (double)sum.publish.compared_ns / 1e9;
    snprintf(text, sizeof text,
             "version %" PRIu64 ": %s of %s elements changed (%.3g %%), %s read in %s, compared in "
             "%s, %u subscriber%s: %s",
             turn->found.version, text_count(sum.publish.changed, part[0]),
             text_count(sum.publish.elems, part[1]),
             sum.publish.elems ? 100 * (double)sum.publish.changed / (double)sum.publish.elems : 0,
             text_bytes(sum.bytes, part[2]), text_seconds(load_s, part[3]),
             text_seconds(compared_s, part[4]), now.subscribers, now.subscribers == 1 ? "" : "s",
             turn->found.path);
    json_t *json = NULL;
    if (all->job->json)
        json = json_pack("{s:I, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:i}", "version",
                         (json_int_t)turn->found.version, "path", turn->found.path, "elements",
                         (json_int_t)sum.publish.elems, "changed", (json_int_t)sum.publish.changed,
                         "bytes", (json_int_t)sum.bytes, "read_seconds", load_s, "compare_seconds",
                         compared_s, "wait_seconds", (double)sum.publish.waited_ns / 1e9,
                         "subscribers", (int)now.subscribers);
    return service_print(json, text);
}

static banyan_status publish_version(struct publishing *all, const struct turn *turn)
{
    banyan_publish_report report;
    bool loaded, holds;
    double began_s = clock_now_s();
    RETURN_IF_FAILED(load_version(all, turn, &loaded));
    if (!loaded)
        return BANYAN_OK;
    double load_s = clock_now_s() - began_s;
    if (!all->publication)
        RETURN_IF_FAILED(open_publication(all));
    holds = banyan_layout_tensor_count(all->layout) > 0;
    RETURN_IF_FAILED(banyan_publication_publish(all->publication, holds ? all->set : NULL,
                                                turn->found.version, &report));
    if (publish_is_first(all))
        source_folder_note(&all->folder, &turn->found);
    return publish_report(all, turn, &report, load_s);
}

/* ---- turns ---- */

/* Choose what comes next, at rank 0. */
static struct turn publish_choose(struct publishing *all)
{
    struct turn turn = {.kind = TURN_WAITS};
    source_folder *folder = &all->folder;
    source_state state = SOURCE_NONE;
    bool looks = all->job->watch || folder->published.version == 0;
    if (service_ends())
        turn.kind = TURN_ENDS;
    else if (looks)
        state = source_folder_look(folder, &turn.found);
    if (state == SOURCE_READY)
        turn.kind = TURN_PUBLISHES;
    else if (state == SOURCE_NONE && looks && !all->job->watch)
        turn.kind = TURN_FAILS;
    if (folder->has_news && turn.kind != TURN_FAILS)
        fprintf(stderr, WHO ": %s\n", folder->reason);
    folder->has_news = false;
    if (turn.kind == TURN_WAITS)
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    return turn;
}

static banyan_status publish_run(struct publishing *all)
{
    if (all->job->cast) {
        RETURN_IF_FAILED(banyan_dtype_parse(all->job->cast, &all->dtype));
        RETURN_IF_FAILED(banyan_cast_create(NULL, &all->transform));
        all->cast = &all->dtype;
    }
    RETURN_IF_FAILED(banyan_world_open(NULL, &all->world));
    for (;;) {
        struct turn turn = {.kind = TURN_WAITS};
        if (publish_is_first(all))
            turn = publish_choose(all);
        RETURN_IF_FAILED(banyan_world_broadcast(all->world, &turn, sizeof turn, 0));
        if (turn.kind == TURN_ENDS)
            return BANYAN_OK;
        if (turn.kind == TURN_FAILS)
            return banyan_error_set(BANYAN_ERR_NOT_FOUND, "%s",
                                    publish_is_first(all) ? all->folder.reason : all->job->in);
        if (turn.kind == TURN_PUBLISHES)
            RETURN_IF_FAILED(publish_version(all, &turn));
    }
}

int publish_rank(int rank, void *context)
{
    const publish_job *job = context;
    struct publishing all = {.job = job, .folder = {.path = job->in, .settle_s = job->settle_s}};
    service_catch_signals();
    banyan_status status = publish_run(&all);
    if (status != BANYAN_OK)
        failure_note(job->failed, rank, status);
    banyan_publication_close(all.publication);
    banyan_transform_destroy(all.transform);
    banyan_tensors_destroy(all.set);
    banyan_tensors_destroy(all.share_set);
    banyan_layout_destroy(all.layout);
    banyan_layout_destroy(all.share);
    description_free(&all.about);
    json_decref(all.tensors);
    source_folder_free(&all.folder);
    if (status == BANYAN_OK && (status = banyan_world_close(all.world)) != BANYAN_OK)
        failure_note(job->failed, rank, status);
    return status == BANYAN_OK ? 0 : 1;
}
