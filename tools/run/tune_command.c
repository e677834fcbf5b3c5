#include "cli/commands.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <banyan/banyan.h>
#include <jansson.h>

#include "cli/json_file.h"
#include "cli/options.h"
#include "cli/out_file.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "core/status.h"
#include "launch/forked.h"

#define WHO "banyan tune"

struct tuning_job {
    const char *path;
    bool exists; /* the table in `path` is added to */
    int ranks, workers;
    bool on_gpus;
    banyan_tune_options how;
    failure *failed;
};

/* ---- a rank ---- */

static void show(void *context, const char *what, double share)
{
    progress_show(context, what, share);
}

static banyan_status measure(const struct tuning_job *job, banyan_comm *comm, int rank)
{
    progress bar;
    banyan_tune_options how = job->how;
    progress_begin(&bar, rank == 0, "tuning", 1, false);
    how.progress = show;
    how.context = &bar;
    banyan_status status = banyan_comm_tune(comm, &how);
    progress_end(&bar);
    RETURN_IF_FAILED(status);
    return banyan_comm_save_tuning(comm, job->path);
}

static banyan_status tune(const struct tuning_job *job, int rank)
{
    banyan_world *world;
    banyan_comm *comm;
    banyan_comm_options options = BANYAN_COMM_OPTIONS_INIT;
    options.tuning = job->exists ? job->path : NULL;
    options.workers = job->workers;
    if (job->on_gpus)
        options.device = BANYAN_CUDA(rank);
    RETURN_IF_FAILED(banyan_world_open(NULL, &world));
    RETURN_IF_FAILED(banyan_comm_create(world, &options, &comm));
    RETURN_IF_FAILED(measure(job, comm, rank));
    RETURN_IF_FAILED(banyan_comm_destroy(comm));
    return banyan_world_close(world);
}

static int tune_rank(int rank, void *context)
{
    const struct tuning_job *job = context;
    banyan_status status = tune(job, rank);
    if (status != BANYAN_OK)
        failure_note(job->failed, rank, status);
    return status == BANYAN_OK ? 0 : 1;
}

/* ---- the summary ---- */

static void print_row(const json_t *row)
{
    char text[TEXT_NUMBER_BYTES], nodes[TEXT_NUMBER_BYTES];
    json_int_t on_node = json_integer_value(json_object_get(row, "ranks_per_node"));
    const char *dtype = json_string_value(json_object_get(row, "dtype"));
    const json_t *up_to = json_object_get(row, "up_to_bytes");
    bool bounded = json_is_integer(up_to);
    int instances = (int)json_integer_value(json_object_get(row, "instances"));
    printf("%-15s%-12s%12s  %-10s%16s  %s", json_string_value(json_object_get(row, "collective")),
           json_is_true(json_object_get(row, "registered")) ? "registered" : "ordinary",
           on_node > 0 ? text_count((uint64_t)on_node, nodes) : "any", dtype ? dtype : "any",
           bounded ? text_count((uint64_t)json_integer_value(up_to), text) : "any",
           json_string_value(json_object_get(row, "algorithm")));
    if (instances > 1)
        printf(" × %d", instances);
    printf("\n");
}

/* What the file says of this number of ranks now. */
static int print_table(const struct tuning_job *job)
{
    json_error_t error;
    json_t *root = json_file_load(job->path, &error), *row;
    size_t i;
    if (!root) {
        fprintf(stderr, WHO ": cannot read %s again: %s\n", job->path, error.text);
        return 1;
    }
    printf("%d %s, a rank's input\n\n", job->ranks, job->on_gpus ? "GPUs" : "ranks");
    printf("%-15s%-12s%12s  %-10s%16s  %s\n", "collective", "memory", "ranks a node", "dtype",
           "up to bytes", "algorithm");
    const char *where = job->on_gpus ? "cuda" : "host";
    json_array_foreach(json_object_get(root, "rows"), i, row)
    {
        if (strcmp(json_string_value(json_object_get(row, "device")), where) == 0 &&
            json_integer_value(json_object_get(row, "ranks")) == job->ranks)
            print_row(row);
    }
    printf("\nwritten to %s; BANYAN_TUNING=%s has communicators use it\n", job->path, job->path);
    json_decref(root);
    return 0;
}

/* ---- the command ---- */

static int run(struct tuning_job *job)
{
    job->exists = access(job->path, F_OK) == 0;
    if (!out_file_possible(job->path)) {
        fprintf(stderr, WHO ": cannot write %s: %s\n", job->path, strerror(errno));
        return 1;
    }
    job->failed = failure_create();
    if (!job->failed) {
        fprintf(stderr, WHO ": out of memory\n");
        return 1;
    }
    int code = forked_run(WHO, job->ranks, tune_rank, job, job->failed);
    failure_destroy(job->failed);
    return code == 0 ? print_table(job) : code;
}

int tune_command(int argc, char **argv)
{
    struct tuning_job job = {.workers = 1, .how = BANYAN_TUNE_OPTIONS_INIT};
    uint64_t range[2] = {job.how.min_bytes, job.how.max_bytes};
    const char *dtype = NULL, *collective = NULL;
    const option_entry entries[] = {
        {"ranks", 'n', OPTION_COUNT, &job.ranks, "N", "number of ranks", 2, BANYAN_MAX_RANKS},
        {"size", 's', OPTION_BYTES_RANGE, range, "LOW:HIGH",
         "bytes of the longer of input and output (8:64M)", 0, 0},
        {"dtype", 'd', OPTION_TEXT, &dtype, "TYPE",
         "element type; its rows serve this type alone (f32, for all types)", 0, 0},
        {"collective", 'c', OPTION_TEXT, &collective, "NAME", "tune this collective alone (all)", 0,
         0},
        {"seconds", '\0', OPTION_SECONDS, &job.how.seconds, "S", "limit on the total time (60)", 0,
         0},
        {"workers", '\0', OPTION_COUNT, &job.workers, "N",
         "threads of a rank that run its thread blocks (1)", 1, 1024},
        {"gpu", '\0', OPTION_FLAG, &job.on_gpus, NULL, "run on GPUs, one for each rank", 0, 0},
        {"out", 'o', OPTION_FILE, &job.path, "FILE",
         "file of the table; an existing table is extended", 0, 0},
    };
    const option_table table = {
        WHO, "-n RANKS -o FILE [options]",
        "Measure the built-in algorithms of every collective between processes of this machine,\n"
        "in ordinary and in registered memory, and record which is the fastest for each size.\n"
        "Rows of an existing table for other numbers of ranks or types are kept. A communicator\n"
        "reads the table that its options or the environment variable BANYAN_TUNING name.\n",
        entries, sizeof(entries) / sizeof(entries[0])};
    options_result result = options_parse_only(&table, argc, argv);
    if (result != OPTIONS_OK)
        return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    if (job.ranks == 0 || !job.path)
        return options_refuse(&table, "%s is missing", job.path ? "--ranks N" : "--out FILE");
    if (dtype && banyan_dtype_parse(dtype, &job.how.dtype) != BANYAN_OK)
        return options_refuse(&table, "%s", banyan_last_error());
    if (collective && (banyan_collective_parse(collective, &job.how.kind) != BANYAN_OK ||
                       job.how.kind == BANYAN_CUSTOM))
        return options_refuse(&table, "--collective %s names no collective", collective);
    job.how.min_bytes = range[0];
    job.how.max_bytes = range[1];
    return run(&job);
}
