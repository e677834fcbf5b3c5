/* The cost of running a plan beside its work: an empty one, a signal there and back, and
 * all-reduces of some sizes, in symmetric and ordinary memory. usage: bench_execute [ranks] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

#include "core/deadline.h"
#include "run/measure.h"

#define ROUNDS 40
#define ROUND_NS 1e7
#define LONGEST ((uint64_t)16 << 20)

struct bench {
    banyan_world *world;
    banyan_executor *executor;
    banyan_memory *memory;
    int rank, size;
};

static banyan_plan *compiled(banyan_program *program)
{
    banyan_plan *plan;
    need(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    return plan;
}

static banyan_program *begin(const char *name, int ranks, bool packets)
{
    banyan_collective collective = {.kind = BANYAN_ALLREDUCE};
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    banyan_program *program;
    if (packets) {
        options.protocol = BANYAN_LL;
        options.double_scratch = true;
    }
    need(banyan_program_create(name, &collective, ranks, &options, &program));
    return program;
}

static banyan_plan *empty_plan(int ranks)
{
    return compiled(begin("empty", ranks, false));
}

static banyan_plan *ping_plan(int ranks)
{
    banyan_program *program = begin("ping", ranks, false);
    banyan_program_memory_channel *there = banyan_program_memory_channel_create(program, 1, 0);
    banyan_program_memory_channel *back = banyan_program_memory_channel_create(program, 0, 1);
    banyan_program_memory_signal(there, 0, BANYAN_SYNC_NONE);
    banyan_program_memory_wait(there, 0, BANYAN_SYNC_NONE);
    banyan_program_memory_wait(back, 0, BANYAN_SYNC_NONE);
    banyan_program_memory_signal(back, 0, BANYAN_SYNC_NONE);
    return compiled(program);
}

/* Every rank sends its input to every rank, in packets. */
static banyan_plan *packet_plan(int ranks)
{
    banyan_program *program = begin("packets", ranks, true);
    uint64_t chunks = (uint64_t)ranks;
    banyan_chunk *from = calloc((size_t)ranks * (size_t)ranks, sizeof *from);
    for (int r = 0; r < ranks; r++) {
        for (int i = 0; i < ranks - 1; i++)
            from[r * ranks + i] = banyan_program_scratch(program, r, chunks);
    }
    for (int r = 0; r < ranks; r++) {
        for (int i = 1; i < ranks; i++) {
            int to = (r + i) % ranks;
            banyan_program_memory_put_packets(
                banyan_program_memory_channel_create(program, to, r), from[to * ranks + i - 1],
                banyan_program_input(program, r, 0, chunks), BANYAN_TB(0));
        }
        banyan_program_reduce_packets(
            program, r, banyan_program_input(program, r, 0, chunks), &from[r * ranks], ranks - 1,
            banyan_program_output(program, r, 0, chunks), BANYAN_SUM, BANYAN_TB(0));
    }
    free(from);
    return compiled(program);
}

/* Each rank reduces its share of every rank's input and puts it into every rank's output. */
static banyan_plan *direct_plan(int ranks)
{
    banyan_program *program = begin("direct", ranks, false);
    for (int r = 0; r < ranks; r++) {
        banyan_program_memory_channel **to =
            calloc((size_t)ranks, sizeof(banyan_program_memory_channel *));
        uint64_t mine = (uint64_t)r;
        for (int p = 0; p < ranks; p++) {
            if (p != r)
                to[p] = banyan_program_memory_channel_create(program, p, r);
        }
        for (int p = 0; p < ranks; p++) {
            if (p != r)
                banyan_program_memory_signal_relaxed(to[p], 0, BANYAN_SYNC_BOTH);
        }
        for (int p = 0; p < ranks; p++) {
            if (p != r)
                banyan_program_memory_wait_relaxed(to[p], 0, BANYAN_SYNC_AFTER);
        }
        banyan_chunk sum = banyan_program_output(program, r, mine, mine + 1);
        banyan_chunk source = banyan_program_input(program, r, mine, mine + 1);
        for (int p = 0; p < ranks; p++) {
            banyan_chunk remote = banyan_program_input(program, p, mine, mine + 1);
            if (p == r)
                continue;
            banyan_program_memory_reduce(to[p], source, &remote, 1, sum, BANYAN_SUM, BANYAN_TB(0));
            source = sum;
        }
        for (int p = 0; p < ranks; p++) {
            if (p != r)
                banyan_program_memory_put(to[p], banyan_program_output(program, p, mine, mine + 1),
                                          sum, BANYAN_TB(0));
        }
        for (int p = 0; p < ranks; p++) {
            if (p != r)
                banyan_program_memory_signal(to[p], 0, BANYAN_SYNC_BEFORE);
        }
        for (int p = 0; p < ranks; p++) {
            if (p != r)
                banyan_program_memory_wait(to[p], 0, BANYAN_SYNC_AFTER);
        }
        free(to);
    }
    return compiled(program);
}

