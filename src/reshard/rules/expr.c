#include "reshard/rules/expr.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_DEPTH 16
#define MAX_VALUE ((int64_t)1 << 62)

/* State of the expression parser. Without `find` it only checks. */
struct expr_reader {
    const char *at;
    int depth;
    expr_find find;
    void *context;
    expr_result result;
    char *problem;
    const char *mistake; /* of the text */
};

static bool expr_failed(const struct expr_reader *reader)
{
    return reader->mistake || reader->result != EXPR_OK;
}

static int64_t expr_wrong(struct expr_reader *reader, int64_t left, char op, int64_t right,
                          const char *why)
{
    if (!expr_failed(reader)) {
        reader->result = EXPR_WRONG;
        snprintf(reader->problem, EXPR_PROBLEM_BYTES, "%" PRId64 " %c %" PRId64 " %s", left, op,
                 right, why);
    }
    return 0;
}

static int64_t expr_combine(struct expr_reader *reader, int64_t left, char op, int64_t right)
{
    int64_t value = 0;
    bool overflows = false;
    if (expr_failed(reader) || !reader->find)
        return 0;
    switch (op) {
    case '+':
        overflows = __builtin_add_overflow(left, right, &value);
        break;
    case '-':
        if (right > left)
            return expr_wrong(reader, left, op, right, "is negative");
        value = left - right;
        break;
    case '*':
        overflows = __builtin_mul_overflow(left, right, &value);
        break;
    default:
        if (right == 0 || left % right != 0)
            return expr_wrong(reader, left, op, right, "is not an integer");
        value = left / right;
    }
    return overflows || value > MAX_VALUE ? expr_wrong(reader, left, op, right, "is too large")
                                          : value;
}

static int64_t expr_read_number(struct expr_reader *reader)
{
    int64_t value = 0;
    for (; isdigit((unsigned char)*reader->at); reader->at++) {
        value = value * 10 + (*reader->at - '0');
        if (value > INT32_MAX) {
            reader->mistake = "has a number above 2147483647";
            return 0;
        }
    }
    return value;
}

static bool in_name(char letter)
{
    return isalnum((unsigned char)letter) || letter == '_';
}

static int64_t expr_read_name(struct expr_reader *reader)
{
    char name[EXPR_NAME_BYTES];
    size_t bytes = 0;
    for (; in_name(*reader->at); reader->at++) {
        if (bytes + 1 == sizeof name) {
            reader->mistake = "has a name that is too long";
            return 0;
        }
        name[bytes++] = *reader->at;
    }
    name[bytes] = '\0';
    int64_t value = 0;
    if (reader->find && !expr_failed(reader))
        reader->result = reader->find(reader->context, name, &value, reader->problem);
    return expr_failed(reader) ? 0 : value;
}

static int64_t read_sum(struct expr_reader *reader);

static int64_t read_term(struct expr_reader *reader)
{
    if (isdigit((unsigned char)*reader->at))
        return expr_read_number(reader);
    if (in_name(*reader->at))
        return expr_read_name(reader);
    if (*reader->at != '(' || reader->depth == MAX_DEPTH) {
        reader->mistake = *reader->at == '('
                              ? "has too many parentheses inside one another"
                              : "is not an expression of numbers, names and + - * / ( )";
        return 0;
    }
    reader->at++;
    reader->depth++;
    int64_t value = read_sum(reader);
    reader->depth--;
    if (!reader->mistake && *reader->at++ != ')')
        reader->mistake = "lacks a closing parenthesis";
    return value;
}

static int64_t read_product(struct expr_reader *reader)
{
    int64_t value = read_term(reader);
    while (!reader->mistake && (*reader->at == '*' || *reader->at == '/')) {
        char op = *reader->at++;
        value = expr_combine(reader, value, op, read_term(reader));
    }
    return value;
}

static int64_t read_sum(struct expr_reader *reader)
{
    int64_t value = read_product(reader);
    while (!reader->mistake && (*reader->at == '+' || *reader->at == '-')) {
        char op = *reader->at++;
        value = expr_combine(reader, value, op, read_product(reader));
    }
    return value;
}

const char *expr_check(const char *text)
{
    char problem[EXPR_PROBLEM_BYTES];
    struct expr_reader reader = {.at = text, .problem = problem};
    read_sum(&reader);
    if (!reader.mistake && *reader.at)
        return "is not an expression of numbers, names and + - * / ( )";
    return reader.mistake;
}

expr_result expr_evaluate(const char *text, expr_find find, void *context, int64_t *value,
                          char problem[EXPR_PROBLEM_BYTES])
{
    struct expr_reader reader = {.at = text, .find = find, .context = context, .problem = problem};
    problem[0] = '\0';
    int64_t read = read_sum(&reader);
    if (reader.result == EXPR_OK)
        *value = read;
    return reader.result;
}
