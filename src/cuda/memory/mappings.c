/* The device of each address space: the driver reports where memory lies, but not for which device
 * it is mapped. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/memory/memory.h"

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static mapping *mappings; /* in ascending order */
static size_t mapping_count, mapping_room;

/* Call it with the lock held. Returns the first mapping that begins after the address. */
static size_t position_behind(uintptr_t address)
{
    size_t low = 0, high = mapping_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (mappings[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool mappings_make_room(void)
{
    if (mapping_count < mapping_room)
        return true;
    size_t room = mapping_room ? 2 * mapping_room : 64;
    mapping *larger = realloc(mappings, room * sizeof *larger);
    if (!larger)
        return false;
    mappings = larger;
    mapping_room = room;
    return true;
}

banyan_status mappings_add(mapping added)
{
    pthread_rwlock_wrlock(&lock);
    bool room = mappings_make_room();
    if (room) {
        size_t at = position_behind(added.start);
        memmove(&mappings[at + 1], &mappings[at], (mapping_count - at) * sizeof *mappings);
        mappings[at] = added;
        mapping_count++;
    }
    pthread_rwlock_unlock(&lock);
    return room
               ? BANYAN_OK
               : banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for the list of mappings");
}

bool mappings_remove(uintptr_t start)
{
    pthread_rwlock_wrlock(&lock);
    size_t behind = position_behind(start);
    bool found = behind > 0 && mappings[behind - 1].start == start;
    if (found) {
        mapping_count--;
        memmove(&mappings[behind - 1], &mappings[behind],
                (mapping_count - (behind - 1)) * sizeof *mappings);
    }
    if (mapping_count == 0) {
        free(mappings);
        mappings = NULL;
        mapping_room = 0;
    }
    pthread_rwlock_unlock(&lock);
    return found;
}

bool mappings_find(const void *address, mapping *found)
{
    uintptr_t wanted = (uintptr_t)address;
    pthread_rwlock_rdlock(&lock);
    size_t behind = position_behind(wanted);
    bool inside = behind > 0 && wanted < mappings[behind - 1].end;
    if (inside)
        *found = mappings[behind - 1];
    pthread_rwlock_unlock(&lock);
    return inside;
}

banyan_status vmm_allow(int device, CUdeviceptr start, size_t bytes)
{
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    return DRIVER(device, cuMemSetAccess, start, bytes, &access, 1);
}
