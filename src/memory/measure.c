#include "memory/user/user.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

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

const char *const user_memory_way_names[USER_MEMORY_WAYS] = {"cma", "staging"};
static const char *const shape_names[USER_MEMORY_SHAPES] = {"long pieces", "rows"};

/* Rows of a model's matrices, of which every other one moves. */
#define SAMPLE_ROW_BYTES ((size_t)2048)
#define SAMPLE_ROWS (SAMPLE_BYTES / (2 * SAMPLE_ROW_BYTES))

static banyan_status sample_open(struct sample *sample)
{
    char *both =
        mmap(NULL, 2 * SAMPLE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (both == MAP_FAILED && errno != ENOMEM)
        return error_set_errno("cannot map %zu bytes to measure the access to user memory",
                               2 * SAMPLE_BYTES);
    if (both == MAP_FAILED)
        return error_no_memory(2 * SAMPLE_BYTES, "measuring the access to user memory");
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

static banyan_status sample_read(user_memory *user, const struct sample *sample,
                                 user_memory_shape shape)
{
    banyan_iovec pieces[SAMPLE_ROWS] = {{0, sample->destination, SAMPLE_BYTES}};
    if (shape == USER_MEMORY_WHOLE)
        return user_memory_read(user, &sample->next, pieces, 1, SAMPLE_BYTES);
    for (size_t i = 0; i < SAMPLE_ROWS; i++) {
        size_t at = 2 * i * SAMPLE_ROW_BYTES;
        pieces[i] = (banyan_iovec){at, sample->destination + at, SAMPLE_ROW_BYTES};
    }
    return user_memory_read(user, &sample->next, pieces, SAMPLE_ROWS,
                            SAMPLE_ROWS * SAMPLE_ROW_BYTES);
}

/* Time one read. A rank whose read failed (`*mine`) continues to take part. */
static banyan_status measure_once(memory_space *space, user_memory *user, struct sample *sample,
                                  user_memory_shape shape, user_memory_way way, banyan_status *mine,
                                  uint64_t *took_ns)
{
    user_memory_use(user, shape, way);
    sample_chill(sample);
    RETURN_IF_FAILED(banyan_world_barrier(space->world));
    uint64_t start_ns = clock_ns(space, user);
    if (*mine == BANYAN_OK)
        *mine = sample_read(user, sample, shape);
    /* The time includes what this rank does for others. */
    RETURN_IF_FAILED(banyan_world_barrier(space->world));
    *took_ns = clock_ns(space, user) - start_ns;
    return BANYAN_OK;
}

/* Take the shortest time of each way. The ways alternate, so that a disturbance affects all of
 * them. `ways` may differ between nodes: a node that omits one still joins the barriers of the
 * others. */
static banyan_status memory_measure_all(memory_space *space, user_memory *user, unsigned ways,
                                        struct sample *sample, user_memory_shape shape,
                                        uint64_t *shortest_ns)
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
        RETURN_IF_FAILED(measure_once(space, user, sample, shape, way, &mine, &took_ns));
        if (turn >= USER_MEMORY_WAYS && took_ns < shortest_ns[way])
            shortest_ns[way] = took_ns;
    }
    return mine;
}

/* Choose by the sum of the node's times, so that all of its ranks choose the same way. */
static user_memory_way memory_measure_fastest(const memory_space *space, unsigned ways,
                                              user_memory_shape shape,
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
        size_t bytes = shape == USER_MEMORY_ROWS ? SAMPLE_ROWS * SAMPLE_ROW_BYTES : SAMPLE_BYTES;
        log_debug("rank %d: user memory, %s, by %s: %.1f GB/s a rank", space->rank,
                  shape_names[shape], user_memory_way_names[way],
                  (double)bytes * space->local_size / sum_ns);
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
    for (int i = 0; i < USER_MEMORY_SHAPES; i++) {
        user_memory_shape shape = (user_memory_shape)i;
        uint64_t shortest_ns[USER_MEMORY_WAYS];
        void *all_ns;
        banyan_status status = memory_measure_all(space, user, ways, sample, shape, shortest_ns);
        RETURN_IF_FAILED(control_gather(space->world, status, shortest_ns, sizeof shortest_ns,
                                        "the ranks' times", &all_ns));
        best[i] = memory_measure_fastest(space, ways, shape, all_ns);
        free(all_ns);
    }
    return BANYAN_OK;
}

