/* The cost of planning a pipeline: packing tasks into batches, ordering the batches by rotation and
 * by colouring. Pure computation, one rank's (for colouring rank 0's) time.
 *
 * Usage: bench_pipeline */
#include <inttypes.h>
#include <stdio.h>

#include "copy/schedule/rounds.h"
#include "core/deadline.h"

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static double ms_since(uint64_t start_ns)
{
    return (double)(time_now_ns() - start_ns) / (double)NS_PER_MS;
}

static void fail(void)
{
    fprintf(stderr, "bench_pipeline: %s\n", banyan_last_error());
    exit(1);
}

static void bench_batches(size_t task_count, uint64_t most_elems, uint64_t slot_bytes)
{
    uint64_t random = 1, bytes = 0;
    pipeline_task *tasks = calloc(task_count, sizeof *tasks);
    pipeline_batches batches = {0};
    if (!tasks)
        fail();
    for (size_t i = 0; i < task_count; i++) {
        tasks[i] = (pipeline_task){1 + next_random(&random) % most_elems, 2};
        bytes += tasks[i].elems * 2;
    }
    uint64_t start_ns = time_now_ns();
    if (pipeline_batch_pack(tasks, task_count, slot_bytes, &batches) != BANYAN_OK)
        fail();
    double ms = ms_since(start_ns);
    printf("%8zu tasks %9.1f MiB   %7zu batches (%.3f of the least)  %9.3f ms\n", task_count,
           (double)bytes / (1 << 20), batches.list.count,
           (double)batches.list.count / (double)((bytes - 1) / slot_bytes + 1), ms);
    pipeline_batches_free(&batches);
    free(tasks);
}

/* Every rank sends to every other; `uneven`: ranks with small numbers send most. */
static void bench_colouring(int ranks, uint64_t most_batches, bool uneven)
{
    uint64_t random = 2, batches = 0;
    size_t count = 0;
    colour_pair *pairs = calloc((size_t)ranks * (size_t)ranks, sizeof *pairs);
    colouring result = {0};
    if (!pairs)
        fail();
    for (int from = 0; from < ranks; from++) {
        for (int to = 0; to < ranks; to++) {
            uint64_t most =
                uneven ? most_batches * (uint64_t)ranks / (uint64_t)(1 + from + to) : most_batches;
            uint64_t between = from == to ? 0 : next_random(&random) % (most + 1);
            if (between > 0)
                pairs[count++] = (colour_pair){from, to, between};
            batches += between;
        }
    }
    uint64_t start_ns = time_now_ns();
    if (colour_rounds(pairs, count, ranks, &result) != BANYAN_OK)
        fail();
    double ms = ms_since(start_ns);
    printf("%5d ranks, %-6s %9" PRIu64 " batches   %7" PRIu64 " rounds  %9.3f ms  %6.1f ns/batch  "
           "%5.1f steps/batch\n",
           ranks, uneven ? "uneven" : "even", batches, result.rounds, ms,
           ms * 1e6 / (double)batches, (double)result.steps / (double)batches);
    colouring_free(&result);
    free(pairs);
}

static void bench_rotation(int ranks, size_t batches_each)
{
    pipeline_flow *flows = calloc((size_t)ranks, sizeof *flows);
    pipeline_rounds rounds = {0};
    size_t count = 0;
    if (!flows)
        fail();
    for (int peer = 1; peer < ranks; peer++) {
        flows[count].peer = peer;
        for (size_t i = 0; i < batches_each; i++) {
            if (!array_push(&flows[count].batches.list, (pipeline_batch){0}))
                fail();
        }
        count++;
    }
    uint64_t start_ns = time_now_ns();
    if (pipeline_rounds_rotate(0, ranks, flows, count, flows, count, &rounds) != BANYAN_OK)
        fail();
    printf("%5d ranks         %9zu batches                   %9.3f ms\n", ranks,
           2 * count * batches_each, ms_since(start_ns));
    array_free(&rounds);
    for (size_t i = 0; i < count; i++)
        pipeline_flow_free(&flows[i]);
    free(flows);
}

int main(void)
{
    printf("batches of 512 KiB for one destination\n");
    bench_batches(1000, 4096, 512 << 10);
    bench_batches(10000, 4096, 512 << 10);
    bench_batches(100000, 4096, 512 << 10);
    bench_batches(1000, 8 << 20, 512 << 10);
    printf("rounds by rotation, one rank\n");
    bench_rotation(64, 100);
    bench_rotation(1024, 100);
    printf("rounds by colouring, the whole world\n");
    bench_colouring(8, 2000, false);
    bench_colouring(64, 50, false);
    bench_colouring(64, 20, true);
    bench_colouring(256, 4, false);
    bench_colouring(256, 4, true);
    bench_colouring(1024, 1, true);
    return 0;
}
