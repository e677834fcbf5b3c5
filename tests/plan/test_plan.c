/* Operations on a valid plan: write, copy, compare, list, measure. */
#include "support/test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plan/plan.h"
#include "support/folder.h"

#define GOOD BANYAN_SOURCE_DIR "/tests/fuzz/corpus/plan/every-operation"

static banyan_plan *read_good(void)
{
    banyan_plan *plan;
    CHECK_OK(banyan_plan_read(GOOD, &plan));
    return plan;
}

/* Return the number of differences; their lines contain `part`. */
static size_t count_differences(const banyan_plan *a, const banyan_plan *b, const char *part)
{
    char *text;
    size_t count;
    CHECK_OK(banyan_plan_diff(a, b, 100, &text, &count));
    CHECK(strstr(text, part), "\"%s\" is not in:\n%s", part, text);
    free(text);
    return count;
}

static void check_equal(const banyan_plan *a, const banyan_plan *b)
{
    char *text;
    size_t count;
    CHECK_OK(banyan_plan_diff(a, b, 10, &text, &count));
    CHECK(count == 0 && text[0] == '\0', "%s", text);
    free(text);
}

static void a_plan_that_was_written_is_read_as_it_was(void **state)
{
    char *path = folder_path(*state, "written.json");
    banyan_plan *plan = read_good(), *again;
    CHECK_OK(banyan_plan_write(plan, path));
    CHECK_OK(banyan_plan_read(path, &again));
    check_equal(plan, again);
    CHECK(folder_entries(*state) == 1);
    CHECK(unlink(path) == 0);
    banyan_plan_destroy(plan);
    banyan_plan_destroy(again);
    free(path);
}

static void a_plan_replaces_a_file_in_one_step(void **state)
{
    char *path = folder_path(*state, "written.json");
    banyan_plan *plan = read_good(), *again;
    FILE *old = fopen(path, "w");
    CHECK(old && fputs("old", old) >= 0 && fflush(old) == 0);
    CHECK_OK(banyan_plan_write(plan, path));
    struct stat found;
    CHECK(fstat(fileno(old), &found) == 0 && found.st_nlink == 0 && found.st_size == 3);
    CHECK_OK(banyan_plan_read(path, &again));
    check_equal(plan, again);
    CHECK(fclose(old) == 0 && folder_entries(*state) == 1);
    CHECK(unlink(path) == 0);
    banyan_plan_destroy(plan);
    banyan_plan_destroy(again);
    free(path);
}

static void a_plan_that_cannot_be_written_leaves_nothing_behind(void **state)
{
    char *path = folder_path(*state, "none/written.json");
    banyan_plan *plan = read_good();
    CHECK_FAILS(banyan_plan_write(plan, path), BANYAN_ERR_NOT_FOUND, "none");
    CHECK(folder_entries(*state) == 0);
    plan->name = "\xff";
    char *text;
    size_t bytes;
    CHECK_FAILS(banyan_plan_print(plan, &text, &bytes), BANYAN_ERR_INVALID, "UTF-8");
    plan->name = "a\nb"; /* no reader would accept it */
    CHECK_FAILS(banyan_plan_print(plan, &text, &bytes), BANYAN_ERR_INVALID, "control characters");
    banyan_plan_destroy(plan);
    free(path);
}

static void a_pipe_is_written_to_and_stays_one(void **state)
{
    char *path = folder_path(*state, "pipe");
    banyan_plan *plan = read_good(), *again;
    CHECK(mkfifo(path, 0600) == 0);
    int fd = open(path, O_RDONLY | O_NONBLOCK);
    CHECK(fd >= 0 && fcntl(fd, F_SETPIPE_SZ, 1 << 20) >= 0);
    CHECK_OK(banyan_plan_write(plan, path));
    static char text[1 << 20];
    ssize_t bytes = read(fd, text, sizeof text);
    CHECK(bytes > 0 && close(fd) == 0);
    CHECK_OK(banyan_plan_parse(text, (size_t)bytes, "pipe", &again));
    check_equal(plan, again);
    struct stat found;
    CHECK(lstat(path, &found) == 0 && S_ISFIFO(found.st_mode) && folder_entries(*state) == 1);
    CHECK(unlink(path) == 0);
    banyan_plan_destroy(plan);
    banyan_plan_destroy(again);
    free(path);
}