banyan_status measure_ways(memory_space *space, user_memory *user, unsigned ways,
                           user_memory_way best[USER_MEMORY_SHAPES])
{
    /* If every node has only one way, nothing needs measuring. */
    uint64_t choices;
    RETURN_IF_FAILED(control_max(space->world, (uint64_t)__builtin_popcount(ways), &choices));
    if (choices == 1) {
        for (int shape = 0; shape < USER_MEMORY_SHAPES; shape++)
            best[shape] = (user_memory_way)__builtin_ctz(ways);
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

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#define PR_SET_PTRACER_ANY ((unsigned long)-1)
#endif

/* The word that peers read, and the words that they write. */
struct probe_card {
    uint64_t word, word_address, marks_address;
};

struct probe_verdict {
    bool yes;
    char reason[255];
};

struct probe {
    memory_space *space;
    uint64_t word;
    _Atomic uint64_t *marks;        /* one per local rank, and one more */
    struct probe_card *cards;       /* of all ranks */
    struct probe_verdict *verdicts; /* of all ranks */
    char *reason;
    size_t reason_bytes;
};

static uint64_t mark_of(uint64_t word, int local_rank)
{
    return word ^ (UINT64_C(0x9e3779b97f4a7c15) * ((uint64_t)local_rank + 1));
}

static bool is_other_process(const struct probe *probe, int local)
{
    memory_space *space = probe->space;
    return control_pid(space->world, space->local_ranks[local]) != getpid();
}

static bool probe_draw(uint64_t *word)
{
    ssize_t got;
    do
        got = getrandom(word, sizeof *word, 0);
    while (got < 0 && errno == EINTR);
    return got == sizeof *word;
}

/* In another namespace, a process number may mean another process: only the expected word proves
 * the right one. */
static bool reach_peer(struct probe *probe, int local)
{
    memory_space *space = probe->space;
    int rank = space->local_ranks[local];
    const struct probe_card *card = &probe->cards[rank];
    pid_t pid = control_pid(space->world, rank);
    uint64_t word = 0;
    struct iovec here = {&word, sizeof word};
    struct iovec there = {(void *)(uintptr_t)card->word_address, sizeof word};
    const char *call = "process_vm_readv";
    ssize_t moved = process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (moved == sizeof word && word != card->word) {
        snprintf(probe->reason, probe->reason_bytes,
                 "process %d, as rank %d sees it, is not rank %d", (int)pid, space->rank, rank);
        return false;
    }
    if (moved == sizeof word) {
        call = "process_vm_writev";
        word = mark_of(card->word, space->local_rank);
        there.iov_base =
            (char *)(uintptr_t)card->marks_address + (size_t)space->local_rank * sizeof(uint64_t);
        moved = process_vm_writev(pid, &here, 1, &there, 1, 0);
    }
    if (moved == sizeof word)
        return true;
    snprintf(probe->reason, probe->reason_bytes, "%s by rank %d on rank %d (process %d): %m", call,
             space->rank, rank, (int)pid);
    return false;
}

static bool reach_all(struct probe *probe)
{
    for (int i = 0; i < probe->space->local_size; i++) {
        if (is_other_process(probe, i) && !reach_peer(probe, i))
            return false;
    }
    return true;
}

static bool was_reached_by_all(struct probe *probe)
{
    for (int i = 0; i < probe->space->local_size; i++) {
        if (is_other_process(probe, i) && probe->marks[i] != mark_of(probe->word, i)) {
            snprintf(probe->reason, probe->reason_bytes, "a write of rank %d did not reach rank %d",
                     probe->space->local_ranks[i], probe->space->rank);
            return false;
        }
    }
    return true;
}

/* Exchange one bit of every rank; true when all ranks of this node sent true. */
static banyan_status node_agrees(struct probe *probe, bool mine, bool *all)
{
    memory_space *space = probe->space;
    struct probe_verdict verdict = {.yes = mine};
    if (!mine)
        snprintf(verdict.reason, sizeof verdict.reason, "%s", probe->reason);
    RETURN_IF_FAILED(
        banyan_world_allgather(space->world, &verdict, sizeof verdict, probe->verdicts));
    bool yes = true;
    for (int i = 0; i < space->local_size; i++) {
        const struct probe_verdict *its = &probe->verdicts[space->local_ranks[i]];
        if (yes && mine && !its->yes)
            snprintf(probe->reason, probe->reason_bytes, "%s", its->reason);
        yes = yes && its->yes;
    }
    *all = yes;
    return BANYAN_OK;
}

static banyan_status probe_attempt(struct probe *probe, bool *works)
{
    bool reached = reach_all(probe), all_reached = false, all_marked = false;
    RETURN_IF_FAILED(node_agrees(probe, reached, &all_reached));
    bool marked = !all_reached || was_reached_by_all(probe);
    RETURN_IF_FAILED(node_agrees(probe, marked, &all_marked));
    *works = all_reached && all_marked;
    return BANYAN_OK;
}

/* Yama lets only ancestors attach unless the process allows others. Every rank makes the same
 * number of collective calls, whatever its own node's result. */
static banyan_status probe_run(struct probe *probe, bool *works)
{
    struct probe_card mine = {
        .word = probe->word,
        .word_address = (uint64_t)(uintptr_t)&probe->word,
        .marks_address = (uint64_t)(uintptr_t)probe->marks,
    };
    RETURN_IF_FAILED(banyan_world_allgather(probe->space->world, &mine, sizeof mine, probe->cards));
    RETURN_IF_FAILED(probe_attempt(probe, works));
    bool asked = !*works && prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) == 0;
    RETURN_IF_FAILED(banyan_world_barrier(probe->space->world));
    RETURN_IF_FAILED(probe_attempt(probe, works));
    if (asked && !*works)
        prctl(PR_SET_PTRACER, 0, 0, 0, 0);
    return BANYAN_OK;
}

/* Peers may still write marks after the world has ended here, so this memory is never reused. Its
 * last word links it to the previously kept memory. */
static void give_back(_Atomic uint64_t *marks, int local_size, banyan_status status)
{
    static _Atomic uintptr_t kept;
    if (status == BANYAN_OK || !marks)
        free((void *)marks);
    else
        atomic_store(&marks[local_size], atomic_exchange(&kept, (uintptr_t)marks));
}

banyan_status probe_cma(memory_space *space, bool *works, char *reason, size_t reason_bytes)
{
    size_t world_size = (size_t)banyan_world_size(space->world);
    struct probe probe = {.space = space, .reason = reason, .reason_bytes = reason_bytes};
    probe.marks = calloc((size_t)space->local_size + 1, sizeof *probe.marks);
    probe.cards = calloc(world_size, sizeof *probe.cards);
    probe.verdicts = calloc(world_size, sizeof *probe.verdicts);
    banyan_status status = BANYAN_OK;
    if (!probe.marks || !probe.cards || !probe.verdicts)
        status = error_no_memory(world_size * sizeof *probe.cards, "probing the peers' memory");
    else if (!probe_draw(&probe.word))
        status = error_set_errno("getrandom");
    status = control_agree(space->world, status);
    if (status == BANYAN_OK)
        status = probe_run(&probe, works);
    free(probe.verdicts);
    free(probe.cards);
    give_back(probe.marks, space->local_size, status);
    return status;
}
