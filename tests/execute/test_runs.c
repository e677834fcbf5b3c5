/* Sequences of runs of one loaded plan: changes of size, type and buffers, wrapping flags, several
 * worker threads, and many ranks on few processors. */
#include "execute/collective_check.h"

#include <inttypes.h>
#include <unistd.h>

#include "core/deadline.h"
#include "execute/load/loaded.h"
#include "support/proof.h"

static banyan_program *begin(banyan_collective_kind kind, int ranks, bool in_place, bool packets)
{
    banyan_collective collective = {
        .kind = kind, .in_place = in_place, .root = 1 % ranks, .shift = 1};
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    banyan_program *program;
    options.protocol = packets ? BANYAN_LL : BANYAN_SIMPLE;
    CHECK_OK(banyan_program_create("runs", &collective, ranks, &options, &program));
    return program;
}

static banyan_plan *compile(banyan_program *program)
{
    banyan_plan *plan;
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    return plan;
}

static banyan_plan *finish(banyan_program *program)
{
    banyan_plan *plan = compile(program);
    proof_demand(plan, "runs");
    return plan;
}

/* Every rank's part of the input goes to its owner, and the owner's sum to all ranks, in packets,
 * in scratch that does not alternate between runs. Correct only if packets of one size never lie
 * where another size's are still to be read. */
static banyan_plan *packet_plan(int ranks)
{
    banyan_program *program = begin(BANYAN_ALLREDUCE, ranks, true, true);
    uint64_t n = (uint64_t)ranks;
    for (int r = 0; r < ranks; r++)
        banyan_program_scratch(program, r, 2 * n);
    for (int r = 0; r < ranks; r++) {
        uint64_t mine = (uint64_t)r;
        banyan_program_memory_channel *to[16];
        banyan_chunk others[16];
        int count = 0;
        for (int p = 0; p < ranks; p++) {
            uint64_t theirs = (uint64_t)p;
            if (p == r)
                continue;
            to[p] = banyan_program_memory_channel_create(program, p, r);
            banyan_program_memory_put_packets(to[p], (banyan_chunk){p, BANYAN_SCRATCH, mine, 1},
                                              banyan_program_input(program, r, theirs, theirs + 1),
                                              BANYAN_TB(0));
            others[count++] = (banyan_chunk){r, BANYAN_SCRATCH, theirs, 1};
        }
        banyan_program_reduce_packets(program, r, banyan_program_input(program, r, mine, mine + 1),
                                      others, count, BANYAN_IN_SOURCE, BANYAN_SUM, BANYAN_TB(0));
        for (int p = 0; p < ranks; p++) {
            if (p != r)
                banyan_program_memory_put_packets(
                    to[p], (banyan_chunk){p, BANYAN_SCRATCH, n + mine, 1},
                    banyan_program_input(program, r, mine, mine + 1), BANYAN_TB(0));
        }
        for (uint64_t p = 0; p < n; p++) {
            if (p != mine)
                banyan_program_unpack_packets(
                    program, r, banyan_program_input(program, r, p, p + 1),
                    (banyan_chunk){r, BANYAN_SCRATCH, n + p, 1}, BANYAN_TB(0));
        }
    }
    return finish(program);
}

static void exchange_signals(banyan_program_memory_channel *const *to, int rank, int ranks,
                             int block)
{
    for (int p = 0; p < ranks; p++) {
        if (p != rank)
            banyan_program_memory_signal(to[p], block, BANYAN_SYNC_BOTH);
    }
    for (int p = 0; p < ranks; p++) {
        if (p != rank)
            banyan_program_memory_wait(to[p], block, BANYAN_SYNC_BOTH);
    }
}

