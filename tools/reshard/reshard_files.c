#include "reshard/reshard_job.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/clock.h"
#include "cli/files.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "core/status.h"
#include "launch/cleanup.h"
#include "launch/forked.h"
#include "run/measure.h"

enum { READING, MOVING, WRITING, STAGES };

static void reshard_files_show_progress(void *context, uint64_t done, uint64_t total)
{
    progress *bar = context;
    if (bar->total == 0)
        progress_begin(bar, true, bar->what, total, true);
    progress_add(bar, done - bar->done);
}

/* Show rank 0's bar for all: ranks read and write about equally much. */
static banyan_checkpoint_options with_progress(const move *moved, progress *bar, const char *what)
{
    banyan_checkpoint_options options = BANYAN_CHECKPOINT_OPTIONS_INIT;
    *bar = (progress){.what = what};
    if (moved->rank == 0) {
        options.progress = reshard_files_show_progress;
        options.progress_context = bar;
    }
    return options;
}

static banyan_status read_in(const reshard_job *job, move *moved)
{
    progress bar;
    banyan_checkpoint_options options = with_progress(moved, &bar, "reading");
    banyan_status status =
        banyan_checkpoint_load(job->checkpoint, moved->source, moved->source_tensors, &options);
    progress_end(&bar);
    return status;
}

static banyan_status reshard_files_write_out(const reshard_job *job, move *moved)
{
    progress bar;
    banyan_checkpoint_options options = with_progress(moved, &bar, "writing");
    bool holds = banyan_layout_tensor_count(moved->destination) > 0;
    options.small_files_from = job->in_folder;
    banyan_status status =
        banyan_checkpoint_save(job->saved, holds ? moved->destination : NULL,
                               holds ? moved->destination_tensors : NULL, moved->world, &options);
    progress_end(&bar);
    return status;
}

static banyan_status reshard_files_sum(banyan_world *world, uint64_t mine, uint64_t *total)
{
    size_t ranks = (size_t)banyan_world_size(world);
    uint64_t *all = calloc(ranks, sizeof *all);
    if (!all)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for %zu ranks", ranks);
    banyan_status status = banyan_world_allgather(world, &mine, sizeof mine, all);
    *total = 0;
    for (size_t rank = 0; rank < ranks; rank++)
        *total += all[rank];
    free(all);
    return status;
}

static banyan_status reshard_files_report(const reshard_job *job, const move *moved,
                                          const interval *stages)
{
    double seconds[STAGES];
    uint64_t read_bytes, written_bytes;
    size_t left_out;
    const char *first;
    char title[JOB_SPEC_TITLE_BYTES], texts[5][TEXT_NUMBER_BYTES];
    RETURN_IF_FAILED(measure_durations(moved->world, stages, STAGES, seconds));
    RETURN_IF_FAILED(
        reshard_files_sum(moved->world, banyan_layout_bytes(moved->source), &read_bytes));
    RETURN_IF_FAILED(
        reshard_files_sum(moved->world, banyan_layout_bytes(moved->destination), &written_bytes));
    if (moved->rank == 0 && job->json)
        RETURN_IF_FAILED(job_spec_left_out(&job->spec, &left_out, &first));
    if (moved->rank == 0 && job->json)
        return json_print(json_pack(
            "{s:s, s:s, s:s, s:b, s:i, s:s, s:b, s:I, s:I, s:f, s:f, s:I, s:f}", "in",
            job->spec.model_path, "from", job_spec_from(&job->spec), "to", job->spec.to_text,
            "disjoint", (int)job->spec.disjoint, "ranks", job->spec.ranks, "backend",
            banyan_copy_service_name(moved->service), "joined", (int)job->join, "left_out",
            (json_int_t)left_out, "read_bytes", (json_int_t)read_bytes, "read_seconds",
            seconds[READING], "move_seconds", seconds[MOVING], "written_bytes",
            (json_int_t)written_bytes, "write_seconds", seconds[WRITING]));
    if (moved->rank == 0)
        printf("%s (%s)\nread %s in %s, moved it in %s, wrote %s in %s\n",
               job_spec_title(&job->spec, title), banyan_copy_service_name(moved->service),
               text_bytes(read_bytes, texts[0]), text_seconds(seconds[READING], texts[1]),
               text_seconds(seconds[MOVING], texts[2]), text_bytes(written_bytes, texts[3]),
               text_seconds(seconds[WRITING], texts[4]));
    return moved->rank == 0 ? job_spec_print_left_out(&job->spec) : BANYAN_OK;
}

