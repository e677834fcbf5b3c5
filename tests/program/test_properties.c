/* What must hold of every program, on random ones. */
#include "program/interpret.h"
#include "program/passes.h"

enum { PROGRAMS = 300, RANKS = 3, BLOCKS = 2, CHUNKS_EACH = 6, ROUNDS = 6 };

/* ---- random programs: thread block b of all ranks works on chunks of its own, and meets the same
 * block of its peers between rounds, so that nothing is raced for ---- */

typedef struct writer {
    banyan_program *program;
    random_state *random;
    banyan_memory_channel *memory[RANKS][RANKS][BLOCKS];
    banyan_port_channel *port[RANKS][RANKS][BLOCKS];
    banyan_switch_channel *all[BLOCKS];
    banyan_semaphore *semaphores[RANKS][BLOCKS];
    banyan_chunk scratch[RANKS], packets[RANKS];
    uint64_t packets_used;
    uint64_t most_size; /* of what an operation moves, in chunks */
} writer;

static bool chance(writer *w, int one_in)
{
    return random_between(w->random, 1, one_in) == 1;
}

static banyan_sync any_sync(writer *w)
{
    return (banyan_sync)random_between(w->random, BANYAN_SYNC_BOTH, BANYAN_SYNC_AFTER);
}

static banyan_reduce_op any_op(writer *w)
{
    return (banyan_reduce_op)random_between(w->random, BANYAN_SUM, BANYAN_MAX);
}

/* Of the block's own part of a rank's buffers. */
static banyan_chunk any_chunk(writer *w, int rank, int block, uint64_t size)
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
        return banyan_slice(program, w->scratch[rank], at, at + size);
    }
}

static bool overlap(banyan_chunk a, banyan_chunk b)
{
    return a.rank == b.rank && a.buffer == b.buffer && a.index < b.index + b.size &&
           b.index < a.index + a.size;
}

static uint64_t any_size(writer *w)
{
    return (uint64_t)random_between(w->random, 1, (int64_t)w->most_size);
}

/* Operands of one operation do not overlap, or its own threads would race. */
static void write_copy(writer *w, int rank, int block)
{
    uint64_t size = any_size(w);
    banyan_chunk from = any_chunk(w, rank, block, size), to = any_chunk(w, rank, block, size);
    if (!overlap(from, to))
        banyan_copy(w->program, rank, to, from, BANYAN_TB(block));
}

/* Chunks c of a rank's input with c % RANKS == peer are the peer's to write in a round. */
static banyan_chunk chunk_for(writer *w, int rank, int peer, int block)
{
    banyan_program *program = w->program;
    uint64_t c = (uint64_t)block * CHUNKS_EACH + (uint64_t)peer;
    c += chance(w, 2) ? RANKS : 0;
    return IN(rank, c, c + 1);
}

/* Runs add up in their source: elsewhere the second of two would undo the first. */
static void write_reduce(writer *w, int rank, int block)
{
    banyan_reduce_op op = any_op(w);
    banyan_chunk sum = chunk_for(w, rank, rank, block), source = sum;
    /* Another reduction from the same source to the same sum would be taken to add up. */
    banyan_barrier(w->program, rank, &block, 1);
    if (chance(w, 3))
        source = chunk_for(w, rank, rank, block);
    for (int64_t i = random_between(w->random, 1, 3); i > 0; i--) {
        banyan_chunk other = any_chunk(w, rank, block, 1);
        if (other.buffer == BANYAN_INPUT)
            continue;
        banyan_reduce_chunks(w->program, rank, source, &other, 1, sum, op, BANYAN_TB(block));
        source = sum;
    }
    for (int peer = 0; peer < RANKS; peer++) {
        banyan_chunk to = sum;
        to.rank = peer;
        if (peer != rank && chance(w, 2))
            banyan_memory_put(w->memory[rank][peer][block], to, sum, BANYAN_TB(block));
    }
}

