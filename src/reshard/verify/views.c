/* Compare whole blocks of one view with the other view, then the parts of blocks in its reach, down
 * to runs of bytes. Adjacent blocks in memory need few comparisons. */
#include "reshard/verify/views.h"

/* A view, and per level the bounds of a block around its first element. */
typedef struct reach {
    const strided_view *view;
    int64_t low[BANYAN_MAX_DIMS + 1], high[BANYAN_MAX_DIMS + 1];
} reach;

static reach views_reach_of(const strided_view *view)
{
    reach made = {.view = view};
    made.high[view->ndim] = (int64_t)view->elem_bytes;
    for (int level = view->ndim - 1; level >= 0; level--) {
        int64_t last = (view->extent[level] - 1) * view->stride[level];
        made.low[level] = made.low[level + 1] + (last < 0 ? last : 0);
        made.high[level] = made.high[level + 1] + (last > 0 ? last : 0);
    }
    return made;
}

/* True if the block owns all bytes of its reach. */
static bool views_is_run(const reach *of, int level)
{
    const strided_view *view = of->view;
    return level == view->ndim ||
           (level == view->ndim - 1 && view->stride[level] == (int64_t)view->elem_bytes);
}

/* Find the blocks of one level, inside a block at address 0, whose reach meets [low, high). */
static void blocks_in(const reach *of, int level, int64_t low, int64_t high, int64_t *first,
                      int64_t *last)
{
    int64_t stride = of->view->stride[level], count = of->view->extent[level];
    int64_t below = low - of->high[level + 1], above = high - of->low[level + 1];
    *first = 0;
    *last = stride == 0 ? 0 : count - 1;
    if (stride < 0) {
        int64_t kept = below;
        below = -above;
        above = -kept;
        stride = -stride;
    }
    if (stride == 0)
        return;
    /* Block i is at i × stride, above `below` and under `above`. The division rounds towards 0, so
     * block 0 may be one too many: callers check the bounds of each. */
    if (below >= 0)
        *first = below / stride + 1;
    if ((above - 1) / stride < *last)
        *last = (above - 1) / stride;
}

/* True if a block touches [low, high). Addresses count from its first element. */
static bool views_touches(const reach *of, int level, int64_t low, int64_t high)
{
    if (of->high[level] <= low || high <= of->low[level])
        return false;
    if (views_is_run(of, level))
        return true;
    int64_t first, last;
    blocks_in(of, level, low, high, &first, &last);
    for (int64_t i = first; i <= last; i++) {
        int64_t at = i * of->view->stride[level];
        if (views_touches(of, level + 1, low - at, high - at))
            return true;
    }
    return false;
}

/* True if a block of `a`, `at` bytes behind the first element of `b`, overlaps it. */
static bool block_overlaps(const reach *a, int level, int64_t at, const reach *b)
{
    if (!views_touches(b, 0, at + a->low[level], at + a->high[level]))
        return false;
    if (views_is_run(a, level))
        return true;
    int64_t first, last;
    blocks_in(a, level, b->low[0] - at, b->high[0] - at, &first, &last);
    for (int64_t i = first; i <= last; i++)
        if (block_overlaps(a, level + 1, at + i * a->view->stride[level], b))
            return true;
    return false;
}

bool check_views_overlap(const strided_view *a, const strided_view *b)
{
    if (a->elems == 0 || b->elems == 0)
        return false;
    reach first = views_reach_of(a), second = views_reach_of(b);
    return block_overlaps(&first, 0, (int64_t)((uintptr_t)a->data - (uintptr_t)b->data), &second);
}
