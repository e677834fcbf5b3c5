/* Explain a deadlock: find which thread blocks wait for each other. */
#include <stdio.h>
#include <string.h>

#include "check/replay/motion.h"

/* The object that a thread block waits for. */
typedef struct want {
    const counter *counter;
    const meeting *meeting;
    char text[PLACE_TEXT_BYTES];
} want;

static bool deadlock_is_done(const walker *by)
{
    return by->at >= by->block->op_count;
}

static void find_want(replay *all, const walker *by, want *made)
{
    const plan_op *loop, *op = walker_op(by, &loop);
    *made = (want){.counter = NULL};
    if (op->kind == PLAN_BARRIER) {
        uint32_t key[2] = {(uint32_t)by->rank, op->barrier};
        uint64_t place = 0;
        map_get(&all->meetings, key, sizeof key, &place);
        made->meeting = &all->meeting_list.data[place];
        snprintf(made->text, sizeof made->text, "barrier %u, where %u of %u have arrived",
                 op->barrier, made->meeting->arrived, made->meeting->members);
    } else if (op->kind == PLAN_SEM_ACQUIRE) {
        made->counter = replay_taken(all, by->rank, by->block, op, by->taken);
        snprintf(made->text, sizeof made->text, "a release of semaphore %u",
                 op->semaphores[by->taken]);
    } else if (op->kind == PLAN_WAIT || op->kind == PLAN_RELAXED_WAIT) {
        uint32_t channel = plan_channel_of(by->block, op, op->channels[by->taken]);
        made->counter = replay_taken(all, by->rank, by->block, op, by->taken);
        snprintf(made->text, sizeof made->text, "a signal of rank %d on %s channel %u",
                 all->plan->ranks[by->rank].peers[op->channel_type][channel],
                 plan_channel_name(op->channel_type), channel);
    } else {
        snprintf(made->text, sizeof made->text, "packets");
    }
}

/* ---- blocks that could help ---- */

static bool gives_to(replay *all, const walker *by, const plan_op *ops, uint32_t count,
                     const counter *to)
{
    for (uint32_t i = 0; i < count; i++) {
        const plan_op *op = &ops[i];
        bool semaphore = op->kind == PLAN_SEM_RELEASE;
        bool gives = semaphore || op->kind == PLAN_SIGNAL || op->kind == PLAN_RELAXED_SIGNAL ||
                     op->kind == PLAN_PUT_WITH_SIGNAL || op->kind == PLAN_PUT_WITH_SIGNAL_AND_FLUSH;
        uint32_t ends = semaphore ? op->semaphore_count : op->channel_count;
        for (uint32_t k = 0; gives && k < ends; k++) {
            if (replay_given(all, by->rank, by->block, op, k) == to)
                return true;
        }
        if (gives_to(all, by, op->ops, op->op_count, to))
            return true;
    }
    return false;
}

static bool meets_at(const plan_op *ops, uint32_t count, uint32_t barrier)
{
    for (uint32_t i = 0; i < count; i++) {
        if ((ops[i].kind == PLAN_BARRIER && ops[i].barrier == barrier) ||
            meets_at(ops[i].ops, ops[i].op_count, barrier))
            return true;
    }
    return false;
}

static bool deadlock_holds(const plan_operand *operand, plan_where where, int rank,
                           const plan_operand *wanted)
{
    return where.buffer == PLAN_SCRATCH && where.rank == rank &&
           operand->index < wanted->index + wanted->size &&
           wanted->index < operand->index + operand->size;
}

static bool packs_for(const replay *all, const walker *by, const plan_op *ops, uint32_t count,
                      int rank, const plan_operand *wanted)
{
    for (uint32_t i = 0; i < count; i++) {
        const plan_op *op = &ops[i];
        for (uint32_t k = 0; k < op->destination_count; k++) {
            if (!plan_destination_is_packets(op, k))
                continue;
            const plan_operand *to = &op->destinations[k];
            plan_where where = plan_operand_where(all->plan, by->rank, by->block, op, to);
            if (to->place == PLAN_GROUP)
                where.rank = rank;
            if (deadlock_holds(to, where, rank, wanted))
                return true;
        }
        if (packs_for(all, by, op->ops, op->op_count, rank, wanted))
            return true;
    }
    return false;
}

static walker *walker_of(replay *all, uint32_t chain)
{
    const chain_owner *of = &all->chains.list[chain];
    return &all->ranks[of->rank].walkers[of->index];
}

