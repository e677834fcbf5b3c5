#include "support/test.h"

#include "world/bootstrap/rendezvous.h"

#define SECRET "00112233445566778899aAbBcCdDeEfF"
#define LAUNCH(rank, size) "BANYAN_RANK=" rank, "BANYAN_WORLD_SIZE=" size
#define LAUNCH_LOCAL(rank, size) "BANYAN_LOCAL_RANK=" rank, "BANYAN_LOCAL_SIZE=" size
#define TORCH(rank, size) "RANK=" rank, "WORLD_SIZE=" size
#define TORCH_LOCAL(rank, size) "LOCAL_RANK=" rank, "LOCAL_WORLD_SIZE=" size
#define MASTER "MASTER_ADDR=10.1.2.3", "MASTER_PORT=29500"

static const banyan_unique_id some_id = {"some id"};

/* Every variable with a meaning for a job. */
static const char *const variables[] = {"BANYAN_RANK",
                                        "BANYAN_WORLD_SIZE",
                                        "BANYAN_LOCAL_RANK",
                                        "BANYAN_LOCAL_SIZE",
                                        "BANYAN_JOB",
                                        "BANYAN_SECRET",
                                        "BANYAN_PORT",
                                        "RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "TORCHELASTIC_RUN_ID",
                                        "TORCHELASTIC_RESTART_COUNT",
                                        "PMIX_RANK",
                                        "PMIX_NAMESPACE"};

static void set_environment(const char *const *settings)
{
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
        unsetenv(variables[i]);
    for (; *settings; settings++) {
        char text[512];
        snprintf(text, sizeof text, "%s", *settings);
        char *value = strchr(text, '=');
        *value++ = '\0';
        setenv(text, value, 1);
    }
}

struct found_case {
    const char *settings[12];
    banyan_world_options options;
    int rank, world_size, local_rank, local_size;
    const char *job, *address;
    int port;
    bool has_secret, has_unique_id;
};

#define OPTIONS(...)                                                                               \
    {                                                                                              \
        .size = sizeof(banyan_world_options), __VA_ARGS__                                          \
    }
#define NO_OPTIONS OPTIONS(.rank = -1, .world_size = -1)

static const struct found_case found_cases[] = {
    /* no variable and no option */
    {{NULL}, NO_OPTIONS, 0, 1, -1, -1, "", "", 0, false, false},
    {{"MASTER_ADDR=somewhere"}, NO_OPTIONS, 0, 1, -1, -1, "", "somewhere", 0, false, false},
    /* banyan launch */
    {{LAUNCH("2", "4"), LAUNCH_LOCAL("2", "4"), "BANYAN_JOB=j", "BANYAN_SECRET=" SECRET},
     NO_OPTIONS,
     2,
     4,
     2,
     4,
     "j",
     "",
     0,
     true,
     false},
    {{LAUNCH("5", "8"), LAUNCH_LOCAL("1", "4"), "MASTER_ADDR=node0", "BANYAN_PORT=4711",
      "BANYAN_SECRET=" SECRET},
     NO_OPTIONS,
     5,
     8,
     1,
     4,
     "",
     "node0",
     4711,
     true,
     false},
    {{LAUNCH("1", "2"), "MASTER_ADDR=127.0.0.1", "BANYAN_PORT=65535"},
     NO_OPTIONS,
     1,
     2,
     -1,
     -1,
     "",
     "127.0.0.1",
     65535,
     false,
     false},
    {{LAUNCH("0", "1")}, NO_OPTIONS, 0, 1, -1, -1, "", "", 0, false, false},
    /* torchrun, with a name made of values that are equal on every rank */
    {{TORCH("3", "4"), TORCH_LOCAL("3", "4"), MASTER},
     NO_OPTIONS,
     3,
     4,
     3,
     4,
     "torchrun:10.1.2.3:29500::",
     "10.1.2.3",
     0,
     false,
     false},
    {{TORCH("0", "2"), TORCH_LOCAL("0", "2"), MASTER, "TORCHELASTIC_RUN_ID=r7",
      "TORCHELASTIC_RESTART_COUNT=3"},
     NO_OPTIONS,
     0,
     2,
     0,
     2,
     "torchrun:10.1.2.3:29500:r7:3",
     "10.1.2.3",
     0,
     false,
     false},
    {{TORCH("0", "16"), TORCH_LOCAL("0", "8"), MASTER, "BANYAN_PORT=5000"},
     NO_OPTIONS,
     0,
     16,
     0,
     8,
     "torchrun:10.1.2.3:29500::",
     "10.1.2.3",
     5000,
     false,
     false},
    {{TORCH("0", "2"), TORCH_LOCAL("0", "2"), MASTER, "BANYAN_JOB=mine"},
     NO_OPTIONS,
     0,
     2,
     0,
     2,
     "mine",
     "10.1.2.3",
     0,
     false,
     false},
    /* banyan launch precedes torchrun, whatever its values */
    {{LAUNCH("1", "2"), LAUNCH_LOCAL("1", "2"), "BANYAN_JOB=j", TORCH("7", "rubbish")},
     NO_OPTIONS,
     1,
     2,
     1,
     2,
     "j",
     "",
     0,
     false,
     false},
    /* the options precede everything */
    {{"RANK=rubbish"}, OPTIONS(.rank = 0, .world_size = 1), 0, 1, -1, -1, "", "", 0, false, false},
    {{LAUNCH("x", "y")},
     OPTIONS(.rank = 2, .world_size = 3, .unique_id = &some_id),
     2,
     3,
     -1,
     -1,
     "",
     "",
     0,
     false,
     true},
    {{LAUNCH("1", "4"), LAUNCH_LOCAL("1", "4"), "BANYAN_JOB=j"},
     OPTIONS(.rank = 1, .world_size = -1),
     1,
     4,
     1,
     4,
     "j",
     "",
     0,
     false,
     false},
    {{LAUNCH("1", "4"), LAUNCH_LOCAL("1", "4"), "BANYAN_JOB=j", "MASTER_ADDR=there",
      "BANYAN_PORT=1"},
     OPTIONS(.rank = 3, .world_size = -1, .address = "here", .port = 2),
     3,
     4,
     -1,
     -1,
     "",
     "here",
     2,
     false,
     false},
    {{TORCH("1", "4")},
     OPTIONS(.rank = -1, .world_size = -1, .unique_id = &some_id),
     1,
     4,
     -1,
     -1,
     "",
     "",
     0,
     false,
     true},
    {{"BANYAN_SECRET=rubbish"},
     OPTIONS(.rank = -1, .world_size = -1, .secret = SECRET),
     0,
     1,
     -1,
     -1,
     "",
     "",
     0,
     true,
     false},
};

