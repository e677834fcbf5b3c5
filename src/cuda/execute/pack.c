#include "cuda/execute/pack.h"

#include <stdbool.h>
#include <string.h>

#define ALIGNMENT 16

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The arrays of a section in the order in which they get room: short ones that every step needs
 * first. */
typedef struct parts {
    uint64_t steps, ends, operands, words; /* bytes */
} parts;

static parts parts_of(const engine_block *block)
{
    return (parts){
        .steps = block->step_count * sizeof(engine_step),
        .ends = block->end_count * sizeof(kernel_end),
        .operands = block->operand_count * sizeof(uint32_t),
        .words = block->word_count * sizeof(uint64_t),
    };
}

/* Where an array comes in a section; 0: it does not fit. */
static uint32_t take(uint64_t bytes, uint64_t most, uint64_t *used)
{
    if (bytes == 0 || *used + aligned(bytes) > most)
        return 0;
    uint32_t at = (uint32_t)*used;
    *used += aligned(bytes);
    return at;
}

/* Returns the bytes of the section. */
static uint64_t lay_section(const engine_block *block, uint64_t most, kernel_section *section)
{
    parts of = parts_of(block);
    uint64_t used = aligned(sizeof *section);
    section->steps_at = take(of.steps, most, &used);
    section->ends_at = take(of.ends, most, &used);
    section->operands_at = take(of.operands, most, &used);
    section->words_at = take(of.words, most, &used);
    return used;
}

void pack_plan(const engine_program *program, uint32_t section_most, pack_layout *layout)
{
    *layout = (pack_layout){0};
    for (uint32_t i = 0; i < program->block_count; i++) {
        kernel_section section;
        uint64_t bytes = lay_section(&program->blocks[i], section_most, &section);
        if (bytes > layout->section_bytes)
            layout->section_bytes = (uint32_t)bytes;
    }
    uint64_t at = (uint64_t)layout->section_bytes * program->block_count;
    layout->steps = at;
    layout->ends = at += program->step_count * sizeof(engine_step);
    layout->operands = at += program->end_count * sizeof(kernel_end);
    layout->words = at += aligned(program->operand_count * sizeof(uint32_t));
    layout->spans = at += program->word_count * sizeof(uint64_t);
    layout->bytes = at + program->span_count * sizeof(engine_span);
}

static bool is_semaphore(const engine_step *step)
{
    return step->kind == STEP_ACQUIRE || step->kind == STEP_RELEASE;
}

static void write_ends(const engine_program *program, const pack_ends *ends, kernel_end *to)
{
    for (uint32_t i = 0; i < program->step_count; i++) {
        const engine_step *step = &program->steps[i];
        const kernel_end *from = is_semaphore(step) ? ends->semaphores : ends->channels;
        for (uint32_t k = step->ends; k < step->ends + step->end_count; k++)
            to[k] = from[program->ends[k]];
    }
}

/* ---- parts of one operation ---- */

static bool moves_bytes(const engine_step *step)
{
    return step->kind >= STEP_COPY && step->kind <= STEP_COMBINE;
}

/* Where an operand of a step lies, over all its pieces. */
typedef struct extent {
    uint32_t base; /* without the mark of packets */
    uint64_t begin, end;
} extent;

static extent extent_of(const engine_program *program, const engine_step *step, uint32_t iterations,
                        uint32_t operand)
{
    uint32_t word = program->operands[step->operands + operand];
    uint64_t stride = 1 + (uint64_t)step->source_count + step->destination_count;
    const uint64_t *at = program->words + step->words, *end = at + step->piece_count * stride;
    if (step->in_loop) {
        end = program->words + at[iterations];
        at = program->words + at[0];
    }
    extent of = {.base = word & ~ENGINE_PACKETS, .begin = UINT64_MAX};
    for (; at < end; at += stride) {
        uint64_t bytes = at[0] & ~ENGINE_PAD, offset = at[1 + operand];
        uint64_t room = word & ENGINE_PACKETS ? (bytes + 3) / 4 * 8 : bytes;
        of.begin = offset < of.begin ? offset : of.begin;
        of.end = offset + room > of.end ? offset + room : of.end;
    }
    return of;
}

