/* banyan mixed: the collectives of a tensor-parallel by data-parallel grid, checked and timed. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "cli/commands.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/text.h"
#include "launch/forked.h"
#include "mixed/mixed_job.h"

#define WHO "banyan mixed"
#define RANKS_MOST 64
#define HIDDEN_MOST (1 << 24)
#define BUFFER_MOST (UINT64_C(1) << 40) /* bytes */

static int mixed_command_report(const mixed_job *job)
{
    char text[MIXED_WRONG_BYTES];
    if (!job->json) {
        mixed_report(job);
    } else if (mixed_report_json(job) != BANYAN_OK)
        return text_fail(WHO);
    if (job->svg_path && !mixed_plot(job)) {
        fprintf(stderr, WHO ": cannot write %s: %s\n", job->svg_path, strerror(errno));
        return 1;
    }
    const char *wrong = mixed_report_wrong(job, text);
    if (wrong)
        fprintf(stderr, WHO ": %s\n", wrong);
    return wrong ? 1 : 0;
}

static int mixed_command_run_ranks(mixed_job *job)
{
    for (uint64_t rows = job->rows[0]; rows <= job->rows[1] && job->size_count < MIXED_SIZES_MOST;
         rows *= 2)
        job->sizes[job->size_count++].rows = rows;
    int code = job_run(WHO, job->ranks, mixed_rank, job, job->failed);
    return code == 0 && job_place_find().rank == 0 ? mixed_command_report(job) : code;
}

/* Check before any measurement. NULL: nothing is to be written. */
static bool is_writable(const char *path)
{
    if (!path || out_file_possible(path))
        return true;
    fprintf(stderr, WHO ": cannot write %s: %s\n", path, strerror(errno));
    return false;
}

static int mixed_command_run(mixed_job *job)
{
    size_t bytes = MIXED_SIZES_MOST * sizeof *job->sizes;
    int code = 1;
    if (!is_writable(job->svg_path) || !is_writable(job->save_path))
        return 1;
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    job->failed = failure_create();
    if (shared != MAP_FAILED && job->failed) {
        job->sizes = shared;
        code = mixed_command_run_ranks(job);
    } else {
        fprintf(stderr, WHO ": out of memory\n");
    }
    failure_destroy(job->failed);
    if (shared != MAP_FAILED)
        munmap(shared, bytes);
    return code;
}

/* The longer one of input and output. */
static int mixed_command_check_buffers(const option_table *table, const mixed_job *job)
{
    const banyan_mixed_options *options = &job->options;
    uint64_t ranks = (uint64_t)options->local_dp * (uint64_t)options->inter_dp;
    uint64_t row_bytes = job->hidden * banyan_dtype_bytes(options->dtype) * ranks;
    if (row_bytes == 0 || job->rows[1] <= BUFFER_MOST / row_bytes)
        return 0;
    return options_refuse(table,
                          "%" PRIu64 " rows of %" PRIu64 " elements for each of %" PRIu64
                          " data-parallel ranks are more than 1 TiB",
                          job->rows[1], job->hidden, ranks);
}

/* A grid of one rank sends nothing; accept it only when it is given explicitly. */
static bool has_grid(const banyan_mixed_options *options)
{
    return options->local_tp > 0 || options->local_dp > 0 || options->inter_tp > 0 ||
           options->inter_dp > 0 || options->nodes > 1;
}

/* Dimensions that are not given are 1; nodes, when given alone, are tensor-parallel. */
static int mixed_command_resolve(const option_table *table, mixed_job *job, const char *dtype)
{
    banyan_mixed_options *options = &job->options;
    bool nodes_left = options->inter_tp == 0;
    if (!has_grid(options))
        return options_refuse(table, "a grid is missing: --local-tp N or --local-dp N, or "
                                     "--inter-tp N, --inter-dp N or --nodes N");
    options->local_tp += options->local_tp == 0;
    options->local_dp += options->local_dp == 0;
    options->inter_dp += options->inter_dp == 0;
    if (nodes_left)
        options->inter_tp =
            options->nodes > options->inter_dp ? options->nodes / options->inter_dp : 1;
    int64_t nodes = (int64_t)options->inter_tp * options->inter_dp;
    int64_t ranks = nodes * options->local_tp * options->local_dp;
    if (options->nodes > 0 && options->nodes != nodes && nodes_left)
        return options_refuse(table, "--nodes %d is not a multiple of --inter-dp %d",
                              options->nodes, options->inter_dp);
    if (options->nodes > 0 && options->nodes != nodes)
        return options_refuse(table, "--nodes %d is not --inter-tp %d × --inter-dp %d",
                              options->nodes, options->inter_tp, options->inter_dp);
    if (ranks > RANKS_MOST)
        return options_refuse(table, "a grid of %lld ranks is more than the %d of this command",
                              (long long)ranks, RANKS_MOST);
    options->nodes = (int)nodes;
    job->ranks = (int)ranks;
    if (banyan_dtype_parse(dtype, &options->dtype) != BANYAN_OK ||
        (job->op_name && banyan_mixed_op_parse(job->op_name, &job->op) != BANYAN_OK) ||
        (job->mode_name && banyan_mixed_mode_parse(job->mode_name, &job->mode) != BANYAN_OK))
        return options_refuse(table, "%s", banyan_last_error());
    return mixed_command_check_buffers(table, job);
}

