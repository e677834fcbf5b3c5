/* GPU memory that Banyan did not allocate: registered, mapped at peers, read and written there.
 * Errors for other memory give the reason. */
#include "support/test.h"

#include "emulation/cuda.h"
#include "memory/symmetric/symmetric.h"
#include "support/descriptors.h"
#include "support/gpu/gpu.h"

#define GRANULE ((size_t)2 << 20)

/* Virtual memory of several adjacent allocations, like PyTorch's expandable segments. */
typedef struct segment {
    char *base;
    size_t part_bytes, parts;
} segment;

#define FUNCTION(name) __typeof__(&name) call_##name = (__typeof__(&name))gpu_driver_function(#name)
#define CHECK_CUDA(call) CHECK((call) == CUDA_SUCCESS)

/* Has no parts if CUDA cannot make such memory. */
static segment segment_make_as(int device, size_t part_bytes, size_t parts,
                               CUmemAllocationHandleType types)
{
    FUNCTION(cuMemCreate);
    FUNCTION(cuMemRelease);
    FUNCTION(cuMemAddressReserve);
    FUNCTION(cuMemMap);
    FUNCTION(cuMemSetAccess);
    CUmemAllocationProp what = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = types,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device},
                              CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr base;
    CUmemGenericAllocationHandle part;
    if (call_cuMemCreate(&part, part_bytes, &what, 0) != CUDA_SUCCESS)
        return (segment){0};
    CHECK_CUDA(call_cuMemRelease(part));
    CHECK_CUDA(call_cuMemAddressReserve(&base, part_bytes * parts, 0, 0, 0));
    for (size_t i = 0; i < parts; i++) {
        CHECK_CUDA(call_cuMemCreate(&part, part_bytes, &what, 0));
        CHECK_CUDA(call_cuMemMap(base + i * part_bytes, part_bytes, 0, part, 0));
        CHECK_CUDA(call_cuMemRelease(part));
    }
    CHECK_CUDA(call_cuMemSetAccess(base, part_bytes * parts, &access, 1));
    return (segment){(char *)(uintptr_t)base, part_bytes, parts};
}

static segment segment_make(int device, size_t part_bytes, size_t parts, bool shareable)
{
    segment made = segment_make_as(device, part_bytes, parts,
                                   shareable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                             : CU_MEM_HANDLE_TYPE_NONE);
    CHECK(made.parts > 0);
    return made;
}

static void segment_free(const segment *old)
{
    FUNCTION(cuMemUnmap);
    FUNCTION(cuMemAddressFree);
    CUdeviceptr base = (CUdeviceptr)(uintptr_t)old->base;
    CHECK_CUDA(call_cuMemUnmap(base, old->part_bytes * old->parts));
    CHECK_CUDA(call_cuMemAddressFree(base, old->part_bytes * old->parts));
}

#define WINDOWS_MAX 8

/* A rank's registrations, in one order on all ranks. */
typedef struct windows {
    banyan_memory_handle mine[WINDOWS_MAX];
    banyan_memory_handle all[WINDOWS_MAX * 8]; /* indexed by rank */
    size_t count;
    int ranks;
} windows;

static void window_add(banyan_world *world, windows *set, void *address, size_t bytes)
{
    banyan_memory_handle *handle = &set->mine[set->count++];
    CHECK_OK(banyan_memory_register(world, address, bytes, handle));
    CHECK(handle->kind == BANYAN_MEMORY_DEVICE);
    banyan_memory_handle found;
    CHECK_OK(banyan_memory_find(world, (char *)address + bytes / 2, bytes / 4, &found));
    CHECK(found.kind == BANYAN_MEMORY_DEVICE);
}

static void windows_exchange(banyan_world *world, windows *set)
{
    banyan_memory_handle told[WINDOWS_MAX * 8];
    set->ranks = banyan_world_size(world);
    CHECK_OK(banyan_world_allgather(world, set->mine, set->count * sizeof *set->mine, told));
    memcpy(set->all, told, (size_t)set->ranks * set->count * sizeof *told);
}

static void windows_free(banyan_world *world, windows *set)
{
    for (size_t i = 0; i < set->count; i++)
        CHECK_OK(banyan_memory_unregister(world, &set->mine[i]));
}

/* A cheap function, since there are many values. */
static uint64_t value_at(int writer, size_t window, size_t i)
{
    random_state random = random_from(((uint64_t)writer << 40) + ((uint64_t)window << 32) + i);
    return random_next(&random);
}

