#include "cuda/execute/pack.h"

#include <stdbool.h>
#include <string.h>

#define ALIGNMENT 16

static uint64_t pack_aligned(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* An array of a section: the size of its entries, and the range of the block's entries. */
typedef struct array {
    uint64_t entry_bytes, first, count;
} array;

/* In the order of allocation: arrays that every step needs come first. */
static void pack_find_parts(const engine_block *block, array *parts)
{
    parts[KERNEL_STEPS] = (array){sizeof(engine_step), 0, block->step_count};
    parts[KERNEL_ENDS] = (array){sizeof(kernel_end), block->first_end, block->end_count};
    parts[KERNEL_WORDS] = (array){sizeof(uint64_t), block->first_word, block->word_count};
}

/* Place the arrays in a section; 0: it does not fit. Returns the section's bytes. */
static uint64_t lay_section(const array *parts, uint64_t most, uint64_t *places)
{
    uint64_t used = pack_aligned(sizeof(kernel_section));
    for (int i = 0; i < KERNEL_ARRAYS; i++) {
        uint64_t bytes = pack_aligned(parts[i].count * parts[i].entry_bytes);
        places[i] = bytes == 0 || used + bytes > most ? 0 : used;
        used += places[i] == 0 ? 0 : bytes;
    }
    return used;
}

void pack_plan(const engine_program *program, uint32_t section_most, pack_layout *layout)
{
    *layout = (pack_layout){0};
    for (uint32_t i = 0; i < program->block_count; i++) {
        array parts[KERNEL_ARRAYS];
        uint64_t places[KERNEL_ARRAYS];
        pack_find_parts(&program->blocks[i], parts);
        uint64_t bytes = lay_section(parts, section_most, places);
        if (bytes > layout->section_bytes)
            layout->section_bytes = (uint32_t)bytes;
    }
    uint64_t at = (uint64_t)layout->section_bytes * program->block_count;
    layout->steps = at;
    layout->ends = at += program->step_count * sizeof(engine_step);
    layout->words = at += program->end_count * sizeof(kernel_end);
    layout->spans = at += program->word_count * sizeof(uint64_t);
    layout->bytes = at + program->span_count * sizeof(engine_span);
}

static bool pack_is_semaphore(const engine_step *step)
{
    return step->kind == STEP_ACQUIRE || step->kind == STEP_RELEASE;
}

static void write_ends(const engine_program *program, const pack_ends *ends, kernel_end *to)
{
    for (uint32_t i = 0; i < program->step_count; i++) {
        const engine_step *step = &program->steps[i];
        const kernel_end *from = pack_is_semaphore(step) ? ends->semaphores : ends->channels;
        for (uint32_t k = step->ends; k < step->ends + step->end_count; k++)
            to[k] = from[program->ends[k]];
    }
}

static void write_section(const engine_program *program, uint32_t index, const pack_layout *layout,
                          uint64_t address, const char *whole, char *to)
{
    const engine_block *block = &program->blocks[index];
    uint64_t steps = layout->steps + block->first_step * sizeof(engine_step);
    const uint64_t arrays[KERNEL_ARRAYS] = {steps, layout->ends, layout->words};
    kernel_section section = {.step_count = block->step_count,
                              .first_end = block->first_end,
                              .end_count = block->end_count};
    array parts[KERNEL_ARRAYS];
    uint64_t places[KERNEL_ARRAYS];
    pack_find_parts(block, parts);
    lay_section(parts, layout->section_bytes, places);
    for (int i = 0; i < KERNEL_ARRAYS; i++) {
        uint64_t before = parts[i].first * parts[i].entry_bytes;
        section.arrays[i] = (kernel_array){address + arrays[i], false};
        if (places[i] == 0)
            continue;
        section.arrays[i] = (kernel_array){places[i] - before, true};
        memcpy(to + places[i], whole + arrays[i] + before, parts[i].count * parts[i].entry_bytes);
    }
    const kernel_end *ends = (const kernel_end *)(whole + layout->ends) + block->first_end;
    for (uint32_t i = 0; i < block->end_count; i++)
        section.has_ports |= ends[i].queue != NULL;
    memcpy(to, &section, sizeof section);
}

static void copy_array(char *to, const void *from, uint64_t count, size_t bytes)
{
    if (count > 0)
        memcpy(to, from, count * bytes);
}

void pack_write(const engine_program *program, const pack_ends *ends, const pack_layout *layout,
                uint64_t address, char *to)
{
    memset(to, 0, layout->bytes);
    copy_array(to + layout->steps, program->steps, program->step_count, sizeof(engine_step));
    copy_array(to + layout->words, program->words, program->word_count, sizeof(uint64_t));
    copy_array(to + layout->spans, program->spans, program->span_count, sizeof(engine_span));
    write_ends(program, ends, (kernel_end *)(to + layout->ends));
    for (uint32_t i = 0; i < program->block_count; i++)
        write_section(program, i, layout, address, to, to + (uint64_t)i * layout->section_bytes);
}
