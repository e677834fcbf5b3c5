/* Clauses of rule files: the indented lines below patterns. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "reshard/layout/value_map.h"
#include "reshard/rules/expr.h"
#include "reshard/rules/parse.h"

/* Keep a template, which must fit every pattern that it is for. `experts`: it may name each expert
 * of a stack. */
static banyan_status keep_template(rules_parser *parser, const rules_line *line, int word,
                                   bool experts, const char **kept)
{
    RETURN_IF_FAILED(rules_keep_word(parser, line, word, kept));
    for (size_t i = parser->first_open; i < parser->rules->rules.count; i++) {
        const char *problem =
            glob_check_template(*kept, &parser->rules->rules.data[i].pattern, experts);
        if (problem)
            return rules_line_fail(line, *kept, problem);
    }
    return BANYAN_OK;
}

static banyan_status clause_read_dtype(const rules_line *line, int word, rule_packed *packed)
{
    if (word >= line->count)
        return rules_line_fail(line, line->words[word - 1], "should be followed by a type");
    if (banyan_dtype_parse(line->words[word], &packed->dtype) != BANYAN_OK)
        return rules_line_fail(line, line->words[word], "is not a type");
    packed->has_dtype = true;
    return BANYAN_OK;
}

static banyan_status read_map(const rules_line *line, int word, rule_packed *packed)
{
    if (word >= line->count)
        return rules_line_fail(line, line->words[word - 1], "should be followed by a value map");
    packed->map = value_map_find(line->words[word]);
    return packed->map ? BANYAN_OK
                       : rules_line_fail(line, line->words[word],
                                         "is not a value map: there is " VALUE_MAP_NAMES);
}

/* because TEXT: the words behind `word`, the index of `because` */
static banyan_status read_reason(rules_parser *parser, const rules_line *line, int word,
                                 rule_packed *packed)
{
    char text[512] = "";
    size_t length = 0;
    if (!packed->is_none)
        return rules_line_fail(line, "because", "is for tensors without a place: in PACKING none");
    if (word + 1 == line->count)
        return rules_line_fail(line, "because", "should be followed by a reason");
    for (int w = word + 1; w < line->count && length < sizeof text; w++)
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%s",
                                   w == word + 1 ? "" : " ", line->words[w]);
    if (length >= sizeof text)
        return rules_line_fail(line, "because", "is followed by more than 511 characters");
    packed->why = names_keep(&parser->rules->names, text);
    return packed->why ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

/* Read one option of `in`. `*word` moves over its arguments; false: not an option. */
static bool read_packed_option(const rules_line *line, int *word, rule_packed *packed,
                               banyan_status *status)
{
    const char *option = line->words[*word];
    if (strcmp(option, "stack") == 0) {
        packed->stacked = true;
    } else if (strcmp(option, "transpose") == 0) {
        packed->transposed = true;
    } else if (strcmp(option, "halves") == 0) {
        packed->halves = true;
    } else if (strcmp(option, "computed") == 0) {
        packed->computed = true;
    } else if (strcmp(option, "whole") == 0) {
        packed->whole = true;
    } else if (strcmp(option, "once") == 0) {
        packed->once = true;
    } else if (strcmp(option, "map") == 0) {
        *status = read_map(line, ++*word, packed);
    } else if (strcmp(option, "dtype") == 0) {
        *status = clause_read_dtype(line, ++*word, packed);
    } else if (strcmp(option, "block") == 0 || strcmp(option, "group") == 0) {
        int64_t slot = 0;
        packed->by_group = *option == 'g';
        *status = rules_read_number(line, ++*word, 0, 63, &slot);
        packed->slot = (int)slot;
    } else {
        return false;
    }
    ++*word;
    return true;
}

/* in PACKING TEMPLATE [block K | group K] [stack] [transpose] [halves] [once] [whole] [computed]
 * [map M] [dtype T] [conditions], or in PACKING none [conditions] [because TEXT] */
static banyan_status read_packed(rules_parser *parser, const rules_line *whole, model_rule *clause)
{
    rule_packed packed = {.slot = -1, .line = whole->number};
    rules_line before = *whole, *line = &before;
    for (line->count = 0; line->count < whole->count; line->count++) {
        if (strcmp(whole->words[line->count], "because") == 0)
            break;
    }
    RETURN_IF_FAILED(rules_keep_word(parser, line, 1, &packed.packing));
    RETURN_IF_FAILED(keep_template(parser, line, 2, clause->stacks_experts, &packed.name));
    packed.is_none = strcmp(packed.name, "none") == 0;
    packed.unstacked = clause->stacks_experts && strstr(packed.name, "expert}");
    if (line->count < whole->count)
        RETURN_IF_FAILED(read_reason(parser, whole, line->count, &packed));
    RETURN_IF_NO_MEMORY(array_push(&clause->packed, packed));
    rule_packed *kept = &clause->packed.data[clause->packed.count - 1];
    banyan_status status = BANYAN_OK;
    int word = 3;
    while (word < line->count && status == BANYAN_OK &&
           read_packed_option(line, &word, kept, &status))
        continue;
    RETURN_IF_FAILED(status);
    if (word < line->count && strncmp(line->words[word], "w", 1) != 0 &&
        strcmp(line->words[word], "unless") != 0)
        return rules_line_fail(line, line->words[word],
                               "is none of block, group, stack, transpose, halves, once, whole, "
                               "computed, map, dtype, with, without, when, unless");
    return rules_read_conditions(parser, line, word, NULL, &kept->conditions);
}

