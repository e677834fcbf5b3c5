/* Facts about a model that the shapes of its tensors do not tell: head sizes, expert counts, … A
 * fact is a key of the model's config.json and a JSON scalar. */
#ifndef RESHARD_MODEL_FACTS_H
#define RESHARD_MODEL_FACTS_H

#include "core/containers/array.h"
#include "core/text/json.h"
#include "reshard/layout/names.h"

typedef struct fact {
    const char *key;
    const char *text; /* the scalar as compact JSON: "64", "true", "\"silu\"" */
} fact;

/* In the order of their arrival. Zeroed is empty. */
typedef struct facts {
    ARRAY(fact) list;
    map by_key;
    names names;
} facts;

/* The value of a key as JSON text; NULL: it is not known. */
const char *facts_find(const facts *known, const char *key);

/* True, with the value, for a key that is known and an integer. */
bool facts_find_int(const facts *known, const char *key, int64_t *value);

/* Add a fact, or replace its value. NO_MEMORY. */
banyan_status facts_put(facts *known, const char *key, const char *text);

/* True when both texts are the same JSON value; numbers are compared by value: 64 is 64.0. */
bool facts_equal(const char *a, const char *b);

/* The JSON scalar as a fact's text, to be freed. NULL for null, arrays, objects and strings of more
 * than FACT_MAX_BYTES, which are no facts; `*status` is NO_MEMORY when memory ran out, and OK else.
 */
#define FACT_MAX_BYTES 4096
char *fact_text(const json_t *value, banyan_status *status);

/* Add every scalar of a config.json. Members of its "text_config" count as if they stood at the
 * top, and before those that do. */
banyan_status facts_add_config(facts *known, const json_t *config);

/* Read a config.json as Python writes them: NaN, Infinity and integers of more than 18 digits,
 * which JSON and C have no place for, count as null. FORMAT says file, line and column. */
banyan_status config_parse(const char *path, const char *text, size_t bytes, json_t **root);

/* {"head_dim": 64, …}. NULL, with the error set, without memory. */
json_t *facts_to_json(const facts *known);

/* Read what facts_to_json wrote; `path` leads to it. FORMAT for a member that is no scalar. */
banyan_status facts_from_json(facts *known, json_path *path, const json_t *object);

void facts_free(facts *known);

#endif
