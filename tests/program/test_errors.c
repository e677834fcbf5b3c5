/* A program keeps its first error, with the place of the call, its name and the numbers; later
 * calls do no harm. */
#include "program/passes.h"

/* The line of the wrong call. */
static int wrong_line;
#define WRONG(call) (wrong_line = __LINE__, (call))

/* Programs have four ranks with four chunks in input and output. */
typedef struct error_case {
    const char *name;
    program_writer write;
    const char *parts[4]; /* of the message */
} error_case;

#define AT(chunk, index) banyan_program_slice(program, (chunk), (index), (index) + 1)

static banyan_program_memory_channel *memory(banyan_program *program)
{
    return banyan_program_memory_channel_create(program, 2, 1);
}

static banyan_program_port_channel *port(banyan_program *program)
{
    return banyan_program_port_channel_create(program, 2, 1);
}

static banyan_program_switch_channel *group(banyan_program *program, banyan_buffer buffer)
{
    return banyan_program_switch_channel_create(program, (const int[]){0, 1, 3}, 3, buffer);
}

static void input_of_no_rank(banyan_program *program)
{
    WRONG(IN(4, 0, 1));
}

static void scratch_of_no_rank(banyan_program *program)
{
    WRONG(banyan_program_scratch(program, -1, 1));
}

static void copy_at_no_rank(banyan_program *program)
{
    WRONG(banyan_program_copy(program, 9, OUT(0, 0, 1), IN(0, 0, 1), BANYAN_TB(0)));
}

static void channel_to_no_rank(banyan_program *program)
{
    WRONG(banyan_program_memory_channel_create(program, 4, 0));
}

static void channel_from_no_rank(banyan_program *program)
{
    WRONG(banyan_program_port_channel_create(program, 0, -2));
}

static void channel_to_itself(banyan_program *program)
{
    WRONG(banyan_program_memory_channel_create(program, 3, 3));
}

static void switch_over_no_rank(banyan_program *program)
{
    WRONG(banyan_program_switch_channel_create(program, (const int[]){0, 1, 5}, 3, BANYAN_INPUT));
}

static void switch_over_a_rank_twice(banyan_program *program)
{
    WRONG(banyan_program_switch_channel_create(program, (const int[]){0, 3, 3}, 3, BANYAN_INPUT));
}

static void semaphore_of_no_rank(banyan_program *program)
{
    WRONG(banyan_program_semaphore_create(program, 4, 0));
}

static void barrier_of_no_rank(banyan_program *program)
{
    WRONG(banyan_program_barrier(program, 4, (const int[]){0, 1}, 2));
}

static void input_past_its_end(banyan_program *program)
{
    WRONG(IN(1, 2, 5));
}

static void output_that_starts_after_its_stop(banyan_program *program)
{
    WRONG(OUT(1, 3, 2));
}

static void slice_past_its_end(banyan_program *program)
{
    WRONG(banyan_program_slice(program, banyan_program_scratch(program, 3, 2), 1, 3));
}

static void slice_that_starts_after_its_stop(banyan_program *program)
{
    WRONG(banyan_program_slice(program, IN(3, 0, 4), 2, 1));
}

static void chunk_that_was_made_up(banyan_program *program)
{
    banyan_chunk made_up = {.rank = 1, .buffer = BANYAN_SCRATCH, .index = 7, .size = 1};
    WRONG(banyan_program_copy(program, 1, OUT(1, 0, 1), made_up, BANYAN_TB(0)));
}

static void chunk_that_overflows(banyan_program *program)
{
    banyan_chunk made_up = {.rank = 1, .buffer = BANYAN_INPUT, .index = 2, .size = UINT64_MAX - 1};
    WRONG(banyan_program_copy(program, 1, made_up, IN(1, 0, 1), BANYAN_TB(0)));
}

static void buffer_that_was_made_up(banyan_program *program)
{
    banyan_chunk made_up = {.rank = 1, .buffer = (banyan_buffer)7, .index = 0, .size = 1};
    WRONG(banyan_program_copy(program, 1, made_up, IN(1, 0, 1), BANYAN_TB(0)));
}

static void chunk_of_nothing(banyan_program *program)
{
    WRONG(banyan_program_copy(program, 1, OUT(1, 2, 2), IN(1, 0, 0), BANYAN_TB(0)));
}

static void scratch_without_end(banyan_program *program)
{
    banyan_program_scratch(program, 2, 5);
    WRONG(banyan_program_scratch(program, 2, UINT64_MAX - 4));
}

