/* Transfers of plans, and the distance to their end. */
#include "support/test.h"

#include <inttypes.h>

#include <banyan/program.h>

#include "plan/pairs.h"
#include "plan/plan.h"

static banyan_program *begin(const banyan_collective *collective, int ranks,
                             const banyan_program_options *options)
{
    banyan_program *program;
    CHECK_OK(banyan_program_create("measured", collective, ranks, options, &program));
    return program;
}

static banyan_plan *end(banyan_program *program)
{
    banyan_plan *plan;
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    return plan;
}

static banyan_plan_stats measure(const banyan_plan *plan, uint64_t bytes)
{
    banyan_plan_stats stats;
    CHECK_OK(banyan_plan_measure(plan, bytes, &stats));
    return stats;
}

static uint64_t bytes_between(const banyan_plan_stats *stats, int source, int destination)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < stats->link_count; i++) {
        const banyan_plan_link *link = &stats->links[i];
        CHECK(link->bytes > 0);
        if (link->source == source && link->destination == destination)
            bytes += link->bytes;
    }
    return bytes;
}

static banyan_program_memory_channel *channel(banyan_program *program, int from, int to)
{
    return banyan_program_memory_channel_create(program, to, from);
}

/* Every rank's block goes around the ring, one rank per step. */
static banyan_plan *ring(int ranks)
{
    const banyan_collective collective = {.kind = BANYAN_ALLGATHER};
    banyan_program *program = begin(&collective, ranks, NULL);
    for (int r = 0; r < ranks; r++)
        banyan_program_copy(program, r,
                            banyan_program_output(program, r, (uint64_t)r, (uint64_t)r + 1),
                            banyan_program_input(program, r, 0, 1), BANYAN_TB(0));
    banyan_program_memory_channel *forth[16], *back[16];
    for (int r = 0; r < ranks; r++) {
        forth[r] = channel(program, r, (r + 1) % ranks);
        back[r] = channel(program, (r + 1) % ranks, r);
    }
    for (int step = 0; step < ranks - 1; step++) {
        for (int r = 0; r < ranks; r++) {
            uint64_t c = (uint64_t)((r - step + ranks) % ranks);
            int next = (r + 1) % ranks;
            banyan_program_memory_put(forth[r], banyan_program_output(program, next, c, c + 1),
                                      banyan_program_output(program, r, c, c + 1), BANYAN_TB(0));
            banyan_program_memory_signal(forth[r], 0, BANYAN_SYNC_BOTH);
        }
        for (int r = 0; r < ranks; r++)
            banyan_program_memory_wait(back[r], 0, BANYAN_SYNC_BOTH);
    }
    return end(program);
}

static void a_ring_takes_a_hop_a_step(void **state)
{
    (void)state;
    for (int ranks = 3; ranks <= 8; ranks++) {
        banyan_plan *plan = ring(ranks);
        banyan_plan_stats stats = measure(plan, 4096);
        uint64_t steps = (uint64_t)ranks - 1;
        CHECK(stats.critical_hops == steps, "%" PRIu64 " hops", stats.critical_hops);
        CHECK(stats.signals == steps * (uint64_t)ranks);
        CHECK(stats.link_count == (size_t)ranks && stats.local_bytes == 4096u * (uint64_t)ranks);
        for (int r = 0; r < ranks; r++)
            CHECK(bytes_between(&stats, r, (r + 1) % ranks) == steps * 4096);
        CHECK(stats.input_bytes == 4096 && stats.output_bytes == 4096u * (uint64_t)ranks);
        CHECK(stats.scratch_bytes == 0);
        free(stats.links);
        banyan_plan_destroy(plan);
    }
}

