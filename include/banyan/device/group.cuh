/* Banyan in kernels: switch channels in software. A group is one buffer in the memory of several
 * ranks, all of it mapped here. Each access goes to every member, point to point. Threads share the
 * work as in move.cuh.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BANYAN_DEVICE_GROUP_CUH
#define BANYAN_DEVICE_GROUP_CUH

#include <banyan/device/move.cuh>

typedef struct banyan_device_group {
    char *const *members; /* each member's memory as mapped here, with this rank's own */
    uint32_t count;
} banyan_device_group;

/* The addresses `offset` bytes into each member's memory. */
typedef struct banyan_device_group_places {
    char *const *members;
    uint64_t offset;
    BANYAN_DEVICE_MEMBER char *operator[](uint32_t i) const { return members[i] + offset; }
} banyan_device_group_places;

/* Store the bytes to all members. */
BANYAN_DEVICE void banyan_device_group_store(const banyan_device_group *group, uint64_t offset,
                                             const void *from, uint64_t bytes, uint32_t thread,
                                             uint32_t threads)
{
    banyan_device_group_places places = {group->members, offset};
    banyan_device_copy_each(places, group->count, from, bytes, thread, threads);
}

/* Reduce all members' bytes in the order of members. `bytes` is a multiple of the element size. */
template <typename Element, banyan_device_op op>
BANYAN_DEVICE void banyan_device_group_load(void *to, const banyan_device_group *group,
                                            uint64_t offset, uint64_t bytes, uint32_t thread,
                                            uint32_t threads)
{
    banyan_device_group_places sources = {group->members, offset};
    banyan_device_place place = {(char *)to};
    banyan_device_reduce_each<Element, op>(place, 1, sources, group->count, bytes, thread, threads);
}

/* Reduce all members' bytes, and store the result to the source's place at all members. */
template <typename Element, banyan_device_op op>
BANYAN_DEVICE void banyan_device_group_load_store(const banyan_device_group *group, uint64_t offset,
                                                  uint64_t bytes, uint32_t thread, uint32_t threads)
{
    banyan_device_group_places places = {group->members, offset};
    banyan_device_reduce_each<Element, op>(places, group->count, places, group->count, bytes,
                                           thread, threads);
}

#endif
