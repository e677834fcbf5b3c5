/* Selects the kernel for a program. */
#include <stdbool.h>

#include "cuda/execute/pack.h"

/* Limit for one step. Longer steps are faster 16 bytes at a time, several in flight. */
#define QUICK_BYTES_MOST 65536

static bool moves_bytes(const engine_step *step)
{
    return step->kind >= STEP_COPY && step->kind <= STEP_COMBINE;
}

static bool pack_kind_is_nothing(const engine_step *step)
{
    return step->kind == STEP_NOP || step->kind == KERNEL_PASS;
}

static bool pack_kind_is_packets(uint64_t place)
{
    return place & KERNEL_PLACE_PACKETS;
}

/* All pieces have one form, so the first decides. */
static bool pack_kind_has_packets(const engine_program *program, const engine_step *step)
{
    const uint64_t *first = program->words + step->words;
    bool packets = false;
    for (uint32_t i = 0; i < (uint32_t)step->source_count + step->destination_count; i++)
        packets |= step->piece_count > 0 && pack_kind_is_packets(first[1 + i]);
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
            if (offset % (pack_kind_is_packets(at[1 + k]) ? 16 : alignment) != 0)
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
    return pack_kind_is_nothing(step) ||
           (moves_or_adds_up(step) && step->source_count <= KERNEL_QUICK_OPERANDS &&
            step->destination_count <= KERNEL_QUICK_OPERANDS &&
            is_aligned(program, step, 8, QUICK_BYTES_MOST));
}

/* True for puts, which copy engines do instead of the kernel. */
static bool pack_kind_is_put(const engine_step *step)
{
    return step->kind == STEP_POST_COPY || step->kind == STEP_POST_SIGNAL ||
           step->kind == STEP_FLUSH;
}

static bool is_direct(const engine_program *program, const engine_step *step, bool staged)
{
    if (pack_kind_is_nothing(step) || (staged && pack_kind_is_put(step)) ||
        step->kind == STEP_SIGNAL || step->kind == STEP_WAIT)
        return true;
    return moves_or_adds_up(step) && !pack_kind_has_packets(program, step) &&
           is_aligned(program, step, 16, UINT64_MAX);
}

/* The first step's data is read before this run's half of scratch is known. */
static bool begins_in_scratch(const engine_program *program, const engine_block *block)
{
    for (uint32_t i = 0; i < block->step_count; i++) {
        const engine_step *step = &program->steps[block->first_step + i];
        const uint64_t *at = program->words + step->words;
        uint32_t operands = (uint32_t)step->source_count + step->destination_count;
        if (pack_kind_is_nothing(step) || step->piece_count == 0)
            continue;
        for (uint64_t k = 0; k < step->piece_count; k++, at += 1 + operands) {
            if (!pack_kind_is_packets(at[1]) && (at[1] & KERNEL_PLACE_SCRATCH))
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
