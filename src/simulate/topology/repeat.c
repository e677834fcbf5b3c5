#include "simulate/topology/repeat.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

#define COUNT_MOST 65536
#define TEXT_MOST 128

static banyan_status read_variables(json_path *path, json_t *variables, repeat *turns)
{
    const char *name;
    json_t *count;
    json_object_foreach(variables, name, count)
    {
        if (turns->variables == REPEAT_VARIABLES)
            return json_path_fail(path, "has more than %d variables", REPEAT_VARIABLES);
        size_t v = turns->variables++;
        turns->names[v] = name;
        RETURN_IF_FAILED(json_member_int(path, variables, name, 1, COUNT_MOST, &turns->counts[v]));
    }
    return BANYAN_OK;
}

banyan_status repeat_begin(json_path *path, const json_t *entry, repeat *turns)
{
    *turns = (repeat){0};
    json_t *variables;
    if (!json_object_get(entry, "for"))
        return BANYAN_OK;
    RETURN_IF_FAILED(json_member(path, entry, "for", JSON_OBJECT, &variables));
    size_t mark = json_path_key(path, "for");
    RETURN_IF_FAILED(read_variables(path, variables, turns));
    json_path_pop(path, mark);
    return BANYAN_OK;
}

bool repeat_next(repeat *turns)
{
    for (size_t v = turns->variables; v-- > 0;) {
        if (++turns->at[v] < turns->counts[v])
            return true;
        turns->at[v] = 0;
    }
    return false;
}

static const int64_t *find_variable(const repeat *turns, const char *name, size_t length)
{
    for (size_t v = 0; v < turns->variables; v++) {
        if (strlen(turns->names[v]) == length && memcmp(turns->names[v], name, length) == 0)
            return &turns->at[v];
    }
    return NULL;
}

static banyan_status fill_in(const json_path *path, const char *pattern, const repeat *turns,
                             char text[TEXT_MOST])
{
    size_t used = 0;
    for (const char *at = pattern; *at && used < TEXT_MOST;) {
        size_t length = *at == '{' ? strcspn(at, "}") : 0;
        if (length == 0) {
            text[used++] = *at++;
            continue;
        }
        const int64_t *value = find_variable(turns, at + 1, length - 1);
        if (at[length] != '}' || !value)
            return json_path_fail(path, "is \"%s\", with a variable that \"for\" does not have",
                                  pattern);
        used += (size_t)snprintf(text + used, TEXT_MOST - used, "%" PRId64, *value);
        at += length + 1;
    }
    if (used == 0 || used >= TEXT_MOST)
        return json_path_fail(path, "is not a name of 1 to %d bytes", TEXT_MOST - 1);
    text[used] = '\0';
    return BANYAN_OK;
}

banyan_status repeat_text(json_path *path, const json_t *entry, const char *key,
                          const repeat *turns, arena *memory, const char **text)
{
    const char *pattern;
    char filled[TEXT_MOST];
    RETURN_IF_FAILED(json_member_string(path, entry, key, &pattern));
    size_t mark = json_path_key(path, key);
    RETURN_IF_FAILED(fill_in(path, pattern, turns, filled));
    json_path_pop(path, mark);
    char *kept = arena_take(memory, strlen(filled) + 1);
    if (!kept)
        return BANYAN_ERR_NO_MEMORY;
    *text = strcpy(kept, filled);
    return BANYAN_OK;
}
