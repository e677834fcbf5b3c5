#include "cli/commands.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/files.h"
#include "cli/options.h"
#include "launch/forked.h"
#include "reshard/reshard_job.h"

#define WHO "banyan reshard"
#define DEFAULT_ITERS 5

struct reshard_arguments {
    reshard_job job; /* iters 0: not given */
    const char *in, *memory, *transform;
    char **argv;
};

static bool speaks_mpi(const struct reshard_arguments *given)
{
    return given->job.how.backend && strcmp(given->job.how.backend, "mpi") == 0;
}

/* Run as one of the ranks that mpirun started. */
static int run_under_mpi(reshard_job *job, int rank)
{
    char text[FAILURE_TEXT_BYTES];
    signal(SIGXFSZ, SIG_IGN);
    int code = reshard_rank(rank, job);
    const char *message = failure_message(job->failed, text);
    if (message)
        fprintf(stderr, WHO ": %s\n", message);
    return code;
}

static int reshard_command_run_ranks(reshard_job *job, const struct reshard_arguments *given)
{
    int rank = under_mpi_rank();
    if (rank >= 0)
        return run_under_mpi(job, rank);
    if (speaks_mpi(given))
        return under_mpi_start(WHO, job->spec.ranks, given->argv);
    return forked_run(WHO, job->spec.ranks, reshard_rank, job, job->failed);
}

static int run_pattern(struct reshard_arguments *given)
{
    reshard_job *job = &given->job;
    int code = 1;
    if (job->iters == 0)
        job->iters = DEFAULT_ITERS;
    if (job->svg_path && !out_file_possible(job->svg_path)) {
        fprintf(stderr, WHO ": cannot write %s: %s\n", job->svg_path, strerror(errno));
        return code;
    }
    /* Read model, rules and specs before any rank starts, so that an error is printed once. */
    if (job_spec_read(&job->spec, WHO)) {
        job->failed = failure_create();
        if (job->failed)
            code = reshard_command_run_ranks(job, given);
        else
            fprintf(stderr, WHO ": out of memory\n");
    }
    failure_destroy(job->failed);
    job_spec_free(&job->spec);
    return code;
}

/* Return the first contradiction, or NULL. */
static const char *reshard_command_contradiction(const struct reshard_arguments *given)
{
    if (!given->in)
        return given->job.out    ? "--out DIR needs --in DIR"
               : given->job.join ? "--join needs --in DIR and --out DIR"
                                 : NULL;
    if (!given->job.out)
        return "--in DIR needs --out DIR";
    if (speaks_mpi(given))
        return "--backend mpi does not go with --in DIR";
    if (given->job.spec.model_path)
        return "--in DIR is the model: --model FILE does not go with it";
    if (given->job.iters || given->job.svg_path || given->transform)
        return "--iters, --svg and --transform do not go with --in DIR";
    return NULL;
}

static int reshard_command_run(const option_table *table, struct reshard_arguments *given)
{
    const char *wrong = reshard_command_contradiction(given);
    if (wrong)
        return options_refuse(table, "%s", wrong);
    const char *missing = !given->in                ? job_spec_missing(&given->job.spec)
                          : given->job.spec.to_text ? NULL
                                                    : "--to SPEC";
    if (missing && strcmp(missing, "--model FILE") == 0)
        return options_refuse(table, "--model FILE is missing, or --in DIR and --out DIR");
    if (missing)
        return options_refuse(table, "%s is missing", missing);
    given->job.how.ordinary_memory = given->memory && strcmp(given->memory, "ordinary") == 0;
    if (given->transform && strcmp(given->transform, "none") != 0)
        given->job.how.transform = given->transform;
    if (!given->in)
        return run_pattern(given);
    given->job.spec.model_path = given->in;
    return reshard_files(&given->job, WHO);
}

