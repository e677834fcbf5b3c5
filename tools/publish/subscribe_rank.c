#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/clock.h"
#include "cli/text.h"
#include "core/status.h"
#include "publish/description.h"
#include "publish/service.h"
#include "publish/subscribe_job.h"
#include "publish/version_folder.h"
#include "publish/whole_tensor.h"

#define WHO "banyan subscribe"
/* The longest time of a turn, after which a rank looks for signals and errors. */
#define TURN_NS 100000000
/* The time after which a message says that nothing is published there. */
#define SILENT_SECONDS 10

struct subscribing {
    const subscribe_job *job;
    banyan_world *world;
    description about; /* at rank 0 */
    banyan_model *model;
    banyan_rules *rules;
    banyan_layout *layout;
    banyan_tensors *tensors;
    double last_s; /* when the last version came, or the command began */
    bool is_quiet; /* something has come, or a message has told that nothing does */
};

/* A subscription that all ranks follow in turns. */
struct follower {
    banyan_subscription *subscription;
    uint64_t seen;    /* fetches whose versions are committed */
    uint64_t version; /* the current one; 0: none */
    double commit_s;  /* that its commit took */
};

/* A rank's part of a turn. */
struct turn_report {
    uint32_t has_version, ends, fails;
};

static bool subscribe_is_first(const struct subscribing *all)
{
    return banyan_world_rank(all->world) == 0;
}

/* ---- turns ---- */

static uint64_t fetches_of(const banyan_subscription_status *status)
{
    return status->whole_fetches + status->delta_fetches;
}

/* True for errors that another attempt does not mend: another secret or name, or a layout that does
 * not fit. */
static bool is_final_error(banyan_status status)
{
    return status == BANYAN_ERR_REFUSED || status == BANYAN_ERR_MISMATCH ||
           status == BANYAN_ERR_NOT_FOUND || status == BANYAN_ERR_INVALID ||
           status == BANYAN_ERR_FORMAT || status == BANYAN_ERR_UNSUPPORTED;
}

/* Look at the time without a version, at rank 0. */
static banyan_status look_at_time(struct subscribing *all, const struct follower *follower,
                                  const banyan_subscription_status *status)
{
    double silent_s = clock_now_s() - all->last_s;
    const subscribe_job *job = all->job;
    if (silent_s > SILENT_SECONDS && !status->connected && !all->is_quiet) {
        fprintf(stderr, WHO ": nothing is published at %s yet; waiting\n", job->at);
        all->is_quiet = true;
    }
    if (job->timeout_s == 0 || silent_s < job->timeout_s)
        return BANYAN_OK;
    error_kept last = error_keep(banyan_subscription_check(follower->subscription));
    return banyan_error_set(BANYAN_ERR_TIMEOUT, "no version came from %s in %g s%s%s", job->at,
                            job->timeout_s, last.message[0] ? "; " : "", last.message);
}

/* Gather the ranks' reports in one. */
static banyan_status gather(struct subscribing *all, struct turn_report *mine)
{
    size_t ranks = (size_t)banyan_world_size(all->world);
    struct turn_report *every = calloc(ranks, sizeof *every);
    if (!every)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for %zu ranks", ranks);
    banyan_status status = banyan_world_allgather(all->world, mine, sizeof *mine, every);
    for (size_t i = 0; i < ranks; i++) {
        mine->has_version &= every[i].has_version;
        mine->ends |= every[i].ends;
        mine->fails |= every[i].fails;
    }
    free(every);
    return status;
}

/* Commit a version that all ranks have. The last version that was staged when the turn began is
 * then seen. */
static banyan_status commit(struct follower *follower, uint64_t fetches)
{
    double began_s = clock_now_s();
    RETURN_IF_FAILED(banyan_subscription_commit(follower->subscription, &follower->version));
    follower->commit_s = clock_now_s() - began_s;
    banyan_subscription_status now = banyan_subscription_get_status(follower->subscription);
    follower->seen = now.staged == now.version ? fetches_of(&now) : fetches;
    return BANYAN_OK;
}

/* Take one turn: wait a moment for a version, and commit it if all ranks have it. `*ends`: a signal
 * has come. */