static double time_runs(struct bench *b, banyan_loaded_plan *loaded, char *input, uint64_t bytes,
                        uint64_t runs)
{
    need(banyan_world_barrier(b->world));
    uint64_t start_ns = time_now_ns();
    for (uint64_t i = 0; i < runs; i++)
        need(banyan_loaded_plan_run(loaded, input, input + LONGEST, bytes, BANYAN_F32, NULL));
    return (double)(time_now_ns() - start_ns) / (double)runs;
}

/* Return the best of some rounds. */
static double best_ns(struct bench *b, banyan_loaded_plan *loaded, char *input, uint64_t bytes)
{
    double best = time_runs(b, loaded, input, bytes, 20);
    uint64_t runs = (uint64_t)(ROUND_NS / (best + 1)) + 1;
    need(banyan_world_broadcast(b->world, &runs, sizeof runs, 0));
    for (int i = 0; i < ROUNDS; i++) {
        double ns = time_runs(b, loaded, input, bytes, runs);
        best = ns < best ? ns : best;
    }
    return best;
}

static void measure(struct bench *b, const char *name, banyan_plan *plan, const uint64_t *sizes,
                    size_t count, bool symmetric)
{
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_loaded_plan *loaded;
    char *own = NULL, *input = banyan_memory_local(b->memory);
    options.max_message_bytes = LONGEST;
    if (symmetric)
        options.input = options.output = b->memory;
    else
        input = own = calloc(2, LONGEST);
    need(banyan_world_barrier(b->world));
    uint64_t start_ns = time_now_ns();
    need(banyan_loaded_plan_open(b->executor, plan, &options, &loaded));
    if (b->rank == 0)
        printf("%-24s %11s %12.3f us\n", name, "load", (double)(time_now_ns() - start_ns) / 1e3);
    for (size_t i = 0; i < count; i++) {
        double ns = best_ns(b, loaded, input, sizes[i]);
        if (b->rank == 0)
            printf("%-24s %9llu B %12.3f us\n", name, (unsigned long long)sizes[i], ns / 1e3);
        fflush(stdout);
    }
    need(banyan_loaded_plan_close(loaded));
    banyan_plan_destroy(plan);
    free(own);
}

static void run_benches(struct bench *b)
{
    static const uint64_t least[] = {4}, small[] = {8, 256, 4096, 65536},
                          large[] = {8, 4096, 65536, 262144, 2097152, 16777216};
    measure(b, "empty plan", empty_plan(b->size), least, 1, false);
    measure(b, "signal there and back", ping_plan(b->size), least, 1, false);
    measure(b, "packets", packet_plan(b->size), small, 4, false);
    measure(b, "direct, symmetric", direct_plan(b->size), large, 6, true);
    measure(b, "direct, ordinary", direct_plan(b->size), large, 6, false);
}

int main(int argc, char **argv)
{
    struct bench b = {.size = argc > 1 ? atoi(argv[1]) : 2};
    banyan_unique_id id;
    if (b.size < 2 || b.size > 64) {
        fprintf(stderr, "usage: bench_execute [ranks]\n");
        return 2;
    }
    need(banyan_unique_id_create(&id));
    for (b.rank = 0; b.rank < b.size - 1; b.rank++) {
        if (fork() == 0)
            break;
    }
    /* Without this the kernel may keep two ranks on one processor. */
    bound_to_processor(b.rank, b.size);
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = b.rank;
    options.world_size = b.size;
    options.unique_id = &id;
    need(banyan_world_open(&options, &b.world));
    need(banyan_executor_open(b.world, NULL, &b.executor));
    need(banyan_memory_alloc(b.world, 2 * LONGEST, &b.memory));
    memset(banyan_memory_local(b.memory), 0, 2 * LONGEST);
    run_benches(&b);
    banyan_memory_free(b.memory);
    banyan_executor_close(b.executor);
    need(banyan_world_close(b.world));
    while (b.rank == b.size - 1 && wait(NULL) > 0)
        continue;
    return 0;
}
