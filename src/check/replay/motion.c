#include "check/replay/motion.h"

#include <stdio.h>
#include <string.h>

#include "plan/op.h"

buffer_view motion_view(replay *all, int rank, plan_buffer buffer, bool packets, uint32_t run)
{
    rank_state *of = &all->ranks[rank];
    buffer_view made = {.rank = rank, .buffer = buffer, .packets = packets};
    space_kind kind = packets ? SPACE_PACKETS : SPACE_SCRATCH;
    if (buffer != PLAN_SCRATCH) {
        kind = buffer == PLAN_INPUT || all->plan->in_place ? SPACE_INPUT : SPACE_OUTPUT;
        made.place = of->places[buffer];
    }
    bool second_half = buffer == PLAN_SCRATCH && all->plan->double_scratch && run % 2 == 1;
    made.in = &of->spaces[kind][second_half];
    return made;
}

/* True if packets with results of these very bytes, or all packets of that part, have arrived. */
static bool is_traced(const motion *by, const touch *other)
{
    if (other->part == NOBODY)
        return false;
    for (size_t i = 0; by->traces && i < by->traces->count; i++) {
        const space_trace *one = &by->traces->data[i];
        if (one->part == other->part && one->position == other->position)
            return true;
    }
    const packet_part *of = &by->all->parts.data[other->part];
    return vector_clock_orders(by->known, &by->all->chains, of->chain, of->time, false);
}

static bool is_ordered(const motion *by, const touch *other, bool seen)
{
    const chain_list *chains = &by->all->chains;
    if (other->chain == NOBODY)
        return true;
    if (other->instance == by->instance && other->position == by->position)
        return true;
    if (!seen && is_traced(by, other))
        return true;
    if (other->chain == by->chain)
        return other->time < by->time || chains->list[by->chain].kind == CHAIN_CALLER;
    return vector_clock_orders(by->known, chains, other->chain, other->time, seen);
}

/* Name the missing synchronization between the two; `first` came earlier in the replay. */
static void motion_advise(const motion *by, const touch *first, bool relaxed_only, char *text,
                          size_t bytes)
{
    const chain_owner *a = &by->all->chains.list[first->chain],
                      *b = &by->all->chains.list[by->chain];
    if (a->kind == CHAIN_PORT)
        snprintf(text, bytes,
                 "rank %d's port channel %u performs the first at any later time: a flush, or a "
                 "signal on that channel with a wait for it, would order them",
                 a->rank, a->index);
    else if (relaxed_only)
        snprintf(text, bytes,
                 "only packets, or a relaxed signal or wait, lie between them, which do not "
                 "publish the writes of rank %d: a signal and wait would",
                 a->rank);
    else if (a->rank == b->rank && a->kind == CHAIN_BLOCK && b->kind == CHAIN_BLOCK)
        snprintf(text, bytes,
                 a->index == b->index
                     ? "the thread block's threads do not synchronize between them: a nop would "
                       "order them"
                     : "a barrier or a semaphore of the two thread blocks would order them");
    else if (a->rank == b->rank)
        snprintf(text, bytes,
                 "the port channel may begin before the first is over: a nop before it is posted "
                 "would order them, or a barrier or semaphore after that of another thread block");
    else
        snprintf(text, bytes,
                 "rank %d would have to wait for a signal that rank %d gives after that", b->rank,
                 a->rank);
}

static const char *run_text(const motion *by, uint32_t number, char *text, size_t bytes)
{
    snprintf(text, bytes, "in run %u", by->all->instances.data[number].run);
    return text;
}

static void motion_verbs(const motion *by, const touch *other, bool writes, bool other_writes,
                         char *text, size_t bytes)
{
    char mine[PLACE_TEXT_BYTES], theirs[PLACE_TEXT_BYTES], my_run[32], their_run[32];
    snprintf(text, bytes, "%s %s them %s and %s %s them %s",
             replay_place_text(by->all, other->instance, theirs), other_writes ? "writes" : "reads",
             run_text(by, other->instance, their_run, sizeof their_run),
             replay_place_text(by->all, by->instance, mine), writes ? "writes" : "reads",
             run_text(by, by->instance, my_run, sizeof my_run));
}

