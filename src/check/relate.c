/* Group findings that are one mistake: identical ones on other ranks, and consequences of another
 * finding. */
#include <stdlib.h>
#include <string.h>

#include "check/findings.h"

const plan_line *findings_line(const banyan_plan *plan, const banyan_check_place *at)
{
    if (at->thread_block < 0 || at->operation < 0)
        return NULL;
    const plan_op *op = &plan->ranks[at->rank].blocks[at->thread_block].ops[at->operation];
    return plan_line_of(plan, at->loop_operation < 0 ? op : &op->ops[at->loop_operation]);
}

/* Keep a copy: the plan may be destroyed before its report. */
static const char *keep_file(findings *all, const char **files, const banyan_plan *plan,
                             const plan_line *line)
{
    size_t number = (size_t)(line - plan->lines);
    if (!files[number])
        files[number] = arena_copy(&all->memory, line->file, strlen(line->file) + 1);
    return files[number];
}

static bool relate_add_lines(findings *all, const banyan_plan *plan)
{
    const char **files = arena_zeroed(&all->memory, plan->line_count, sizeof *files);
    if (!files)
        return false;
    for (size_t i = 0; i < all->list.count; i++) {
        for (size_t k = 0; k < all->list.data[i].place_count; k++) {
            banyan_check_place *at = (banyan_check_place *)(uintptr_t)&all->list.data[i].places[k];
            const plan_line *line = findings_line(plan, at);
            if (!line)
                continue;
            at->line = line->line;
            at->file = keep_file(all, files, plan, line);
            if (!at->file)
                return false;
        }
    }
    return true;
}

/* Two findings are related if their keys are equal. */
typedef struct relate_key {
    int32_t *numbers;
    size_t count;
} relate_key;

#define KEY_NUMBERS 4

static void key_add(relate_key *key, int rank, const banyan_check_place *at)
{
    const int32_t numbers[KEY_NUMBERS] = {rank, at->thread_block, at->operation,
                                          at->loop_operation};
    memcpy(key->numbers + key->count, numbers, sizeof numbers);
    key->count += KEY_NUMBERS;
}

/* Return the first finding with this key, or `number` if it is the first. False when memory ran
 * out. */
static bool first_with(findings *all, hash_map *seen, const relate_key *key, size_t number,
                       size_t *first)
{
    size_t bytes = key->count * sizeof *key->numbers;
    uint64_t found = number;
    bool kept = map_get(seen, key->numbers, bytes, &found) ||
                map_put_copy(seen, &all->memory, key->numbers, bytes, number);
    *first = (size_t)found;
    return kept;
}

static int compare_operations(const void *left, const void *right)
{
    return memcmp(left, right, KEY_NUMBERS * sizeof(int32_t));
}

/* Key of the operations, regardless of ranks and order. */
static void key_of_identical(relate_key *key, const banyan_check_finding *of)
{
    const int32_t head[] = {(int32_t)of->rule, of->caller_only, of->relaxed_only};
    memcpy(key->numbers, head, sizeof head);
    key->count = sizeof head / sizeof *head;
    int32_t *operations = key->numbers + key->count;
    for (size_t i = 0; i < of->place_count; i++)
        key_add(key, 0, &of->places[i]);
    qsort(operations, of->place_count, KEY_NUMBERS * sizeof *operations, compare_operations);
}

static void key_of_place(relate_key *key, const banyan_check_place *at)
{
    key->count = 0;
    key_add(key, at->rank, at);
}

/* Key of the earlier of two operations. */
static void key_of_pair(relate_key *key, const banyan_check_finding *of)
{
    const banyan_check_place *a = &of->places[0], *b = &of->places[1];
    relate_key second = {key->numbers + KEY_NUMBERS, 0};
    key_of_place(key, a);
    key_add(&second, b->rank, b);
    if (memcmp(key->numbers, second.numbers, KEY_NUMBERS * sizeof *key->numbers) > 0) {
        key_of_place(key, b);
        second.count = 0;
        key_add(&second, a->rank, a);
    }
    key->count = 2 * KEY_NUMBERS;
}

typedef struct cause_index {
    hash_map races;  /* by their two operations */
    hash_map writes; /* writes to inputs, by operation */
    size_t drift;    /* first counter with more tokens given than taken; SIZE_MAX: none */
} cause_index;

/* True for a drift; warnings about other synchronization name an operation. */
static bool is_drift(const banyan_check_finding *of)
{
    return of->rule == BANYAN_CHECK_IDLE_SYNC && of->places[0].operation < 0;
}

static bool index_causes(findings *all, cause_index *causes, relate_key *key)
{
    size_t first;
    for (size_t i = 0; i < all->list.count; i++) {
        const banyan_check_finding *one = &all->list.data[i];
        if (one->rule == BANYAN_CHECK_RACE) {
            key_of_pair(key, one);
            if (!first_with(all, &causes->races, key, i, &first))
                return false;
        } else if (one->rule == BANYAN_CHECK_INPUT_WRITTEN) {
            key_of_place(key, &one->places[0]);
            if (!first_with(all, &causes->writes, key, i, &first))
                return false;
        } else if (is_drift(one) && causes->drift == SIZE_MAX) {
            causes->drift = i;
        }
    }
    return true;
}

static bool has_caller(const banyan_check_finding *of)
{
    for (size_t i = 0; i < of->place_count; i++) {
        if (of->places[i].thread_block < 0)
            return true;
    }
    return false;
}

/* Return a finding's cause. An operation that writes to an input races with the rank's caller, and
 * results of that input are wrong. Two operations that race in a run also race from run to run. A
 * missing wait lets later waits of its channel end too early, so that they no longer order what
 * they protect. */
static size_t relate_cause_of(const findings *all, size_t number, const cause_index *causes,
                              relate_key *key)
{
    const banyan_check_finding *one = &all->list.data[number];
    bool races = one->rule == BANYAN_CHECK_RACE || one->rule == BANYAN_CHECK_REUSE;
    bool spoilt = one->rule == BANYAN_CHECK_RESULT || (races && has_caller(one));
    uint64_t cause;
    for (size_t i = 0; i < one->place_count && spoilt; i++) {
        key_of_place(key, &one->places[i]);
        if (map_get(&causes->writes, key->numbers, key->count * sizeof *key->numbers, &cause))
            return (size_t)cause;
    }
    if (causes->drift != SIZE_MAX &&
        (races || one->rule == BANYAN_CHECK_RESULT || one->rule == BANYAN_CHECK_UNINITIALISED ||
         one->rule == BANYAN_CHECK_UNREAD))
        return causes->drift;
    if (one->rule != BANYAN_CHECK_REUSE)
        return number;
    key_of_pair(key, one);
    return map_get(&causes->races, key->numbers, key->count * sizeof *key->numbers, &cause)
               ? (size_t)cause
               : number;
}

bool findings_relate(findings *all, const banyan_plan *plan)
{
    int32_t numbers[3 + KEY_NUMBERS * PLACES_MOST];
    relate_key key = {numbers, 0};
    hash_map identical = {0};
    cause_index causes = {.drift = SIZE_MAX};
    bool done = true;
    for (size_t i = 0; i < all->list.count && done; i++) {
        key_of_identical(&key, &all->list.data[i]);
        done = first_with(all, &identical, &key, i, &all->list.data[i].like);
    }
    done = done && index_causes(all, &causes, &key);
    for (size_t i = 0; i < all->list.count && done; i++)
        all->list.data[i].cause = relate_cause_of(all, i, &causes, &key);
    map_free(&identical);
    map_free(&causes.races);
    map_free(&causes.writes);
    return done && relate_add_lines(all, plan);
}
