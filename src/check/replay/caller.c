/* The actions of a rank's caller: it writes the input, starts the run and, after the rank's own
 * part has ended, reads the output and continues with the next run. */
#include <stdio.h>
#include <string.h>

#include "check/replay/motion.h"

/* Operations of a history that a message lists. */
#define HISTORY_LISTED 4
#define VALUE_TEXT_BYTES 256

static bool begin_motion(replay *all, int rank, uint32_t kind, motion *made)
{
    rank_state *of = &all->ranks[rank];
    instance new = {.rank = rank, .block = NOBODY, .op = kind, .loop_op = NOBODY, .run = of->run};
    *made = (motion){.all = all,
                     .chain = all->chains.callers[rank],
                     .time = caller_time(of->run) + (kind == CALLER_READS),
                     .instance = (uint32_t)all->instances.count,
                     .part = NOBODY,
                     .known = of->caller};
    return array_push(&all->instances, new);
}

static bool next_cell(motion *by, buffer_view *v, uint64_t *at, uint64_t end)
{
    cell_list *cells = &by->all->cells;
    by->at = *at;
    if (!space_cut(cells, v->in, v->place + end) ||
        !space_cell(cells, v->in, v->place + *at, &v->cell, at))
        return false;
    *at -= v->place;
    by->bytes = *at - by->at;
    return true;
}

static bool write_input(replay *all, int rank)
{
    motion by;
    rank_state *of = &all->ranks[rank];
    buffer_view v = motion_view(all, rank, PLAN_INPUT, false, of->run);
    uint64_t bytes = of->bytes[PLAN_INPUT];
    uint32_t source = of->run * (uint32_t)all->plan->rank_count + (uint32_t)rank;
    value_ref value;
    if (!begin_motion(all, rank, CALLER_WRITES, &by) ||
        !values_input(&all->values, source, 0, &value))
        return false;
    for (uint64_t at = 0; at < bytes;) {
        if (!next_cell(&by, &v, &at, bytes) || !motion_write(&by, &v, value_ahead(value, by.at), 0))
            return false;
    }
    return true;
}

bool replay_begin_run(replay *all, int rank)
{
    rank_state *of = &all->ranks[rank];
    uint32_t now = caller_time(of->run);
    vector_clock_entry own = {all->chains.callers[rank], now, now};
    if (!vector_clock_add_one(&all->store, &of->caller, own) || !write_input(all, rank))
        return false;
    for (uint32_t b = 0; b < all->plan->ranks[rank].block_count; b++) {
        walker *by = &of->walkers[b];
        vector_clock_drop(&all->store, by->start);
        vector_clock_drop(&all->store, by->pending);
        by->pending = NULL;
        by->counts.count = 0;
        by->start = vector_clock_keep(of->caller);
        by->time = block_time(of->run, 0);
        plan_position_reset(by->pos);
        if (!walker_join(all, by))
            return false;
    }
    of->running = true;
    return replay_note_run(all, rank);
}

static void describe_history(const replay *all, uint32_t origin_number, char *text, size_t bytes,
                             finding_draft *draft)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < HISTORY_LISTED && origin_number != 0; i++) {
        const origin_link *one = &all->origins.data[origin_number];
        char place[PLACE_TEXT_BYTES];
        int more = snprintf(text + used, bytes - used, "%s%s", i > 0 ? ", from " : "",
                            replay_place_text(all, one->instance, place));
        used += more > 0 && (size_t)more < bytes - used ? (size_t)more : 0;
        draft->places[draft->place_count++] = replay_place(all, one->instance);
        origin_number = one->first;
    }
}

