#include "cuda/execute/fuse.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/execute/kernel.h"
#include "cuda/execute/parts.h"

/* Most parts of one step. */
#define TOGETHER_MOST 64

struct cuda_fuser {
    const engine_program *from;
    fused_program *to;
    const engine_step *steps; /* of the current block */
    engine_step *made;
    uint32_t step_count;
    uint32_t iterations; /* of the current loop */
    uint64_t word_count;
};

static bool has_operands(const engine_step *step)
{
    return (step->kind >= STEP_COPY && step->kind <= STEP_POST_FORWARD) ||
           step->kind == ENGINE_MULTICAST;
}

static uint32_t operand_of(const struct cuda_fuser *fuser, const engine_step *step,
                           uint32_t operand)
{
    return fuser->from->operands[step->operands + operand];
}

/* True if a part must wait for earlier ones. Parts of an operation are consecutive and have its
 * number. Threads divide the bytes of each part in a different way, so another thread may write
 * the bytes that a later part reads. */
static bool part_has_barrier(const struct cuda_fuser *fuser, uint32_t at)
{
    const engine_step *later = &fuser->steps[at];
    for (uint32_t i = at; i-- > 0 && fuser->steps[i].number == later->number;) {
        if (!part_moves_bytes(&fuser->steps[i]))
            break;
        if (parts_overlap(fuser->from, later, &fuser->steps[i], fuser->iterations))
            return true;
    }
    return false;
}

static void mark_parts(struct cuda_fuser *fuser)
{
    for (uint32_t i = 0; i < fuser->step_count; i++) {
        if (fuser->steps[i].kind == STEP_LOOP)
            fuser->iterations = fuser->steps[i].iterations;
        if (part_moves_bytes(&fuser->steps[i]) && part_has_barrier(fuser, i))
            fuser->made[i].relaxed = KERNEL_BARRIER_FIRST;
    }
}

/* True for another part of the operation that need not wait for those before it. Consecutive
 * unpack operations are fused as well: without a barrier between them, they have no order. */
static bool is_next_part(const struct cuda_fuser *fuser, const engine_step *first, uint32_t at)
{
    const engine_step *next = &fuser->steps[at];
    return at < fuser->step_count && next->kind == first->kind &&
           (next->number == first->number || first->kind == STEP_UNPACK) && next->op == first->op &&
           next->new_flags == first->new_flags && next->in_loop == first->in_loop &&
           !(fuser->made[at].relaxed & KERNEL_BARRIER_FIRST);
}

/* Count the steps from `at` on that read one source. */
static uint32_t count_of_one_source(const struct cuda_fuser *fuser, uint32_t at)
{
    const engine_step *first = &fuser->steps[at];
    uint32_t destinations = first->destination_count, count = 1;
    if (!part_moves_bytes(first) || first->source_count != 1 || first->kind == STEP_UNPACK)
        return 1;
    for (; is_next_part(fuser, first, at + count); count++) {
        const engine_step *next = first + count;
        destinations += next->destination_count;
        if (next->source_count != 1 || destinations > TOGETHER_MOST ||
            !parts_share(fuser->from, first, 0, next, 0, fuser->iterations))
            break;
    }
    return count;
}

static bool has_shape_of(const struct cuda_fuser *fuser, const engine_step *a, const engine_step *b)
{
    bool same = a->source_count == b->source_count && a->destination_count == b->destination_count;
    for (uint32_t i = 0; same && i < (uint32_t)a->source_count + a->destination_count; i++)
        same = (operand_of(fuser, a, i) & ENGINE_PACKETS) ==
               (operand_of(fuser, b, i) & ENGINE_PACKETS);
    return same;
}

/* Count the steps that differ only in places. */
static uint32_t count_of_one_shape(const struct cuda_fuser *fuser, uint32_t at)
{
    const engine_step *first = &fuser->steps[at];
    uint32_t count = 1;
    while (part_moves_bytes(first) && count < TOGETHER_MOST &&
           is_next_part(fuser, first, at + count) && has_shape_of(fuser, first, first + count) &&
           (first->in_loop || first[count].piece_count == first->piece_count))
        count++;
    return count;
}

/* A step made of `count` steps: of all their pieces in turn, or of one step's pieces with all the
 * destinations. */
struct parts {
    const engine_step *first;
    uint32_t count;
    bool one_source;
};

static void write_word(struct cuda_fuser *fuser, uint64_t word)
{
    fuser->to->words[fuser->word_count++] = word;
}

static void write_places(struct cuda_fuser *fuser, const engine_step *step, const uint64_t *piece,
                         uint32_t first)
{
    for (uint32_t i = first; i < (uint32_t)step->source_count + step->destination_count; i++)
        write_word(fuser, KERNEL_PLACE(operand_of(fuser, step, i), piece[1 + i]));
}

