/* In every order that the memory model permits, sound plans give the right result, and every fault
 * that the checker finds gives a wrong one in some order. */
#include <dirent.h>
#include <fnmatch.h>

#include <banyan/collective.h>

#include "core/threads/sanitizer.h"
#include "execute/shuffled.h"
#include "plan/plan.h"
#include "support/plans.h"
#include "support/proof.h"

/* A byte that came back in a packet was read by its sender: its value is in the packet, and no
 * processor stores a value that it has not read. Packets are relaxed atomics, and the thread
 * sanitizer does not follow values: it reports a race between two workers, one that sends and one
 * that receives. (With packets that release and acquire it reports none.) */
#ifdef SANITIZER_THREAD
#define WORKERS_MOST 1
#else
#define WORKERS_MOST 2
#endif

static uint64_t message_of(const banyan_plan *plan, uint64_t elems)
{
    banyan_plan_info info = banyan_plan_describe(plan);
    bool blocks = info.collective == BANYAN_REDUCESCATTER || info.collective == BANYAN_ALLTOALL;
    return elems * 4 * (blocks ? (uint64_t)info.ranks : 1);
}

static void expect_right(const banyan_plan *plan, const char *name, int seeds)
{
    static const uint64_t elems[] = {8, 1000};
    banyan_plan_info info = banyan_plan_describe(plan);
    for (size_t i = 0; i < sizeof elems / sizeof *elems; i++) {
        shuffled_case s = {.c = {.plan = plan,
                                 .dtype = {kDLInt, 32, 1},
                                 .symmetric = true,
                                 .apart = !info.in_place,
                                 .workers = i == 0 ? 1 : WORKERS_MOST,
                                 .runs = 4},
                           .first_seed = shuffled_first_seed(),
                           .seeds = seeds,
                           .stops = true};
        s.c.message_bytes = message_of(plan, elems[i]);
        uint64_t seed, wrong = shuffled_run(&s, &seed);
        CHECK(wrong == 0, "%s of %d ranks, %llu bytes, seed %llu: %llu elements are wrong", name,
              info.ranks, (unsigned long long)s.c.message_bytes, (unsigned long long)seed,
              (unsigned long long)wrong);
    }
}

static void expect_wrong_at(const banyan_plan *plan, const char *name, uint64_t message_bytes)
{
    banyan_plan_info info = banyan_plan_describe(plan);
    shuffled_case s = {.c = {.plan = plan,
                             .message_bytes = message_bytes,
                             .dtype = {kDLInt, 32, 1},
                             .symmetric = true,
                             .apart = !info.in_place,
                             .runs = 4},
                       .first_seed = shuffled_first_seed(),
                       .seeds = 500,
                       .stops = true};
    uint64_t seed, wrong = shuffled_run(&s, &seed);
    CHECK(wrong > 0, "%s: right under %d seeds from %llu on", name, s.seeds,
          (unsigned long long)s.first_seed);
    print_message("%s: %llu elements are wrong under seed %llu\n", name, (unsigned long long)wrong,
                  (unsigned long long)seed);
}

static void expect_wrong(const banyan_plan *plan, const char *name)
{
    expect_wrong_at(plan, name, 4096);
}

static void built_in_algorithms_are_right_in_any_order(void **state)
{
    (void)state;
    banyan_algorithm_info info;
    for (size_t i = 0; banyan_algorithm_at(i, &info) == BANYAN_OK; i++) {
        for (int ranks = 2; ranks <= 4; ranks++) {
            banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
            banyan_plan *plan;
            params.ranks = ranks;
            params.shift = 1;
            params.root = ranks / 2;
            CHECK_OK(banyan_algorithm_compile(info.name, &params, &plan));
            expect_right(plan, info.name, 3);
            banyan_plan_destroy(plan);
        }
    }
}

static void sound_plans_from_elsewhere_are_right_in_any_order(void **state)
{
    (void)state;
    struct dirent **names;
    int count = scandir(plans_dir(), &names, NULL, alphasort), sound = 0;
    CHECK(count > 0, "%s", plans_dir());
    for (int i = 0; i < count; i++) {
        char path[512];
        banyan_plan *plan;
        snprintf(path, sizeof path, "%s/%s", plans_dir(), names[i]->d_name);
        if (fnmatch("*_node_*.json", names[i]->d_name, 0) == 0) {
            CHECK_OK(banyan_plan_read(path, &plan));
            banyan_plan_info info = banyan_plan_describe(plan);
            if (info.collective != BANYAN_CUSTOM && info.ranks <= 8 && proof_holds(plan)) {
                expect_right(plan, names[i]->d_name, 1);
                sound++;
            }
            banyan_plan_destroy(plan);
        }
        free(names[i]);
    }
    free(names);
    print_message("%d sound plans\n", sound);
    assert_true(sound > 0);
}

