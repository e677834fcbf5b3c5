#include "fibers.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "stores.h"
#include "switch.h"

#define STACK_BYTES ((size_t)64 << 10)
#define SHARED_MARGIN 128 /* before it, for the emulation's own data */
#define WARP 32

/* As in emulation.hpp. */
typedef struct place {
    fiber_index thread, block, block_size, grid_size;
    char *shared;
} place;

typedef struct warp {
    unsigned alive, waiting;
    uint64_t round;
    uint64_t words[WARP];
} warp;

typedef struct block {
    unsigned alive, waiting; /* at the barrier */
    uint64_t round;          /* number of completed barriers */
    warp *warps;
} block;

typedef struct fiber {
    machine_context context;
    place at;
    block *of;
    unsigned lane;
    warp *in;
    bool ended;
} fiber;

/* A running launch of this thread. */
typedef struct launch {
    fiber *fibers;
    size_t count, alive, current;
    char *stacks;
    machine_context home;
    void (*body)(const void *argument);
    const void *argument;
    uint64_t random;
    unsigned turns; /* since the processor was last yielded */
    unsigned dawdles;
} launch;

static __thread launch *running;
__thread const place *emulated_here;

void emulated_yield(void);
void emulated_dawdle(void);
void emulated_block_barrier(void);
void emulated_warp_barrier(void);
uint64_t emulated_warp_exchange(uint64_t word, unsigned from);

static uint64_t draw(launch *of)
{
    of->random ^= of->random << 13;
    of->random ^= of->random >> 7;
    of->random ^= of->random << 17;
    return of->random;
}

static size_t next_fiber(launch *of)
{
    size_t at = of->random ? draw(of) % of->count : of->current;
    do
        at = (at + 1) % of->count;
    while (of->fibers[at].ended);
    return at;
}

/* The launch may also wait for other threads and processes. */
static void offer_processor(launch *of)
{
    if (++of->turns < of->alive)
        return;
    of->turns = 0;
    sched_yield();
}

void emulated_yield(void)
{
    launch *of = running;
    offer_processor(of);
    fiber *from = &of->fibers[of->current];
    size_t to = next_fiber(of);
    if (to == of->current)
        return;
    of->current = to;
    emulated_here = &of->fibers[to].at;
    context_switch(&from->context, &of->fibers[to].context);
}

void emulated_dawdle(void)
{
    if (running && ++running->dawdles % 5 == 0)
        emulated_yield();
}

static bool pass_if_last(unsigned alive, unsigned *waiting, uint64_t *round)
{
    if (*waiting < alive || alive == 0)
        return false;
    *waiting = 0;
    (*round)++;
    return true;
}

static void meet(const unsigned *alive, unsigned *waiting, uint64_t *round)
{
    uint64_t entered = *round;
    (*waiting)++;
    while (*round == entered && !pass_if_last(*alive, waiting, round))
        emulated_yield();
}

void emulated_block_barrier(void)
{
    block *of = running->fibers[running->current].of;
    meet(&of->alive, &of->waiting, &of->round);
}

void emulated_warp_barrier(void)
{
    warp *in = running->fibers[running->current].in;
    meet(&in->alive, &in->waiting, &in->round);
}

uint64_t emulated_warp_exchange(uint64_t word, unsigned from)
{
    const fiber *mine = &running->fibers[running->current];
    mine->in->words[mine->lane] = word;
    emulated_warp_barrier();
    uint64_t got = mine->in->words[from];
    emulated_warp_barrier();
    return got;
}

static void fiber_main(void)
{
    launch *of = running;
    fiber *mine = &of->fibers[of->current];
    of->body(of->argument);
    mine->ended = true;
    mine->of->alive--;
    mine->in->alive--;
    if (--of->alive == 0)
        context_switch(&mine->context, &of->home);
    of->current = next_fiber(of);
    emulated_here = &of->fibers[of->current].at;
    context_switch(&mine->context, &of->fibers[of->current].context);
}

static void begin_fiber(launch *of, size_t i, fiber_index grid, fiber_index size, block *blocks,
                        char *shared, size_t shared_bytes)
{
    fiber *made = &of->fibers[i];
    size_t threads = (size_t)size.x * size.y * size.z;
    unsigned number = (unsigned)(i / threads), thread = (unsigned)(i % threads);
    made->at.thread =
        (fiber_index){thread % size.x, thread / size.x % size.y, thread / size.x / size.y};
    made->at.block =
        (fiber_index){number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y};
    made->at.block_size = size;
    made->at.grid_size = grid;
    made->at.shared = shared + number * (shared_bytes + SHARED_MARGIN) + SHARED_MARGIN;
    made->of = &blocks[number];
    made->of->alive++;
    made->lane = thread % WARP;
    made->in = &made->of->warps[thread / WARP];
    made->in->alive++;
    context_make(&made->context, of->stacks + i * STACK_BYTES, STACK_BYTES, fiber_main);
}

static void *take(size_t count, size_t bytes)
{
    void *taken = calloc(count + 1, bytes);
    if (!taken)
        abort();
    return taken;
}

void fibers_run(fiber_index grid, fiber_index size, size_t shared_bytes,
                void (*body)(const void *argument), const void *argument, uint64_t seed)
{
    size_t block_count = (size_t)grid.x * grid.y * grid.z;
    size_t threads = (size_t)size.x * size.y * size.z, warps = (threads + WARP - 1) / WARP;
    launch of = {.count = block_count * threads,
                 .alive = block_count * threads,
                 .body = body,
                 .argument = argument,
                 .random = seed};
    shared_bytes = (shared_bytes + 127) / 128 * 128;
    size_t shared_total = block_count * (shared_bytes + SHARED_MARGIN) + 128;
    char *shared = aligned_alloc(128, shared_total);
    of.stacks = mmap(NULL, of.count * STACK_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!shared || of.stacks == MAP_FAILED)
        abort();
    /* Kernels must not depend on the initial contents of shared memory. */
    memset(shared, 0xA7, shared_total);
    of.fibers = take(of.count, sizeof *of.fibers);
    block *blocks = take(block_count, sizeof *blocks);
    warp *all_warps = take(block_count * warps, sizeof *all_warps);
    for (size_t i = 0; i < block_count; i++)
        blocks[i].warps = all_warps + i * warps;
    for (size_t i = 0; i < of.count; i++)
        begin_fiber(&of, i, grid, size, blocks, shared, shared_bytes);
    running = &of;
    emulated_here = &of.fibers[0].at;
    stores_begin(seed);
    context_switch(&of.home, &of.fibers[0].context);
    stores_end();
    running = NULL;
    emulated_here = NULL;
    munmap(of.stacks, of.count * STACK_BYTES);
    free(all_warps);
    free(blocks);
    free(of.fibers);
    free(shared);
}