/* Every rank reads the data it needs from the peers' inputs, with `blocks` thread blocks. */
static banyan_plan *reading_plan(banyan_collective_kind kind, int ranks, bool in_place, int blocks)
{
    banyan_program *program = begin(kind, ranks, in_place, false);
    for (int r = 0; r < ranks; r++) {
        for (int b = 0; b < blocks; b++) {
            banyan_program_memory_channel *to[16];
            uint64_t mine = (uint64_t)r;
            for (int p = 0; p < ranks; p++) {
                if (p != r)
                    to[p] = banyan_program_memory_channel_create(program, p, r);
            }
            exchange_signals(to, r, ranks, b);
            for (int p = b; p < ranks; p += blocks) {
                uint64_t theirs = (uint64_t)p;
                if (kind == BANYAN_ALLTOALL && p == r)
                    banyan_program_copy(
                        program, r, banyan_program_output(program, r, mine, mine + 1),
                        banyan_program_input(program, r, mine, mine + 1), BANYAN_TB(b));
                else if (kind == BANYAN_ALLTOALL)
                    banyan_program_memory_get(
                        to[p], banyan_program_output(program, r, theirs, theirs + 1),
                        banyan_program_input(program, p, mine, mine + 1), BANYAN_TB(b));
            }
            banyan_chunk remote[16];
            int count = 0;
            for (int p = 0; p < ranks && kind == BANYAN_REDUCESCATTER; p++) {
                if (p != r)
                    remote[count++] = banyan_program_input(program, p, mine, mine + 1);
            }
            for (int i = 0; i < count; i++) {
                banyan_chunk own = banyan_program_input(program, r, mine, mine + 1);
                banyan_chunk sum = banyan_program_output(program, r, 0, 1);
                banyan_program_memory_reduce(to[remote[i].rank], i == 0 ? own : sum, &remote[i], 1,
                                             sum, BANYAN_SUM, BANYAN_TB(b));
            }
            exchange_signals(to, r, ranks, b);
        }
    }
    return finish(program);
}

/* The root puts its input into all outputs, or reads all inputs. */
static banyan_plan *rooted_plan(banyan_collective_kind kind, int ranks, bool in_place)
{
    banyan_program *program = begin(kind, ranks, in_place, false);
    int root = 1 % ranks;
    for (int r = 0; r < ranks; r++) {
        banyan_program_memory_channel *out, *back;
        if (r == root)
            continue;
        out = banyan_program_memory_channel_create(program, r, root);
        back = banyan_program_memory_channel_create(program, root, r);
        banyan_program_memory_signal(back, 0, BANYAN_SYNC_BOTH);
        banyan_program_memory_wait(out, 0, BANYAN_SYNC_BOTH);
        if (kind == BANYAN_BROADCAST) {
            banyan_program_memory_put(out, banyan_program_output(program, r, 0, 1),
                                      banyan_program_input(program, root, 0, 1), BANYAN_TB(0));
        } else {
            banyan_chunk remote = banyan_program_input(program, r, 0, 1);
            bool first = r == (root == 0 ? 1 : 0);
            banyan_program_memory_reduce(
                out,
                first && !in_place ? banyan_program_input(program, root, 0, 1)
                                   : banyan_program_output(program, root, 0, 1),
                &remote, 1, banyan_program_output(program, root, 0, 1), BANYAN_SUM, BANYAN_TB(0));
        }
        banyan_program_memory_signal(out, 0, BANYAN_SYNC_BOTH);
        banyan_program_memory_wait(back, 0, BANYAN_SYNC_BOTH);
    }
    if (kind == BANYAN_BROADCAST && !in_place)
        banyan_program_copy(program, root, banyan_program_output(program, root, 0, 1),
                            banyan_program_input(program, root, 0, 1), BANYAN_TB(1));
    return finish(program);
}

static const DLDataType types[] = {{kDLFloat, 32, 1},
                                   {kDLUInt, 8, 1},
                                   {kDLInt, 64, 1},
                                   {kDLBfloat, 16, 1},
                                   {BANYAN_DL_FLOAT8_E4M3FN, 8, 1}};

