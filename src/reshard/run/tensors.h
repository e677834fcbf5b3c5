/* Internals of tensor sets, for runs. */
#ifndef RESHARD_RUN_TENSORS_H
#define RESHARD_RUN_TENSORS_H

#include <banyan/reshard.h>

/* Return a number that no other set of this process has had. */
uint64_t tensors_id(const banyan_tensors *set);

/* INVALID, naming the tensor, when the set (NULL: no tensors) does not match the plan's side. */
banyan_status tensors_check(const banyan_tensors *set, const banyan_layout *layout,
                            const char *side);

/* Mark a set; both keep the version of the last good run until there is a newer one. */
void tensors_set_torn(banyan_tensors *set);
void tensors_set_whole(banyan_tensors *set, uint64_t version);
/* Restore the state before a started run that moved nothing; the version is kept. */
void tensors_set_back(banyan_tensors *set, banyan_tensors_state state);

/* A shadow of the set's memory, for banyan_tensors_alloc_swappable: `*shift` receives the bytes
 * from an element to its place in the shadow. The copy to the shadow is complete on return. A swap
 * exchanges what the addresses of both hold; nothing may access them meanwhile. Errors: UNSUPPORTED
 * (another allocation), INVALID (it has a shadow), NO_MEMORY, those of the device. */
banyan_status tensors_open_shadow(banyan_tensors *set, ptrdiff_t *shift);
void tensors_close_shadow(banyan_tensors *set);
banyan_status tensors_copy_to_shadow(const banyan_tensors *set);
banyan_status tensors_swap_shadow(banyan_tensors *set);

#endif
