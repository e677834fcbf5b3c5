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

#endif
