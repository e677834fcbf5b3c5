/* Rule files: patterns at the start of a line, clauses indented below them.
 *
 *     packing vllm vocab 64
 *     model.layers.{layer}.mlp.gate_proj.weight
 *         shard 0
 *         in vllm model.layers.{layer}.mlp.gate_up_proj.weight block 0
 */
#include "reshard/rules/parse.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/text/json.h"
#include "reshard/rules/expr.h"

#define MAX_FILE_BYTES ((size_t)64 << 20)
#define MAX_DEPTH 8
#define BUILTIN "builtin:"

banyan_status rules_line_fail(const rules_line *line, const char *word, const char *problem)
{
    return error_set(BANYAN_ERR_FORMAT, "%s:%d: \"%s\" %s", line->file, line->number, word,
                     problem);
}

/* Cut a line into words, up to a #. */
static banyan_status parse_split(char *text, rules_line *line)
{
    line->indented = *text == ' ' || *text == '\t';
    line->count = 0;
    text[strcspn(text, "#")] = '\0';
    char *rest = text;
    for (char *word; (word = strtok_r(rest, " \t\r", &rest));) {
        if (line->count == RULES_MAX_WORDS)
            return rules_line_fail(line, word, "is one word too many");
        line->words[line->count++] = word;
    }
    return BANYAN_OK;
}

banyan_status rules_read_number(const rules_line *line, int word, int64_t low, int64_t high,
                                int64_t *value)
{
    if (word >= line->count)
        return rules_line_fail(line, line->words[word - 1], "should be followed by a number");
    const char *text = line->words[word];
    char *end;
    long long number = strtoll(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || number < low || number > high) {
        char problem[80];
        snprintf(problem, sizeof problem, "is not a number from %lld to %lld", (long long)low,
                 (long long)high);
        return rules_line_fail(line, text, problem);
    }
    *value = number;
    return BANYAN_OK;
}