/* All ranks draw equal sizes. */
static void change_sizes(banyan_world *world, void *context)
{
    random_state random = random_from(*(uint64_t *)context);
    int ranks = banyan_world_size(world), rank = banyan_world_rank(world);
    banyan_executor *executor;
    banyan_loaded_plan *loaded;
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    banyan_plan *plan = packet_plan(ranks);
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = 65536;
    CHECK_OK(banyan_loaded_plan_open(executor, plan, &options, &loaded));
    for (int run = 0; run < 300; run++) {
        collective_case c = {.plan = plan, .apart = random_next(&random) % 2};
        c.dtype = types[random_next(&random) % (sizeof types / sizeof types[0])];
        c.message_bytes =
            (uint64_t)random_between(&random, 0, 1 << random_between(&random, 0, 12)) *
            banyan_dtype_bytes(c.dtype);
        case_buffers b = case_take(&c, world);
        case_fill(&c, &b, rank, run);
        CHECK_OK(banyan_loaded_plan_run(loaded, b.input, b.output, c.message_bytes, c.dtype, NULL));
        case_check(&c, &b, rank, run);
        case_give_back(&c, &b);
        CHECK_OK(banyan_loaded_plan_status(loaded));
        if (run % 100 == 50) {
            CHECK_OK(banyan_loaded_plan_reset(loaded));
            CHECK(loaded->runs == 0 && loaded->flag == 1, "runs are still counted");
        }
    }
    CHECK_OK(banyan_loaded_plan_close(loaded));
    banyan_plan_destroy(plan);
    banyan_executor_close(executor);
}

static void sizes_types_and_buffers_may_change_with_every_run(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    for (int ranks = 2; ranks <= 4; ranks++)
        ranks_run_threads(ranks, change_sizes, &seed);
    ranks_run(3, change_sizes, &seed);
}

/* State kept from a run is used only for runs with equal buffers. */
static void exchange_buffers(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    banyan_executor *executor;
    banyan_loaded_plan *loaded;
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    collective_case c = {.dtype = BANYAN_F32, .apart = true};
    c.plan = reading_plan(BANYAN_ALLTOALL, ranks, false, 2);
    c.message_bytes = 400 * (uint64_t)ranks;
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = c.message_bytes;
    CHECK_OK(banyan_loaded_plan_open(executor, c.plan, &options, &loaded));
    case_buffers pairs[2] = {case_take(&c, world), case_take(&c, world)};
    for (int run = 0; run < 64; run++) {
        case_buffers mixed = pairs[0];
        /* Use each pair of an input and an output twice, so that it uses both halves of
         * scratch. */
        mixed.input = pairs[run / 2 % 2].input;
        mixed.output = pairs[run / 4 % 2].output;
        for (int i = 0; i < 2; i++)
            case_fill(&c, &pairs[i], rank, run + 1000 * i);
        CHECK_OK(banyan_loaded_plan_run(loaded, mixed.input, mixed.output, c.message_bytes, c.dtype,
                                        NULL));
        int from = run / 2 % 2, to = run / 4 % 2;
        case_buffers seen = pairs[to];
        memcpy(seen.input, pairs[from].input, (size_t)seen.input_bytes);
        case_check(&c, &seen, rank, run + 1000 * from);
    }
    for (int i = 0; i < 2; i++)
        case_give_back(&c, &pairs[i]);
    CHECK_OK(banyan_loaded_plan_close(loaded));
    banyan_plan_destroy((banyan_plan *)c.plan);
    banyan_executor_close(executor);
}

static void input_and_output_may_change_one_without_the_other(void **state)
{
    (void)state;
    ranks_run(3, exchange_buffers, NULL);
}

static void run_kinds(banyan_world *world, void *context)
{
    int workers = *(int *)context, ranks = banyan_world_size(world);
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    banyan_executor *executor;
    options.workers = workers;
    CHECK_OK(banyan_executor_open(world, &options, &executor));
    for (int i = 0; i < 24; i++) {
        bool in_place = i & 1;
        collective_case c = {.dtype = BANYAN_F32, .runs = 3, .symmetric = i & 2};
        c.apart = !in_place || i & 4;
        static const uint64_t elems[] = {5, 1000, 7000};
        c.message_bytes = 4 * elems[i / 8];
        banyan_plan *plans[] = {
            reading_plan(BANYAN_REDUCESCATTER, ranks, in_place, 1),
            reading_plan(BANYAN_ALLTOALL, ranks, false, 3),
            rooted_plan(BANYAN_BROADCAST, ranks, in_place),
            rooted_plan(BANYAN_REDUCE, ranks, in_place),
        };
        for (int p = 0; p < 4; p++) {
            collective_case one = c;
            one.plan = plans[p];
            one.apart |= p == 1;
            one.message_bytes *= p < 2 ? (uint64_t)ranks : 1;
            case_run(world, executor, &one);
            banyan_plan_destroy(plans[p]);
        }
    }
    banyan_executor_close(executor);
}

