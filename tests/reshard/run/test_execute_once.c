/* Runs in worlds of several nodes: data that crosses the network once is completed inside the node,
 * in every run, and a failure in any wave leaves all destinations torn. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "reshard/sides.h"

#include <banyan/transport.h>

#include "reshard/run/execute.h"

static void take_nodes(int nodes)
{
    char text[16];
    snprintf(text, sizeof text, "%d", nodes);
    setenv("BANYAN_TEST_NODES", text, 1);
}

static size_t transfers_of_stage_1(const banyan_reshard_plan *plan)
{
    size_t count = 0;
    for (size_t i = 0; i < banyan_reshard_plan_send_count(plan); i++)
        count += banyan_reshard_plan_send(plan, i)->stage;
    for (size_t i = 0; i < banyan_reshard_plan_recv_count(plan); i++)
        count += banyan_reshard_plan_recv(plan, i)->stage;
    return count;
}

/* Add up over the world. */
static uint64_t sum_of(banyan_world *world, uint64_t mine)
{
    uint64_t all[16] = {0}, sum = 0;
    CHECK_OK(banyan_world_allgather(world, &mine, sizeof mine, all));
    for (int rank = 0; rank < banyan_world_size(world); rank++)
        sum += all[rank];
    return sum;
}

struct many {
    uint64_t seed;
    const char *backend;
    int cases;
};

static void run_case(banyan_world *world, uint64_t seed, banyan_copy_service *service,
                     uint64_t *staged)
{
    lane on = lane_random(world, seed, service);
    CHECK_OK(banyan_reshard_plan_prove(on.plan));
    uint64_t stage_1 = sum_of(world, transfers_of_stage_1(on.plan));
    *staged += stage_1;
    banyan_reshard_plan_bytes bytes = banyan_reshard_plan_count_bytes(on.plan);
    CHECK(sum_of(world, bytes.network_sent) == sum_of(world, bytes.network_received));
    CHECK(sum_of(world, bytes.inside_sent) == sum_of(world, bytes.inside_received));
    CHECK(sum_of(world, bytes.passed_on) == 0 || stage_1 > 0);
    for (int pass = 1; pass <= 3; pass++) {
        filled_poison(on.mine.destination);
        CHECK_OK(lane_run(&on, world, pass));
        lane_check(&on, pass, (uint64_t)pass);
        CHECK((on.plan->execution->waves.count > 1 && on.plan->execution->turns > 0) ||
              stage_1 == 0);
    }
    lane_end(&on);
}

static void run_many(banyan_world *world, void *context)
{
    const struct many *many = context;
    random_state random = random_from(many->seed);
    banyan_copy_service *service = open_service(world, many->backend);
    uint64_t staged = 0;
    for (int i = 0; i < many->cases; i++)
        run_case(world, random_next(&random), service, &staged);
    CHECK(staged > (uint64_t)many->cases, "%" PRIu64 " transfers of stage 1", staged);
    banyan_copy_service_close(service);
}

static void every_element_lands_over(const char *backend, int cases)
{
    random_state random = random_from(random_seed());
    static const int ranks[] = {4, 6, 7}, nodes[] = {2, 2, 3};
    for (int i = 0; i < 3; i++) {
        struct many many = {random_next(&random), backend, cases};
        take_nodes(nodes[i]);
        ranks_run(ranks[i], run_many, &many);
    }
}

static void every_element_lands_over_a_service_of_four_functions(void **state)
{
    (void)state;
    every_element_lands_over("mailbox", 12);
}

static void skip_without_network(void)
{
    const banyan_transport_ops *ops;
    if (banyan_transport_find("ucx", &ops) == BANYAN_OK)
        return;
    printf("skipped: %s\n", banyan_last_error());
    skip();
}

static void every_element_lands_over_the_pipeline(void **state)
{
    (void)state;
    skip_without_network();
    every_element_lands_over("pipeline", 8);
}

static void every_element_lands_over_direct(void **state)
{
    (void)state;
    skip_without_network();
    every_element_lands_over("direct", 8);
}

