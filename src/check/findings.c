#include "check/findings.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Identifies a finding that is reported once: its places, without the run. */
typedef struct finding_key {
    uint32_t rule, count, number;
    int32_t places[2][4];
} finding_key;

static finding_key findings_key_of(const finding_draft *draft)
{
    finding_key key = {
        .rule = draft->rule, .count = (uint32_t)draft->place_count, .number = draft->number};
    for (size_t i = 0; i < 2 && i < draft->place_count; i++) {
        const banyan_check_place *at = &draft->places[i];
        key.places[i][0] = at->rank;
        key.places[i][1] = at->thread_block;
        key.places[i][2] = at->operation;
        key.places[i][3] = at->loop_operation;
    }
    return key;
}

bool findings_wants(const findings *all, const finding_draft *draft)
{
    finding_key key = findings_key_of(draft);
    uint64_t place;
    if (all->deadlocks_only && draft->rule != BANYAN_CHECK_DEADLOCK)
        return false;
    return all->of_rule[draft->rule] < all->most && !map_get(&all->seen, &key, sizeof key, &place);
}

static char *keep_text(findings *all, const char *format, va_list arguments)
{
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    char *text = arena_take(&all->memory, (size_t)length + 1);
    if (text)
        vsnprintf(text, (size_t)length + 1, format, arguments);
    return text;
}

bool findings_add(findings *all, const finding_draft *draft, const char *format, ...)
{
    if (!findings_wants(all, draft))
        return true;
    va_list arguments;
    va_start(arguments, format);
    char *message = keep_text(all, format, arguments);
    va_end(arguments);
    finding_key key = findings_key_of(draft);
    banyan_check_place *places =
        arena_copy(&all->memory, draft->places, draft->place_count * sizeof *places);
    if (!message || !places)
        return false;
    banyan_check_finding new = {.rule = draft->rule,
                                .caller_only = draft->caller_only,
                                .relaxed_only = draft->relaxed_only,
                                .message_bytes = all->message_bytes,
                                .places = places,
                                .place_count = draft->place_count,
                                .message = message};
    all->of_rule[draft->rule]++;
    return array_push(&all->list, new) &&
           map_put_copy(&all->seen, &all->memory, &key, sizeof key, all->list.count - 1);
}

static int findings_compare_numbers(int a, int b)
{
    return (a > b) - (a < b);
}

static int findings_compare_places(const banyan_check_place *a, const banyan_check_place *b)
{
    int order = findings_compare_numbers(a->rank, b->rank);
    order = order ? order : findings_compare_numbers(a->thread_block, b->thread_block);
    order = order ? order : findings_compare_numbers(a->operation, b->operation);
    order = order ? order : findings_compare_numbers(a->loop_operation, b->loop_operation);
    return order ? order : findings_compare_numbers(a->run, b->run);
}

static int compare_findings(const void *left, const void *right)
{
    const banyan_check_finding *a = left, *b = right;
    int order = findings_compare_numbers((int)a->rule, (int)b->rule);
    for (size_t i = 0; order == 0 && i < a->place_count && i < b->place_count; i++)
        order = findings_compare_places(&a->places[i], &b->places[i]);
    if (order == 0)
        order = findings_compare_numbers((int)a->place_count, (int)b->place_count);
    return order ? order : strcmp(a->message, b->message);
}

void findings_sort(findings *all)
{
    if (all->list.count > 1)
        qsort(all->list.data, all->list.count, sizeof *all->list.data, compare_findings);
}

void findings_free(findings *all)
{
    map_free(&all->seen);
    array_free(&all->list);
    arena_free(&all->memory);
}
