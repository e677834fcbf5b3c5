/* Random programs without races: thread block b of every rank works on its own chunks, and
 * synchronizes with block b of its peers between rounds. */
#ifndef TESTS_PROGRAM_RANDOM_PROGRAM_H
#define TESTS_PROGRAM_RANDOM_PROGRAM_H

#include "program/passes.h"

enum { RANKS = 3, BLOCKS = 2, CHUNKS_EACH = 6, ROUNDS = 6 };

typedef struct writer {
    banyan_program *program;
    random_state *random;
    banyan_program_memory_channel *memory[RANKS][RANKS][BLOCKS];
    banyan_program_port_channel *port[RANKS][RANKS][BLOCKS];
    banyan_program_switch_channel *all[BLOCKS];
    banyan_program_semaphore *semaphores[RANKS][BLOCKS];
    banyan_chunk scratch[RANKS], packets[RANKS];
    uint64_t packets_used;
    uint64_t most_size; /* chunks that an operation moves */
    int rounds;
} writer;

static inline bool chance(writer *w, int one_in)
{
    return random_between(w->random, 1, one_in) == 1;
}

static inline banyan_sync any_sync(writer *w)
{
    return (banyan_sync)random_between(w->random, BANYAN_SYNC_BOTH, BANYAN_SYNC_AFTER);
}

static inline banyan_reduce_op any_op(writer *w)
{
    return (banyan_reduce_op)random_between(w->random, BANYAN_SUM, BANYAN_MAX);
}

/* Return a chunk of the block's own part of a rank's buffers. */
static inline banyan_chunk any_chunk(writer *w, int rank, int block, uint64_t size)
{
    banyan_program *program = w->program;
    uint64_t first = (uint64_t)block * CHUNKS_EACH;
    uint64_t at = first + (uint64_t)random_between(w->random, 0, CHUNKS_EACH - (int64_t)size);
    switch (random_between(w->random, 0, 2)) {
    case 0:
        return IN(rank, at, at + size);
    case 1:
        return OUT(rank, at, at + size);
    default:
        return banyan_program_slice(program, w->scratch[rank], at, at + size);
    }
}

static inline bool overlap(banyan_chunk a, banyan_chunk b)
{
    return a.rank == b.rank && a.buffer == b.buffer && a.index < b.index + b.size &&
           b.index < a.index + a.size;
}

static inline uint64_t any_size(writer *w)
{
    return (uint64_t)random_between(w->random, 1, (int64_t)w->most_size);
}

/* Operands of one operation do not overlap, or its own threads would race. */
static inline void write_copy(writer *w, int rank, int block)
{
    uint64_t size = any_size(w);
    banyan_chunk from = any_chunk(w, rank, block, size), to = any_chunk(w, rank, block, size);
    if (!overlap(from, to))
        banyan_program_copy(w->program, rank, to, from, BANYAN_TB(block));
}

/* Chunks c of a rank's input with c % RANKS == peer are the peer's to write in a round. */
static inline banyan_chunk chunk_for(writer *w, int rank, int peer, int block)
{
    banyan_program *program = w->program;
    uint64_t c = (uint64_t)block * CHUNKS_EACH + (uint64_t)peer;
    c += chance(w, 2) ? RANKS : 0;
    return IN(rank, c, c + 1);
}

/* Runs accumulate in their source: elsewhere the second of two would overwrite the first. */
static inline void write_reduce(writer *w, int rank, int block)
{
    banyan_reduce_op op = any_op(w);
    banyan_chunk sum = chunk_for(w, rank, rank, block), source = sum;
    /* Another reduction from this source to this sum would count as an accumulation. */
    banyan_program_barrier(w->program, rank, &block, 1);
    if (chance(w, 3))
        source = chunk_for(w, rank, rank, block);
    for (int64_t i = random_between(w->random, 1, 3); i > 0; i--) {
        banyan_chunk other = any_chunk(w, rank, block, 1);
        if (other.buffer == BANYAN_INPUT)
            continue;
        banyan_program_reduce(w->program, rank, source, &other, 1, sum, op, BANYAN_TB(block));
        source = sum;
    }
    for (int peer = 0; peer < RANKS; peer++) {
        banyan_chunk to = sum;
        to.rank = peer;
        if (peer != rank && chance(w, 2))
            banyan_program_memory_put(w->memory[rank][peer][block], to, sum, BANYAN_TB(block));
    }
}

