/* Whole collectives, as plans from other sources, on every element type and any size. */
#include <dirent.h>
#include <fnmatch.h>

#include "core/threads/sanitizer.h"
#include "execute/collective_check.h"
#include "support/plans.h"

#include <banyan/program.h>

/* The thread sanitizer does not see that another process orders threads of one process. */
#ifdef SANITIZER_THREAD
#define run_ranks ranks_run_threads
#define RUNS 3
#else
#define run_ranks ranks_run
#define RUNS 20
#endif

static banyan_plan *read_plan(const char *name)
{
    char path[512];
    banyan_plan *plan;
    snprintf(path, sizeof path, "%s/%s", plans_dir(), name);
    CHECK_OK(banyan_plan_read(path, &plan));
    return plan;
}

/* Call `fn` for every plan file with a matching name and number of ranks; returns their number. */
static int for_each_plan(const char *pattern, int most_ranks,
                         void (*fn)(const char *name, int ranks))
{
    struct dirent **names;
    int count = scandir(plans_dir(), &names, NULL, alphasort), matched = 0;
    assert_true(count >= 0);
    for (int i = 0; i < count; i++) {
        const char *name = names[i]->d_name;
        if (fnmatch(pattern, name, 0) == 0) {
            banyan_plan *plan = read_plan(name);
            banyan_plan_info info = banyan_plan_describe(plan);
            if (info.collective != BANYAN_CUSTOM && info.ranks <= most_ranks) {
                fn(name, info.ranks);
                matched++;
            }
            banyan_plan_destroy(plan);
        }
        free(names[i]);
    }
    free(names);
    return matched;
}

static uint64_t message_of(const banyan_plan *plan, uint64_t elems, size_t elem_bytes)
{
    banyan_plan_info info = banyan_plan_describe(plan);
    bool blocks = info.collective == BANYAN_REDUCESCATTER || info.collective == BANYAN_ALLTOALL;
    return elems * elem_bytes * (blocks ? (uint64_t)info.ranks : 1);
}

static void run_sizes(banyan_world *world, void *context)
{
    banyan_plan *plan = read_plan(context);
    banyan_executor *executor;
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    static const uint64_t sizes[] = {0, 1, 7, 64, 1000, 4096, 30001};
    uint64_t turn = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++, turn++) {
        collective_case c = {.plan = plan,
                             .dtype = dtypes[turn % DTYPES],
                             .symmetric = turn % 2 == 0,
                             .apart = turn % 4 >= 2,
                             .runs = sizes[i] <= 1000 ? RUNS : 3};
        c.apart |= !banyan_plan_describe(plan).in_place;
        c.message_bytes = message_of(plan, sizes[i], banyan_dtype_bytes(c.dtype));
        case_run(world, executor, &c);
    }
    banyan_executor_close(executor);
    banyan_plan_destroy(plan);
}

static void run_plan_at_sizes(const char *name, int ranks)
{
    print_message("%s\n", name);
    run_ranks(ranks, run_sizes, (void *)name);
}

static void every_whole_collective_is_right_at_any_size(void **state)
{
    (void)state;
    assert_true(for_each_plan("*_node_*.json", 8, run_plan_at_sizes) > 20);
}

/* Rank 0 puts and flushes; nothing is signalled, so rank 1 needs no channel. */
static banyan_plan *make_put_and_flush(void)
{
    banyan_program *program;
    banyan_plan *plan;
    banyan_collective custom = {.kind = BANYAN_CUSTOM, .input_chunks = 1, .output_chunks = 1};
    CHECK_OK(banyan_program_create("put_and_flush", &custom, 2, NULL, &program));
    banyan_program_port_channel *channel = banyan_program_port_channel_create(program, 1, 0);
    banyan_program_port_put(channel, banyan_program_output(program, 1, 0, 1),
                            banyan_program_input(program, 0, 0, 1), 0);
    banyan_program_port_flush(channel, 0, BANYAN_SYNC_BOTH);
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    return plan;
}

static void put_and_flush(banyan_world *world, void *context)
{
    (void)context;
    enum { ELEMS = 9 };
    banyan_plan *plan = make_put_and_flush();
    banyan_executor *executor;
    banyan_loaded_plan *loaded;
    banyan_memory *memory;
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    size_t bytes = ELEMS * sizeof(int32_t);
    int rank = banyan_world_rank(world);
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    CHECK_OK(banyan_memory_alloc(world, 2 * bytes, &memory));
    options.max_message_bytes = bytes;
    options.input = options.output = memory;
    CHECK_OK(banyan_loaded_plan_open(executor, plan, &options, &loaded));
    int32_t *input = banyan_memory_local(memory), *output = input + ELEMS;
    for (int i = 0; i < ELEMS; i++)
        input[i] = 10 * rank + i + 1;
    CHECK_OK(
        banyan_loaded_plan_run(loaded, input, output, bytes, (DLDataType){kDLInt, 32, 1}, NULL));
    CHECK_OK(banyan_world_barrier(world));
    for (int i = 0; i < ELEMS; i++)
        CHECK(output[i] == (rank == 1 ? i + 1 : 0), "element %d is %d", i, output[i]);
    CHECK_OK(banyan_loaded_plan_close(loaded));
    banyan_memory_free(memory);
    banyan_executor_close(executor);
    banyan_plan_destroy(plan);
}

static void a_channel_without_signals_needs_no_other_end(void **state)
{
    (void)state;
    ranks_run(2, put_and_flush, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_whole_collective_is_right_at_any_size),
        cmocka_unit_test(a_channel_without_signals_needs_no_other_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