/* The pieces of these steps are equal except for places. */
static void write_one_source(struct cuda_fuser *fuser, const struct parts *of, uint32_t iteration)
{
    const uint64_t *at[TOGETHER_MOST], *end, *unused;
    part_find_pieces(fuser->from, of->first, iteration, &at[0], &end);
    for (uint32_t k = 1; k < of->count; k++)
        part_find_pieces(fuser->from, &of->first[k], iteration, &at[k], &unused);
    while (at[0] < end) {
        write_word(fuser, at[0][0]);
        for (uint32_t k = 0; k < of->count; k++) {
            write_places(fuser, &of->first[k], at[k], k > 0);
            at[k] += part_stride(&of->first[k]);
        }
    }
}

static void write_in_turn(struct cuda_fuser *fuser, const struct parts *of, uint32_t iteration)
{
    for (uint32_t k = 0; k < of->count; k++) {
        const uint64_t *at, *end;
        part_find_pieces(fuser->from, &of->first[k], iteration, &at, &end);
        for (; at < end; at += part_stride(&of->first[k])) {
            write_word(fuser, at[0]);
            write_places(fuser, &of->first[k], at, 0);
        }
    }
}

static void write_iteration(struct cuda_fuser *fuser, const struct parts *of, uint32_t iteration)
{
    (of->one_source ? write_one_source : write_in_turn)(fuser, of, iteration);
}

static uint32_t count_units(const struct cuda_fuser *fuser, const engine_step *made)
{
    uint64_t units = 0;
    for (uint64_t at = made->words; at < fuser->word_count; at += part_stride(made))
        units += ((fuser->to->words[at] & ~ENGINE_PAD) + 7) / 8;
    return units < UINT32_MAX ? (uint32_t)units : UINT32_MAX;
}

static void execute_fuse_write_parts(struct cuda_fuser *fuser, const struct parts *of,
                                     engine_step *made)
{
    for (uint32_t k = 1; of->one_source && k < of->count; k++)
        made->destination_count += of->first[k].destination_count;
    made->words = fuser->word_count;
    if (!made->in_loop) {
        write_iteration(fuser, of, 0);
        made->piece_count = (fuser->word_count - made->words) / part_stride(made);
        made->barrier = of->one_source ? 0 : (uint32_t)of->first->piece_count;
        KERNEL_STEP_UNITS(made) = count_units(fuser, made);
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

static uint32_t execute_fuse_write_step(struct cuda_fuser *fuser, uint32_t at)
{
    const engine_step *step = &fuser->steps[at];
    engine_step *made = &fuser->made[at];
    struct parts of = {.first = step, .count = count_of_one_source(fuser, at), .one_source = true};
    if (of.count == 1)
        of = (struct parts){.first = step, .count = count_of_one_shape(fuser, at)};
    execute_fuse_write_parts(fuser, &of, made);
    for (uint32_t i = 1; i < of.count; i++)
        made[i] = (engine_step){.kind = KERNEL_PASS, .number = step->number, .jump = at + i + 1};
    return at + of.count;
}

static void write_block(struct cuda_fuser *fuser, uint32_t index)
{
    const engine_block *block = &fuser->from->blocks[index];
    engine_block *to = &fuser->to->blocks[index];
    fuser->steps = fuser->from->steps + block->first_step;
    fuser->made = fuser->to->steps + block->first_step;
    fuser->step_count = block->step_count;
    to->first_operand = to->operand_count = 0;
    to->first_word = fuser->word_count;
    mark_parts(fuser);
    for (uint32_t at = 0, next; at < block->step_count; at = next) {
        const engine_step *step = &fuser->steps[at];
        if (step->kind == STEP_LOOP)
            fuser->iterations = step->iterations;
        next = has_operands(step) ? execute_fuse_write_step(fuser, at) : at + 1;
        if (step->kind != STEP_LOOP && step->kind != STEP_LOOP_END)
            fuser->made[at].jump = next;
    }
    to->word_count = fuser->word_count - to->first_word;
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
    fused->words = malloc((from->word_count + 1) * sizeof *fused->words);
    if (!fused->blocks || !fused->steps || !fused->words) {
        fuse_free(fused);
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for a program");
    }
    struct cuda_fuser fuser = {.from = from, .to = fused};
    for (uint32_t i = 0; i < from->block_count; i++)
        write_block(&fuser, i);
    fused->program.blocks = fused->blocks;
    fused->program.steps = fused->steps;
    fused->program.operands = NULL;
    fused->program.operand_count = 0;
    fused->program.words = fused->words;
    fused->program.word_count = fuser.word_count;
    return BANYAN_OK;
}

void fuse_free(fused_program *fused)
{
    free(fused->blocks);
    free(fused->steps);
    free(fused->words);
}
