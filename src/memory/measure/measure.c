#include "memory/measure/measure.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"
#include "memory/stream.h"
#include "world/control.h"

/* Larger than a core's own caches, and read within milliseconds. */
#define SAMPLE_BYTES ((size_t)4 << 20)
#define ROUNDS 9 /* the first warms up */

/* A way that needs less help from the peer wins unless another takes less than this share of its
 * time. */
#define WORTH_CHANGING 0.92

struct sample {
    char *source, *destination;
    banyan_memory_handle mine, next; /* this rank's, and the next one's of the node */
};

static const char *const way_names[] = {"cma", "staging"};

static banyan_status sample_open(struct sample *sample)
{
    char *both =
        mmap(NULL, 2 * SAMPLE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (both == MAP_FAILED && errno != ENOMEM)
        return error_set_errno("cannot map %zu bytes to measure the ways to user memory",
                               2 * SAMPLE_BYTES);
    if (both == MAP_FAILED)
        return error_no_memory(2 * SAMPLE_BYTES, "measuring the ways to user memory");
    memset(both, 1, 2 * SAMPLE_BYTES);
    sample->source = both;
    sample->destination = both + SAMPLE_BYTES;
    return BANYAN_OK;
}

static banyan_status share_handles(memory_space *space, struct sample *sample)
{
    void *gathered;
    RETURN_IF_FAILED(control_gather(space->world, BANYAN_OK, &sample->mine, sizeof sample->mine,
                                    "the ranks' handles", &gathered));
    const banyan_memory_handle *all = gathered;
    sample->next = all[space->local_ranks[(space->local_rank + 1) % space->local_size]];
    free(gathered);
    return BANYAN_OK;
}

/* Weights come from memory, not from a cache. Streaming stores leave nothing in the caches. */
static void sample_chill(struct sample *sample)
{
    static const char zeros[4096];
    for (size_t i = 0; i < 2 * SAMPLE_BYTES; i += sizeof zeros)
        stream_past_cache(sample->source + i, zeros, sizeof zeros);
    stream_fence();
}

/* Return processor time if the node's threads share cores: it does not depend on other users of the
 * machine. Otherwise return wall time. */
static uint64_t clock_ns(const memory_space *space, const user_memory *user)
{
    return memory_space_is_crowded(space, 2) ? user_memory_cpu_ns(user) : time_now_ns();
}

/* Time one read. A rank whose read failed (`*mine`) continues to take part. */
static banyan_status measure_once(memory_space *space, user_memory *user, struct sample *sample,
                                  user_memory_way way, banyan_status *mine, uint64_t *took_ns)
{
    banyan_iovec piece = {0, sample->destination, SAMPLE_BYTES};
    user_memory_use(user, way);
    sample_chill(sample);
    RETURN_IF_FAILED(banyan_world_barrier(space->world));
    uint64_t start_ns = clock_ns(space, user);
    if (*mine == BANYAN_OK)
        *mine = user_memory_read(user, &sample->next, &piece, 1, SAMPLE_BYTES);
    /* The time includes what this rank does for others. */
    RETURN_IF_FAILED(banyan_world_barrier(space->world));
    *took_ns = clock_ns(space, user) - start_ns;
    return BANYAN_OK;
}

/* Take the shortest time of each way. The ways alternate, so that a disturbance affects all of
 * them. `ways` may differ between nodes: a node that omits one still joins the barriers of the
 * others. */
static banyan_status memory_measure_all(memory_space *space, user_memory *user, unsigned ways,
                                        struct sample *sample, uint64_t *shortest_ns)
{
    banyan_status mine = BANYAN_OK;
    for (int way = 0; way < USER_MEMORY_WAYS; way++)
        shortest_ns[way] = UINT64_MAX;
    for (int turn = 0; turn < ROUNDS * USER_MEMORY_WAYS; turn++) {
        user_memory_way way = (user_memory_way)(turn % USER_MEMORY_WAYS);
        uint64_t took_ns;
        if (!(ways >> way & 1)) {
            RETURN_IF_FAILED(banyan_world_barrier(space->world));
            RETURN_IF_FAILED(banyan_world_barrier(space->world));
            continue;
        }
        RETURN_IF_FAILED(measure_once(space, user, sample, way, &mine, &took_ns));
        if (turn >= USER_MEMORY_WAYS && took_ns < shortest_ns[way])
            shortest_ns[way] = took_ns;
    }
    return mine;
}

/* Choose by the sum of the node's times, so that all of its ranks choose alike. */
static user_memory_way memory_measure_fastest(const memory_space *space, unsigned ways,
                                              const uint64_t (*all_ns)[USER_MEMORY_WAYS])
{
    user_memory_way best = 0;
    double best_ns = 0;
    bool found = false;
    for (int way = 0; way < USER_MEMORY_WAYS; way++) {
        double sum_ns = 0;
        if (!(ways >> way & 1))
            continue;
        for (int i = 0; i < space->local_size; i++)
            sum_ns += (double)all_ns[space->local_ranks[i]][way];
        double speed = (double)SAMPLE_BYTES * space->local_size / sum_ns;
        log_debug("rank %d: user memory by %s: %.1f GB/s a rank", space->rank, way_names[way],
                  speed);
        if (!found || sum_ns < best_ns * WORTH_CHANGING) {
            best_ns = sum_ns;
            best = (user_memory_way)way;
            found = true;
        }
    }
    return best;
}

static banyan_status memory_measure(memory_space *space, user_memory *user, unsigned ways,
                                    struct sample *sample, user_memory_way *best)
{
    RETURN_IF_FAILED(share_handles(space, sample));
    uint64_t shortest_ns[USER_MEMORY_WAYS];
    void *all_ns;
    banyan_status status = memory_measure_all(space, user, ways, sample, shortest_ns);
    RETURN_IF_FAILED(control_gather(space->world, status, shortest_ns, sizeof shortest_ns,
                                    "the ranks' times", &all_ns));
    *best = memory_measure_fastest(space, ways, all_ns);
    free(all_ns);
    return BANYAN_OK;
}

banyan_status measure_ways(memory_space *space, user_memory *user, unsigned ways,
                           user_memory_way *best)
{
    /* If every node has only one way, nothing needs measuring. */
    uint64_t choices;
    RETURN_IF_FAILED(control_max(space->world, (uint64_t)__builtin_popcount(ways), &choices));
    if (choices == 1) {
        *best = (user_memory_way)__builtin_ctz(ways);
        return BANYAN_OK;
    }
    struct sample sample = {0};
    banyan_status status = sample_open(&sample);
    bool opened = status == BANYAN_OK, registered = false;
    if (opened) {
        status = banyan_memory_register(space->world, sample.source, SAMPLE_BYTES, &sample.mine);
        registered = status == BANYAN_OK;
    }
    status = control_agree(space->world, status);
    if (status == BANYAN_OK)
        status = memory_measure(space, user, ways, &sample, best);
    if (registered)
        (void)banyan_memory_unregister(space->world, &sample.mine);
    if (opened)
        munmap(sample.source, 2 * SAMPLE_BYTES);
    return status;
}
