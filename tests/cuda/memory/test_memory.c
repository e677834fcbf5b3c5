/* Symmetric buffers on GPUs: every byte that a rank writes into a peer's part arrives there and
 * nowhere else, and no memory is leaked. */
#include "support/test.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/descriptors.h"
#include "support/gpu/gpu_stream.h"

/* A size that all ranks can compute; some are 0, some large. */
static size_t part_bytes(uint64_t seed, int round, int rank)
{
    random_state random = random_from(seed + (uint64_t)round * 1000 + (uint64_t)rank);
    switch (random_between(&random, 0, 3)) {
    case 0:
        return (size_t)random_between(&random, 0, 3) * 1000;
    case 1:
        return (size_t)random_between(&random, 1, 20000);
    case 2:
        return (size_t)2 << 20;
    default:
        return (size_t)random_between(&random, 1 << 20, 5 << 20);
    }
}

/* Every writer has a stripe of every part. Returns the start of a writer's stripe in a part of
 * this size. */
static size_t stripe_start(size_t bytes, int ranks, int writer)
{
    return bytes / (size_t)ranks * (size_t)writer;
}

static size_t stripe_end(size_t bytes, int ranks, int writer)
{
    return writer + 1 == ranks ? bytes : stripe_start(bytes, ranks, writer + 1);
}

static void fill_stripe(unsigned char *stripe, size_t bytes, int round, int writer, int owner)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t place = (((uint64_t)round * 8 + (uint64_t)writer) * 8 + (uint64_t)owner) << 32 | i;
        unsigned char element[8];
        pattern_element("part", place, 8, element);
        memcpy(stripe + i, element, bytes - i < 8 ? bytes - i : 8);
    }
}

static void check_zero(const void *part, size_t bytes)
{
    unsigned char *here = gpu_read(part, bytes);
    for (size_t i = 0; i < bytes; i++)
        CHECK(here[i] == 0, "byte %zu of a fresh buffer is %d", i, here[i]);
    free(here);
}

static void write_into(const banyan_memory *memory, int round, int writer, int ranks, int owner)
{
    void *part;
    size_t bytes;
    CHECK_OK(banyan_memory_peer(memory, owner, &part, &bytes));
    size_t start = stripe_start(bytes, ranks, writer), end = stripe_end(bytes, ranks, writer);
    unsigned char *stripe = malloc(end - start + 1);
    fill_stripe(stripe, end - start, round, writer, owner);
    gpu_copy((char *)part + start, stripe, end - start);
    free(stripe);
}

static void check_part(const banyan_memory *memory, int round, int ranks, int owner)
{
    void *part;
    size_t bytes;
    CHECK_OK(banyan_memory_peer(memory, owner, &part, &bytes));
    unsigned char *here = gpu_read(part, bytes), *expected = malloc(bytes + 1);
    for (int writer = 0; writer < ranks; writer++) {
        size_t start = stripe_start(bytes, ranks, writer);
        fill_stripe(expected + start, stripe_end(bytes, ranks, writer) - start, round, writer,
                    owner);
    }
    for (size_t i = 0; i < bytes; i++)
        CHECK(here[i] == expected[i], "round %d, byte %zu of %zu of rank %d is %#x, not %#x", round,
              i, bytes, owner, here[i], expected[i]);
    free(here);
    free(expected);
}

static void write_and_read_all(banyan_world *world, void *context)
{
    uint64_t seed = *(uint64_t *)context;
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    DLDevice device = gpu_device_for(rank), found;
    for (int round = 0; round < 4; round++) {
        size_t bytes = part_bytes(seed, round, rank);
        banyan_memory *memory;
        CHECK_OK(banyan_memory_alloc_on(world, device, bytes, &memory));
        CHECK(banyan_memory_bytes(memory) == bytes);
        CHECK(banyan_memory_device(memory).device_type == kDLCUDA);
        CHECK(banyan_memory_device(memory).device_id == device.device_id);
        if (bytes > 0) {
            CHECK_OK(banyan_memory_locate(banyan_memory_local(memory), &found));
            CHECK(found.device_type == kDLCUDA && found.device_id == device.device_id);
        }
        check_zero(banyan_memory_local(memory), bytes);
        CHECK_OK(banyan_world_barrier(world));
        for (int owner = 0; owner < ranks; owner++)
            write_into(memory, round, rank, ranks, owner);
        CHECK_OK(banyan_world_barrier(world));
        for (int owner = 0; owner < ranks; owner++)
            check_part(memory, round, ranks, owner);
        CHECK_OK(banyan_world_barrier(world));
        banyan_memory_free(memory);
    }
}