banyan_status rules_keep_word(rules_parser *parser, const rules_line *line, int word,
                              const char **kept)
{
    if (word >= line->count)
        return rules_line_fail(line, line->words[word - 1], "should be followed by a name");
    *kept = names_keep(&parser->rules->names, line->words[word]);
    return *kept ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

banyan_status rules_keep_expr(rules_parser *parser, const rules_line *line, int word,
                              const char **kept)
{
    if (word >= line->count)
        return rules_line_fail(line, line->words[word - 1], "should be followed by a size");
    const char *problem = expr_check(line->words[word]);
    if (problem)
        return rules_line_fail(line, line->words[word], problem);
    return rules_keep_word(parser, line, word, kept);
}

banyan_status rules_line_end(const rules_line *line, int word)
{
    return word < line->count ? rules_line_fail(line, line->words[word], "is not expected here")
                              : BANYAN_OK;
}

/* A packing can follow only packings described above it, so there are no cycles. */
static banyan_status parse_inherit(rules_parser *parser, const rules_line *line,
                                   rule_packing *packing)
{
    for (size_t i = 0; i < parser->rules->packings.count; i++) {
        const rule_packing *known = &parser->rules->packings.data[i];
        if (known->name != packing->like)
            continue;
        if (packing->vocab_multiple == 0) {
            packing->vocab_multiple = known->vocab_multiple;
            packing->vocab_per_tp = known->vocab_per_tp;
        }
        packing->strict = packing->strict || known->strict;
        if (!packing->release)
            packing->release = known->release;
        return BANYAN_OK;
    }
    return rules_line_fail(line, packing->like, "is not a packing that is described above");
}

/* packing NAME [like OTHER] [vocab N] [per_tp] [strict] [release WORD] */
static banyan_status parse_read_packing(rules_parser *parser, const rules_line *line)
{
    rule_packing packing = {.file = line->file, .line = line->number};
    RETURN_IF_FAILED(rules_keep_word(parser, line, 1, &packing.name));
    for (int w = 2; w < line->count; w++) {
        if (strcmp(line->words[w], "like") == 0)
            RETURN_IF_FAILED(rules_keep_word(parser, line, ++w, &packing.like));
        else if (strcmp(line->words[w], "vocab") == 0)
            RETURN_IF_FAILED(rules_read_number(line, ++w, 0, INT32_MAX, &packing.vocab_multiple));
        else if (strcmp(line->words[w], "per_tp") == 0)
            packing.vocab_per_tp = true;
        else if (strcmp(line->words[w], "strict") == 0)
            packing.strict = true;
        else if (strcmp(line->words[w], "release") == 0)
            RETURN_IF_FAILED(rules_keep_word(parser, line, ++w, &packing.release));
        else
            return rules_line_fail(line, line->words[w],
                                   "is none of like, vocab, per_tp, strict, release");
    }
    for (size_t i = 0; i < parser->rules->packings.count; i++) {
        if (parser->rules->packings.data[i].name == packing.name)
            return rules_line_fail(line, packing.name, "is a packing that is already described");
    }
    if (packing.like)
        RETURN_IF_FAILED(parse_inherit(parser, line, &packing));
    return array_push(&parser->rules->packings, packing) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

/* default KEY EXPR [conditions] */
static banyan_status read_default(rules_parser *parser, const rules_line *line)
{
    const glob nothing = {0};
    if (!array_push(&parser->rules->defaults, (rule_default){0}))
        return BANYAN_ERR_NO_MEMORY;
    rule_default *added = &parser->rules->defaults.data[parser->rules->defaults.count - 1];
    RETURN_IF_FAILED(rules_keep_word(parser, line, 1, &added->key));
    RETURN_IF_FAILED(rules_keep_expr(parser, line, 2, &added->value));
    return rules_read_conditions(parser, line, 3, &nothing, &added->conditions);
}

/* skip PACKING PATTERN [conditions], keep PACKING PATTERN [conditions]; PACKING may be * */
static banyan_status read_skip(rules_parser *parser, const rules_line *line)
{
    if (parser->rules->skips.count == RULES_MAX_SKIPS)
        return rules_line_fail(line, line->words[0], "appears more than 64 times");
    if (!array_push(&parser->rules->skips, (rule_skip){.file = line->file, .line = line->number}))
        return BANYAN_ERR_NO_MEMORY;
    rule_skip *added = &parser->rules->skips.data[parser->rules->skips.count - 1];
    added->keeps = *line->words[0] == 'k';
    RETURN_IF_FAILED(rules_keep_word(parser, line, 1, &added->packing));
    RETURN_IF_FAILED(rules_keep_word(parser, line, 2, &added->text));
    if (strcmp(added->packing, "*") == 0)
        added->packing = NULL;
    const char *problem = glob_compile(added->text, &added->pattern);
    if (problem)
        return rules_line_fail(line, added->text, problem);
    return rules_read_conditions(parser, line, 3, &added->pattern, &added->conditions);
}

/* prefix FROM is TO [in PACKING OUT] [conditions] */
static banyan_status read_prefix(rules_parser *parser, const rules_line *line)
{
    const glob nothing = {0};
    int word = 4;
    if (!array_push(&parser->rules->prefixes, (rule_prefix){0}))
        return BANYAN_ERR_NO_MEMORY;
    rule_prefix *added = &parser->rules->prefixes.data[parser->rules->prefixes.count - 1];
    RETURN_IF_FAILED(rules_keep_word(parser, line, 1, &added->from));
    if (line->count < 4 || strcmp(line->words[2], "is") != 0)
        return rules_line_fail(line, line->words[1], "should be followed by is and a prefix");
    RETURN_IF_FAILED(rules_keep_word(parser, line, 3, &added->to));
    if (word < line->count && strcmp(line->words[word], "in") == 0) {
        RETURN_IF_FAILED(rules_keep_word(parser, line, word + 1, &added->packing));
        RETURN_IF_FAILED(rules_keep_word(parser, line, word + 2, &added->out));
        word += 3;
    }
    return rules_read_conditions(parser, line, word, &nothing, &added->conditions);
}

/* behind PACKING PATTERN [needs NAME] */
static banyan_status read_behind(rules_parser *parser, const rules_line *line)
{
    rule_behind added = {0};
    RETURN_IF_FAILED(rules_keep_word(parser, line, 1, &added.packing));
    RETURN_IF_FAILED(rules_keep_word(parser, line, 2, &added.text));
    const char *problem = glob_compile(added.text, &added.pattern);
    if (problem)
        return rules_line_fail(line, added.text, problem);
    if (!strstr(added.text, "{layer}"))
        return rules_line_fail(line, added.text, "has no {layer}");
    if (line->count > 3 && strcmp(line->words[3], "needs") != 0)
        return rules_line_fail(line, line->words[3], "should be needs");
    if (line->count > 3)
        RETURN_IF_FAILED(rules_keep_word(parser, line, 4, &added.needs));
    RETURN_IF_FAILED(rules_line_end(line, 5));
    return array_push(&parser->rules->behinds, added) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

/* rename PACKING PATTERN TEMPLATE [behind] [conditions] */
static banyan_status read_rename(rules_parser *parser, const rules_line *line)
{
    if (!array_push(&parser->rules->renames, (rule_rename){0}))
        return BANYAN_ERR_NO_MEMORY;
    rule_rename *added = &parser->rules->renames.data[parser->rules->renames.count - 1];
    RETURN_IF_FAILED(rules_keep_word(parser, line, 1, &added->packing));
    RETURN_IF_FAILED(rules_keep_word(parser, line, 2, &added->text));
    const char *problem = glob_compile(added->text, &added->pattern);
    if (problem)
        return rules_line_fail(line, added->text, problem);
    RETURN_IF_FAILED(rules_keep_word(parser, line, 3, &added->name));
    problem = glob_check_template(added->name, &added->pattern, false);
    if (problem)
        return rules_line_fail(line, added->name, problem);
    added->behind = line->count > 4 && strcmp(line->words[4], "behind") == 0;
    return rules_read_conditions(parser, line, 4 + added->behind, &added->pattern,
                                 &added->conditions);
}

/* experts KEY… */
static banyan_status parse_read_experts(rules_parser *parser, const rules_line *line)
{
    for (int word = 1; word < line->count; word++) {
        const char *key;
        RETURN_IF_FAILED(rules_keep_word(parser, line, word, &key));
        RETURN_IF_NO_MEMORY(array_push(&parser->rules->expert_facts, key));
    }
    return BANYAN_OK;
}

/* layers KEY */
static banyan_status parse_read_layers(rules_parser *parser, const rules_line *line)
{
    RETURN_IF_FAILED(rules_line_end(line, 2));
    return rules_keep_word(parser, line, 1, &parser->rules->layer_fact);
}

static banyan_status read_pattern(rules_parser *parser, const rules_line *line)
{
    RETURN_IF_FAILED(rules_line_end(line, 1));
    if (parser->clauses_seen) {
        parser->first_open = parser->rules->rules.count;
        parser->clauses_seen = false;
    }
    model_rule made = {.file = line->file, .line = line->number, .shard_dim = -1};
    made.text = names_keep(&parser->rules->names, line->words[0]);
    RETURN_IF_NO_MEMORY(made.text);
    const char *problem = glob_compile(made.text, &made.pattern);
    if (problem)
        return rules_line_fail(line, made.text, problem);
    return array_push(&parser->rules->rules, made) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static banyan_status parse_read_text(rules_parser *parser, const char *file, char *text);

static banyan_status include_builtin(rules_parser *parser, const rules_line *line, const char *file)
{
    char name[128], label[160];
    snprintf(name, sizeof name, "%s", file);
    char *ending = strstr(name, ".rules");
    if (ending)
        *ending = '\0';
    const char *found = rules_embedded(name);
    if (!found)
        return rules_line_fail(line, file, "is not a built-in rule file");
    char *text = strdup(found);
    if (!text)
        return error_no_memory(strlen(found), "the built-in rules");
    snprintf(label, sizeof label, BUILTIN "%s.rules", name);
    banyan_status status = parse_read_text(parser, label, text);
    free(text);
    return status;
}

/* A name without a folder lies beside the file that includes it. */
static banyan_status include_file(rules_parser *parser, const rules_line *line, const char *name)
{
    const char *slash = strrchr(line->file, '/');
    int folder = name[0] == '/' || !slash ? 0 : (int)(slash + 1 - line->file);
    char *path, *text;
    size_t bytes;
    if (asprintf(&path, "%.*s%s", folder, line->file, name) < 0)
        return error_no_memory(strlen(name), "a path");
    banyan_status status = file_read(path, MAX_FILE_BYTES, &text, &bytes);
    if (status == BANYAN_OK) {
        if (strlen(text) != bytes)
            status = error_set(BANYAN_ERR_FORMAT, "%s: a zero byte at %zu: not a text", path,
                               strlen(text));
        else
            status = parse_read_text(parser, path, text);
        free(text);
    }
    free(path);
    return status;
}

/* include builtin, include FILE */
static banyan_status read_include(rules_parser *parser, const rules_line *line)
{
    if (line->count != 2)
        return rules_line_fail(line, line->words[line->count - 1],
                               "should be include builtin or include FILE");
    if (parser->depth == MAX_DEPTH)
        return rules_line_fail(line, line->words[1],
                               "is included too deeply: does it include itself?");
    const char *name = line->words[1];
    parser->depth++;
    banyan_status status;
    if (strcmp(name, "builtin") == 0 || strncmp(line->file, BUILTIN, strlen(BUILTIN)) == 0)
        status = include_builtin(parser, line, name);
    else
        status = include_file(parser, line, name);
    parser->depth--;
    parser->first_open = parser->rules->rules.count;
    parser->clauses_seen = true;
    return status;
}

static const struct top_line {
    const char *word;
    banyan_status (*read)(rules_parser *parser, const rules_line *line);
} top_lines[] = {
    {"packing", parse_read_packing},
    {"default", read_default},
    {"skip", read_skip},
    {"keep", read_skip},
    {"prefix", read_prefix},
    {"rename", read_rename},
    {"behind", read_behind},
    {"include", read_include},
    {"experts", parse_read_experts},
    {"layers", parse_read_layers},
};

static banyan_status read_line(rules_parser *parser, const rules_line *line)
{
    if (line->count == 0)
        return BANYAN_OK;
    if (!line->indented) {
        for (size_t i = 0; i < sizeof top_lines / sizeof *top_lines; i++) {
            /* A pattern may also be such a word, except at the start of the file. */
            if (strcmp(line->words[0], top_lines[i].word) == 0 && (line->count > 1 || i == 0))
                return top_lines[i].read(parser, line);
        }
        return read_pattern(parser, line);
    }
    if (parser->first_open == parser->rules->rules.count)
        return rules_line_fail(line, line->words[0], "is a clause without a pattern above it");
    parser->clauses_seen = true;
    for (size_t i = parser->first_open; i < parser->rules->rules.count; i++)
        RETURN_IF_FAILED(rules_read_clause(parser, line, &parser->rules->rules.data[i]));
    return BANYAN_OK;
}

static banyan_status parse_read_text(rules_parser *parser, const char *file, char *text)
{
    rules_line line = {.file = names_keep(&parser->rules->names, file)};
    RETURN_IF_NO_MEMORY(line.file);
    parser->first_open = parser->rules->rules.count;
    parser->clauses_seen = true;
    for (char *rest = text, *at; (at = strsep(&rest, "\n"));) {
        line.number++;
        RETURN_IF_FAILED(parse_split(at, &line));
        RETURN_IF_FAILED(read_line(parser, &line));
    }
    return BANYAN_OK;
}

static uint64_t parse_slots_of(const model_rule *rule, const rule_packed *packed)
{
    uint64_t count = rule->parts.count > 0 ? rule->parts.count : 1;
    uint64_t ones = count >= 64 ? UINT64_MAX : ((uint64_t)1 << count) - 1;
    return packed->slot < 0 ? 0 : ones << packed->slot;
}

/* Give every place the slots of all rules that share its local tensor. */
static banyan_status find_partners(banyan_rules *rules)
{
    hash_map known = {0};
    names keys = {0};
    banyan_status status = BANYAN_OK;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < rules->rules.count && status == BANYAN_OK; i++) {
            model_rule *rule = &rules->rules.data[i];
            for (size_t p = 0; p < rule->packed.count && status == BANYAN_OK; p++) {
                rule_packed *packed = &rule->packed.data[p];
                char key[512];
                snprintf(key, sizeof key, "%s %s", packed->packing, packed->name);
                const char *kept = names_keep(&keys, key);
                uint64_t slots = 0;
                if (!kept || (map_get_string(&known, kept, &slots),
                              pass == 0 && !map_put_string(&known, kept,
                                                           slots | parse_slots_of(rule, packed))))
                    status = BANYAN_ERR_NO_MEMORY;
                packed->slots = slots;
            }
        }
    }
    map_free(&known);
    names_free(&keys);
    return status;
}

banyan_status rules_parse(banyan_rules *rules, const char *file, char *text)
{
    rules_parser parser = {.rules = rules};
    RETURN_IF_FAILED(parse_read_text(&parser, file, text));
    for (size_t i = 0; i < rules->rules.count; i++)
        RETURN_IF_FAILED(rules_check_rule(&rules->rules.data[i]));
    return find_partners(rules);
}