static void blocks_and_roots_are_right_wherever_the_buffers_lie(void **state)
{
    (void)state;
    for (int workers = 1; workers <= 4; workers *= 2)
        ranks_run_threads(3, run_kinds, &workers);
    int workers = 1;
    ranks_run(4, run_kinds, &workers);
}

static void run_without_use(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    banyan_executor *executor;
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    for (int i = 0; i < 4; i++) {
        banyan_collective_kind kind = i < 2 ? BANYAN_BROADCAST : BANYAN_REDUCE;
        banyan_plan *plan = rooted_plan(kind, 3, i & 1);
        banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
        banyan_loaded_plan *loaded;
        options.max_message_bytes = 16;
        CHECK_OK(banyan_loaded_plan_open(executor, plan, &options, &loaded));
        float input[4] = {1, 2, 3, (float)rank}, output[4] = {0};
        bool root = rank == 1;
        CHECK_OK(banyan_loaded_plan_run(loaded, root || kind == BANYAN_REDUCE ? input : NULL,
                                        root || kind == BANYAN_BROADCAST ? output : NULL,
                                        sizeof input, BANYAN_F32, NULL));
        CHECK(input[3] == (float)rank, "the input has changed");
        if (kind == BANYAN_BROADCAST)
            CHECK(output[1] == 2 && output[3] == 1, "%g %g", output[1], output[3]);
        else if (root)
            CHECK(output[1] == 6 && output[3] == 3, "%g %g", output[1], output[3]);
        CHECK_OK(banyan_loaded_plan_close(loaded));
        banyan_plan_destroy(plan);
    }
    banyan_executor_close(executor);
}

static void ranks_other_than_the_root_may_leave_out_unused_buffers(void **state)
{
    (void)state;
    ranks_run(3, run_without_use, NULL);
}

static banyan_plan *custom_plan(uint64_t input, uint64_t output, bool in_place, uint64_t unit_bytes)
{
    banyan_collective collective = {.kind = BANYAN_CUSTOM,
                                    .input_chunks = input,
                                    .output_chunks = output,
                                    .in_place = in_place};
    banyan_program *program;
    CHECK_OK(banyan_program_create("custom", &collective, 1, NULL, &program));
    if (unit_bytes > 0)
        banyan_program_loop_begin(program, unit_bytes, 1);
    banyan_chunk other = banyan_program_input(program, 0, input - 1, input);
    banyan_program_reduce(program, 0, banyan_program_input(program, 0, 0, 1), &other, 1,
                          banyan_program_output(program, 0, output - 1, output), BANYAN_SUM,
                          BANYAN_TB(0));
    if (unit_bytes > 0)
        banyan_program_loop_end(program);
    return finish(program);
}

static banyan_loaded_plan *load_custom(banyan_executor *executor, banyan_plan *plan, uint64_t bytes)
{
    banyan_loaded_plan *loaded;
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = bytes;
    CHECK_OK(banyan_loaded_plan_open(executor, plan, &options, &loaded));
    banyan_plan_destroy(plan);
    return loaded;
}

