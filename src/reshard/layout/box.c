#include <stdio.h>

#include "reshard/layout/box.h"

uint64_t banyan_box_elems(const banyan_box *box)
{
    uint64_t elems = 1;
    for (int d = 0; d < box->ndim; d++)
        elems *= (uint64_t)box->extent[d];
    return elems;
}

bool banyan_box_equal(const banyan_box *a, const banyan_box *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int d = 0; d < a->ndim; d++) {
        if (a->start[d] != b->start[d] || a->extent[d] != b->extent[d])
            return false;
    }
    return true;
}

bool banyan_box_intersect(const banyan_box *a, const banyan_box *b, banyan_box *out)
{
    if (a->ndim != b->ndim)
        return false;
    banyan_box both = {.ndim = a->ndim};
    for (int d = 0; d < a->ndim; d++) {
        int64_t a_end = a->start[d] + a->extent[d], b_end = b->start[d] + b->extent[d];
        int64_t start = a->start[d] > b->start[d] ? a->start[d] : b->start[d];
        int64_t end = a_end < b_end ? a_end : b_end;
        if (start >= end)
            return false;
        both.start[d] = start;
        both.extent[d] = end - start;
    }
    *out = both;
    return true;
}

/* Emit one slab below and one above the cut in each dimension; the next dimension cuts the rest. */
int banyan_box_subtract(const banyan_box *a, const banyan_box *b,
                        banyan_box out[2 * BANYAN_MAX_DIMS])
{
    banyan_box cut;
    if (!banyan_box_intersect(a, b, &cut)) {
        out[0] = *a;
        return banyan_box_elems(a) > 0;
    }
    int count = 0;
    banyan_box rest = *a;
    for (int d = 0; d < a->ndim; d++) {
        int64_t below = cut.start[d] - rest.start[d];
        int64_t above = rest.start[d] + rest.extent[d] - (cut.start[d] + cut.extent[d]);
        if (below > 0) {
            out[count] = rest;
            out[count++].extent[d] = below;
        }
        if (above > 0) {
            out[count] = rest;
            out[count].start[d] = cut.start[d] + cut.extent[d];
            out[count++].extent[d] = above;
        }
        rest.start[d] = cut.start[d];
        rest.extent[d] = cut.extent[d];
    }
    return count;
}

const char *banyan_box_format(const banyan_box *box, char *text, size_t bytes)
{
    size_t used = 0;
    for (int d = 0; d < box->ndim && used < bytes; d++) {
        int written = snprintf(text + used, bytes - used, "%s%lld:%lld", d == 0 ? "[" : ", ",
                               (long long)box->start[d],
                               (long long)((uint64_t)box->start[d] + (uint64_t)box->extent[d]));
        used += (size_t)written;
    }
    if (used < bytes)
        snprintf(text + used, bytes - used, box->ndim == 0 ? "[]" : "]");
    return text;
}

bool box_fits(const banyan_box *box, int ndim, const int64_t *shape)
{
    if (box->ndim != ndim)
        return false;
    for (int d = 0; d < ndim; d++) {
        if (box->start[d] < 0 || box->extent[d] < 0 || box->start[d] > shape[d] ||
            box->extent[d] > shape[d] - box->start[d])
            return false;
    }
    return true;
}

banyan_box box_whole(int ndim, const int64_t *shape)
{
    banyan_box box = {.ndim = ndim};
    for (int d = 0; d < ndim; d++)
        box.extent[d] = shape[d];
    return box;
}

void chunk_range(int64_t size, int64_t parts, int64_t index, int64_t *start, int64_t *extent)
{
    int64_t chunk = size / parts + (size % parts != 0);
    int64_t from = chunk > 0 && index > size / chunk ? size : index * chunk;
    *start = from < size ? from : size;
    *extent = size - *start < chunk ? size - *start : chunk;
}

const char *shape_format(int ndim, const int64_t *shape, char *text, size_t bytes)
{
    size_t used = 0;
    for (int d = 0; d < ndim && used < bytes; d++) {
        int written =
            snprintf(text + used, bytes - used, "%s%lld", d == 0 ? "[" : ", ", (long long)shape[d]);
        used += (size_t)written;
    }
    if (used < bytes)
        snprintf(text + used, bytes - used, ndim == 0 ? "[]" : "]");
    return text;
}

bool shape_bytes(int ndim, const int64_t *shape, size_t elem_bytes, uint64_t *bytes)
{
    uint64_t product = elem_bytes, nonzero = elem_bytes;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 0)
            return false;
        product *= (uint64_t)shape[d];
        if (shape[d] > 0 &&
            (__builtin_mul_overflow(nonzero, (uint64_t)shape[d], &nonzero) || nonzero > INT64_MAX))
            return false;
    }
    *bytes = product;
    return true;
}
