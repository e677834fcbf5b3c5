/* The built-in algorithms, run between processes: every element of every output, at sizes that
 * divide evenly and others, run after run without a barrier. */
#include <time.h>

#include "collective/algorithms/algorithms.h"
#include "support/test.h"

#define MOST_BLOCK 9001 /* elements */
#define POISON 0x5b

typedef struct job {
    banyan_world *world;
    banyan_executor *executor;
    int rank, ranks;
    uint64_t seed;
    unsigned char *input, *output, *buffer; /* `buffer`: for runs in place */
} job;

/* The parameters of one run of an algorithm. */
typedef struct trial {
    const algorithm_entry *entry;
    banyan_algorithm_params params;
    const banyan_memory *input, *output; /* NULL: ordinary memory */
} trial;

/* Return the number of a rank's blocks in its input and output. */
static void blocks_of(const trial *t, int *input, int *output)
{
    bool gathers = t->entry->info.collective == BANYAN_ALLGATHER;
    bool scatters = t->entry->info.collective == BANYAN_REDUCESCATTER;
    bool exchanges = t->entry->info.collective == BANYAN_ALLTOALL;
    *input = scatters || exchanges ? t->params.ranks : 1;
    *output = gathers || exchanges ? t->params.ranks : 1;
}

/* Small, so that sums of floats are exact. */
static int32_t element(const job *j, int rank, int run, uint64_t index)
{
    uint64_t x = j->seed + (uint64_t)rank * 1000003 + (uint64_t)run * 7919 + index;
    x *= UINT64_C(0x9e3779b97f4a7c15);
    return (int32_t)(x >> 40) % 2001 - 1000;
}

static int32_t reduced(const job *j, banyan_reduce_op op, int run, uint64_t index)
{
    int32_t all = element(j, 0, run, index);
    for (int rank = 1; rank < j->ranks; rank++) {
        int32_t one = element(j, rank, run, index);
        if (op == BANYAN_SUM)
            all += one;
        else if (op == BANYAN_PROD)
            all = (int32_t)((uint32_t)all * (uint32_t)one);
        else
            all = (op == BANYAN_MIN) == (one < all) ? one : all;
    }
    return all;
}

/* Element `index` of this rank's output; false: it is unspecified. */
static bool expected(const job *j, const trial *t, int run, uint64_t block, uint64_t index,
                     int32_t *value)
{
    int rank = j->rank, ranks = j->ranks;
    int64_t from = ((int64_t)rank - t->params.shift) % ranks;
    switch (t->entry->info.collective) {
    case BANYAN_ALLREDUCE:
        *value = reduced(j, t->params.op, run, index);
        return true;
    case BANYAN_ALLGATHER:
        *value = element(j, (int)(index / block), run, index % block);
        return true;
    case BANYAN_REDUCESCATTER:
        *value = reduced(j, t->params.op, run, (uint64_t)rank * block + index);
        return true;
    case BANYAN_ALLTOALL:
        *value = element(j, (int)(index / block), run, (uint64_t)rank * block + index % block);
        return true;
    case BANYAN_SENDRECV:
        *value = element(j, (int)(from < 0 ? from + ranks : from), run, index);
        return true;
    case BANYAN_BROADCAST:
        *value = element(j, t->params.root, run, index);
        return true;
    case BANYAN_REDUCE:
        *value = reduced(j, t->params.op, run, index);
        return rank == t->params.root;
    case BANYAN_CUSTOM:
        break;
    }
    return false;
}

static void put(void *memory, uint64_t index, DLDataType dtype, int32_t value)
{
    if (dtype.code == kDLFloat)
        ((float *)memory)[index] = (float)value;
    else
        ((int32_t *)memory)[index] = value;
}

static int32_t get(const void *memory, uint64_t index, DLDataType dtype)
{
    return dtype.code == kDLFloat ? (int32_t)((const float *)memory)[index]
                                  : ((const int32_t *)memory)[index];
}

