/* Programs with every kind of operation. Their bytes are compared with the sequential result of
 * their plans. Tests of the program layer check that a plan means what its author wrote. */
#ifndef TESTS_EXECUTE_OPERATION_PROGRAMS_H
#define TESTS_EXECUTE_OPERATION_PROGRAMS_H

#include "execute/compared.h"
#include "program/passes.h"

#define CHUNKS_EACH 6

typedef void (*program_fn)(banyan_program *program);

/* Programs of two ranks, three for switch channels, one for local operations. They have no races,
 * also between the chunks of two instances. */

static void write_copies(banyan_program *program)
{
    const int blocks[] = {1, 2, 3};
    banyan_program_group *group = banyan_program_group_create(program, blocks, 3);
    banyan_program_copy(program, 0, OUT(0, 1, 3), IN(0, 0, 2), BANYAN_TB(0));
    banyan_program_copy(program, 0, OUT(0, 4, 6), IN(0, 1, 3), BANYAN_TB_GROUP(group));
    banyan_program_copy(program, 0, IN(0, 5, 6), IN(0, 4, 5), BANYAN_TB(0));
}

static void write_local_packets(banyan_program *program)
{
    banyan_chunk packets = banyan_program_scratch(program, 0, 4);
    banyan_program_copy_packets(program, 0, banyan_program_slice(program, packets, 0, 2),
                                IN(0, 1, 3), BANYAN_TB(1));
    banyan_program_copy_packets(program, 0, banyan_program_slice(program, packets, 2, 3),
                                IN(0, 3, 4), BANYAN_TB(1));
    banyan_program_unpack_packets(program, 0, OUT(0, 0, 2),
                                  banyan_program_slice(program, packets, 0, 2), BANYAN_TB(0));
    banyan_program_reduce_packets(program, 0, IN(0, 0, 1),
                                  CHUNKS(banyan_program_slice(program, packets, 0, 1),
                                         banyan_program_slice(program, packets, 2, 3)),
                                  2, OUT(0, 3, 4), BANYAN_SUM, BANYAN_TB(0));
    banyan_program_copy_packets(program, 0, banyan_program_slice(program, packets, 3, 4),
                                OUT(0, 3, 4), BANYAN_TB(0));
    banyan_program_unpack_packets(program, 0, OUT(0, 5, 6),
                                  banyan_program_slice(program, packets, 3, 4), BANYAN_TB(2));
}

static void write_reductions(banyan_program *program)
{
    const int blocks[] = {2, 3};
    banyan_program_group *group = banyan_program_group_create(program, blocks, 2);
    banyan_program_reduce(program, 0, IN(0, 0, 1), CHUNKS(IN(0, 1, 2), IN(0, 2, 3), IN(0, 3, 4)), 3,
                          OUT(0, 0, 1), BANYAN_SUM, BANYAN_TB(0));
    banyan_program_reduce(program, 0, IN(0, 0, 2), CHUNKS(IN(0, 2, 4)), 1, OUT(0, 1, 3), BANYAN_MIN,
                          BANYAN_TB(1));
    banyan_program_reduce(program, 0, IN(0, 2, 4), CHUNKS(IN(0, 0, 2)), 1, OUT(0, 3, 5), BANYAN_MAX,
                          BANYAN_TB_GROUP(group));
    banyan_program_reduce(program, 0, IN(0, 5, 6), CHUNKS(IN(0, 0, 1)), 1, BANYAN_IN_SOURCE,
                          BANYAN_SUM, BANYAN_TB(3));
}

