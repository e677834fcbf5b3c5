#include "memory/space.h"

#include <stdlib.h>

#include "core/containers.h"
#include "core/error.h"
#include "memory/symmetric/symmetric.h"
#include "memory/user/user.h"
#include "world/control.h"

static const char space_key;

/* Buffers that were not freed end with the world. */
static void space_destroy(void *attachment)
{
    memory_space *space = attachment;
    user_memory_close(space->user);
    while (space->buffers.count > 0)
        banyan_memory_free(space->buffers.data[space->buffers.count - 1]);
    attached_shares_free(space);
    memory_shares_free(space);
    array_free(&space->buffers);
    spans_free(&space->buffer_spans);
    registrations_free(space);
    pthread_rwlock_destroy(&space->lock);
    free(space->local_ranks);
    free(space);
}

/* The lock prefers writers, so that peers that read without a pause cannot keep the owner from
 * unregistering. */
static void init_lock(pthread_rwlock_t *lock)
{
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(lock, &attributes);
    pthread_rwlockattr_destroy(&attributes);
}

static banyan_status space_create(banyan_world *world, memory_space **space)
{
    memory_space *made = calloc(1, sizeof *made);
    if (!made)
        return error_no_memory(sizeof *made, "a world's memory");
    made->world = world;
    made->rank = banyan_world_rank(world);
    made->local_rank = banyan_world_local_rank(world);
    made->local_size = banyan_world_local_size(world);
    made->next_buffer_id = 1;
    made->local_ranks = calloc((size_t)made->local_size, sizeof *made->local_ranks);
    if (!made->local_ranks) {
        banyan_status status =
            error_no_memory((size_t)made->local_size * sizeof(int), "the ranks of a node");
        free(made);
        return status;
    }
    for (int i = 0; i < made->local_size; i++)
        made->local_ranks[i] = banyan_world_local_peer(world, i);
    init_lock(&made->lock);
    *space = made;
    return BANYAN_OK;
}

memory_space *memory_space_find(banyan_world *world)
{
    return world_attachment(world, &space_key);
}

banyan_status memory_space_of(banyan_world *world, memory_space **space)
{
    memory_space *found = memory_space_find(world);
    if (!found) {
        RETURN_IF_FAILED(space_create(world, &found));
        banyan_status status = world_attach(world, &space_key, found, space_destroy);
        if (status != BANYAN_OK) {
            space_destroy(found);
            return status;
        }
    }
    *space = found;
    return BANYAN_OK;
}

int memory_space_local(const memory_space *space, int rank)
{
    int low = 0, high = space->local_size;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (space->local_ranks[middle] < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low < space->local_size && space->local_ranks[low] == rank ? low : -1;
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
    } else if (node->start != start ? node->start < start : node->id < id) {
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
