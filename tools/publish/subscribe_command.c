/* `banyan subscribe`: the versions of a publication as folders. */
#include "cli/commands.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/options.h"
#include "cli/text.h"
#include "publish/service.h"
#include "publish/subscribe_job.h"
#include "publish/version_folder.h"

#define WHO "banyan subscribe"

static bool is_layout_file(const char *to)
{
    size_t length = strlen(to);
    return length >= 5 && strcmp(to + length - 5, ".json") == 0;
}

/* Read --to. Returns the number of ranks; 0 after a message. */
static int subscribe_command_read_layout(subscribe_job *job)
{
    if (!job->to)
        return 1;
    banyan_status status = is_layout_file(job->to) ? banyan_layout_file_load(job->to, &job->file)
                                                   : banyan_spec_parse(job->to, &job->spec);
    if (status == BANYAN_OK && job->file)
        status = banyan_layout_file_check(job->file, BANYAN_DESTINATION);
    if (status == BANYAN_OK)
        return job->file ? banyan_layout_file_rank_count(job->file)
                         : banyan_spec_world_size(&job->spec);
    fprintf(stderr, WHO ": --to: %s\n", banyan_last_error());
    return 0;
}

/* Run the ranks. Rank 0's process makes the work folder, and a helper removes it. */
static int run_ranks(subscribe_job *job, int ranks)
{
    char result[PATH_MAX];
    leftovers left;
    bool makes = job_place_find().rank == 0;
    if (snprintf(result, sizeof result, "%s/" VERSION_FOLDER_PREFIX, job->out) >=
        (int)sizeof result) {
        fprintf(stderr, WHO ": --out %.100s… is too long\n", job->out);
        return 1;
    }
    if (!work_folder_name(&job->work, result, WHO))
        return 1;
    if (makes && !leftovers_watch(&left, result, &job->work, WHO))
        return 1;
    int code = 1;
    if (!makes || work_folder_make(&job->work, result, WHO))
        code = job_run(WHO, ranks, subscribe_rank, job, job->failed);
    if (makes)
        leftovers_remove(&left);
    return code;
}

static int subscribe_run(subscribe_job *job)
{
    int ranks = subscribe_command_read_layout(job), code = 1;
    if (ranks == 0)
        return EXIT_USAGE;
    job->secret = service_secret(WHO);
    if (!job->secret)
        return code;
    if (mkdir(job->out, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, WHO ": cannot make %s: %s\n", job->out, strerror(errno));
        return code;
    }
    job->failed = failure_create();
    if (job->failed)
        code = run_ranks(job, ranks);
    else
        fprintf(stderr, WHO ": out of memory\n");
    failure_destroy(job->failed);
    return code;
}

int subscribe_command(int argc, char **argv)
{
    subscribe_job job = {0};
    bool once = false;
    const option_entry entries[] = {
        {"at", '\0', OPTION_TEXT, &job.at, "ADDRESS", "address that banyan publish printed", 0, 0},
        {"out", '\0', OPTION_TEXT, &job.out, "DIR", "folder for the versions", 0, 0},
        {"to", '\0', OPTION_TEXT, &job.to, "SPEC",
         "layout: tp=4,packing=vllm, or a layout file (whole tensors)", 0, 0},
        {"keep", '\0', OPTION_COUNT, &job.keep, "N", "remove all but the newest versions (all)", 1,
         1000000},
        {"versions", '\0', OPTION_COUNT, &job.versions, "N", "end after so many versions", 1,
         1000000000},
        {"once", '\0', OPTION_FLAG, &once, NULL, "end after one version", 0, 0},
        {"timeout", '\0', OPTION_SECONDS, &job.timeout_s, "SECONDS",
         "end with an error if no version comes for so long", 0, 0},
        {"name", '\0', OPTION_TEXT, &job.name, "NAME", "name of the publication (none)", 0, 0},
        {"rate", '\0', OPTION_BYTES, &job.bytes_per_s, "BYTES",
         "bytes that each rank of the publisher sends in a second, after the first version", 0, 0},
        {"verify", '\0', OPTION_FLAG, &job.verify, NULL,
         "compare a checksum of every changed box with the publisher's", 0, 0},
        {"model", '\0', OPTION_TEXT, &job.model, "FILE",
         "tensor list or checkpoint, for a publication of another program", 0, 0},
        {"rules", '\0', OPTION_TEXT, &job.rules, "FILE", "rules that split the tensors (built in)",
         0, 0},
        {"json", '\0', OPTION_FLAG, &job.json, NULL, "print a JSON object on each line", 0, 0},
    };
    const option_table table = {
        WHO, "--at ADDRESS --out DIR [--to SPEC] [options]",
        "Subscribe to a publication, and write each of its versions into a folder of --out, such\n"
        "as version-00000100, which appears when it is complete. Without --to it is a Hugging\n"
        "Face folder; with --to it has one folder for each rank, as banyan reshard --out makes\n"
        "it. The ranks are processes of this machine, or of a launcher. The command ends after\n"
        "SIGINT or SIGTERM, and looks for a publisher that has gone until it is back.\n"
        "BANYAN_SECRET is the secret of both sides. docs/publish.md.\n",
        entries, sizeof entries / sizeof entries[0]};
    RETURN_UNLESS_PARSED(options_parse_only(&table, argc, argv));
    if (!job.at || !job.out)
        return options_refuse(&table, "%s is missing", job.at ? "--out DIR" : "--at ADDRESS");
    if (once && job.versions > 1)
        return options_refuse(&table, "--once and --versions %d contradict each other",
                              job.versions);
    if (once)
        job.versions = 1;
    int code = subscribe_run(&job);
    banyan_layout_file_destroy(job.file);
    return code;
}