static void write_exchange(writer *w, int rank, int block)
{
    int peer = (rank + (int)random_between(w->random, 1, RANKS - 1)) % RANKS;
    banyan_chunk to = chunk_for(w, peer, rank, block), own = chunk_for(w, rank, rank, block);
    switch (random_between(w->random, 0, 2)) {
    case 0:
        banyan_memory_put(w->memory[rank][peer][block], to, own, BANYAN_TB(block));
        break;
    case 1:
        banyan_memory_get(w->memory[rank][peer][block], own, chunk_for(w, peer, rank, block),
                          BANYAN_TB(block));
        break;
    default:
        banyan_memory_reduce(w->memory[rank][peer][block], own, &to, 1, BANYAN_IN_SOURCE, any_op(w),
                             BANYAN_TB(block));
    }
}

/* A packet of its own each time: packets are written once. */
static banyan_chunk new_packet(writer *w, int rank)
{
    uint64_t at = w->packets_used++;
    banyan_chunk packets = w->packets[rank];
    return (banyan_chunk){rank, BANYAN_SCRATCH, packets.index + at, 1};
}

static void write_packets(writer *w, int rank, int block)
{
    int peer = (rank + 1) % RANKS;
    banyan_chunk local = new_packet(w, rank), remote = local, sum = chunk_for(w, rank, rank, block);
    remote.rank = peer;
    banyan_copy_packets(w->program, rank, local, chunk_for(w, rank, rank, block), BANYAN_TB(block));
    if (chance(w, 2))
        banyan_memory_read_put_packets(w->memory[rank][peer][block], remote, local,
                                       BANYAN_TB(block));
    banyan_reduce_packets(w->program, rank, sum, &local, 1, BANYAN_IN_SOURCE, any_op(w),
                          BANYAN_TB(block));
    if (chance(w, 2))
        banyan_copy_packets(w->program, rank, new_packet(w, rank), sum, BANYAN_TB(block));
    if (chance(w, 2)) {
        banyan_chunk sent = new_packet(w, peer);
        banyan_memory_put_packets(w->memory[rank][peer][block], sent, sum, BANYAN_TB(block));
    }
    if (chance(w, 2))
        banyan_unpack_packets(w->program, rank, chunk_for(w, rank, rank, block), local,
                              BANYAN_TB(block));
}

static void write_switch(writer *w, int rank, int block)
{
    banyan_program *program = w->program;
    banyan_chunk own = chunk_for(w, rank, rank, block), to = own;
    if (chance(w, 2))
        to = banyan_slice(program, w->scratch[rank], own.index, own.index + 1);
    banyan_switch_reduce(w->all[block], rank, own.index, 1, to, any_op(w), block);
    if (chance(w, 2))
        banyan_switch_broadcast(w->all[block], rank, to, own.index, 1, block);
}

static void write_semaphores(writer *w, int rank, int block)
{
    banyan_semaphore_release(w->semaphores[rank][block], block, any_sync(w));
    banyan_semaphore_acquire(w->semaphores[rank][block], block, any_sync(w));
}

static void write_port(writer *w, int rank, int block)
{
    int peer = (rank + 1) % RANKS, before = (rank + RANKS - 1) % RANKS;
    banyan_port_channel *channel = w->port[rank][peer][block];
    banyan_port_put(channel, chunk_for(w, peer, rank, block), chunk_for(w, rank, rank, block),
                    block);
    if (chance(w, 2))
        banyan_port_put(channel, chunk_for(w, peer, rank, block), chunk_for(w, rank, rank, block),
                        block);
    banyan_port_signal(channel, block, BANYAN_SYNC_BEFORE);
    if (chance(w, 2))
        banyan_port_flush(channel, block, any_sync(w));
    banyan_port_wait(w->port[rank][before][block], block, any_sync(w));
}

