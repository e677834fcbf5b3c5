#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/complete.h"
#include "cli/text.h"
#include "core/nearest.h"

#define HELP_COLUMN 30 /* width of the options */

int options_refuse(const option_table *table, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    text_print_error(table->command, format, args);
    va_end(args);
    return EXIT_USAGE;
}

static void cli_options_print_help(const option_table *table)
{
    printf("usage: %s%s%s\n\n%s\n", table->command, table->usage[0] ? " " : "", table->usage,
           table->about);
    for (size_t i = 0; i < table->count; i++) {
        const option_entry *entry = &table->entries[i];
        char left[128];
        snprintf(left, sizeof left, "%s%c%s--%s%s%s", entry->letter ? "-" : " ",
                 entry->letter ? entry->letter : ' ', entry->letter ? ", " : "  ", entry->name,
                 entry->argument ? " " : "", entry->argument ? entry->argument : "");
        int columns = text_columns(left);
        if (columns <= HELP_COLUMN)
            printf("  %s%*s  %s\n", left, HELP_COLUMN - columns, "", entry->help);
        else
            printf("  %s\n%*s%s\n", left, HELP_COLUMN + 4, "", entry->help);
    }
    printf("  %-*s  %s\n", HELP_COLUMN, "    --help", "print this help");
}

static bool is_choice(const char *choices, const char *text)
{
    size_t length = strlen(text);
    for (const char *at = choices; length > 0 && (at = strstr(at, text)); at++) {
        bool starts = at == choices || at[-1] == '|';
        if (starts && (at[length] == '\0' || at[length] == '|'))
            return true;
    }
    return false;
}

static bool set_count(const option_table *table, const option_entry *entry, const char *text)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end || value < entry->low || value > entry->high) {
        options_refuse(table, "--%s wants a number from %d to %d, not \"%s\"", entry->name,
                       entry->low, entry->high, text);
        return false;
    }
    *(int *)entry->value = (int)value;
    return true;
}

static bool set_seconds(const option_table *table, const option_entry *entry, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value <= 0 || value > 1e9) {
        options_refuse(table, "--%s wants seconds, more than 0, not \"%s\"", entry->name, text);
        return false;
    }
    *(double *)entry->value = value;
    return true;
}

static bool cli_options_set_bytes(const option_table *table, const option_entry *entry,
                                  const char *text)
{
    uint64_t value;
    if (!sizes_parse(text, &value) || value == 0) {
        options_refuse(table, "--%s wants bytes, more than 0, such as 1000, 64K or 1M, not \"%s\"",
                       entry->name, text);
        return false;
    }
    *(uint64_t *)entry->value = value;
    return true;
}

static bool set_range(const option_table *table, const option_entry *entry, const char *text)
{
    uint64_t *range = entry->value;
    if (sizes_parse_range(text, &range[0], &range[1]))
        return true;
    options_refuse(table, "--%s wants %s, more than 0 and ascending, such as %s, not \"%s\"",
                   entry->name, entry->kind == OPTION_BYTES_RANGE ? "bytes" : "rows",
                   entry->kind == OPTION_BYTES_RANGE ? "1K:64M or 1000" : "1:4096 or 64", text);
    return false;
}

static bool check_text(const option_table *table, const option_entry *entry, const char *text)
{
    if (entry->kind == OPTION_CHOICE && !is_choice(entry->argument, text)) {
        options_refuse(table, "--%s takes one of %s, not \"%s\"", entry->name, entry->argument, text);
        return false;
    }
    if (!*text) { /* "$name" of a shell that has no such variable */
        options_refuse(table, "--%s wants a value: %s, not \"\"", entry->name, entry->argument);
        return false;
    }
    if (entry->kind == OPTION_FILE && strcmp(text, "-") == 0) {
        options_refuse(table, "--%s wants a file's name, not \"-\": stdout has the report",
                       entry->name);
        return false;
    }
    return true;
}

static bool set_value(const option_table *table, const option_entry *entry, const char *text)
{
    switch (entry->kind) {
    case OPTION_FLAG:
        *(bool *)entry->value = true;
        return true;
    case OPTION_COUNT:
        return set_count(table, entry, text);
    case OPTION_SECONDS:
        return set_seconds(table, entry, text);
    case OPTION_BYTES:
        return cli_options_set_bytes(table, entry, text);
    case OPTION_BYTES_RANGE:
    case OPTION_ROWS_RANGE:
        return set_range(table, entry, text);
    case OPTION_CHOICE:
    case OPTION_TEXT:
    case OPTION_FILE:
        break;
    }
    if (!check_text(table, entry, text))
        return false;
    *(const char **)entry->value = text;
    return true;
}

