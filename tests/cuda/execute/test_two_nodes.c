/* GPUs of two nodes: features that do not work between nodes fail on every rank, at creation or
 * before anything moves. */
#include "support/gpu/gpu.h"
#include "support/test.h"

#include "core/deadline.h"

#define AT_ONCE_NS (5 * NS_PER_S)

enum { RANKS = 4, PER_NODE = 2 };

#define CHECK_REFUSED(world, call, status, part)                                                   \
    do {                                                                                           \
        CHECK_OK(banyan_world_barrier(world));                                                     \
        uint64_t began_ = time_now_ns();                                                           \
        CHECK_FAILS(call, status, part);                                                           \
        CHECK(time_now_ns() - began_ < AT_ONCE_NS);                                                \
        CHECK_OK(banyan_world_barrier(world));                                                     \
    } while (0)

static void refuse_copies(banyan_world *world, DLDevice device, const char *name, int rank)
{
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    banyan_copy_service *service;
    banyan_memory *memory;
    options.device = device;
    CHECK_OK(banyan_copy_service_open(world, name, &options, &service));
    CHECK_OK(banyan_memory_alloc_on(world, device, 4096, &memory));
    int64_t shape[] = {1024};
    DLTensor tensor = {.data = banyan_memory_local(memory),
                       .device = device,
                       .ndim = 1,
                       .dtype = BANYAN_U8,
                       .shape = shape};
    /* Every rank sends to the other node's, and receives from it. */
    int peer = (rank + PER_NODE) % RANKS;
    CHECK_OK(banyan_copy_service_submit_send(service, &tensor, peer, (uint64_t)rank));
    tensor.data = (char *)tensor.data + 2048;
    CHECK_OK(banyan_copy_service_submit_recv(service, &tensor, peer, (uint64_t)peer));
    CHECK_REFUSED(world, banyan_copy_service_run(service, NULL), BANYAN_ERR_UNSUPPORTED,
                  ") cannot reach that of rank ");
    banyan_copy_service_close(service);
    banyan_memory_free(memory);
}

static void refuse(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world;
    banyan_world_options where = BANYAN_WORLD_OPTIONS_INIT;
    where.rank = rank;
    where.world_size = count;
    where.unique_id = id;
    where.node = rank < PER_NODE ? "left" : "right";
    CHECK_OK(banyan_world_open(&where, &world));
    DLDevice device = gpu_device_for(rank);
    banyan_copy_options copying = BANYAN_COPY_OPTIONS_INIT;
    copying.device = device;
    copying.transport = "nvshmem";
    banyan_copy_service *service = NULL;
    setenv("BANYAN_NVSHMEM", "/no/such/library", 1);
    CHECK_REFUSED(
        world, banyan_copy_service_open(world, NULL, &copying, &service), BANYAN_ERR_UNSUPPORTED,
        "no copy backend carries tensors between the 2 nodes of this world (rank 0 is on "
        "node left, rank 2 on node right): pipeline, over UCX or NVSHMEM, does where it is");
    CHECK(!service);
    refuse_copies(world, device, "direct", rank);
    if (gpu_is_emulated() || gpu_count() >= RANKS) /* NCCL needs a GPU for each rank */
        refuse_copies(world, device, "nccl", rank);
    CHECK_OK(banyan_world_close(world));
}

static void objects_of_one_node_are_refused_at_every_rank(void **state)
{
    (void)state;
    int statuses[RANKS];
    ranks_fork(RANKS, refuse, NULL, statuses);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(statuses[rank], 0);
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(objects_of_one_node_are_refused_at_every_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