static inline void write_exchange(writer *w, int rank, int block)
{
    int peer = (rank + (int)random_between(w->random, 1, RANKS - 1)) % RANKS;
    banyan_chunk to = chunk_for(w, peer, rank, block), own = chunk_for(w, rank, rank, block);
    switch (random_between(w->random, 0, 2)) {
    case 0:
        banyan_program_memory_put(w->memory[rank][peer][block], to, own, BANYAN_TB(block));
        break;
    case 1:
        banyan_program_memory_get(w->memory[rank][peer][block], own,
                                  chunk_for(w, peer, rank, block), BANYAN_TB(block));
        break;
    default:
        banyan_program_memory_reduce(w->memory[rank][peer][block], own, &to, 1, BANYAN_IN_SOURCE,
                                     any_op(w), BANYAN_TB(block));
    }
}

/* A new packet each time: packets are written once. */
static inline banyan_chunk new_packet(writer *w, int rank)
{
    uint64_t at = w->packets_used++;
    banyan_chunk packets = w->packets[rank];
    return (banyan_chunk){rank, BANYAN_SCRATCH, packets.index + at, 1};
}

static inline void write_packets(writer *w, int rank, int block)
{
    int peer = (rank + 1) % RANKS;
    banyan_chunk local = new_packet(w, rank), remote = local, sum = chunk_for(w, rank, rank, block);
    remote.rank = peer;
    banyan_program_copy_packets(w->program, rank, local, chunk_for(w, rank, rank, block),
                                BANYAN_TB(block));
    if (chance(w, 2))
        banyan_program_memory_read_put_packets(w->memory[rank][peer][block], remote, local,
                                               BANYAN_TB(block));
    banyan_program_reduce_packets(w->program, rank, sum, &local, 1, BANYAN_IN_SOURCE, any_op(w),
                                  BANYAN_TB(block));
    if (chance(w, 2))
        banyan_program_copy_packets(w->program, rank, new_packet(w, rank), sum, BANYAN_TB(block));
    if (chance(w, 2)) {
        banyan_chunk sent = new_packet(w, peer);
        banyan_program_memory_put_packets(w->memory[rank][peer][block], sent, sum,
                                          BANYAN_TB(block));
    }
    if (chance(w, 2))
        banyan_program_unpack_packets(w->program, rank, chunk_for(w, rank, rank, block), local,
                                      BANYAN_TB(block));
}

static inline void write_switch(writer *w, int rank, int block)
{
    banyan_program *program = w->program;
    banyan_chunk own = chunk_for(w, rank, rank, block), to = own;
    if (chance(w, 2))
        to = banyan_program_slice(program, w->scratch[rank], own.index, own.index + 1);
    banyan_program_switch_reduce(w->all[block], rank, own.index, 1, to, any_op(w), block);
    if (chance(w, 2))
        banyan_program_switch_broadcast(w->all[block], rank, to, own.index, 1, block);
}

static inline void write_semaphores(writer *w, int rank, int block)
{
    banyan_program_semaphore_release(w->semaphores[rank][block], block, any_sync(w));
    banyan_program_semaphore_acquire(w->semaphores[rank][block], block, any_sync(w));
}

static inline void write_port(writer *w, int rank, int block)
{
    int peer = (rank + 1) % RANKS, before = (rank + RANKS - 1) % RANKS;
    banyan_program_port_channel *channel = w->port[rank][peer][block];
    banyan_program_port_put(channel, chunk_for(w, peer, rank, block),
                            chunk_for(w, rank, rank, block), block);
    if (chance(w, 2))
        banyan_program_port_put(channel, chunk_for(w, peer, rank, block),
                                chunk_for(w, rank, rank, block), block);
    banyan_program_port_signal(channel, block, BANYAN_SYNC_BEFORE);
    if (chance(w, 2))
        banyan_program_port_flush(channel, block, any_sync(w));
    banyan_program_port_wait(w->port[rank][before][block], block, any_sync(w));
}