static void a_clone_is_equal_and_on_its_own(void **state)
{
    (void)state;
    banyan_plan *plan = read_good(), *clone, *again = read_good();
    CHECK_OK(plan_clone(plan, &clone));
    clone->ranks[0].blocks[0].ops[1].sources[0].index = 1;
    check_equal(plan, again);
    CHECK(count_differences(plan, clone, "rank 0, thread block 0, operation 1: copy i[0..2)") == 1);
    clone->ranks[0].blocks[0].ops[1].sources[0].index = 0;
    banyan_plan_destroy(plan);
    check_equal(clone, again);
    CHECK_OK(plan_check_indices(clone, "clone"));
    banyan_plan_destroy(clone);
    banyan_plan_destroy(again);
}

static void change_name(banyan_plan *plan)
{
    plan->name = "other";
}

static void change_protocol(banyan_plan *plan)
{
    plan->protocol = BANYAN_SIMPLE;
}

static void change_bounds(banyan_plan *plan)
{
    plan->max_message_bytes = 7;
}

static void change_alignment(banyan_plan *plan)
{
    plan->buffer_alignment = 64;
}

static void change_in_place(banyan_plan *plan)
{
    plan->in_place = true;
}

static void change_double_scratch(banyan_plan *plan)
{
    plan->double_scratch = false;
}

static void change_tag(banyan_plan *plan)
{
    plan->tags[0].value = "somebody";
}

static void drop_tags(banyan_plan *plan)
{
    plan->tag_count = 0;
}

static void change_expected(banyan_plan *plan)
{
    plan->expected[1][3] = plan->expected[1][2];
}

static void change_expected_op(banyan_plan *plan)
{
    plan->expected_op = BANYAN_MIN;
}

static void change_chunks(banyan_plan *plan)
{
    plan->ranks[1].chunks[PLAN_SCRATCH] = 9;
}

static void change_semaphore(banyan_plan *plan)
{
    plan->ranks[1].semaphores[1] = 4;
}

static void drop_channel(banyan_plan *plan)
{
    plan->ranks[0].channel_count[PLAN_MEMORY] = 1;
}

static void change_switch(banyan_plan *plan)
{
    plan->ranks[0].switches[1].buffer = PLAN_OUTPUT;
}

static void change_remote_buffer(banyan_plan *plan)
{
    plan->ranks[0].remote_buffers[0].buffer = PLAN_OUTPUT;
}

static void change_block_channels(banyan_plan *plan)
{
    plan->ranks[0].blocks[0].channels[PLAN_MEMORY][0] = 0;
}

static void drop_block(banyan_plan *plan)
{
    plan->ranks[1].block_count = 1;
}

static void drop_operation(banyan_plan *plan)
{
    plan_thread_block *block = &plan->ranks[0].blocks[0];
    memmove(block->ops + 3, block->ops + 4, (block->op_count - 4) * sizeof *block->ops);
    block->op_count--;
}

static void change_reduction(banyan_plan *plan)
{
    plan->ranks[0].blocks[0].ops[2].reduce_op = BANYAN_SUM;
}

static void change_operation_in_loop(banyan_plan *plan)
{
    plan->ranks[0].blocks[1].ops[10].ops[1].kind = PLAN_COPY;
}

static void change_loop(banyan_plan *plan)
{
    plan->ranks[0].blocks[1].ops[10].unit_bytes = 2048;
}

static void every_difference_is_listed(void **state)
{
    (void)state;
    static const struct {
        void (*change)(banyan_plan *plan);
        const char *listed;
    } list[] = {
        {change_name, "name: everything, other\n"},
        {change_protocol, "protocol: LL, Simple\n"},
        {change_bounds, "largest message: 18446744073709551615, 7\n"},
        {change_alignment, "buffer alignment: 32, 64\n"},
        {change_in_place, "in place: no, yes\n"},
        {change_double_scratch, "double scratch: yes, no\n"},
        {change_tag, "tag who: a \"test\", somebody\n"},
        {drop_tags, "tag who: a \"test\", (none)\n"},
        {change_expected, "rank 1, output chunk 3: another result is expected\n"},
        {change_expected_op, "expected reduction: max, min\n"},
        {change_chunks, "rank 1, scratch chunks: 8, 9\n"},
        {change_semaphore, "rank 1, semaphore 1: begins at 3, 4\n"},
        {drop_channel, "rank 0: 2 memory channels, 1\n"},
        {change_switch, "rank 0, switch channel 1: to other ranks\n"},
        {change_remote_buffer, "rank 0, remote buffer 0: rank 1's input, rank 1's output\n"},
        {change_block_channels, "rank 0, thread block 0: other memory channels\n"},
        {drop_block, "rank 1: 2 thread blocks, 1\n"},
        {drop_operation, "rank 0, thread block 0, operation 3: cpkt i[0] -> s[0] | nothing\n"},
        {change_reduction, "operation 2: re max i[0], s[1], s[2] -> o[0] | re sum i[0]"},
        {change_operation_in_loop, "rank 0, thread block 1, operation 10.1: nop | copy\n"},
        {change_loop, "in units of 1024 bytes | pipeline over 2 chunks in units of 2048 bytes\n"},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        banyan_plan *plan = read_good(), *changed = read_good();
        list[i].change(changed);
        CHECK(count_differences(plan, changed, list[i].listed) == 1);
        CHECK(count_differences(changed, plan, "") == 1);
        banyan_plan_destroy(plan);
        banyan_plan_destroy(changed);
    }
}

