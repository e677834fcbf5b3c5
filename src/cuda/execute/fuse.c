#include "cuda/execute/fuse.h"

#include "cuda/execute/kernel.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Destinations of one step: as many as parts of an operation have. */
#define TOGETHER_MOST 64

struct fuser {
    const engine_program *from;
    fused_program *to;
    const engine_step *steps; /* of the block at hand */
    uint32_t step_count;
    uint32_t iterations; /* of the loop at hand */
    uint32_t operand_count;
    uint64_t word_count;
};

/* ---- pieces of a step, over all iterations ---- */

static uint64_t stride_of(const engine_step *step)
{
    return 1 + (uint64_t)step->source_count + step->destination_count;
}

/* Words [begin, end) of the pieces of one iteration, or of all there are outside of a loop. */
static void find_pieces(const struct fuser *fuser, const engine_step *step, uint32_t iteration,
                        const uint64_t **begin, const uint64_t **end)
{
    const uint64_t *words = fuser->from->words, *first = words + step->words;
    *begin = step->in_loop ? words + first[iteration] : first;
    *end =
        step->in_loop ? words + first[iteration + 1] : first + step->piece_count * stride_of(step);
}

static uint32_t rounds_of(const struct fuser *fuser, const engine_step *step)
{
    return step->in_loop ? fuser->iterations : 1;
}

static uint32_t operand_of(const struct fuser *fuser, const engine_step *step, uint32_t operand)
{
    return fuser->from->operands[step->operands + operand];
}

/* Does an operand of one step lie where one of another does, piece by piece? */
static bool lies_as(const struct fuser *fuser, const engine_step *a, uint32_t of_a,
                    const engine_step *b, uint32_t of_b)
{
    if (operand_of(fuser, a, of_a) != operand_of(fuser, b, of_b) || a->in_loop != b->in_loop)
        return false;
    for (uint32_t i = 0; i < rounds_of(fuser, a); i++) {
        const uint64_t *at, *end, *other, *other_end;
        find_pieces(fuser, a, i, &at, &end);
        find_pieces(fuser, b, i, &other, &other_end);
        uint64_t stride = stride_of(a), other_stride = stride_of(b);
        for (; at < end && other < other_end; at += stride, other += other_stride) {
            if (at[0] != other[0] || at[1 + of_a] != other[1 + of_b])
                return false;
        }
        if (at != end || other != other_end)
            return false;
    }
    return true;
}

/* ---- what goes together ---- */

static bool has_one_source(const engine_step *step)
{
    return (step->kind == STEP_COPY || step->kind == STEP_PACK || step->kind == STEP_FORWARD) &&
           step->source_count == 1;
}

static bool overlap(const struct fuser *fuser, const engine_step *a, const engine_step *b)
{
    for (uint32_t i = 0; i < a->destination_count; i++) {
        for (uint32_t k = 0; k < b->destination_count; k++) {
            if (operand_of(fuser, a, 1 + i) == operand_of(fuser, b, 1 + k))
                return true;
        }
    }
    return false;
}

/* How many steps from `at` on are parts of one operation that read the same bytes. Parts that write
 * to one buffer stay apart: one may lie over another. */
static uint32_t count_together(const struct fuser *fuser, uint32_t at)
{
    const engine_step *first = &fuser->steps[at];
    uint32_t destinations = first->destination_count, count = 1;
    if (!has_one_source(first))
        return 1;
    for (; at + count < fuser->step_count; count++) {
        const engine_step *next = &fuser->steps[at + count];
        if (next->kind != first->kind || next->number != first->number ||
            next->new_flags != first->new_flags || !has_one_source(next) ||
            destinations + next->destination_count > TOGETHER_MOST ||
            !lies_as(fuser, first, 0, next, 0))
            return count;
        for (uint32_t i = 0; i < count; i++) {
            if (overlap(fuser, &fuser->steps[at + i], next))
                return count;
        }
        destinations += next->destination_count;
    }
    return count;
}

/* ---- writing ---- */

/* A step that is made: of one, and of the destinations of those behind it. */
struct parts {
    const engine_step *own;
    uint32_t more;
};

static void write_operands(struct fuser *fuser, const struct parts *of, engine_step *made)
{
    const engine_step *own = of->own;
    uint32_t *to = fuser->to->operands + fuser->operand_count;
    uint32_t count = 0, own_count = (uint32_t)own->source_count + own->destination_count;
    for (uint32_t i = 0; i < own_count; i++)
        to[count++] = operand_of(fuser, own, i);
    for (uint32_t k = 1; k <= of->more; k++) {
        for (uint32_t i = 0; i < own[k].destination_count; i++)
            to[count++] = operand_of(fuser, &own[k], 1 + i);
    }
    made->operands = fuser->operand_count;
    made->destination_count = (uint16_t)(count - own->source_count);
    fuser->operand_count += count;
}

