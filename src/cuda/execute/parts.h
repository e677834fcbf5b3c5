/* Steps that are parts of one operation, and may run side by side or must not. */
#ifndef CUDA_EXECUTE_PARTS_H
#define CUDA_EXECUTE_PARTS_H

#include <stdbool.h>

#include "execute/device/engine.h"

/* Copies, packets and reductions, here and at peers, but not what is posted. */
bool part_moves_bytes(const engine_step *step);

/* Words from a piece of a step to its next. */
uint64_t part_stride(const engine_step *step);

/* Words [begin, end) of its pieces in an iteration of its loop, or of all outside of loops. */
void part_find_pieces(const engine_program *program, const engine_step *step, uint32_t iteration,
                      const uint64_t **begin, const uint64_t **end);

/* Does either write where the other one reads or writes? `iterations`: of their loop. */
bool parts_overlap(const engine_program *program, const engine_step *a, const engine_step *b,
                   uint32_t iterations);

/* Does an operand of one lie where one of the other does, piece by piece? */
bool parts_share(const engine_program *program, const engine_step *a, uint32_t of_a,
                 const engine_step *b, uint32_t of_b, uint32_t iterations);

#endif
