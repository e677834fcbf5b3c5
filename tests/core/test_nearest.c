/* The nearest name is found, and no distant one. */
#include "support/random.h"
#include "support/test.h"

#include "core/nearest.h"

/* The whole table, cell by cell. */
static int distance_in_full(const char *a, const char *b)
{
    int table[32][32], a_bytes = (int)strlen(a), b_bytes = (int)strlen(b);
    for (int i = 0; i <= a_bytes; i++) {
        for (int j = 0; j <= b_bytes; j++) {
            int best = i + j;
            if (i > 0 && table[i - 1][j] + 1 < best)
                best = table[i - 1][j] + 1;
            if (j > 0 && table[i][j - 1] + 1 < best)
                best = table[i][j - 1] + 1;
            if (i > 0 && j > 0 && table[i - 1][j - 1] + (a[i - 1] != b[j - 1]) < best)
                best = table[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                table[i - 2][j - 2] + 1 < best)
                best = table[i - 2][j - 2] + 1;
            table[i][j] = best;
        }
    }
    return table[a_bytes][b_bytes];
}

static void random_text(random_state *random, char text[32])
{
    int bytes = (int)random_between(random, 0, 24);
    for (int i = 0; i < bytes; i++)
        text[i] = (char)random_between(random, 'a', 'c');
    text[bytes] = '\0';
}

static void distances_are_those_of_the_whole_table(void **state)
{
    (void)state;
    random_state random = random_from(7);
    for (int round = 0; round < 20000; round++) {
        char a[32], b[32];
        random_text(&random, a);
        random_text(&random, b);
        int expected = distance_in_full(a, b), limit = (int)random_between(&random, 1, 17);
        assert_int_equal(names_distance(a, b, limit), expected < limit ? expected : limit);
    }
}

static void names_that_share_little_are_far(void **state)
{
    (void)state;
    const char *name = "model.layers.3.mlp.up_porj.weight";
    assert_int_equal(names_distance(name, "model.layers.3.mlp.up_proj.weight", names_limit(name)),
                     1);
    assert_int_equal(names_distance(name, "layers.3.mlp.up_proj.weight", names_limit(name)), 7);
    assert_int_equal(names_distance(name, "lm_head.weight", names_limit(name)), names_limit(name));
    assert_int_equal(names_distance("", "", 1), 0);
    assert_int_equal(names_limit("w"), 1);
}

static void searches_return_the_first_of_the_nearest(void **state)
{
    (void)state;
    const char *names[] = {"rank", "from", "form", "frum"};
    names_search search = names_search_for("fromm");
    assert_null(search.nearest);
    for (int i = 0; i < 4; i++)
        names_search_try(&search, names[i]);
    assert_ptr_equal(search.nearest, names[1]);
    search = names_search_for("iterations");
    for (int i = 0; i < 4; i++)
        names_search_try(&search, names[i]);
    assert_null(search.nearest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distances_are_those_of_the_whole_table),
        cmocka_unit_test(names_that_share_little_are_far),
        cmocka_unit_test(searches_return_the_first_of_the_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
