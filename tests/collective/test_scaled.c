/* Averages and scaled sums on the host. */
#include "collective/scaled_check.h"

#define MOST 20000 /* elements of a block */

struct job {
    uint64_t seed;
    bool registered;
};

static void run_case(banyan_world *world, banyan_comm *comm, char *memory, const scaled_case *c)
{
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    size_t elem = banyan_dtype_bytes(scaled_dtypes[c->type]);
    size_t inputs = c->count * (c->kind == BANYAN_REDUCESCATTER ? (size_t)ranks : 1);
    char *input = memory, *output = memory + (size_t)ranks * MOST * 8 + 64;
    if (c->in_place)
        output = c->kind == BANYAN_REDUCESCATTER ? input + (size_t)rank * c->count * elem : input;
    bool has_result = c->kind != BANYAN_REDUCE || c->root == rank;
    memset(memory, 0xa5, 2 * ((size_t)ranks * MOST * 8 + 64));
    for (size_t i = 0; i < inputs; i++)
        scaled_put(input, c->type, i, scaled_value(c->type, rank, i, c->salt));
    CHECK_OK(scaled_call(comm, c, input, has_result ? output : NULL, scaled_factor(c, rank, ranks),
                         NULL));
    if (has_result)
        scaled_compare(c, output, rank, ranks);
    CHECK((unsigned char)output[c->count * elem] == 0xa5 || c->in_place, "behind the output");
    for (size_t i = 0; i < inputs && (!c->in_place || !has_result); i++)
        CHECK(scaled_get(input, c->type, i) == scaled_value(c->type, rank, i, c->salt),
              "the input %zu changed", i);
}

static void run_cases(banyan_world *world, void *context)
{
    const struct job *job = context;
    random_state random = random_from(job->seed);
    int ranks = banyan_world_size(world);
    size_t bytes = 2 * ((size_t)ranks * MOST * 8 + 64);
    banyan_memory *memory = NULL;
    char *space;
    banyan_comm *comm;
    CHECK_OK(banyan_comm_create(world, NULL, &comm));
    if (job->registered) {
        CHECK_OK(banyan_memory_alloc(world, bytes, &memory));
        CHECK_OK(banyan_comm_register(comm, memory));
    }
    space = memory ? banyan_memory_local(memory) : malloc(bytes);
    for (int i = 0; i < 120; i++) {
        scaled_case c = scaled_draw(&random, ranks, MOST);
        run_case(world, comm, space, &c);
    }
    if (memory)
        CHECK_OK(banyan_comm_unregister(comm, memory));
    else
        free(space);
    CHECK_OK(banyan_comm_destroy(comm));
    banyan_memory_free(memory);
}

static void averages_and_scaled_sums_follow_their_definition(void **state)
{
    (void)state;
    struct job job = {.seed = random_seed()};
    for (int ranks = 1; ranks <= 5; ranks++) {
        job.registered = !job.registered;
        job.seed++;
        ranks_run(ranks, run_cases, &job);
    }
    setenv("BANYAN_CHECK_CALLS", "1", 1);
    ranks_run(2, run_cases, &job);
    unsetenv("BANYAN_CHECK_CALLS");
}

/* The sum of 60000 and 60000 is infinite in f16, and wraps around in 16 bits. */
static void average_large(banyan_world *world, void *context)
{
    (void)context;
    banyan_comm *comm;
    CHECK_OK(banyan_comm_create(world, NULL, &comm));
    uint16_t value = (uint16_t)format_encode(format_f16, 60000), result = 0;
    CHECK_OK(banyan_comm_allreduce(comm, &value, &result, 1, BANYAN_F16, BANYAN_AVG, NULL));
    CHECK(result == value, "%x, not %x", result, value);
    int32_t whole = banyan_world_rank(world) == 0 ? -4 : -3;
    CHECK_OK(banyan_comm_allreduce(comm, &whole, &whole, 1, BANYAN_I32, BANYAN_AVG, NULL));
    CHECK(whole == -3, "%d", whole);
    CHECK_OK(banyan_comm_destroy(comm));
}

static void averages_exist_where_sums_are_too_large(void **state)
{
    (void)state;
    ranks_run(2, average_large, NULL);
}

static void refuse(banyan_world *world, void *context)
{
    (void)context;
    banyan_comm *comm;
    int64_t x[8] = {1, 2, 3};
    CHECK_OK(banyan_comm_create(world, NULL, &comm));
    CHECK_FAILS(banyan_comm_allreduce_scaled(comm, x, x, 4, BANYAN_I32, 0.5, NULL),
                BANYAN_ERR_INVALID, "allreduce of I32 scaled by 0.5");
    CHECK_FAILS(banyan_comm_reduce_scaled(comm, x, x, 4, BANYAN_U8, 256, 0, NULL),
                BANYAN_ERR_INVALID, "scaled by 256");
    CHECK_FAILS(banyan_comm_reducescatter_scaled(comm, x, x, 4, BANYAN_U32, -1, NULL),
                BANYAN_ERR_INVALID, "scaled by -1");
    CHECK_FAILS(
        banyan_comm_allreduce(comm, x, x, 4, (DLDataType){kDLComplex, 64, 1}, BANYAN_AVG, NULL),
        BANYAN_ERR_INVALID, "cannot be reduced");
    CHECK(x[0] == 1 && x[1] == 2 && x[2] == 3, "a refused call changed its buffer");
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_plan *plan;
    params.op = BANYAN_AVG;
    CHECK_FAILS(banyan_algorithm_compile("allreduce_ring", &params, &plan), BANYAN_ERR_INVALID,
                "the reduction is avg");
    const char *name;
    CHECK_OK(banyan_comm_choice(comm, BANYAN_ALLREDUCE, 1024, BANYAN_F32, BANYAN_AVG, false, false,
                                &name));
    CHECK_OK(banyan_comm_destroy(comm));
}

static void factors_that_integers_lack_and_plans_of_averages_are_refused(void **state)
{
    (void)state;
    ranks_run(2, refuse, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(averages_and_scaled_sums_follow_their_definition),
        cmocka_unit_test(averages_exist_where_sums_are_too_large),
        cmocka_unit_test(factors_that_integers_lack_and_plans_of_averages_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