static void write_barriers(banyan_program *program)
{
    const int blocks[] = {0, 1, 2};
    banyan_chunk scratch = banyan_program_scratch(program, 0, 3);
    banyan_program_semaphore *done = banyan_program_semaphore_create(program, 0, 1);
    for (int b = 0; b < 3; b++) {
        uint64_t at = (uint64_t)b;
        banyan_program_copy(program, 0, banyan_program_slice(program, scratch, at, at + 1),
                            IN(0, at, at + 1), BANYAN_TB(b));
    }
    for (int round = 0; round < 3; round++)
        banyan_program_barrier(program, 0, blocks, 3);
    for (int b = 0; b < 3; b++) {
        uint64_t other = (uint64_t)(b + 1) % 3, at = (uint64_t)b;
        banyan_program_copy(program, 0, OUT(0, at, at + 1),
                            banyan_program_slice(program, scratch, other, other + 1), BANYAN_TB(b));
        banyan_program_semaphore_release(done, b, BANYAN_SYNC_BOTH);
    }
    for (int i = 0; i < 4; i++)
        banyan_program_semaphore_acquire(done, 3, BANYAN_SYNC_BOTH);
    for (uint64_t i = 0; i < 3; i++)
        banyan_program_copy(program, 0, OUT(0, 3 + i, 4 + i), OUT(0, i, i + 1), BANYAN_TB(3));
}

/* A rank, its channels to the other one, and both ranks' scratch. */
struct pair {
    banyan_program_memory_channel *memory;
    banyan_program_port_channel *port;
    int rank, peer;
    banyan_chunk own, theirs;
};

static struct pair pair_of(banyan_program *program, int rank, uint64_t scratch)
{
    banyan_chunk own = {rank, BANYAN_SCRATCH, 0, scratch};
    for (int r = 0; rank == 0 && r < 2 && scratch > 0; r++)
        banyan_program_scratch(program, r, scratch);
    return (struct pair){.own = own,
                         .theirs = {1 - rank, BANYAN_SCRATCH, 0, scratch},
                         .memory = banyan_program_memory_channel_create(program, 1 - rank, rank),
                         .port = banyan_program_port_channel_create(program, 1 - rank, rank),
                         .rank = rank,
                         .peer = 1 - rank};
}

static void write_gets_and_puts(banyan_program *program)
{
    const int blocks[] = {0, 1};
    for (int r = 0; r < 2; r++) {
        struct pair p = pair_of(program, r, 0);
        banyan_program_group *group = banyan_program_group_create(program, blocks, 2);
        banyan_program_memory_signal_relaxed(p.memory, 0, BANYAN_SYNC_BOTH);
        banyan_program_memory_wait_relaxed(p.memory, 0, BANYAN_SYNC_BOTH);
        banyan_program_memory_get(p.memory, OUT(r, 0, 1), IN(p.peer, 2, 3), BANYAN_TB(0));
        banyan_program_memory_put(p.memory, OUT(p.peer, 2, 3), IN(r, 0, 1), BANYAN_TB(0));
        banyan_program_memory_put(p.memory, OUT(p.peer, 3, 4), IN(r, 1, 2), BANYAN_TB(0));
        banyan_program_memory_signal(p.memory, 0, BANYAN_SYNC_BOTH);
        banyan_program_memory_wait(p.memory, 0, BANYAN_SYNC_BOTH);
        banyan_program_barrier(program, r, blocks, 2);
        banyan_program_memory_put(p.memory, OUT(p.peer, 4, 6), IN(r, 4, 6), BANYAN_TB_GROUP(group));
        banyan_program_memory_reduce(p.memory, IN(r, 0, 1),
                                     CHUNKS(IN(p.peer, 1, 2), IN(p.peer, 4, 5)), 2, OUT(r, 1, 2),
                                     BANYAN_SUM, BANYAN_TB(0));
        banyan_program_memory_signal(p.memory, 0, BANYAN_SYNC_BOTH);
        banyan_program_memory_wait(p.memory, 0, BANYAN_SYNC_BOTH);
    }
}