static const char *const faulty_algorithms[] = {
    "allgather_direct",      "allgather_ring_direct", "allgather_switch",  "allreduce_ring",
    "reducescatter_halving", "reducescatter_direct",  "alltoall_pairwise", "alltoall_direct",
    "broadcast_allpairs",    "allreduce_twoshot",
};

/* Remove ordering operations, relax signals. NULL: this is neither. */
static const char *plant_fault(plan_thread_block *block, uint32_t i)
{
    switch (block->ops[i].kind) {
    case PLAN_SIGNAL:
        block->ops[i].kind = PLAN_RELAXED_SIGNAL;
        return "relaxed";
    case PLAN_NOP:
    case PLAN_WAIT:
    case PLAN_RELAXED_WAIT:
    case PLAN_FLUSH:
        memmove(&block->ops[i], &block->ops[i + 1], (--block->op_count - i) * sizeof block->ops[i]);
        return "dropped";
    default:
        return NULL;
    }
}

/* Some faults show only in callers' accesses between runs. None of them hangs. */
static int expect_faults(const char *algorithm)
{
    int found = 0;
    for (uint32_t i = 0;; i++) {
        banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
        banyan_plan *plan, *faulty;
        CHECK_OK(banyan_algorithm_compile(algorithm, &params, &plan));
        CHECK_OK(plan_clone(plan, &faulty));
        banyan_plan_destroy(plan);
        plan_thread_block *block = &faulty->ranks[1].blocks[0];
        bool there = i < block->op_count;
        const char *what = there ? plant_fault(block, i) : NULL;
        if (what && !proof_holds(faulty)) {
            char name[128];
            snprintf(name, sizeof name, "%s, operation %u %s", algorithm, i, what);
            expect_wrong(faulty, name);
            found++;
        }
        banyan_plan_destroy(faulty);
        if (!there)
            return found;
    }
}

static void findings_of_the_checker_go_wrong_in_some_order(void **state)
{
    (void)state;
#ifdef SANITIZER_THREAD
    print_message("these plans race, as they should\n");
    skip();
#endif
    for (size_t i = 0; i < sizeof faulty_algorithms / sizeof *faulty_algorithms; i++)
        CHECK(expect_faults(faulty_algorithms[i]) >= 2, "%s", faulty_algorithms[i]);
}

/* Send-recv through a port channel; a memory channel signals that the put was posted. */
static banyan_plan *put_and_signal(bool flushed)
{
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_plan *plan, *made;
    params.shift = 1;
    CHECK_OK(banyan_algorithm_compile("sendrecv_port", &params, &plan));
    CHECK_OK(plan_clone(plan, &made));
    banyan_plan_destroy(plan);
    for (int rank = 0; rank < 2; rank++) {
        plan_thread_block *block = &made->ranks[rank].blocks[0];
        plan_op signal = block->ops[0], put = block->ops[1], nop = block->ops[3];
        plan_op copy = block->ops[4], wait = block->ops[5], flush = put;
        CHECK(block->op_count == 6 && signal.kind == PLAN_SIGNAL && nop.kind == PLAN_NOP &&
              put.kind == PLAN_PUT_WITH_SIGNAL_AND_FLUSH && copy.kind == PLAN_COPY &&
              wait.kind == PLAN_WAIT);
        put.kind = PLAN_PUT;
        flush.kind = PLAN_FLUSH;
        flush.source_count = flush.destination_count = 0;
        plan_op ops[] = {put, flushed ? flush : nop, nop, signal, wait, nop, copy};
        block->op_count = sizeof ops / sizeof *ops;
        block->ops = plan_take(made, block->op_count, sizeof *ops);
        CHECK(block->ops, "out of memory");
        memcpy(block->ops, ops, sizeof ops);
    }
    return made;
}

static void a_put_that_is_not_flushed_lands_too_late_in_some_order(void **state)
{
    (void)state;
#ifdef SANITIZER_THREAD
    print_message("one of these plans races, as it should\n");
    skip();
#endif
    banyan_plan *sound = put_and_signal(true), *faulty = put_and_signal(false);
    CHECK(proof_holds(sound));
    CHECK(!proof_holds(faulty));
    expect_right(sound, "a flushed put", 20);
    expect_wrong(faulty, "a put without a flush");
    banyan_plan_destroy(sound);
    banyan_plan_destroy(faulty);
}

