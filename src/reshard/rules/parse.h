/* Parser of rule files. */
#ifndef RESHARD_RULES_PARSE_H
#define RESHARD_RULES_PARSE_H

#include "reshard/rules/rules.h"

/* Add the rules of a text to `rules`; the text is modified. `file` is for errors. */
banyan_status rules_parse(banyan_rules *rules, const char *file, char *text);

/* Between the files that read lines and clauses. */

#define RULES_MAX_WORDS 32

typedef struct rules_line {
    const char *file;
    int number;
    bool indented;
    char *words[RULES_MAX_WORDS];
    int count;
} rules_line;

typedef struct rules_parser {
    banyan_rules *rules;
    size_t first_open; /* rules from here on receive the clauses that follow */
    bool clauses_seen;
    int depth; /* of includes */
} rules_parser;

banyan_status rules_line_fail(const rules_line *line, const char *word, const char *problem);
banyan_status rules_line_end(const rules_line *line, int word);
banyan_status rules_read_number(const rules_line *line, int word, int64_t low, int64_t high,
                                int64_t *value);
/* Keep the word as a string that lives as long as the rules. */
banyan_status rules_keep_word(rules_parser *parser, const rules_line *line, int word,
                              const char **kept);
banyan_status rules_keep_expr(rules_parser *parser, const rules_line *line, int word,
                              const char **kept);

/* Read conditions from `word` to the end of the line: with, without, when, unless. Templates of
 * names must fit `pattern`; NULL: the patterns of all open rules. */
banyan_status rules_read_conditions(rules_parser *parser, const rules_line *line, int word,
                                    const glob *pattern, rule_conditions *conditions);
void rule_conditions_free(rule_conditions *conditions);

/* Apply one clause to every open rule. */
banyan_status rules_read_clause(rules_parser *parser, const rules_line *line, model_rule *clause);

/* Check a whole rule, after all its clauses. */
banyan_status rules_check_rule(const model_rule *checked);

#endif