static void peers_read_the_data_of_all_ranks(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    for (int ranks = gpu_worlds_are_cheap() ? 1 : 4; ranks <= 4; ranks++)
        ranks_run(ranks, write_and_read_all, &seed);
}

static void ranks_may_be_threads(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    for (int ranks = gpu_worlds_are_cheap() ? 1 : 4; ranks <= 4; ranks++)
        ranks_run_threads(ranks, write_and_read_all, &seed);
}

/* More ranks than devices: some share one. */
static void ranks_may_share_a_device(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    int ranks = gpu_count() + 1 <= 5 ? gpu_count() + 1 : 5;
    ranks_run(ranks, write_and_read_all, &seed);
    if (gpu_worlds_are_cheap())
        ranks_run_threads(ranks, write_and_read_all, &seed);
}

static void lead_to_peers(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), next = (rank + 1) % banyan_world_size(world);
    banyan_memory *first, *second;
    CHECK_OK(banyan_memory_alloc_on(world, gpu_device_for(rank), 10000, &first));
    CHECK_OK(banyan_memory_alloc_on(world, gpu_device_for(rank), 500, &second));
    banyan_memory_handle handle, all[8];
    char *mine = banyan_memory_local(first);
    gpu_fill(mine, (uint8_t)(rank + 50), 10000);
    CHECK_OK(banyan_memory_find(world, mine + 100, 50, &handle));
    CHECK(handle.kind == BANYAN_MEMORY_SYMMETRIC && handle.rank == rank);
    CHECK_OK(banyan_world_allgather(world, &handle, sizeof handle, all));

    void *there, *base;
    size_t bytes;
    CHECK_OK(banyan_memory_map(world, &all[next], &there));
    CHECK_OK(banyan_memory_peer(first, next, &base, &bytes));
    CHECK(there == (char *)base + 100);
    banyan_memory_handle bad = all[next];
    bad.bytes = 10000;
    CHECK_FAILS(banyan_memory_map(world, &bad, &there), BANYAN_ERR_INVALID, "extend beyond");

    CHECK_OK(banyan_world_barrier(world));
    banyan_memory_free(rank % 2 == 0 ? first : second);
    CHECK_OK(banyan_world_barrier(world));
    if (rank % 2 == 1) {
        unsigned char *here = gpu_read(base, bytes);
        for (size_t i = 0; i < bytes; i++)
            CHECK(here[i] == next + 50, "a freed part went away from those who map it");
        free(here);
        banyan_memory_free(first);
    }
    /* The rest is freed with the world. */
}

static void a_handle_leads_to_the_peer_and_a_freed_part_stays(void **state)
{
    (void)state;
    ranks_run(3, lead_to_peers, NULL);
    if (gpu_worlds_are_cheap())
        ranks_run_threads(3, lead_to_peers, NULL);
}

/* While the thread captures a stream, memory is allocated, filled, copied and freed. None of this
 * becomes part of the graph. */
