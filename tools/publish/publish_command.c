/* `banyan publish`: a folder of checkpoints as the versions of a publication. */
#include "cli/commands.h"

#include <stdio.h>
#include <unistd.h>

#include "cli/options.h"
#include "publish/publish_job.h"
#include "publish/service.h"

#define WHO "banyan publish"
#define SETTLE_SECONDS 1

int publish_command(int argc, char **argv)
{
    publish_job job = {.settle_s = SETTLE_SECONDS};
    const option_entry entries[] = {
        {"in", '\0', OPTION_TEXT, &job.in, "DIR",
         "a checkpoint, or a folder of checkpoints such as step_000100", 0, 0},
        {"watch", '\0', OPTION_FLAG, &job.watch, NULL,
         "publish every later checkpoint, too, as the next version", 0, 0},
        {"listen", '\0', OPTION_TEXT, &job.listen, "ADDRESS",
         "address for subscribers: 10.0.0.5:4711 or :4711 (a free port)", 0, 0},
        {"name", '\0', OPTION_TEXT, &job.name, "NAME", "name that subscribers must give (none)", 0,
         0},
        {"cast", '\0', OPTION_CHOICE, &job.cast, "f32|f16|bf16",
         "publish all tensors of F32, F16 and BF16 in this type", 0, 0},
        {"compress", '\0', OPTION_CHOICE, &job.compress, "auto|off|always",
         "compress what travels: where the link is slower than that (auto), never, or always", 0,
         0},
        {"kept", '\0', OPTION_COUNT, &job.kept, "N",
         "earlier versions from which subscribers get the changes alone (4)", 1, 1000},
        {"patience", '\0', OPTION_SECONDS, &job.patience_s, "SECONDS",
         "longest wait for subscribers that fetch, before the next version is published (5)", 0, 0},
        {"settle", '\0', OPTION_SECONDS, &job.settle_s, "SECONDS",
         "time for which a checkpoint's files must not change (1)", 0, 0},
        {"json", '\0', OPTION_FLAG, &job.json, NULL, "print a JSON object on each line", 0, 0},
    };
    const option_table table = {
        WHO, "--in DIR [--watch] [--listen ADDRESS] [options]",
        "Publish a checkpoint to banyan subscribe, and with --watch each one that follows. Only\n"
        "what changed travels. DIR is a checkpoint that is replaced, or it has folders with the\n"
        "number of a step at the end of their names, which becomes the version. Otherwise the\n"
        "version is the time of the last change. A checkpoint that is still being written is not\n"
        "published. The command ends after SIGINT or SIGTERM. BANYAN_SECRET is the secret of both\n"
        "sides. Ranks of a job share the tensors: banyan launch -n 4 banyan publish ...\n"
        "docs/publish.md.\n",
        entries, sizeof entries / sizeof entries[0]};
    RETURN_UNLESS_PARSED(options_parse_only(&table, argc, argv));
    if (!job.in)
        return options_refuse(&table, "--in DIR is missing");
    job.secret = service_secret(WHO);
    if (!job.secret)
        return 1;
    if (access(job.in, F_OK) != 0)
        return options_refuse(&table, "there is no %s", job.in);
    job.failed = failure_create();
    if (!job.failed) {
        fprintf(stderr, WHO ": out of memory\n");
        return 1;
    }
    int code = job_run(WHO, job_place_find().size, publish_rank, &job, job.failed);
    failure_destroy(job.failed);
    return code;
}
