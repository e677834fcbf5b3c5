#include "cli/commands.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "cli/json_print.h"
#include "cli/options.h"
#include "cli/text.h"
#include "launch/launch.h"
#include "reshard/verify_job.h"

#define WHO "banyan reshard verify"

static uint64_t elements_of(const verify_job *job, int ranks)
{
    uint64_t total = 0;
    for (int rank = 0; rank < ranks; rank++)
        total += job->elems[rank];
    return total;
}

/* A case's line, or its object in `list`. */
static void report_failed(json_t *list, const char *name, const char *why)
{
    if (list)
        json_array_append_new(
            list, json_pack("{s:s, s:b, s:s}", "case", name, "passed", 0, "error", why));
    else
        printf("%s: failed: %s\n", name, why);
}

static void report_passed(json_t *list, const char *name, const verify_job *job, int ranks)
{
    char transfers[TEXT_NUMBER_BYTES], elems[TEXT_NUMBER_BYTES];
    size_t count = banyan_megatron_case_transfer_count(job->loaded);
    if (list)
        json_array_append_new(list, json_pack("{s:s, s:b, s:i, s:I, s:I}", "case", name, "passed",
                                              1, "ranks", ranks, "elements",
                                              (json_int_t)elements_of(job, ranks), "transfers",
                                              (json_int_t)count));
    else
        printf("%s: passed: %d ranks, %s elements as %s transfers give them\n", name, ranks,
               text_count(elements_of(job, ranks), elems), text_count(count, transfers));
}

/* Run the ranks; the error is in job->failed, or `why`. */
static bool verify_command_execute(verify_job *job, int ranks, const char **why,
                                   char text[FAILURE_TEXT_BYTES])
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

/* One file; `list` is NULL without --json. */
static bool verify_case(const char *path, const char *backend, json_t *list)
{
    verify_job job = {.backend = backend};
    char text[FAILURE_TEXT_BYTES];
    const char *why = NULL, *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (banyan_megatron_case_load(path, &job.loaded) != BANYAN_OK) {
        report_failed(list, name, banyan_last_error());
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
        verify_command_execute(&job, ranks, &why, text);
    }
    if (why)
        report_failed(list, name, why);
    else
        report_passed(list, name, &job, ranks);
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
    bool json = false;
    const option_entry entries[] = {
        {"backend", '\0', OPTION_TEXT, &backend, "direct|pipeline|mpi", "copy backend", 0, 0},
        {"json", '\0', OPTION_FLAG, &json, NULL, "print one JSON object", 0, 0},
    };
    const option_table table = {
        WHO, "CASE.json… [options]",
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
    json_t *list = json ? json_array() : NULL;
    for (int i = rest; i < argc; i++)
        passed += verify_case(argv[i], backend, list);
    int failed = argc - rest - passed;
    if (!json)
        printf("%d passed, %d failed\n", passed, failed);
    else if (json_print(json_pack("{s:i, s:i, s:o}", "passed", passed, "failed", failed, "cases",
                                  list)) != BANYAN_OK)
        return options_refuse(&table, "%s", banyan_last_error());
    return failed == 0 ? 0 : 1;
}
