#include "copy/schedule/colour.h"

#include <inttypes.h>
#include <string.h>

/* The pairs become a bipartite multigraph, senders on the left and receivers on the right, made
 * regular: all vertices have equal degree. Ranks with few batches share a vertex, and filler edges
 * make up the rest, which at most about doubles the edges. A regular graph of even degree splits
 * into two regular halves: walk along its edges and assign them to the halves alternately. Halving
 * down to degree one colours the graph when the degree is a power of two. For any other even degree
 * one half is coloured first, and some of its rounds are moved to the other half, to make that
 * half's degree a power of two. For an odd degree, a perfect matching is found and taken out first,
 * at most once per halving of the degree. */

#define NO_PAIR UINT32_MAX /* a filler edge */
#define NO_EDGE UINT32_MAX

typedef struct colour_edge {
    uint32_t left, right;
    uint32_t pair;
    uint64_t count;
} colour_edge;

/* An edge with its rounds, edge.count of them. */
typedef struct placed_edge {
    colour_edge edge;
    uint64_t first_round;
} placed_edge;

/* For an edge with an odd count: its neighbours in a walk, through its left end and through its
 * right one, and the half that gets the odd one. */
typedef struct walked_edge {
    uint32_t through_left, through_right;
    enum { NOT_WALKED, FIRST_HALF, SECOND_HALF } half;
} walked_edge;

typedef struct colourer {
    size_t vertices;          /* on each side */
    ARRAY(colour_edge) stack; /* lists of edges; the current list lies on top */
    ARRAY(placed_edge) placed;
    ARRAY(walked_edge) walk;
    uint32_t *single[2]; /* for each left and right vertex: the edge without a neighbour so far */
    uint64_t steps;
} colourer;

static void find_neighbours(colourer *c, const colour_edge *edges, uint32_t i)
{
    walked_edge *walk = c->walk.data;
    uint32_t *left = &c->single[0][edges[i].left], *right = &c->single[1][edges[i].right];
    walk[i].half = NOT_WALKED;
    if (*left == NO_EDGE) {
        *left = i;
    } else {
        walk[i].through_left = *left;
        walk[*left].through_left = i;
        *left = NO_EDGE;
    }
    if (*right == NO_EDGE) {
        *right = i;
    } else {
        walk[i].through_right = *right;
        walk[*right].through_right = i;
        *right = NO_EDGE;
    }
}

/* Assign edges to halves along closed walks. Every vertex has an even number of odd edges, so each
 * walk has as many edges from left to right as back. */
static void walk_odd_edges(colourer *c, const colour_edge *edges, size_t count)
{
    walked_edge *walk = c->walk.data;
    for (uint32_t i = 0; i < count; i++) {
        if (edges[i].count & 1)
            find_neighbours(c, edges, i);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!(edges[i].count & 1))
            continue;
        for (uint32_t at = i; walk[at].half == NOT_WALKED;) {
            uint32_t back = walk[at].through_right;
            walk[at].half = FIRST_HALF;
            walk[back].half = SECOND_HALF;
            at = walk[back].through_left;
        }
    }
}

/* Split the list on top of the stack, from `begin` on and of even degree, into two of half the
 * degree: the first takes its place, the second follows from `*second` on. */
static bool list_halve(colourer *c, size_t begin, size_t *second)
{
    size_t count = c->stack.count - begin, first_count = 0, second_count = 0;
    c->walk.count = 0;
    if (!array_reserve(&c->walk, count) || !array_reserve(&c->stack, count))
        return false;
    c->steps += count;
    colour_edge *edges = &c->stack.data[begin], *other = edges + count;
    walk_odd_edges(c, edges, count);
    for (size_t i = 0; i < count; i++) {
        colour_edge edge = edges[i];
        bool odd = edge.count & 1;
        uint64_t half = edge.count / 2;
        edge.count = half + (odd && c->walk.data[i].half == SECOND_HALF);
        if (edge.count > 0)
            other[second_count++] = edge;
        edge.count = half + (odd && c->walk.data[i].half == FIRST_HALF);
        if (edge.count > 0)
            edges[first_count++] = edge;
    }
    memmove(edges + first_count, other, second_count * sizeof *other);
    *second = begin + first_count;
    c->stack.count = *second + second_count;
    return true;
}