/* True if `other`, by continuing, could give what `by` waits for. */
static bool could_help(replay *all, const walker *by, const want *wanted, const walker *other)
{
    const plan_op *rest = &other->block->ops[other->at];
    uint32_t count = other->block->op_count - other->at;
    if (other == by || deadlock_is_done(other))
        return false;
    if (wanted->counter)
        return gives_to(all, other, rest, count, wanted->counter);
    if (wanted->meeting)
        return !other->arrived && meets_at(rest, count, wanted->meeting->barrier);
    const plan_op *loop, *op = walker_op(by, &loop);
    for (uint32_t i = 0; i < op->source_count; i++) {
        if (plan_source_is_packets(op, i) &&
            packs_for(all, other, rest, count, by->rank, &op->sources[i]))
            return true;
    }
    return false;
}

static walker *find_helper(replay *all, const walker *by, const want *wanted)
{
    const counter *at = wanted->counter;
    for (size_t i = 0; at && i < at->givers.count; i++) {
        walker *other = walker_of(all, at->givers.data[i].chain);
        if (could_help(all, by, wanted, other))
            return other;
    }
    if (at)
        return NULL;
    bool own_rank = wanted->meeting != NULL;
    walker *first = own_rank ? all->ranks[by->rank].walkers : all->walkers;
    size_t count = own_rank ? all->plan->ranks[by->rank].block_count : all->walker_count;
    for (size_t i = 0; i < count; i++) {
        if (could_help(all, by, wanted, &first[i]))
            return &first[i];
    }
    return NULL;
}

/* ---- reporting ---- */

typedef struct chase {
    walker *path[PLACES_MOST];
    size_t count, first; /* the cycle begins at `first` */
    bool circle;
} chase;

/* Follow the waits from one block to the next until a block repeats or none is left. False for a
 * chain that joins one already reported. */
static bool deadlock_follow(replay *all, walker *from, chase *made)
{
    *made = (chase){0};
    for (walker *at = from; at && made->count < PLACES_MOST;) {
        for (size_t i = 0; i < made->count; i++) {
            if (made->path[i] == at) {
                made->first = i;
                made->circle = true;
                return true;
            }
        }
        if (at->followed)
            return false;
        at->followed = true;
        made->path[made->count++] = at;
        want wanted;
        find_want(all, at, &wanted);
        at = find_helper(all, at, &wanted);
    }
    made->first = made->count - 1;
    return true;
}

static void tell_wait(replay *all, walker *by, char *text, size_t bytes)
{
    want wanted;
    char place[PLACE_TEXT_BYTES];
    find_want(all, by, &wanted);
    if (!walker_begin(all, by))
        return;
    snprintf(text, bytes, "%s waits in run %u for %s", replay_place_text(all, by->instance, place),
             all->ranks[by->rank].run, wanted.text);
}

static bool tell_chase(replay *all, const chase *what)
{
    char text[2048] = "";
    const char *how = all->how ? all->how : "";
    size_t used = 0;
    finding_draft draft = {.rule = BANYAN_CHECK_DEADLOCK};
    for (size_t i = what->first; i < what->count; i++) {
        char one[2 * PLACE_TEXT_BYTES + 64] = "";
        tell_wait(all, what->path[i], one, sizeof one);
        draft.places[draft.place_count++] = walker_place(all, what->path[i]);
        int more =
            snprintf(text + used, sizeof text - used, "%s%s", i > what->first ? "; " : "", one);
        used += more > 0 && (size_t)more < sizeof text - used ? (size_t)more : 0;
    }
    if (what->circle)
        return findings_add(all->findings, &draft,
                            "these wait for each other, each for the next and the last for the "
                            "first: %s%s",
                            text, how);
    return findings_add(all->findings, &draft, "%s, and no thread block is left to give it%s", text,
                        how);
}

/* Rotate the cycle so that its smallest member comes first, from wherever it was found. */
static void deadlock_turn(chase *what)
{
    size_t least = what->first, count = what->count - what->first;
    walker *kept[PLACES_MOST];
    for (size_t i = what->first; i < what->count; i++)
        least = what->path[i] < what->path[least] ? i : least;
    for (size_t i = 0; i < count; i++)
        kept[i] = what->path[what->first + (least - what->first + i) % count];
    memcpy(&what->path[what->first], kept, count * sizeof *kept);
}

bool replay_explain_stuck(replay *all)
{
    for (size_t i = 0; i < all->walker_count; i++) {
        walker *by = &all->walkers[i];
        chase what;
        if (deadlock_is_done(by) || !all->ranks[by->rank].running ||
            !deadlock_follow(all, by, &what))
            continue;
        deadlock_turn(&what);
        if (!tell_chase(all, &what))
            return false;
    }
    return true;
}