static void write_port(banyan_program *program)
{
    for (int r = 0; r < 2; r++) {
        struct pair p = pair_of(program, r, 3);
        banyan_chunk packets = p.own, theirs = p.theirs;
        banyan_program_port_signal(p.port, 0, BANYAN_SYNC_BOTH);
        banyan_program_port_wait(p.port, 0, BANYAN_SYNC_BOTH);
        banyan_program_port_put(p.port, OUT(p.peer, 0, 1), IN(r, 0, 1), 0);
        banyan_program_port_put_with_signal(p.port, OUT(p.peer, 1, 3), IN(r, 1, 3), 0);
        banyan_program_port_wait(p.port, 0, BANYAN_SYNC_BOTH);
        banyan_program_port_put_with_signal_and_flush(p.port, OUT(p.peer, 3, 4), IN(r, 3, 4), 0);
        banyan_program_copy(program, r, IN(r, 3, 4), IN(r, 5, 6), BANYAN_TB(0));
        banyan_program_port_wait(p.port, 0, BANYAN_SYNC_BOTH);
        banyan_program_port_put(p.port, OUT(p.peer, 4, 5), IN(r, 4, 5), 0);
        banyan_program_port_flush(p.port, 0, BANYAN_SYNC_BOTH);
        banyan_program_copy(program, r, IN(r, 4, 5), IN(r, 0, 1), BANYAN_TB(0));
        banyan_program_port_put_packets(p.port, banyan_program_slice(program, theirs, 0, 1),
                                        IN(r, 5, 6), 0);
        banyan_program_copy_packets(program, r, banyan_program_slice(program, packets, 1, 2),
                                    IN(r, 2, 3), BANYAN_TB(1));
        banyan_program_port_read_put_packets(p.port, banyan_program_slice(program, theirs, 2, 3),
                                             banyan_program_slice(program, packets, 1, 2),
                                             BANYAN_TB(0));
        banyan_program_reduce_packets(program, r, IN(r, 1, 2),
                                      CHUNKS(banyan_program_slice(program, packets, 0, 1),
                                             banyan_program_slice(program, packets, 2, 3)),
                                      2, OUT(r, 5, 6), BANYAN_SUM, BANYAN_TB(1));
        banyan_program_port_signal(p.port, 0, BANYAN_SYNC_BOTH);
        banyan_program_port_wait(p.port, 0, BANYAN_SYNC_BOTH);
    }
}

/* Fused: reduce and send, read and reduce and send. */
static void write_sent_reductions(banyan_program *program)
{
    for (int r = 0; r < 2; r++) {
        struct pair p = pair_of(program, r, 0);
        banyan_program_reduce(program, r, IN(r, 0, 1), CHUNKS(IN(r, 1, 2)), 1, OUT(r, 0, 1),
                              BANYAN_SUM, BANYAN_TB(0));
        banyan_program_memory_put(p.memory, OUT(p.peer, 1, 2), OUT(r, 0, 1), BANYAN_TB(0));
        banyan_program_memory_put(p.memory, OUT(p.peer, 2, 3), OUT(r, 0, 1), BANYAN_TB(0));
        banyan_program_memory_signal(p.memory, 0, BANYAN_SYNC_BOTH);
        banyan_program_memory_wait(p.memory, 0, BANYAN_SYNC_BOTH);
        banyan_program_memory_reduce(p.memory, IN(r, 2, 3), CHUNKS(IN(p.peer, 3, 4)), 1,
                                     OUT(r, 3, 4), BANYAN_MAX, BANYAN_TB(0));
        banyan_program_memory_put(p.memory, OUT(p.peer, 4, 5), OUT(r, 3, 4), BANYAN_TB(0));
        banyan_program_memory_signal(p.memory, 0, BANYAN_SYNC_BOTH);
        banyan_program_memory_wait(p.memory, 0, BANYAN_SYNC_BOTH);
    }
}