/* Choose this run's buffers: separate, or one inside the other as the collective requires. */
static void place(const job *j, const trial *t, uint64_t block, void **input, void **output)
{
    *input = j->input;
    *output = j->output;
    if (!t->params.in_place)
        return;
    uint64_t own = (uint64_t)j->rank * block * sizeof(int32_t);
    *input = j->buffer + (t->entry->info.collective == BANYAN_ALLGATHER ? own : 0);
    *output = j->buffer + (t->entry->info.collective == BANYAN_REDUCESCATTER ? own : 0);
}

static void run_once(const job *j, const trial *t, banyan_loaded_plan *loaded, int run,
                     uint64_t block, DLDataType dtype)
{
    void *input, *output;
    int input_blocks, output_blocks;
    blocks_of(t, &input_blocks, &output_blocks);
    uint64_t inputs = (uint64_t)input_blocks * block, outputs = (uint64_t)output_blocks * block;
    place(j, t, block, &input, &output);
    memset(output, POISON, outputs * sizeof(int32_t));
    for (uint64_t i = 0; i < inputs; i++)
        put(input, i, dtype, element(j, j->rank, run, i));
    banyan_status status =
        banyan_loaded_plan_run(loaded, input, output, inputs * sizeof(int32_t), dtype, NULL);
    CHECK(status == BANYAN_OK,
          "%s of %d ranks, %s place, %d instances, run %d of %llu elements: %s",
          t->entry->info.name, j->ranks, t->params.in_place ? "in" : "out of", t->params.instances,
          run, (unsigned long long)block, banyan_last_error());
    for (uint64_t i = 0; i < outputs; i++) {
        int32_t value;
        if (!expected(j, t, run, block, i, &value))
            break;
        CHECK(get(output, i, dtype) == value,
              "%s, rank %d of %d, root %d, shift %d, %s place, run %d of %llu elements: element "
              "%llu is %d, not %d",
              t->entry->info.name, j->rank, j->ranks, t->params.root, t->params.shift,
              t->params.in_place ? "in" : "out of", run, (unsigned long long)block,
              (unsigned long long)i, get(output, i, dtype), value);
    }
}

static void laze(random_state *random)
{
    if (random_between(random, 0, 3) == 0)
        nanosleep(&(struct timespec){.tv_nsec = random_between(random, 0, 200000)}, NULL);
}

static void try_one(const job *j, const trial *t, random_state *same, random_state *own)
{
    banyan_plan *plan;
    banyan_loaded_plan *loaded;
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    int input_blocks, output_blocks;
    blocks_of(t, &input_blocks, &output_blocks);
    options.max_message_bytes = (uint64_t)input_blocks * MOST_BLOCK * sizeof(int32_t);
    options.input = t->input;
    options.output = t->output;
    CHECK_OK(banyan_algorithm_compile(t->entry->info.name, &t->params, &plan));
    CHECK_OK(banyan_loaded_plan_open(j->executor, plan, &options, &loaded));
    banyan_plan_destroy(plan);
    uint64_t blocks[] = {1, MOST_BLOCK, 0, 0};
    for (size_t i = 2; i < sizeof blocks / sizeof *blocks; i++)
        blocks[i] = (uint64_t)random_between(same, 0, i == 2 ? 40 : 3000);
    for (int run = 0; run < 5; run++) {
        laze(own);
        bool of_floats = random_between(same, 0, 1) && t->params.op != BANYAN_PROD; /* exact */
        run_once(j, t, loaded, run, blocks[random_between(same, 0, 3)],
                 of_floats ? BANYAN_F32 : BANYAN_I32);
    }
    CHECK_OK(banyan_loaded_plan_close(loaded));
}

static void try_all(job *j, bool direct, const banyan_memory *input, const banyan_memory *output)
{
    random_state same = random_from(j->seed), own = random_from(j->seed + (uint64_t)j->rank);
    for (size_t i = 0; i < algorithm_table_count; i++) {
        const algorithm_entry *entry = &algorithm_table[i];
        trial t = {.entry = entry, .params = BANYAN_ALGORITHM_PARAMS_INIT};
        t.params.ranks = j->ranks;
        t.params.in_place = !direct && !entry->apart && random_between(&same, 0, 1);
        t.params.root = (int)random_between(&same, 0, j->ranks - 1);
        t.params.shift = (int)random_between(&same, 0, j->ranks);
        t.params.op = (banyan_reduce_op)random_between(&same, BANYAN_SUM, BANYAN_PROD);
        t.params.instances = (int)random_between(&same, 1, 2);
        t.params.unit_bytes = (uint64_t)random_between(&same, 1, 9000);
        t.params.ranks_per_node = j->ranks % 2 ? 0 : 2;
        t.input = input;
        t.output = output;
        if (!direct || entry->info.reaches_peers_buffers)
            try_one(j, &t, &same, &own);
    }
}