/* Does a destination of one lie over any operand of the other? */
static bool writes_into(const engine_program *program, const engine_step *writer,
                        const engine_step *other, uint32_t iterations)
{
    uint32_t operands = (uint32_t)other->source_count + other->destination_count;
    for (uint32_t i = 0; i < writer->destination_count; i++) {
        extent to = extent_of(program, writer, iterations, writer->source_count + i);
        for (uint32_t k = 0; k < operands; k++) {
            extent from = extent_of(program, other, iterations, k);
            if (to.base == from.base && to.begin < from.end && from.begin < to.end)
                return true;
        }
    }
    return false;
}

/* Parts of an operation follow each other, with its number. Threads share the bytes of each out in
 * their own way, so that what a part leaves for a later one is not always the same thread's. */
static bool part_meets(const engine_program *program, const engine_step *steps, uint32_t at,
                       uint32_t iterations)
{
    const engine_step *part = &steps[at];
    for (uint32_t i = at; i-- > 0 && steps[i].number == part->number;) {
        if (steps[i].kind == KERNEL_PASS)
            continue;
        if (!moves_bytes(&steps[i]))
            break;
        if (writes_into(program, part, &steps[i], iterations) ||
            writes_into(program, &steps[i], part, iterations))
            return true;
    }
    return false;
}

static void mark_parts(const engine_program *program, const engine_block *block, engine_step *to)
{
    const engine_step *steps = program->steps + block->first_step;
    uint32_t iterations = 0;
    for (uint32_t i = 0; i < block->step_count; i++) {
        if (steps[i].kind == STEP_LOOP)
            iterations = steps[i].iterations;
        if (moves_bytes(&steps[i]) && part_meets(program, steps, i, iterations))
            to[i].relaxed = KERNEL_MEETS;
    }
}

/* ---- writing ---- */

static void copy_part(char *to, uint32_t at, const void *from, uint64_t bytes)
{
    if (at != 0)
        memcpy(to + at, from, bytes);
}

static void write_section(const engine_program *program, uint32_t index, const pack_layout *layout,
                          uint64_t address, const engine_step *steps, const kernel_end *ends,
                          char *to)
{
    const engine_block *block = &program->blocks[index];
    kernel_section section = {
        .block = index,
        .step_count = block->step_count,
        .first_end = block->first_end,
        .end_count = block->end_count,
        .first_operand = block->first_operand,
        .first_word = block->first_word,
        .steps = (const engine_step *)(address + layout->steps) + block->first_step,
        .ends = (const kernel_end *)(address + layout->ends),
        .operands = (const uint32_t *)(address + layout->operands),
        .words = (const uint64_t *)(address + layout->words),
    };
    lay_section(block, layout->section_bytes, &section);
    parts of = parts_of(block);
    memcpy(to, &section, sizeof section);
    copy_part(to, section.steps_at, steps + block->first_step, of.steps);
    copy_part(to, section.ends_at, ends + block->first_end, of.ends);
    copy_part(to, section.operands_at, program->operands + block->first_operand, of.operands);
    copy_part(to, section.words_at, program->words + block->first_word, of.words);
}

void pack_write(const engine_program *program, const pack_ends *ends, const pack_layout *layout,
                uint64_t address, char *to)
{
    engine_step *all_steps = (engine_step *)(to + layout->steps);
    kernel_end *all_ends = (kernel_end *)(to + layout->ends);
    memset(to, 0, layout->bytes);
    memcpy(all_steps, program->steps, program->step_count * sizeof(engine_step));
    memcpy(to + layout->operands, program->operands, program->operand_count * sizeof(uint32_t));
    memcpy(to + layout->words, program->words, program->word_count * sizeof(uint64_t));
    memcpy(to + layout->spans, program->spans, program->span_count * sizeof(engine_span));
    write_ends(program, ends, all_ends);
    for (uint32_t i = 0; i < program->block_count; i++) {
        const engine_block *block = &program->blocks[i];
        mark_parts(program, block, all_steps + block->first_step);
        write_section(program, i, layout, address, all_steps, all_ends,
                      to + (uint64_t)i * layout->section_bytes);
    }
}
