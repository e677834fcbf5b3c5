/* Banyan: rule files.
 *
 * Rules say how the tensors of a model are cut, and where they lie in the packing of an engine.
 * docs/layouts.md has the format. banyan/layout.h loads rules and makes layouts by them; this
 * header is for looking at them.
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

/* Rule files that are part of the library: how many, the name of each without its ending, and its
 * text. `i` is below the count. "builtin" is the one that banyan_rules_load(NULL) reads, and that
 * includes the others. */
BANYAN_API size_t banyan_rules_file_count(void);
BANYAN_API const char *banyan_rules_file_name(size_t i);
BANYAN_API const char *banyan_rules_file_text(size_t i);

/* ---- packings ---- */

/* The packings that rules describe, beside "hf". `i` is below the count. */
BANYAN_API size_t banyan_rules_packing_count(const banyan_rules *rules);
BANYAN_API const char *banyan_rules_packing_name(const banyan_rules *rules, size_t i);
/* The engine's release that the packing was held against, such as "vLLM-0.32.0"; NULL: none is
 * named. */
BANYAN_API const char *banyan_rules_packing_release(const banyan_rules *rules, size_t i);

/* ---- a model's tensors ---- */

typedef enum banyan_rules_verdict {
    BANYAN_RULES_MATCHED = 0,
    BANYAN_RULES_SKIPPED,   /* the packing does not have the tensor */
    BANYAN_RULES_UNMATCHED, /* no rule fits its name */
    BANYAN_RULES_UNDECIDED  /* the rule depends on a config.json that is not there */
} banyan_rules_verdict;

/* Say in `text`, which is cut to `bytes`, what the rules do with tensor `i` of the model in a
 * packing: the rule (pattern, file and line) and the local tensor's template; or the skip; or the
 * nearest rule and why it does not fit. INVALID for an unknown packing or number; NO_MEMORY. Any
 * thread. */
BANYAN_API banyan_status banyan_rules_explain(const banyan_rules *rules, const banyan_model *model,
                                              const char *packing, size_t i,
                                              banyan_rules_verdict *verdict, char *text,
                                              size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