static banyan_status take_turn(struct subscribing *all, struct follower *follower, bool *committed,
                               bool *ends)
{
    banyan_subscription *mine = follower->subscription;
    banyan_subscription_status status = banyan_subscription_get_status(mine);
    uint64_t version;
    if (fetches_of(&status) == follower->seen) {
        (void)banyan_subscription_wait(mine, status.staged, TURN_NS, &version);
        status = banyan_subscription_get_status(mine);
    }
    struct turn_report report = {.has_version = fetches_of(&status) != follower->seen,
                                 .ends = service_ends()};
    banyan_status failed = banyan_subscription_check(mine);
    if (!is_final_error(failed))
        failed = BANYAN_OK;
    if (failed == BANYAN_OK && !report.has_version && subscribe_is_first(all))
        failed = look_at_time(all, follower, &status);
    report.fails = failed != BANYAN_OK;
    error_kept kept = error_keep(failed);
    RETURN_IF_FAILED(gather(all, &report));
    *ends = report.ends;
    *committed = report.has_version && !report.fails && !report.ends;
    if (report.fails)
        return failed != BANYAN_OK
                   ? banyan_error_set(failed, "%s", kept.message)
                   : banyan_error_set(BANYAN_ERR_ABORTED, "another rank's subscription has failed");
    all->is_quiet |= *committed;
    return *committed ? commit(follower, fetches_of(&status)) : BANYAN_OK;
}

static banyan_status subscribe_open(struct subscribing *all, const banyan_layout *layout,
                                    banyan_tensors *tensors, struct follower *opened)
{
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    bool holds = layout && banyan_layout_tensor_count(layout) > 0;
    options.name = all->job->name;
    options.bytes_per_s = all->job->bytes_per_s;
    options.verify = all->job->verify;
    *opened = (struct follower){.version = 0};
    return banyan_subscription_open(all->world, holds ? layout : NULL, holds ? tensors : NULL,
                                    all->job->at, all->job->secret, &options,
                                    &opened->subscription);
}

/* ---- the description ---- */

/* Fetch one dense tensor of one dimension to rank 0. */
static banyan_status fetch_tensor(struct subscribing *all, const char *name, DLDataType dtype,
                                  int64_t elems, void *data, bool *ends)
{
    banyan_layout *layout = NULL;
    banyan_tensors *tensors = NULL;
    struct follower follower = {.version = 0};
    banyan_status status = BANYAN_OK;
    if (subscribe_is_first(all)) {
        DLTensor tensor = {
            .data = data, .device = BANYAN_HOST, .ndim = 1, .dtype = dtype, .shape = &elems};
        status = banyan_layout_create(&layout);
        if (status == BANYAN_OK) {
            whole_tensor_add(layout, &(banyan_local_tensor){name, dtype, 1, {elems}});
            status = banyan_tensors_create(layout, &tensor, 1, &tensors);
        }
    }
    if (status == BANYAN_OK)
        status = subscribe_open(all, layout, tensors, &follower);
    for (bool committed = false; status == BANYAN_OK && !committed && !*ends;)
        status = take_turn(all, &follower, &committed, ends);
    error_kept kept = error_keep(status);
    banyan_subscription_close(follower.subscription);
    banyan_tensors_destroy(tensors);
    banyan_layout_destroy(layout);
    if (status == BANYAN_ERR_NOT_FOUND)
        return banyan_error_set(status,
                                "%s (a publication of another program than banyan publish needs "
                                "--model FILE)",
                                kept.message);
    return status == BANYAN_OK ? BANYAN_OK : banyan_error_set(status, "%s", kept.message);
}

static bool model_path(const struct subscribing *all, char path[PATH_MAX])
{
    return snprintf(path, PATH_MAX, "%s/model.json", all->job->work.path) < PATH_MAX;
}

/* Make room for the description at rank 0. */
static banyan_status reserve_description(struct subscribing *all, uint64_t bytes)
{
    all->about.bytes = bytes;
    if (bytes > DESCRIPTION_MOST)
        return banyan_error_set(BANYAN_ERR_FORMAT,
                                "the publication's description of its model has %" PRIu64
                                " bytes, more than %" PRIu64,
                                bytes, DESCRIPTION_MOST);
    all->about.data = subscribe_is_first(all) ? malloc(bytes + 1) : NULL;
    if (subscribe_is_first(all) && !all->about.data)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for a description");
    return BANYAN_OK;
}