/* Fused: with packets to the peer, and to this rank as well. */
static void write_sent_packets(banyan_program *program)
{
    for (int r = 0; r < 2; r++) {
        struct pair p = pair_of(program, r, 5);
        banyan_chunk packets = p.own, theirs = p.theirs;
        banyan_program_memory_put_packets(p.memory, banyan_program_slice(program, theirs, 0, 1),
                                          IN(r, 0, 1), BANYAN_TB(0));
        banyan_program_reduce_packets(program, r, IN(r, 1, 2),
                                      CHUNKS(banyan_program_slice(program, packets, 0, 1)), 1,
                                      OUT(r, 0, 1), BANYAN_SUM, BANYAN_TB(0));
        banyan_program_memory_put_packets(p.memory, banyan_program_slice(program, theirs, 1, 2),
                                          OUT(r, 0, 1), BANYAN_TB(0));
        banyan_program_reduce_packets(program, r, IN(r, 2, 3),
                                      CHUNKS(banyan_program_slice(program, packets, 1, 2)), 1,
                                      OUT(r, 1, 2), BANYAN_SUM, BANYAN_TB(1));
        banyan_program_copy_packets(program, r, banyan_program_slice(program, packets, 2, 3),
                                    OUT(r, 1, 2), BANYAN_TB(1));
        banyan_program_memory_put_packets(p.memory, banyan_program_slice(program, theirs, 3, 4),
                                          OUT(r, 1, 2), BANYAN_TB(1));
        banyan_program_memory_read_put_packets(
            p.memory, banyan_program_slice(program, theirs, 4, 5),
            banyan_program_slice(program, packets, 2, 3), BANYAN_TB(2));
        banyan_program_unpack_packets(program, r, OUT(r, 3, 4),
                                      banyan_program_slice(program, packets, 3, 4), BANYAN_TB(3));
        banyan_program_unpack_packets(program, r, OUT(r, 4, 5),
                                      banyan_program_slice(program, packets, 4, 5), BANYAN_TB(3));
    }
}

static void write_switches(banyan_program *program)
{
    const int ranks[] = {0, 1, 2};
    banyan_program_switch_channel *inputs =
        banyan_program_switch_channel_create(program, ranks, 3, BANYAN_INPUT);
    banyan_program_switch_channel *outputs =
        banyan_program_switch_channel_create(program, ranks, 3, BANYAN_OUTPUT);
    banyan_program_switch_channel *scratches =
        banyan_program_switch_channel_create(program, ranks, 3, BANYAN_SCRATCH);
    banyan_chunk packets[3];
    for (int r = 0; r < 3; r++)
        packets[r] = banyan_program_scratch(program, r, 6);
    for (int r = 0; r < 3; r++) {
        uint64_t at = (uint64_t)r;
        banyan_program_switch_reduce(inputs, r, at, 1, OUT(r, at, at + 1), BANYAN_SUM, 0);
        banyan_program_switch_broadcast(outputs, r, OUT(r, at, at + 1), at, 1, 0);
        banyan_program_switch_reduce(inputs, r, 3 + at, 1, IN(r, 3 + at, 4 + at), BANYAN_MAX, 1);
        banyan_program_switch_broadcast(inputs, r, IN(r, 3 + at, 4 + at), 3 + at, 1, 1);
    }
    banyan_program_copy_packets(program, 0, banyan_program_slice(program, packets[0], 5, 6),
                                IN(0, 0, 1), BANYAN_TB(2));
    banyan_program_switch_broadcast_packets(
        scratches, 0, banyan_program_slice(program, packets[0], 5, 6), 2, 1, 2);
    for (int r = 1; r < 3; r++)
        banyan_program_unpack_packets(program, r, OUT(r, 4, 5),
                                      banyan_program_slice(program, packets[r], 2, 3),
                                      BANYAN_TB(2));
}

