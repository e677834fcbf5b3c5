/* `banyan compat`: programs of other systems, which the Python package runs. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/python.h"

#define WHO "banyan compat mscclpp"

static int compat_command_mscclpp(int argc, char **argv)
{
    const char *folder = NULL, *settings = NULL, *out = NULL;
    uint64_t size = 0;
    double seconds = 120;
    bool json = false;
    const option_entry entries[] = {
        {"set", '\0', OPTION_TEXT, &settings, "OPTION=VALUE,...",
         "options of the scripts that have them "
         "(num_gpus=4,gpus_per_node=2,tbg_size=2,tbg=2,name=SCRIPT)",
         0, 0},
        {"size", 's', OPTION_BYTES, &size, "BYTES",
         "check this message size (one size of every class)", 0, 0},
        {"timeout", '\0', OPTION_SECONDS, &seconds, "SECONDS", "time limit of a script (120)", 0,
         0},
        {"out", 'o', OPTION_TEXT, &out, "FOLDER", "write the plans to this folder", 0, 0},
        {"json", '\0', OPTION_FLAG, &json, NULL, "print one JSON list instead of lines", 0, 0},
    };
    const option_table table = {
        .command = WHO,
        .usage = "FOLDER [options]",
        .about = "Run the scripts in a folder that are written for MSCCL++'s language, unchanged,\n"
                 "and check the plans that they print. Print for each script whether its plan is\n"
                 "made and sound. Exit code 0 if every script makes a sound plan, else 1. Needs\n"
                 "the Python package: BANYAN_PYTHON, or python3 in PATH, must have it.\n"
                 "docs/language-python.md.\n",
        .entries = entries,
        .count = sizeof entries / sizeof entries[0],
    };
    options_result result =
        options_parse_one(&table, argc, argv, "the folder of scripts: FOLDER", &folder);
    if (result != OPTIONS_OK)
        return options_exit_code(result);
    char size_text[32], seconds_text[32];
    snprintf(size_text, sizeof size_text, "%" PRIu64, size);
    snprintf(seconds_text, sizeof seconds_text, "%.17g", seconds);
    const char *words[PYTHON_MAX_WORDS] = {"mscclpp", "--timeout", seconds_text};
    int count = 3;
    const char *const given[][2] = {
        {"--set", settings}, {"--size", size > 0 ? size_text : NULL}, {"--out", out}};
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++) {
        if (given[i][1]) {
            words[count++] = given[i][0];
            words[count++] = given[i][1];
        }
    }
    if (json)
        words[count++] = "--json";
    words[count++] = "--";
    words[count] = folder;
    return python_become(WHO, "banyan.compat.__main__", words);
}

int compat_command(int argc, char **argv)
{
    static const command_entry subcommands[] = {
        {"mscclpp", "FOLDER", "run scripts of MSCCL++'s language and check their plans",
         compat_command_mscclpp},
    };
    static const command_set set = {
        .command = "banyan compat",
        .usage = "mscclpp ...",
        .about = "",
        .more = "",
        .entries = subcommands,
        .count = sizeof subcommands / sizeof subcommands[0],
    };
    return command_set_run(&set, argc, argv);
}