/* All of a block's peers have finished what they do before any goes on. */
static void write_meeting(writer *w, int rank, int block)
{
    for (int peer = 0; peer < RANKS; peer++) {
        if (peer != rank)
            banyan_memory_signal(w->memory[rank][peer][block], block, BANYAN_SYNC_BOTH);
    }
    for (int peer = 0; peer < RANKS; peer++) {
        if (peer != rank)
            banyan_memory_wait(w->memory[rank][peer][block], block, BANYAN_SYNC_BOTH);
    }
}

static void write_round(writer *w, int rank, int block, int kind)
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
            banyan_barrier(w->program, rank, &block, 1);
    }
}

static void write_rounds(writer *w)
{
    for (int round = 0; round < ROUNDS; round++) {
        bool loop = chance(w, 3);
        if (loop)
            banyan_loop_begin(w->program, 64, 2);
        for (int block = 0; block < BLOCKS; block++) {
            int kind = (int)random_between(w->random, 0, 6);
            for (int rank = 0; rank < RANKS; rank++) {
                write_round(w, rank, block, kind);
                write_meeting(w, rank, block);
            }
        }
        if (loop)
            banyan_loop_end(w->program);
    }
}

static void write_resources(writer *w)
{
    const int all[RANKS] = {0, 1, 2};
    for (int rank = 0; rank < RANKS; rank++) {
        w->scratch[rank] = banyan_scratch(w->program, rank, BLOCKS * CHUNKS_EACH);
        w->packets[rank] = banyan_scratch(w->program, rank, 4 * 4 * ROUNDS * BLOCKS * RANKS);
        for (int block = 0; block < BLOCKS; block++) {
            w->semaphores[rank][block] = banyan_semaphore_create(w->program, rank, 0);
            for (int peer = 0; peer < RANKS; peer++) {
                if (peer == rank)
                    continue;
                w->memory[rank][peer][block] = banyan_memory_channel_create(w->program, peer, rank);
                w->port[rank][peer][block] = banyan_port_channel_create(w->program, peer, rank);
            }
        }
    }
    for (int block = 0; block < BLOCKS; block++)
        w->all[block] = banyan_switch_channel_create(w->program, all, RANKS, BANYAN_INPUT);
}

static banyan_plan *compile_random(uint64_t seed, uint64_t most_size,
                                   const banyan_program_options *options)
{
    random_state random = random_from(seed);
    banyan_program *program = program_begin(RANKS, BLOCKS * CHUNKS_EACH, options);
    writer w = {.program = program, .random = &random, .most_size = most_size};
    banyan_plan *plan;
    write_resources(&w);
    write_rounds(&w);
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    return plan;
}

/* ---- what each pass was given and made ---- */

typedef struct stages {
    banyan_plan *plans[8];
    const char *passes[8];
    int count;
} stages;

static void keep_stage(void *context, const char *pass, const banyan_plan *plan)
{
    stages *all = context;
    CHECK_OK(plan_clone(plan, &all->plans[all->count]));
    all->passes[all->count++] = pass;
}

static stages random_stages(uint64_t seed, int instances)
{
    stages all = {0};
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.fuse_more = seed % 2;
    options.instances = instances;
    options.dump = keep_stage;
    options.dump_context = &all;
    banyan_plan_destroy(compile_random(seed, instances > 1 ? 1 : 2, &options));
    return all;
}

static void free_stages(stages *all)
{
    for (int i = 0; i < all->count; i++)
        banyan_plan_destroy(all->plans[i]);
}

static const banyan_plan *stage_named(const stages *all, const char *pass)
{
    for (int i = 0; i < all->count; i++) {
        if (strcmp(all->passes[i], pass) == 0)
            return all->plans[i];
    }
    CHECK(false, "no pass %s", pass);
    return NULL;
}

static void for_random_programs(int instances, void (*check)(uint64_t seed, const stages *all))
{
    for (uint64_t i = 0; i < PROGRAMS; i++) {
        uint64_t seed = random_seed() + i;
        stages all = random_stages(seed, instances);
        check(seed, &all);
        free_stages(&all);
    }
}

