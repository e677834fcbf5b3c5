/* Banyan: inspect rule files.
 *
 * Rules define how the tensors of a model are split, and where they lie in the packing of an
 * engine. The functions of layout.h load rules and build layouts with them. Those of this header
 * show the content of rules. docs/rules.md describes the format.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_RULES_H
#define BANYAN_RULES_H

#include <banyan/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the built-in files ---- */

/* Return the number of rule files in the library. Any thread. */
BANYAN_API size_t banyan_rules_file_count(void);

/* Return the name of a file, without its ending. `i` must be below the count. "builtin" is the file
 * that banyan_rules_load(NULL) reads; it includes the others. The string is static. Any thread. */
BANYAN_API const char *banyan_rules_file_name(size_t i);

/* Return the text of a file. `i` must be below the count. The string is static. Any thread. */
BANYAN_API const char *banyan_rules_file_text(size_t i);

/* ---- packings ---- */

/* Return the number of packings that the rules define. "hf", the model's own packing, does not
 * count. Any thread. */
BANYAN_API size_t banyan_rules_packing_count(const banyan_rules *rules);

/* Return the name of a packing. `i` must be below the count. The string lives as long as the rules.
 * Any thread. */
BANYAN_API const char *banyan_rules_packing_name(const banyan_rules *rules, size_t i);

/* Return the engine release that the packing was compared with, for example "vLLM-0.32.0", or NULL
 * if the rules name none. The string lives as long as the rules. Any thread. */
BANYAN_API const char *banyan_rules_packing_release(const banyan_rules *rules, size_t i);

/* ---- the tensors of a model ---- */

/* Treatment of a tensor by the rules. */
typedef enum banyan_rules_verdict {
    BANYAN_RULES_MATCHED = 0,
    BANYAN_RULES_SKIPPED,   /* the packing does not have the tensor */
    BANYAN_RULES_UNMATCHED, /* no rule matches the name */
    BANYAN_RULES_UNDECIDED, /* the rule depends on a config.json that is missing */
    BANYAN_RULES_INCOMPLETE /* the rule needs a tensor that the model lacks */
} banyan_rules_verdict;

/* Explain how the rules treat tensor `i` of the model in a packing. `text`, of `bytes` bytes,
 * receives the rule (pattern, file and line) and the template of the local tensor. For a skipped
 * tensor it receives the rule that skips it. For a tensor without a rule it receives the nearest
 * rule and the reason why that does not match. For an incomplete model it receives the name of the
 * missing tensor. Errors: INVALID (unknown packing, or `i` out of range), NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_rules_explain(const banyan_rules *rules, const banyan_model *model,
                                              const char *packing, size_t i,
                                              banyan_rules_verdict *verdict, char *text,
                                              size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