static int reshard(int argc, char **argv)
{
    struct reshard_arguments given = {.argv = argv};
    const option_entry entries[] = {
        {"model", 'm', OPTION_TEXT, &given.job.spec.model_path, "FILE",
         "tensor list (JSON), Hugging Face folder or safetensors file", 0, 0},
        {"from", '\0', OPTION_TEXT, &given.job.spec.from_text, "SPEC",
         "source layout: tp=2,pp=2,packing=megatron, or a layout file (.json)", 0, 0},
        {"to", '\0', OPTION_TEXT, &given.job.spec.to_text, "SPEC",
         "destination layout, or a layout file", 0, 0},
        {"disjoint", '\0', OPTION_FLAG, &given.job.spec.disjoint, NULL,
         "destination ranks differ from source ranks", 0, 0},
        {"backend", '\0', OPTION_TEXT, &given.job.how.backend, "direct|pipeline|mpi",
         "copy backend", 0, 0},
        {"memory", '\0', OPTION_CHOICE, &given.memory, "symmetric|ordinary",
         "memory of the tensors (symmetric)", 0, 0},
        {"checksums", '\0', OPTION_FLAG, &given.job.how.checksums, NULL,
         "send and verify a checksum with every transfer", 0, 0},
        {"partial-source", '\0', OPTION_FLAG, &given.job.spec.partial_source, NULL,
         "allow source elements that no destination holds (they are refused)", 0, 0},
        {"config", '\0', OPTION_TEXT, &given.job.spec.config_path, "FILE",
         "config.json of the model, if it is not beside the weights", 0, 0},
        {"skip", '\0', OPTION_TEXT, &given.job.spec.skip, "GLOB[,…]",
         "omit these tensors: **.inv_freq", 0, 0},
        {"rules", '\0', OPTION_TEXT, &given.job.spec.rules_path, "FILE",
         "rules that split the tensors (built in)", 0, 0},
        {"iters", '\0', OPTION_COUNT, &given.job.iters, "N", "number of runs (5)", 1, 1000000},
        {"transform", '\0', OPTION_CHOICE, &given.transform, "none|mxfp8|mxfp8-at-sender",
         "convert matrices to another format (none)", 0, 0},
        {"json", '\0', OPTION_FLAG, &given.job.json, NULL, "print one JSON object instead of text",
         0, 0},
        {"svg", '\0', OPTION_FILE, &given.job.svg_path, "FILE",
         "draw the traffic between the ranks", 0, 0},
        {"in", '\0', OPTION_TEXT, &given.in, "DIR",
         "read a Hugging Face folder, or a folder of --out", 0, 0},
        {"out", '\0', OPTION_TEXT, &given.job.out, "DIR",
         "write the tensors of each rank, one folder for each rank", 0, 0},
        {"join", '\0', OPTION_FLAG, &given.job.join, NULL,
         "write one Hugging Face folder for all ranks", 0, 0},
    };
    const option_table table = {
        WHO, "(--model FILE --from SPEC | --in DIR --out DIR [--from SPEC]) --to SPEC [options]",
        "Move a model's tensors from one parallel layout to another, between processes of this\n"
        "machine. With --model, the tensors are filled with values derived from their names and\n"
        "global indices, and every destination element is checked. With --in, they are read\n"
        "from safetensors and written to --out, which appears when it is complete. Without\n"
        "--from, one rank reads a Hugging Face folder (tp=1). --in also reads a folder that\n"
        "--out wrote: without --from, each source rank takes the tensors that one rank wrote.\n",
        entries, sizeof(entries) / sizeof(entries[0])};
    options_result result = options_parse_only(&table, argc, argv);
    if (result != OPTIONS_OK)
        return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    return reshard_command_run(&table, &given);
}

int reshard_command(int argc, char **argv)
{
    static const command_entry subcommands[] = {
        {"verify", "CASE.json…", "check the planner with cases from Megatron-Core", verify_command},
    };
    static const command_set set = {
        .command = WHO,
        .usage = "",
        .about = "",
        .more = "",
        .entries = subcommands,
        .count = sizeof subcommands / sizeof subcommands[0],
        .otherwise = reshard,
    };
    return command_set_run(&set, argc, argv);
}
