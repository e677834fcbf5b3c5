/* Binary trees, in units: each rank communicates with its parent and its two children. Rank v,
 * counted from the root, has the children 2v + 1 and 2v + 2. */
#include "collective/algorithms/algorithm.h"

enum { UP, DOWN };
enum { MESH_UP, MESH_DOWN };
enum { WORK, HEAR };

typedef struct node {
    int rank;
    int parent; /* -1: the root */
    int children[2], child_count;
    int place; /* its index among its parent's children */
} node;

static node tree_node_of(const algorithm *a, int rank)
{
    int v = algorithm_rank(a, rank - a->root);
    node found = {.rank = rank, .parent = -1, .place = (v + 1) % 2};
    if (v)
        found.parent = algorithm_rank(a, a->root + (v - 1) / 2);
    for (int child = 2 * v + 1; child <= 2 * v + 2 && child < a->ranks; child++)
        found.children[found.child_count++] = algorithm_rank(a, a->root + child);
    return found;
}

static void wait_children(algorithm *a, const node *at, int mesh, int thread_block)
{
    for (int i = 0; i < at->child_count; i++)
        mesh_wait(a, mesh, at->rank, at->children[i], thread_block);
}

static void signal_children(algorithm *a, const node *at, int mesh, int thread_block)
{
    for (int i = 0; i < at->child_count; i++)
        mesh_signal(a, mesh, at->rank, at->children[i], thread_block);
}

/* The places of a vector in a rank: slots from its children, its way up, and its way down. */
typedef struct tree_slots {
    int size;
    uint64_t from_child[2], sum, down;
} tree_slots;

/* Reduce the rank's input with its children's data into `destination`. */
static void reduce_children(algorithm *a, const node *at, const tree_slots *s,
                            banyan_chunk destination)
{
    banyan_chunk sent[2];
    for (int i = 0; i < at->child_count; i++)
        sent[i] = slot_range(a, at->rank, s->from_child[i], s->size);
    banyan_program_reduce(a->program, at->rank, input_all(a, at->rank), sent, at->child_count,
                          destination, a->op, BANYAN_TB(UP));
}

/* A leaf sends its input unchanged. */
static void send_up(algorithm *a, const node *at, const tree_slots *s)
{
    banyan_chunk sum =
        at->child_count ? slot_range(a, at->rank, s->sum, s->size) : input_all(a, at->rank);
    remote_put(a, slot_range(a, at->parent, s->from_child[at->place], s->size), sum, UP);
    mesh_signal(a, MESH_UP, at->rank, at->parent, UP);
}

static void pass_down(algorithm *a, const node *at, const tree_slots *s, int thread_block)
{
    if (!at->child_count)
        return;
    local_copy(a, slot_range(a, at->rank, s->down, s->size), output_range(a, at->rank, 0, s->size),
               thread_block);
    signal_children(a, at, MESH_DOWN, thread_block);
}

static void take_from_parent(algorithm *a, const node *at, const tree_slots *s, int thread_block)
{
    mesh_wait(a, MESH_DOWN, at->rank, at->parent, thread_block);
    remote_get(a, output_range(a, at->rank, 0, s->size),
               slot_range(a, at->parent, s->down, s->size), thread_block);
}

/* A unit that comes down was read everywhere on its way up, so a rank may send as many further
 * units as the ring holds. The ring for results is free as well: a rank that sends unit i up has
 * read unit i - PIPELINE_UNITS. */
void allreduce_tree(algorithm *a)
{
    tree_slots s = {.size = (int)a->input_chunks};
    s.from_child[0] = slots_take(a, s.size);
    s.from_child[1] = slots_take(a, s.size);
    s.sum = slots_take(a, s.size);
    s.down = slots_take(a, s.size);
    banyan_program_loop_begin(a->program, a->unit_bytes, a->input_chunks);
    for (int rank = 0; rank < a->ranks; rank++) {
        node at = tree_node_of(a, rank);
        if (at.parent < 0) {
            wait_children(a, &at, MESH_UP, UP);
            reduce_children(a, &at, &s, output_range(a, rank, 0, s.size));
            pass_down(a, &at, &s, UP);
            continue;
        }
        banyan_program_semaphore *room =
            banyan_program_semaphore_create(a->program, rank, PIPELINE_UNITS);
        banyan_program_semaphore_acquire(room, UP, BANYAN_SYNC_BOTH);
        if (at.child_count) {
            wait_children(a, &at, MESH_UP, UP);
            reduce_children(a, &at, &s, slot_range(a, rank, s.sum, s.size));
        }
        send_up(a, &at, &s);
        take_from_parent(a, &at, &s, DOWN);
        pass_down(a, &at, &s, DOWN);
        banyan_program_semaphore_release(room, DOWN, BANYAN_SYNC_BOTH);
    }
    banyan_program_loop_end(a->program);
}

/* Children signal that they have read a unit, which frees its space. */
void broadcast_tree(algorithm *a)
{
    tree_slots s = {.size = 1, .down = slots_take(a, 1)};
    banyan_program_loop_begin(a->program, a->unit_bytes, 1);
    for (int rank = 0; rank < a->ranks; rank++) {
        node at = tree_node_of(a, rank);
        banyan_program_semaphore *room = NULL;
        if (at.child_count) {
            room = banyan_program_semaphore_create(a->program, rank, PIPELINE_UNITS);
            banyan_program_semaphore_acquire(room, WORK, BANYAN_SYNC_BOTH);
        }
        if (at.parent < 0) {
            local_keep(a, output_at(a, rank, 0), input_at(a, rank, 0), WORK);
        } else {
            take_from_parent(a, &at, &s, WORK);
            mesh_signal(a, MESH_UP, rank, at.parent, WORK);
        }
        pass_down(a, &at, &s, WORK);
        if (room) {
            wait_children(a, &at, MESH_UP, HEAR);
            banyan_program_semaphore_release(room, HEAR, BANYAN_SYNC_BOTH);
        }
    }
    banyan_program_loop_end(a->program);
}

/* Parents signal that they have read a unit. */
void reduce_tree(algorithm *a)
{
    tree_slots s = {.size = 1};
    s.from_child[0] = slots_take(a, 1);
    s.from_child[1] = slots_take(a, 1);
    s.sum = slots_take(a, 1);
    banyan_program_loop_begin(a->program, a->unit_bytes, 1);
    for (int rank = 0; rank < a->ranks; rank++) {
        node at = tree_node_of(a, rank);
        banyan_chunk sum = at.parent < 0 ? output_at(a, rank, 0) : slot_at(a, rank, s.sum);
        if (at.child_count) {
            wait_children(a, &at, MESH_UP, UP);
            reduce_children(a, &at, &s, sum);
            signal_children(a, &at, MESH_DOWN, UP);
        }
        if (at.parent < 0)
            continue;
        banyan_program_semaphore *room =
            banyan_program_semaphore_create(a->program, rank, PIPELINE_UNITS);
        banyan_program_semaphore_acquire(room, UP, BANYAN_SYNC_BOTH);
        send_up(a, &at, &s);
        mesh_wait(a, MESH_DOWN, rank, at.parent, DOWN);
        banyan_program_semaphore_release(room, DOWN, BANYAN_SYNC_BOTH);
    }
    banyan_program_loop_end(a->program);
}
