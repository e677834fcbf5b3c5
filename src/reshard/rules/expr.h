/* Integer expressions of rule files: "head_dim", "num_key_value_heads*head_dim", "size/2". */
#ifndef RESHARD_RULES_EXPR_H
#define RESHARD_RULES_EXPR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Return the mistake in an expression, or NULL. An expression has +, -, *, /, parentheses, numbers
 * and names, and no spaces. */
const char *expr_check(const char *text);

typedef enum expr_result {
    EXPR_OK = 0,
    EXPR_UNKNOWN, /* the problem is a name that has no value */
    EXPR_WRONG    /* the problem is a message: a division with a rest, an overflow */
} expr_result;

/* Set the value of a name. The problem has EXPR_PROBLEM_BYTES. */
typedef expr_result (*expr_find)(void *context, const char *name, int64_t *value, char *problem);

#define EXPR_PROBLEM_BYTES 320
#define EXPR_NAME_BYTES 64

/* Evaluate an expression that expr_check accepts. Its value and those of its parts are 0 to
 * 2^62. */
expr_result expr_evaluate(const char *text, expr_find find, void *context, int64_t *value,
                          char problem[EXPR_PROBLEM_BYTES]);

#endif