/* All of a block's peers finish their work before any continues. */
static inline void write_barrier(writer *w, int rank, int block)
{
    for (int peer = 0; peer < RANKS; peer++) {
        if (peer != rank)
            banyan_program_memory_signal(w->memory[rank][peer][block], block, BANYAN_SYNC_BOTH);
    }
    for (int peer = 0; peer < RANKS; peer++) {
        if (peer != rank)
            banyan_program_memory_wait(w->memory[rank][peer][block], block, BANYAN_SYNC_BOTH);
    }
}

static inline void write_round(writer *w, int rank, int block, int kind)
{
    for (int64_t i = random_between(w->random, 1, 4); i > 0; i--) {
        switch (kind) {
        case 0:
            write_copy(w, rank, block);
            break;
        case 1:
            write_reduce(w, rank, block);
            break;
        case 2:
            write_exchange(w, rank, block);
            break;
        case 3:
            write_packets(w, rank, block);
            break;
        case 4:
            write_switch(w, rank, block);
            break;
        case 5:
            write_semaphores(w, rank, block);
            break;
        default:
            write_port(w, rank, block);
            return;
        }
        if (chance(w, 6))
            banyan_program_barrier(w->program, rank, &block, 1);
    }
}

static inline void write_rounds(writer *w)
{
    /* Operations of different sizes reach the same bytes in different iterations. */
    uint64_t loop_bytes = w->most_size > 1 ? UINT64_C(1) << 20 : 64;
    for (int round = 0; round < w->rounds; round++) {
        bool loop = chance(w, 3);
        if (loop)
            banyan_program_loop_begin(w->program, loop_bytes, 2);
        for (int block = 0; block < BLOCKS; block++) {
            int kind = (int)random_between(w->random, 0, 6);
            for (int rank = 0; rank < RANKS; rank++) {
                write_round(w, rank, block, kind);
                write_barrier(w, rank, block);
            }
        }
        if (loop)
            banyan_program_loop_end(w->program);
    }
}

static inline void write_resources(writer *w)
{
    const int all[RANKS] = {0, 1, 2};
    for (int rank = 0; rank < RANKS; rank++) {
        w->scratch[rank] = banyan_program_scratch(w->program, rank, BLOCKS * CHUNKS_EACH);
        w->packets[rank] =
            banyan_program_scratch(w->program, rank, 4 * 4 * ROUNDS * BLOCKS * RANKS);
        for (int block = 0; block < BLOCKS; block++) {
            w->semaphores[rank][block] = banyan_program_semaphore_create(w->program, rank, 0);
            for (int peer = 0; peer < RANKS; peer++) {
                if (peer == rank)
                    continue;
                w->memory[rank][peer][block] =
                    banyan_program_memory_channel_create(w->program, peer, rank);
                w->port[rank][peer][block] =
                    banyan_program_port_channel_create(w->program, peer, rank);
            }
        }
    }
    for (int block = 0; block < BLOCKS; block++)
        w->all[block] = banyan_program_switch_channel_create(w->program, all, RANKS, BANYAN_INPUT);
}

static inline banyan_plan *compile_random_rounds(uint64_t seed, uint64_t most_size, int rounds,
                                                 const banyan_program_options *options)
{
    random_state random = random_from(seed);
    banyan_program *program = program_begin(RANKS, BLOCKS * CHUNKS_EACH, options);
    writer w = {.program = program, .random = &random, .most_size = most_size, .rounds = rounds};
    banyan_plan *plan;
    write_resources(&w);
    write_rounds(&w);
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    return plan;
}

static inline banyan_plan *compile_random(uint64_t seed, uint64_t most_size,
                                          const banyan_program_options *options)
{
    return compile_random_rounds(seed, most_size, ROUNDS, options);
}

#endif
