/* The copy backend "mpi". The program starts itself through mpirun, once for each mode. */
#include "support/test.h"

#include <sys/wait.h>
#include <unistd.h>

#include "copy/traffic.h"

static banyan_copy_service *service_of(banyan_world *world)
{
    banyan_copy_service *service;
    CHECK_OK(banyan_copy_service_open(world, "mpi", NULL, &service));
    CHECK(strcmp(banyan_copy_service_name(service), "mpi") == 0);
    return service;
}

static void move_traffic(banyan_world *world, uint64_t seed, traffic_ids ids)
{
    banyan_copy_service *service = service_of(world);
    for (uint64_t batch = 0; batch < 3; batch++) {
        traffic *all = traffic_make(world, seed + batch, 60, ids, 5000);
        banyan_copy_schedule *schedule;
        traffic_submit(all, service);
        CHECK_OK(banyan_copy_service_prepare(service, &schedule));
        for (uint64_t run = 0; run < 10; run++) {
            traffic_fill(all, run);
            CHECK_OK(banyan_copy_schedule_run(schedule, NULL));
            traffic_check(all, run);
        }
        banyan_copy_schedule_destroy(schedule);
        traffic_free(all);
    }
    banyan_copy_service_close(service);
}

static void move_nothing_that_does_not_match(banyan_world *world)
{
    int rank = banyan_world_rank(world);
    banyan_copy_service *service = service_of(world);
    traffic *all = traffic_make(world, 7, 20, TRAFFIC_BY_ID, 100);
    int64_t shape[] = {3};
    char data[12];
    DLTensor tensor = {
        .data = data, .device = {kDLCPU, 0}, .ndim = 1, .dtype = BANYAN_F32, .shape = shape};
    traffic_fill(all, 0);
    traffic_submit(all, service);
    if (rank == 1)
        CHECK_OK(banyan_copy_service_submit_send(service, &tensor, 0, 1000));
    CHECK_FAILS(banyan_copy_service_run(service, NULL), BANYAN_ERR_MISMATCH, "mpi: rank ");
    CHECK(strstr(banyan_last_error(), "task ids 1000"), "%s", banyan_last_error());
    traffic_check_untouched(all);
    traffic_submit(all, service);
    CHECK_OK(banyan_copy_service_run(service, NULL));
    traffic_check(all, 0);
    traffic_free(all);
    banyan_copy_service_close(service);
}

/* Longer than the limit for one message. */
static void move_a_large_tensor(banyan_world *world)
{
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    banyan_copy_service *service = service_of(world);
    int64_t shape[] = {(INT64_C(257) << 20) + 5};
    DLTensor tensor = {.device = {kDLCPU, 0}, .ndim = 1, .dtype = BANYAN_U8, .shape = shape};
    unsigned char *data = malloc((size_t)shape[0]);
    tensor.data = data;
    for (int64_t i = 0; i < shape[0]; i++)
        data[i] = rank == 0 ? (unsigned char)(i * 7 + i / 251) : 0;
    if (rank == 0)
        CHECK_OK(banyan_copy_service_submit_send(service, &tensor, size - 1, 1));
    if (rank == size - 1)
        CHECK_OK(banyan_copy_service_submit_recv(service, &tensor, 0, 1));
    CHECK_OK(banyan_copy_service_run(service, NULL));
    for (int64_t i = 0; i < shape[0] && rank == size - 1; i++)
        CHECK(data[i] == (unsigned char)(i * 7 + i / 251), "byte %d", (int)i);
    free(data);
    banyan_copy_service_close(service);
}

static void move_in_a_part_of_the_world(banyan_world *world, uint64_t seed)
{
    const int ranks[] = {3, 1};
    int rank = banyan_world_rank(world);
    if (rank != 1 && rank != 3)
        return;
    banyan_world *sub;
    CHECK_OK(banyan_world_split(world, ranks, 2, &sub));
    move_traffic(sub, seed, TRAFFIC_BY_ID);
    CHECK_OK(banyan_world_close(sub));
}

static int move_everything(uint64_t seed)
{
    banyan_world *world;
    CHECK_OK(banyan_world_open(NULL, &world));
    CHECK(banyan_world_size(world) == 4);
    move_traffic(world, seed, TRAFFIC_BY_ID);
    move_traffic(world, seed + 100, TRAFFIC_BY_ORDER);
    move_in_a_part_of_the_world(world, seed + 200);
    move_nothing_that_does_not_match(world);
    move_a_large_tensor(world);
    CHECK_OK(banyan_world_close(world));
    return 0;
}

