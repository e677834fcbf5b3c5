/* Symmetric buffers made from programs' own memory: peers access it directly, collectives run in
 * it, and memory that cannot be mapped is refused on all ranks. */
#include "support/test.h"

#include "support/gpu/gpu_stream.h"

#define BYTES ((size_t)100000)

static uint8_t byte_at(int writer, int owner, size_t i)
{
    uint8_t value;
    pattern_element("adopted", ((uint64_t)writer * 8 + (uint64_t)owner) << 32 | i, 1, &value);
    return value;
}

/* Rank r has BYTES − 1000·r bytes at an odd address, the last rank none. */
static size_t part_bytes(int rank, int ranks)
{
    return rank + 1 == ranks && ranks > 1 ? 0 : BYTES - (size_t)rank * 1000;
}

static void check_part(const banyan_memory *memory, int writer, int owner)
{
    void *part;
    size_t bytes;
    CHECK_OK(banyan_memory_peer(memory, owner, &part, &bytes));
    uint8_t *here = gpu_read(part, bytes);
    for (size_t i = 0; i < bytes; i++)
        CHECK(here[i] == byte_at(writer, owner, i), "byte %zu of rank %d's, by rank %d", i, owner,
              writer);
    free(here);
}

static void write_part(const banyan_memory *memory, int writer, int owner)
{
    void *part;
    size_t bytes;
    CHECK_OK(banyan_memory_peer(memory, owner, &part, &bytes));
    uint8_t *here = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        here[i] = byte_at(writer, owner, i);
    gpu_copy(part, here, bytes);
    free(here);
}

static void write_and_read(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    DLDevice device = gpu_device_for(rank);
    char *plain = gpu_plain_alloc(device, 2 * BYTES);
    for (int round = 0; round < 3; round++) {
        char *mine = plain + 256 * (size_t)round + 8;
        size_t bytes = part_bytes(rank, ranks);
        banyan_memory *memory;
        CHECK_OK(banyan_memory_adopt(world, device, mine, bytes, &memory));
        CHECK(banyan_memory_bytes(memory) == bytes);
        CHECK(bytes == 0 || banyan_memory_local(memory) == mine);
        CHECK(banyan_memory_device(memory).device_id == device.device_id);
        banyan_memory_handle handle, all[8] = {{0}};
        if (bytes > 0)
            CHECK_OK(banyan_memory_find(world, mine + 10, 100, &handle));
        else
            handle = (banyan_memory_handle){.rank = rank};
        CHECK(bytes == 0 || handle.kind == BANYAN_MEMORY_SYMMETRIC);
        CHECK_OK(banyan_world_allgather(world, &handle, sizeof handle, all));
        gpu_poison(plain, 2 * BYTES);
        CHECK_OK(banyan_world_barrier(world));
        int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
        write_part(memory, rank, next);
        CHECK_OK(banyan_world_barrier(world));
        check_part(memory, before, rank);
        check_part(memory, (next + ranks - 1) % ranks, next);
        void *there, *part;
        size_t part_size;
        if (all[next].kind != 0) {
            CHECK_OK(banyan_memory_map(world, &all[next], &there));
            CHECK_OK(banyan_memory_peer(memory, next, &part, &part_size));
            CHECK(there == (char *)part + 10);
        }
        uint8_t *around = gpu_read(plain, 2 * BYTES);
        for (size_t i = 0; i < 2 * BYTES; i++) {
            size_t start = (size_t)(mine - plain);
            CHECK((i >= start && i < start + bytes) || around[i] == 0xC9,
                  "byte %zu outside was written", i);
        }
        free(around);
        CHECK_OK(banyan_world_barrier(world));
        if (round < 2)
            banyan_memory_free(memory); /* the last is freed with the world */
    }
    CHECK_OK(banyan_world_barrier(world));
}

static void peers_reach_memory_that_a_rank_has_allocated(void **state)
{
    (void)state;
    if (gpu_worlds_are_cheap())
        ranks_run(1, write_and_read, NULL);
    ranks_run(3, write_and_read, NULL);
    ranks_run_threads(4, write_and_read, NULL);
}