static banyan_status move_files(const reshard_job *job, int rank, move *moved)
{
    static banyan_status (*const work[STAGES])(const reshard_job *job, move *moved) = {
        [READING] = read_in, [WRITING] = reshard_files_write_out};
    interval stages[STAGES];
    RETURN_IF_FAILED(move_prepare(&job->spec, &job->how, rank, moved));
    for (int i = 0; i < STAGES; i++) {
        RETURN_IF_FAILED(banyan_world_barrier(moved->world));
        stages[i].began = clock_now_s();
        RETURN_IF_FAILED(work[i] ? work[i](job, moved) : move_execute(moved));
        stages[i].ended = clock_now_s();
    }
    return reshard_files_report(job, moved, stages);
}

static int files_rank(int rank, void *context)
{
    const reshard_job *job = context;
    move moved;
    banyan_status status = move_files(job, rank, &moved);
    return move_end(&moved, status, job->failed);
}

static int reshard_files_fail(const char *who, const char *message)
{
    fprintf(stderr, "%s: %s\n", who, message);
    return 1;
}

/* Refuse a folder with contents now, before the work is done. */
static bool reshard_files_is_taken(const char *path)
{
    struct stat found;
    DIR *folder = opendir(path);
    if (!folder)
        return lstat(path, &found) == 0;
    int entries = 0;
    while (readdir(folder))
        entries++;
    closedir(folder);
    return entries > 2;
}

static int reshard_files_join(reshard_job *job, const char *who)
{
    progress bar = {.what = "joining"};
    banyan_checkpoint_options options = BANYAN_CHECKPOINT_OPTIONS_INIT;
    options.progress = reshard_files_show_progress;
    options.progress_context = &bar;
    banyan_status status = banyan_checkpoint_join(job->saved, job->out, &options);
    progress_end(&bar);
    return status == BANYAN_OK ? 0 : reshard_files_fail(who, banyan_last_error());
}

/* Write the ranks' folders first, then join them. */
static int run_and_join(reshard_job *job, const char *who)
{
    work_folder work;
    leftovers left;
    char saved[PATH_MAX + 16];
    /* Start the helper before making the folder, so that no kill leaves the folder. */
    if (!work_folder_name(&work, job->out, who) || !leftovers_watch(&left, job->out, &work, who))
        return 1;
    if (!work_folder_make(&work, job->out, who)) {
        leftovers_remove(&left);
        return 1;
    }
    snprintf(saved, sizeof saved, "%s/saved", work.path);
    job->saved = saved;
    int code = forked_run(who, job->spec.ranks, files_rank, job, job->failed);
    if (code == 0)
        code = reshard_files_join(job, who);
    leftovers_remove(&left);
    return code;
}

static int run_and_leave(reshard_job *job, const char *who)
{
    leftovers left;
    if (!leftovers_watch(&left, job->out, NULL, who))
        return 1;
    job->saved = job->out;
    int code = forked_run(who, job->spec.ranks, files_rank, job, job->failed);
    leftovers_remove(&left);
    return code;
}

static int reshard_files_run(reshard_job *job, const char *who)
{
    if (!job_spec_read(&job->spec, who))
        return 1;
    job->failed = failure_create();
    if (!job->failed)
        return reshard_files_fail(who, "out of memory");
    if (job->join)
        return run_and_join(job, who);
    return run_and_leave(job, who);
}

static int open_and_run(reshard_job *job, const char *who)
{
    struct stat found;
    if (stat(job->spec.model_path, &found) == 0 && S_ISDIR(found.st_mode))
        job->in_folder = job->spec.model_path;
    if (banyan_checkpoint_open(job->spec.model_path, &job->checkpoint) != BANYAN_OK)
        return reshard_files_fail(who, banyan_last_error());
    if (banyan_checkpoint_rank_count(job->checkpoint) > 0)
        job->spec.saved = job->checkpoint;
    /* A Hugging Face folder holds whole tensors: one rank reads them all. */
    if (!job->spec.from_text && !job->spec.saved)
        job->spec.from_text = "tp=1";
    return reshard_files_run(job, who);
}

int reshard_files(reshard_job *job, const char *who)
{
    /* "out/" means the folder, and names beside it are made of its name. */
    char *out = strdup(job->out);
    if (!out)
        return reshard_files_fail(who, "out of memory");
    size_t length = strlen(out);
    while (length > 1 && out[length - 1] == '/')
        out[--length] = '\0';
    job->out = out;
    int code = 1;
    if (reshard_files_is_taken(out))
        fprintf(stderr, "%s: --out %s exists already\n", who, out);
    else
        code = open_and_run(job, who);
    failure_destroy(job->failed);
    banyan_checkpoint_close(job->checkpoint);
    job_spec_free(&job->spec);
    free(out);
    return code;
}
