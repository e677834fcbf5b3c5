#include "frontier.h"

#include <stdbool.h>
#include <stdlib.h>

void frontier_free(frontier *old)
{
    free(old->nodes);
    *old = (frontier){0};
}

static void append(frontier *to, size_t node)
{
    for (size_t i = 0; i < to->count; i++)
        if (to->nodes[i] == node)
            return;
    to->nodes = realloc(to->nodes, (to->count + 1) * sizeof *to->nodes);
    if (!to->nodes)
        abort();
    to->nodes[to->count++] = node;
}

void frontier_set(frontier *to, size_t node)
{
    frontier_free(to);
    append(to, node);
}

void frontier_add(frontier *to, const frontier *more)
{
    for (size_t i = 0; i < more->count; i++)
        append(to, more->nodes[i]);
}

static bool may_come(const frontier *needs, const bool *has_come)
{
    for (size_t i = 0; i < needs->count; i++)
        if (!has_come[needs->nodes[i]])
            return false;
    return true;
}

void frontier_order(const frontier *needs, size_t count, uint64_t seed, size_t *order)
{
    bool *has_come = calloc(count + 1, sizeof *has_come);
    size_t *next = calloc(count + 1, sizeof *next);
    if (!has_come || !next)
        abort();
    for (size_t i = 0; i < count; i++) {
        size_t ready = 0;
        for (size_t node = 0; node < count; node++)
            if (!has_come[node] && may_come(&needs[node], has_come))
                next[ready++] = node;
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        order[i] = next[(seed >> 33) % ready];
        has_come[order[i]] = true;
    }
    free(has_come);
    free(next);
}
