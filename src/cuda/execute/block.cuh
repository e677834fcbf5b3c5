/* A thread block that runs its part of a plan: what its threads share, and what each has. */
#ifndef CUDA_EXECUTE_BLOCK_CUH
#define CUDA_EXECUTE_BLOCK_CUH

#include <banyan/device/channel.cuh>

#include "cuda/device.cuh"
#include "cuda/execute/kernel.h"

#define KERNEL_BASES (ENGINE_RANKS_MAX * 3)

/* In front of shared memory; the section lies behind it. What hardly changes is read from here,
 * so that registers are free for data on its way. */
struct block_shared {
    char *bases[KERNEL_BASES]; /* of this run */
    const engine_step *steps;
    const kernel_end *ends; /* this and what follows: counted as the program does */
    const uint32_t *operands;
    const uint64_t *words;
    uint64_t run, flags; /* before this run: how many there were, and the flags they used up */
    uint64_t waited_ns;  /* thread 0, in this step, when it is traced */
    banyan_device_limits limits;
    const engine_step *given_up; /* whose wait was the first to end in vain; NULL */
    uint64_t since;              /* as banyan_device_wait has it */
    uint32_t given_up_in, given_up_at;
    uint32_t step_count, first_flag;
    uint32_t traces;
    volatile uint32_t ended; /* a wait of one of the threads has given up */
};
static_assert(sizeof(block_shared) <= KERNEL_SHARED_BYTES, "the section would lie over it");

BANYAN_DEVICE block_shared *block_share(void)
{
    return (block_shared *)device_shared();
}

/* This thread's number and how many there are, read anew each time: what follows from them for one
 * kind of step would otherwise lie in registers during all others. */
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

/* Where a thread stands. */
struct block_run {
    const engine_step *step;
    uint32_t iteration;
    uint32_t flag; /* of the packets of this step in this iteration */
    bool ended;    /* nothing is to be touched any more */
};

BANYAN_DEVICE bool block_is_odd(void)
{
    return block_share()->run & 1;
}

/* ---- pieces and operands ---- */

BANYAN_DEVICE uint32_t block_operand_count(const engine_step *step)
{
    return (uint32_t)step->source_count + step->destination_count;
}

/* Those of the step at hand, in this iteration. */
struct block_pieces {
    const uint64_t *at, *end;
    uint32_t words; /* of one */
};

BANYAN_DEVICE block_pieces block_find_pieces(const block_run *run)
{
    const engine_step *step = run->step;
    const uint64_t *all = block_share()->words, *first = all + step->words;
    uint32_t words = 1 + block_operand_count(step);
    if (step->in_loop)
        return {all + first[run->iteration], all + first[run->iteration + 1], words};
    return {first, first + step->piece_count * words, words};
}

/* The operands of a piece from one on, as places. */
struct block_places {
    const uint32_t *operands;
    const uint64_t *offsets;

    BANYAN_DEVICE_MEMBER char *operator[](uint32_t i) const
    {
        return block_share()->bases[operands[i] & ~ENGINE_PACKETS] + offsets[i];
    }
    BANYAN_DEVICE_MEMBER bool is_packets(uint32_t i) const { return operands[i] & ENGINE_PACKETS; }
};

BANYAN_DEVICE block_places block_places_of(const engine_step *step, const uint64_t *piece,
                                           uint32_t first)
{
    return {block_share()->operands + step->operands + first, piece + 1 + first};
}

/* ---- flags ---- */

/* Flags go round from 1 to 2^32 - 1, the residues of 2^32 - 1 plus one; 2^32 leaves 1. */
BANYAN_DEVICE uint32_t block_flag(uint64_t used_up)
{
    uint64_t sum = (used_up & 0xffffffff) + (used_up >> 32);
    sum = (sum & 0xffffffff) + (sum >> 32);
    return (uint32_t)sum == 0xffffffff ? 1 : (uint32_t)sum + 1;
}

/* ---- giving up ---- */

/* A wait has ended in vain: for source, channel end or semaphore `index` of the step. The first to
 * say so in this launch is reported when its block ends. */
BANYAN_DEVICE void block_give_up(const block_run *run, uint32_t index,
                                 const banyan_device_wait *wait)
{
    block_shared *shared = block_share();
    shared->ended = 1;
    if (banyan_device_claim((uint32_t *)shared->limits.stops[0]) != 0)
        return;
    shared->given_up = run->step;
    shared->given_up_in = run->iteration;
    shared->given_up_at = index;
    shared->since = wait->since;
}

/* One thread, after all have met. */
BANYAN_DEVICE void block_report(const kernel_args *args)
{
    const block_shared *shared = block_share();
    if (!shared->given_up)
        return;
    banyan_device_wait wait = {shared->since, 0};
    engine_report *report = &args->report->report;
    report->verdict =
        banyan_device_wait_end(&wait) == BANYAN_DEVICE_LATE ? ENGINE_LATE : ENGINE_STOPPED;
    report->block = blockIdx.x;
    report->step = (uint32_t)(shared->given_up - shared->steps);
    report->index = shared->given_up_at;
    report->iteration = shared->given_up_in;
    report->waited_ns = banyan_device_waited_ns(&wait);
    report->uploaded = (void *)args->uploaded;
    banyan_device_publish(&args->report->written, 1);
}

/* All threads of the block. */
BANYAN_DEVICE void block_meet(block_run *run)
{
    __syncthreads();
    run->ended |= block_share()->ended != 0;
}

/* ---- waiting ---- */

/* A wait of a step. For traces, thread 0 notes how long it lasted. */
struct block_wait {
    banyan_device_wait wait;
    uint64_t began_ns;
};

/* In every iteration of a loop that waits. False: give up, which the others are told. */
BANYAN_DEVICE bool block_wait_on(block_run *run, block_wait *wait, uint32_t index,
                                 uint64_t grace_ns)
{
    block_shared *shared = block_share();
    if (wait->began_ns == 0 && shared->traces && block_thread() == 0)
        wait->began_ns = banyan_device_time_ns();
    banyan_device_limits limits = {shared->limits.timeout_ns + grace_ns,
                                   {shared->limits.stops[0], shared->limits.stops[1]}};
    if (banyan_device_wait_on(&limits, &wait->wait))
        return true;
    run->ended = true;
    block_give_up(run, index, &wait->wait);
    return false;
}

BANYAN_DEVICE void block_wait_ends(const block_wait *wait)
{
    if (wait->began_ns != 0)
        block_share()->waited_ns += banyan_device_time_ns() - wait->began_ns;
}

#endif
