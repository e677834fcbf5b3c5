#include "cli/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/complete.h"
#include "cli/options.h"
#include "core/nearest.h"
#include "core/text/escape.h"

static size_t command_set_width_of(const command_entry *entry)
{
    return strlen(entry->name) + strlen(entry->arguments) + (entry->arguments[0] != '\0');
}

static void print_commands(const command_set *set, FILE *to)
{
    size_t widest = 0;
    for (size_t i = 0; i < set->count; i++)
        widest = command_set_width_of(&set->entries[i]) > widest
                     ? command_set_width_of(&set->entries[i])
                     : widest;
    for (size_t i = 0; i < set->count; i++) {
        const command_entry *entry = &set->entries[i];
        fprintf(to, "  %s%s%s%*s  %s\n", entry->name, entry->arguments[0] ? " " : "",
                entry->arguments, (int)(widest - command_set_width_of(entry)), "", entry->about);
    }
    fprintf(to, "\n  %s help COMMAND shows the options of a command.\n%s", set->command, set->more);
}

static void command_set_print_help(const command_set *set, FILE *to)
{
    fprintf(to, "usage: %s %s\n\n%s%s", set->command, set->usage, set->about,
            set->about[0] ? "\n" : "");
    print_commands(set, to);
}

/* "--help" of a command that also has commands. */
static int help_both(const command_set *set, char **argv)
{
    static char help[] = "--help";
    char *asked[] = {argv[0], help, NULL};
    int code = set->otherwise(2, asked);
    printf("\nCommands:\n");
    print_commands(set, stdout);
    return code;
}

static int command_set_refuse(const command_set *set, const char *name)
{
    char escaped[256];
    names_search search = names_search_for(name);
    for (size_t i = 0; i < set->count; i++)
        names_search_try(&search, set->entries[i].name);
    fprintf(stderr, "%s: there is no command \"%s\"%s%s%s; %s --help lists them\n", set->command,
            escape_controls(name, escaped, sizeof escaped), search.nearest ? " (did you mean " : "",
            search.nearest ? search.nearest : "", search.nearest ? "?)" : "", set->command);
    return EXIT_USAGE;
}

/* argv: "plan", "help", NAME, … becomes "plan", NAME, …, "--help". */
static int run_help(const command_set *set, int argc, char **argv)
{
    static char help[] = "--help";
    char **asked = calloc((size_t)argc + 1, sizeof *asked);
    if (!asked) {
        fprintf(stderr, "%s: out of memory\n", set->command);
        return 1;
    }
    asked[0] = argv[0];
    memcpy(asked + 1, argv + 2, (size_t)(argc - 2) * sizeof *asked);
    asked[argc - 1] = help;
    int code = command_set_run(set, argc, asked);
    free(asked);
    return code;
}

int command_set_run(const command_set *set, int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : NULL;
    if (complete_is_on() && argc <= 2) {
        if (!name || name[0] != '-')
            complete_commands(set);
        return set->otherwise ? set->otherwise(argc, argv) : 0;
    }
    if (!name && set->otherwise)
        return set->otherwise(argc, argv);
    if (!name) {
        command_set_print_help(set, stderr);
        return EXIT_USAGE;
    }
    bool help = strcmp(name, "help") == 0;
    if (help && complete_is_on()) {
        complete_help();
        return command_set_run(set, argc - 1, argv + 1);
    }
    if (help && argc > 2)
        return run_help(set, argc, argv);
    bool asked = help || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0;
    if (asked && set->otherwise)
        return help_both(set, argv);
    if (asked) {
        command_set_print_help(set, stdout);
        return 0;
    }
    for (size_t i = 0; i < set->count; i++) {
        if (strcmp(set->entries[i].name, name) == 0)
            return set->entries[i].run(argc - 1, argv + 1);
    }
    if (set->otherwise)
        return set->otherwise(argc, argv);
    return complete_is_on() ? 0 : command_set_refuse(set, name);
}