static uint64_t list_fillers(const colour_edge *edges, size_t count)
{
    uint64_t fillers = 0;
    for (size_t i = 0; i < count; i++)
        fillers += edges[i].pair == NO_PAIR ? edges[i].count : 0;
    return fillers;
}

/* Put a multiple of the list on top of the stack, whose `pair` is the edge's index, and fill up to
 * degree 2^levels with edges from each vertex to its opposite, fewer than 2^levels in all. */
static bool matching_begin(colourer *c, size_t begin, uint64_t degree, unsigned levels)
{
    size_t count = c->stack.count - begin;
    if (!array_reserve(&c->stack, count + c->vertices))
        return false;
    uint64_t multiple = (UINT64_C(1) << levels) / degree;
    uint64_t missing = (UINT64_C(1) << levels) - multiple * degree;
    for (uint32_t i = 0; i < count; i++) {
        colour_edge edge = c->stack.data[begin + i];
        edge.pair = i;
        edge.count *= multiple;
        c->stack.data[c->stack.count++] = edge;
    }
    for (uint32_t v = 0; v < c->vertices && missing > 0; v++)
        c->stack.data[c->stack.count++] = (colour_edge){v, v, NO_PAIR, missing};
    return true;
}

/* Leave a perfect matching of the list from `begin` on, on top of the stack behind it. Repeated
 * halving, each time keeping the half with fewer fillers, leaves no filler at degree one. */
static bool matching_find(colourer *c, size_t begin, uint64_t degree)
{
    size_t matching = c->stack.count;
    unsigned levels = 0;
    while ((UINT64_C(1) << levels) < degree * c->vertices)
        levels++;
    if (!matching_begin(c, begin, degree, levels))
        return false;
    for (; levels > 0; levels--) {
        size_t second;
        if (!list_halve(c, matching, &second))
            return false;
        size_t first_count = second - matching, second_count = c->stack.count - second;
        colour_edge *edges = &c->stack.data[matching];
        c->stack.count = second;
        if (list_fillers(edges + first_count, second_count) < list_fillers(edges, first_count)) {
            memmove(edges, edges + first_count, second_count * sizeof *edges);
            c->stack.count = matching + second_count;
        }
    }
    return true;
}

/* Assign the round to a perfect matching of the list on top of the stack, and remove it from the
 * list. */
static bool matching_take(colourer *c, size_t begin, uint64_t degree, uint64_t round)
{
    size_t end = c->stack.count;
    if (!matching_find(c, begin, degree) || !array_reserve(&c->placed, c->stack.count - end))
        return false;
    for (size_t i = end; i < c->stack.count; i++) {
        colour_edge *edge = &c->stack.data[begin + c->stack.data[i].pair];
        c->placed.data[c->placed.count++] =
            (placed_edge){{edge->left, edge->right, edge->pair, 1}, round};
        edge->count--;
    }
    size_t kept = begin;
    for (size_t i = begin; i < end; i++) {
        if (c->stack.data[i].count > 0)
            c->stack.data[kept++] = c->stack.data[i];
    }
    c->stack.count = kept;
    return true;
}

/* Place edges where every vertex has one edge, which takes all the rounds. */
static bool list_place(colourer *c, size_t begin, uint64_t first_round)
{
    if (!array_reserve(&c->placed, c->stack.count - begin))
        return false;
    for (size_t i = begin; i < c->stack.count; i++)
        c->placed.data[c->placed.count++] = (placed_edge){c->stack.data[i], first_round};
    c->stack.count = begin;
    return true;
}

/* Return to the stack the edges that were placed since placed.count was `mark`, in `round` or
 * later. */
