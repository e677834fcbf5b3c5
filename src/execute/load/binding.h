/* Bindings of a run's buffers: the caller's, the peers', and their staging. */
#ifndef EXECUTE_LOAD_BINDING_H
#define EXECUTE_LOAD_BINDING_H

#include <banyan/transport.h>

#include "execute/load/loaded.h"

/* Find the longer buffer of an in-place plan, which stands for both. INVALID: neither is the
 * longer on all ranks. */
banyan_status binding_find_longer(const banyan_plan *plan, plan_buffer *longer);

/* True if peers access this buffer of a rank, so that runs must stage it when it is ordinary
 * memory. */
bool binding_is_staged(const banyan_loaded_plan *loaded, int rank, plan_buffer buffer);

/* True if a run may need to copy its output out of staging. */
bool binding_copies_output(const banyan_loaded_plan *loaded);

/* INVALID if this executor's plans cannot use the memory at `address`, which lies on `device`.
 * `what` names it in the message: "input". */
banyan_status binding_check_device(const banyan_executor *executor, DLDevice device,
                                   const void *address, const char *what);

/* Find bases and copies for a run of the specialized plan between these buffers. INVALID, with
 * nothing changed, if it cannot use them. */
banyan_status binding_make(banyan_loaded_plan *loaded, const specialized_plan *specialized,
                           const void *input, void *output, binding *made);

/* Set the base of a rank's buffer to an offset in its part of the plan's block. */
void binding_place_in_block(const banyan_loaded_plan *loaded, binding *made, int rank,
                            plan_buffer buffer, uint64_t offset);

void binding_copy_in(const binding *of);
/* Copy the output out of staging, except for what was redirected. */
void binding_copy_out(const binding *of, const banyan_redirection *redirection);

/* Describe the redirection of a run's output; without spans. False: there is none. */
bool binding_redirection(const banyan_loaded_plan *loaded, const binding *of,
                         banyan_redirection *redirection);

#endif
