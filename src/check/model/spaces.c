#include "check/model/spaces.h"

#include <string.h>

void cells_free(cell_list *all)
{
    for (size_t i = 0; i < all->list.count; i++) {
        vector_clock_drop(all->store, all->list.data[i].carried);
        array_free(&all->list.data[i].readers);
        array_free(&all->list.data[i].traces);
    }
    array_free(&all->list);
}

/* Return the last edge at or before `at`. */
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

bool cells_add_reader(cell_list *all, cell *of, touch one)
{
    size_t before = of->readers.capacity;
    bool added = array_push(&of->readers, one);
    all->list_bytes += (of->readers.capacity - before) * sizeof one;
    return added;
}

bool cells_add_trace(cell_list *all, cell *of, space_trace one)
{
    size_t before = of->traces.capacity;
    bool added = array_push(&of->traces, one);
    all->list_bytes += (of->traces.capacity - before) * sizeof one;
    return added;
}

uint64_t cells_memory(const cell_list *all)
{
    return all->list.capacity * sizeof *all->list.data + all->list_bytes;
}

static bool copy_lists(cell_list *all, cell *to, const cell *from, uint64_t ahead)
{
    memset(&to->readers, 0, sizeof to->readers);
    memset(&to->traces, 0, sizeof to->traces);
    bool copied = true;
    for (size_t i = 0; i < from->readers.count && copied; i++) {
        touch one = from->readers.data[i];
        one.position += ahead;
        copied = cells_add_reader(all, to, one);
    }
    for (size_t i = 0; i < from->traces.count && copied; i++) {
        space_trace one = from->traces.data[i];
        one.position += ahead;
        copied = cells_add_trace(all, to, one);
    }
    if (!copied) {
        array_free(&to->readers);
        array_free(&to->traces);
    }
    return copied;
}

/* Add a cell with the contents of this cell from `bytes` on. */
static bool add_rest(cell_list *all, uint32_t from, uint64_t bytes, uint32_t *added)
{
    if (!array_reserve(&all->list, 1))
        return false;
    cell *rest = &all->list.data[all->list.count];
    *rest = all->list.data[from];
    if (!copy_lists(all, rest, &all->list.data[from], bytes))
        return false;
    vector_clock_keep(rest->carried);
    rest->value = value_ahead(rest->value, bytes);
    rest->writer.position += bytes;
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
    all->list_bytes += sizeof new;
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
