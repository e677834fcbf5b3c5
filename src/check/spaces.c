#include "check/spaces.h"

#include <string.h>

void cells_free(cell_list *all)
{
    for (size_t i = 0; i < all->list.count; i++) {
        knowledge_drop(all->store, all->list.data[i].told);
        array_free(&all->list.data[i].readers);
        array_free(&all->list.data[i].traces);
    }
    array_free(&all->list);
}

/* The last edge at or before `at`. */
static size_t find_edge(const space *in, uint64_t at)
{
    size_t low = 0, high = in->edges.count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (in->edges.data[middle].begin <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static bool copy_readers(cell *to, const cell *from)
{
    memset(&to->readers, 0, sizeof to->readers);
    if (from->readers.count == 0)
        return true;
    if (!array_reserve(&to->readers, from->readers.count))
        return false;
    memcpy(to->readers.data, from->readers.data, from->readers.count * sizeof *to->readers.data);
    to->readers.count = from->readers.count;
    return true;
}

static bool copy_traces(cell *to, const cell *from, uint64_t ahead)
{
    memset(&to->traces, 0, sizeof to->traces);
    for (size_t i = 0; i < from->traces.count; i++) {
        trace one = from->traces.data[i];
        one.position += ahead;
        if (!array_push(&to->traces, one))
            return false;
    }
    return true;
}

/* What the cell holds from `bytes` on. */
static bool add_rest(cell_list *all, uint32_t from, uint64_t bytes, uint32_t *added)
{
    if (!array_reserve(&all->list, 1))
        return false;
    cell *rest = &all->list.data[all->list.count];
    *rest = all->list.data[from];
    const cell *whole = &all->list.data[from];
    memset(&rest->traces, 0, sizeof rest->traces);
    if (!copy_readers(rest, whole) || !copy_traces(rest, whole, bytes)) {
        array_free(&rest->readers);
        array_free(&rest->traces);
        return false;
    }
    knowledge_keep(rest->told);
    rest->value = value_ahead(rest->value, bytes);
    rest->writer.position += bytes;
    for (size_t i = 0; i < rest->readers.count; i++)
        rest->readers.data[i].position += bytes;
    *added = (uint32_t)all->list.count++;
    return true;
}

static bool begin_space(cell_list *all, space *in)
{
    cell whole = {.writer = {.chain = NOBODY, .instance = NOBODY, .part = NOBODY}};
    if (!array_push(&all->list, whole))
        return false;
    return array_push(&in->edges, (space_edge){0, (uint32_t)all->list.count - 1});
}

static bool cut_at(cell_list *all, space *in, uint64_t at, size_t *edge)
{
    if (in->edges.count == 0 && !begin_space(all, in))
        return false;
    *edge = find_edge(in, at);
    space_edge before = in->edges.data[*edge], new = {.begin = at};
    if (before.begin == at)
        return true;
    if (!array_reserve(&in->edges, 1) || !add_rest(all, before.cell, at - before.begin, &new.cell))
        return false;
    space_edge *to = &in->edges.data[++*edge];
    memmove(to + 1, to, (in->edges.count - *edge) * sizeof *to);
    *to = new;
    in->edges.count++;
    return true;
}

bool space_cut(cell_list *all, space *in, uint64_t at)
{
    size_t edge;
    return cut_at(all, in, at, &edge);
}

bool space_cell(cell_list *all, space *in, uint64_t begin, uint32_t *index, uint64_t *end)
{
    size_t edge;
    if (!cut_at(all, in, begin, &edge))
        return false;
    *index = in->edges.data[edge].cell;
    *end = edge + 1 < in->edges.count ? in->edges.data[edge + 1].begin : SPACE_END;
    return true;
}
