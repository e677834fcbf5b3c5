/* Speed of copies that fit caches, by the offset of the destination behind the source in their
 * pages: beside memcpy, and beside memcpy with equal offsets, which is the limit. Also copies from
 * core to core, where each reads what the other writes, and writes into the caches of the other. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/deadline.h"
#include "memory/stream.h"

#define ROOM ((size_t)2 << 20)
#define BATCHES 40
#define BATCH_BYTES ((size_t)1 << 20)
#define PASSED_MOST ((size_t)16 << 20)
#define PASSES 4 /* in a batch */

typedef void (*copy_fn)(void *destination, const void *source, size_t bytes);

static void by_memcpy(void *destination, const void *source, size_t bytes)
{
    memcpy(destination, source, bytes);
}

static void by_stream(void *destination, const void *source, size_t bytes)
{
    stream_copy(destination, source, bytes);
}

static void past_cache(void *destination, const void *source, size_t bytes)
{
    stream_past_cache(destination, source, bytes);
    stream_fence();
}

/* Return the GB/s of the fastest of several batches. */
static double rate(copy_fn copy, char *to, const char *from, size_t bytes)
{
    double best = 0;
    for (int batch = 0; batch < BATCHES; batch++) {
        size_t repeats = BATCH_BYTES / bytes;
        uint64_t start = time_now_ns();
        for (size_t i = 0; i < repeats; i++)
            copy(to, from, bytes);
        double now = (double)(repeats * bytes) / (double)(time_now_ns() - start);
        best = now > best ? now : best;
    }
    return best;
}

/* Two threads, each of which writes where the other reads. */
typedef struct side {
    char *own, *shared,
        *taken;     /* its own data, the buffer that the other writes, and the copy of that */
    double seconds; /* of a pass, in the fastest batch */
    _Atomic unsigned arrived;
} side;

typedef struct passing {
    side sides[2];
    copy_fn copy;
    size_t bytes;
    int cores[2];
} passing;

typedef struct passer {
    passing *all;
    int me;
} passer;

static void wait_for_peer(passing *all, int me)
{
    unsigned mine = atomic_fetch_add(&all->sides[me].arrived, 1) + 1;
    while (atomic_load(&all->sides[!me].arrived) < mine) {
    }
}

static void *pass_on(void *context)
{
    const passer *of = context;
    passing *all = of->all;
    side *mine = &all->sides[of->me], *peer = &all->sides[!of->me];
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(all->cores[of->me], &core);
    pthread_setaffinity_np(pthread_self(), sizeof core, &core);
    mine->seconds = 1e9;
    for (int batch = 0; batch < BATCHES; batch++) {
        wait_for_peer(all, of->me);
        uint64_t start = time_now_ns();
        for (int pass = 0; pass < PASSES; pass++) {
            all->copy(peer->shared, mine->own, all->bytes);
            wait_for_peer(all, of->me);
            all->copy(mine->taken, mine->shared, all->bytes);
            wait_for_peer(all, of->me);
        }
        double seconds = (double)(time_now_ns() - start) * 1e-9 / PASSES;
        mine->seconds = seconds < mine->seconds ? seconds : mine->seconds;
    }
    return NULL;
}

/* Return the GB/s that each core writes, half of it to the other. */
static double passing_rate(passing *all, copy_fn copy, size_t bytes)
{
    passer passers[2] = {{all, 0}, {all, 1}};
    pthread_t other;
    all->copy = copy;
    all->bytes = bytes;
    if (pthread_create(&other, NULL, pass_on, &passers[1]) != 0)
        return 0;
    pass_on(&passers[0]);
    pthread_join(other, NULL);
    return 2 * (double)bytes / all->sides[0].seconds * 1e-9;
}

static bool find_cores(int cores[2])
{
    cpu_set_t set;
    int found = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return false;
    for (int core = 0; core < CPU_SETSIZE && found < 2; core++) {
        if (CPU_ISSET(core, &set))
            cores[found++] = core;
    }
    return found == 2;
}

static int print_passing(void)
{
    passing all = {.copy = by_memcpy};
    if (!find_cores(all.cores)) {
        printf("copies between two cores: there is one\n");
        return 0;
    }
    char *memory = aligned_alloc(4096, 6 * PASSED_MOST);
    if (!memory)
        return 1;
    memset(memory, 1, 6 * PASSED_MOST);
    for (int i = 0; i < 2; i++) {
        char *at = memory + (size_t)i * 3 * PASSED_MOST;
        all.sides[i].own = at;
        all.sides[i].shared = at + PASSED_MOST;
        all.sides[i].taken = at + 2 * PASSED_MOST;
    }
    printf("copies between two cores, GB/s that each writes\n%10s %10s %10s %10s\n", "bytes",
           "memcpy", "banyan", "past caches");
    for (size_t bytes = (size_t)256 << 10; bytes <= PASSED_MOST; bytes *= 2) {
        double plain = passing_rate(&all, by_memcpy, bytes);
        double ours = passing_rate(&all, by_stream, bytes);
        double past = passing_rate(&all, past_cache, bytes);
        printf("%10zu %10.1f %10.1f %10.1f\n", bytes, plain, ours, past);
    }
    free(memory);
    return 0;
}

int main(void)
{
    static const size_t behind[] = {1, 8, 15, 16}, sizes[] = {4096, 16384, 65536, 262144};
    char *from = aligned_alloc(4096, ROOM), *to = aligned_alloc(4096, ROOM);
    if (!from || !to)
        return 1;
    memset(from, 1, ROOM);
    memset(to, 2, ROOM);
    printf("copies on one core, GB/s\n%10s %8s %10s %10s %10s %10s\n", "bytes", "behind", "memcpy",
           "banyan", "limit", "of limit");
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (size_t b = 0; b < sizeof behind / sizeof *behind; b++) {
            double plain = rate(by_memcpy, to + behind[b], from, sizes[s]);
            double ours = rate(by_stream, to + behind[b], from, sizes[s]);
            double limit = rate(by_memcpy, to, from, sizes[s]);
            printf("%10zu %8zu %10.1f %10.1f %10.1f %8.0f %%\n", sizes[s], behind[b], plain, ours,
                   limit, 100 * ours / limit);
        }
    }
    free(from);
    free(to);
    return print_passing();
}