/* Rank 0 holds a matrix; the ranks of the other node need it whole, or the upper half of it. */
static random_case *halves_case(int world_size)
{
    random_case *made = calloc(1, sizeof *made);
    made->world_size = world_size;
    for (int t = 0; t < 4; t++) {
        made->tensors[t] = (case_tensor){"", {kDLBfloat, 16, 1}, 2, {64, 30}};
        snprintf(made->tensors[t].name, sizeof made->tensors[t].name, "layers.%d.w", t);
        made->tensor_count++;
        made->holdings[made->holding_count++] = (case_holding){
            .tensor = t, .box = {2, {0, 0}, {64, 30}}, .ranks = banyan_rank_set_one(0)};
        for (int rank = world_size / 2; rank < world_size; rank++)
            made->holdings[made->holding_count++] =
                (case_holding){.tensor = t,
                               .is_destination = true,
                               .box = {2, {0, 0}, {rank % 2 ? 32 : 64, 30}},
                               .ranks = banyan_rank_set_one(rank),
                               .seed = (uint64_t)rank};
    }
    return made;
}

static lane halves_make(banyan_world *world, const char *backend)
{
    lane made = {.of = halves_case(banyan_world_size(world))};
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.min_split_bytes = 64;
    made.mine = sides_make(made.of, world, MEMORY_ORDINARY);
    made.service = open_service(world, backend);
    CHECK_OK(banyan_reshard_plan_create(made.mine.source_layout, made.mine.destination_layout,
                                        world, &options, &made.plan));
    return made;
}

/* Three waves a run: the mailbox fails in the last one of the second run. */
static void fail_and_run_again(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    lane on = halves_make(world, "mailbox");
    CHECK(sum_of(world, transfers_of_stage_1(on.plan)) > 0);
    CHECK_OK(lane_run(&on, world, 1));
    lane_check(&on, 1, 1);
    CHECK(on.plan->execution->waves.count == 3);
    mailbox_trouble.fail_in_run = rank == 3 ? 6 : 0;
    CHECK_FAILS(lane_run(&on, world, 2), BANYAN_ERR_SYSTEM, "the mailbox is full");
    CHECK(banyan_tensors_get_state(on.mine.destination) == BANYAN_TENSORS_TORN);
    filled_poison(on.mine.destination);
    CHECK_OK(lane_run(&on, world, 3));
    lane_check(&on, 3, 2);
    lane_free(&on);
}

static void a_wave_that_fails_leaves_all_torn(void **state)
{
    (void)state;
    take_nodes(2);
    ranks_run(4, fail_and_run_again, NULL);
}

/* Rank 0 holds a matrix in BF16, and ranks 2 and 3, of another node, need it in another type. */
static banyan_layout *layout_of_matrix(int rank, int first, int count, DLDataType dtype)
{
    banyan_layout *layout;
    const int64_t shape[] = {64, 64};
    banyan_mesh mesh = {.ndim = 1, .extent = {count}, .first_rank = first};
    banyan_placement whole = {BANYAN_REPLICATE, 0};
    CHECK_OK(banyan_layout_create(&layout));
    if (rank >= first && rank < first + count)
        banyan_layout_add_sharded(layout, "w", dtype, 2, shape, &mesh, &whole, rank);
    CHECK_OK(banyan_layout_check(layout));
    return layout;
}

