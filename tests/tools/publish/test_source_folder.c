/* Names of checkpoints' folders, and the versions in them. */
#include "support/test.h"

#include "publish/source_folder.c"

static void steps_are_read_from_the_ends_of_names(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t step;
    } cases[] = {
        {"step_000100", 100},
        {"step100", 100},
        {"Step-7", 7},
        {"global_step_12", 12},
        {"checkpoint-500", 500},
        {"iter_0000100", 100},
        {"iteration=3", 3},
        {"ckpt-7", 7},
        {"version-00000100", 100},
        {"step_0", 0},
        {"step_", 0},
        {"step", 0},
        {"100", 0},
        {"_100", 0},
        {"tmp-checkpoint-500", 0},
        {"step_100.tmp", 0},
        {"step__5", 0},
        {".step_5", 0},
        {"Llama-3", 0},
        {"model-00001", 0},
        {"step_999999999999999999", 999999999999999999},
        {"step_9999999999999999999", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t found = source_step_of(cases[i].name);
        CHECK(found == cases[i].step, "%s: %lu", cases[i].name, (unsigned long)found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_read_from_the_ends_of_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
