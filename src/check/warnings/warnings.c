#include "check/warnings/warnings.h"

#include <stdlib.h>
#include <string.h>

#define ULL(number) ((unsigned long long)(number))

/* A link that carries this many times the bytes of another is reported. */
#define UNEVEN_TIMES 2

static banyan_status warn_of_cell(replay *all, int rank, const space_edge *at, uint64_t end,
                                  space_kind kind)
{
    static const char *const words[SPACE_KINDS] = {"input", "output", "scratch", "packets"};
    const cell *of = &all->cells.list.data[at->cell];
    if (of->writer.chain == NOBODY || of->read || of->pad)
        return BANYAN_OK;
    const instance *by = &all->instances.data[of->writer.instance];
    if (by->block == NOBODY || by->rank == rank)
        return BANYAN_OK;
    finding_draft draft = {.rule = BANYAN_CHECK_UNREAD,
                           .places = {replay_place(all, of->writer.instance)},
                           .place_count = 1};
    char place[PLACE_TEXT_BYTES], bytes[BYTES_TEXT_BYTES];
    plan_buffer buffer = kind == SPACE_OUTPUT ? PLAN_OUTPUT : PLAN_SCRATCH;
    bool added =
        findings_add(all->findings, &draft, "%s sends %s of rank %d's %s, which nobody reads",
                     replay_place_text(all, of->writer.instance, place),
                     replay_bytes_text(all, buffer, kind == SPACE_PACKETS, at->begin, end, bytes),
                     rank, words[kind]);
    return added ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

banyan_status warn_of_replay(replay *all)
{
    if (all->stuck)
        return BANYAN_OK;
    if (!replay_warn_of_drifts(all))
        return BANYAN_ERR_NO_MEMORY;
    for (int r = 0; r < all->plan->rank_count; r++) {
        for (int kind = SPACE_OUTPUT; kind < SPACE_KINDS; kind++) {
            const space *in = &all->ranks[r].spaces[kind][0];
            bool output = kind == SPACE_OUTPUT && all->plan->collective == BANYAN_REDUCE;
            for (size_t i = 0; i + 1 < in->edges.count && !output; i++)
                RETURN_IF_FAILED(warn_of_cell(all, r, &in->edges.data[i],
                                              in->edges.data[i + 1].begin, (space_kind)kind));
        }
    }
    return BANYAN_OK;
}

/* Scratch that no rank uses. */
typedef struct unused_scratch {
    uint64_t chunks, first;
    size_t ranks;
    finding_draft draft;
} unused_scratch;

static void count_unused(const banyan_plan *plan, int r, const bool *used, unused_scratch *all)
{
    uint64_t before = all->chunks;
    for (uint64_t i = 0; i < plan->ranks[r].chunks[PLAN_SCRATCH]; i++) {
        if (!used[i] && all->chunks++ == 0)
            all->first = i;
    }
    if (all->chunks == before)
        return;
    all->ranks++;
    if (all->draft.place_count < PLACES_MOST)
        all->draft.places[all->draft.place_count++] = (banyan_check_place){
            .rank = r, .thread_block = -1, .operation = -1, .loop_operation = -1};
}

static banyan_status report_unused(const unused_scratch *all, findings *found)
{
    if (all->chunks == 0)
        return BANYAN_OK;
    bool added = findings_add(
        found, &all->draft,
        "no operation uses %llu chunk%s of scratch of %zu rank%s; the first is rank %d's chunk "
        "%llu",
        ULL(all->chunks), all->chunks == 1 ? "" : "s", all->ranks, all->ranks == 1 ? "" : "s",
        all->draft.places[0].rank, ULL(all->first));
    return added ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static void mark_used(const plan_cursor *at, const plan_operand *operand, bool **used)
{
    const int *ranks;
    int room;
    if (plan_operand_where(at->plan, at->rank, at->block, at->op, operand).buffer != PLAN_SCRATCH)
        return;
    int count = plan_operand_ranks(at->plan, at->rank, at->block, at->op, operand, &ranks, &room);
    for (int r = 0; r < count; r++)
        memset(used[ranks[r]] + operand->index, true, operand->size);
}

banyan_status warn_of_unused(const banyan_plan *plan, findings *found)
{
    arena memory = {0};
    unused_scratch all = {.draft.rule = BANYAN_CHECK_UNUSED};
    size_t ranks = (size_t)plan->rank_count;
    bool **used = arena_take(&memory, ranks * sizeof *used);
    banyan_status status = used ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    for (size_t r = 0; r < ranks && status == BANYAN_OK; r++) {
        used[r] = arena_zeroed(&memory, plan->ranks[r].chunks[PLAN_SCRATCH], 1);
        status = used[r] ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    }
    for (plan_cursor at = {.plan = plan}; status == BANYAN_OK && plan_cursor_next(&at);) {
        for (uint32_t i = 0; i < plan_operand_count(at.op); i++)
            mark_used(&at, plan_operand_at(at.op, i), used);
    }
    for (int r = 0; r < plan->rank_count && status == BANYAN_OK; r++)
        count_unused(plan, r, used[r], &all);
    if (status == BANYAN_OK)
        status = report_unused(&all, found);
    arena_free(&memory);
    return status;
}

banyan_status warn_of_uneven(const banyan_plan *plan, uint64_t message_bytes, findings *all)
{
    banyan_plan_stats stats;
    banyan_status status = banyan_plan_measure(plan, message_bytes, &stats);
    if (status != BANYAN_OK)
        return status;
    const banyan_plan_link *most = stats.links, *least = stats.links;
    for (size_t i = 0; i < stats.link_count; i++) {
        most = stats.links[i].bytes > most->bytes ? &stats.links[i] : most;
        least = stats.links[i].bytes < least->bytes ? &stats.links[i] : least;
    }
    bool added = true;
    if (stats.link_count > 0 && most->bytes / UNEVEN_TIMES >= least->bytes) {
        finding_draft draft = {.rule = BANYAN_CHECK_UNEVEN,
                               .places = {{.rank = most->source,
                                           .thread_block = -1,
                                           .operation = -1,
                                           .loop_operation = -1}},
                               .place_count = 1};
        added = findings_add(all, &draft,
                             "rank %d sends %llu bytes to rank %d, but rank %d only %llu to rank "
                             "%d: links are used unevenly",
                             most->source, ULL(most->bytes), most->destination, least->source,
                             ULL(least->bytes), least->destination);
    }
    free(stats.links);
    return added ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}