/* Two ranks send each other packets with their own flags. */
static void packets_are_a_hop_and_twice_the_bytes(void **state)
{
    (void)state;
    const banyan_collective collective = {.kind = BANYAN_ALLREDUCE};
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.protocol = BANYAN_LL;
    banyan_program *program = begin(&collective, 2, &options);
    banyan_chunk scratch[2];
    for (int r = 0; r < 2; r++)
        scratch[r] = banyan_program_scratch(program, r, 1);
    for (int r = 0; r < 2; r++)
        banyan_program_memory_put_packets(channel(program, r, 1 - r), scratch[1 - r],
                                          banyan_program_input(program, r, 0, 1), BANYAN_TB(0));
    for (int r = 0; r < 2; r++)
        banyan_program_reduce_packets(program, r, banyan_program_input(program, r, 0, 1),
                                      &scratch[r], 1, banyan_program_output(program, r, 0, 1),
                                      BANYAN_SUM, BANYAN_TB(0));
    banyan_plan *plan = end(program);
    banyan_plan_stats stats = measure(plan, 2048);
    CHECK(stats.critical_hops == 1 && stats.signals == 0);
    CHECK(bytes_between(&stats, 0, 1) == 2048 && bytes_between(&stats, 1, 0) == 2048);
    CHECK(stats.local_bytes == 2048 && stats.scratch_bytes == 2048);
    free(stats.links);
    banyan_plan_destroy(plan);
}