static void sources_are_read_in_their_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(found_cases) / sizeof(found_cases[0]); i++) {
        const struct found_case *expected = &found_cases[i];
        struct identity found;
        set_environment(expected->settings);
        CHECK_OK(identity_discover(&expected->options, &found));
        CHECK(found.rank == expected->rank && found.world_size == expected->world_size,
              "case %zu: %d of %d", i, found.rank, found.world_size);
        CHECK(found.local_rank == expected->local_rank && found.local_size == expected->local_size,
              "case %zu: %d of %d", i, found.local_rank, found.local_size);
        CHECK(strcmp(found.job, expected->job) == 0, "case %zu: %s", i, found.job);
        CHECK(strcmp(found.address, expected->address) == 0, "case %zu: %s", i, found.address);
        CHECK(found.port == expected->port, "case %zu: %d", i, found.port);
        CHECK(found.has_secret == expected->has_secret, "case %zu", i);
        CHECK(found.has_unique_id == expected->has_unique_id, "case %zu", i);
        if (found.has_unique_id)
            assert_memory_equal(&found.unique_id, &some_id, sizeof some_id);
    }
}

static void a_secret_is_32_digits_of_either_case(void **state)
{
    (void)state;
    struct identity found;
    set_environment((const char *const[]){"BANYAN_SECRET=" SECRET, NULL});
    CHECK_OK(identity_discover(NULL, &found));
    for (unsigned i = 0; i < IDENTITY_SECRET_BYTES; i++)
        assert_int_equal(found.secret[i], i * 0x11);
}

struct refused_case {
    const char *settings[12];
    banyan_world_options options;
    banyan_status status;
    const char *parts[2];
};