static bool caller_report_wrong(motion *by, const cell *of, value_ref expected)
{
    replay *all = by->all;
    int rank = all->instances.data[by->instance].rank;
    bool written = of->writer.chain != NOBODY;
    finding_draft draft = {.rule = written && of->value.id == VALUE_NOTHING
                                       ? BANYAN_CHECK_UNINITIALISED
                                       : BANYAN_CHECK_RESULT};
    char history[HISTORY_LISTED * PLACE_TEXT_BYTES], is[VALUE_TEXT_BYTES], should[VALUE_TEXT_BYTES];
    char span[BYTES_TEXT_BYTES];
    describe_history(all, of->origin, history, sizeof history, &draft);
    if (draft.place_count == 0)
        draft.places[draft.place_count++] = replay_place(all, by->instance);
    values_describe(&all->values, of->value, all->plan->rank_count, is, sizeof is);
    values_describe(&all->values, expected, all->plan->rank_count, should, sizeof should);
    return findings_add(
        all->findings, &draft,
        "rank %d's output, %s, holds %s after run %u, but should hold %s; %s%s", rank,
        replay_bytes_text(all, PLAN_OUTPUT, false, by->at, by->at + by->bytes, span), is,
        all->instances.data[by->instance].run, should,
        history[0] ? "written by " : "no operation writes it", history);
}

static bool expected_value(replay *all, const banyan_plan_result *wanted, uint32_t run,
                           banyan_reduce_op op, value_ref *value)
{
    value_ref *sources = malloc((wanted->source_count + 1) * sizeof *sources);
    if (!sources) {
        error_no_memory(wanted->source_count * sizeof *sources, "an expected result");
        return false;
    }
    bool made = true;
    for (size_t i = 0; i < wanted->source_count && made; i++) {
        uint32_t source = run * (uint32_t)all->plan->rank_count + (uint32_t)wanted->sources[i].rank;
        made = values_input(&all->values, source, wanted->sources[i].offset, &sources[i]);
    }
    if (made && wanted->source_count == 1)
        *value = sources[0];
    else if (made)
        made = values_reduce(&all->values, sources, wanted->source_count, op, value);
    free(sources);
    return made;
}

static bool caller_check_result(motion *by, buffer_view *v, const banyan_plan_result *wanted,
                                banyan_reduce_op op)
{
    replay *all = by->all;
    uint32_t run = all->instances.data[by->instance].run;
    value_ref expected;
    if (!expected_value(all, wanted, run, op, &expected))
        return false;
    uint64_t end = wanted->offset + wanted->bytes;
    for (uint64_t at = wanted->offset; at < end;) {
        value_ref is;
        if (!next_cell(by, v, &at, end) || !motion_read(by, v, &is))
            return false;
        value_ref should = value_ahead(expected, by->at - wanted->offset);
        bool counts = is.id != VALUE_ANYTHING && (run == 0 || !all->raced);
        if (counts && !value_is(is, should) &&
            !caller_report_wrong(by, &all->cells.list.data[v->cell], should))
            return false;
    }
    return true;
}

static bool caller_read_bytes(motion *by, buffer_view *v, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes;) {
        value_ref value;
        if (!next_cell(by, v, &at, bytes) || !motion_read(by, v, &value))
            return false;
    }
    return true;
}

/* Check the results of the output that the collective defines or, if it defines none, all of it. */
static bool read_output(replay *all, int rank)
{
    motion by;
    banyan_plan_result *results;
    size_t count;
    banyan_reduce_op op;
    buffer_view v = motion_view(all, rank, PLAN_OUTPUT, false, all->ranks[rank].run);
    if (!begin_motion(all, rank, CALLER_READS, &by) ||
        banyan_plan_expected(all->plan, rank, all->geometry->message_bytes, &results, &count,
                             &op) != BANYAN_OK)
        return false;
    bool read = true;
    for (size_t i = 0; i < count && read; i++)
        read = caller_check_result(&by, &v, &results[i], op);
    if (count == 0 && all->plan->collective == BANYAN_CUSTOM)
        read = caller_read_bytes(&by, &v, all->ranks[rank].bytes[PLAN_OUTPUT]);
    free(results);
    return read;
}

bool replay_end_run(replay *all, int rank)
{
    rank_state *of = &all->ranks[rank];
    uint32_t next = caller_time(of->run + 1);
    vector_clock_entry own = {all->chains.callers[rank], next, next};
    if (!vector_clock_add_one(&all->store, &of->caller, own))
        return false;
    for (uint32_t b = 0; b < all->plan->ranks[rank].block_count; b++) {
        if (!vector_clock_add(&all->store, &of->caller, of->walkers[b].start) ||
            !vector_clock_add(&all->store, &of->caller, of->walkers[b].pending))
            return false;
    }
    if (!read_output(all, rank))
        return false;
    of->running = false;
    of->run++;
    return true;
}
