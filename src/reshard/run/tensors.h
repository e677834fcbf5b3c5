/* Tensor sets inside Banyan: what runs need of them. */
#ifndef RESHARD_RUN_TENSORS_H
#define RESHARD_RUN_TENSORS_H

#include <banyan/reshard.h>

/* A number that no other set of this process has had. */
uint64_t tensors_id(const banyan_tensors *set);

/* INVALID, naming the tensor, when the set (NULL: no tensors) is not what the plan's side needs. */
banyan_status tensors_check(const banyan_tensors *set, const banyan_local_tensor *needed,
                            size_t count, const char *side);

/* Both keep the version of the last good run until there is a newer one. */
void tensors_set_torn(banyan_tensors *set);
void tensors_set_whole(banyan_tensors *set, uint64_t version);
/* A run that was started has moved nothing: the state before it, with the version that is kept. */
void tensors_set_back(banyan_tensors *set, banyan_tensors_state state);

#endif
