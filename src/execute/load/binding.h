/* Where the buffers of a run lie: the caller's, the peers', and what stands in for them. */
#ifndef EXECUTE_LOAD_BINDING_H
#define EXECUTE_LOAD_BINDING_H

#include "execute/load/loaded.h"

/* The buffer that stands for both of an in-place plan: the longer one. INVALID: there is none. */
banyan_status placement_find_longer(const banyan_plan *plan, plan_buffer *longer);

/* Must this buffer of a rank be staged when runs bring ordinary memory for it: do peers reach it?
 */
bool placement_is_staged(const banyan_loaded_plan *loaded, int rank, plan_buffer buffer);

/* May runs have to copy their output to where it belongs? */
bool placement_copies_output(const banyan_loaded_plan *loaded);

/* INVALID: memory at `address`, which lies on `device`, is none for this executor's plans. `what`
 * is it: "input". */
banyan_status placement_check_device(const banyan_executor *executor, DLDevice device,
                                     const void *address, const char *what);

/* Find bases and copies for a run of `cut` between these buffers. INVALID, with nothing changed,
 * when they cannot be used. */
banyan_status placement_make(banyan_loaded_plan *loaded, const plan_cut *cut, const void *input,
                             void *output, placement *made);

void placement_copy_in(const placement *of);
void placement_copy_out(const placement *of);

#endif