/* heads EXPR [count EXPR] [shared] [from TEMPLATE] */
static banyan_status read_heads(rules_parser *parser, const rules_line *line, model_rule *clause)
{
    RETURN_IF_FAILED(rules_keep_expr(parser, line, 1, &clause->heads));
    for (int w = 2; w < line->count; w++) {
        if (strcmp(line->words[w], "shared") == 0)
            clause->heads_shared = true;
        else if (strcmp(line->words[w], "from") == 0)
            RETURN_IF_FAILED(keep_template(parser, line, ++w, false, &clause->head_source));
        else if (strcmp(line->words[w], "count") == 0)
            RETURN_IF_FAILED(rules_keep_expr(parser, line, ++w, &clause->head_count));
        else
            return rules_line_fail(line, line->words[w], "is none of count, from, shared");
    }
    return BANYAN_OK;
}

/* part EXPR [heads EXPR [shared]] [whole] */
static banyan_status clause_read_part(rules_parser *parser, const rules_line *line,
                                      model_rule *clause)
{
    rule_part part = {0};
    RETURN_IF_FAILED(rules_keep_expr(parser, line, 1, &part.size));
    for (int w = 2; w < line->count; w++) {
        if (strcmp(line->words[w], "heads") == 0)
            RETURN_IF_FAILED(rules_keep_expr(parser, line, ++w, &part.heads));
        else if (strcmp(line->words[w], "shared") == 0)
            part.heads_shared = true;
        else if (strcmp(line->words[w], "whole") == 0)
            part.whole = true;
        else
            return rules_line_fail(line, line->words[w], "is none of heads, shared, whole");
    }
    if (part.heads_shared && !part.heads)
        return rules_line_fail(line, "shared", "is for parts of heads");
    return array_push(&clause->parts, part) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static banyan_status read_stage(const rules_line *line, model_rule *clause)
{
    static const char *const stages[] = {"all", "first", "last"};
    for (int i = 0; line->count == 2 && i < 3; i++) {
        if (strcmp(line->words[1], stages[i]) == 0) {
            clause->stage = (rule_stage)i;
            return BANYAN_OK;
        }
    }
    return rules_line_fail(line, line->words[line->count - 1],
                           "should be stage all, first or last");
}

static banyan_status read_shard(rules_parser *parser, const rules_line *line, model_rule *clause)
{
    (void)parser;
    int64_t number;
    RETURN_IF_FAILED(rules_read_number(line, 1, 0, BANYAN_MAX_DIMS - 1, &number));
    clause->shard_dim = (int)number;
    return rules_line_end(line, 2);
}

static banyan_status clause_read_flag(rules_parser *parser, const rules_line *line,
                                      model_rule *clause)
{
    (void)parser;
    if (strcmp(line->words[0], "replicate") == 0)
        clause->shard_dim = -1;
    else if (strcmp(line->words[0], "vocab") == 0)
        clause->is_vocab = true;
    else
        clause->is_buffer = true;
    return rules_line_end(line, 1);
}

static banyan_status clause_read_experts(rules_parser *parser, const rules_line *line,
                                         model_rule *clause)
{
    (void)parser;
    int64_t dimension;
    RETURN_IF_FAILED(rules_read_number(line, 1, 0, 0, &dimension));
    clause->stacks_experts = true;
    return rules_line_end(line, 2);
}

static banyan_status read_stage_clause(rules_parser *parser, const rules_line *line,
                                       model_rule *clause)
{
    (void)parser;
    return read_stage(line, clause);
}

static banyan_status read_tie(rules_parser *parser, const rules_line *line, model_rule *clause)
{
    RETURN_IF_FAILED(rules_keep_word(parser, line, 1, &clause->tied));
    return rules_line_end(line, 2);
}

static banyan_status read_fallback(rules_parser *parser, const rules_line *line, model_rule *clause)
{
    RETURN_IF_FAILED(rules_keep_word(parser, line, 1, &clause->fallback));
    return rules_line_end(line, 2);
}

static banyan_status read_scale(rules_parser *parser, const rules_line *line, model_rule *clause)
{
    RETURN_IF_FAILED(rules_keep_word(parser, line, 1, &clause->scale_suffix));
    RETURN_IF_FAILED(rules_read_number(line, 2, 1, INT32_MAX, &clause->scale_block));
    return rules_line_end(line, 3);
}

static banyan_status clause_read_condition(rules_parser *parser, const rules_line *line,
                                           model_rule *clause)
{
    return rules_read_conditions(parser, line, 0, NULL, &clause->conditions);
}

/* needs TEMPLATE [or TEMPLATE]… [conditions] */
static banyan_status read_needs(rules_parser *parser, const rules_line *line, model_rule *clause)
{
    if (!array_push(&clause->needs, (rule_need){.line = line->number}))
        return BANYAN_ERR_NO_MEMORY;
    rule_need *need = &clause->needs.data[clause->needs.count - 1];
    RETURN_IF_NO_MEMORY(need->names =
                            alloc_zeroed((size_t)line->count, sizeof *need->names, "a clause"));
    int word = 1;
    RETURN_IF_FAILED(keep_template(parser, line, word++, false, &need->names[need->count++]));
    for (; word < line->count && strcmp(line->words[word], "or") == 0; word += 2)
        RETURN_IF_FAILED(keep_template(parser, line, word + 1, false, &need->names[need->count++]));
    return rules_read_conditions(parser, line, word, NULL, &need->conditions);
}

static const struct clause_kind {
    const char *word;
    banyan_status (*read)(rules_parser *parser, const rules_line *line, model_rule *clause);
} kinds[] = {
    {"replicate", clause_read_flag},
    {"shard", read_shard},
    {"vocab", clause_read_flag},
    {"heads", read_heads},
    {"part", clause_read_part},
    {"experts", clause_read_experts},
    {"stage", read_stage_clause},
    {"tie", read_tie},
    {"scale", read_scale},
    {"buffer", clause_read_flag},
    {"in", read_packed},
    {"with", clause_read_condition},
    {"without", clause_read_condition},
    {"when", clause_read_condition},
    {"unless", clause_read_condition},
    {"fallback", read_fallback},
    {"needs", read_needs},
};

banyan_status rules_read_clause(rules_parser *parser, const rules_line *line, model_rule *clause)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i].word, line->words[0]) == 0)
            return kinds[i].read(parser, line, clause);
    }
    return rules_line_fail(
        line, line->words[0],
        "is not a clause: there are replicate, shard, vocab, heads, part, experts, "
        "stage, tie, fallback, scale, buffer, needs, in, with, without, when and unless");
}

