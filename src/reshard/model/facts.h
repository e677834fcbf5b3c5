/* Facts about a model that the shapes of its tensors do not show: head sizes, expert counts, … A
 * fact is a key of the model's config.json and a JSON scalar. */
#ifndef RESHARD_MODEL_FACTS_H
#define RESHARD_MODEL_FACTS_H

#include "core/containers.h"
#include "core/text/json.h"
#include "reshard/layout/names.h"

typedef struct fact {
    const char *key;
    const char *text; /* the scalar as compact JSON: "64", "true", "\"silu\"" */
} fact;

/* Facts in the order in which they were added. Zeroed is empty. */
typedef struct facts {
    ARRAY(fact) list;
    hash_map by_key;
    names names;
} facts;

/* Return the value of a key as JSON text; NULL: it is unknown. */
const char *facts_find(const facts *known, const char *key);

/* True, setting the value, if the key is known and an integer. */
bool facts_find_int(const facts *known, const char *key, int64_t *value);

/* Add a fact, or replace its value. NO_MEMORY is the only error. */
banyan_status facts_put(facts *known, const char *key, const char *text);

/* True when both texts are the same JSON value; numbers are compared by value: 64 is 64.0. */
bool facts_equal(const char *a, const char *b);

/* Return the JSON scalar as a fact's text, to be freed. NULL for values that are not facts: null,
 * arrays, objects, and strings of more than FACT_MAX_BYTES. `*status` is NO_MEMORY when memory ran
 * out, and OK otherwise. */
#define FACT_MAX_BYTES 4096
char *fact_text(const json_t *value, banyan_status *status);

/* Add every scalar of a config.json. Members of its "text_config" count as top-level members, and
 * take precedence over them. */
banyan_status facts_add_config(facts *known, const json_t *config);

/* Read a config.json as Python writes it. NaN, Infinity and integers of more than 18 digits, which
 * JSON or a C integer cannot represent, count as null. FORMAT has file, line and column. */
banyan_status config_parse(const char *path, const char *text, size_t bytes, json_t **root);

/* Return {"head_dim": 64, …}. NULL, with the error set, without memory. */
json_t *facts_to_json(const facts *known);

/* Read an object that facts_to_json wrote; `path` leads to it. FORMAT for a member that is not a
 * scalar. */
banyan_status facts_from_json(facts *known, json_path *path, const json_t *object);

void facts_free(facts *known);

#endif