static bool motion_collide(motion *by, const buffer_view *at, cell *with, const touch *other,
                           bool writes, bool other_writes, bool seen)
{
    replay *all = by->all;
    const instance *mine = &all->instances.data[by->instance];
    const instance *theirs = &all->instances.data[other->instance];
    bool caller = mine->block == NOBODY || theirs->block == NOBODY;
    with->lost = true;
    all->raced = true;
    finding_draft draft = {
        .rule = mine->run == theirs->run ? BANYAN_CHECK_RACE : BANYAN_CHECK_REUSE,
        .caller_only = caller,
        .relaxed_only = seen && is_ordered(by, other, false),
        .places = {replay_place(all, other->instance), replay_place(all, by->instance)},
        .place_count = 2};
    if (!findings_wants(all->findings, &draft))
        return true;
    char who[3 * PLACE_TEXT_BYTES], advice[256], span[BYTES_TEXT_BYTES];
    motion_verbs(by, other, writes, other_writes, who, sizeof who);
    motion_advise(by, other, draft.relaxed_only, advice, sizeof advice);
    return findings_add(
        all->findings, &draft, "rank %d's %s%s, %s: %s, and nothing orders the two; %s", at->rank,
        at->packets ? "packets in " : "", plan_buffer_word(at->buffer),
        replay_bytes_text(all, at->buffer, at->packets, by->at, by->at + by->bytes, span), who,
        advice);
}

/* A flag distinguishes packets from earlier ones, but not from later or concurrent ones. */
static bool is_newer_order(const motion *by, const cell *old, bool writes)
{
    if (!writes)
        return old->generation <= by->generation;
    if (old->writer.chain == NOBODY ||
        (old->writer.instance == by->instance && old->writer.position == by->position))
        return true;
    return old->generation < by->generation && is_ordered(by, &old->writer, false);
}

static bool note_reader(motion *by, cell *of)
{
    touch new = {by->chain, by->time, by->instance, by->part, by->position};
    size_t kept = 0;
    for (size_t i = 0; i < of->readers.count; i++) {
        const touch *old = &of->readers.data[i];
        bool implied =
            old->chain == by->chain && (old->time < by->time || old->instance == by->instance);
        if (!implied)
            of->readers.data[kept++] = *old;
    }
    of->readers.count = kept;
    of->read = true;
    return cells_add_reader(&by->all->cells, of, new);
}

static bool report_nothing_read(motion *by, const buffer_view *from)
{
    replay *all = by->all;
    finding_draft draft = {.rule = BANYAN_CHECK_UNINITIALISED,
                           .places = {replay_place(all, by->instance)},
                           .place_count = 1};
    char place[PLACE_TEXT_BYTES], span[BYTES_TEXT_BYTES];
    return findings_add(
        all->findings, &draft, "%s reads %s of rank %d's %s, which has not been written",
        replay_place_text(all, by->instance, place),
        replay_bytes_text(all, from->buffer, from->packets, by->at, by->at + by->bytes, span),
        from->rank, plan_buffer_word(from->buffer));
}

/* Record packets that have arrived: merge their clocks and, after the last one, the end of their
 * part. */
static bool motion_acquire_packets(motion *by, const cell *of)
{
    replay *all = by->all;
    walker *reader = by->by;
    if (!replay_note_packets(all, reader, of->writer.instance) ||
        !vector_clock_add(&all->store, &reader->pending, of->carried))
        return false;
    if (of->writer.part == NOBODY || of->pad)
        return true;
    size_t i = 0;
    while (i < reader->counts.count && reader->counts.data[i].part != of->writer.part)
        i++;
    if (i == reader->counts.count && !array_push(&reader->counts, (part_count){of->writer.part, 0}))
        return false;
    part_count *count = &reader->counts.data[i];
    const packet_part *whole = &all->parts.data[of->writer.part];
    count->bytes += by->bytes;
    if (count->bytes < whole->bytes)
        return true;
    *count = reader->counts.data[--reader->counts.count];
    return vector_clock_add_one(&all->store, &reader->pending,
                                (vector_clock_entry){whole->chain, whole->time, 0});
}