int mixed_command(int argc, char **argv)
{
    mixed_job job = {.options = BANYAN_MIXED_OPTIONS_INIT, .rows = {1, 1024}};
    banyan_mixed_options *options = &job.options;
    const char *dtype = "bf16";
    int hidden = 8192;
    bool untuned = false;
    const option_entry entries[] = {
        {"local-tp", '\0', OPTION_COUNT, &options->local_tp, "N",
         "tensor-parallel ranks in a node (1)", 1, RANKS_MOST},
        {"local-dp", '\0', OPTION_COUNT, &options->local_dp, "N",
         "data-parallel ranks in a node (1)", 1, RANKS_MOST},
        {"inter-tp", '\0', OPTION_COUNT, &options->inter_tp, "N",
         "tensor-parallel nodes (1, or --nodes ÷ inter-dp)", 1, RANKS_MOST},
        {"inter-dp", '\0', OPTION_COUNT, &options->inter_dp, "N", "data-parallel nodes (1)", 1,
         RANKS_MOST},
        {"nodes", '\0', OPTION_COUNT, &options->nodes, "N",
         "treat this machine as N nodes (inter-tp × inter-dp)", 1, RANKS_MOST},
        {"gpu", '\0', OPTION_FLAG, &job.on_gpus, NULL,
         "run on GPUs; ranks share them if there are fewer", 0, 0},
        {"rows", '\0', OPTION_ROWS_RANGE, job.rows, "LOW:HIGH",
         "numbers of rows, in powers of two (1:1024)", 0, 0},
        {"hidden", '\0', OPTION_COUNT, &hidden, "N", "elements in a row (8192)", 1, HIDDEN_MOST},
        {"dtype", 'd', OPTION_TEXT, &dtype, "f16|bf16|f32", "element type (bf16)", 0, 0},
        {"op", '\0', OPTION_TEXT, &job.op_name, "OP",
         "run this operation (all that the grid allows)", 0, 0},
        {"mode", '\0', OPTION_TEXT, &job.mode_name, "MODE",
         "run this mode; auto: the autotuned one (all valid modes)", 0, 0},
        {"max-bytes", '\0', OPTION_BYTES, &options->max_bytes, "BYTES",
         "bytes of b rows in one launch on a GPU (64M)", 0, 0},
        {"no-autotune", '\0', OPTION_FLAG, &untuned, NULL,
         "do not measure; use the default choice of modes", 0, 0},
        {"autotune", '\0', OPTION_TEXT, &options->autotune, "FILE",
         "read the autotuned table from FILE", 0, 0},
        {"save-autotune", '\0', OPTION_FILE, &job.save_path, "FILE",
         "write the autotuned table to FILE", 0, 0},
        {"json", '\0', OPTION_FLAG, &job.json, NULL, "print one JSON object instead of a table", 0,
         0},
        {"svg", '\0', OPTION_FILE, &job.svg_path, "FILE", "draw the times over the sizes", 0, 0},
    };
    const option_table table = {
        WHO, "--local-tp N --local-dp N [options]",
        "Run the collectives of a tensor-parallel by data-parallel grid between processes of\n"
        "this machine, or between its GPUs. Check every element of every output, and time each\n"
        "operation, mode and number of rows. A star marks the fastest mode of a line, a plus the\n"
        "mode that autotuning, or the default, chose instead. Inputs are integers derived from\n"
        "rank and position, so that sums are exact. Outputs are poisoned before each run. A time\n"
        "is that of one call on the slowest rank, in the fastest of several batches; on a GPU it\n"
        "is the median of several graph launches.\n",
        entries, sizeof(entries) / sizeof(entries[0])};
    RETURN_UNLESS_PARSED(options_parse_only(&table, argc, argv));
    job.hidden = (uint64_t)hidden;
    options->use_autotune = !untuned;
    if (untuned && options->autotune)
        return options_refuse(&table, "--autotune %s is not used with --no-autotune",
                              options->autotune);
    if (untuned && job.save_path)
        return options_refuse(&table, "--save-autotune has nothing to write with --no-autotune");
    if (job.svg_path && job.save_path && strcmp(job.svg_path, job.save_path) == 0)
        return options_refuse(&table, "--svg and --save-autotune both write %s", job.svg_path);
    int refused = mixed_command_resolve(&table, &job, dtype);
    return refused ? refused : mixed_command_run(&job);
}
