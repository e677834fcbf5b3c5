/* A thread block that runs its part of a plan: state shared by its threads, and state of each. */
#ifndef CUDA_EXECUTE_KERNEL_BLOCK_CUH
#define CUDA_EXECUTE_KERNEL_BLOCK_CUH

#include <banyan/device/channel.cuh>

#include "cuda/execute/kernel.h"
#include "cuda/runtime/device.cuh"
#include "cuda/runtime/report.cuh"

/* At the start of shared memory; the section follows. Values that rarely change are read from
 * here, so that registers are free for data in flight. */
struct block_shared {
    char *bases[KERNEL_BASES];      /* of this run */
    uint64_t arrays[KERNEL_ARRAYS]; /* addresses as in kernel_array */
    uint64_t run, flags;            /* before this run: number of runs, and flags that they used */
    uint64_t waited_ns;             /* thread 0's wait in this step, if it is traced */
    banyan_device_limits limits;
    report_words *reports;
    uint64_t uploaded;
    uint32_t first_flag;
    uint32_t traces;
    volatile uint32_t ended; /* a wait of one of the threads has given up */
};
static_assert(sizeof(block_shared) <= KERNEL_SHARED_BYTES, "the section would lie over it");

BANYAN_DEVICE block_shared *block_share(void)
{
    return (block_shared *)device_shared();
}

BANYAN_DEVICE const kernel_section *block_section(void)
{
    return (const kernel_section *)(device_shared() + KERNEL_SHARED_BYTES);
}

BANYAN_DEVICE const engine_step *block_steps(void)
{
    return (const engine_step *)block_share()->arrays[KERNEL_STEPS];
}

BANYAN_DEVICE const kernel_end *block_ends(void)
{
    return (const kernel_end *)block_share()->arrays[KERNEL_ENDS];
}

BANYAN_DEVICE const uint64_t *block_words(void)
{
    return (const uint64_t *)block_share()->arrays[KERNEL_WORDS];
}

/* Read the thread's number, and the number of threads, anew each time. Values derived from them
 * for one kind of step would otherwise occupy registers during all others. */
BANYAN_DEVICE uint32_t block_thread(void)
{
#ifdef __CUDACC__
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
#else
    return threadIdx.x;
#endif
}

BANYAN_DEVICE uint32_t block_threads(void)
{
#ifdef __CUDACC__
    uint32_t threads;
    asm volatile("mov.u32 %0, %%ntid.x;" : "=r"(threads));
    return threads;
#else
    return blockDim.x;
#endif
}

/* The position of a thread. */
struct block_run {
    const engine_step *step;
    const uint64_t *piece; /* of the step's wait; NULL */
    uint32_t iteration;
    uint32_t flag; /* of this step's packets in this iteration */
    bool ended;    /* memory must not be accessed any more */
};

BANYAN_DEVICE bool block_is_odd(void)
{
    return block_share()->run & 1;
}

BANYAN_DEVICE uint32_t block_operand_count(const engine_step *step)
{
    return (uint32_t)step->source_count + step->destination_count;
}

/* Pieces of the current step in this iteration. */
struct block_pieces {
    const uint64_t *at, *end;
    uint32_t words; /* of one piece */
};

BANYAN_DEVICE block_pieces block_find_pieces(const block_run *run)
{
    const engine_step *step = run->step;
    const uint64_t *all = block_words(), *first = all + step->words;
    uint32_t words = 1 + block_operand_count(step);
    if (step->in_loop)
        return {all + first[run->iteration], all + first[run->iteration + 1], words};
    return {first, first + step->piece_count * words, words};
}

/* The 8-byte units of all pieces, piece after piece, dealt to the threads in turn, so that short
 * pieces are processed side by side. */
struct block_units {
    block_pieces pieces; /* the current piece first */
    uint64_t next;       /* next unit in it, or behind its end */

    /* Advance to the piece with this thread's next unit. False: there is none. */
    BANYAN_DEVICE_MEMBER bool find(void)
    {
        for (; pieces.at < pieces.end; pieces.at += pieces.words) {
            uint64_t units = (piece_bytes() + 7) / 8;
            if (next < units)
                return true;
            next -= units;
        }
        return false;
    }
    BANYAN_DEVICE_MEMBER uint64_t piece_bytes(void) const { return pieces.at[0] & ~ENGINE_PAD; }
    /* Byte offset in the piece. */
    BANYAN_DEVICE_MEMBER uint64_t at(void) const { return 8 * next; }
    BANYAN_DEVICE_MEMBER uint32_t bytes(void) const
    {
        uint64_t left = piece_bytes() - at();
        return left < 8 ? (uint32_t)left : 8;
    }
};

