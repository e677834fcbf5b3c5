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

/* Limit for one step. Longer steps are faster 16 bytes at a time, several in flight. */
#define QUICK_BYTES_MOST 65536

static bool moves_bytes(const engine_step *step)
{
    return step->kind >= STEP_COPY && step->kind <= STEP_COMBINE;
}

static bool pack_is_nothing(const engine_step *step)
{
    return step->kind == STEP_NOP || step->kind == KERNEL_PASS;
}

static bool pack_is_packets(uint64_t place)
{
    return place & KERNEL_PLACE_PACKETS;
}

/* All pieces have one form, so the first decides. */
static bool pack_has_packets(const engine_program *program, const engine_step *step)
{
    const uint64_t *first = program->words + step->words;
    bool packets = false;
    for (uint32_t i = 0; i < (uint32_t)step->source_count + step->destination_count; i++)
        packets |= step->piece_count > 0 && pack_is_packets(first[1 + i]);
    return packets;
}

/* True if bytes and offsets of data are multiples of `alignment`, and those of packets of twice
 * that, at least of 16. False for pads. */
static bool is_aligned(const engine_program *program, const engine_step *step, uint64_t alignment,
                       uint64_t most)
{
    uint32_t operands = (uint32_t)step->source_count + step->destination_count;
    const uint64_t *at = program->words + step->words;
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < step->piece_count; i++, at += 1 + operands) {
        if ((at[0] & ENGINE_PAD) || at[0] % alignment != 0)
            return false;
        bytes += at[0];
        for (uint32_t k = 0; k < operands; k++) {
            uint64_t offset = at[1 + k] & KERNEL_PLACE_OFFSET;
            if (offset % (pack_is_packets(at[1 + k]) ? 16 : alignment) != 0)
                return false;
        }
    }
    return bytes <= most;
}

static bool moves_or_adds_up(const engine_step *step)
{
    return moves_bytes(step) && !step->in_loop &&
           (step->kind != STEP_COMBINE || step->op == BANYAN_SUM);
}

static bool is_quick(const engine_program *program, const engine_step *step)
{
    return pack_is_nothing(step) ||
           (moves_or_adds_up(step) && step->source_count <= KERNEL_QUICK_OPERANDS &&
            step->destination_count <= KERNEL_QUICK_OPERANDS &&
            is_aligned(program, step, 8, QUICK_BYTES_MOST));
}

/* True for puts, which copy engines do instead of the kernel. */
static bool pack_is_put(const engine_step *step)
{
    return step->kind == STEP_POST_COPY || step->kind == STEP_POST_SIGNAL ||
           step->kind == STEP_FLUSH;
}

static bool is_direct(const engine_program *program, const engine_step *step, bool staged)
{
    if (pack_is_nothing(step) || (staged && pack_is_put(step)) || step->kind == STEP_SIGNAL ||
        step->kind == STEP_WAIT)
        return true;
    return moves_or_adds_up(step) && !pack_has_packets(program, step) &&
           is_aligned(program, step, 16, UINT64_MAX);
}

/* The first step's data is read before this run's half of scratch is known. */
static bool begins_in_scratch(const engine_program *program, const engine_block *block)
{
    for (uint32_t i = 0; i < block->step_count; i++) {
        const engine_step *step = &program->steps[block->first_step + i];
        const uint64_t *at = program->words + step->words;
        uint32_t operands = (uint32_t)step->source_count + step->destination_count;
        if (pack_is_nothing(step) || step->piece_count == 0)
            continue;
        for (uint64_t k = 0; k < step->piece_count; k++, at += 1 + operands) {
            if (!pack_is_packets(at[1]) && (at[1] & KERNEL_PLACE_SCRATCH))
                return true;
        }
        return false;
    }
    return false;
}

kernel_kind pack_kind(const engine_program *program, bool staged)
{
    bool quick = true, direct = true;
    for (uint32_t i = 0; i < program->step_count; i++) {
        quick = quick && is_quick(program, &program->steps[i]);
        direct = direct && is_direct(program, &program->steps[i], staged);
    }
    for (uint32_t i = 0; quick && i < program->block_count; i++)
        quick = !begins_in_scratch(program, &program->blocks[i]);
    return quick ? KERNEL_QUICK : direct ? KERNEL_DIRECT : KERNEL_WHOLE;
}
