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

static void copy_part(char *to, uint32_t at, const void *from, uint64_t bytes)
{
    if (at != 0)
        memcpy(to + at, from, bytes);
}

static void write_section(const engine_program *program, uint32_t index, const pack_layout *layout,
                          uint64_t address, const kernel_end *ends, char *to)
{
    const engine_block *block = &program->blocks[index];
    kernel_section section = {
        .block = index,
        .step_count = block->step_count,
        .first_end = block->first_end,
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
    copy_part(to, section.steps_at, program->steps + block->first_step, of.steps);
    copy_part(to, section.ends_at, ends + block->first_end, of.ends);
    copy_part(to, section.operands_at, program->operands + block->first_operand, of.operands);
    copy_part(to, section.words_at, program->words + block->first_word, of.words);
}

void pack_write(const engine_program *program, const pack_ends *ends, const pack_layout *layout,
                uint64_t address, char *to)
{
    kernel_end *all_ends = (kernel_end *)(to + layout->ends);
    memset(to, 0, layout->bytes);
    memcpy(to + layout->steps, program->steps, program->step_count * sizeof(engine_step));
    memcpy(to + layout->operands, program->operands, program->operand_count * sizeof(uint32_t));
    memcpy(to + layout->words, program->words, program->word_count * sizeof(uint64_t));
    memcpy(to + layout->spans, program->spans, program->span_count * sizeof(engine_span));
    write_ends(program, ends, all_ends);
    for (uint32_t i = 0; i < program->block_count; i++)
        write_section(program, i, layout, address, all_ends,
                      to + (uint64_t)i * layout->section_bytes);
}
