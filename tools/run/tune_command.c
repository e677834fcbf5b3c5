#include "cli/commands.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <banyan/banyan.h>
#include <jansson.h>

#include "cli/files.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "core/status.h"
#include "launch/forked.h"
#include "launch/gpus.h"

#define WHO "banyan tune"

typedef struct tune_job {
    const char *path;
    bool exists; /* the table in `path` is extended */
    int ranks, workers;
    bool on_gpus, json;
    banyan_tune_options how;
    failure *failed;
} tune_job;

typedef struct tune_measurement {
    banyan_tune_time time;
    char algorithm[64]; /* time.algorithm is NULL */
} tune_measurement;

typedef struct measurements {
    progress bar;
    tune_measurement *all;
    size_t count, room;
} measurements;

static void keep_time(void *context, const banyan_tune_time *time)
{
    measurements *kept = context;
    if (kept->count == kept->room) {
        size_t room = kept->room ? 2 * kept->room : 256;
        tune_measurement *all = realloc(kept->all, room * sizeof *all);
        if (!all)
            return; /* its row is in the table all the same */
        kept->all = all;
        kept->room = room;
    }
    tune_measurement *one = &kept->all[kept->count++];
    one->time = *time;
    snprintf(one->algorithm, sizeof one->algorithm, "%s", time->algorithm);
    one->time.algorithm = NULL;
}

static bool is_same_message(const banyan_tune_time *a, const banyan_tune_time *b)
{
    return a->kind == b->kind && a->registered == b->registered &&
           a->message_bytes == b->message_bytes;
}

/* "allreduce_packets × 8" */
static void print_algorithm(const char *name, int instances)
{
    printf("%s", name);
    if (instances > 1)
        printf(" × %d", instances);
}

/* A line for the `count` measurements of one message: the fastest, and the next algorithm. */
static void print_message(const tune_measurement *of, size_t count)
{
    const tune_measurement *best = of, *next = NULL;
    for (size_t i = 1; i < count; i++)
        best = of[i].time.ns < best->time.ns ? &of[i] : best;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(of[i].algorithm, best->algorithm) != 0 &&
            (!next || of[i].time.ns < next->time.ns))
            next = &of[i];
    }
    char text[TEXT_NUMBER_BYTES];
    printf("%-15s%-12s%16s%12.2f  ", banyan_collective_kind_name(best->time.kind),
           best->time.registered ? "registered" : "ordinary",
           text_count(best->time.message_bytes, text), best->time.ns / 1e3);
    print_algorithm(best->algorithm, best->time.instances);
    if (next) {
        printf(" (%.2f: ", next->time.ns / 1e3);
        print_algorithm(next->algorithm, next->time.instances);
        printf(")");
    }
    printf("\n");
}

static void print_times(const measurements *kept)
{
    char cell[TEXT_NUMBER_BYTES];
    printf("\n%-15s%-12s%16s%s  %s\n", "collective", "memory", "bytes", text_right("µs", 12, cell),
           "fastest algorithm (the next one)");
    for (size_t i = 0, end; i < kept->count; i = end) {
        for (end = i + 1;
             end < kept->count && is_same_message(&kept->all[i].time, &kept->all[end].time);)
            end++;
        print_message(&kept->all[i], end - i);
    }
}

static json_t *times_json(const measurements *kept)
{
    json_t *list = json_array();
    for (size_t i = 0; i < kept->count; i++) {
        const banyan_tune_time *time = &kept->all[i].time;
        json_array_append_new(list, json_pack("{s:s, s:b, s:I, s:s, s:i, s:f}", "collective",
                                              banyan_collective_kind_name(time->kind), "registered",
                                              (int)time->registered, "message_bytes",
                                              (json_int_t)time->message_bytes, "algorithm",
                                              kept->all[i].algorithm, "instances", time->instances,
                                              "seconds", time->ns / 1e9));
    }
    return list;
}