BANYAN_DEVICE block_units block_find_units(block_pieces pieces)
{
    return {pieces, block_thread()};
}

/* True for several pieces that cannot keep all threads busy one by one. The first is
 * representative: they hardly differ. */
BANYAN_DEVICE bool block_are_short(block_pieces pieces)
{
    return pieces.at + pieces.words < pieces.end && pieces.at[0] < 8 * (uint64_t)block_threads();
}

/* Operands of a piece, from one on, as places. */
struct block_places {
    const uint64_t *words;

    BANYAN_DEVICE_MEMBER char *operator[](uint32_t i) const
    {
        uint64_t word = words[i];
        return block_share()->bases[KERNEL_PLACE_BASE(word)] + (word & KERNEL_PLACE_OFFSET);
    }
    BANYAN_DEVICE_MEMBER bool is_packets(uint32_t i) const
    {
        return words[i] & KERNEL_PLACE_PACKETS;
    }
    BANYAN_DEVICE_MEMBER bool is_of_group(uint32_t i) const
    {
        return ((uint32_t)(words[i] >> KERNEL_PLACE_SHIFT) & 0x7fff) >= ENGINE_GROUP_BASES;
    }
};

BANYAN_DEVICE block_places block_places_of(const uint64_t *piece, uint32_t first)
{
    return {piece + 1 + first};
}

/* Flags cycle from 1 to 2^32 - 1: the residue modulo 2^32 - 1, plus one; 2^32 gives 1. */
BANYAN_DEVICE uint32_t block_flag(uint64_t used_up)
{
    uint64_t sum = (used_up & 0xffffffff) + (used_up >> 32);
    sum = (sum & 0xffffffff) + (sum >> 32);
    return (uint32_t)sum == 0xffffffff ? 1 : (uint32_t)sum + 1;
}

/* Return the number of the waiting step, also if another one performs it. */
BANYAN_DEVICE uint32_t block_step_number(const block_run *run)
{
    const engine_step *step = run->step;
    uint32_t number = (uint32_t)(step - block_steps());
    if (!run->piece || step->in_loop || step->barrier == 0)
        return number;
    uint32_t words = (uint32_t)(run->piece - (block_words() + step->words));
    return number + words / ((1 + block_operand_count(step)) * step->barrier);
}

/* Called by all threads of the block. */
BANYAN_DEVICE void block_barrier(block_run *run)
{
    __syncthreads();
    run->ended |= block_share()->ended != 0;
}

/* A wait of a step. For traces, thread 0 records its duration. */
struct block_wait {
    banyan_device_wait wait;
    uint64_t began_ns;
};

/* Read the clock, and act on it. Returns as banyan_device_wait_look. */
BANYAN_DEVICE_RARE uint64_t block_look(block_run run, uint64_t since, uint32_t index,
                                       uint64_t grace_ns)
{
    const banyan_device_limits *limits = &block_share()->limits;
    banyan_device_wait wait = {};
    wait.since = banyan_device_wait_look(since, limits->timeout_ns + grace_ns, limits->stops[0],
                                         limits->stops[1]);
    /* engine_wait */
    block_shared *shared = block_share();
    uint64_t step = (uint64_t)block_step_number(&run) << 32 | blockIdx.x;
    uint64_t more[] = {(uint64_t)run.iteration << 32 | index, shared->uploaded};
    if (banyan_device_wait_end(&wait) != BANYAN_DEVICE_WAITING) {
        shared->ended = 1;
        report_failure((uint32_t *)limits->stops[0], shared->reports, banyan_device_wait_end(&wait),
                       banyan_device_waited_ns(&wait), step, more);
    } else if (grace_ns == 0) {
        report_lasting(shared->reports, &wait, step, more); /* for a peer */
    }
    return wait.since;
}

/* Call it in every iteration of a waiting loop. False: give up; the other threads are informed. */
BANYAN_DEVICE bool block_wait_on(block_run *run, block_wait *wait, uint32_t index,
                                 uint64_t grace_ns)
{
    banyan_device_pause();
    if (wait->wait.looks == 0 && block_share()->traces && block_thread() == 0)
        wait->began_ns = banyan_device_time_ns();
    if (++wait->wait.looks % BANYAN_DEVICE_LOOKS != 0)
        return true;
    wait->wait.since = block_look(*run, wait->wait.since, index, grace_ns);
    run->ended = banyan_device_wait_end(&wait->wait) != BANYAN_DEVICE_WAITING;
    return !run->ended;
}

BANYAN_DEVICE void block_wait_ends(const block_wait *wait)
{
    if (wait->began_ns != 0)
        block_share()->waited_ns += banyan_device_time_ns() - wait->began_ns;
}

#endif