/* ---- a pass finds nothing to do in what it has made ---- */

static void check_again(const banyan_plan *plan, pass_under_test pass)
{
    banyan_plan *again;
    CHECK_OK(pass(plan, &again));
    check_same(plan, again);
    banyan_plan_destroy(again);
}

static void check_idempotent(uint64_t seed, const stages *all)
{
    if (seed % 2)
        check_again(stage_named(all, "more"), pass_more);
    check_again(stage_named(all, "fuse"), pass_fuse);
    check_again(stage_named(all, "sync"), pass_sync);
    check_again(stage_named(all, "dependencies"), pass_dependencies);
}

static void passes_are_idempotent(void **state)
{
    (void)state;
    for_random_programs(1, check_idempotent);
}

/* ---- passes change nothing in input and output ---- */

typedef struct instance_of {
    uint64_t instance, instances;
} instance_of;

static uint64_t mix(uint64_t a, uint64_t b)
{
    random_state random = random_from(a * UINT64_C(0x9E3779B97F4A7C15) + b);
    return random_next(&random);
}

/* Of one instance's own chunk, and where it is among all instances' chunks. */
static uint64_t first_value(void *context, int rank, plan_buffer buffer, uint64_t chunk)
{
    const instance_of *of = context;
    uint64_t own = of->instance == UINT64_MAX ? chunk / of->instances : chunk;
    uint64_t instance = of->instance == UINT64_MAX ? chunk % of->instances : of->instance;
    return mix(mix(mix((uint64_t)rank, (uint64_t)buffer), own), instance);
}

static interpreted run_plan(const banyan_plan *plan, uint64_t seed, instance_of of)
{
    random_state random = random_from(seed);
    interpreted run = interpreted_begin(plan, first_value, &of);
    interpret(&run, &random);
    return run;
}

/* Chunk c of `one` against chunk c · instances + instance of `all`. */
static void compare_runs(uint64_t seed, const char *pass, const interpreted *one,
                         const interpreted *all, instance_of of)
{
    for (int rank = 0; rank < RANKS; rank++) {
        for (int buffer = PLAN_INPUT; buffer <= PLAN_OUTPUT; buffer++) {
            for (uint64_t chunk = 0; chunk < one->plan->ranks[rank].chunks[buffer]; chunk++) {
                uint64_t at = chunk * of.instances + of.instance;
                CHECK(one->ranks[rank].cells[buffer][chunk].value ==
                          all->ranks[rank].cells[buffer][at].value,
                      "TEST_SEED=%" PRIu64 ": %s: rank %d, %s %" PRIu64, seed, pass, rank,
                      plan_buffer_name((plan_buffer)buffer), chunk);
            }
        }
    }
}

static void check_results(uint64_t seed, const stages *all)
{
    instance_of only = {0, 1};
    interpreted written = run_plan(all->plans[0], seed, only);
    for (int i = 1; i < all->count; i++) {
        interpreted made = run_plan(all->plans[i], seed + 1, only);
        compare_runs(seed, all->passes[i], &written, &made, only);
        interpreted_end(&made);
    }
    interpreted_end(&written);
}

static void compiling_changes_no_result(void **state)
{
    (void)state;
    for_random_programs(1, check_results);
}

static void check_instances(uint64_t seed, const stages *all)
{
    enum { INSTANCES = 3 };
    instance_of every = {UINT64_MAX, INSTANCES};
    interpreted replicated = run_plan(stage_named(all, "instances"), seed, every);
    for (uint64_t i = 0; i < INSTANCES; i++) {
        instance_of one = {i, INSTANCES};
        interpreted written = run_plan(all->plans[0], seed + i, one);
        compare_runs(seed, "instances", &written, &replicated, one);
        interpreted_end(&written);
    }
    interpreted_end(&replicated);
}

static void every_instance_does_what_the_program_does(void **state)
{
    (void)state;
    for_random_programs(3, check_instances);
}

/* ---- nops stand where they are needed, and nowhere else ---- */