static void run_custom(banyan_world *world, void *context)
{
    (void)context;
    banyan_executor *executor;
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    /* The longer buffer contains the other one, whichever it is. */
    uint32_t data[3] = {1, 20, 300}, sum[1] = {7};
    banyan_loaded_plan *loaded = load_custom(executor, custom_plan(3, 1, true, 0), 12);
    CHECK_OK(banyan_loaded_plan_run(loaded, data, sum, 12, (DLDataType){kDLUInt, 32, 1}, NULL));
    CHECK(sum[0] == 301 && data[0] == 1 && data[1] == 20 && data[2] == 300, "%u", sum[0]);
    CHECK_OK(banyan_loaded_plan_run(loaded, data, data, 12, (DLDataType){kDLUInt, 32, 1}, NULL));
    CHECK(data[0] == 301 && data[1] == 20 && data[2] == 300, "%u", data[0]);
    CHECK_OK(banyan_loaded_plan_close(loaded));
    uint32_t out[3] = {7, 8, 9}, in[1] = {5};
    loaded = load_custom(executor, custom_plan(1, 3, true, 0), 4);
    CHECK_OK(banyan_loaded_plan_run(loaded, in, out, 4, (DLDataType){kDLUInt, 32, 1}, NULL));
    CHECK(in[0] == 5 && out[0] == 5 && out[1] == 8 && out[2] == 10, "%u", out[2]);
    CHECK_OK(banyan_loaded_plan_close(loaded));
    /* More iterations than are prepared in advance. */
    enum { ELEMS = 300000 };
    uint32_t *long_in = calloc(2 * ELEMS, sizeof *long_in);
    uint32_t *long_out = calloc(ELEMS, sizeof *long_out);
    for (uint32_t i = 0; i < 2 * ELEMS; i++)
        long_in[i] = i * i;
    loaded = load_custom(executor, custom_plan(2, 1, false, 16), 8 * ELEMS);
    CHECK_OK(banyan_loaded_plan_run(loaded, long_in, long_out, 8 * ELEMS,
                                    (DLDataType){kDLUInt, 32, 1}, NULL));
    for (uint32_t i = 0; i < ELEMS; i++)
        CHECK(long_out[i] == long_in[i] + long_in[ELEMS + i], "element %u", i);
    CHECK_OK(banyan_loaded_plan_close(loaded));
    free(long_in);
    free(long_out);
    banyan_executor_close(executor);
}

static void custom_plans_of_uneven_buffers_and_long_loops_run(void **state)
{
    (void)state;
    ranks_run(1, run_custom, NULL);
}

/* Puts without a flush: the peer is signalled last, and waits for it. The checker requires a
 * flush; on the host the end of a run flushes. */
static banyan_plan *port_plan(void)
{
    banyan_program *program = begin(BANYAN_SENDRECV, 2, false, false);
    for (int r = 0; r < 2; r++) {
        banyan_program_port_channel *to = banyan_program_port_channel_create(program, 1 - r, r);
        banyan_program_port_signal(to, 0, BANYAN_SYNC_BOTH);
        banyan_program_port_wait(to, 0, BANYAN_SYNC_BOTH);
        banyan_program_port_put(to, banyan_program_output(program, 1 - r, 0, 1),
                                banyan_program_input(program, r, 0, 1), 0);
        banyan_program_port_signal(to, 0, BANYAN_SYNC_BOTH);
        banyan_program_port_wait(to, 0, BANYAN_SYNC_BOTH);
    }
    return compile(program);
}

static void run_ports(banyan_world *world, void *context)
{
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    banyan_executor *executor;
    options.workers = *(int *)context;
    CHECK_OK(banyan_executor_open(world, &options, &executor));
    banyan_plan *plan = port_plan();
    for (int symmetric = 0; symmetric < 2; symmetric++) {
        collective_case c = {.plan = plan,
                             .dtype = BANYAN_F32,
                             .message_bytes = 40000,
                             .symmetric = symmetric,
                             .apart = true,
                             .runs = 20};
        case_run(world, executor, &c);
    }
    banyan_plan_destroy(plan);
    banyan_executor_close(executor);
}

static void inputs_may_be_written_after_puts_that_nobody_flushed(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 2; threads++)
        ranks_run_threads(2, run_ports, &threads);
}

