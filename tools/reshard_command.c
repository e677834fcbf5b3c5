#include "commands.h"

#include <stdio.h>
#include <string.h>

#include "launch.h"
#include "options.h"
#include "reshard_job.h"

#define WHO "banyan reshard"

static int start(reshard_job *job)
{
    job->failed = failure_create();
    if (!job->failed) {
        fprintf(stderr, WHO ": out of memory\n");
        return 1;
    }
    launch_job ranks = {.who = WHO,
                        .count = job->spec.ranks,
                        .rank_main = reshard_rank,
                        .context = job,
                        .ranks_explain = true};
    int code = launch_run(&ranks);
    char text[FAILURE_TEXT_BYTES];
    const char *sentence = failure_sentence(job->failed, text);
    if (sentence)
        fprintf(stderr, WHO ": %s\n", sentence);
    else if (code != 0 && code < LAUNCH_SIGNALLED)
        fprintf(stderr, WHO ": a rank ended with code %d and did not say why\n", code);
    failure_destroy(job->failed);
    return code;
}

/* Model, rules and specs are read before any rank starts: what is wrong with them is said once. */
static int run(reshard_job *job)
{
    int code = 1;
    bool read = job_spec_read(&job->spec, WHO);
    if (read && job->spec.ranks > LAUNCH_MAX_RANKS)
        fprintf(stderr, WHO ": %d ranks are more than the %d that one machine is given\n",
                job->spec.ranks, LAUNCH_MAX_RANKS);
    else if (read)
        code = start(job);
    job_spec_free(&job->spec);
    return code;
}

int reshard_command(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "verify") == 0)
        return verify_command(argc - 1, argv + 1);
    reshard_job job = {.iters = 5, .transform = "none"};
    const char *memory = "symmetric";
    const option_entry entries[] = {
        {"model", 'm', OPTION_TEXT, &job.spec.model_path, "FILE",
         "tensor list (JSON), Hugging Face folder or safetensors file", 0, 0},
        {"from", '\0', OPTION_TEXT, &job.spec.from_text, "SPEC",
         "the source's layout: tp=2,pp=2,packing=megatron", 0, 0},
        {"to", '\0', OPTION_TEXT, &job.spec.to_text, "SPEC", "the destination's layout", 0, 0},
        {"disjoint", '\0', OPTION_FLAG, &job.spec.disjoint, NULL,
         "destination ranks are others than source ranks", 0, 0},
        {"backend", '\0', OPTION_TEXT, &job.backend, "NAME", "direct, pipeline or mpi", 0, 0},
        {"iters", '\0', OPTION_COUNT, &job.iters, "N", "how often to move it all (5)", 1, 1000000},
        {"memory", '\0', OPTION_CHOICE, &memory, "symmetric|ordinary",
         "where the tensors lie (symmetric)", 0, 0},
        {"transform", '\0', OPTION_CHOICE, &job.transform, "none|mxfp8|mxfp8-at-sender",
         "matrices arrive in another format (none)", 0, 0},
        {"checksums", '\0', OPTION_FLAG, &job.checksums, NULL,
         "send and verify a checksum with every transfer", 0, 0},
        {"rules", '\0', OPTION_TEXT, &job.spec.rules_path, "FILE",
         "how tensors are split, instead of the built-in rules", 0, 0},
        {"json", '\0', OPTION_FLAG, &job.json, NULL, "print one JSON object, no table", 0, 0},
        {"svg", '\0', OPTION_TEXT, &job.svg_path, "FILE", "draw who sends how much to whom", 0, 0},
    };
    const option_table table = {
        WHO, "--model FILE --from SPEC --to SPEC [options]",
        "Move a model's tensors from one parallel layout to another between processes of this\n"
        "machine. Every element is filled from its tensor's name and global index, and every\n"
        "destination element is checked.\n\n"
        "banyan reshard verify --help: check the planner against cases of Megatron-Core's.\n",
        entries, sizeof(entries) / sizeof(entries[0])};
    int rest;
    options_result result = options_parse_anywhere(&table, argc, argv, &rest);
    if (result != OPTIONS_OK)
        return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    if (rest != argc)
        return options_refuse(&table, "\"%s\" is no option; %s --help lists them", argv[rest], WHO);
    const char *missing = job_spec_missing(&job.spec);
    if (missing)
        return options_refuse(&table, "%s is missing", missing);
    job.ordinary_memory = strcmp(memory, "ordinary") == 0;
    return run(&job);
}
