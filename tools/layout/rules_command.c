#include "cli/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <banyan/rules.h>

#include "cli/options.h"
#include "cli/text.h"
#include "core/text/escape.h"
#include "layout/job_spec.h"

#define WHO "banyan rules"
#define LIST_WHO WHO " list"
#define SHOW_WHO WHO " show"
#define CHECK_WHO WHO " check"

/* Print the first comment of a rule file, up to its first line that is not a comment. */
static void print_about(const char *text)
{
    for (bool first = true; *text == '#'; first = false) {
        size_t bytes = strcspn(text, "\n");
        const char *words = text + 1 + strspn(text + 1, " ");
        printf("%s%.*s", first ? "" : " ", (int)(text + bytes - words), words);
        text += bytes + (text[bytes] == '\n');
    }
    putchar('\n');
}

static int rules_command_list(int argc, char **argv)
{
    const char *path = NULL;
    const option_entry entries[] = {
        {"rules", '\0', OPTION_TEXT, &path, "FILE", "list the packings of this file", 0, 0},
    };
    const option_table table = {
        LIST_WHO, "[--rules FILE]",
        "List the packings, each with the engine release that it was compared with, and the\n"
        "built-in rule files.\n",
        entries, sizeof(entries) / sizeof(entries[0])};
    RETURN_UNLESS_PARSED(options_parse_only(&table, argc, argv));
    banyan_rules *rules;
    if (banyan_rules_load(path, &rules) != BANYAN_OK)
        return text_fail(LIST_WHO);
    printf("%-20s %s\n%-20s %s\n", "packing", "held against", "hf",
           "(names and shapes of the model)");
    for (size_t i = 0; i < banyan_rules_packing_count(rules); i++) {
        const char *release = banyan_rules_packing_release(rules, i);
        printf("%-20s %s\n", banyan_rules_packing_name(rules, i), release ? release : "-");
    }
    banyan_rules_destroy(rules);
    if (path)
        return 0;
    printf("\n%-20s %s\n", "file", "what it is for");
    for (size_t i = 0; i < banyan_rules_file_count(); i++) {
        printf("%-20s ", banyan_rules_file_name(i));
        print_about(banyan_rules_file_text(i));
    }
    return 0;
}

static int rules_command_show(int argc, char **argv)
{
    int rest;
    const option_table table = {
        SHOW_WHO, "[RULES]",
        "Print a built-in rule file. Without RULES, print \"builtin\", which includes the\n"
        "others.\n",
        NULL, 0};
    RETURN_UNLESS_PARSED(options_parse_anywhere(&table, argc, argv, &rest));
    if (argc - rest > 1)
        return options_refuse(&table, "\"%s\" is one RULES too many", argv[rest + 1]);
    const char *name = argc > rest ? argv[rest] : "builtin";
    for (size_t i = 0; i < banyan_rules_file_count(); i++) {
        if (strcmp(banyan_rules_file_name(i), name) == 0) {
            fputs(banyan_rules_file_text(i), stdout);
            return 0;
        }
    }
    fprintf(stderr, SHOW_WHO ": there is no built-in rule file \"%s\"; " LIST_WHO " lists them\n",
            name);
    return 1;
}

struct checking {
    const char *rules_path, *model_path, *config_path, *skip, *spec_text;
    banyan_rules *rules;
    banyan_model *model;
    banyan_spec spec;
};

static banyan_status rules_command_read_all(struct checking *job)
{
    banyan_status status = banyan_rules_load(job->rules_path, &job->rules);
    if (status == BANYAN_OK && job->spec_text)
        status = banyan_spec_parse(job->spec_text, &job->spec);
    if (status == BANYAN_OK && job->model_path)
        status = banyan_model_load(job->model_path, &job->model);
    if (status == BANYAN_OK && job->config_path)
        status = banyan_model_add_config(job->model, job->config_path);
    if (status == BANYAN_OK && job->skip)
        status = skip_tensors(job->model, job->skip);
    return status;
}

/* Print one line per tensor. Sets how many have no rule, or one that cannot be decided. */
static banyan_status print_tensors(const struct checking *job, size_t *without)
{
    static const char *const signs[] = {
        [BANYAN_RULES_MATCHED] = "",
        [BANYAN_RULES_SKIPPED] = "",
        [BANYAN_RULES_UNMATCHED] = "NO RULE: ",
        [BANYAN_RULES_UNDECIDED] = "UNDECIDED: ",
        [BANYAN_RULES_INCOMPLETE] = "INCOMPLETE: ",
    };
    const char *packing = job->spec_text ? job->spec.packing : "hf";
    *without = 0;
    for (size_t i = 0; i < banyan_model_tensor_count(job->model); i++) {
        banyan_rules_verdict verdict;
        char text[1024];
        banyan_status status =
            banyan_rules_explain(job->rules, job->model, packing, i, &verdict, text, sizeof text);
        if (status != BANYAN_OK)
            return status;
        char name[1024], said[sizeof text * ESCAPE_GROWTH];
        printf("%-60s %s%s\n",
               escape_controls(banyan_model_tensor(job->model, i)->name, name, sizeof name),
               signs[verdict], escape_controls(text, said, sizeof said));
        *without += verdict >= BANYAN_RULES_UNMATCHED;
    }
    return BANYAN_OK;
}

