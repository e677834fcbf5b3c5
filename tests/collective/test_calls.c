/* The seven calls, compared with their definitions. */
#include "support/test.h"

#define POISON 0xa5
#define COUNT_MAX 70001

/* Small whole numbers, so that every order of a sum gives one result; different for every rank,
 * place and call. */
static float value_of(int rank, size_t index, int salt)
{
    uint64_t mixed = ((uint64_t)rank * 1000003 + index) * 2654435761u + (uint64_t)salt * 40503;
    return (float)(int)(mixed >> 11 & 15) - 7;
}

struct job {
    banyan_world *world;
    banyan_comm *comm;
    banyan_memory *memory; /* NULL: ordinary memory */
    float *input, *output; /* space for all ranks' blocks */
    int rank, ranks, salt;
};

static void fill(float *at, int rank, size_t first, size_t count, int salt)
{
    for (size_t i = 0; i < count; i++)
        at[i] = value_of(rank, first + i, salt);
}

static float reduced(int ranks, size_t index, int salt, banyan_reduce_op op)
{
    float result = value_of(0, index, salt);
    for (int rank = 1; rank < ranks; rank++) {
        float next = value_of(rank, index, salt);
        if (op == BANYAN_SUM)
            result += next;
        else if (op == BANYAN_PROD)
            result *= next; /* below 2^24 */
        else if (op == BANYAN_MIN ? next < result : next > result)
            result = next;
    }
    return result;
}

/* Check that nothing outside of [0, count) was touched. */
static void check_behind(const float *at, size_t count, const char *what)
{
    const unsigned char *bytes = (const unsigned char *)(at + count);
    for (size_t i = 0; i < 64; i++)
        CHECK(bytes[i] == POISON, "%s: byte %zu behind %zu elements", what, i, count);
}

static void poison(struct job *job, size_t count)
{
    memset(job->output, POISON, count * sizeof(float) + 64);
}

static void check_allreduce(struct job *job, size_t count, banyan_reduce_op op, bool in_place)
{
    poison(job, count);
    fill(job->input, job->rank, 0, count, job->salt);
    if (in_place)
        memcpy(job->output, job->input, count * sizeof(float));
    CHECK_OK(banyan_comm_allreduce(job->comm, in_place ? job->output : job->input, job->output,
                                   count, BANYAN_F32, op, NULL));
    for (size_t i = 0; i < count; i++)
        CHECK(job->output[i] == reduced(job->ranks, i, job->salt, op),
              "rank %d, %s of %zu, %s, element %zu: %g, not %g", job->rank,
              banyan_reduce_op_name(op), count, in_place ? "in place" : "apart", i, job->output[i],
              reduced(job->ranks, i, job->salt, op));
    check_behind(job->output, count, "all-reduce");
}

static void check_allgather(struct job *job, size_t count, bool in_place)
{
    size_t all = count * (size_t)job->ranks;
    poison(job, all);
    float *input = in_place ? job->output + count * (size_t)job->rank : job->input;
    fill(input, job->rank, 0, count, job->salt);
    CHECK_OK(banyan_comm_allgather(job->comm, input, job->output, count, BANYAN_F32, NULL));
    for (size_t i = 0; i < all; i++)
        CHECK(job->output[i] == value_of((int)(i / count), i % count, job->salt),
              "rank %d, %zu each, element %zu", job->rank, count, i);
    check_behind(job->output, all, "all-gather");
}

static void check_reducescatter(struct job *job, size_t count, banyan_reduce_op op, bool in_place)
{
    size_t first = count * (size_t)job->rank;
    poison(job, count);
    fill(job->input, job->rank, 0, count * (size_t)job->ranks, job->salt);
    float *output = in_place ? job->input + first : job->output;
    CHECK_OK(banyan_comm_reducescatter(job->comm, job->input, output, count, BANYAN_F32, op, NULL));
    for (size_t i = 0; i < count; i++)
        CHECK(output[i] == reduced(job->ranks, first + i, job->salt, op),
              "rank %d, %zu each, %s, element %zu: %g", job->rank, count,
              in_place ? "in place" : "apart", i, output[i]);
    if (!in_place)
        check_behind(job->output, count, "reduce-scatter");
}