static void job_open(job *j, banyan_world *world)
{
    size_t most = MOST_BLOCK * sizeof(int32_t) * (size_t)banyan_world_size(world);
    *j = (job){.world = world,
               .rank = banyan_world_rank(world),
               .ranks = banyan_world_size(world),
               .seed = random_seed()};
    CHECK_OK(banyan_executor_open(world, NULL, &j->executor));
    j->input = malloc(most);
    j->output = malloc(most);
    j->buffer = malloc(most);
    CHECK(j->input && j->output && j->buffer);
}

static void job_close(job *j)
{
    banyan_executor_close(j->executor);
    free(j->buffer);
    free(j->output);
    free(j->input);
}

/* Runs without bytes in between: they must not pass for signals of peers. */
static void run_empty_messages_between(banyan_world *world, void *context)
{
    static const char *const names[] = {"allgather_packets", "alltoall_pipelined"};
    (void)context;
    job j;
    job_open(&j, world);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        trial t = {.params = BANYAN_ALGORITHM_PARAMS_INIT};
        banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
        banyan_plan *plan;
        banyan_loaded_plan *loaded;
        t.params.ranks = j.ranks;
        CHECK_OK(algorithm_find(names[i], &t.entry));
        CHECK_OK(banyan_algorithm_compile(names[i], &t.params, &plan));
        options.max_message_bytes = (uint64_t)j.ranks * MOST_BLOCK * sizeof(int32_t);
        CHECK_OK(banyan_loaded_plan_open(j.executor, plan, &options, &loaded));
        banyan_plan_destroy(plan);
        for (int run = 0; run < 60; run++)
            run_once(&j, &t, loaded, run, run % 2 ? 0 : 9001, BANYAN_F32);
        CHECK_OK(banyan_loaded_plan_close(loaded));
    }
    job_close(&j);
}

static void run_in_ordinary_memory(banyan_world *world, void *context)
{
    (void)context;
    job j;
    job_open(&j, world);
    try_all(&j, false, NULL, NULL);
    job_close(&j);
}

static void run_in_symmetric_memory(banyan_world *world, void *context)
{
    (void)context;
    job j;
    job_open(&j, world);
    banyan_memory *input, *output;
    size_t most = MOST_BLOCK * sizeof(int32_t) * (size_t)j.ranks;
    CHECK_OK(banyan_memory_alloc(world, most, &input));
    CHECK_OK(banyan_memory_alloc(world, most, &output));
    job in_it = j;
    in_it.input = banyan_memory_local(input);
    in_it.output = banyan_memory_local(output);
    try_all(&in_it, true, input, output);
    CHECK_OK(banyan_world_barrier(world));
    banyan_memory_free(output);
    banyan_memory_free(input);
    job_close(&j);
}

static void empty_messages_between_others_do_no_harm(void **state)
{
    (void)state;
    random_seed();
    ranks_run(3, run_empty_messages_between, NULL);
}

static void every_algorithm_is_right_in_ordinary_memory(void **state)
{
    (void)state;
    random_seed();
    for (int ranks = 1; ranks <= 9; ranks++)
        ranks_run(ranks, run_in_ordinary_memory, NULL);
}

static void direct_algorithms_are_right_in_symmetric_memory(void **state)
{
    (void)state;
    random_seed();
    for (int ranks = 1; ranks <= 9; ranks++)
        ranks_run(ranks, run_in_symmetric_memory, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_algorithm_is_right_in_ordinary_memory),
        cmocka_unit_test(empty_messages_between_others_do_no_harm),
        cmocka_unit_test(direct_algorithms_are_right_in_symmetric_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