/* They end with relaxed signals, which do not publish their stores. */
static void relaxed_ends_of_plans_from_elsewhere_go_wrong_in_some_order(void **state)
{
    (void)state;
#ifdef SANITIZER_THREAD
    print_message("these plans race, as the checker says\n");
    skip();
#endif
    static const char *const names[] = {"single_node_allgather_nvls_zero_copy_2.json",
                                        "single_node_allgather_nvls_zero_copy_4.json",
                                        "single_node_allreduce_nvls_zero_copy_2.json",
                                        "single_node_allreduce_nvls_zero_copy_8.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        banyan_plan *plan;
        snprintf(path, sizeof path, "%s/%s", plans_dir(), names[i]);
        CHECK_OK(banyan_plan_read(path, &plan));
        CHECK(!proof_holds(plan), "%s", names[i]);
        expect_wrong(plan, names[i]);
        banyan_plan_destroy(plan);
    }
}

/* A plan whose loop cycles through 32 units of scratch without ever waiting for a free one, with
 * units and scratch at a 256th of their length: 32 MiB of a chunk become 128 KiB. */
static banyan_plan *round_and_round(void)
{
    banyan_plan *plan, *made;
    char path[512];
    snprintf(path, sizeof path, "%s/single_node_allreduce_pipeline_2.json", plans_dir());
    CHECK_OK(banyan_plan_read(path, &plan));
    CHECK_OK(plan_clone(plan, &made));
    banyan_plan_destroy(plan);
    made->reused_scratch_bytes /= 256;
    for (int rank = 0; rank < 2; rank++) {
        for (uint32_t b = 0; b < made->ranks[rank].block_count; b++) {
            plan_op *loop = &made->ranks[rank].blocks[b].ops[0];
            CHECK(loop->kind == PLAN_PIPELINE && loop->unit_bytes == 1 << 20);
            loop->unit_bytes /= 256;
        }
    }
    return made;
}

static void scratch_that_is_used_again_too_early_goes_wrong_in_some_order(void **state)
{
    (void)state;
#ifdef SANITIZER_THREAD
    print_message("this plan races, as the checker says\n");
    skip();
#endif
    banyan_plan *plan = round_and_round();
    CHECK(!proof_holds(plan));
    expect_wrong_at(plan, "allreduce_pipeline_2, 40 units a chunk", 2 * 40 * 4096);
    banyan_plan_destroy(plan);
}

/* Repeated use of one unit of scratch; at the end of the body, before the next iteration, there is
 * a nop or nothing. */
static banyan_plan *through_one_unit(const char *end)
{
    char text[1024];
    snprintf(
        text, sizeof text,
        "{\"name\":\"u\",\"collective\":\"allreduce\",\"protocol\":\"Simple\",\"inplace\":false,"
        "\"reuse_resources\":true,\"gpus\":[{\"id\":0,\"input_chunks\":1,\"output_chunks\":1,"
        "\"scratch_chunks\":1,\"channels\":[],\"threadblocks\":[{\"id\":0,\"ops\":[{\"name\":"
        "\"pipeline\",\"iter_context\":{\"unit_size\":1024,\"num_chunks\":1},\"ops\":[{\"name\":"
        "\"copy\",\"src_buff\":[{\"type\":\"i\",\"index\":0,\"size\":1}],\"dst_buff\":[{\"type\":"
        "\"s\",\"index\":0,\"size\":1}]},{\"name\":\"nop\"},{\"name\":\"copy\",\"src_buff\":[{"
        "\"type\":\"s\",\"index\":0,\"size\":1}],\"dst_buff\":[{\"type\":\"o\",\"index\":0,"
        "\"size\":1"
        "}]}%s]}]}]}]}",
        end);
    banyan_plan *plan, *made;
    CHECK_OK(banyan_plan_parse(text, strlen(text), "u", &plan));
    CHECK_OK(plan_clone(plan, &made));
    banyan_plan_destroy(plan);
    made->reused_scratch_bytes = 1024;
    return made;
}