/* Sums in place, in the caller's memory, which peers access directly. */
static void reduce(banyan_world *world, void *context)
{
    (void)context;
    enum { COUNT = 5000 };
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    DLDevice device = gpu_device_for(rank);
    float *mine = gpu_plain_alloc(device, COUNT * sizeof *mine),
          *here = malloc(COUNT * sizeof *here);
    banyan_memory *memory;
    CHECK_OK(banyan_memory_adopt(world, device, mine, COUNT * sizeof *mine, &memory));
    banyan_comm_options options = BANYAN_COMM_OPTIONS_INIT;
    options.device = device;
    banyan_comm *comm;
    CHECK_OK(banyan_comm_create(world, &options, &comm));
    CHECK_OK(banyan_comm_register(comm, memory));
    void *stream = gpu_stream_create(device);
    for (int run = 0; run < 4; run++) {
        for (int i = 0; i < COUNT; i++)
            here[i] = (float)(i % 97 * (rank + 1) + run);
        gpu_copy(mine, here, COUNT * sizeof *here);
        CHECK_OK(banyan_comm_allreduce(comm, mine, mine, COUNT, BANYAN_F32, BANYAN_SUM, stream));
        gpu_stream_wait(device, stream);
        gpu_copy(here, mine, COUNT * sizeof *here);
        for (int i = 0; i < COUNT; i++)
            CHECK(here[i] == (float)(i % 97 * (ranks * (ranks + 1) / 2) + run * ranks),
                  "run %d, element %d is %f", run, i, (double)here[i]);
        CHECK_OK(banyan_world_barrier(world));
    }
    gpu_stream_destroy(device, stream);
    CHECK_OK(banyan_comm_unregister(comm, memory));
    CHECK_OK(banyan_comm_destroy(comm));
    banyan_memory_free(memory);
    CHECK_OK(banyan_world_barrier(world));
    gpu_plain_free(device, mine);
    free(here);
}

static void collectives_run_in_it(void **state)
{
    (void)state;
    if (gpu_worlds_are_cheap())
        ranks_run(2, reduce, NULL);
    ranks_run(4, reduce, NULL);
}

static void adopt_wrongly(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), last = banyan_world_size(world) - 1;
    DLDevice device = gpu_device_for(rank);
    char *plain = gpu_plain_alloc(device, BYTES), here[64];
    void *pooled;
    banyan_memory *memory = NULL;
    CHECK_OK(gpu_memory()->alloc(device.device_id, BYTES, &pooled));
    CHECK_FAILS(banyan_memory_adopt(world, device, rank == last ? pooled : plain, BYTES, &memory),
                BANYAN_ERR_UNSUPPORTED, "stream-ordered pool");
    CHECK_FAILS(banyan_memory_adopt(world, device, rank == last ? here : plain, 64, &memory),
                BANYAN_ERR_INVALID, "not on device");
    CHECK_FAILS(banyan_memory_adopt(world, rank == last ? BANYAN_HOST : device,
                                    rank == last ? here : plain, 64, &memory),
                BANYAN_ERR_UNSUPPORTED, "host memory");
    CHECK(memory == NULL);
    banyan_memory_handle handle;
    CHECK_FAILS(banyan_memory_find(world, plain, 64, &handle), BANYAN_ERR_NOT_FOUND, "lie in");
    CHECK_OK(banyan_memory_adopt(world, device, plain, BYTES, &memory));
    CHECK_OK(banyan_world_barrier(world));
    banyan_memory_free(memory);
    CHECK_OK(banyan_world_barrier(world));
    gpu_plain_free(device, plain);
    gpu_memory()->free(device.device_id, pooled);
}

static void memory_that_cannot_be_mapped_is_refused_by_all(void **state)
{
    (void)state;
    ranks_run(3, adopt_wrongly, NULL);
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peers_reach_memory_that_a_rank_has_allocated),
        cmocka_unit_test(collectives_run_in_it),
        cmocka_unit_test(memory_that_cannot_be_mapped_is_refused_by_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
