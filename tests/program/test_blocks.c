/* Custom collectives whose chunks form blocks; messages need not divide into equal chunks. */
#include "support/proof.h"
#include "support/test.h"

#define CHUNKS 3

/* Rank r's output block is the sum of its own input block r and the other rank's. */
static void write_sums(banyan_program *program)
{
    banyan_program_memory_channel *to[2];
    banyan_chunk slots[2];
    for (int rank = 0; rank < 2; rank++) {
        to[rank] = banyan_program_memory_channel_create(program, 1 - rank, rank);
        slots[rank] = banyan_program_scratch(program, rank, CHUNKS);
    }
    for (int rank = 0; rank < 2; rank++) {
        int peer = 1 - rank;
        for (uint64_t c = 0; c < CHUNKS; c++) {
            uint64_t theirs = (uint64_t)peer * CHUNKS + c;
            banyan_program_memory_put(
                to[rank], banyan_program_slice(program, slots[peer], c, c + 1),
                banyan_program_input(program, rank, theirs, theirs + 1), BANYAN_TB(0));
        }
        banyan_program_memory_signal(to[rank], 0, BANYAN_SYNC_BOTH);
        banyan_program_memory_wait(to[rank], 0, BANYAN_SYNC_BOTH);
        for (uint64_t c = 0; c < CHUNKS; c++) {
            uint64_t own = (uint64_t)rank * CHUNKS + c;
            banyan_chunk other = banyan_program_slice(program, slots[rank], c, c + 1);
            banyan_program_reduce(program, rank, banyan_program_input(program, rank, own, own + 1),
                                  &other, 1, banyan_program_output(program, rank, c, c + 1),
                                  BANYAN_SUM, BANYAN_TB(0));
        }
    }
}

/* `moved`: output chunk 1 of rank 0 is expected to come from `moved` chunks further on. */
static banyan_status compile(uint64_t block_chunks, int instances, uint64_t moved,
                             banyan_plan **plan)
{
    banyan_contribution from[2][CHUNKS][2];
    banyan_expected_chunk expected[2 * CHUNKS];
    for (int rank = 0; rank < 2; rank++) {
        for (uint64_t c = 0; c < CHUNKS; c++) {
            uint64_t chunk = (uint64_t)rank * CHUNKS + c + (rank == 0 && c == 1 ? moved : 0);
            from[rank][c][0] = (banyan_contribution){0, chunk};
            from[rank][c][1] = (banyan_contribution){1, chunk};
            expected[rank * CHUNKS + (int)c] = (banyan_expected_chunk){rank, c, from[rank][c], 2};
        }
    }
    banyan_collective collective = {.kind = BANYAN_CUSTOM,
                                    .name = "sums",
                                    .input_chunks = 2 * CHUNKS,
                                    .output_chunks = CHUNKS,
                                    .block_chunks = block_chunks,
                                    .expected = expected,
                                    .expected_count = 2 * CHUNKS};
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.instances = instances;
    options.double_scratch = true;
    banyan_program *program;
    CHECK_OK(banyan_program_create("sums", &collective, 2, &options, &program));
    write_sums(program);
    banyan_status status = banyan_program_compile(program, plan);
    banyan_program_destroy(program);
    return status;
}

static void a_message_need_not_make_equal_chunks(void **state)
{
    (void)state;
    for (int instances = 1; instances <= 2; instances++) {
        banyan_plan *plan;
        uint64_t input, output;
        CHECK_OK(compile(CHUNKS, instances, 0, &plan));
        CHECK(banyan_plan_describe(plan).message_parts == 2);
        CHECK_OK(banyan_plan_sizes(plan, 1, 2 * 100, &input, &output));
        CHECK(input == 200 && output == 100);
        banyan_plan_result *parts;
        size_t count;
        banyan_reduce_op op;
        CHECK_OK(banyan_plan_expected(plan, 1, 200, &parts, &count, &op));
        CHECK(count == 1 && parts[0].offset == 0 && parts[0].bytes == 100);
        CHECK(parts[0].source_count == 2 && parts[0].sources[1].offset == 100);
        free(parts);
        proof_demand(plan, "sums");
        banyan_plan_destroy(plan);
    }
}

static void without_blocks_all_chunks_are_equal(void **state)
{
    (void)state;
    banyan_plan *plan;
    uint64_t input, output;
    CHECK_OK(compile(0, 1, 0, &plan));
    CHECK(banyan_plan_describe(plan).message_parts == 2 * CHUNKS);
    CHECK_FAILS(banyan_plan_sizes(plan, 0, 200, &input, &output), BANYAN_ERR_INVALID, "200 bytes");
    banyan_plan_destroy(plan);
}

static void blocks_are_written_and_read(void **state)
{
    (void)state;
    banyan_plan *plan, *other, *read;
    char *text, *differences;
    size_t bytes, count;
    CHECK_OK(compile(CHUNKS, 1, 0, &plan));
    CHECK_OK(compile(0, 1, 0, &other));
    CHECK_OK(banyan_plan_print(plan, &text, &bytes));
    CHECK(strstr(text, "\"block_chunks\": 3"));
    CHECK_OK(banyan_plan_parse(text, bytes, "text", &read));
    CHECK_OK(banyan_plan_diff(plan, read, 10, &differences, &count));
    CHECK(count == 0, "%s", differences);
    free(differences);
    CHECK_OK(banyan_plan_diff(plan, other, 10, &differences, &count));
    CHECK(count == 1 && strstr(differences, "chunks of a block"), "%s", differences);
    free(differences);
    char *at = strstr(text, "\"block_chunks\": 3") + strlen("\"block_chunks\": ");
    banyan_plan_destroy(read);
    *at = '0';
    CHECK_FAILS(banyan_plan_parse(text, bytes, "text", &read), BANYAN_ERR_FORMAT, "block_chunks");
    *at = '4';
    CHECK_FAILS(banyan_plan_parse(text, bytes, "text", &read), BANYAN_ERR_FORMAT,
                "not whole blocks of 4");
    free(text);
    banyan_plan_destroy(other);
    banyan_plan_destroy(plan);
}

static void blocks_come_from_whole_blocks(void **state)
{
    (void)state;
    banyan_plan *plan;
    CHECK_FAILS(compile(2, 1, 0, &plan), BANYAN_ERR_FORMAT, "not whole blocks of 2");
    CHECK_FAILS(compile(CHUNKS, 1, 1, &plan), BANYAN_ERR_FORMAT, "to come from elsewhere");
    CHECK_FAILS(compile(CHUNKS, 1, CHUNKS, &plan), BANYAN_ERR_FORMAT, "to come from elsewhere");
    CHECK_OK(compile(1, 1, 1, &plan));
    banyan_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_need_not_make_equal_chunks),
        cmocka_unit_test(without_blocks_all_chunks_are_equal),
        cmocka_unit_test(blocks_are_written_and_read),
        cmocka_unit_test(blocks_come_from_whole_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
