#include "check/model/values.h"

#include <stdio.h>
#include <string.h>

/* Terms that a message lists individually. */
#define TERMS_LISTED 4

bool values_make(values *all)
{
    *all = (values){0};
    for (int i = 0; i < VALUE_FIRST; i++) {
        if (!array_push(&all->list, (value_form){0}))
            return false;
    }
    return true;
}

void values_free(values *all)
{
    map_free(&all->by_content);
    array_free(&all->list);
    array_free(&all->room);
    arena_free(&all->memory);
}

static int compare_terms(const void *left, const void *right)
{
    const value_term *a = left, *b = right;
    if (a->source != b->source)
        return a->source < b->source ? -1 : 1;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

/* Equal terms count once in a minimum or maximum, and each time in a sum or product. */
static uint32_t join_equal(value_term *terms, uint32_t count, banyan_reduce_op op)
{
    bool repeats = op == BANYAN_SUM || op == BANYAN_PROD;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (kept > 0 && compare_terms(&terms[kept - 1], &terms[i]) == 0)
            terms[kept - 1].count += repeats ? terms[i].count : 0;
        else
            terms[kept++] = terms[i];
    }
    return kept;
}

/* The scratch value begins with a header, so that it can be a key. */
static bool clear_room(values *all)
{
    all->room.count = 0;
    return array_push(&all->room, (value_term){0});
}

/* Sort the scratch terms and keep them as a value, without duplicates. */
static bool values_keep(values *all, banyan_reduce_op op, value_ref *made)
{
    value_term *room = all->room.data;
    uint32_t count = (uint32_t)all->room.count - 1;
    uint64_t base = room[1].offset, id;
    for (uint32_t i = 1; i <= count; i++)
        room[i].offset -= base;
    if (count == 1 && room[1].count == 1)
        op = BANYAN_SUM;
    room[0] = (value_term){(uint32_t)op, count, 0};
    size_t bytes = (count + 1) * sizeof *room;
    if (!map_get(&all->by_content, room, bytes, &id)) {
        value_term *kept = arena_copy(&all->memory, room, bytes);
        if (!kept)
            return false;
        id = all->list.count;
        if (!array_push(&all->list, (value_form){op, count, kept + 1}) ||
            !map_put(&all->by_content, kept, bytes, id))
            return false;
    }
    *made = (value_ref){(uint32_t)id, base};
    return true;
}

bool values_input(values *all, uint32_t source, uint64_t offset, value_ref *made)
{
    return clear_room(all) && array_push(&all->room, (value_term){source, 1, offset}) &&
           values_keep(all, BANYAN_SUM, made);
}

static bool values_is_single(const value_form *one)
{
    return one->count == 1 && one->terms[0].count == 1;
}

static bool add_terms(values *all, value_ref ref, banyan_reduce_op op)
{
    const value_form *one = &all->list.data[ref.id];
    if (ref.id < VALUE_FIRST || (one->op != op && !values_is_single(one)))
        return array_push(&all->room, (value_term){VALUE_NESTED | ref.id, 1, ref.offset});
    if (!array_reserve(&all->room, one->count))
        return false;
    for (uint32_t i = 0; i < one->count; i++) {
        value_term term = one->terms[i];
        term.offset += ref.offset;
        all->room.data[all->room.count++] = term;
    }
    return true;
}

bool values_reduce(values *all, const value_ref *refs, size_t count, banyan_reduce_op op,
                   value_ref *made)
{
    if (!clear_room(all))
        return false;
    for (size_t i = 0; i < count; i++) {
        if (refs[i].id == VALUE_ANYTHING) {
            *made = refs[i];
            return true;
        }
        if (!add_terms(all, refs[i], op))
            return false;
    }
    uint32_t terms = (uint32_t)all->room.count - 1;
    qsort(all->room.data + 1, terms, sizeof *all->room.data, compare_terms);
    all->room.count = 1 + join_equal(all->room.data + 1, terms, op);
    return values_keep(all, op, made);
}

static int values_describe_term(value_term term, uint64_t offset, int ranks, char *text,
                                size_t bytes)
{
    char times[32] = "";
    if (term.count > 1)
        snprintf(times, sizeof times, " (%u times)", term.count);
    if (term.source & VALUE_NESTED)
        return snprintf(text, bytes, "what another operator reduced%s", times);
    return snprintf(text, bytes, "rank %u's byte %llu%s", term.source % (unsigned)ranks,
                    (unsigned long long)(term.offset + offset), times);
}

void values_describe(const values *all, value_ref ref, int ranks, char *text, size_t text_bytes)
{
    static const char *const special[VALUE_FIRST] = {"nothing", "zeros", "something wrong"};
    if (ref.id < VALUE_FIRST) {
        snprintf(text, text_bytes, "%s", special[ref.id]);
        return;
    }
    const value_form *one = &all->list.data[ref.id];
    int used = values_is_single(one)
                   ? 0
                   : snprintf(text, text_bytes, "the %s of ", banyan_reduce_op_name(one->op));
    for (uint32_t i = 0; i < one->count && (size_t)used < text_bytes; i++) {
        if (i == TERMS_LISTED) {
            snprintf(text + used, text_bytes - (size_t)used, " and %u more", one->count - i);
            return;
        }
        used += snprintf(text + used, text_bytes - (size_t)used, "%s", i > 0 ? ", " : "");
        if ((size_t)used < text_bytes)
            used += values_describe_term(one->terms[i], ref.offset, ranks, text + used,
                                         text_bytes - (size_t)used);
    }
}
