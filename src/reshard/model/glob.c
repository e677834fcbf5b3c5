#include "reshard/model/glob.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_NUMBER_DIGITS 9

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Read the token at the start of the text, and its length. Returns NULL, or a message. */
static const char *read_token(const char *text, glob_token *token, size_t *bytes)
{
    *token = (glob_token){.kind = GLOB_TEXT, .text = text};
    if (starts_with(text, "**")) {
        token->kind = GLOB_ANY;
        *bytes = 2;
    } else if (*text == '*') {
        token->kind = GLOB_STAR;
        *bytes = 1;
    } else if (starts_with(text, "{layer}")) {
        token->kind = GLOB_LAYER;
        *bytes = 7;
    } else if (starts_with(text, "{expert}")) {
        token->kind = GLOB_EXPERT;
        *bytes = 8;
    } else if (*text == '{' || *text == '}') {
        return "has a brace that is neither {layer} nor {expert}";
    } else {
        *bytes = token->bytes = strcspn(text, "*{}");
    }
    return NULL;
}

const char *glob_compile(const char *pattern, glob *compiled)
{
    *compiled = (glob){0};
    int of_kind[GLOB_ANY + 1] = {0};
    for (const char *at = pattern; *at;) {
        glob_token token;
        size_t bytes;
        const char *problem = read_token(at, &token, &bytes);
        if (problem)
            return problem;
        if (compiled->count == GLOB_MAX_TOKENS)
            return "has too many parts";
        compiled->tokens[compiled->count++] = token;
        of_kind[token.kind]++;
        at += bytes;
    }
    if (compiled->count == 0)
        return "is empty";
    if (of_kind[GLOB_LAYER] > 1 || of_kind[GLOB_EXPERT] > 1)
        return "has {layer} or {expert} twice";
    if (of_kind[GLOB_STAR] + of_kind[GLOB_ANY] > GLOB_MAX_STARS)
        return "has too many stars";
    return NULL;
}

/* Read digits at the start of the name as a number; returns 0 when there are none, or too many. */
static size_t glob_read_number(const char *name, size_t bytes, int64_t *number)
{
    size_t digits = 0;
    *number = 0;
    while (digits < bytes && isdigit((unsigned char)name[digits])) {
        if (digits == MAX_NUMBER_DIGITS)
            return 0;
        *number = *number * 10 + (name[digits++] - '0');
    }
    return digits;
}

static bool match_from(const glob *compiled, int first, const char *name, size_t bytes,
                       glob_captures *captures);

/* Try every length, the longest first. */
static bool match_star(const glob *compiled, int token, const char *name, size_t bytes,
                       glob_captures *captures)
{
    size_t longest = bytes;
    if (compiled->tokens[token].kind == GLOB_STAR) {
        const char *dot = memchr(name, '.', bytes);
        longest = dot ? (size_t)(dot - name) : bytes;
    }
    int star = captures->star_count++;
    for (size_t length = longest + 1; length-- > 0;) {
        captures->stars[star] = name;
        captures->star_bytes[star] = length;
        if (match_from(compiled, token + 1, name + length, bytes - length, captures))
            return true;
    }
    captures->star_count = star;
    return false;
}

static bool match_from(const glob *compiled, int first, const char *name, size_t bytes,
                       glob_captures *captures)
{
    for (int i = first; i < compiled->count; i++) {
        const glob_token *token = &compiled->tokens[i];
        size_t taken;
        switch (token->kind) {
        case GLOB_TEXT:
            if (token->bytes > bytes || memcmp(token->text, name, token->bytes) != 0)
                return false;
            taken = token->bytes;
            break;
        case GLOB_LAYER:
        case GLOB_EXPERT:
            taken = glob_read_number(
                name, bytes, token->kind == GLOB_LAYER ? &captures->layer : &captures->expert);
            if (taken == 0)
                return false;
            break;
        default:
            return match_star(compiled, i, name, bytes, captures);
        }
        name += taken;
        bytes -= taken;
    }
    return bytes == 0;
}

bool glob_match(const glob *compiled, const char *name, size_t bytes, glob_captures *captures)
{
    /* Most names differ from most patterns at their end. */
    const glob_token *last = &compiled->tokens[compiled->count - 1];
    if (last->kind == GLOB_TEXT &&
        (last->bytes > bytes || memcmp(last->text, name + bytes - last->bytes, last->bytes) != 0))
        return false;
    captures->layer = captures->expert = -1;
    captures->star_count = 0;
    return match_from(compiled, 0, name, bytes, captures);
}

typedef enum glob_field {
    FIELD_LAYER,
    FIELD_EXPERT,
    FIELD_LOCAL_LAYER,
    FIELD_LOCAL_EXPERT
} glob_field;

static const char *const field_names[] = {"{layer}", "{expert}", "{local_layer}", "{local_expert}"};

static bool read_field(const char *text, glob_field *found)
{
    for (size_t i = 0; i < sizeof field_names / sizeof *field_names; i++) {
        if (starts_with(text, field_names[i])) {
            *found = (glob_field)i;
            return true;
        }
    }
    return false;
}

const char *glob_check_template(const char *text, const glob *pattern, bool experts)
{
    bool has_layer = false, has_expert = experts;
    int stars = 0;
    for (int i = 0; i < pattern->count; i++) {
        has_layer = has_layer || pattern->tokens[i].kind == GLOB_LAYER;
        has_expert = has_expert || pattern->tokens[i].kind == GLOB_EXPERT;
        stars += pattern->tokens[i].kind >= GLOB_STAR;
    }
    for (const char *at = text; *at; at++) {
        glob_field found;
        if (*at == '*' && stars-- == 0)
            return "has more stars than the pattern";
        if (*at != '{')
            continue;
        if (!read_field(at, &found))
            return "has a brace that is none of {layer}, {expert}, {local_layer}, {local_expert}";
        if (found % 2 == FIELD_LAYER ? !has_layer : !has_expert)
            return "has a {layer} or {expert} that the pattern has not";
        at += strlen(field_names[found]) - 1;
    }
    return NULL;
}

bool glob_expand(const char *text, const glob_captures *captures, const glob_local *local,
                 char *name, size_t bytes)
{
    const int64_t numbers[] = {captures->layer, captures->expert, local->layer, local->expert};
    size_t used = 0;
    int star = 0;
    for (const char *at = text; *at && used < bytes;) {
        glob_field found;
        int written;
        if (*at == '*') {
            written = snprintf(name + used, bytes - used, "%.*s", (int)captures->star_bytes[star],
                               captures->stars[star]);
            star++;
            at++;
        } else if (*at == '{' && read_field(at, &found)) {
            written = snprintf(name + used, bytes - used, "%" PRId64, numbers[found]);
            at += strlen(field_names[found]);
        } else {
            written = 1;
            name[used] = *at++;
        }
        used += (size_t)written;
    }
    if (used >= bytes)
        return false;
    name[used] = '\0';
    return true;
}