static void copy_from_another_rank(banyan_program *program)
{
    WRONG(banyan_program_copy(program, 0, OUT(0, 0, 1), IN(3, 0, 1), BANYAN_TB(0)));
}

static void put_of_another_rank(banyan_program *program)
{
    WRONG(banyan_program_memory_put(memory(program), OUT(2, 0, 1), IN(0, 0, 1), BANYAN_TB(0)));
}

static void put_to_another_rank(banyan_program *program)
{
    WRONG(banyan_program_port_put(port(program), OUT(3, 0, 1), IN(1, 0, 1), 0));
}

static void get_to_another_rank(banyan_program *program)
{
    WRONG(banyan_program_memory_get(memory(program), OUT(2, 0, 1), IN(2, 0, 1), BANYAN_TB(0)));
}

static void get_from_another_rank(banyan_program *program)
{
    WRONG(banyan_program_memory_get(memory(program), OUT(1, 0, 1), IN(1, 0, 1), BANYAN_TB(0)));
}

static void read_reduce_of_another_rank(banyan_program *program)
{
    WRONG(banyan_program_memory_reduce(memory(program), IN(1, 0, 1),
                                       CHUNKS(IN(2, 0, 1), IN(3, 0, 1)), 2, BANYAN_IN_SOURCE,
                                       BANYAN_SUM, BANYAN_TB(0)));
}

static void copy_of_different_sizes(banyan_program *program)
{
    WRONG(banyan_program_copy(program, 0, OUT(0, 0, 3), IN(0, 0, 2), BANYAN_TB(0)));
}

static void put_of_different_sizes(banyan_program *program)
{
    WRONG(banyan_program_memory_put(memory(program), OUT(2, 0, 1), IN(1, 0, 4), BANYAN_TB(0)));
}

static void reduce_of_different_sizes(banyan_program *program)
{
    WRONG(banyan_program_reduce(program, 2, IN(2, 0, 2), CHUNKS(IN(2, 2, 4), IN(2, 0, 1)), 2,
                                BANYAN_IN_SOURCE, BANYAN_SUM, BANYAN_TB(0)));
}

static void reduce_to_a_different_size(banyan_program *program)
{
    WRONG(banyan_program_reduce(program, 2, IN(2, 0, 2), CHUNKS(IN(2, 2, 4)), 1, OUT(2, 0, 1),
                                BANYAN_SUM, BANYAN_TB(0)));
}

static void read_reduce_of_different_sizes(banyan_program *program)
{
    WRONG(banyan_program_memory_reduce(memory(program), IN(1, 0, 1), CHUNKS(IN(2, 0, 2)), 1,
                                       BANYAN_IN_SOURCE, BANYAN_SUM, BANYAN_TB(0)));
}

static void reduce_with_nothing(banyan_program *program)
{
    WRONG(banyan_program_reduce(program, 2, IN(2, 0, 2), NULL, 0, BANYAN_IN_SOURCE, BANYAN_SUM,
                                BANYAN_TB(0)));
}

static void reduce_in_an_unknown_way(banyan_program *program)
{
    WRONG(banyan_program_reduce(program, 2, IN(2, 0, 1), CHUNKS(IN(2, 1, 2)), 1, BANYAN_IN_SOURCE,
                                (banyan_reduce_op)9, BANYAN_TB(0)));
}

static void packets_into_output(banyan_program *program)
{
    WRONG(banyan_program_copy_packets(program, 1, OUT(1, 3, 4), IN(1, 0, 1), BANYAN_TB(0)));
}

static void packets_out_of_input(banyan_program *program)
{
    WRONG(banyan_program_unpack_packets(program, 1, OUT(1, 0, 1), IN(1, 0, 1), BANYAN_TB(0)));
}

static void packets_put_into_output(banyan_program *program)
{
    WRONG(banyan_program_memory_put_packets(memory(program), OUT(2, 1, 2), IN(1, 0, 1),
                                            BANYAN_TB(0)));
}

static void packets_read_from_input(banyan_program *program)
{
    banyan_chunk theirs = banyan_program_scratch(program, 2, 1);
    WRONG(banyan_program_port_read_put_packets(port(program), theirs, IN(1, 0, 1), BANYAN_TB(0)));
}

