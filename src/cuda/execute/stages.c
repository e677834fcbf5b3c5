#include "cuda/execute/stages.h"

#include <stdlib.h>

#include "cuda/execute/kernel.h"
#include "cuda/execute/parts.h"

/* The number of waits on an end so far, and the number of signals through its mirror in the stages
 * before `next`. Every wait has its signal if there are at least as many signals. */
struct wait_count {
    uint32_t waits, signals, next;
};

struct stage_maker {
    const engine_program *program;
    const engine_plan *plan;
    const engine_step *steps; /* of the first thread block, which represents all */
    uint32_t step_count;
    stages *to;
    struct wait_count *wait_count; /* indexed by end */
};

static bool is_post(const engine_step *step)
{
    return step->kind == STEP_POST_COPY || step->kind == STEP_POST_SIGNAL;
}

static bool stages_is_nothing(const engine_step *step)
{
    return step->kind == STEP_NOP || step->kind == KERNEL_PASS;
}

static const engine_step *step_of(const struct stage_maker *maker, uint32_t block, uint32_t at)
{
    return &maker->program->steps[maker->program->blocks[block].first_step + at];
}

static uint32_t stages_end_of(const struct stage_maker *maker, const engine_step *step, uint32_t i)
{
    return maker->program->ends[step->ends + i];
}

/* True if the step waits for puts, or for signals after puts. */
static bool waits_for_copies(const struct stage_maker *maker, const engine_step *step)
{
    bool waits = step->kind == STEP_FLUSH;
    for (uint32_t i = 0; i < step->end_count && step->kind == STEP_WAIT; i++)
        waits |= maker->plan->ends[stages_end_of(maker, step, i)].is_port != 0;
    return waits;
}

/* False for operations that synchronize thread blocks: these would have to stay in one kernel. */
static bool is_possible(const engine_step *step)
{
    switch (step->kind) {
    case STEP_POST_PACK:
    case STEP_POST_FORWARD:
    case STEP_ACQUIRE:
    case STEP_RELEASE:
    case STEP_BARRIER:
    case STEP_LOOP:
    case STEP_LOOP_END:
        return false;
    default:
        return true;
    }
}

static bool are_possible(const engine_program *program, const engine_plan *plan)
{
    bool posts = false;
    if (!plan->lock_step || plan->scratch_half != 0 || program->block_count == 0)
        return false;
    for (uint32_t i = 0; i < program->step_count; i++) {
        if (!is_possible(&program->steps[i]))
            return false;
        posts |= program->steps[i].kind == STEP_POST_COPY;
    }
    for (uint32_t b = 1; b < program->block_count; b++) {
        if (program->blocks[b].step_count != program->blocks[0].step_count)
            return false;
    }
    return posts;
}

static stage *add_stage(struct stage_maker *maker, bool is_kernel)
{
    stage *added = &maker->to->list[maker->to->count++];
    *added = (stage){.is_kernel = is_kernel,
                     .after = STAGE_NONE,
                     .first_copy = maker->to->copy_count,
                     .first_signal = maker->to->signal_count};
    return added;
}

static uint32_t last_copies(const struct stage_maker *maker)
{
    uint32_t i = maker->to->count;
    while (i > 0 && maker->to->list[i - 1].is_kernel)
        i--;
    return i > 0 ? i - 1 : STAGE_NONE;
}

static uint32_t count_signals(const struct stage_maker *maker, const stage *s, uint32_t end)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->signal_count && !s->is_kernel; i++)
        count += maker->to->signals[s->first_signal + i] == end;
    return count;
}

/* Return the stage in which this rank gives the signal that corresponds to its next wait on `end`.
 * If that is not known, return the last stage of copies so far. */
static uint32_t stage_of_wait(struct stage_maker *maker, uint32_t end)
{
    struct wait_count *of = &maker->wait_count[end];
    uint32_t mirror = maker->plan->ends[end].mirror;
    of->waits++;
    while (mirror != ENGINE_NO_MIRROR && of->signals < of->waits && of->next < maker->to->count)
        of->signals += count_signals(maker, &maker->to->list[of->next++], mirror);
    return of->signals >= of->waits ? of->next - 1 : last_copies(maker);
}

static uint32_t stages_later(uint32_t a, uint32_t b)
{
    return a == STAGE_NONE || (b != STAGE_NONE && b > a) ? b : a;
}