/* Tell all ranks whether rank 0 has failed. */
static banyan_status agree_with_first(struct subscribing *all, banyan_status mine)
{
    error_kept kept = error_keep(mine);
    int status = (int)mine;
    RETURN_IF_FAILED(banyan_world_broadcast(all->world, &status, sizeof status, 0));
    if (status == BANYAN_OK)
        return BANYAN_OK;
    return subscribe_is_first(all)
               ? banyan_error_set(kept.status, "%s", kept.message)
               : banyan_error_set(BANYAN_ERR_ABORTED, "rank 0 has no description of the model");
}

static banyan_status fetch_description(struct subscribing *all, bool *ends)
{
    static const DLDataType byte = {kDLUInt, 8, 1}, word = {kDLUInt, 64, 1};
    char path[PATH_MAX];
    uint64_t bytes = 0;
    RETURN_IF_FAILED(fetch_tensor(all, DESCRIPTION_BYTES_NAME, word, 1, &bytes, ends));
    RETURN_IF_FAILED(agree_with_first(all, *ends ? BANYAN_OK : reserve_description(all, bytes)));
    if (*ends)
        return BANYAN_OK;
    RETURN_IF_FAILED(
        fetch_tensor(all, DESCRIPTION_NAME, byte, (int64_t)bytes, all->about.data, ends));
    if (*ends)
        return BANYAN_OK;
    banyan_status status = BANYAN_OK;
    if (subscribe_is_first(all)) {
        status = description_parse(&all->about);
        if (status == BANYAN_OK && !model_path(all, path))
            status = banyan_error_set(BANYAN_ERR_INVALID, "the path of --out is too long");
        if (status == BANYAN_OK)
            status = description_write_model(&all->about, path);
    }
    return agree_with_first(all, status);
}

/* ---- the layout ---- */

static banyan_status subscribe_make_layout(struct subscribing *all)
{
    const subscribe_job *job = all->job;
    int rank = banyan_world_rank(all->world);
    char described[PATH_MAX];
    RETURN_IF_FAILED(banyan_layout_create(&all->layout));
    if (job->file) {
        banyan_layout_add_file(all->layout, job->file, rank, 0);
        return banyan_layout_check_as(all->layout, BANYAN_DESTINATION);
    }
    const char *path = job->model ? job->model : model_path(all, described) ? described : NULL;
    if (!path)
        return banyan_error_set(BANYAN_ERR_INVALID, "the path of --out is too long");
    RETURN_IF_FAILED(banyan_model_load(path, &all->model));
    if (!job->to) {
        for (size_t i = 0; i < banyan_model_tensor_count(all->model); i++)
            whole_tensor_add(all->layout, banyan_model_tensor(all->model, i));
    } else {
        RETURN_IF_FAILED(banyan_rules_load(job->rules, &all->rules));
        banyan_layout_add_model(all->layout, all->model, all->rules, &job->spec, rank, 0);
    }
    return banyan_layout_check_as(all->layout, BANYAN_DESTINATION);
}

/* ---- versions ---- */

/* A rank's part of a version. */
struct version_received {
    uint64_t bytes, fetch_ns, commit_ns;
};