static void packets_reduced_from_input(banyan_program *program)
{
    WRONG(banyan_program_reduce_packets(program, 1, IN(1, 0, 1), CHUNKS(IN(1, 1, 2)), 1,
                                        BANYAN_IN_SOURCE, BANYAN_SUM, BANYAN_TB(0)));
}

static void packets_broadcast_to_output(banyan_program *program)
{
    WRONG(banyan_program_switch_broadcast_packets(group(program, BANYAN_OUTPUT), 1,
                                                  banyan_program_scratch(program, 1, 1), 0, 1, 0));
}

static void nobody_does_it(banyan_program *program)
{
    WRONG(banyan_program_copy(program, 1, OUT(1, 0, 1), IN(1, 0, 1), BANYAN_TB_GROUP(NULL)));
}

static void nobody_puts(banyan_program *program)
{
    WRONG(banyan_program_memory_put(memory(program), OUT(2, 0, 1), IN(1, 0, 1), BANYAN_TB(-1)));
}

static void signal_by_nobody(banyan_program *program)
{
    WRONG(banyan_program_memory_signal(memory(program), -3, BANYAN_SYNC_BOTH));
}

static void signal_by_far_too_many(banyan_program *program)
{
    WRONG(banyan_program_memory_signal(memory(program), INT32_MAX, BANYAN_SYNC_BOTH));
}

static void twice_in_a_group(banyan_program *program)
{
    WRONG(banyan_program_group_create(program, (const int[]){4, 2, 4}, 3));
}

static void group_of_nobody(banyan_program *program)
{
    WRONG(banyan_program_group_create(program, NULL, 0));
}

static void twice_at_a_barrier(banyan_program *program)
{
    WRONG(banyan_program_barrier(program, 2, (const int[]){1, 5, 5}, 3));
}

static void barrier_of_nobody(banyan_program *program)
{
    WRONG(banyan_program_barrier(program, 2, NULL, 0));
}

static void switch_at_a_rank_outside(banyan_program *program)
{
    WRONG(banyan_program_switch_reduce(group(program, BANYAN_INPUT), 2, 0, 1, IN(2, 0, 1),
                                       BANYAN_SUM, 0));
}

static void switch_chunk_of_another_rank(banyan_program *program)
{
    WRONG(banyan_program_switch_reduce(group(program, BANYAN_INPUT), 1, 0, 1, IN(3, 0, 1),
                                       BANYAN_SUM, 0));
}

static void switch_of_a_wrong_size(banyan_program *program)
{
    WRONG(banyan_program_switch_broadcast(group(program, BANYAN_INPUT), 1, IN(1, 0, 1), 0, 2, 0));
}

static void switch_past_the_end(banyan_program *program)
{
    banyan_chunk own = banyan_program_scratch(program, 0, 3);
    banyan_program_scratch(program, 1, 3);
    banyan_program_scratch(program, 3, 2);
    WRONG(banyan_program_switch_broadcast(group(program, BANYAN_SCRATCH), 0, own, 0, 3, 0));
}

static void loop_in_a_loop(banyan_program *program)
{
    banyan_program_loop_begin(program, 64, 1);
    WRONG(banyan_program_loop_begin(program, 64, 1));
}

static void loop_over_nothing(banyan_program *program)
{
    WRONG(banyan_program_loop_begin(program, 0, 3));
}

static void loop_that_has_not_begun(banyan_program *program)
{
    banyan_program_loop_begin(program, 64, 1);
    banyan_program_loop_end(program);
    WRONG(banyan_program_loop_end(program));
}

static void more_than_the_loop_is_over(banyan_program *program)
{
    banyan_program_loop_begin(program, 64, 2);
    WRONG(banyan_program_copy(program, 1, OUT(1, 0, 3), IN(1, 0, 3), BANYAN_TB(0)));
}