static uint32_t after_wait(struct stage_maker *maker, const engine_step *step, uint32_t after)
{
    for (uint32_t i = 0; i < step->end_count && step->kind == STEP_WAIT; i++) {
        uint32_t end = stages_end_of(maker, step, i);
        if (maker->plan->ends[end].is_port)
            after = stages_later(after, stage_of_wait(maker, end));
    }
    return after;
}

/* Return the latest stage that must precede the step at this position in any thread block: at one
 * position, thread blocks may wait for signals of different positions. */
static uint32_t after_step(struct stage_maker *maker, uint32_t at, uint32_t after)
{
    if (maker->steps[at].kind == STEP_FLUSH)
        return stages_later(after, last_copies(maker));
    for (uint32_t b = 0; b < maker->program->block_count; b++)
        after = after_wait(maker, step_of(maker, b, at), after);
    return after;
}

/* Add a kernel that ends before the next put, or before a wait for copies that follows other work:
 * that work then runs before the copies have arrived. Returns the position of its end. */
static uint32_t add_kernel(struct stage_maker *maker, uint32_t at)
{
    stage *s = add_stage(maker, true);
    uint32_t after = STAGE_NONE;
    bool works = false;
    s->first_step = at;
    for (; at < maker->step_count && !is_post(&maker->steps[at]); at++) {
        const engine_step *step = &maker->steps[at];
        bool waits = waits_for_copies(maker, step);
        if (waits && works)
            break;
        if (waits)
            after = after_step(maker, at, after);
        works |= !waits && !stages_is_nothing(step);
    }
    s->end_step = at;
    for (uint32_t i = 0; i + 1 < maker->to->count; i++) {
        if (maker->to->list[i].is_kernel)
            after = stages_later(after, maker->to->list[i].after);
    }
    s->after = after;
    return at;
}

static int compare_copies(const void *a, const void *b)
{
    const stage_copy *one = a, *other = b;
    if (one->from_base != other->from_base)
        return one->from_base < other->from_base ? -1 : 1;
    return one->from < other->from ? -1 : one->from > other->from;
}

static bool stages_continues(const stage_copy *before, const stage_copy *next)
{
    return before->from_base == next->from_base && before->to_base == next->to_base &&
           before->from + before->bytes == next->from && before->to + before->bytes == next->to;
}

/* Join the copies from `from` on that are adjacent to each other, or to those of the previous
 * stage. */
static void stages_join(stages *to, uint32_t first, uint32_t from)
{
    uint32_t kept = from;
    qsort(to->copies + from, to->copy_count - from, sizeof *to->copies, compare_copies);
    for (uint32_t i = from; i < to->copy_count; i++) {
        if (kept > first && stages_continues(&to->copies[kept - 1], &to->copies[i]))
            to->copies[kept - 1].bytes += to->copies[i].bytes;
        else
            to->copies[kept++] = to->copies[i];
    }
    to->copy_count = kept;
}

#define PITCH_MOST (UINT64_C(1) << 30) /* devices permit 2^31 - 1 */

/* True if the copy is the next row of the rows so far. After one row, it determines their
 * distance. */
static bool is_next_row(const stage_copy *rows, const stage_copy *next)
{
    uint64_t from = next->from - rows->from, to = next->to - rows->to;
    if (rows->from_base != next->from_base || rows->to_base != next->to_base ||
        rows->bytes != next->bytes || from < rows->bytes || to < rows->bytes)
        return false;
    return rows->rows == 1
               ? from <= PITCH_MOST && to <= PITCH_MOST
               : from == rows->rows * rows->from_pitch && to == rows->rows * rows->to_pitch;
}

/* Join copies at equal distances into rows. Such copies arise where the plan was loaded for longer
 * messages: its scratch then has gaps between chunks. */
static void join_rows(stages *to, uint32_t first)
{
    uint32_t kept = first;
    for (uint32_t i = first; i < to->copy_count; i++) {
        stage_copy *last = &to->copies[kept - 1], next = to->copies[i];
        if (kept == first || !is_next_row(last, &next)) {
            to->copies[kept++] = next;
            continue;
        }
        if (last->rows++ > 1)
            continue;
        last->from_pitch = next.from - last->from;
        last->to_pitch = next.to - last->to;
    }
    to->copy_count = kept;
}

static void stages_add_pieces(struct stage_maker *maker, const engine_step *step)
{
    const uint64_t *at, *end;
    part_find_pieces(maker->program, step, 0, &at, &end);
    for (; at < end; at += part_stride(step)) {
        if (at[0] == 0)
            continue;
        maker->to->copies[maker->to->copy_count++] = (stage_copy){
            .from_base = KERNEL_PLACE_BASE(at[1]),
            .to_base = KERNEL_PLACE_BASE(at[2]),
            .from = at[1] & KERNEL_PLACE_OFFSET,
            .to = at[2] & KERNEL_PLACE_OFFSET,
            .bytes = at[0],
            .rows = 1,
        };
    }
}