static const struct refused_case refused_cases[] = {
    /* half set */
    {{"BANYAN_RANK=3"},
     NO_OPTIONS,
     BANYAN_ERR_INVALID,
     {"BANYAN_RANK is \"3\"", "BANYAN_WORLD_SIZE is not set"}},
    {{"WORLD_SIZE=3"}, NO_OPTIONS, BANYAN_ERR_INVALID, {"WORLD_SIZE is \"3\"", "RANK is not set"}},
    {{TORCH("0", "2"), "LOCAL_RANK=0"},
     NO_OPTIONS,
     BANYAN_ERR_INVALID,
     {"LOCAL_RANK is \"0\"", "LOCAL_WORLD_SIZE is not set"}},
    {{LAUNCH("0", "2"), "BANYAN_LOCAL_SIZE=2"},
     NO_OPTIONS,
     BANYAN_ERR_INVALID,
     {"BANYAN_LOCAL_SIZE is \"2\"", "BANYAN_LOCAL_RANK is not set"}},
    {{NULL},
     OPTIONS(.rank = 3, .world_size = -1),
     BANYAN_ERR_INVALID,
     {"rank 3", "nothing gives the world size"}},
    {{NULL},
     OPTIONS(.rank = -1, .world_size = 5),
     BANYAN_ERR_INVALID,
     {"the world size 5", "nothing gives the rank"}},
    /* no numbers */
    {{TORCH("", "2")}, NO_OPTIONS, BANYAN_ERR_INVALID, {"RANK is \"\"", "not a number from 0"}},
    {{TORCH("1x", "2")}, NO_OPTIONS, BANYAN_ERR_INVALID, {"RANK is \"1x\"", "not a number"}},
    {{TORCH(" 1", "2")}, NO_OPTIONS, BANYAN_ERR_INVALID, {"RANK is \" 1\"", "not a number"}},
    {{TORCH("+1", "2")}, NO_OPTIONS, BANYAN_ERR_INVALID, {"RANK is \"+1\"", "not a number"}},
    {{TORCH("0", "two")}, NO_OPTIONS, BANYAN_ERR_INVALID, {"WORLD_SIZE is \"two\"", "from 1"}},
    {{"BANYAN_PORT=http"}, NO_OPTIONS, BANYAN_ERR_INVALID, {"BANYAN_PORT is \"http\"", "65535"}},
    /* out of range */
    {{TORCH("-1", "2")}, NO_OPTIONS, BANYAN_ERR_INVALID, {"RANK is \"-1\"", "from 0"}},
    {{TORCH("0", "0")}, NO_OPTIONS, BANYAN_ERR_INVALID, {"WORLD_SIZE is \"0\"", "from 1"}},
    {{TORCH("0", "99999999999999999999")},
     NO_OPTIONS,
     BANYAN_ERR_INVALID,
     {"WORLD_SIZE is \"99999999999999999999\"", "2147483647"}},
    {{"BANYAN_PORT=65536"}, NO_OPTIONS, BANYAN_ERR_INVALID, {"BANYAN_PORT is \"65536\"", "65535"}},
    {{"BANYAN_PORT=0"}, NO_OPTIONS, BANYAN_ERR_INVALID, {"BANYAN_PORT is \"0\"", "from 1"}},
    {{NULL},
     OPTIONS(.rank = 0, .world_size = 1, .port = 70000),
     BANYAN_ERR_INVALID,
     {"port 70000", ""}},
    {{NULL}, OPTIONS(.rank = -2, .world_size = -1), BANYAN_ERR_INVALID, {"rank -2", ""}},
    {{NULL}, OPTIONS(.rank = 0, .world_size = 0), BANYAN_ERR_INVALID, {"rank 0", "a world of 0"}},
    /* contradictions */
    {{LAUNCH("2", "2")},
     NO_OPTIONS,
     BANYAN_ERR_INVALID,
     {"BANYAN_RANK is \"2\"", "BANYAN_WORLD_SIZE is \"2\""}},
    {{TORCH("0", "2"), TORCH_LOCAL("2", "2")},
     NO_OPTIONS,
     BANYAN_ERR_INVALID,
     {"LOCAL_RANK is \"2\"", "LOCAL_WORLD_SIZE is \"2\""}},
    {{TORCH("0", "2"), TORCH_LOCAL("0", "3")},
     NO_OPTIONS,
     BANYAN_ERR_INVALID,
     {"LOCAL_WORLD_SIZE is \"3\"", "WORLD_SIZE is \"2\""}},
    {{TORCH("1", "8")},
     OPTIONS(.rank = -1, .world_size = 1),
     BANYAN_ERR_INVALID,
     {"rank 1", "a world of 1"}},
    {{LAUNCH("1", "4"), LAUNCH_LOCAL("1", "4"), "BANYAN_JOB=j"},
     OPTIONS(.rank = 2, .world_size = 4),
     BANYAN_ERR_INVALID,
     {"rank 2 of 4 cannot find the others", "no MASTER_ADDR"}},
    /* not enough for a rendezvous */
    {{LAUNCH("0", "2")}, NO_OPTIONS, BANYAN_ERR_INVALID, {"rank 0 of 2", "BANYAN_JOB"}},
    {{LAUNCH("0", "2"), "BANYAN_JOB=j"},
     NO_OPTIONS,
     BANYAN_ERR_INVALID,
     {"not known to have all ranks", "MASTER_ADDR"}},
    {{TORCH("0", "4"), TORCH_LOCAL("0", "2"), MASTER},
     NO_OPTIONS,
     BANYAN_ERR_INVALID,
     {"rank 0 of 4", "no BANYAN_PORT"}},
    {{TORCH("0", "4"), TORCH_LOCAL("0", "4")},
     NO_OPTIONS,
     BANYAN_ERR_INVALID,
     {"rank 0 of 4", "no name of the job"}},
    /* secrets */
    {{"BANYAN_SECRET=abc"},
     NO_OPTIONS,
     BANYAN_ERR_INVALID,
     {"BANYAN_SECRET is not 32 hex", "3 characters"}},
    {{"BANYAN_SECRET=" SECRET "0"},
     NO_OPTIONS,
     BANYAN_ERR_INVALID,
     {"BANYAN_SECRET is not 32 hex", "33 characters"}},
    {{"BANYAN_SECRET=0011223344556677889g112233445566"},
     NO_OPTIONS,
     BANYAN_ERR_INVALID,
     {"BANYAN_SECRET is not 32 hex", "the one at 19 is wrong"}},
    {{NULL},
     OPTIONS(.rank = -1, .world_size = -1, .secret = ""),
     BANYAN_ERR_INVALID,
     {"the secret in the options", "0 characters"}},
};

