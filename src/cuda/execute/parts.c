#include "cuda/execute/parts.h"

bool part_moves_bytes(const engine_step *step)
{
    return step->kind >= STEP_COPY && step->kind <= STEP_COMBINE;
}

uint64_t part_stride(const engine_step *step)
{
    return 1 + (uint64_t)step->source_count + step->destination_count;
}

void part_find_pieces(const engine_program *program, const engine_step *step, uint32_t iteration,
                      const uint64_t **begin, const uint64_t **end)
{
    const uint64_t *words = program->words, *first = words + step->words;
    *begin = step->in_loop ? words + first[iteration] : first;
    *end = step->in_loop ? words + first[iteration + 1]
                         : first + step->piece_count * part_stride(step);
}

/* The bytes of a step's operand, over all its pieces. */
typedef struct operand_extent {
    uint32_t base; /* without the bit for packets */
    uint64_t begin, end;
} operand_extent;

static operand_extent extent_of(const engine_program *program, const engine_step *step,
                                uint32_t operand, uint32_t iterations)
{
    uint32_t word = program->operands[step->operands + operand];
    operand_extent of = {.base = word & ~ENGINE_PACKETS, .begin = UINT64_MAX};
    for (uint32_t i = 0; i < (step->in_loop ? iterations : 1); i++) {
        const uint64_t *at, *end;
        part_find_pieces(program, step, i, &at, &end);
        for (; at < end; at += part_stride(step)) {
            uint64_t bytes = at[0] & ~ENGINE_PAD, offset = at[1 + operand];
            uint64_t room = word & ENGINE_PACKETS ? (bytes + 3) / 4 * 8 : bytes;
            of.begin = offset < of.begin ? offset : of.begin;
            of.end = offset + room > of.end ? offset + room : of.end;
        }
    }
    return of;
}

static bool writes_into(const engine_program *program, const engine_step *writer,
                        const engine_step *other, uint32_t iterations)
{
    uint32_t operands = (uint32_t)other->source_count + other->destination_count;
    for (uint32_t i = 0; i < writer->destination_count; i++) {
        operand_extent to = extent_of(program, writer, writer->source_count + i, iterations);
        for (uint32_t k = 0; k < operands; k++) {
            operand_extent from = extent_of(program, other, k, iterations);
            if (to.base == from.base && to.begin < from.end && from.begin < to.end)
                return true;
        }
    }
    return false;
}

bool parts_overlap(const engine_program *program, const engine_step *a, const engine_step *b,
                   uint32_t iterations)
{
    return writes_into(program, a, b, iterations) || writes_into(program, b, a, iterations);
}

bool parts_share(const engine_program *program, const engine_step *a, uint32_t of_a,
                 const engine_step *b, uint32_t of_b, uint32_t iterations)
{
    if (a->in_loop != b->in_loop ||
        program->operands[a->operands + of_a] != program->operands[b->operands + of_b])
        return false;
    for (uint32_t i = 0; i < (a->in_loop ? iterations : 1); i++) {
        const uint64_t *at, *end, *other, *other_end;
        part_find_pieces(program, a, i, &at, &end);
        part_find_pieces(program, b, i, &other, &other_end);
        for (; at < end && other < other_end; at += part_stride(a), other += part_stride(b)) {
            if (at[0] != other[0] || at[1 + of_a] != other[1 + of_b])
                return false;
        }
        if (at != end || other != other_end)
            return false;
    }
    return true;
}