/* Add all thread blocks' puts at this position in the plan. */
static void add_copies(struct stage_maker *maker, const stage *s, uint32_t at)
{
    uint32_t from = maker->to->copy_count;
    for (uint32_t b = 0; b < maker->program->block_count; b++)
        stages_add_pieces(maker, step_of(maker, b, at));
    stages_join(maker->to, s->first_copy, from);
}

static void stages_add_signals(struct stage_maker *maker, uint32_t at)
{
    for (uint32_t b = 0; b < maker->program->block_count; b++) {
        const engine_step *step = step_of(maker, b, at);
        for (uint32_t i = 0; i < step->end_count; i++) {
            maker->to->signals[maker->to->signal_count++] = stages_end_of(maker, step, i);
        }
    }
}

/* Add a stage of puts and their signals. It ends before a put that follows a signal, so that the
 * signal is given while that put is in progress. Returns the position of its end. */
static uint32_t add_posts(struct stage_maker *maker, uint32_t at)
{
    stage *s = add_stage(maker, false);
    s->first_step = at;
    for (; at < maker->step_count; at++) {
        const engine_step *step = &maker->steps[at];
        if (!is_post(step) && !stages_is_nothing(step))
            break;
        if (step->kind == STEP_POST_COPY && maker->to->signal_count > s->first_signal)
            break;
        if (step->kind == STEP_POST_COPY)
            add_copies(maker, s, at);
        else if (step->kind == STEP_POST_SIGNAL)
            stages_add_signals(maker, at);
    }
    join_rows(maker->to, s->first_copy);
    s->copy_count = maker->to->copy_count - s->first_copy;
    s->signal_count = maker->to->signal_count - s->first_signal;
    s->end_step = at;
    return at;
}

/* A run begins with a kernel, which signals the begin of the run, and ends with a kernel, which
 * counts the run. */
static void stages_add_all(struct stage_maker *maker)
{
    uint32_t at = add_kernel(maker, 0);
    while (at < maker->step_count)
        at = is_post(&maker->steps[at]) ? add_posts(maker, at) : add_kernel(maker, at);
    if (!maker->to->list[maker->to->count - 1].is_kernel)
        add_kernel(maker, at);
    maker->to->list[maker->to->count - 1].after = last_copies(maker);
    for (uint32_t i = 1; i < maker->to->count; i++) {
        stage *s = &maker->to->list[i];
        s[-1].is_signalled = s->is_kernel && !s[-1].is_kernel && s->after == i - 1;
        if (s[-1].is_signalled)
            s->first_step = s[-1].first_step;
    }
}

static uint64_t count_pieces(const engine_program *program)
{
    uint64_t pieces = 0;
    for (uint32_t i = 0; i < program->step_count; i++)
        pieces += program->steps[i].kind == STEP_POST_COPY ? program->steps[i].piece_count : 0;
    return pieces;
}

static banyan_status stages_take_room(struct stage_maker *maker)
{
    const engine_program *program = maker->program;
    stages *to = maker->to = calloc(1, sizeof *to);
    maker->wait_count = calloc((size_t)maker->plan->end_count + 1, sizeof *maker->wait_count);
    if (!to || !maker->wait_count)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for a program");
    to->list = calloc(2 * (size_t)maker->step_count + 2, sizeof *to->list);
    to->copies = calloc(count_pieces(program) + 1, sizeof *to->copies);
    to->signals = calloc((size_t)program->end_count + 1, sizeof *to->signals);
    if (!to->list || !to->copies || !to->signals)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for a program");
    return BANYAN_OK;
}

banyan_status stages_make(const engine_program *program, const engine_plan *plan, stages **made)
{
    *made = NULL;
    if (!are_possible(program, plan))
        return BANYAN_OK;
    struct stage_maker maker = {.program = program,
                                .plan = plan,
                                .steps = program->steps + program->blocks[0].first_step,
                                .step_count = program->blocks[0].step_count};
    banyan_status status = stages_take_room(&maker);
    if (status == BANYAN_OK) {
        stages_add_all(&maker);
        *made = maker.to;
    } else {
        stages_free(maker.to);
    }
    free(maker.wait_count);
    return status;
}

void stages_free(stages *old)
{
    if (!old)
        return;
    free(old->list);
    free(old->copies);
    free(old->signals);
    free(old);
}