bool motion_read(motion *by, const buffer_view *from, value_ref *value)
{
    cell *of = &by->all->cells.list.data[from->cell];
    by->all->steps++;
    bool ordered =
        from->packets ? is_newer_order(by, of, false) : is_ordered(by, &of->writer, true);
    if (!ordered && !motion_collide(by, from, of, &of->writer, false, true, !from->packets))
        return false;
    if (from->packets && by->by && ordered && !motion_acquire_packets(by, of))
        return false;
    *value = of->lost ? (value_ref){VALUE_ANYTHING, 0} : of->value;
    /* Bytes behind the data of a clipped chunk may be moved, but must not become a result. */
    if (value->id == VALUE_NOTHING && by->by && by->all->whole) {
        *value = (value_ref){VALUE_ANYTHING, 0};
        if (!report_nothing_read(by, from))
            return false;
    }
    return note_reader(by, of);
}

static bool report_input_written(motion *by, const buffer_view *to)
{
    replay *all = by->all;
    finding_draft draft = {.rule = BANYAN_CHECK_INPUT_WRITTEN,
                           .places = {replay_place(all, by->instance)},
                           .place_count = 1};
    char place[PLACE_TEXT_BYTES], span[BYTES_TEXT_BYTES];
    return findings_add(all->findings, &draft,
                        "%s writes to %s of rank %d's input, but the plan is not in place: an "
                        "input must not change",
                        replay_place_text(all, by->instance, place),
                        replay_bytes_text(all, to->buffer, false, by->at, by->at + by->bytes, span),
                        to->rank);
}

/* Report races with the previous writer and its readers. */
static bool collide_with_all(motion *by, const buffer_view *to, cell *of, value_ref value,
                             bool *lost)
{
    bool packets = to->packets, was_lost = of->lost;
    of->lost = false;
    /* An operation that writes the same value twice may do so in any order. */
    bool same = of->writer.instance == by->instance && value_is(of->value, value);
    bool ordered =
        same || (packets ? is_newer_order(by, of, true) : is_ordered(by, &of->writer, true));
    if (!ordered && !motion_collide(by, to, of, &of->writer, true, true, !packets))
        return false;
    *lost = of->lost;
    for (size_t i = 0; i < of->readers.count; i++) {
        if (!is_ordered(by, &of->readers.data[i], false) &&
            !motion_collide(by, to, of, &of->readers.data[i], true, false, false))
            return false;
    }
    of->lost = was_lost;
    return true;
}

/* Record the bytes that were read for these packets. */
static bool leave_traces(const motion *by, cell *of)
{
    cell_list *cells = &by->all->cells;
    of->traces.count = 0;
    for (size_t i = 0; by->traces && i < by->traces->count; i++) {
        if (!cells_add_trace(cells, of, by->traces->data[i]))
            return false;
    }
    return by->part == NOBODY || cells_add_trace(cells, of, (space_trace){by->part, by->position});
}

bool motion_write(motion *by, const buffer_view *to, value_ref value, uint32_t origin)
{
    cell *of = &by->all->cells.list.data[to->cell];
    bool lost;
    by->all->steps++;
    if (by->by && to->buffer == PLAN_INPUT && !by->all->plan->in_place &&
        !report_input_written(by, to))
        return false;
    if (!collide_with_all(by, to, of, value, &lost))
        return false;
    if (to->packets && of->generation > by->generation)
        return true;
    of->writer = (touch){by->chain, by->time, by->instance, by->part, by->position};
    of->readers.count = 0;
    of->value = value;
    of->origin = origin;
    of->lost = lost;
    of->read = of->pad = false;
    if (to->packets) {
        vector_clock_drop(&by->all->store, of->carried);
        of->carried = vector_clock_keep(by->carried);
        of->generation = by->generation;
        if (!leave_traces(by, of))
            return false;
    }
    return true;
}