/* Semaphores and barriers pass a wait from thread block to thread block, without a hop. */
static void waits_pass_through_semaphores_and_barriers(void **state)
{
    (void)state;
    const banyan_collective collective = {.kind = BANYAN_BROADCAST, .chunk_factor = 1};
    banyan_program *program = begin(&collective, 3, NULL);
    banyan_program_semaphore *semaphore = banyan_program_semaphore_create(program, 1, 0);
    banyan_program_memory_channel *first = channel(program, 0, 1),
                                  *first_back = channel(program, 1, 0);
    banyan_program_memory_channel *second = channel(program, 1, 2),
                                  *second_back = channel(program, 2, 1);
    banyan_program_memory_signal(first, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(first_back, 0, BANYAN_SYNC_BOTH);
    banyan_program_semaphore_release(semaphore, 0, BANYAN_SYNC_BOTH);
    banyan_program_semaphore_acquire(semaphore, 1, BANYAN_SYNC_BOTH);
    banyan_program_barrier(program, 1, (const int[]){1, 2}, 2);
    banyan_program_memory_signal(second, 2, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(second_back, 0, BANYAN_SYNC_BOTH);
    banyan_plan *plan = end(program);
    banyan_plan_stats stats = measure(plan, 64);
    CHECK(stats.critical_hops == 2 && stats.signals == 2 && stats.link_count == 0);
    free(stats.links);
    banyan_plan_destroy(plan);
}

/* Every iteration of a loop has signals, and a chain of answers grows with them. */
static void loops_signal_in_every_iteration(void **state)
{
    (void)state;
    const banyan_collective collective = {.kind = BANYAN_ALLREDUCE};
    banyan_program *program = begin(&collective, 2, NULL);
    banyan_program_memory_channel *forth = channel(program, 0, 1), *back = channel(program, 1, 0);
    banyan_program_loop_begin(program, 256, 1);
    banyan_program_memory_put(forth, banyan_program_output(program, 1, 0, 1),
                              banyan_program_input(program, 0, 0, 1), BANYAN_TB(0));
    banyan_program_memory_signal(forth, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(back, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_signal(back, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(forth, 0, BANYAN_SYNC_BOTH);
    banyan_program_loop_end(program);
    banyan_plan *plan = end(program);
    banyan_plan_stats stats = measure(plan, 2048);
    CHECK(stats.signals == 8 && stats.critical_hops == 8);
    CHECK(stats.link_count == 1 && bytes_between(&stats, 0, 1) == 1024);
    free(stats.links);
    banyan_plan_destroy(plan);
}

static banyan_plan *read_text(const char *text)
{
    banyan_plan *plan;
    CHECK_OK(banyan_plan_parse(text, strlen(text), "text", &plan));
    return plan;
}

static void hops_of_a_plan_that_waits_for_ever_are_unknown(void **state)
{
    (void)state;
    banyan_plan *plan =
        read_text("{\"name\": \"stuck\", \"collective\": \"test\", \"protocol\": \"Simple\","
                  " \"inplace\": false, \"gpus\": ["
                  "{\"id\": 0, \"input_chunks\": 1, \"output_chunks\": 1, \"scratch_chunks\": 0,"
                  " \"threadblocks\": [{\"id\": 0, \"ops\": ["
                  "  {\"name\": \"wait\", \"channel_ids\": [0], \"channel_type\": \"memory\"},"
                  "  {\"name\": \"signal\", \"channel_ids\": [0], \"channel_type\": \"memory\"}],"
                  "  \"channels\": [{\"channel_type\": \"memory\", \"channel_ids\": [0]}]}],"
                  " \"channels\": [{\"channel_type\": \"memory\", \"connected_to\": [1]}]},"
                  "{\"id\": 1, \"input_chunks\": 1, \"output_chunks\": 1, \"scratch_chunks\": 0,"
                  " \"threadblocks\": [{\"id\": 0, \"ops\": ["
                  "  {\"name\": \"wait\", \"channel_ids\": [0], \"channel_type\": \"memory\"},"
                  "  {\"name\": \"signal\", \"channel_ids\": [0], \"channel_type\": \"memory\"}],"
                  "  \"channels\": [{\"channel_type\": \"memory\", \"channel_ids\": [0]}]}],"
                  " \"channels\": [{\"channel_type\": \"memory\", \"connected_to\": [0]}]}]}");
    banyan_plan_stats stats = measure(plan, 64);
    CHECK(stats.critical_hops == 0 && stats.signals == 2);
    free(stats.links);
    banyan_plan_destroy(plan);
}

/* An untrusted plan's loops may be of any length: they are not walked to the end. */
static void hops_of_an_endless_loop_are_given_up(void **state)
{
    (void)state;
    banyan_plan *plan =
        read_text("{\"name\": \"long\", \"collective\": \"test\", \"protocol\": \"Simple\","
                  " \"inplace\": false, \"gpus\": ["
                  "{\"id\": 0, \"input_chunks\": 1, \"output_chunks\": 1, \"scratch_chunks\": 0,"
                  " \"threadblocks\": [{\"id\": 0, \"ops\": [{\"name\": \"pipeline\","
                  "  \"iter_context\": {\"unit_size\": 1, \"num_chunks\": 1000000000000},"
                  "  \"ops\": [{\"name\": \"nop\"}]}]}], \"semaphores\": [{\"init_value\": "
                  "9223372036854775807}]}]}");
    banyan_plan_stats stats = measure(plan, 64);
    CHECK(stats.critical_hops == 0);
    free(stats.links);
    CHECK_FAILS(banyan_plan_measure(plan, UINT64_C(1) << 40, &stats), BANYAN_ERR_INVALID,
                "is too long");
    banyan_plan_destroy(plan);
}

static void channels_pair_in_the_order_they_have_towards_each_other(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int n = 0; n < 200; n++) {
        int ranks = (int)random_between(&random, 2, 5);
        banyan_plan *plan = plan_create(ranks);
        CHECK(plan);
        for (int r = 0; r < ranks; r++) {
            uint32_t count = (uint32_t)random_between(&random, 0, 20);
            plan->ranks[r].peers[PLAN_PORT] = plan_take(plan, count, sizeof(int));
            plan->ranks[r].channel_count[PLAN_PORT] = count;
            for (uint32_t i = 0; i < count; i++)
                plan->ranks[r].peers[PLAN_PORT][i] =
                    (r + (int)random_between(&random, 1, ranks - 1)) % ranks;
        }
        plan_pairs pairs;
        CHECK_OK(plan_pairs_make(plan, &pairs));
        for (int r = 0; r < ranks; r++) {
            for (uint32_t i = 0; i < plan->ranks[r].channel_count[PLAN_PORT]; i++) {
                int peer, other;
                uint32_t back, other_back;
                bool slow = plan_channel_pair(plan, r, PLAN_PORT, i, &peer, &back);
                bool quick = plan_pairs_find(&pairs, r, PLAN_PORT, i, &other, &other_back);
                CHECK(slow == quick && (!slow || (peer == other && back == other_back)));
                if (!slow)
                    continue;
                CHECK(plan_pairs_find(&pairs, peer, PLAN_PORT, back, &other, &other_back) &&
                      other == r && other_back == i);
            }
        }
        plan_pairs_free(&pairs);
        banyan_plan_destroy(plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_takes_a_hop_a_step),
        cmocka_unit_test(packets_are_a_hop_and_twice_the_bytes),
        cmocka_unit_test(waits_pass_through_semaphores_and_barriers),
        cmocka_unit_test(loops_signal_in_every_iteration),
        cmocka_unit_test(hops_of_a_plan_that_waits_for_ever_are_unknown),
        cmocka_unit_test(hops_of_an_endless_loop_are_given_up),
        cmocka_unit_test(channels_pair_in_the_order_they_have_towards_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
