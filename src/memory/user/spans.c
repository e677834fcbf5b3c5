#include "memory/user/spans.h"

#include <stdlib.h>

#include "core/containers.h"
#include "core/error.h"

static bool span_before(const span *a, uintptr_t start, uint64_t id)
{
    return a->start != start ? a->start < start : a->id < id;
}

static void user_spans_update(span *node)
{
    node->furthest_end = node->end;
    if (node->left && node->left->furthest_end > node->furthest_end)
        node->furthest_end = node->left->furthest_end;
    if (node->right && node->right->furthest_end > node->furthest_end)
        node->furthest_end = node->right->furthest_end;
}

/* Split into the nodes before (start, id) and the rest. */
static void user_spans_split(span *node, uintptr_t start, uint64_t id, span **before, span **rest)
{
    if (!node) {
        *before = *rest = NULL;
    } else if (span_before(node, start, id)) {
        user_spans_split(node->right, start, id, &node->right, rest);
        *before = node;
        user_spans_update(node);
    } else {
        user_spans_split(node->left, start, id, before, &node->left);
        *rest = node;
        user_spans_update(node);
    }
}

static span *user_spans_merge(span *low, span *high)
{
    if (!low || !high)
        return low ? low : high;
    span *top = low;
    if (low->priority > high->priority) {
        low->right = user_spans_merge(low->right, high);
    } else {
        high->left = user_spans_merge(low, high->left);
        top = high;
    }
    user_spans_update(top);
    return top;
}

bool spans_add(spans *set, uintptr_t start, uintptr_t end, uint64_t id)
{
    span *node = malloc(sizeof *node);
    if (!node) {
        error_no_memory(sizeof *node, "a memory range");
        return false;
    }
    set->random++;
    *node = (span){.start = start,
                   .end = end,
                   .id = id,
                   .furthest_end = end,
                   .priority = hash_bytes(&set->random, sizeof set->random, 0)};
    span *before, *rest;
    user_spans_split(set->root, start, id, &before, &rest);
    set->root = user_spans_merge(user_spans_merge(before, node), rest);
    return true;
}

void spans_remove(spans *set, uintptr_t start, uint64_t id)
{
    span *before, *node, *rest;
    user_spans_split(set->root, start, id, &before, &rest);
    user_spans_split(rest, start, id + 1, &node, &rest);
    free(node);
    set->root = user_spans_merge(before, rest);
}

const span *spans_find(const spans *set, uintptr_t start, uintptr_t end)
{
    const span *node = set->root;
    while (node && node->furthest_end >= end) {
        /* Every span left of one that starts early enough also starts early enough. */
        if (node->start > start || (node->left && node->left->furthest_end >= end))
            node = node->left;
        else if (node->end >= end)
            return node;
        else
            node = node->right;
    }
    return NULL;
}

static void free_below(span *node)
{
    if (!node)
        return;
    free_below(node->left);
    free_below(node->right);
    free(node);
}

void spans_free(spans *set)
{
    free_below(set->root);
    *set = (spans){0};
}