static error_case cases[] = {
    {"a rank out of range: input", input_of_no_rank, {"input", "rank 4", "4 ranks"}},
    {"a rank out of range: scratch", scratch_of_no_rank, {"scratch", "rank -1", "4 ranks"}},
    {"a rank out of range: copy", copy_at_no_rank, {"copy", "rank 9", "4 ranks"}},
    {"a rank out of range: memory channel",
     channel_to_no_rank,
     {"memory channel", "destination rank 4", "4 ranks"}},
    {"a rank out of range: port channel",
     channel_from_no_rank,
     {"port channel", "source rank -2", "4 ranks"}},
    {"a rank out of range: switch channel", switch_over_no_rank, {"switch channel", "rank 5"}},
    {"a rank out of range: semaphore", semaphore_of_no_rank, {"semaphore", "rank 4", "4 ranks"}},
    {"a rank out of range: barrier", barrier_of_no_rank, {"barrier", "rank 4", "4 ranks"}},
    {"a channel to its own rank", channel_to_itself, {"memory channel", "rank 3 to itself"}},
    {"a rank twice on a switch channel",
     switch_over_a_rank_twice,
     {"switch channel", "rank 3", "twice", "at 1 and at 2"}},
    {"a chunk past its buffer's end",
     input_past_its_end,
     {"input at rank 1", "[2, 5)", "outside", "4 chunks"}},
    {"a chunk that starts after its stop",
     output_that_starts_after_its_stop,
     {"output at rank 1", "[3, 2)", "starts after its stop"}},
    {"a slice past its end",
     slice_past_its_end,
     {"slice at rank 3", "[1, 3)", "outside", "2 chunks"}},
    {"a slice that starts after its stop",
     slice_that_starts_after_its_stop,
     {"slice at rank 3", "[2, 1)", "starts after its stop"}},
    {"a chunk that was made up",
     chunk_that_was_made_up,
     {"copy at rank 1", "source", "1 chunks at 7", "scratch, which has 0"}},
    {"a chunk whose end overflows", chunk_that_overflows, {"copy at rank 1", "outside"}},
    {"a chunk of no buffer", buffer_that_was_made_up, {"copy at rank 1", "buffer 7"}},
    {"a chunk of nothing", chunk_of_nothing, {"copy at rank 1", "destination, at 2", "no chunks"}},
    {"more scratch than can be counted",
     scratch_without_end,
     {"scratch at rank 2", "18446744073709551611", "the 5 taken"}},
    {"a copy from another rank",
     copy_from_another_rank,
     {"copy at rank 0", "source", "rank 3", "not of rank 0"}},
    {"a put of another rank than the channel's source",
     put_of_another_rank,
     {"put on memory channel 0 from rank 1 to rank 2", "source", "rank 0", "not of rank 1"}},
    {"a put to another rank than the channel's destination",
     put_to_another_rank,
     {"put on port channel 0 from rank 1 to rank 2", "destination", "rank 3", "not of rank 2"}},
    {"a get to another rank than the channel's source",
     get_to_another_rank,
     {"get on memory channel 0 from rank 1 to rank 2", "destination", "rank 2", "not of rank 1"}},
    {"a get from another rank than the channel's destination",
     get_from_another_rank,
     {"get on memory channel", "source", "rank 1", "not of rank 2"}},
    {"a reduction of another rank than the channel's destination",
     read_reduce_of_another_rank,
     {"reduce on memory channel", "remote source", "rank 3", "not of rank 2"}},
    {"sizes that differ: copy",
     copy_of_different_sizes,
     {"copy at rank 0", "source has 2 chunks", "destination 3"}},
    {"sizes that differ: put",
     put_of_different_sizes,
     {"put on memory channel 0 from rank 1 to rank 2", "source has 4", "destination 1"}},
    {"sizes that differ: reduce",
     reduce_of_different_sizes,
     {"reduce at rank 2", "source has 2", "other source 1"}},
    {"sizes that differ: reduce's destination",
     reduce_to_a_different_size,
     {"reduce at rank 2", "source has 2", "destination 1"}},
    {"sizes that differ: reduce on a channel",
     read_reduce_of_different_sizes,
     {"reduce on memory channel", "local source has 1", "remote source 2"}},
    {"a reduction with nothing", reduce_with_nothing, {"reduce at rank 2", "0 other chunks"}},
    {"a reduction that is not known",
     reduce_in_an_unknown_way,
     {"reduce at rank 2", "reduction 9"}},
    {"packets into output",
     packets_into_output,
     {"copy to packets at rank 1", "destination", "rank 1's output at 3", "scratch"}},
    {"packets out of input",
     packets_out_of_input,
     {"unpack packets at rank 1", "source", "rank 1's input at 0", "scratch"}},
    {"packets put into output",
     packets_put_into_output,
     {"put packets on memory channel 0", "destination", "rank 2's output at 1"}},
    {"packets read from input",
     packets_read_from_input,
     {"read-and-put packets on port channel 0", "source", "rank 1's input at 0"}},
    {"packets reduced from input",
     packets_reduced_from_input,
     {"reduce packets at rank 1", "other source", "rank 1's input at 1"}},
    {"packets broadcast to output",
     packets_broadcast_to_output,
     {"broadcast packets at rank 1", "ranks 0, 1, 3", "output", "scratch"}},
    {"neither thread block nor group", nobody_does_it, {"copy at rank 1", "neither", "group"}},
    {"neither thread block nor group: put",
     nobody_puts,
     {"put on memory channel 0 from rank 1 to rank 2", "neither"}},
    {"a thread block out of range", signal_by_nobody, {"signal on memory channel", "block -3"}},
    {"a thread block that would make millions",
     signal_by_far_too_many,
     {"signal on memory channel", "block 2147483647", "at most 1048576"}},
    {"a thread block twice in a group",
     twice_in_a_group,
     {"thread block group", "thread block 4", "twice", "at 0 and at 2"}},
    {"a group of nobody", group_of_nobody, {"thread block group", "0 thread blocks"}},
    {"a thread block twice at a barrier",
     twice_at_a_barrier,
     {"barrier at rank 2", "thread block 5", "twice"}},
    {"a barrier of nobody", barrier_of_nobody, {"barrier at rank 2", "0 thread blocks"}},
    {"a switch operation for a rank outside the group",
     switch_at_a_rank_outside,
     {"reduce at rank 2", "ranks 0, 1, 3", "rank 2 is not in the group"}},
    {"a switch operation with another rank's chunk",
     switch_chunk_of_another_rank,
     {"reduce at rank 1", "destination", "rank 3", "not of rank 1"}},
    {"a switch operation of a wrong size",
     switch_of_a_wrong_size,
     {"broadcast at rank 1", "source has 1 chunks", "the region 2"}},
    {"a switch operation past the end of a member's buffer",
     switch_past_the_end,
     {"broadcast at rank 0", "3 chunks at 0", "buffer of rank 3", "has 2 chunks"}},
    {"nested loops", loop_in_a_loop, {"loop", "begun at", "do not nest"}},
    {"a loop over nothing", loop_over_nothing, {"loop", "3 chunks", "0 bytes"}},
    {"a loop that ends before it begins", loop_that_has_not_begun, {"end of a loop", "begun"}},
    {"an operation larger than its loop",
     more_than_the_loop_is_over,
     {"copy at rank 1", "3 chunks", "over 2"}},
};