static void fill_window(void *address, size_t bytes, int writer, size_t window)
{
    uint64_t *values = malloc(bytes + 8);
    for (size_t i = 0; i * 8 < bytes; i++)
        values[i] = value_at(writer, window, i);
    gpu_copy(address, values, bytes);
    free(values);
}

static void check_window(const void *address, size_t bytes, int writer, size_t window)
{
    unsigned char *here = gpu_read(address, bytes);
    for (size_t i = 0; i * 8 < bytes; i++) {
        uint64_t expected = value_at(writer, window, i);
        size_t length = bytes - i * 8 < 8 ? bytes - i * 8 : 8;
        CHECK(memcmp(here + i * 8, &expected, length) == 0,
              "element %zu of window %zu, written by rank %d", i, window, writer);
    }
    free(here);
}

/* Each rank reads the owners' data in all windows of all ranks; then the next rank writes. */
static void read_and_write_all(banyan_world *world, const windows *set)
{
    int rank = banyan_world_rank(world), next = (rank + 1) % set->ranks;
    int before = (rank + set->ranks - 1) % set->ranks;
    size_t count = set->count * (size_t)set->ranks;
    memory_wanted wanted[WINDOWS_MAX * 8];
    memory_attachments *attached;
    for (size_t w = 0; w < set->count; w++)
        fill_window((void *)(uintptr_t)set->mine[w].address, set->mine[w].bytes, rank, w);
    for (size_t i = 0; i < count; i++)
        wanted[i].handle = set->all[i];
    CHECK_OK(memory_attach(world, gpu_device_for(rank).device_id, wanted, count, &attached));
    CHECK(memory_attachments_reason(attached)[0] == '\0', "%s",
          memory_attachments_reason(attached));
    CHECK_OK(banyan_world_barrier(world));
    for (size_t i = 0; i < count; i++) {
        CHECK(wanted[i].address != NULL);
        check_window(wanted[i].address, wanted[i].handle.bytes, wanted[i].handle.rank,
                     i % set->count);
    }
    CHECK_OK(banyan_world_barrier(world));
    for (size_t w = 0; w < set->count; w++) {
        const memory_wanted *theirs = &wanted[(size_t)next * set->count + w];
        fill_window(theirs->address, theirs->handle.bytes, rank + 10, w);
    }
    CHECK_OK(banyan_world_barrier(world));
    for (size_t w = 0; w < set->count; w++)
        check_window((void *)(uintptr_t)set->mine[w].address, set->mine[w].bytes, before + 10, w);
    CHECK_OK(banyan_world_barrier(world));
    memory_attachments_free(attached);
}

static void reach_any_origin(banyan_world *world, void *context)
{
    size_t parts_of_many = *(const size_t *)context;
    int rank = banyan_world_rank(world), device = gpu_device_for(rank).device_id;
    windows set = {0};
    char *plain = gpu_plain_alloc(BANYAN_CUDA(device), 3 << 20);
    segment parts = segment_make(device, GRANULE, 3, true);
    segment many = segment_make(device, GRANULE, parts_of_many, true);
    banyan_memory *symmetric;
    CHECK_OK(banyan_memory_alloc_on(world, BANYAN_CUDA(device), 100000, &symmetric));

    window_add(world, &set, plain + 1000 * (size_t)(rank + 1), 100001);
    window_add(world, &set, plain + 500000, 1 << 20);
    window_add(world, &set, parts.base + GRANULE - 5000, 10001);
    window_add(world, &set, parts.base + GRANULE + 6001, 2 * GRANULE - 6001);
    window_add(world, &set, many.base + 100, (parts_of_many - 1) * GRANULE);
    windows_exchange(world, &set);
    read_and_write_all(world, &set);

    windows_free(world, &set);
    CHECK_OK(banyan_world_barrier(world));
    banyan_memory_free(symmetric);
    segment_free(&many);
    segment_free(&parts);
    gpu_plain_free(BANYAN_CUDA(device), plain);
}

static void peers_read_and_write_memory_of_any_origin(void **state)
{
    (void)state;
    size_t few = 2, many = 35; /* more than are sent at once */
    ranks_run(2, reach_any_origin, &many);
    if (gpu_worlds_are_cheap()) {
        ranks_run(1, reach_any_origin, &few);
        ranks_run(4, reach_any_origin, &few);
    }
}

