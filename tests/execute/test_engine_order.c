/* A device's signals publish earlier writes, even if a plan has relaxed them, and stay relaxed if
 * there is nothing to publish. */
#include "support/test.h"

#include <string.h>

#include "execute/device/program.h"

#define CHUNKS_EACH 4
#define UNIT_BYTES 256

typedef void (*write_fn)(banyan_program *program, int rank,
                         banyan_program_memory_channel **channels);

struct order_case {
    const char *what;
    write_fn write;
    uint64_t message_bytes;
    bool symmetric;
    const char *signals; /* of a rank's first thread block, in order: r relaxed, p publishing */
};

static banyan_chunk in(int rank, uint64_t index)
{
    return (banyan_chunk){rank, BANYAN_INPUT, index, 1};
}

static banyan_chunk out(int rank, uint64_t index)
{
    return (banyan_chunk){rank, BANYAN_OUTPUT, index, 1};
}

static void signal_peer(banyan_program_memory_channel *channel)
{
    banyan_program_memory_signal_relaxed(channel, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait_relaxed(channel, 0, BANYAN_SYNC_BOTH);
}

static void put_between(banyan_program *program, int rank, banyan_program_memory_channel **channels)
{
    (void)program;
    signal_peer(channels[0]);
    banyan_program_memory_put(channels[0], out(1 - rank, 0), in(rank, 0), BANYAN_TB(0));
    signal_peer(channels[0]);
}

static void signal_twice(banyan_program *program, int rank,
                         banyan_program_memory_channel **channels)
{
    (void)program;
    banyan_program_memory_put(channels[0], out(1 - rank, 0), in(rank, 0), BANYAN_TB(0));
    banyan_program_memory_signal(channels[0], 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_signal_relaxed(channels[0], 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_signal_relaxed(channels[1], 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(channels[0], 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait_relaxed(channels[0], 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait_relaxed(channels[1], 0, BANYAN_SYNC_BOTH);
}

static void put_packets(banyan_program *program, int rank, banyan_program_memory_channel **channels)
{
    banyan_program_memory_put_packets(channels[0], (banyan_chunk){1 - rank, BANYAN_SCRATCH, 0, 1},
                                      in(rank, 0), BANYAN_TB(0));
    banyan_program_memory_signal_relaxed(channels[0], 0, BANYAN_SYNC_BOTH);
    banyan_program_unpack_packets(program, rank, out(rank, 0),
                                  (banyan_chunk){rank, BANYAN_SCRATCH, 0, 1}, BANYAN_TB(0));
    banyan_program_memory_wait_relaxed(channels[0], 0, BANYAN_SYNC_BOTH);
}

static void put_in_a_loop(banyan_program *program, int rank,
                          banyan_program_memory_channel **channels)
{
    banyan_program_loop_begin(program, UNIT_BYTES, 1);
    banyan_program_memory_signal_relaxed(channels[0], 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_put(channels[0], out(1 - rank, 0), in(rank, 0), BANYAN_TB(0));
    banyan_program_memory_wait_relaxed(channels[0], 0, BANYAN_SYNC_BOTH);
    banyan_program_loop_end(program);
}

static void barrier_between(banyan_program *program, int rank,
                            banyan_program_memory_channel **channels)
{
    const int blocks[] = {0, 1};
    signal_peer(channels[0]);
    banyan_program_copy(program, rank, out(rank, 0), in(rank, 0), BANYAN_TB(1));
    banyan_program_barrier(program, rank, blocks, 2);
    signal_peer(channels[0]);
}

static void get_at_once(banyan_program *program, int rank, banyan_program_memory_channel **channels)
{
    (void)program;
    signal_peer(channels[0]);
    banyan_program_memory_get(channels[0], out(rank, 0), in(1 - rank, 0), BANYAN_TB(0));
    signal_peer(channels[1]);
}

static banyan_plan *compile(write_fn write)
{
    banyan_collective collective = {
        .kind = BANYAN_CUSTOM, .input_chunks = CHUNKS_EACH, .output_chunks = CHUNKS_EACH};
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.fuse = false;
    banyan_program *program;
    banyan_plan *plan;
    CHECK_OK(banyan_program_create("order", &collective, 2, &options, &program));
    banyan_program_memory_channel *channels[2][2];
    for (int rank = 0; rank < 2; rank++) {
        banyan_program_scratch(program, rank, 2);
        for (int i = 0; i < 2; i++)
            channels[rank][i] = banyan_program_memory_channel_create(program, 1 - rank, rank);
    }
    for (int rank = 0; rank < 2; rank++)
        write(program, rank, channels[rank]);
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    return plan;
}

static void check_signals(const struct order_case *c, const engine_program *program)
{
    char found[16] = "";
    size_t count = 0;
    const engine_block *block = &program->blocks[0];
    for (uint32_t i = 0; i < block->step_count; i++) {
        const engine_step *s = &program->steps[block->first_step + i];
        if (s->kind == STEP_SIGNAL && count < sizeof found - 1)
            found[count++] = s->relaxed ? 'r' : 'p';
        CHECK(s->kind != STEP_WAIT || !s->relaxed, "%s: a wait does not acquire", c->what);
    }
    CHECK(strcmp(found, c->signals) == 0, "%s: signals are %s, not %s", c->what, found, c->signals);
}

static void check_case(banyan_world *world, void *context)
{
    const struct order_case *c = context;
    banyan_executor *executor;
    banyan_loaded_plan *loaded;
    banyan_memory *memory = NULL;
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_plan *plan = compile(c->write);
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    CHECK_OK(banyan_memory_alloc(world, 2 * c->message_bytes, &memory));
    char *buffers = banyan_memory_local(memory);
    options.max_message_bytes = c->message_bytes;
    options.input = options.output = c->symmetric ? memory : NULL;
    CHECK_OK(banyan_loaded_plan_open(executor, plan, &options, &loaded));
    CHECK_OK(banyan_loaded_plan_run(loaded, buffers, buffers + c->message_bytes, c->message_bytes,
                                    BANYAN_U8, NULL));
    engine_arrays arrays;
    engine_program program;
    CHECK_OK(engine_program_make(loaded, loaded->specialized.data[0], 0, &arrays, &program));
    check_signals(c, &program);
    engine_arrays_free(&arrays);
    CHECK_OK(banyan_loaded_plan_close(loaded));
    banyan_memory_free(memory);
    banyan_executor_close(executor);
    banyan_plan_destroy(plan);
}

static void signals_publish_earlier_operations(void **state)
{
    (void)state;
    static const struct order_case cases[] = {
        {"a put between two", put_between, 4096, true, "rp"},
        {"published on one channel", signal_twice, 4096, true, "prp"},
        {"behind packets", put_packets, 4096, true, "r"},
        {"a loop of one iteration", put_in_a_loop, UNIT_BYTES * CHUNKS_EACH, true, "r"},
        {"a loop of two iterations", put_in_a_loop, 2 * UNIT_BYTES * CHUNKS_EACH, true, "p"},
        {"another thread block's copy", barrier_between, 4096, true, "rp"},
        {"before a staged input is read", get_at_once, 4096, false, "pp"},
        {"before an input is read in place", get_at_once, 4096, true, "rp"},
        {"a staged output that is put to", put_between, 4096, false, "rp"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ranks_run_threads(2, check_case, (void *)&cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signals_publish_earlier_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