static void check_alltoall(struct job *job, size_t count, bool in_place)
{
    size_t all = count * (size_t)job->ranks;
    poison(job, all);
    fill(job->input, job->rank, 0, all, job->salt);
    if (in_place)
        memcpy(job->output, job->input, all * sizeof(float));
    CHECK_OK(banyan_comm_alltoall(job->comm, in_place ? job->output : job->input, job->output,
                                  count, BANYAN_F32, NULL));
    for (size_t i = 0; i < all; i++) {
        size_t from = count * (size_t)job->rank + i % count;
        CHECK(job->output[i] == value_of((int)(i / count), from, job->salt),
              "rank %d, %zu each, %s, element %zu", job->rank, count,
              in_place ? "in place" : "apart", i);
    }
    check_behind(job->output, all, "all-to-all");
}

static void check_broadcast(struct job *job, size_t count, int root, bool in_place)
{
    poison(job, count);
    float *input = in_place ? job->output : job->input;
    if (job->rank == root)
        fill(input, root, 0, count, job->salt);
    CHECK_OK(banyan_comm_broadcast(job->comm, job->rank == root ? input : NULL, job->output, count,
                                   BANYAN_F32, root, NULL));
    for (size_t i = 0; i < count; i++)
        CHECK(job->output[i] == value_of(root, i, job->salt), "rank %d, root %d, %zu, element %zu",
              job->rank, root, count, i);
    check_behind(job->output, count, "broadcast");
}

static void check_reduce(struct job *job, size_t count, banyan_reduce_op op, int root,
                         bool in_place)
{
    poison(job, count);
    float *input = in_place && job->rank == root ? job->output : job->input;
    fill(input, job->rank, 0, count, job->salt);
    CHECK_OK(banyan_comm_reduce(job->comm, input, job->rank == root ? job->output : NULL, count,
                                BANYAN_F32, op, root, NULL));
    for (size_t i = 0; i < count; i++) {
        float right = job->rank == root ? reduced(job->ranks, i, job->salt, op)
                                        : value_of(job->rank, i, job->salt);
        const float *at = job->rank == root ? job->output : job->input;
        CHECK(at[i] == right, "rank %d, root %d, %zu, element %zu: %g, not %g", job->rank, root,
              count, i, at[i], right);
    }
    check_behind(job->output, job->rank == root ? count : 0, "reduce");
}

static void check_sendrecv(struct job *job, size_t count, int shift)
{
    int from = ((job->rank - shift) % job->ranks + job->ranks) % job->ranks;
    poison(job, count);
    fill(job->input, job->rank, 0, count, job->salt);
    CHECK_OK(
        banyan_comm_sendrecv(job->comm, job->input, job->output, count, BANYAN_F32, shift, NULL));
    for (size_t i = 0; i < count; i++)
        CHECK(job->output[i] == value_of(from, i, job->salt), "rank %d, shift %d, %zu, element %zu",
              job->rank, shift, count, i);
    check_behind(job->output, count, "send-recv");
}

static void check_all_calls(struct job *job, size_t count)
{
    static const banyan_reduce_op ops[] = {BANYAN_SUM, BANYAN_MIN, BANYAN_MAX, BANYAN_PROD};
    for (int in_place = 0; in_place <= 1; in_place++) {
        for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
            job->salt++;
            check_allreduce(job, count, ops[i], in_place);
            check_reducescatter(job, count, ops[i], in_place);
            check_reduce(job, count, ops[i], (int)i % job->ranks, in_place);
        }
        job->salt++;
        check_allgather(job, count, in_place);
        check_alltoall(job, count, in_place);
        check_broadcast(job, count, 0, in_place);
        check_broadcast(job, count, job->ranks - 1, in_place);
    }
    check_sendrecv(job, count, 1);
    check_sendrecv(job, count, -1);
    check_sendrecv(job, count, job->ranks);
}

/* Allocate space for blocks of `most` elements. */
static void open_job(struct job *job, banyan_world *world, bool registered, size_t most)
{
    *job = (struct job){
        .world = world, .rank = banyan_world_rank(world), .ranks = banyan_world_size(world)};
    size_t bytes = (size_t)job->ranks * most * sizeof(float) + 4096;
    CHECK_OK(banyan_comm_create(world, NULL, &job->comm));
    if (registered) {
        CHECK_OK(banyan_memory_alloc(world, 2 * bytes, &job->memory));
        CHECK_OK(banyan_comm_register(job->comm, job->memory));
        job->input = banyan_memory_local(job->memory);
    } else {
        job->input = malloc(2 * bytes);
        CHECK(job->input);
    }
    job->output = job->input + bytes / sizeof(float);
}

static void close_job(struct job *job)
{
    if (job->memory)
        CHECK_OK(banyan_comm_unregister(job->comm, job->memory));
    CHECK_OK(banyan_comm_destroy(job->comm));
    if (job->memory)
        banyan_memory_free(job->memory);
    else
        free(job->input);
}