static void tune_command_print_row(const json_t *row)
{
    char text[TEXT_NUMBER_BYTES], nodes[TEXT_NUMBER_BYTES];
    json_int_t on_node = json_integer_value(json_object_get(row, "ranks_per_node"));
    const char *dtype = json_string_value(json_object_get(row, "dtype"));
    const json_t *up_to = json_object_get(row, "up_to_bytes");
    bool bounded = json_is_integer(up_to);
    printf("%-15s%-12s%12s  %-10s%16s  ", json_string_value(json_object_get(row, "collective")),
           json_is_true(json_object_get(row, "registered")) ? "registered" : "ordinary",
           on_node > 0 ? text_count((uint64_t)on_node, nodes) : "any", dtype ? dtype : "any",
           bounded ? text_count((uint64_t)json_integer_value(up_to), text) : "any");
    print_algorithm(json_string_value(json_object_get(row, "algorithm")),
                    (int)json_integer_value(json_object_get(row, "instances")));
    printf("\n");
}

/* Rows of the file for this number of ranks; NULL, with the error set, if it cannot be read. */
static json_t *tune_command_read_rows(const tune_job *job)
{
    json_error_t error;
    json_t *root = json_file_load(job->path, &error), *rows = json_array(), *row;
    size_t i;
    if (!root) {
        json_decref(rows);
        banyan_error_set(BANYAN_ERR_SYSTEM, "cannot read %s again: %s", job->path, error.text);
        return NULL;
    }
    json_array_foreach(json_object_get(root, "rows"), i, row)
    {
        if (strcmp(json_string_value(json_object_get(row, "device")),
                   job->on_gpus ? "cuda" : "host") == 0 &&
            json_integer_value(json_object_get(row, "ranks")) == job->ranks)
            json_array_append(rows, row);
    }
    json_decref(root);
    return rows;
}

static void tune_command_print_table(const tune_job *job, const json_t *rows)
{
    json_t *row;
    size_t i;
    printf("%d %s, a rank's input\n\n", job->ranks, job->on_gpus ? "GPUs" : "ranks");
    printf("%-15s%-12s%12s  %-10s%16s  %s\n", "collective", "memory", "ranks a node", "dtype",
           "up to bytes", "algorithm");
    json_array_foreach(rows, i, row) tune_command_print_row(row);
}

static banyan_status tune_command_report(const tune_job *job, const measurements *kept)
{
    json_t *rows = tune_command_read_rows(job);
    if (!rows)
        return BANYAN_ERR_SYSTEM;
    if (job->json)
        return json_print(json_pack("{s:i, s:s, s:s, s:o, s:o}", "ranks", job->ranks, "device",
                                    job->on_gpus ? "cuda" : "host", "file", job->path, "rows", rows,
                                    "times", times_json(kept)));
    tune_command_print_table(job, rows);
    print_times(kept);
    printf("\nwritten to %s; BANYAN_TUNING=%s has communicators use it\n", job->path, job->path);
    json_decref(rows);
    return BANYAN_OK;
}

static void tune_command_show(void *context, const char *what, double share)
{
    const measurements *kept = context;
    progress_show(&kept->bar, what, share);
}

static banyan_status tune_command_measure(const tune_job *job, banyan_comm *comm, int rank,
                                          measurements *kept)
{
    banyan_tune_options how = job->how;
    progress_begin(&kept->bar, rank == 0, "tuning", 1, false);
    how.progress = tune_command_show;
    how.measured = keep_time;
    how.context = kept;
    banyan_status status = banyan_comm_tune(comm, &how);
    progress_end(&kept->bar);
    RETURN_IF_FAILED(status);
    return banyan_comm_save_tuning(comm, job->path);
}

static banyan_status tune(const tune_job *job, int rank, measurements *kept)
{
    banyan_world *world;
    banyan_comm *comm;
    banyan_comm_options options = BANYAN_COMM_OPTIONS_INIT;
    options.tuning = job->exists ? job->path : NULL;
    options.workers = job->workers;
    RETURN_IF_FAILED(banyan_world_open(NULL, &world));
    if (job->on_gpus)
        RETURN_IF_FAILED(gpus_choose("banyan tune", world, &options.device));
    RETURN_IF_FAILED(banyan_comm_create(world, &options, &comm));
    RETURN_IF_FAILED(tune_command_measure(job, comm, rank, kept));
    RETURN_IF_FAILED(banyan_comm_destroy(comm));
    return banyan_world_close(world);
}