/* Every kind of call, most of them wrong, with handles that may be NULL. */
static void call_everything(banyan_program *program)
{
    banyan_program_memory_channel *memory_channel =
        banyan_program_memory_channel_create(program, 77, 0);
    banyan_program_port_channel *port_channel = banyan_program_port_channel_create(program, 0, 77);
    banyan_program_switch_channel *switch_channel =
        banyan_program_switch_channel_create(program, (const int[]){77}, 1, BANYAN_INPUT);
    banyan_program_semaphore *semaphore = banyan_program_semaphore_create(program, 77, 0);
    banyan_program_group *nobody = banyan_program_group_create(program, (const int[]){1, 1}, 2);
    banyan_chunk a = banyan_program_input(program, 77, 0, 1),
                 b = banyan_program_output(program, 0, 3, 99);
    banyan_chunk c = banyan_program_scratch(program, 77, 1),
                 d = banyan_program_slice(program, c, 5, 6);
    banyan_program_by by = BANYAN_TB_GROUP(nobody);
    assert_null(memory_channel);
    assert_null(nobody);
    banyan_program_tag(program, "key", "value");
    banyan_program_copy(program, 0, a, b, by);
    banyan_program_copy_packets(program, 0, c, d, by);
    banyan_program_unpack_packets(program, 77, c, d, by);
    banyan_program_reduce(program, 0, a, &b, 1, BANYAN_IN_SOURCE, BANYAN_SUM, by);
    banyan_program_reduce_packets(program, 0, a, &b, 1, c, BANYAN_SUM, by);
    banyan_program_barrier(program, 77, (const int[]){0}, 1);
    banyan_program_semaphore_acquire(semaphore, 0, BANYAN_SYNC_BOTH);
    banyan_program_semaphore_release(semaphore, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_signal(memory_channel, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(memory_channel, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_signal_relaxed(memory_channel, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait_relaxed(memory_channel, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_get(memory_channel, a, b, by);
    banyan_program_memory_put(memory_channel, a, b, by);
    banyan_program_memory_put_packets(memory_channel, a, b, by);
    banyan_program_memory_read_put_packets(memory_channel, a, b, by);
    banyan_program_memory_reduce(memory_channel, a, &b, 1, c, BANYAN_SUM, by);
    banyan_program_port_signal(port_channel, 0, BANYAN_SYNC_BOTH);
    banyan_program_port_wait(port_channel, 0, BANYAN_SYNC_BOTH);
    banyan_program_port_flush(port_channel, 0, BANYAN_SYNC_BOTH);
    banyan_program_port_put(port_channel, a, b, 0);
    banyan_program_port_put_with_signal(port_channel, a, b, 0);
    banyan_program_port_put_with_signal_and_flush(port_channel, a, b, 0);
    banyan_program_port_put_packets(port_channel, a, b, 0);
    banyan_program_port_read_put_packets(port_channel, a, b, by);
    banyan_program_switch_reduce(switch_channel, 0, 0, 1, a, BANYAN_SUM, 0);
    banyan_program_switch_broadcast(switch_channel, 0, a, 0, 1, 0);
    banyan_program_switch_broadcast_packets(switch_channel, 0, a, 0, 1, 0);
    banyan_program_loop_end(program);
    banyan_program_loop_begin(program, 0, 0);
}

static void the_first_error_is_kept(void **state)
{
    const error_case *of = *state;
    char place[64];
    banyan_program *program;
    banyan_plan *plan = NULL;
    banyan_collective collective = {.kind = BANYAN_CUSTOM, .input_chunks = 4, .output_chunks = 4};
    CHECK_OK(banyan_program_create("wrong", &collective, 4, NULL, &program));
    CHECK_OK(banyan_program_status(program));
    of->write(program);
    snprintf(place, sizeof place, "test_errors.c:%d: ", wrong_line);
    CHECK_FAILS(banyan_program_status(program), BANYAN_ERR_INVALID, place);
    call_everything(program);
    for (int again = 0; again < 2; again++) {
        CHECK_FAILS(banyan_program_compile(program, &plan), BANYAN_ERR_INVALID, place);
        assert_non_null(strstr(banyan_last_error(), "program \"wrong\": "));
        for (int i = 0; i < 4 && of->parts[i]; i++)
            CHECK(strstr(banyan_last_error(), of->parts[i]), "\"%s\" is not in: %s", of->parts[i],
                  banyan_last_error());
        assert_null(plan);
    }
    banyan_program_destroy(program);
}

static void no_program_is_no_harm(void **state)
{
    (void)state;
    call_everything(NULL);
    banyan_program_destroy(NULL);
}

/* An error of a call without a place of its own begins with the last noted place that was not
 * used; NULL: with none. */
static void check_taken_place(const char *expected)
{
    banyan_program *program;
    banyan_plan *plan;
    banyan_collective collective = {.kind = BANYAN_CUSTOM, .input_chunks = 4, .output_chunks = 4};
    CHECK_OK(banyan_program_create("places", &collective, 4, NULL, &program));
    (banyan_program_input)(program, 77, 0, 1);
    CHECK_FAILS(banyan_program_compile(program, &plan), BANYAN_ERR_INVALID,
                expected ? expected : "program \"places\": input");
    banyan_program_destroy(program);
}

static void a_call_is_given_the_place_noted_last(void **state)
{
    (void)state;
    enum { KEPT = 16, NOTED = 40 };
    char place[64];
    for (int i = 0; i < 2 * KEPT; i++)
        (banyan_program_input)(NULL, 0, 0, 1);
    check_taken_place(NULL);
    for (int noted = 1; noted <= NOTED; noted++) {
        for (int i = 1; i <= noted; i++)
            banyan_program_here("nested.c", i);
        for (int i = noted; i > 0 && i > noted - KEPT; i--) {
            snprintf(place, sizeof place, "program \"places\": nested.c:%d: input", i);
            check_taken_place(place);
        }
        check_taken_place(NULL);
    }
}

int main(void)
{
    enum { CASES = sizeof cases / sizeof cases[0] };
    struct CMUnitTest tests[CASES + 2];
    for (size_t i = 0; i < CASES; i++)
        tests[i] = (struct CMUnitTest){.name = cases[i].name,
                                       .test_func = the_first_error_is_kept,
                                       .initial_state = &cases[i]};
    tests[CASES] = (struct CMUnitTest)cmocka_unit_test(no_program_is_no_harm);
    tests[CASES + 1] = (struct CMUnitTest)cmocka_unit_test(a_call_is_given_the_place_noted_last);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