static void calls_on(banyan_world *world, bool registered)
{
    static const size_t counts[] = {1, 3, 64, 1021, 16384, COUNT_MAX, 5};
    struct job job;
    open_job(&job, world, registered, COUNT_MAX);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        check_all_calls(&job, counts[i]);
    close_job(&job);
}

static void in_ordinary_memory(banyan_world *world, void *context)
{
    (void)context;
    calls_on(world, false);
}

static void in_registered_memory(banyan_world *world, void *context)
{
    (void)context;
    calls_on(world, true);
}

static void every_call_follows_its_definition(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 5; ranks++) {
        ranks_run(ranks, in_ordinary_memory, NULL);
        ranks_run(ranks, in_registered_memory, NULL);
    }
    ranks_run(8, in_ordinary_memory, NULL);
}

/* Outputs of more than 4 MiB, which bypass the caches where that helps, and in this test. */
static void long_calls_on(banyan_world *world, bool registered)
{
    struct job job;
    size_t all = ((size_t)1 << 20) + 5003;
    open_job(&job, world, registered, all);
    for (int in_place = 0; in_place <= 1; in_place++) {
        job.salt++;
        check_allreduce(&job, all, BANYAN_SUM, in_place);
        check_allgather(&job, all / (size_t)job.ranks + 1, in_place);
        check_alltoall(&job, all / (size_t)job.ranks + 1, in_place);
        check_reducescatter(&job, all, BANYAN_SUM, in_place);
        check_broadcast(&job, all, 0, in_place);
    }
    close_job(&job);
}

static void long_in_ordinary_memory(banyan_world *world, void *context)
{
    (void)context;
    long_calls_on(world, false);
}

static void long_in_registered_memory(banyan_world *world, void *context)
{
    (void)context;
    long_calls_on(world, true);
}

static void messages_that_no_cache_holds_arrive_whole(void **state)
{
    (void)state;
    static const char *const from_bytes[] = {"", "4194304"};
    for (int i = 0; i < 2; i++) {
        setenv("BANYAN_PAST_CACHES", from_bytes[i], 1);
        for (int ranks = 2; ranks <= 3; ranks++) {
            ranks_run(ranks, long_in_ordinary_memory, NULL);
            ranks_run(ranks, long_in_registered_memory, NULL);
        }
    }
    unsetenv("BANYAN_PAST_CACHES");
}

static void threads_race_nowhere(void **state)
{
    (void)state;
    ranks_run_threads(3, in_ordinary_memory, NULL);
}

static void refuse(banyan_world *world, void *context)
{
    (void)context;
    float buffer[64] = {0};
    banyan_comm *comm;
    CHECK_OK(banyan_comm_create(world, NULL, &comm));
    CHECK_FAILS(banyan_comm_allreduce(comm, NULL, buffer, 4, BANYAN_F32, BANYAN_SUM, NULL),
                BANYAN_ERR_INVALID, "without an input buffer");
    CHECK_FAILS(
        banyan_comm_allreduce(comm, buffer, buffer, 4, BANYAN_F32, (banyan_reduce_op)9, NULL),
        BANYAN_ERR_INVALID, "reduction 9, which is not a reduction");
    CHECK_FAILS(banyan_comm_allreduce(comm, buffer, buffer + 1, 4, BANYAN_F32, BANYAN_SUM, NULL),
                BANYAN_ERR_INVALID, "overlap");
    CHECK_FAILS(banyan_comm_allgather(comm, buffer, buffer + 2, SIZE_MAX / 2, BANYAN_F32, NULL),
                BANYAN_ERR_INVALID, "more than any memory");
    CHECK_FAILS(banyan_comm_allreduce(comm, buffer, buffer + 32, SIZE_MAX / 4, BANYAN_F32,
                                      BANYAN_SUM, NULL),
                BANYAN_ERR_INVALID, "more than any memory");
    CHECK_FAILS(banyan_comm_broadcast(comm, buffer, buffer, 4, BANYAN_F32, 7, NULL),
                BANYAN_ERR_INVALID, "root 7 between 2 ranks");
    CHECK_FAILS(banyan_comm_allreduce(comm, buffer, buffer + 32, 4, (DLDataType){kDLInt, 4, 1},
                                      BANYAN_SUM, NULL),
                BANYAN_ERR_INVALID, "do not fill whole bytes");
    CHECK_OK(banyan_comm_allreduce(comm, NULL, NULL, 0, BANYAN_F32, BANYAN_SUM, NULL));
    CHECK_OK(banyan_comm_destroy(comm));
}