static void ranks_that_are_threads_reach_each_others(void **state)
{
    (void)state;
    size_t few = 2;
    ranks_run_threads(3, reach_any_origin, &few);
}

/* CUDA suballocates small allocations from larger blocks. */
static void reach_small_ones(banyan_world *world, void *context)
{
    (void)context;
    DLDevice device = gpu_device_for(banyan_world_rank(world));
    char *small[6];
    windows set = {0};
    for (size_t i = 0; i < 6; i++)
        small[i] = gpu_plain_alloc(device, 2000 + i * 9000);
    for (size_t i = 0; i < 6; i++)
        window_add(world, &set, small[i] + 8 * i, 1500 + i * 8000);
    windows_exchange(world, &set);
    read_and_write_all(world, &set);
    windows_free(world, &set);
    CHECK_OK(banyan_world_barrier(world));
    for (size_t i = 0; i < 6; i++)
        gpu_plain_free(device, small[i]);
}

static void small_allocations_are_told_apart(void **state)
{
    (void)state;
    ranks_run(3, reach_small_ones, NULL);
    if (gpu_worlds_are_cheap())
        ranks_run_threads(2, reach_small_ones, NULL);
}

/* Fabric handles need a machine with that configuration. */
static void reach_by_fabric(banyan_world *world, void *context)
{
    (void)context;
    int device = gpu_device_for(banyan_world_rank(world)).device_id;
    segment parts = segment_make_as(device, GRANULE, 20, CU_MEM_HANDLE_TYPE_FABRIC);
    windows set = {0};
    if (parts.parts == 0) {
        printf("this machine gives no memory with fabric handles\n");
        return;
    }
    window_add(world, &set, parts.base + 5000, 19 * GRANULE);
    windows_exchange(world, &set);
    read_and_write_all(world, &set);
    windows_free(world, &set);
    CHECK_OK(banyan_world_barrier(world));
    segment_free(&parts);
}

static void memory_with_fabric_handles_is_mapped(void **state)
{
    (void)state;
    ranks_run(2, reach_by_fabric, NULL);
}

static void map_once(banyan_world *world, void *context)
{
    (void)context;
    const size_t inner[] = {4096, 2 * GRANULE - 8192}; /* including the last bytes */
    int rank = banyan_world_rank(world), device = gpu_device_for(rank).device_id, peer = 1 - rank;
    segment parts = segment_make(device, GRANULE, 2, true);
    windows set = {0};
    window_add(world, &set, parts.base, 2 * GRANULE);
    for (size_t i = 0; i < 2; i++)
        window_add(world, &set, parts.base + inner[i], 8192);
    windows_exchange(world, &set);
    const banyan_memory_handle *theirs = &set.all[(size_t)peer * set.count];
    memory_wanted first = {.handle = theirs[0]};
    memory_wanted others[] = {{.handle = theirs[1]}, {.handle = theirs[2]}};
    memory_attachments *attached, *again;
    CHECK_OK(memory_attach(world, device, &first, 1, &attached));
    CHECK_OK(memory_attach(world, device, others, 2, &again));
    for (size_t i = 0; i < 2; i++)
        CHECK(others[i].address == first.address + inner[i], "a segment is mapped twice");
    memory_attachments_free(attached);
    fill_window(parts.base + inner[0], 8192, rank, 0);
    CHECK_OK(banyan_world_barrier(world));
    check_window(others[0].address, 8192, peer, 0);
    CHECK_OK(banyan_world_barrier(world));
    memory_attachments_free(again);
    windows_free(world, &set);
    CHECK_OK(banyan_world_barrier(world));
    segment_free(&parts);
}

static void an_allocation_is_mapped_once(void **state)
{
    (void)state;
    ranks_run(2, map_once, NULL);
}

