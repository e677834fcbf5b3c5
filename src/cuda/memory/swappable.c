/* Memory of which there can be two copies, that change places by remapping: kernels and graphs keep
 * their addresses. Nobody else can map it: its allocations have no handles for other processes. */
#include <stdlib.h>

#include "cuda/memory/memory.h"

/* Bytes of one allocation, at most. */
#define ALLOCATION_BYTES ((size_t)1 << 30)

enum { LIVE, SHADOW, COPIES };

struct device_swappable {
    int device;
    size_t bytes, count; /* of all allocations of a copy */
    CUdeviceptr at[COPIES];
    CUmemGenericAllocationHandle *allocations[COPIES]; /* NULL: there is no such copy */
};

static size_t allocation_bytes(const device_swappable *memory, size_t i)
{
    size_t left = memory->bytes - i * ALLOCATION_BYTES;
    return left < ALLOCATION_BYTES ? left : ALLOCATION_BYTES;
}

/* Unmap the first `count` allocations of a place. */
static void unmap(const device_swappable *memory, int place, size_t count)
{
    for (size_t i = 0; i < count; i++)
        driver.cuMemUnmap(memory->at[place] + i * ALLOCATION_BYTES, allocation_bytes(memory, i));
}

/* Map a copy at a place. */
static banyan_status map_copy(const device_swappable *memory, int place, int copy)
{
    banyan_status status = BANYAN_OK;
    size_t mapped = 0;
    while (mapped < memory->count && status == BANYAN_OK) {
        status = DRIVER(memory->device, cuMemMap, memory->at[place] + mapped * ALLOCATION_BYTES,
                        allocation_bytes(memory, mapped), 0, memory->allocations[copy][mapped], 0);
        mapped += status == BANYAN_OK;
    }
    if (status == BANYAN_OK)
        status = vmm_allow(memory->device, memory->at[place], memory->bytes);
    if (status != BANYAN_OK)
        unmap(memory, place, mapped);
    return status;
}

static void release_allocations(device_swappable *memory, int copy, size_t count)
{
    for (size_t i = 0; i < count; i++)
        driver.cuMemRelease(memory->allocations[copy][i]);
    free(memory->allocations[copy]);
    memory->allocations[copy] = NULL;
}

static banyan_status allocate(device_swappable *memory, int copy)
{
    CUmemAllocationProp what = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = memory->device},
    };
    banyan_status status = BANYAN_OK;
    size_t made = 0;
    memory->allocations[copy] = calloc(memory->count, sizeof *memory->allocations[copy]);
    if (!memory->allocations[copy])
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: out of memory: a list of %zu handles",
                                memory->count);
    while (made < memory->count && status == BANYAN_OK) {
        status = DRIVER(memory->device, cuMemCreate, &memory->allocations[copy][made],
                        allocation_bytes(memory, made), &what, 0);
        made += status == BANYAN_OK;
    }
    if (status != BANYAN_OK)
        release_allocations(memory, copy, made);
    return status;
}

/* Reserve addresses and map a new copy there. */
static banyan_status swappable_add_copy(device_swappable *memory, int place)
{
    RETURN_IF_FAILED(allocate(memory, place));
    CUdeviceptr start = 0;
    banyan_status status =
        DRIVER(memory->device, cuMemAddressReserve, &start, memory->bytes, 0, 0, 0);
    memory->at[place] = start;
    if (status == BANYAN_OK)
        status = map_copy(memory, place, place);
    if (status == BANYAN_OK) {
        status = mappings_add((mapping){start, start + memory->bytes, memory->device});
        if (status != BANYAN_OK)
            unmap(memory, place, memory->count);
    }
    if (status == BANYAN_OK)
        return BANYAN_OK;
    if (start)
        driver.cuMemAddressFree(start, memory->bytes);
    release_allocations(memory, place, memory->count);
    return status;
}

static void drop_copy(device_swappable *memory, int place)
{
    if (!memory->allocations[place])
        return;
    mappings_remove((uintptr_t)memory->at[place]);
    unmap(memory, place, memory->count);
    driver.cuMemAddressFree(memory->at[place], memory->bytes);
    release_allocations(memory, place, memory->count);
}

static banyan_status create_here(device_swappable *made, size_t bytes)
{
    size_t unit = 0;
    RETURN_IF_FAILED(handles_granularity(made->device, &unit));
    if (bytes > SIZE_MAX / 2)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: device %d is too small", made->device);
    made->bytes = (bytes + unit - 1) / unit * unit;
    made->count = (made->bytes + ALLOCATION_BYTES - 1) / ALLOCATION_BYTES;
    return swappable_add_copy(made, LIVE);
}

banyan_status swappable_create(int device, size_t bytes, device_swappable **memory, void **address)
{
    device_swappable *made = calloc(1, sizeof *made);
    if (!made)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: out of memory: %zu bytes",
                                sizeof *made);
    made->device = device;
    banyan_status status = DRIVER_WITHIN_UNCAPTURED(device, create_here(made, bytes));
    if (status != BANYAN_OK) {
        free(made);
        return status;
    }
    *memory = made;
    *address = (void *)(uintptr_t)made->at[LIVE];
    return BANYAN_OK;
}

banyan_status swappable_double(device_swappable *memory, void **shadow)
{
    if (!memory->allocations[SHADOW])
        RETURN_IF_FAILED(
            DRIVER_WITHIN_UNCAPTURED(memory->device, swappable_add_copy(memory, SHADOW)));
    *shadow = (void *)(uintptr_t)memory->at[SHADOW];
    return BANYAN_OK;
}

static banyan_status drop_here(device_swappable *memory, int place)
{
    drop_copy(memory, place);
    return BANYAN_OK;
}

void swappable_undouble(device_swappable *memory)
{
    (void)DRIVER_WITHIN_UNCAPTURED(memory->device, drop_here(memory, SHADOW));
}

static banyan_status swappable_swap_here(device_swappable *memory)
{
    unmap(memory, LIVE, memory->count);
    unmap(memory, SHADOW, memory->count);
    banyan_status status = map_copy(memory, LIVE, SHADOW);
    if (status == BANYAN_OK) {
        status = map_copy(memory, SHADOW, LIVE);
        if (status != BANYAN_OK)
            unmap(memory, LIVE, memory->count);
    }
    if (status == BANYAN_OK) {
        CUmemGenericAllocationHandle *live = memory->allocations[LIVE];
        memory->allocations[LIVE] = memory->allocations[SHADOW];
        memory->allocations[SHADOW] = live;
        return BANYAN_OK;
    }
    /* Back to what was there. If the driver refuses that, too, accesses fault. */
    if (map_copy(memory, LIVE, LIVE) == BANYAN_OK)
        (void)map_copy(memory, SHADOW, SHADOW);
    return status;
}

banyan_status swappable_swap(device_swappable *memory)
{
    return DRIVER_WITHIN_UNCAPTURED(memory->device, swappable_swap_here(memory));
}

void swappable_free(device_swappable *memory)
{
    if (!memory)
        return;
    swappable_undouble(memory);
    (void)DRIVER_WITHIN_UNCAPTURED(memory->device, drop_here(memory, LIVE));
    free(memory);
}