static bool has_expert(const model_rule *rule)
{
    bool has = rule->stacks_experts;
    for (int i = 0; i < rule->pattern.count; i++)
        has = has || rule->pattern.tokens[i].kind == GLOB_EXPERT;
    return has;
}

static bool has_heads(const model_rule *rule)
{
    bool has = rule->parts.count > 0 || rule->heads;
    for (size_t i = 0; i < rule->parts.count; i++)
        has = has && rule->parts.data[i].heads;
    return has;
}

static const char *check_packed(const model_rule *rule, const rule_packed *packed)
{
    if (packed->stacked && !has_expert(rule))
        return "stacks a tensor without {expert} and without experts";
    if (packed->by_group && !has_heads(rule))
        return "fuses a tensor without heads by groups";
    if (packed->stacked && packed->unstacked)
        return "has both stack and a tensor for each expert";
    if (rule->stacks_experts && !packed->stacked && !packed->unstacked && !packed->is_none)
        return "has experts in a dimension: give in stack, or {expert} or {local_expert} in its "
               "name";
    if (packed->halves && !has_heads(rule) && rule->parts.count == 0)
        return "halves a tensor without heads and parts";
    if (packed->slot >= 0 && rule->parts.count == 0 && rule->shard_dim > rule->stacks_experts)
        return "fuses a tensor sharded along a dimension other than its first";
    if (packed->slot >= 0 && packed->slot + (int)rule->parts.count > 64)
        return "has parts beyond block 63";
    if (packed->whole && rule->parts.count > 0)
        return "has whole for a tensor with parts";
    if (packed->once && (rule->shard_dim >= 0 || packed->slot >= 0))
        return "has once for a sharded or fused tensor";
    return NULL;
}

banyan_status rules_check_rule(const model_rule *checked)
{
    const char *problem = NULL;
    bool cut = checked->shard_dim >= 0;
    if (!cut && (checked->is_vocab || checked->heads || checked->parts.count > 0))
        problem = "has vocab, heads or parts, but no shard";
    if (checked->is_vocab && (checked->heads || checked->scale_suffix || checked->parts.count > 0))
        problem = "has vocab, and heads, parts or a scale";
    if (checked->parts.count > 0 && checked->heads)
        problem = "has parts, and heads of its own: give heads to the parts";
    if (checked->stacks_experts && checked->shard_dim == 0)
        problem = "has experts in dimension 0, which it shards";
    if (checked->stacks_experts && checked->scale_suffix)
        problem = "has experts in a dimension, and a scale";
    for (size_t i = 0; i < checked->packed.count && !problem; i++)
        problem = check_packed(checked, &checked->packed.data[i]);
    if (problem)
        return error_set(BANYAN_ERR_FORMAT, "%s:%d: the rule \"%s\" %s", checked->file,
                         checked->line, checked->text, problem);
    return BANYAN_OK;
}
