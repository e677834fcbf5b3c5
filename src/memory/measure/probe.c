#include "memory/measure/probe.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/error.h"
#include "world/control.h"

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
            snprintf(probe->reason, probe->reason_bytes, "what rank %d wrote did not reach rank %d",
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
