/* Common code of tests of the pipeline between GPUs, for every transport. */
#ifndef TESTS_CUDA_GPU_PIPELINE_H
#define TESTS_CUDA_GPU_PIPELINE_H

#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "cuda/gpu_copy.h"

/* Call it first in main. Graphs of emulated GPUs run in any order that the capture permits, as
 * real ones may. A test that hangs on a real GPU should report its position before its time is
 * over. */
static inline void gpu_pipeline_begin(void)
{
    char seed[32];
    gpu_count();
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)random_seed());
    setenv("BANYAN_EMULATED_GRAPH_SEED", seed, 0);
    if (!gpu_is_emulated())
        setenv("BANYAN_TIMEOUT", "8", 0);
}

/* Ranks take seconds to start on real GPUs, so tests that other programs have too are skipped
 * there. */
static inline bool gpu_pipeline_leaves_out(void)
{
    if (!gpu_is_emulated())
        printf("left out: on emulated GPUs only\n");
    return !gpu_is_emulated();
}

#define PAIR_BYTES 100000
#define PAIR_SLOT_BYTES 10000

typedef struct pair {
    banyan_memory *memory; /* the sent data, then the received */
    banyan_copy_service *service;
    banyan_copy_schedule *schedule;
    DLDevice device;
    void *stream;
} pair;

/* Every rank sends to all others and receives from all, in many rounds. */
static inline pair open_pair(banyan_world *world, const char *transport, uint64_t timeout_ns)
{
    static int64_t shape[] = {PAIR_BYTES};
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    plan_of_test test = {.backend = "pipeline",
                         .transport = transport,
                         .slot_bytes = PAIR_SLOT_BYTES,
                         .timeout_ns = timeout_ns};
    pair made = {.device = gpu_device_for(rank)};
    CHECK_OK(banyan_memory_alloc_on(world, made.device, (size_t)size * PAIR_BYTES, &made.memory));
    gpu_poison(banyan_memory_local(made.memory), (size_t)size * PAIR_BYTES);
    made.stream = gpu_stream_create(made.device);
    made.service = open_on(world, made.device, &test);
    DLTensor tensor = {.device = made.device, .ndim = 1, .dtype = BANYAN_U8, .shape = shape};
    for (int i = 1; i < size; i++) {
        tensor.data = banyan_memory_local(made.memory);
        CHECK_OK(banyan_copy_service_submit_send(made.service, &tensor, (rank + i) % size, 1));
        tensor.data = (char *)tensor.data + i * PAIR_BYTES;
        CHECK_OK(banyan_copy_service_submit_recv(made.service, &tensor, (rank + i) % size, 1));
    }
    CHECK_OK(banyan_copy_service_prepare(made.service, &made.schedule));
    return made;
}

static inline void close_pair(pair *closed)
{
    banyan_copy_schedule_destroy(closed->schedule);
    banyan_copy_service_close(closed->service);
    gpu_stream_destroy(closed->device, closed->stream);
    banyan_memory_free(closed->memory);
}

typedef struct late_test {
    const char *transport;
    int rank_1_is_done; /* in memory that both ranks share */
} late_test;

static inline void be_late(int rank, int count, const banyan_unique_id *id, void *context)
{
    late_test *test = context;
    banyan_world *world = ranks_open_world(rank, count, id, UINT64_C(60000000000));
    pair both = open_pair(world, test->transport, UINT64_C(1500000000));
    if (rank == 0) {
        CHECK_OK(banyan_copy_schedule_run(both.schedule, both.stream));
        CHECK_OK(banyan_copy_service_check(both.service));
        gpu_stream_wait(both.device, both.stream);
        CHECK_FAILS(banyan_copy_service_check(both.service), BANYAN_ERR_TIMEOUT,
                    "pipeline: rank 0 waited ");
        CHECK(strstr(banyan_last_error(), "; rank 1 (pid ") &&
                  strstr(banyan_last_error(), "; timeout_ns of banyan_copy_options sets how long"),
              "%s", banyan_last_error());
        CHECK_FAILS(banyan_copy_schedule_run(both.schedule, both.stream), BANYAN_ERR_TIMEOUT,
                    "rank 1");
        for (int i = 0; i < 3000 && !__atomic_load_n(&test->rank_1_is_done, __ATOMIC_ACQUIRE); i++)
            usleep(10000);
    } else {
        /* Rank 0's data are there, or a wrong batch, which must not pass for the data. */
        usleep(2500000);
        CHECK_OK(banyan_copy_schedule_run(both.schedule, both.stream));
        gpu_stream_wait(both.device, both.stream);
        CHECK_FAILS(banyan_copy_service_check(both.service), BANYAN_ERR_ABORTED,
                    "rank 1 got no batch from rank 0, whose run has failed");
        __atomic_store_n(&test->rank_1_is_done, 1, __ATOMIC_RELEASE);
    }
    close_pair(&both);
    banyan_world_close(world);
}

static inline void gpu_pipeline_test_late(const char *transport)
{
    int statuses[2];
    late_test *test =
        mmap(NULL, sizeof *test, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(test != MAP_FAILED);
    test->transport = transport;
    ranks_fork(2, be_late, test, statuses);
    munmap(test, sizeof *test);
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[1], 0);
}

static inline void die(int rank, int count, const banyan_unique_id *id, void *context)
{
    banyan_world *world = ranks_open_world(rank, count, id, UINT64_C(60000000000));
    pair all = open_pair(world, context, 0);
    CHECK_OK(banyan_world_barrier(world));
    if (rank == 1) {
        usleep(200000);
        kill(getpid(), SIGKILL);
    }
    CHECK_OK(banyan_copy_schedule_run(all.schedule, all.stream));
    gpu_stream_wait(all.device, all.stream);
    CHECK(banyan_copy_service_check(all.service) != BANYAN_OK, "rank %d has all of rank 1's data",
          rank);
    CHECK_FAILS(banyan_world_check(world), BANYAN_ERR_PEER_LOST, "rank 1");
    close_pair(&all);
    banyan_world_close(world);
}

#endif
