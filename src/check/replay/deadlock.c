/* Explain a deadlock: find which thread blocks wait for each other. */
#include <stdio.h>
#include <string.h>

#include "check/replay/motion.h"

typedef struct wait_path {
    walker *path[PLACES_MOST];
    size_t count, first; /* the cycle begins at `first` */
    bool circle;
} wait_path;

/* Follow the waits from one block to the next until a block repeats or none is left. False for a
 * chain that joins one already reported. */
static bool deadlock_follow(replay *all, walker *from, wait_path *made)
{
    *made = (wait_path){0};
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
        uint32_t helper = plan_stepper_helper(&all->stepper, at->pos);
        at = helper == PLAN_NONE ? NULL : &all->walkers[helper];
    }
    made->first = made->count - 1;
    return true;
}

static void deadlock_describe_wait(replay *all, walker *by, char *text, size_t bytes)
{
    char place[PLACE_TEXT_BYTES], what[PLAN_WANT_BYTES];
    const plan_op *op = plan_position_op(by->pos);
    if (!walker_begin(all, by))
        return;
    plan_stepper_describe(&all->stepper, by->pos, what);
    if (op->kind == PLAN_BARRIER) {
        uint32_t number = plan_stepper_barrier(&all->stepper, by->pos, op);
        const plan_barrier *at = &all->stepper.barriers.data[number];
        snprintf(what, sizeof what, "barrier %u, where %u of %u have arrived", at->number,
                 at->arrived, at->members);
    }
    snprintf(text, bytes, "%s waits in run %u for %s", replay_place_text(all, by->instance, place),
             all->ranks[by->pos->rank].run, what);
}

static bool report_wait_path(replay *all, const wait_path *what)
{
    char text[2048] = "";
    const char *how = all->how ? all->how : "";
    size_t used = 0;
    finding_draft draft = {.rule = BANYAN_CHECK_DEADLOCK};
    for (size_t i = what->first; i < what->count; i++) {
        char one[2 * PLACE_TEXT_BYTES + 64] = "";
        deadlock_describe_wait(all, what->path[i], one, sizeof one);
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
static void deadlock_turn(wait_path *what)
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
    for (size_t i = 0; i < all->stepper.block_count; i++) {
        walker *by = &all->walkers[i];
        wait_path what;
        if (plan_position_ended(by->pos) || !all->ranks[by->pos->rank].running ||
            !deadlock_follow(all, by, &what))
            continue;
        deadlock_turn(&what);
        if (!report_wait_path(all, &what))
            return false;
    }
    return true;
}