static void cast_for_a_node(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    banyan_layout *from = layout_of_matrix(rank, 0, 1, BANYAN_BF16);
    banyan_layout *to = layout_of_matrix(rank, 2, 2, BANYAN_F32);
    banyan_tensors *source, *destination;
    CHECK_OK(banyan_tensors_alloc(from, NULL, &source));
    CHECK_OK(banyan_tensors_alloc(to, NULL, &destination));
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    banyan_transform *transform;
    CHECK_OK(banyan_cast_create(NULL, &transform));
    options.transform = transform;
    banyan_reshard_plan *plan;
    CHECK_OK(banyan_reshard_plan_create(from, to, world, &options, &plan));
    banyan_reshard_plan_bytes bytes = banyan_reshard_plan_count_bytes(plan);
    CHECK(sum_of(world, bytes.network_received) == 64 * 64 * 2);
    CHECK(sum_of(world, bytes.passed_on) == 64 * 64 * 4 && bytes.fetched_again == 0);
    banyan_copy_service *service = open_service(world, "mailbox");
    for (int pass = 1; pass <= 2; pass++) {
        for (int i = 0; i < 64 * 64 && rank == 0; i++) /* integers that BF16 has */
            ((uint16_t *)banyan_tensors_get(source, 0)->data)[i] =
                (uint16_t)(0x3f80 + (i + pass) % 128);
        CHECK_OK(banyan_world_barrier(world));
        CHECK_OK(
            banyan_reshard_execute(plan, source, destination, service, world, transform, NULL));
        for (int i = 0; i < 64 * 64 && rank >= 2; i++) {
            float found = ((float *)banyan_tensors_get(destination, 0)->data)[i];
            float expected = 1 + (float)((i + pass) % 128) / 128;
            CHECK(found == expected, "element %d is %g, not %g", i, found, expected);
        }
    }
    banyan_reshard_plan_destroy(plan);
    banyan_copy_service_close(service);
    banyan_transform_destroy(transform);
    banyan_tensors_destroy(source);
    banyan_tensors_destroy(destination);
    banyan_layout_destroy(from);
    banyan_layout_destroy(to);
}

static void elements_that_were_cast_are_passed_on(void **state)
{
    (void)state;
    take_nodes(2);
    ranks_run(4, cast_for_a_node, NULL);
}

/* As above, from MXFP8. */
static void read_for_a_node(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    banyan_layout *from = layout_of_matrix(rank, 0, 1, BANYAN_F8_E4M3);
    banyan_layout *to = layout_of_matrix(rank, 2, 2, BANYAN_F32);
    banyan_tensors *source, *destination;
    uint8_t scales[64 * 2];
    const DLTensor bound = {.data = scales,
                            .device = {kDLCPU, 0},
                            .ndim = 2,
                            .dtype = BANYAN_U8,
                            .shape = (int64_t[]){64, 2}};
    CHECK_OK(banyan_tensors_alloc(from, NULL, &source));
    CHECK_OK(banyan_tensors_alloc(to, NULL, &destination));
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    banyan_mxfp8_options chosen = BANYAN_MXFP8_OPTIONS_INIT;
    chosen.side = BANYAN_TRANSFORM_AT_RECEIVER;
    banyan_transform *transform;
    CHECK_OK(banyan_mxfp8_create(&chosen, &transform));
    CHECK_OK(banyan_mxfp8_bind_scales(transform, "w", &bound));
    options.transform = transform;
    banyan_reshard_plan *plan;
    CHECK_OK(banyan_reshard_plan_create(from, to, world, &options, &plan));
    banyan_reshard_plan_bytes bytes = banyan_reshard_plan_count_bytes(plan);
    CHECK(sum_of(world, bytes.network_received) == 64 * 64 + 64 * 2);
    CHECK(sum_of(world, bytes.passed_on) == 64 * 64 * 4 && bytes.fetched_again == 0);
    banyan_copy_service *service = open_service(world, "mailbox");
    for (int pass = 1; pass <= 2; pass++) {
        if (rank == 0)
            memset(banyan_tensors_get(source, 0)->data, 0x38, 64 * 64); /* ones */
        for (int i = 0; i < 64 * 2; i++)
            scales[i] = (uint8_t)(127 + pass + i % 16);
        CHECK_OK(banyan_world_barrier(world));
        CHECK_OK(
            banyan_reshard_execute(plan, source, destination, service, world, transform, NULL));
        for (int i = 0; i < 64 * 64 && rank >= 2; i++) {
            float found = ((float *)banyan_tensors_get(destination, 0)->data)[i];
            float expected = (float)(1 << (pass + i / 32 % 16));
            CHECK(found == expected, "element %d is %g, not %g", i, found, expected);
        }
    }
    banyan_reshard_plan_destroy(plan);
    banyan_copy_service_close(service);
    banyan_transform_destroy(transform);
    banyan_tensors_destroy(source);
    banyan_tensors_destroy(destination);
    banyan_layout_destroy(from);
    banyan_layout_destroy(to);
}

static void values_that_were_read_from_mxfp8_are_passed_on(void **state)
{
    (void)state;
    take_nodes(2);
    ranks_run(4, read_for_a_node, NULL);
}

