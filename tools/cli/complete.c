#include "cli/complete.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include <banyan/banyan.h>

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

static void complete_candidate(const char *prefix, const char *word, const char *description)
{
    printf("%s%s\t%s\n", prefix, word, description);
}

static void list_algorithms(const char *prefix)
{
    banyan_algorithm_info info;
    for (size_t i = 0; banyan_algorithm_at(i, &info) == BANYAN_OK; i++)
        complete_candidate(prefix, info.name, info.about);
}

static void list_collectives(const char *prefix)
{
    for (int kind = BANYAN_ALLREDUCE; kind <= BANYAN_REDUCE; kind++)
        complete_candidate(prefix, banyan_collective_kind_name((banyan_collective_kind)kind), "");
}

static void list_topologies(const char *prefix)
{
    for (size_t i = 0; banyan_topology_shipped(i); i++) {
        banyan_topology *topology;
        if (banyan_topology_read(banyan_topology_shipped(i), &topology) != BANYAN_OK)
            continue;
        complete_candidate(prefix, banyan_topology_shipped(i),
                           banyan_topology_describe(topology).about);
        banyan_topology_destroy(topology);
    }
    printf(":json\t%s\n", prefix);
}

static void list_rule_files(const char *prefix)
{
    for (size_t i = 0; i < banyan_rules_file_count(); i++)
        complete_candidate(prefix, banyan_rules_file_name(i), "");
}

static void list_dtypes(const char *prefix)
{
    const DLDataType dtypes[] = {BANYAN_F32,     BANYAN_F16,     BANYAN_BF16,
                                 BANYAN_F8_E4M3, BANYAN_F8_E5M2, BANYAN_I32,
                                 BANYAN_U32,     BANYAN_I64,     BANYAN_U8};
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s", banyan_dtype_name(dtypes[i]));
        for (char *at = name; *at; at++)
            *at = (char)tolower((unsigned char)*at);
        complete_candidate(prefix, name, "");
    }
}

static void list_mixed_ops(const char *prefix)
{
    for (int op = 0; op < BANYAN_MIXED_OPS; op++)
        complete_candidate(prefix, banyan_mixed_op_name((banyan_mixed_op)op), "");
}

static void list_mixed_modes(const char *prefix)
{
    for (int mode = 0; mode < BANYAN_MIXED_MODES; mode++)
        complete_candidate(prefix, banyan_mixed_mode_name((banyan_mixed_mode)mode), "");
}

static void list_packings(const char *prefix)
{
    banyan_rules *rules;
    complete_candidate(prefix, "hf", "names and shapes of the model");
    if (banyan_rules_load(NULL, &rules) != BANYAN_OK)
        return;
    for (size_t i = 0; i < banyan_rules_packing_count(rules); i++) {
        const char *release = banyan_rules_packing_release(rules, i);
        complete_candidate(prefix, banyan_rules_packing_name(rules, i), release ? release : "");
    }
    banyan_rules_destroy(rules);
}

/* "tp=2,packing=vllm", of which the last item is completed; or a layout file. */
static void complete_spec(const char *prefix, const char *typed)
{
    static const char *const keys[][2] = {
        {"tp=", "tensor-parallel ranks"},
        {"pp=", "pipeline stages"},
        {"dp=", "data-parallel ranks"},
        {"fsdp=", "ranks that shard the parameters"},
        {"ep=", "expert-parallel ranks"},
        {"etp=", "tensor-parallel ranks of an expert"},
        {"world=", "number of ranks"},
        {"packing=", "names and shapes of an engine"},
        {"vocab_multiple=", "multiple that the vocabulary is padded to"},
        {"head=", "elements of an attention head"},
    };
    const char *comma = strrchr(typed, ','), *item = comma ? comma + 1 : typed;
    bool is_packing = strncmp(item, "packing=", 8) == 0;
    char before[256];
    int bytes = snprintf(before, sizeof before, "%s%.*s", prefix,
                         (int)(item - typed) + (is_packing ? 8 : 0), typed);
    if (bytes >= (int)sizeof before)
        return;
    if (is_packing)
        list_packings(before);
    else if (!strchr(item, '='))
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
            complete_candidate(before, keys[i][0], keys[i][1]);
    if (!strchr(typed, '='))
        printf(":json\t%s\n", prefix);
}

static void list_choices(const char *prefix, const char *choices)
{
    for (const char *at = choices; *at;) {
        int bytes = (int)strcspn(at, "|");
        printf("%s%.*s\t\n", prefix, bytes, at);
        at += bytes + (at[bytes] == '|');
    }
}

/* Print the values that a placeholder of the help stands for: "FILE", "PLAN.json", "ALGORITHM",
 * "direct|pipeline". `typed` is the value so far, which stands behind `prefix` in its word. False
 * for a placeholder without known values, such as a number. */
static bool complete_value(const char *placeholder, const char *prefix, const char *typed)
{
    static const struct {
        const char *placeholder;
        void (*list)(const char *prefix);
    } lists[] = {
        {"ALGORITHM", list_algorithms}, {"COLLECTIVE", list_collectives},
        {"MODE", list_mixed_modes},     {"OP", list_mixed_ops},
        {"RULES", list_rule_files},     {"TOPOLOGY", list_topologies},
        {"TYPE", list_dtypes},
    };
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        if (strcmp(lists[i].placeholder, placeholder) == 0) {
            lists[i].list(prefix);
            return true;
        }
    }
    size_t length = strlen(placeholder);
    if (strchr(placeholder, '|'))
        list_choices(prefix, placeholder);
    else if (strcmp(placeholder, "SPEC") == 0)
        complete_spec(prefix, typed);
    else if (strcmp(placeholder, "FILE") == 0)
        printf(":files\t%s\n", prefix);
    else if (strcmp(placeholder, "DIR") == 0)
        printf(":folders\t%s\n", prefix);
    else if (length > 5 && strcmp(placeholder + length - 5, ".json") == 0)
        printf(":json\t%s\n", prefix);
    else
        return false;
    return true;
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