static int tune_rank(int rank, void *context)
{
    const tune_job *job = context;
    measurements kept = {0};
    banyan_status status = tune(job, rank, &kept);
    if (status == BANYAN_OK && rank == 0)
        status = tune_command_report(job, &kept);
    if (status == BANYAN_OK && !out_file_flush_stdout())
        status = banyan_error_set(BANYAN_ERR_SYSTEM, "cannot write to stdout: %s", strerror(errno));
    free(kept.all);
    if (status != BANYAN_OK)
        failure_note(job->failed, rank, status);
    return status == BANYAN_OK ? 0 : 1;
}

static int tune_command_run(tune_job *job)
{
    bool writes = job_place_find().rank == 0;
    job->exists = writes && access(job->path, F_OK) == 0;
    if (writes && !out_file_possible(job->path)) {
        fprintf(stderr, WHO ": cannot write %s: %s\n", job->path, strerror(errno));
        return 1;
    }
    job->failed = failure_create();
    if (!job->failed) {
        fprintf(stderr, WHO ": out of memory\n");
        return 1;
    }
    int code = job_run(WHO, job->ranks, tune_rank, job, job->failed);
    failure_destroy(job->failed);
    return code;
}

int tune_command(int argc, char **argv)
{
    tune_job job = {.workers = 1, .how = BANYAN_TUNE_OPTIONS_INIT};
    uint64_t range[2] = {job.how.min_bytes, job.how.max_bytes};
    const char *dtype = NULL, *collective = NULL;
    const option_entry entries[] = {
        {"ranks", 'n', OPTION_COUNT, &job.ranks, "N", "number of ranks", 2, BANYAN_MAX_RANKS},
        {"size", 's', OPTION_BYTES_RANGE, range, "LOW:HIGH",
         "bytes of the longer of input and output (8:64M)", 0, 0},
        {"dtype", 'd', OPTION_TEXT, &dtype, "TYPE",
         "element type; its rows serve this type alone (f32, for all types)", 0, 0},
        {"collective", 'c', OPTION_TEXT, &collective, "COLLECTIVE",
         "tune this collective alone (all)", 0, 0},
        {"seconds", '\0', OPTION_SECONDS, &job.how.seconds, "S", "limit on the total time (60)", 0,
         0},
        {"workers", '\0', OPTION_COUNT, &job.workers, "N",
         "threads of a rank that run its thread blocks (1)", 1, 1024},
        {"gpu", '\0', OPTION_FLAG, &job.on_gpus, NULL,
         "run on GPUs; ranks share them if there are fewer", 0, 0},
        {"out", 'o', OPTION_FILE, &job.path, "FILE",
         "file of the table; an existing table is extended", 0, 0},
        {"json", '\0', OPTION_FLAG, &job.json, NULL, "print one JSON object instead of tables", 0,
         0},
    };
    const option_table table = {
        WHO, "-n RANKS -o FILE [options]",
        "Measure the built-in algorithms of every collective between processes of this machine,\n"
        "or between the ranks of a job whose launcher starts this command on several machines,\n"
        "in ordinary and in registered memory, and record which is the fastest for each size.\n"
        "Print the rows of the table for this number of ranks, and the times of each size: that\n"
        "of the fastest algorithm and of the next one; with --json, of all. A time is that of a\n"
        "run on the slowest rank, the median of several batches.\n\n"
        "Rows of an existing table for other numbers of ranks or types are kept. A communicator\n"
        "reads the table that its options or the environment variable BANYAN_TUNING name.\n",
        entries, sizeof(entries) / sizeof(entries[0])};
    options_result result = options_parse_only(&table, argc, argv);
    if (result != OPTIONS_OK)
        return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    if (job.ranks == 0 && job_place_find().size > 1)
        job.ranks = job_place_find().size;
    if (job.ranks == 0 || !job.path)
        return options_refuse(&table, "%s is missing", job.path ? "--ranks N" : "--out FILE");
    if (dtype && banyan_dtype_parse(dtype, &job.how.dtype) != BANYAN_OK)
        return options_refuse(&table, "%s", banyan_last_error());
    if (collective && (banyan_collective_kind_parse(collective, &job.how.kind) != BANYAN_OK ||
                       job.how.kind == BANYAN_CUSTOM))
        return options_refuse(&table, "--collective %s names no collective", collective);
    job.how.min_bytes = range[0];
    job.how.max_bytes = range[1];
    return tune_command_run(&job);
}