static banyan_status subscribe_report(struct subscribing *all, const struct follower *follower,
                                      const struct version_received *mine, bool whole,
                                      double write_s)
{
    size_t ranks = (size_t)banyan_world_size(all->world);
    struct version_received *every = calloc(ranks, sizeof *every), sum = {0};
    if (!every)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for %zu ranks", ranks);
    banyan_status status = banyan_world_allgather(all->world, mine, sizeof *mine, every);
    for (size_t i = 0; i < ranks; i++) {
        sum.bytes += every[i].bytes;
        sum.fetch_ns = every[i].fetch_ns > sum.fetch_ns ? every[i].fetch_ns : sum.fetch_ns;
        sum.commit_ns = every[i].commit_ns > sum.commit_ns ? every[i].commit_ns : sum.commit_ns;
    }
    free(every);
    if (status != BANYAN_OK || !subscribe_is_first(all))
        return status;
    char path[PATH_MAX], text[PATH_MAX + 256], part[4][TEXT_NUMBER_BYTES];
    const version_folder folder = {.out = all->job->out};
    (void)version_folder_path(&folder, follower->version, path, sizeof path);
    snprintf(
        text, sizeof text, "version %" PRIu64 ": %s %s in %s, committed in %s, written in %s: %s",
        follower->version, text_bytes(sum.bytes, part[0]), whole ? "(whole)" : "of changes",
        text_seconds((double)sum.fetch_ns / 1e9, part[1]),
        text_seconds((double)sum.commit_ns / 1e9, part[2]), text_seconds(write_s, part[3]), path);
    json_t *json = NULL;
    if (all->job->json)
        json = json_pack("{s:I, s:s, s:b, s:I, s:f, s:f, s:f}", "version",
                         (json_int_t)follower->version, "path", path, "whole", (int)whole, "bytes",
                         (json_int_t)sum.bytes, "fetch_seconds", (double)sum.fetch_ns / 1e9,
                         "commit_seconds", (double)sum.commit_ns / 1e9, "write_seconds", write_s);
    return service_print(json, text);
}

/* Follow the publication until the end. */
static banyan_status follow(struct subscribing *all, struct follower *follower)
{
    const subscribe_job *job = all->job;
    const version_folder folder = {.out = job->out,
                                   .work = job->work.path,
                                   .keep = job->keep,
                                   .by_rank = job->to != NULL,
                                   .about = all->about.header ? &all->about : NULL};
    banyan_subscription_status before = {0};
    bool holds = banyan_layout_tensor_count(all->layout) > 0, committed, ends = false;
    for (int written = 0; !ends && (job->versions == 0 || written < job->versions);) {
        RETURN_IF_FAILED(take_turn(all, follower, &committed, &ends));
        if (!committed)
            continue;
        banyan_subscription_status now = banyan_subscription_get_status(follower->subscription);
        struct version_received mine = {.bytes = now.received_bytes - before.received_bytes,
                                        .fetch_ns = now.fetch_ns,
                                        .commit_ns = (uint64_t)(follower->commit_s * 1e9)};
        double write_began_s = clock_now_s();
        RETURN_IF_FAILED(version_folder_write(&folder, follower->version,
                                              holds ? all->layout : NULL,
                                              holds ? all->tensors : NULL, all->world));
        RETURN_IF_FAILED(subscribe_report(all, follower, &mine,
                                          now.whole_fetches > before.whole_fetches,
                                          clock_now_s() - write_began_s));
        before = now;
        all->last_s = clock_now_s();
        written++;
    }
    return BANYAN_OK;
}

static banyan_status subscribe_run_ranks(struct subscribing *all, struct follower *follower)
{
    bool ends = false;
    all->last_s = clock_now_s();
    RETURN_IF_FAILED(banyan_world_open(NULL, &all->world));
    if (!all->job->model)
        RETURN_IF_FAILED(fetch_description(all, &ends));
    if (ends)
        return BANYAN_OK;
    RETURN_IF_FAILED(subscribe_make_layout(all));
    RETURN_IF_FAILED(banyan_tensors_alloc(all->layout, NULL, &all->tensors));
    RETURN_IF_FAILED(subscribe_open(all, all->layout, all->tensors, follower));
    return follow(all, follower);
}

int subscribe_rank(int rank, void *context)
{
    const subscribe_job *job = context;
    struct subscribing all = {.job = job};
    struct follower follower = {.version = 0};
    service_catch_signals();
    banyan_status status = subscribe_run_ranks(&all, &follower);
    if (status != BANYAN_OK)
        failure_note(job->failed, rank, status);
    banyan_subscription_close(follower.subscription);
    banyan_tensors_destroy(all.tensors);
    banyan_layout_destroy(all.layout);
    banyan_rules_destroy(all.rules);
    banyan_model_destroy(all.model);
    description_free(&all.about);
    if (status == BANYAN_OK && (status = banyan_world_close(all.world)) != BANYAN_OK)
        failure_note(job->failed, rank, status);
    return status == BANYAN_OK ? 0 : 1;
}