/* Pieces of all steps involved are the same but for offsets. */
static void write_iteration(struct fuser *fuser, const struct parts *of, uint32_t iteration)
{
    const engine_step *own = of->own;
    uint64_t *to = fuser->to->words + fuser->word_count;
    const uint64_t *at, *end, *unused;
    const uint64_t *more[TOGETHER_MOST];
    find_pieces(fuser, own, iteration, &at, &end);
    for (uint32_t k = 1; k <= of->more; k++)
        find_pieces(fuser, &own[k], iteration, &more[k], &unused);
    for (; at < end; at += stride_of(own)) {
        memcpy(to, at, stride_of(own) * sizeof *to);
        to += stride_of(own);
        for (uint32_t k = 1; k <= of->more; k++) {
            memcpy(to, more[k] + 2, own[k].destination_count * sizeof *to);
            to += own[k].destination_count;
            more[k] += stride_of(&own[k]);
        }
    }
    fuser->word_count = (uint64_t)(to - fuser->to->words);
}

static void write_move(struct fuser *fuser, const struct parts *of, engine_step *made)
{
    write_operands(fuser, of, made);
    made->words = fuser->word_count;
    if (!made->in_loop) {
        write_iteration(fuser, of, 0);
        return;
    }
    uint64_t *table = fuser->to->words + fuser->word_count;
    fuser->word_count += fuser->iterations + UINT64_C(1);
    for (uint32_t i = 0; i < fuser->iterations; i++) {
        table[i] = fuser->word_count;
        write_iteration(fuser, of, i);
    }
    table[fuser->iterations] = fuser->word_count;
}

static bool moves_bytes(const engine_step *step)
{
    return step->kind >= STEP_COPY && step->kind <= STEP_POST_FORWARD;
}

static bool is_of_loop(const engine_step *step)
{
    return step->kind == STEP_LOOP || step->kind == STEP_LOOP_END;
}

static void write_block(struct fuser *fuser, uint32_t index)
{
    const engine_block *block = &fuser->from->blocks[index];
    engine_block *made = &fuser->to->blocks[index];
    engine_step *steps = fuser->to->steps + block->first_step;
    fuser->steps = fuser->from->steps + block->first_step;
    fuser->step_count = block->step_count;
    made->first_operand = fuser->operand_count;
    made->first_word = fuser->word_count;
    for (uint32_t at = 0, next; at < block->step_count; at = next) {
        const engine_step *step = &fuser->steps[at];
        next = at + 1;
        if (step->kind == STEP_LOOP)
            fuser->iterations = step->iterations;
        if (!is_of_loop(step))
            steps[at].jump = next;
        if (!moves_bytes(step))
            continue;
        uint32_t count = count_together(fuser, at);
        struct parts of = {.own = step, .more = count - 1};
        write_move(fuser, &of, &steps[at]);
        next = steps[at].jump = at + count;
        for (uint32_t i = at + 1; i < next; i++)
            steps[i].kind = KERNEL_PASS;
    }
    made->operand_count = fuser->operand_count - made->first_operand;
    made->word_count = fuser->word_count - made->first_word;
}

static void *copy_of(const void *array, uint64_t count, size_t bytes)
{
    void *copy = malloc((count + 1) * bytes);
    if (copy && count > 0)
        memcpy(copy, array, count * bytes);
    return copy;
}

banyan_status fuse_program(const engine_program *from, fused_program *fused)
{
    *fused = (fused_program){.program = *from};
    fused->blocks = copy_of(from->blocks, from->block_count, sizeof *from->blocks);
    fused->steps = copy_of(from->steps, from->step_count, sizeof *from->steps);
    fused->operands = copy_of(from->operands, from->operand_count, sizeof *from->operands);
    fused->words = copy_of(from->words, from->word_count, sizeof *from->words);
    if (!fused->blocks || !fused->steps || !fused->operands || !fused->words) {
        fuse_free(fused);
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for a program");
    }
    struct fuser fuser = {.from = from, .to = fused};
    for (uint32_t i = 0; i < from->block_count; i++)
        write_block(&fuser, i);
    fused->program.blocks = fused->blocks;
    fused->program.steps = fused->steps;
    fused->program.operands = fused->operands;
    fused->program.operand_count = fuser.operand_count;
    fused->program.words = fused->words;
    fused->program.word_count = fuser.word_count;
    return BANYAN_OK;
}

void fuse_free(fused_program *fused)
{
    free(fused->blocks);
    free(fused->steps);
    free(fused->operands);
    free(fused->words);
}