static bool list_take_back(colourer *c, size_t mark, uint64_t round)
{
    size_t kept = mark;
    if (!array_reserve(&c->stack, c->placed.count - mark))
        return false;
    for (size_t i = mark; i < c->placed.count; i++) {
        placed_edge placed = c->placed.data[i];
        uint64_t before = placed.first_round < round ? round - placed.first_round : 0;
        if (before > placed.edge.count)
            before = placed.edge.count;
        colour_edge back = placed.edge;
        back.count -= before;
        if (back.count > 0)
            c->stack.data[c->stack.count++] = back;
        placed.edge.count = before;
        if (before > 0)
            c->placed.data[kept++] = placed;
    }
    c->placed.count = kept;
    return true;
}

/* Place all edges of the list on top of the stack, which is popped, in rounds [first_round,
 * first_round + degree). */
static bool list_colour(colourer *c, size_t begin, uint64_t degree, uint64_t first_round)
{
    if (c->stack.count - begin == c->vertices)
        return list_place(c, begin, first_round);
    if (degree & 1) {
        if (!matching_take(c, begin, degree, first_round))
            return false;
        degree--;
        first_round++;
    }
    size_t mark = c->placed.count, second;
    uint64_t half = degree / 2, power = 1;
    while (power < half)
        power *= 2;
    uint64_t other_round = first_round + degree - power;
    return list_halve(c, begin, &second) && list_colour(c, second, half, first_round) &&
           list_take_back(c, mark, other_round) && list_colour(c, begin, power, other_round);
}

/* From pairs to a regular graph. */

/* Sum the counts of each rank, and find the largest sum. */
static banyan_status count_batches(const colour_pair *pairs, size_t pair_count, int ranks,
                                   uint64_t *sends, uint64_t *receives, uint64_t *largest)
{
    uint64_t sum = 0, most = 0;
    for (size_t i = 0; i < pair_count; i++) {
        int source = pairs[i].source, dest = pairs[i].dest;
        if (source < 0 || source >= ranks || dest < 0 || dest >= ranks)
            return error_set(BANYAN_ERR_INVALID,
                             "pipeline: batches from rank %d to rank %d in a world of %d", source,
                             dest, ranks);
        if (pairs[i].count > COLOUR_MOST_BATCHES - sum)
            return error_set(BANYAN_ERR_INVALID,
                             "pipeline: %" PRIu64 " batches from rank %d to rank %d, more than "
                             "%" PRIu64 " in all",
                             pairs[i].count, source, dest, COLOUR_MOST_BATCHES);
        sum += pairs[i].count;
        sends[source] += pairs[i].count;
        receives[dest] += pairs[i].count;
    }
    for (int rank = 0; rank < ranks; rank++) {
        most = sends[rank] > most ? sends[rank] : most;
        most = receives[rank] > most ? receives[rank] : most;
    }
    *largest = most;
    return BANYAN_OK;
}

/* Let ranks share a vertex as long as their degrees together stay within the largest; `degrees`
 * becomes the vertices' degrees. Returns the number of vertices. */
static size_t share_vertices(uint64_t *degrees, int ranks, uint64_t largest, uint32_t *vertex)
{
    size_t last = 0;
    uint64_t sum = 0;
    for (int rank = 0; rank < ranks; rank++) {
        uint64_t degree = degrees[rank];
        degrees[rank] = 0;
        if (sum + degree > largest) {
            last++;
            sum = 0;
        }
        vertex[rank] = (uint32_t)last;
        degrees[last] = sum += degree;
    }
    return last + 1;
}

static bool fill_up(colourer *c, const uint64_t *lefts, const uint64_t *rights, uint64_t degree)
{
    uint64_t left_used = lefts[0], right_used = rights[0];
    for (uint32_t left = 0, right = 0; left < c->vertices && right < c->vertices;) {
        uint64_t left_free = degree - left_used, right_free = degree - right_used;
        uint64_t count = left_free < right_free ? left_free : right_free;
        if (count > 0 && !array_push(&c->stack, (colour_edge){left, right, NO_PAIR, count}))
            return false;
        left_used += count;
        right_used += count;
        if (left_used == degree && ++left < c->vertices)
            left_used = lefts[left];
        if (right_used == degree && ++right < c->vertices)
            right_used = rights[right];
    }
    return true;
}