/* Rank 1 comes late, but only the runs count. No machine copies a terabyte in a second. */
static void measure(banyan_world *world, void *context)
{
    (void)context;
    enum { RUNS = 20, BYTES = 1 << 22, LATE_NS = 50 * 1000 * 1000 };
    int rank = banyan_world_rank(world);
    banyan_executor *executor;
    banyan_loaded_plan *loaded;
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    collective_case c = {.plan = packet_plan(2), .dtype = BANYAN_F32, .message_bytes = BYTES};
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = BYTES;
    CHECK_OK(banyan_loaded_plan_open(executor, c.plan, &options, &loaded));
    case_buffers b = case_take(&c, world);
    for (uint32_t runs = 1; runs <= RUNS; runs += RUNS - 1) {
        uint64_t ns = 0, began_ns = time_now_ns(), made = loaded->runs;
        case_fill(&c, &b, rank, 0);
        CHECK_OK(banyan_world_barrier(world));
        if (rank == 1)
            usleep(LATE_NS / 1000);
        CHECK_OK(banyan_loaded_plan_time(loaded, b.input, b.output, BYTES, c.dtype, runs, &ns));
        uint64_t most_ns = time_now_ns() - began_ns - LATE_NS;
        uint64_t least_ns = (uint64_t)runs * BYTES / 1000;
        CHECK(ns >= least_ns && ns <= most_ns, "%" PRIu64 " ns, not %" PRIu64 " to %" PRIu64, ns,
              least_ns, most_ns);
        CHECK(loaded->runs == made + runs, "%u runs are %" PRIu64, runs, loaded->runs - made);
        if (runs == 1)
            case_check(&c, &b, rank, 0);
    }
    uint64_t ns = 7;
    CHECK_FAILS(banyan_loaded_plan_time(loaded, b.input, b.output, 2 * BYTES, c.dtype, 1, &ns),
                BANYAN_ERR_INVALID, "8388608");
    CHECK(ns == 7);
    case_give_back(&c, &b);
    CHECK_OK(banyan_loaded_plan_close(loaded));
    banyan_plan_destroy((banyan_plan *)c.plan);
    banyan_executor_close(executor);
}

static void a_measurement_counts_the_runs_alone(void **state)
{
    (void)state;
    ranks_run(2, measure, NULL);
}

static void wrap_flags(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    banyan_executor *executor;
    banyan_loaded_plan *loaded;
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    collective_case c = {.dtype = BANYAN_F32, .message_bytes = 4000, .plan = packet_plan(2)};
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = c.message_bytes;
    CHECK_OK(banyan_loaded_plan_open(executor, c.plan, &options, &loaded));
    case_buffers b = case_take(&c, world);
    for (int run = 0; run < 12; run++) {
        if (run == 4)
            loaded->flag = UINT32_MAX - 4;
        case_fill(&c, &b, rank, run);
        CHECK_OK(banyan_loaded_plan_run(loaded, b.input, b.output, c.message_bytes, c.dtype, NULL));
        case_check(&c, &b, rank, run);
        CHECK(loaded->flag != 0, "flag 0 is fresh memory's");
    }
    CHECK(loaded->flag < 10, "the flag is %u", loaded->flag);
    case_give_back(&c, &b);
    CHECK_OK(banyan_loaded_plan_close(loaded));
    banyan_plan_destroy((banyan_plan *)c.plan);
    banyan_executor_close(executor);
}

static void flags_begin_anew_when_they_are_used_up(void **state)
{
    (void)state;
    ranks_run(2, wrap_flags, NULL);
}

static void run_many(banyan_world *world, void *context)
{
    (void)context;
    banyan_executor *executor;
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    banyan_plan *plan = reading_plan(BANYAN_ALLTOALL, 8, false, 32);
    collective_case c = {.plan = plan, .dtype = BANYAN_F32, .apart = true, .runs = 50};
    c.message_bytes = 8 * 4 * 100;
    uint64_t start_ns = time_now_ns();
    case_run(world, executor, &c);
    double took_s = (double)(time_now_ns() - start_ns) / 1e9;
    if (banyan_world_rank(world) == 0)
        printf("8 ranks of 32 thread blocks, %d runs: %.2f s\n", c.runs, took_s);
    CHECK(took_s < 30, "it took %.1f s", took_s);
    banyan_plan_destroy(plan);
    banyan_executor_close(executor);
}

static void eight_ranks_of_32_thread_blocks_finish_promptly(void **state)
{
    (void)state;
    ranks_run(8, run_many, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_types_and_buffers_may_change_with_every_run),
        cmocka_unit_test(input_and_output_may_change_one_without_the_other),
        cmocka_unit_test(blocks_and_roots_are_right_wherever_the_buffers_lie),
        cmocka_unit_test(ranks_other_than_the_root_may_leave_out_unused_buffers),
        cmocka_unit_test(custom_plans_of_uneven_buffers_and_long_loops_run),
        cmocka_unit_test(inputs_may_be_written_after_puts_that_nobody_flushed),
        cmocka_unit_test(a_measurement_counts_the_runs_alone),
        cmocka_unit_test(flags_begin_anew_when_they_are_used_up),
        cmocka_unit_test(eight_ranks_of_32_thread_blocks_finish_promptly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
