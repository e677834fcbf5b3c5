/* Rule files: patterns at the start of a line, clauses indented below them.
 *
 *     packing vllm vocab 64
 *     model.layers.{layer}.mlp.gate_proj.weight
 *         shard 0
 *         in vllm model.layers.{layer}.mlp.gate_up_proj.weight block 0
 */
#include "reshard/rules_parse.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

#define MAX_WORDS 16

struct line {
    const char *file;
    int number;
    bool indented;
    char *words[MAX_WORDS];
    int count;
};

struct parser {
    banyan_rules *rules;
    size_t first_open; /* rules from here on take the clauses that follow */
    bool clauses_seen;
};

static banyan_status fail(const struct line *line, const char *word, const char *problem)
{
    return error_set(BANYAN_ERR_FORMAT, "%s:%d: \"%s\" %s", line->file, line->number, word,
                     problem);
}

/* Cut a line into words; what follows a # is not there. */
static banyan_status split(char *text, struct line *line)
{
    line->indented = *text == ' ' || *text == '\t';
    line->count = 0;
    text[strcspn(text, "#")] = '\0';
    char *rest = text;
    for (char *word; (word = strtok_r(rest, " \t\r", &rest));) {
        if (line->count == MAX_WORDS)
            return fail(line, word, "is one word too many");
        line->words[line->count++] = word;
    }
    return BANYAN_OK;
}

static banyan_status read_number(const struct line *line, int word, int64_t low, int64_t high,
                                 int64_t *value)
{
    if (word >= line->count)
        return fail(line, line->words[word - 1], "should be followed by a number");
    const char *text = line->words[word];
    char *end;
    long long number = strtoll(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || number < low || number > high) {
        char problem[80];
        snprintf(problem, sizeof problem, "is no number from %lld to %lld", (long long)low,
                 (long long)high);
        return fail(line, text, problem);
    }
    *value = number;
    return BANYAN_OK;
}