/* The piece begins within a block of its local tensor, behind padding. */
static banyan_layout *layout_of_cut_blocks(int rank)
{
    banyan_layout *layout;
    const banyan_box padding = {2, {0, 0}, {64, 8}};
    CHECK_OK(banyan_layout_create(&layout));
    if (rank >= 2) {
        banyan_piece piece = {.name = "w", .ndim = 2, .shape = {64, 64}, .dim_map = {0, 1}};
        piece.box = (banyan_box){2, {0, 0}, {64, 64}};
        piece.local_start[1] = 8;
        piece.tensor =
            banyan_layout_add_tensor(layout, "w", BANYAN_F8_E4M3, 2, (int64_t[]){64, 72});
        banyan_layout_add_piece(layout, &piece);
        banyan_layout_add_padding(layout, piece.tensor, &padding);
    }
    CHECK_OK(banyan_layout_check(layout));
    return layout;
}

static void quantize_cut_blocks(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    banyan_layout *from = layout_of_matrix(rank, 0, 1, BANYAN_BF16);
    banyan_layout *to = layout_of_cut_blocks(rank);
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    banyan_transform *transform;
    CHECK_OK(banyan_mxfp8_create(NULL, &transform));
    options.transform = transform;
    banyan_reshard_plan *plan;
    CHECK_OK(banyan_reshard_plan_create(from, to, world, &options, &plan));
    banyan_reshard_plan_bytes bytes = banyan_reshard_plan_count_bytes(plan);
    CHECK(bytes.fetched_again == (rank >= 2 ? 64 * 64 * 2 : 0) && bytes.passed_on == 0);
    CHECK(bytes.network_received == bytes.fetched_again);
    banyan_reshard_plan_destroy(plan);
    banyan_transform_destroy(transform);
    banyan_layout_destroy(from);
    banyan_layout_destroy(to);
}

static void each_rank_fetches_a_box_that_cuts_blocks(void **state)
{
    (void)state;
    take_nodes(2);
    ranks_run(4, quantize_cut_blocks, NULL);
}

/* A rank that others wait for in a later wave is lost, after all have left the barrier. */
static void lose_a_rank(int rank, int count, const banyan_unique_id *id, void *context)
{
    _Atomic int *left = context;
    banyan_world *world = ranks_open_world(rank, count, id, UINT64_C(20000000000));
    lane on = halves_make(world, "pipeline");
    CHECK_OK(lane_run(&on, world, 1));
    lane_check(&on, 1, 1);
    filled_make(on.mine.source_layout, on.mine.source, 2);
    CHECK_OK(banyan_world_barrier(world));
    (*left)++;
    if (rank == 3) {
        while (*left < count)
            usleep(1000);
        raise(SIGKILL);
    }
    CHECK_FAILS(banyan_reshard_execute(on.plan, on.mine.source, on.mine.destination, on.service,
                                       world, NULL, NULL),
                BANYAN_ERR_PEER_LOST, "rank 3");
    CHECK(banyan_tensors_get_state(on.mine.destination) != BANYAN_TENSORS_WHOLE);
    lane_free(&on);
    (void)banyan_world_close(world);
}

static void every_rank_reports_a_lost_one(void **state)
{
    (void)state;
    int statuses[4];
    skip_without_network();
    _Atomic int *left =
        mmap(NULL, sizeof *left, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(left != MAP_FAILED);
    ranks_fork(4, lose_a_rank, left, statuses);
    munmap(left, sizeof *left);
    for (int rank = 0; rank < 3; rank++)
        CHECK(WIFEXITED(statuses[rank]) && WEXITSTATUS(statuses[rank]) == 0);
    CHECK(WIFSIGNALED(statuses[3]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_lands_over_a_service_of_four_functions),
        cmocka_unit_test(every_element_lands_over_the_pipeline),
        cmocka_unit_test(every_element_lands_over_direct),
        cmocka_unit_test(a_wave_that_fails_leaves_all_torn),
        cmocka_unit_test(elements_that_were_cast_are_passed_on),
        cmocka_unit_test(values_that_were_read_from_mxfp8_are_passed_on),
        cmocka_unit_test(each_rank_fetches_a_box_that_cuts_blocks),
        cmocka_unit_test(every_rank_reports_a_lost_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
