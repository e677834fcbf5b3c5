#include "cli/complete.h"

#include <stdio.h>
#include <string.h>

static struct {
    bool on, help;
} complete;

void complete_begin(void)
{
    complete.on = true;
}

bool complete_is_on(void)
{
    return complete.on;
}

void complete_help(void)
{
    complete.help = true;
}

void complete_candidate(const char *prefix, const char *word, const char *description)
{
    printf("%s%s\t%s\n", prefix, word, description);
}

void complete_commands(const command_set *set)
{
    for (size_t i = 0; i < set->count; i++)
        complete_candidate("", set->entries[i].name, set->entries[i].about);
    if (!complete.help)
        complete_candidate("", "help", "show the options of a command");
}

static void complete_option_names(const option_table *table)
{
    for (size_t i = 0; i < table->count; i++) {
        const option_entry *entry = &table->entries[i];
        char letter[] = {entry->letter, '\0'};
        complete_candidate("--", entry->name, entry->help);
        if (entry->letter)
            complete_candidate("-", letter, entry->help);
    }
    complete_candidate("--", "help", "print this help");
}

/* Copy the placeholder of operand `index` (from 0) out of the usage: that of operand 0 in
 * "PLAN.json -o plan.html [options]" is "PLAN.json". "CASE.json…" stands for any number of
 * operands. Leave `operand` alone if the usage has fewer. */
static void find_operand(const option_table *table, int index, char operand[64])
{
    char usage[512];
    snprintf(usage, sizeof usage, "%.*s", (int)strcspn(table->usage, "|\n"), table->usage);
    bool is_value = false;
    char *rest;
    for (char *word = strtok_r(usage, " ()[]", &rest); word;
         word = strtok_r(NULL, " ()[]", &rest)) {
        const char *value = NULL;
        const option_entry *entry = word[0] == '-' ? options_find(table, word, &value) : NULL;
        bool skipped = is_value || word[0] == '-' || strcmp(word, "options") == 0;
        is_value = entry && entry->kind != OPTION_FLAG;
        if (skipped)
            continue;
        char *more = strstr(word, "…");
        if (more)
            *more = '\0';
        if (more || index-- == 0) {
            snprintf(operand, 64, "%s", word);
            return;
        }
    }
}

/* Complete the last word, which begins with a dash: an option, or a value behind its name. */
static void complete_dashed(const option_table *table, const char *last)
{
    const char *value = NULL;
    const option_entry *entry = strlen(last) > 2 ? options_find(table, last, &value) : NULL;
    if (!entry || !value) {
        complete_option_names(table);
        return;
    }
    char prefix[128];
    snprintf(prefix, sizeof prefix, "%.*s", (int)(value - last), last);
    if (entry->kind != OPTION_FLAG)
        complete_value(entry->argument, prefix, value);
}

void complete_options(const option_table *table, int argc, char **argv, bool leading)
{
    const char *last = argv[argc - 1];
    int at = 1, operands = 0;
    bool ended = false; /* the options */
    for (; at < argc - 1; at++) {
        const char *value = NULL;
        if (ended || argv[at][0] != '-' || argv[at][1] == '\0') {
            if (leading)
                break;
            operands++;
            continue;
        }
        ended = strcmp(argv[at], "--") == 0;
        const option_entry *entry = options_find(table, argv[at], &value);
        if (entry && entry->kind != OPTION_FLAG && !value && ++at == argc - 1) {
            complete_value(entry->argument, "", last);
            return;
        }
    }
    ended = ended || at < argc - 1;
    if (complete.help)
        return;
    if (!ended && last[0] == '-') {
        complete_dashed(table, last);
        return;
    }
    char operand[64] = "";
    find_operand(table, operands, operand);
    if (strcmp(operand, "program") == 0)
        printf(":command\t%d\n", argc - at);
    else if (!complete_value(operand, "", last) && !ended)
        complete_option_names(table);
}
