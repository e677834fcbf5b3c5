#include "frontier.h"

#include <stdbool.h>
#include <stdlib.h>

void frontier_free(frontier *old)
{
    free(old->nodes);
    *old = (frontier){0};
}

static bool has(const frontier *of, size_t node)
{
    for (size_t i = 0; i < of->count; i++)
        if (of->nodes[i] == node)
            return true;
    return false;
}

static void append(frontier *to, size_t node)
{
    if (has(to, node))
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

/* Choose the latest capture, the successor of the previous choice, or any. */
static size_t choose(const frontier *needs, const size_t *next, size_t count, unsigned way,
                     uint64_t random, const size_t *last)
{
    if (way == 1)
        return next[count - 1];
    for (size_t i = 0; way == 2 && last && i < count; i++)
        if (has(&needs[next[i]], *last))
            return next[i];
    return next[random % count];
}

void frontier_order(const frontier *needs, size_t count, uint64_t seed, size_t *order)
{
    bool *has_come = calloc(count + 1, sizeof *has_come);
    size_t *next = calloc(count + 1, sizeof *next);
    unsigned way = (unsigned)(seed % 3);
    if (!has_come || !next)
        abort();
    for (size_t i = 0; i < count; i++) {
        size_t ready = 0;
        for (size_t node = 0; node < count; node++)
            if (!has_come[node] && may_come(&needs[node], has_come))
                next[ready++] = node;
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        order[i] = choose(needs, next, ready, way, seed >> 33, i > 0 ? &order[i - 1] : NULL);
        has_come[order[i]] = true;
    }
    free(has_come);
    free(next);
}