static bool make_regular(colourer *c, const colour_pair *pairs, size_t pair_count, int ranks,
                         uint64_t *sends, uint64_t *receives, uint64_t degree)
{
    uint32_t *vertex = calloc((size_t)ranks * 2, sizeof *vertex);
    if (!vertex) {
        error_no_memory((size_t)ranks * 2 * sizeof *vertex, "a schedule's rounds");
        return false;
    }
    size_t lefts = share_vertices(sends, ranks, degree, vertex);
    size_t rights = share_vertices(receives, ranks, degree, vertex + ranks);
    c->vertices = lefts > rights ? lefts : rights;
    bool done = true;
    for (uint32_t i = 0; i < pair_count && done; i++) {
        if (pairs[i].count > 0)
            done = array_push(&c->stack,
                              (colour_edge){vertex[pairs[i].source], vertex[ranks + pairs[i].dest],
                                            i, pairs[i].count});
    }
    free(vertex);
    return done && fill_up(c, sends, receives, degree);
}

static int by_pair_and_round(const void *left, const void *right)
{
    const colour_run *a = left, *b = right;
    RETURN_IF_UNEQUAL(a->pair, b->pair);
    return a->first_round < b->first_round ? -1 : a->first_round > b->first_round;
}

static bool collect_runs(const colourer *c, colouring *result)
{
    if (!array_reserve(&result->runs, c->placed.count))
        return false;
    colour_run *runs = result->runs.data;
    size_t count = 0, kept = 0;
    for (size_t i = 0; i < c->placed.count; i++) {
        const placed_edge *placed = &c->placed.data[i];
        if (placed->edge.pair != NO_PAIR)
            runs[count++] =
                (colour_run){placed->edge.pair, placed->first_round, placed->edge.count};
    }
    sort_elements(runs, count, sizeof *runs, by_pair_and_round);
    for (size_t i = 0; i < count; i++) {
        colour_run *last = kept > 0 ? &runs[kept - 1] : NULL;
        if (last && last->pair == runs[i].pair &&
            last->first_round + last->count == runs[i].first_round)
            last->count += runs[i].count;
        else
            runs[kept++] = runs[i];
    }
    result->runs.count = kept;
    return true;
}

banyan_status colour_rounds(const colour_pair *pairs, size_t pair_count, int ranks,
                            colouring *result)
{
    colourer c = {0};
    colouring done = {0};
    if (pair_count >= NO_PAIR)
        return error_set(BANYAN_ERR_INVALID, "pipeline: %zu pairs of ranks, more than %u",
                         pair_count, NO_PAIR - 1);
    size_t bytes = (size_t)ranks * (2 * sizeof(uint64_t) + 2 * sizeof(uint32_t));
    uint64_t *degrees = alloc_zeroed(1, bytes, "a schedule's rounds");
    RETURN_IF_NO_MEMORY(degrees);
    uint64_t *sends = degrees, *receives = degrees + ranks;
    c.single[0] = (uint32_t *)(degrees + 2 * (size_t)ranks);
    c.single[1] = c.single[0] + ranks;
    memset(c.single[0], 0xff, (size_t)ranks * 2 * sizeof(uint32_t));
    banyan_status status = count_batches(pairs, pair_count, ranks, sends, receives, &done.rounds);
    if (status == BANYAN_OK && done.rounds > 0 &&
        (!make_regular(&c, pairs, pair_count, ranks, sends, receives, done.rounds) ||
         !list_colour(&c, 0, done.rounds, 0) || !collect_runs(&c, &done)))
        status = BANYAN_ERR_NO_MEMORY;
    done.steps = c.steps;
    if (status == BANYAN_OK)
        *result = done;
    else
        colouring_free(&done);
    array_free(&c.stack);
    array_free(&c.placed);
    array_free(&c.walk);
    free(degrees);
    return status;
}

void colouring_free(colouring *result)
{
    array_free(&result->runs);
}