static void wrong_variables_are_refused_by_name_and_value(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(refused_cases) / sizeof(refused_cases[0]); i++) {
        const struct refused_case *refused = &refused_cases[i];
        struct identity found = {.rank = 12345};
        set_environment(refused->settings);
        for (int part = 0; part < 2; part++)
            CHECK_FAILS(identity_discover(&refused->options, &found), refused->status,
                        refused->parts[part]);
        CHECK(found.rank == 12345, "case %zu set its output", i);
    }
}

static void texts_that_are_too_long_are_refused(void **state)
{
    (void)state;
    struct identity found;
    char text[400] = "BANYAN_JOB=";
    memset(text + strlen(text), 'x', 300);
    set_environment((const char *const[]){LAUNCH("0", "2"), LAUNCH_LOCAL("0", "2"), text, NULL});
    CHECK_FAILS(identity_discover(NULL, &found), BANYAN_ERR_INVALID, "BANYAN_JOB has 300");
    memcpy(text, "MASTER_ADDR=", 12);
    set_environment(
        (const char *const[]){TORCH("0", "2"), TORCH_LOCAL("0", "2"), text, "MASTER_PORT=1", NULL});
    CHECK_FAILS(identity_discover(NULL, &found), BANYAN_ERR_INVALID, "MASTER_ADDR");
    set_environment((const char *const[]){text, NULL});
    CHECK_FAILS(identity_discover(NULL, &found), BANYAN_ERR_INVALID, "MASTER_ADDR has 299");
}

static void the_message_does_not_contain_the_secret(void **state)
{
    (void)state;
    struct identity found;
    set_environment((const char *const[]){"BANYAN_SECRET=deadbeef", NULL});
    CHECK_FAILS(identity_discover(NULL, &found), BANYAN_ERR_INVALID, "BANYAN_SECRET");
    assert_null(strstr(banyan_last_error(), "deadbeef"));
}

static void a_job_manager_whose_module_is_missing_is_an_error(void **state)
{
    (void)state;
    struct identity found;
    set_environment((const char *const[]){"PMIX_RANK=0", "PMIX_NAMESPACE=nobody", NULL});
    setenv("BANYAN_MODULE_PATH", "/nonexistent", 1);
    CHECK_FAILS(identity_discover(NULL, &found), BANYAN_ERR_UNSUPPORTED, "module pmix");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources_are_read_in_their_order),
        cmocka_unit_test(a_secret_is_32_digits_of_either_case),
        cmocka_unit_test(wrong_variables_are_refused_by_name_and_value),
        cmocka_unit_test(texts_that_are_too_long_are_refused),
        cmocka_unit_test(the_message_does_not_contain_the_secret),
        cmocka_unit_test(a_job_manager_whose_module_is_missing_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
