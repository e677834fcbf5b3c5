/* Which programs the quick kernel runs. */
#include <stdbool.h>

#include "cuda/execute/pack.h"

/* Of one step. More is better moved 16 bytes at a time, and several of them. */
#define QUICK_BYTES_MOST 65536

/* Steps that reduce or move, unit by unit: 8 bytes of data, 16 of packets. */
static bool pieces_are_quick(const engine_program *program, const engine_step *step)
{
    uint32_t operands = (uint32_t)step->source_count + step->destination_count;
    const uint64_t *at = program->words + step->words;
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < step->piece_count; i++, at += 1 + operands) {
        if (at[0] & (ENGINE_PAD | 7))
            return false;
        bytes += at[0];
        for (uint32_t k = 0; k < operands; k++) {
            bool packets = program->operands[step->operands + k] & ENGINE_PACKETS;
            if (at[1 + k] % (packets ? 16 : 8) != 0)
                return false;
        }
    }
    return bytes <= QUICK_BYTES_MOST;
}

static bool step_is_quick(const engine_program *program, const engine_step *step)
{
    if (step->kind == STEP_NOP || step->kind == KERNEL_PASS)
        return true;
    if (step->kind < STEP_COPY || step->kind > STEP_COMBINE || step->in_loop)
        return false;
    bool sums = step->kind != STEP_COMBINE || step->op == BANYAN_SUM;
    return sums && pieces_are_quick(program, step);
}

bool pack_is_quick(const engine_program *program)
{
    bool quick = true;
    for (uint32_t i = 0; i < program->step_count && quick; i++)
        quick = step_is_quick(program, &program->steps[i]);
    return quick;
}