static void no_more_differences_are_listed_than_asked_for(void **state)
{
    (void)state;
    banyan_plan *plan = read_good(), *changed = read_good();
    change_name(changed);
    change_alignment(changed);
    change_loop(changed);
    char *text;
    size_t count;
    CHECK_OK(banyan_plan_diff(plan, changed, 1, &text, &count));
    CHECK(count == 3 && strcmp(text, "name: everything, other\n") == 0);
    free(text);
    banyan_plan_destroy(changed);
    changed = plan_create(3);
    CHECK(changed);
    CHECK(count_differences(plan, changed, "ranks: 2, 3\n") > 1);
    banyan_plan_destroy(plan);
    banyan_plan_destroy(changed);
}

static void names_are_read_as_they_are_written(void **state)
{
    (void)state;
    for (int i = 0; i < PLAN_OP_KINDS; i++) {
        plan_op_kind kind;
        CHECK(plan_op_parse(plan_op_name((plan_op_kind)i), &kind) && (int)kind == i);
    }
    for (int i = BANYAN_CUSTOM; i <= BANYAN_REDUCE; i++) {
        banyan_collective_kind kind;
        CHECK_OK(banyan_collective_kind_parse(
            banyan_collective_kind_name((banyan_collective_kind)i), &kind));
        CHECK((int)kind == i);
    }
    for (int i = BANYAN_SUM; i <= BANYAN_AVG; i++) {
        banyan_reduce_op op;
        CHECK_OK(banyan_reduce_op_parse(banyan_reduce_op_name((banyan_reduce_op)i), &op));
        CHECK((int)op == i);
    }
    banyan_collective_kind kind;
    banyan_reduce_op op;
    CHECK_FAILS(banyan_collective_kind_parse("allreducE", &kind), BANYAN_ERR_NOT_FOUND,
                "allreducE");
    CHECK_FAILS(banyan_reduce_op_parse("mean", &op), BANYAN_ERR_NOT_FOUND, "mean");
}

static void a_listing_shows_the_rank_that_was_asked_for(void **state)
{
    (void)state;
    banyan_plan *plan = read_good();
    char *text;
    CHECK_OK(banyan_plan_list(plan, 1, &text));
    CHECK(strstr(text, "rank 1: 4 input, 4 output and 8 scratch chunks\n") &&
          !strstr(text, "rank 0:"));
    CHECK(strstr(text, "    10    get memory i[1]@0 -> i[0] by channel 1 to 0\n"));
    CHECK(strstr(text, "glres sum i[0..2)@{0,1} by switch channel 0 -> s[0..2)@{0,1}"));
    free(text);
    CHECK_OK(banyan_plan_list(plan, -1, &text));
    CHECK(strstr(text, "\nrank 0:") && strstr(text, "\nrank 1:"));
    CHECK(strstr(text, "  o[0] must be max i[0]@0, i[3]@1\n  o[2] must be i[1]@1\n"));
    free(text);
    CHECK_FAILS(banyan_plan_list(plan, 2, &text), BANYAN_ERR_INVALID, "none with the number 2");
    banyan_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_plan_that_was_written_is_read_as_it_was, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(a_plan_replaces_a_file_in_one_step, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(a_plan_that_cannot_be_written_leaves_nothing_behind,
                                        folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(a_pipe_is_written_to_and_stays_one, folder_setup,
                                        folder_teardown),
        cmocka_unit_test(a_clone_is_equal_and_on_its_own),
        cmocka_unit_test(every_difference_is_listed),
        cmocka_unit_test(no_more_differences_are_listed_than_asked_for),
        cmocka_unit_test(names_are_read_as_they_are_written),
        cmocka_unit_test(a_listing_shows_the_rank_that_was_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