static void iterations_of_a_loop_overlap_in_some_order(void **state)
{
    (void)state;
    banyan_plan *sound = through_one_unit(",{\"name\":\"nop\"}"), *faulty = through_one_unit("");
    CHECK(proof_holds(sound));
    CHECK(!proof_holds(faulty));
    expect_right(sound, "a loop with a nop at its end", 20);
    expect_wrong(faulty, "a loop without a nop at its end");
    banyan_plan_destroy(sound);
    banyan_plan_destroy(faulty);
}

/* Two copies that nothing separates. */
static const char unseparated[] =
    "{\"name\":\"u\",\"collective\":\"u\",\"protocol\":\"Simple\",\"inplace\":false,\"gpus\":[{"
    "\"id\":0,\"input_chunks\":1,\"output_chunks\":1,\"scratch_chunks\":1,\"channels\":[],"
    "\"threadblocks\":[{\"id\":0,\"ops\":[{\"name\":\"copy\",\"src_buff\":[{\"type\":\"i\","
    "\"index\":0,\"size\":1}],\"dst_buff\":[{\"type\":\"s\",\"index\":0,\"size\":1}]},{"
    "\"name\":\"copy\",\"src_buff\":[{\"type\":\"s\",\"index\":0,\"size\":1}],\"dst_buff\":[{"
    "\"type\":\"o\",\"index\":0,\"size\":1}]}]}]}]}";

#define SEEDS 32
#define TOSS_RUNS 3

/* Return the part of every message that arrived; other bytes are from the previous run. */
static uint32_t toss(banyan_world *world, const banyan_plan *plan, uint64_t seed)
{
    banyan_executor_options how = BANYAN_EXECUTOR_OPTIONS_INIT;
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_executor *executor;
    banyan_loaded_plan *loaded;
    char input[1024], output[sizeof input];
    uint32_t hash = 0;
    how.shuffle_seed = seed;
    options.max_message_bytes = sizeof input;
    CHECK_OK(banyan_executor_open(world, &how, &executor));
    CHECK_OK(banyan_loaded_plan_open(executor, plan, &options, &loaded));
    for (int run = 0; run < TOSS_RUNS; run++) {
        memset(input, run + 1, sizeof input);
        CHECK_OK(banyan_loaded_plan_run(loaded, input, output, sizeof input,
                                        (DLDataType){kDLUInt, 8, 1}, NULL));
        hash = (uint32_t)hash_bytes(output, sizeof output, hash);
    }
    CHECK_OK(banyan_loaded_plan_close(loaded));
    banyan_executor_close(executor);
    return hash;
}

static void toss_all(banyan_world *world, void *context)
{
    (void)context;
    banyan_plan *plan;
    CHECK_OK(banyan_plan_parse(unseparated, strlen(unseparated), "u", &plan));
    uint64_t first = shuffled_first_seed();
    int others = 0;
    uint32_t before = 0;
    for (uint64_t seed = first; seed < first + SEEDS; seed++) {
        uint32_t hash = toss(world, plan, seed);
        for (int again = 0; again < 3; again++)
            CHECK(toss(world, plan, seed) == hash, "seed %llu", (unsigned long long)seed);
        others += seed > first && hash != before;
        before = hash;
    }
    CHECK(others > 0, "seeds from %llu on give all the same", (unsigned long long)first);
    banyan_plan_destroy(plan);
}

static void a_seed_gives_the_same_order_each_time(void **state)
{
    (void)state;
    ranks_run(1, toss_all, NULL);
}

static void open_with_wrong_seed(banyan_world *world, void *context)
{
    (void)context;
    banyan_executor *executor;
    setenv("BANYAN_SHUFFLE", "7x", 1);
    CHECK_FAILS(banyan_executor_open(world, NULL, &executor), BANYAN_ERR_INVALID, "7x");
}

static void a_seed_that_is_no_number_is_refused(void **state)
{
    (void)state;
    ranks_run(2, open_with_wrong_seed, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(built_in_algorithms_are_right_in_any_order),
        cmocka_unit_test(sound_plans_from_elsewhere_are_right_in_any_order),
        cmocka_unit_test(findings_of_the_checker_go_wrong_in_some_order),
        cmocka_unit_test(a_put_that_is_not_flushed_lands_too_late_in_some_order),
        cmocka_unit_test(relaxed_ends_of_plans_from_elsewhere_go_wrong_in_some_order),
        cmocka_unit_test(scratch_that_is_used_again_too_early_goes_wrong_in_some_order),
        cmocka_unit_test(iterations_of_a_loop_overlap_in_some_order),
        cmocka_unit_test(a_seed_gives_the_same_order_each_time),
        cmocka_unit_test(a_seed_that_is_no_number_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