/* Chunk by chunk, what the rank's own memory is used for. */
typedef struct footprint {
    bool read[PLAN_BUFFERS][4096], written[PLAN_BUFFERS][4096];
} footprint;

static void mark(const banyan_plan *plan, int rank, const plan_thread_block *block,
                 const plan_op *op, const plan_operand *operand, bool marks[][4096])
{
    plan_buffer buffer = plan_operand_where(plan, rank, block, op, operand).buffer;
    for (uint64_t i = 0; operand->place != PLAN_REMOTE && i < operand->size; i++) {
        CHECK(operand->index + i < 4096, "chunk %" PRIu64, operand->index + i);
        marks[buffer][operand->index + i] = true;
    }
}

static void add_footprint(const banyan_plan *plan, int rank, const plan_thread_block *block,
                          const plan_op *op, footprint *sum)
{
    for (uint32_t i = 0; i < op->op_count; i++)
        add_footprint(plan, rank, block, &op->ops[i], sum);
    for (uint32_t i = 0; i < op->source_count; i++) {
        bool by_flag = op->kind == PLAN_UNPACK_PACKET || op->kind == PLAN_READ_PUT_PACKET;
        if (!by_flag)
            mark(plan, rank, block, op, &op->sources[i], sum->read);
    }
    for (uint32_t i = 0; i < op->destination_count; i++) {
        if (!plan_destination_is_packets(op, i))
            mark(plan, rank, block, op, &op->destinations[i], sum->written);
    }
}

static bool depend(const footprint *before, const footprint *after)
{
    for (int b = 0; b < PLAN_BUFFERS; b++) {
        for (int c = 0; c < 4096; c++) {
            bool used = before->read[b][c] || before->written[b][c];
            if ((before->written[b][c] && after->read[b][c]) || (used && after->written[b][c]))
                return true;
        }
    }
    return false;
}

/* `made` is `given` with a nop wherever an operation depends on what came since the last one. */
static void check_nops(const banyan_plan *plan, int rank, const plan_thread_block *block,
                       const plan_op *given, uint32_t count, const plan_op *made,
                       uint32_t made_count)
{
    footprint since = {0};
    uint32_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        footprint own = {0};
        if (given[i].kind == PLAN_NOP || given[i].kind == PLAN_BARRIER)
            since = own;
        else
            add_footprint(plan, rank, block, &given[i], &own);
        if (depend(&since, &own)) {
            CHECK(at < made_count && made[at].kind == PLAN_NOP, "no nop before operation %u", i);
            at++;
            since = (footprint){0};
        }
        add_footprint(plan, rank, block, &given[i], &since);
        CHECK(at < made_count && made[at].kind == given[i].kind, "operation %u is another", i);
        if (given[i].kind == PLAN_PIPELINE)
            check_nops(plan, rank, block, given[i].ops, given[i].op_count, made[at].ops,
                       made[at].op_count);
        at++;
    }
    CHECK(at == made_count, "%u operations too many", made_count - at);
}

static void check_dependencies(uint64_t seed, const stages *all)
{
    (void)seed;
    const banyan_plan *given = stage_named(all, "sync"), *made = stage_named(all, "dependencies");
    for (int rank = 0; rank < RANKS; rank++) {
        for (uint32_t b = 0; b < given->ranks[rank].block_count; b++) {
            const plan_thread_block *from = &given->ranks[rank].blocks[b];
            const plan_thread_block *to = &made->ranks[rank].blocks[b];
            check_nops(given, rank, from, from->ops, from->op_count, to->ops, to->op_count);
        }
    }
}

static void exactly_the_missing_nops_are_inserted(void **state)
{
    (void)state;
    for_random_programs(1, check_dependencies);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_are_idempotent),
        cmocka_unit_test(compiling_changes_no_result),
        cmocka_unit_test(every_instance_does_what_the_program_does),
        cmocka_unit_test(exactly_the_missing_nops_are_inserted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