/* An old mapping of freed memory at the same address must not be used for the new memory. */
static void allocate_anew(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), device = gpu_device_for(rank).device_id, peer = 1 - rank;
    memory_attachments *kept[4];
    for (int round = 0; round < 4; round++) {
        segment parts = segment_make(device, GRANULE, 1, true);
        windows set = {0};
        window_add(world, &set, parts.base, 10000);
        windows_exchange(world, &set);
        memory_wanted wanted = {.handle = set.all[peer]};
        CHECK_OK(memory_attach(world, device, &wanted, 1, &kept[round]));
        fill_window(parts.base, 10000, rank + 2 * round, 0);
        CHECK_OK(banyan_world_barrier(world));
        check_window(wanted.address, 10000, peer + 2 * round, 0);
        CHECK_OK(banyan_world_barrier(world));
        windows_free(world, &set);
        segment_free(&parts);
    }
    for (int round = 0; round < 3; round++)
        memory_attachments_free(kept[round]);
    /* The last is freed with the world. */
    CHECK_OK(banyan_world_barrier(world));
}

static void memory_that_is_made_anew_is_mapped_anew(void **state)
{
    (void)state;
    ranks_run(2, allocate_anew, NULL);
}

static void refuse_unshareable(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), device = gpu_device_for(rank).device_id, peer = 1 - rank;
    const memory_device_ops *ops = gpu_memory();
    void *pooled;
    CHECK_OK(ops->alloc(device, 100000, &pooled));
    segment own = segment_make(device, GRANULE, 2, false);
    segment shared = segment_make(device, GRANULE, 1, true);
    windows set = {0};
    window_add(world, &set, own.base + 100, GRANULE);
    window_add(world, &set, shared.base, 5000);
    window_add(world, &set, pooled, 70000);
    windows_exchange(world, &set);
    const banyan_memory_handle *theirs = &set.all[(size_t)peer * set.count];
    memory_wanted wanted[2] = {{.handle = theirs[0]}, {.handle = theirs[1]}};
    memory_attachments *attached;
    CHECK_OK(memory_attach(world, device, wanted, 2, &attached));
    CHECK(wanted[0].address == NULL && wanted[1].address != NULL);
    CHECK(strstr(memory_attachments_reason(attached), "without a handle"), "%s",
          memory_attachments_reason(attached));
    memory_attachments_free(attached);
    wanted[0].handle = theirs[2];
    CHECK_OK(memory_attach(world, device, wanted, 1, &attached));
    CHECK(wanted[0].address == NULL);
    CHECK(strstr(memory_attachments_reason(attached), "stream-ordered pool"), "%s",
          memory_attachments_reason(attached));
    memory_attachments_free(attached);

    /* One rank uses a window that is not registered: all ranks get the error. */
    banyan_memory_handle gone = theirs[1];
    CHECK_OK(banyan_world_barrier(world));
    windows_free(world, &set);
    CHECK_OK(banyan_world_barrier(world));
    memory_wanted late = {.handle = gone};
    CHECK_FAILS(memory_attach(world, device, &late, rank == 0 ? 1 : 0, &attached),
                BANYAN_ERR_INVALID, "has not registered");
    CHECK_FAILS(banyan_memory_unregister(world, &set.mine[0]), BANYAN_ERR_INVALID,
                "has not registered");
    ops->free(device, pooled);
    segment_free(&own);
    segment_free(&shared);
}

static void unmapped_memory_is_logged_with_the_reason(void **state)
{
    (void)state;
    ranks_run(2, refuse_unshareable, NULL);
}

/* The first round also allocates memory that a process keeps until it ends. */
static void keep_nothing(banyan_world *world, void *context)
{
    reach_any_origin(world, context);
    size_t room = gpu_free_bytes(world), descriptors = open_descriptors();
    for (int round = 0; round < 2; round++)
        reach_any_origin(world, context);
    size_t room_after = gpu_free_bytes(world), descriptors_after = open_descriptors();
    CHECK(descriptors_after <= descriptors, "%zu descriptors, %zu before", descriptors_after,
          descriptors);
    CHECK(room_after + 8 * GRANULE > room, "%zu bytes are free, %zu before", room_after, room);
}

static void nothing_stays_behind(void **state)
{
    (void)state;
    size_t some = 8;
    ranks_run(2, keep_nothing, &some);
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peers_read_and_write_memory_of_any_origin),
        cmocka_unit_test(ranks_that_are_threads_reach_each_others),
        cmocka_unit_test(small_allocations_are_told_apart),
        cmocka_unit_test(memory_with_fabric_handles_is_mapped),
        cmocka_unit_test(an_allocation_is_mapped_once),
        cmocka_unit_test(memory_that_is_made_anew_is_mapped_anew),
        cmocka_unit_test(unmapped_memory_is_logged_with_the_reason),
        cmocka_unit_test(nothing_stays_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