/* The word as a string that lives as long as the rules. */
static banyan_status keep_word(struct parser *parser, const struct line *line, int word,
                               const char **kept)
{
    if (word >= line->count)
        return fail(line, line->words[word - 1], "should be followed by a name");
    *kept = names_keep(&parser->rules->names, line->words[word]);
    return *kept ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static banyan_status expect_end(const struct line *line, int word)
{
    return word < line->count ? fail(line, line->words[word], "is not expected here") : BANYAN_OK;
}

/* A template must fit every pattern that it is for. */
static banyan_status keep_template(struct parser *parser, const struct line *line, int word,
                                   const char **kept)
{
    RETURN_IF_FAILED(keep_word(parser, line, word, kept));
    for (size_t i = parser->first_open; i < parser->rules->rules.count; i++) {
        const char *problem = glob_check_template(*kept, &parser->rules->rules.data[i].pattern);
        if (problem)
            return fail(line, *kept, problem);
    }
    return BANYAN_OK;
}

/* Only packings described above can be followed: there is no circle. */
static banyan_status inherit(struct parser *parser, const struct line *line, rule_packing *packing)
{
    for (size_t i = 0; i < parser->rules->packings.count; i++) {
        const rule_packing *known = &parser->rules->packings.data[i];
        if (known->name != packing->like)
            continue;
        if (packing->vocab_multiple == 0) {
            packing->vocab_multiple = known->vocab_multiple;
            packing->vocab_per_tp = known->vocab_per_tp;
        }
        return BANYAN_OK;
    }
    return fail(line, packing->like, "is no packing that is described above");
}

/* packing NAME [like OTHER] [vocab N] [per_tp] */
static banyan_status read_packing(struct parser *parser, const struct line *line)
{
    rule_packing packing = {0};
    RETURN_IF_FAILED(keep_word(parser, line, 1, &packing.name));
    for (int w = 2; w < line->count; w++) {
        if (strcmp(line->words[w], "like") == 0)
            RETURN_IF_FAILED(keep_word(parser, line, ++w, &packing.like));
        else if (strcmp(line->words[w], "vocab") == 0)
            RETURN_IF_FAILED(read_number(line, ++w, 0, INT32_MAX, &packing.vocab_multiple));
        else if (strcmp(line->words[w], "per_tp") == 0)
            packing.vocab_per_tp = true;
        else
            return fail(line, line->words[w], "is none of like, vocab, per_tp");
    }
    for (size_t i = 0; i < parser->rules->packings.count; i++) {
        if (parser->rules->packings.data[i].name == packing.name)
            return fail(line, packing.name, "is a packing that is already described");
    }
    if (packing.like)
        RETURN_IF_FAILED(inherit(parser, line, &packing));
    return array_push(&parser->rules->packings, packing) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static banyan_status read_pattern(struct parser *parser, const struct line *line)
{
    RETURN_IF_FAILED(expect_end(line, 1));
    if (parser->clauses_seen) {
        parser->first_open = parser->rules->rules.count;
        parser->clauses_seen = false;
    }
    model_rule made = {.file = line->file, .line = line->number, .shard_dim = -1};
    made.text = names_keep(&parser->rules->names, line->words[0]);
    if (!made.text)
        return BANYAN_ERR_NO_MEMORY;
    const char *problem = glob_compile(made.text, &made.pattern);
    if (problem)
        return fail(line, made.text, problem);
    return array_push(&parser->rules->rules, made) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

/* in PACKING TEMPLATE [block K | group K] [stack] [transpose] */
static banyan_status read_packed(struct parser *parser, const struct line *line,
                                 rule_packed *packed)
{
    *packed = (rule_packed){.slot = -1};
    int64_t slot;
    RETURN_IF_FAILED(keep_word(parser, line, 1, &packed->packing));
    RETURN_IF_FAILED(keep_template(parser, line, 2, &packed->name));
    for (int w = 3; w < line->count; w++) {
        const char *word = line->words[w];
        if (strcmp(word, "stack") == 0) {
            packed->stacked = true;
        } else if (strcmp(word, "transpose") == 0) {
            packed->transposed = true;
        } else if (strcmp(word, "block") == 0 || strcmp(word, "group") == 0) {
            packed->by_group = *word == 'g';
            RETURN_IF_FAILED(read_number(line, ++w, 0, 63, &slot));
            packed->slot = (int)slot;
        } else {
            return fail(line, word, "is none of block, group, stack, transpose");
        }
    }
    return BANYAN_OK;
}

/* heads ROWS [from TEMPLATE] [wide COLUMNS] [shared] */
static banyan_status read_heads(struct parser *parser, const struct line *line, model_rule *clause)
{
    RETURN_IF_FAILED(read_number(line, 1, 1, INT32_MAX, &clause->head_rows));
    for (int w = 2; w < line->count; w++) {
        if (strcmp(line->words[w], "shared") == 0)
            clause->heads_shared = true;
        else if (strcmp(line->words[w], "from") == 0)
            RETURN_IF_FAILED(keep_template(parser, line, ++w, &clause->head_source));
        else if (strcmp(line->words[w], "wide") == 0)
            RETURN_IF_FAILED(read_number(line, ++w, 1, INT32_MAX, &clause->head_wide));
        else
            return fail(line, line->words[w], "is none of from, wide, shared");
    }
    return BANYAN_OK;
}

static banyan_status read_stage(const struct line *line, model_rule *clause)
{
    static const char *const stages[] = {"all", "first", "last"};
    for (int i = 0; line->count == 2 && i < 3; i++) {
        if (strcmp(line->words[1], stages[i]) == 0) {
            clause->stage = (rule_stage)i;
            return BANYAN_OK;
        }
    }
    return fail(line, line->words[line->count - 1], "should be stage all, first or last");
}

/* One clause, applied to every open rule. */
static banyan_status read_clause(struct parser *parser, const struct line *line, model_rule *clause)
{
    const char *word = line->words[0];
    int64_t number;
    if (strcmp(word, "replicate") == 0) {
        clause->shard_dim = -1;
        return expect_end(line, 1);
    }
    if (strcmp(word, "shard") == 0) {
        RETURN_IF_FAILED(read_number(line, 1, 0, BANYAN_MAX_DIMS - 1, &number));
        clause->shard_dim = (int)number;
        return expect_end(line, 2);
    }
    if (strcmp(word, "vocab") == 0) {
        clause->is_vocab = true;
        return expect_end(line, 1);
    }
    if (strcmp(word, "buffer") == 0) {
        clause->is_buffer = true;
        return expect_end(line, 1);
    }
    if (strcmp(word, "heads") == 0)
        return read_heads(parser, line, clause);
    if (strcmp(word, "stage") == 0)
        return read_stage(line, clause);
    if (strcmp(word, "tie") == 0) {
        RETURN_IF_FAILED(keep_word(parser, line, 1, &clause->tied));
        return expect_end(line, 2);
    }
    if (strcmp(word, "scale") == 0) {
        RETURN_IF_FAILED(keep_word(parser, line, 1, &clause->scale_suffix));
        RETURN_IF_FAILED(read_number(line, 2, 1, INT32_MAX, &clause->scale_block));
        return expect_end(line, 3);
    }
    if (strcmp(word, "in") == 0) {
        rule_packed packed;
        RETURN_IF_FAILED(read_packed(parser, line, &packed));
        return array_push(&clause->packed, packed) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    }
    return fail(line, word,
                "is no clause: there are replicate, shard, vocab, heads, stage, tie, scale, buffer "
                "and in");
}

static banyan_status read_line(struct parser *parser, const struct line *line)
{
    if (line->count == 0)
        return BANYAN_OK;
    if (!line->indented) {
        if (strcmp(line->words[0], "packing") == 0)
            return read_packing(parser, line);
        return read_pattern(parser, line);
    }
    if (parser->first_open == parser->rules->rules.count)
        return fail(line, line->words[0], "is a clause without a pattern above it");
    parser->clauses_seen = true;
    for (size_t i = parser->first_open; i < parser->rules->rules.count; i++)
        RETURN_IF_FAILED(read_clause(parser, line, &parser->rules->rules.data[i]));
    return BANYAN_OK;
}

static banyan_status check_rule(const model_rule *checked)
{
    const char *problem = NULL;
    bool cut = checked->shard_dim >= 0;
    if (!cut && (checked->is_vocab || checked->head_rows > 0))
        problem = "has vocab or heads, but no shard";
    if (checked->is_vocab && (checked->head_rows > 0 || checked->scale_suffix))
        problem = "has vocab, and heads or a scale";
    bool has_expert = false;
    for (int i = 0; i < checked->pattern.count; i++)
        has_expert = has_expert || checked->pattern.tokens[i].kind == GLOB_EXPERT;
    for (size_t i = 0; i < checked->packed.count; i++) {
        const rule_packed *packed = &checked->packed.data[i];
        if (packed->stacked && !has_expert)
            problem = "stacks what has no {expert}";
        if (packed->by_group && checked->head_rows == 0)
            problem = "fuses by groups what has no heads";
        if (packed->slot >= 0 && checked->shard_dim > 0)
            problem = "fuses what is sharded along another dimension than 0";
    }
    if (problem)
        return error_set(BANYAN_ERR_FORMAT, "%s:%d: the rule \"%s\" %s", checked->file,
                         checked->line, checked->text, problem);
    return BANYAN_OK;
}

banyan_status rules_parse(banyan_rules *rules, const char *file, char *text)
{
    struct parser parser = {.rules = rules, .clauses_seen = true};
    struct line line = {.file = names_keep(&rules->names, file)};
    if (!line.file)
        return BANYAN_ERR_NO_MEMORY;
    for (char *rest = text, *at; (at = strsep(&rest, "\n"));) {
        line.number++;
        RETURN_IF_FAILED(split(at, &line));
        RETURN_IF_FAILED(read_line(&parser, &line));
    }
    for (size_t i = 0; i < rules->rules.count; i++)
        RETURN_IF_FAILED(check_rule(&rules->rules.data[i]));
    return BANYAN_OK;
}