static void work_while_capturing(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    DLDevice device = gpu_device_for(rank);
    const memory_device_ops *ops = gpu_memory();
    char *here = calloc(1, 5000);
    void *before, *during;
    banyan_memory *memory;
    CHECK_OK(ops->open(device.device_id));
    CHECK_OK(ops->alloc(device.device_id, 5000, &before));
    gpu_fill(before, 1, 5000);
    void *stream = gpu_stream_create(device);
    gpu_capture_begin(device, stream);
    gpu_stream_fill(device, stream, before, 2, 5000);
    CHECK_OK(ops->alloc(device.device_id, 5000, &during));
    gpu_fill(during, 3, 5000);
    CHECK_OK(banyan_memory_alloc_on(world, device, 5000, &memory));
    gpu_copy(banyan_memory_local(memory), during, 5000);
    gpu_copy(here, banyan_memory_local(memory), 5000);
    ops->free(device.device_id, during);
    banyan_memory_free(memory);
    void *graph = gpu_capture_end(device, stream);
    for (size_t i = 0; i < 5000; i++)
        CHECK(here[i] == 3);
    gpu_copy(here, before, 5000);
    for (size_t i = 0; i < 5000; i++)
        CHECK(here[i] == 1, "what is captured has run");
    gpu_graph_launch(device, graph, stream);
    gpu_stream_wait(device, stream);
    gpu_copy(here, before, 5000);
    for (size_t i = 0; i < 5000; i++)
        CHECK(here[i] == 2, "what was captured has not run");
    gpu_graph_destroy(device, graph);
    gpu_stream_destroy(device, stream);
    ops->free(device.device_id, before);
    free(here);
}

static void memory_is_made_and_copied_while_a_stream_is_captured(void **state)
{
    (void)state;
    ranks_run(2, work_while_capturing, NULL);
}

/* Rank 0 dies with a buffer that rank 1 has mapped. */
static void outlive(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world = ranks_open_world(rank, count, id, 0);
    banyan_memory *memory;
    void *part;
    size_t bytes;
    CHECK_OK(banyan_memory_alloc_on(world, gpu_device_for(rank), 3 << 20, &memory));
    gpu_fill(banyan_memory_local(memory), (uint8_t)(rank + 7), 3 << 20);
    CHECK_OK(banyan_world_barrier(world));
    if (rank == 0)
        kill(getpid(), SIGKILL);
    CHECK(banyan_world_barrier(world) == BANYAN_ERR_PEER_LOST);
    CHECK_OK(banyan_memory_peer(memory, 0, &part, &bytes));
    unsigned char *here = gpu_read(part, bytes);
    for (size_t i = 0; i < bytes; i++)
        CHECK(here[i] == 7, "byte %zu of a dead rank's part is %d", i, here[i]);
    free(here);
    banyan_memory_free(memory);
    banyan_world_close(world);
}

static void a_part_outlives_its_owner(void **state)
{
    (void)state;
    int statuses[2];
    ranks_fork(2, outlive, NULL, statuses);
    assert_true(WIFSIGNALED(statuses[0]));
    assert_int_equal(statuses[1], 0);
}

static void ask_wrongly(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), last = banyan_world_size(world) - 1;
    banyan_memory *memory = NULL;
    DLDevice device = gpu_device_for(rank);
    DLDevice absent = rank == last ? BANYAN_CUDA(63) : device;
    CHECK_FAILS(banyan_memory_alloc_on(world, absent, 4096, &memory), BANYAN_ERR_UNSUPPORTED,
                "no device 63");
    DLDevice mixed = rank == last ? BANYAN_HOST : device;
    CHECK_FAILS(banyan_memory_alloc_on(world, mixed, 4096, &memory), BANYAN_ERR_MISMATCH,
                "at rank");
    DLDevice odd = rank == last ? (DLDevice){kDLROCM, 0} : device;
    CHECK_FAILS(banyan_memory_alloc_on(world, odd, 4096, &memory), BANYAN_ERR_UNSUPPORTED,
                "type 10");
    for (int shift = 46; shift <= 62; shift += 16) {
        size_t bytes = rank == last ? (size_t)1 << shift : 4096;
        CHECK_FAILS(banyan_memory_alloc_on(world, device, bytes, &memory), BANYAN_ERR_NO_MEMORY,
                    "bytes are free");
    }
    CHECK(memory == NULL);
    CHECK_OK(banyan_memory_alloc_on(world, device, 4096, &memory));
    check_zero(banyan_memory_local(memory), 4096);
    banyan_memory_free(memory);
}