/* Check the layout of every rank. */
static banyan_status rules_command_check_layouts(const struct checking *job)
{
    banyan_status status = BANYAN_OK;
    for (int rank = 0; rank < banyan_spec_world_size(&job->spec) && status == BANYAN_OK; rank++) {
        banyan_layout *layout;
        status = banyan_layout_create(&layout);
        if (status != BANYAN_OK)
            return status;
        banyan_layout_add_model(layout, job->model, job->rules, &job->spec, rank, 0);
        status = banyan_layout_check_as(layout, BANYAN_DESTINATION);
        banyan_layout_destroy(layout);
    }
    return status;
}

static int check_model(const struct checking *job)
{
    size_t without, count = banyan_model_tensor_count(job->model);
    if (print_tensors(job, &without) != BANYAN_OK)
        return text_fail(CHECK_WHO);
    if (without > 0) {
        fprintf(stderr,
                CHECK_WHO ": %zu of %zu tensors have no rule, or one that is "
                          "undecided or incomplete\n",
                without, count);
        return 1;
    }
    if (job->spec_text && rules_command_check_layouts(job) != BANYAN_OK)
        return text_fail(CHECK_WHO);
    printf("%zu tensors: each has a rule%s\n", count,
           job->spec_text ? ", and the layouts of all ranks are sound" : "");
    return 0;
}

static int rules_command_check(int argc, char **argv)
{
    struct checking job = {0};
    int rest;
    const option_entry entries[] = {
        {"model", 'm', OPTION_TEXT, &job.model_path, "FILE",
         "tensor list (JSON), Hugging Face folder or safetensors file", 0, 0},
        {"config", '\0', OPTION_TEXT, &job.config_path, "FILE",
         "config.json of the model, if it is not beside the weights", 0, 0},
        {"skip", '\0', OPTION_TEXT, &job.skip, "GLOB[,…]", "omit these tensors: **.inv_freq", 0, 0},
        {"spec", '\0', OPTION_TEXT, &job.spec_text, "SPEC",
         "also check this layout: tp=2,packing=vllm", 0, 0},
    };
    const option_table table = {
        CHECK_WHO, "[FILE] [--model FILE] [--spec SPEC]",
        "Check a rule file; without FILE, check the built-in rules. With a model, print the\n"
        "rule of each tensor. For a tensor without a rule, print the nearest rule and the\n"
        "reason why it does not match. With a spec, also check the layouts of all its ranks.\n",
        entries, sizeof(entries) / sizeof(entries[0])};
    RETURN_UNLESS_PARSED(options_parse_anywhere(&table, argc, argv, &rest));
    if (argc - rest > 1)
        return options_refuse(&table, "\"%s\" is one FILE too many", argv[rest + 1]);
    if (!job.model_path && (job.spec_text || job.config_path || job.skip))
        return options_refuse(&table, "--spec, --config and --skip need --model FILE");
    job.rules_path = argc > rest ? argv[rest] : NULL;
    int code = 0;
    if (rules_command_read_all(&job) != BANYAN_OK)
        code = text_fail(CHECK_WHO);
    else if (job.model_path)
        code = check_model(&job);
    else
        printf("%s%s\n", job.rules_path ? job.rules_path : "the built-in rules",
               job.rules_path ? " is sound" : " are sound");
    banyan_model_destroy(job.model);
    banyan_rules_destroy(job.rules);
    return code;
}

int rules_command(int argc, char **argv)
{
    static const command_entry subcommands[] = {
        {"list", "", "list the packings and the built-in files", rules_command_list},
        {"show", "[RULES]", "print a built-in file", rules_command_show},
        {"check", "[FILE]", "check a file, or what it makes of a model", rules_command_check},
    };
    static const command_set set = {
        .command = WHO,
        .usage = "list|show|check ...",
        .about = "Rules define how the tensors of a model are split, and where they lie in the "
                 "packing\nof an engine.\n",
        .more = "",
        .entries = subcommands,
        .count = sizeof subcommands / sizeof subcommands[0],
    };
    return command_set_run(&set, argc, argv);
}
