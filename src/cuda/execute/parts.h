/* Steps that are parts of one operation, which may or may not run side by side. */
#ifndef CUDA_EXECUTE_PARTS_H
#define CUDA_EXECUTE_PARTS_H

#include <stdbool.h>

#include "execute/device/engine.h"

/* True for copies, packets and reductions, local or at peers, but not for posted requests. */
bool part_moves_bytes(const engine_step *step);

/* Return the number of words from a step's piece to its next. */
uint64_t part_stride(const engine_step *step);

/* Find words [begin, end) of its pieces in an iteration of its loop, or of all pieces outside of
 * loops. */
void part_find_pieces(const engine_program *program, const engine_step *step, uint32_t iteration,
                      const uint64_t **begin, const uint64_t **end);

/* True if either writes where the other one reads or writes. `iterations`: of their loop. */
bool parts_overlap(const engine_program *program, const engine_step *a, const engine_step *b,
                   uint32_t iterations);

/* True if an operand of one lies in the place of the other's, piece by piece. */
bool parts_share(const engine_program *program, const engine_step *a, uint32_t of_a,
                 const engine_step *b, uint32_t of_b, uint32_t iterations);

#endif