static void a_wrong_request_of_one_rank_fails_all_of_them(void **state)
{
    (void)state;
    ranks_run(3, ask_wrongly, NULL);
    if (gpu_worlds_are_cheap())
        ranks_run_threads(2, ask_wrongly, NULL);
}

static void ask_for_apart(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    banyan_memory *memory = NULL;
    CHECK_FAILS(banyan_memory_alloc_on(world, gpu_device_for(rank), 4096, &memory),
                BANYAN_ERR_UNSUPPORTED, "cannot reach device");
    CHECK(memory == NULL);
    /* With one GPU, all ranks agree; and the ranks remain in step. */
    CHECK_OK(banyan_memory_alloc_on(world, gpu_device_for(0), 4096, &memory));
    CHECK_OK(banyan_world_barrier(world));
    banyan_memory_free(memory);
}

static void gpus_that_cannot_reach_each_other_are_refused(void **state)
{
    (void)state;
    if (!gpu_is_emulated()) {
        printf("GPUs that are apart are emulated only\n");
        skip();
    }
    setenv("BANYAN_EMULATED_APART", "1", 1);
    ranks_run(3, ask_for_apart, NULL);
    unsetenv("BANYAN_EMULATED_APART");
}

static void locate_on_the_host(banyan_world *world, void *context)
{
    (void)context;
    DLDevice device;
    CHECK_OK(banyan_memory_locate(world, &device));
    CHECK(device.device_type == kDLCPU);
    banyan_memory *memory;
    CHECK_OK(banyan_memory_alloc_on(world, BANYAN_HOST, 4096, &memory));
    CHECK(banyan_memory_device(memory).device_type == kDLCPU);
    memset(banyan_memory_local(memory), 1, 4096);
    gpu_memory();
    CHECK_OK(banyan_memory_locate(banyan_memory_local(memory), &device));
    CHECK(device.device_type == kDLCPU);
    banyan_memory_free(memory);
}

static void ordinary_memory_is_the_hosts(void **state)
{
    (void)state;
    ranks_run(2, locate_on_the_host, NULL);
}

#define KEPT_BYTES ((size_t)48 << 20)

static void take_and_give_back(banyan_world *world)
{
    banyan_memory *memory[3];
    for (size_t i = 0; i < 3; i++)
        CHECK_OK(banyan_memory_alloc_on(world, gpu_device_for(banyan_world_rank(world)),
                                        i * KEPT_BYTES, &memory[i]));
    CHECK_OK(banyan_world_barrier(world));
    for (size_t i = 0; i < 3; i++)
        banyan_memory_free(memory[(i + 1) % 3]);
}

/* The first round also allocates memory that a process keeps until it ends. */
static void keep_nothing(banyan_world *world, void *context)
{
    (void)context;
    take_and_give_back(world);
    size_t room = gpu_free_bytes(world), descriptors = open_descriptors();
    for (int round = 0; round < 3; round++)
        take_and_give_back(world);
    size_t room_after = gpu_free_bytes(world), descriptors_after = open_descriptors();
    CHECK(descriptors_after <= descriptors, "%zu descriptors, %zu before", descriptors_after,
          descriptors);
    CHECK(room_after + KEPT_BYTES > room, "%zu bytes are free, %zu before", room_after, room);
}

static void nothing_stays_behind(void **state)
{
    (void)state;
    ranks_run(2, keep_nothing, NULL);
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peers_read_the_data_of_all_ranks),
        cmocka_unit_test(ranks_may_be_threads),
        cmocka_unit_test(ranks_may_share_a_device),
        cmocka_unit_test(a_handle_leads_to_the_peer_and_a_freed_part_stays),
        cmocka_unit_test(memory_is_made_and_copied_while_a_stream_is_captured),
        cmocka_unit_test(a_part_outlives_its_owner),
        cmocka_unit_test(a_wrong_request_of_one_rank_fails_all_of_them),
        cmocka_unit_test(gpus_that_cannot_reach_each_other_are_refused),
        cmocka_unit_test(ordinary_memory_is_the_hosts),
        cmocka_unit_test(nothing_stays_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