/* Two thread blocks of each rank pass units to each other, through scratch that the loop reuses. */
static void write_loop(banyan_program *program)
{
    for (int r = 0; r < 2; r++) {
        struct pair p = pair_of(program, r, 2);
        banyan_chunk scratch = p.own, theirs = p.theirs;
        banyan_program_semaphore *come = banyan_program_semaphore_create(program, r, 0);
        banyan_program_loop_begin(program, 48, 2);
        banyan_program_memory_put(p.memory, theirs, IN(r, 0, 2), BANYAN_TB(0));
        banyan_program_memory_signal(p.memory, 0, BANYAN_SYNC_BOTH);
        banyan_program_memory_wait(p.memory, 0, BANYAN_SYNC_BOTH);
        banyan_program_semaphore_release(come, 0, BANYAN_SYNC_BOTH);
        banyan_program_semaphore_acquire(come, 1, BANYAN_SYNC_BOTH);
        banyan_program_reduce(program, r, scratch, CHUNKS(IN(r, 2, 4)), 1, OUT(r, 1, 3), BANYAN_SUM,
                              BANYAN_TB(1));
        banyan_program_memory_signal(p.memory, 1, BANYAN_SYNC_BOTH);
        banyan_program_memory_wait(p.memory, 0, BANYAN_SYNC_BOTH);
        banyan_program_loop_end(program);
    }
}

/* Like write_loop with packets, whose flags distinguish rounds of the scratch. */
static void write_packet_loop(banyan_program *program)
{
    for (int r = 0; r < 2; r++) {
        struct pair p = pair_of(program, r, 1);
        banyan_chunk packets = p.own, theirs = p.theirs;
        banyan_program_loop_begin(program, 48, 1);
        banyan_program_memory_put_packets(p.memory, theirs, IN(r, 0, 1), BANYAN_TB(0));
        banyan_program_reduce_packets(program, r, IN(r, 2, 3), CHUNKS(packets), 1, OUT(r, 1, 2),
                                      BANYAN_SUM, BANYAN_TB(0));
        banyan_program_memory_signal(p.memory, 0, BANYAN_SYNC_BOTH);
        banyan_program_memory_wait(p.memory, 0, BANYAN_SYNC_BOTH);
        banyan_program_loop_end(program);
    }
}

static const struct {
    const char *name;
    program_fn write;
    int ranks;
} programs[] = {
    {"copies", write_copies, 1},
    {"local packets", write_local_packets, 1},
    {"reductions", write_reductions, 1},
    {"barriers", write_barriers, 1},
    {"gets and puts", write_gets_and_puts, 2},
    {"port", write_port, 2},
    {"sent reductions", write_sent_reductions, 2},
    {"sent packets", write_sent_packets, 2},
    {"switches", write_switches, 3},
    {"loop", write_loop, 2},
    {"packet loop", write_packet_loop, 2},
};
#define PROGRAMS (sizeof programs / sizeof programs[0])

enum { PLAIN, FUSED, FUSED_IN_TWO, REUSED, WAYS };

static banyan_plan *compile(size_t which, int way)
{
    banyan_collective collective = {
        .kind = BANYAN_CUSTOM, .input_chunks = CHUNKS_EACH, .output_chunks = CHUNKS_EACH};
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.fuse = way != PLAIN;
    options.fuse_more = way == FUSED;
    options.instances = way == FUSED_IN_TWO ? 2 : 1;
    options.reuse_resources = way == REUSED;
    options.reused_scratch_bytes = 1024;
    banyan_program *program;
    banyan_plan *plan;
    CHECK_OK(banyan_program_create(programs[which].name, &collective, programs[which].ranks,
                                   &options, &program));
    programs[which].write(program);
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    return plan;
}

struct operation_run {
    size_t which;
    int way;
    int workers;
    uint64_t seed;
    DLDevice device; /* zeroed: the host */
};

static void run_program(banyan_world *world, const struct operation_run *run)
{
    static const uint64_t elems[] = {1, 2, 7, 40, 333};
    banyan_plan *plan = compile(run->which, run->way);
    /* Scratch must be large enough for everything outside of loops. */
    bool loops =
        programs[run->which].write == write_loop || programs[run->which].write == write_packet_loop;
    for (size_t i = 0; i < sizeof elems / sizeof elems[0]; i++) {
        compared_case c = {.plan = plan,
                           .chunk_elems = elems[i],
                           .workers = run->workers,
                           .runs = 1,
                           .seed = run->seed,
                           .device = run->device};
        if (run->way != REUSED || loops)
            compared_run(world, &c);
    }
    banyan_plan_destroy(plan);
}

#endif
