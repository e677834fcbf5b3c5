#include "cli/commands.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "cli/options.h"
#include "cli/text.h"
#include "launch/launch.h"
#include "reshard/verify_job.h"

#define WHO "banyan reshard verify"

static void print_passed(const char *name, const verify_job *job, int ranks)
{
    char transfers[TEXT_NUMBER_BYTES], elems[TEXT_NUMBER_BYTES];
    uint64_t total = 0;
    for (int rank = 0; rank < ranks; rank++)
        total += job->elems[rank];
    printf("%s: passed: %d ranks, %s elements as %s transfers give them\n", name, ranks,
           text_count(total, elems),
           text_count(banyan_megatron_case_transfer_count(job->loaded), transfers));
}

/* Run the ranks; what went wrong is in job->failed, or `why`. */
static bool execute(verify_job *job, int ranks, const char **why, char text[FAILURE_TEXT_BYTES])
{
    launch_job launched = {.who = WHO,
                           .count = ranks,
                           .rank_main = verify_rank,
                           .context = job,
                           .ranks_explain = true};
    int code = launch_run(&launched);
    *why = failure_sentence(job->failed, text);
    if (code != 0 && !*why)
        *why = "a rank ended without a word";
    return !*why;
}

/* One file: passed or failed, a line. */
static bool verify_case(const char *path, const char *backend)
{
    verify_job job = {.backend = backend};
    char text[FAILURE_TEXT_BYTES];
    const char *why = NULL, *slash = strrchr(path, '/');
    if (banyan_megatron_case_load(path, &job.loaded) != BANYAN_OK) {
        printf("%s: failed: %s\n", slash ? slash + 1 : path, banyan_last_error());
        return false;
    }
    int ranks = banyan_megatron_case_world_size(job.loaded);
    size_t bytes = (size_t)ranks * sizeof *job.elems;
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    job.failed = failure_create();
    if (shared == MAP_FAILED || !job.failed) {
        why = "out of memory";
    } else if (ranks > LAUNCH_MAX_RANKS) {
        why = "it has more ranks than one machine is given";
    } else {
        job.elems = shared;
        execute(&job, ranks, &why, text);
    }
    if (why)
        printf("%s: failed: %s\n", slash ? slash + 1 : path, why);
    else
        print_passed(slash ? slash + 1 : path, &job, ranks);
    fflush(stdout);
    failure_destroy(job.failed);
    if (shared != MAP_FAILED)
        munmap(shared, bytes);
    banyan_megatron_case_destroy(job.loaded);
    return !why;
}

int verify_command(int argc, char **argv)
{
    const char *backend = NULL;
    const option_entry entries[] = {
        {"backend", '\0', OPTION_TEXT, &backend, "NAME", "copy backend: direct, pipeline or mpi", 0,
         0},
    };
    const option_table table = {
        WHO, "[options] CASE.json…",
        "Plan each case from the tensors of its ranks, in Megatron-Core's terms. Run all ranks\n"
        "as processes, and compare every destination element with the result of the case's own\n"
        "transfers. docs/layouts.md describes the format.\n",
        entries, sizeof(entries) / sizeof(entries[0])};
    int rest, passed = 0;
    options_result result = options_parse_anywhere(&table, argc, argv, &rest);
    if (result != OPTIONS_OK)
        return options_exit_code(result);
    if (rest == argc)
        return options_refuse(&table, "say which cases: CASE.json…");
    for (int i = rest; i < argc; i++)
        passed += verify_case(argv[i], backend);
    printf("%d passed, %d failed\n", passed, argc - rest - passed);
    return passed == argc - rest ? 0 : 1;
}