/* Rank 1 enters no run: the deadline passes, and rank 0 reports the rank it waited for. */
static int wait_in_vain(void)
{
    banyan_world *world;
    CHECK_OK(banyan_world_open(NULL, &world));
    banyan_copy_service *service = service_of(world);
    banyan_copy_schedule *schedule;
    static char data[1 << 20];
    int64_t shape[] = {sizeof data};
    DLTensor tensor = {
        .data = data, .device = {kDLCPU, 0}, .ndim = 1, .dtype = BANYAN_U8, .shape = shape};
    if (banyan_world_rank(world) == 0)
        CHECK_OK(banyan_copy_service_submit_recv(service, &tensor, 1, 1));
    else
        CHECK_OK(banyan_copy_service_submit_send(service, &tensor, 0, 1));
    CHECK_OK(banyan_copy_service_prepare(service, &schedule));
    if (banyan_world_rank(world) == 0) {
        CHECK_FAILS(banyan_copy_schedule_run(schedule, NULL), BANYAN_ERR_TIMEOUT,
                    " for a message from rank 1 (mpi); rank 1 (pid ");
        printf("waited in vain\n");
        fflush(stdout);
    } else {
        sleep(3);
    }
    banyan_copy_schedule_destroy(schedule);
    banyan_copy_service_close(service);
    _exit(0);
}

/* Each rank is a node: without UCX, MPI is the default for tensors between them. */
static int move_between_nodes(uint64_t seed)
{
    banyan_world *world;
    char node[32], secret[] = "00112233445566778899aabbccddeeff";
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    snprintf(node, sizeof node, "node %d", (int)getpid());
    options.node = node;
    options.secret = secret;
    setenv("BANYAN_UCX", "/no/such/library", 1);
    CHECK_OK(banyan_world_open(&options, &world));
    CHECK(banyan_world_node_count(world) == banyan_world_size(world));
    banyan_copy_service *service;
    CHECK_OK(banyan_copy_service_open(world, NULL, NULL, &service));
    CHECK(strcmp(banyan_copy_service_name(service), "mpi") == 0);
    traffic *all = traffic_make(world, seed, 60, TRAFFIC_BY_ID, 5000);
    traffic_submit(all, service);
    traffic_fill(all, 0);
    CHECK_OK(banyan_copy_service_run(service, NULL));
    traffic_check(all, 0);
    traffic_free(all);
    banyan_copy_service_close(service);
    CHECK_OK(banyan_world_close(world));
    return 0;
}

static const char *program;

/* Run a mode under mpirun; print its output, and search it for `wanted`. */
static int mpirun(int count, const char *mode, const char *wanted, bool *found)
{
    char command[1024], line[512];
    snprintf(command, sizeof command, "mpirun --quiet --oversubscribe -n %d '%s' %s %llu 2>&1",
             count, program, mode, (unsigned long long)random_seed());
    FILE *output = popen(command, "r");
    assert_non_null(output);
    *found = false;
    while (fgets(line, sizeof line, output)) {
        fputs(line, stdout);
        *found |= strstr(line, wanted) != NULL;
    }
    return pclose(output);
}

static void every_element_arrives_through_mpi(void **state)
{
    (void)state;
    bool found;
    assert_int_equal(mpirun(4, "move", "", &found), 0);
}

static void nodes_take_mpi_by_default(void **state)
{
    (void)state;
    bool found;
    assert_int_equal(mpirun(3, "nodes", "", &found), 0);
}

static void a_rank_that_does_not_come_is_named_after_the_deadline(void **state)
{
    (void)state;
    bool found;
    setenv("BANYAN_TIMEOUT", "1", 1);
    mpirun(2, "wait", "waited in vain", &found);
    unsetenv("BANYAN_TIMEOUT");
    assert_true(found);
}

static void open_without_mpi(banyan_world *world, void *context)
{
    (void)context;
    banyan_copy_service *service;
    CHECK_FAILS(banyan_copy_service_open(world, "mpi", NULL, &service), BANYAN_ERR_UNSUPPORTED,
                "was not started under MPI");
}

static void a_process_that_mpi_did_not_start_is_told_so(void **state)
{
    (void)state;
    ranks_run(2, open_without_mpi, NULL);
}

static bool can_run(void)
{
    if (access(BANYAN_BINARY_DIR "/lib/libbanyan_mpi.so", R_OK) != 0)
        printf("skipped: this build has no MPI module\n");
    else if (system("mpirun --version >/dev/null 2>&1") != 0)
        printf("skipped: there is no mpirun\n");
    else
        return true;
    return false;
}

int main(int argc, char **argv)
{
    program = argv[0];
    setenv("BANYAN_MODULE_PATH", BANYAN_BINARY_DIR "/lib", 1);
    if (argc == 3) {
        ranks_become_child();
        if (strcmp(argv[1], "wait") == 0)
            return wait_in_vain();
        if (strcmp(argv[1], "nodes") == 0)
            return move_between_nodes(strtoull(argv[2], NULL, 10));
        return move_everything(strtoull(argv[2], NULL, 10));
    }
    if (!can_run())
        return 77;
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    /* Ignore Open MPI's own leaks and locks. */
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
    setenv("TSAN_OPTIONS", "detect_deadlocks=0:ignore_noninstrumented_modules=1", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_arrives_through_mpi),
        cmocka_unit_test(nodes_take_mpi_by_default),
        cmocka_unit_test(a_rank_that_does_not_come_is_named_after_the_deadline),
        cmocka_unit_test(a_process_that_mpi_did_not_start_is_told_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