/* Ranks that only send have nothing to reduce, and would wait for ranks that cannot. */
static void reduce_what_has_no_sum(banyan_world *world, void *context)
{
    (void)context;
    banyan_comm *comm;
    uint64_t input[64] = {0}, output[64] = {0};
    CHECK_OK(banyan_comm_create(world, NULL, &comm));
    static const DLDataType types[] = {
        {kDLOpaqueHandle, 64, 1}, {kDLComplex, 64, 1}, {kDLFloat, 32, 2}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        for (size_t count = 1; count <= 64; count *= 8)
            CHECK_FAILS(
                banyan_comm_reduce(comm, input, output, count, types[i], BANYAN_SUM, 1, NULL),
                BANYAN_ERR_INVALID, "cannot be reduced");
    }
    CHECK_OK(banyan_comm_reduce(comm, input, output, 64, BANYAN_I64, BANYAN_SUM, 1, NULL));
    CHECK_OK(banyan_comm_destroy(comm));
}

static void elements_that_cannot_be_reduced_are_refused_at_every_rank(void **state)
{
    (void)state;
    ranks_run(3, reduce_what_has_no_sum, NULL);
}

static void wrong_arguments_are_refused_before_anything_moves(void **state)
{
    (void)state;
    ranks_run(2, refuse, NULL);
}

static void differ(banyan_world *world, void *context)
{
    (void)context;
    float buffer[64] = {0};
    banyan_comm *comm;
    CHECK_OK(banyan_comm_create(world, NULL, &comm));
    size_t count = banyan_world_rank(world) == 1 ? 5 : 4;
    CHECK_FAILS(
        banyan_comm_allreduce(comm, buffer, buffer + 32, count, BANYAN_F32, BANYAN_SUM, NULL),
        BANYAN_ERR_MISMATCH, "rank 0 calls allreduce of 16 bytes");
    CHECK(strstr(banyan_last_error(), "rank 1 calls allreduce of 20 bytes"), "%s",
          banyan_last_error());
    memset(buffer, 0, sizeof buffer);
    buffer[32] = 7;
    CHECK_FAILS(banyan_comm_broadcast(comm, buffer, buffer + 32, count, BANYAN_F32, 0, NULL),
                BANYAN_ERR_MISMATCH, "broadcast");
    CHECK(buffer[32] == 7, "the root's output was written before calls were compared");
    CHECK_OK(banyan_comm_destroy(comm));
}

/* A wrong argument on one rank is an error on all ranks, whatever they call. */
static void refuse_together(banyan_world *world, void *context)
{
    (void)context;
    float buffer[64] = {0};
    banyan_comm *comm;
    bool odd = banyan_world_rank(world) == 1;
    CHECK_OK(banyan_comm_create(world, NULL, &comm));
    CHECK_FAILS(banyan_comm_allreduce(comm, odd ? NULL : buffer, buffer + 32, 4, BANYAN_F32,
                                      BANYAN_SUM, NULL),
                BANYAN_ERR_INVALID, "rank 1: allreduce without an input buffer");
    CHECK_FAILS(banyan_comm_broadcast(comm, buffer, buffer, 4, BANYAN_F32, odd ? 3 : 0, NULL),
                BANYAN_ERR_INVALID, "rank 1: broadcast with root 3 between 3 ranks");
    CHECK_FAILS(banyan_comm_reduce(comm, buffer, buffer, odd ? SIZE_MAX : 4, BANYAN_F32, BANYAN_SUM,
                                   0, NULL),
                BANYAN_ERR_INVALID, "more than any memory");
    CHECK_OK(banyan_comm_allreduce(comm, buffer, buffer + 32, 4, BANYAN_F32, BANYAN_SUM, NULL));
    CHECK_OK(banyan_comm_destroy(comm));
}

static void calls_that_differ_are_named_when_asked_for(void **state)
{
    (void)state;
    setenv("BANYAN_CHECK_CALLS", "1", 1);
    ranks_run(3, differ, NULL);
    ranks_run(3, refuse_together, NULL);
    ranks_run(2, in_registered_memory, NULL);
    unsetenv("BANYAN_CHECK_CALLS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_follows_its_definition),
        cmocka_unit_test(messages_that_no_cache_holds_arrive_whole),
        cmocka_unit_test(threads_race_nowhere),
        cmocka_unit_test(wrong_arguments_are_refused_before_anything_moves),
        cmocka_unit_test(elements_that_cannot_be_reduced_are_refused_at_every_rank),
        cmocka_unit_test(calls_that_differ_are_named_when_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