const option_entry *options_find(const option_table *table, const char *argument,
                                 const char **value)
{
    bool is_long = argument[1] == '-';
    size_t length = is_long ? strcspn(argument + 2, "=") : 1;
    for (size_t i = 0; i < table->count; i++) {
        const option_entry *entry = &table->entries[i];
        bool found = is_long ? strlen(entry->name) == length &&
                                   strncmp(entry->name, argument + 2, length) == 0
                             : entry->letter == argument[1];
        if (!found)
            continue;
        const char *behind = argument + (is_long ? 2 + length : 2);
        *value = *behind == '\0' ? NULL : behind + is_long;
        return entry;
    }
    return NULL;
}

/* Refuse an unknown option, suggesting the one that "--form=tp=2" may stand for. */
static void refuse_unknown(const option_table *table, const char *argument)
{
    char name[64] = "";
    if (argument[1] == '-')
        snprintf(name, sizeof name, "%.*s", (int)strcspn(argument + 2, "="), argument + 2);
    names_search search = names_search_for(name);
    names_search_try(&search, "help");
    for (size_t i = 0; i < table->count; i++)
        names_search_try(&search, table->entries[i].name);
    options_refuse(table, "there is no option %s%s%s%s; %s --help lists them", argument,
                   search.nearest ? " (did you mean --" : "", search.nearest ? search.nearest : "",
                   search.nearest ? "?)" : "", table->command);
}

/* Read the option at argv[*at] and step over it. */
static options_result parse_one(const option_table *table, int argc, char **argv, int *at)
{
    const char *argument = argv[*at], *value = NULL;
    if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0) {
        cli_options_print_help(table);
        return OPTIONS_HELP;
    }
    const option_entry *entry = options_find(table, argument, &value);
    if (!entry) {
        refuse_unknown(table, argument);
        return OPTIONS_WRONG;
    }
    if (entry->kind == OPTION_FLAG && value) {
        options_refuse(table, "--%s takes no value, \"%s\" was given", entry->name, value);
        return OPTIONS_WRONG;
    }
    if (entry->kind != OPTION_FLAG && !value && !(value = argv[++*at])) {
        options_refuse(table, "--%s needs a value: %s", entry->name, entry->argument);
        return OPTIONS_WRONG;
    }
    ++*at;
    (void)argc;
    return set_value(table, entry, value) ? OPTIONS_OK : OPTIONS_WRONG;
}

static bool is_option(const char *argument)
{
    return argument[0] == '-' && argument[1] != '\0';
}

options_result options_parse(const option_table *table, int argc, char **argv, int *rest)
{
    if (complete_is_on()) {
        complete_options(table, argc, argv, true);
        return OPTIONS_HELP;
    }
    int at = 1;
    while (at < argc && is_option(argv[at])) {
        if (strcmp(argv[at], "--") == 0) {
            at++;
            break;
        }
        options_result result = parse_one(table, argc, argv, &at);
        if (result != OPTIONS_OK)
            return result;
    }
    *rest = at;
    return OPTIONS_OK;
}

options_result options_parse_anywhere(const option_table *table, int argc, char **argv, int *rest)
{
    if (complete_is_on()) {
        complete_options(table, argc, argv, false);
        return OPTIONS_HELP;
    }
    int at = 1, kept = 0;
    char **others = calloc((size_t)argc + 1, sizeof *others);
    options_result result = others ? OPTIONS_OK : OPTIONS_WRONG;
    while (at < argc && result == OPTIONS_OK) {
        if (strcmp(argv[at], "--") == 0) {
            for (at++; at < argc; at++)
                others[kept++] = argv[at];
        } else if (is_option(argv[at])) {
            result = parse_one(table, argc, argv, &at);
        } else {
            others[kept++] = argv[at++];
        }
    }
    *rest = argc - kept;
    for (int i = 0; i < kept; i++)
        argv[*rest + i] = others[i];
    free(others);
    return result;
}

options_result options_parse_one(const option_table *table, int argc, char **argv,
                                 const char *wanted, const char **given)
{
    int rest;
    options_result result = options_parse_anywhere(table, argc, argv, &rest);
    if (result != OPTIONS_OK)
        return result;
    if (rest + 1 != argc) {
        options_refuse(table, "say %s%s", wanted, rest == argc ? "" : ", one at a time");
        return OPTIONS_WRONG;
    }
    *given = argv[rest];
    return OPTIONS_OK;
}

int options_exit_code(options_result result)
{
    return result == OPTIONS_WRONG ? EXIT_USAGE : 0;
}

options_result options_parse_only(const option_table *table, int argc, char **argv)
{
    int rest;
    options_result result = options_parse_anywhere(table, argc, argv, &rest);
    if (result != OPTIONS_OK || rest == argc)
        return result;
    options_refuse(table, "\"%s\" is not an option; %s --help lists them", argv[rest],
                   table->command);
    return OPTIONS_WRONG;
}
