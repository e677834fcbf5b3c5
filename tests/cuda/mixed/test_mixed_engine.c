/* The fused modes of mixed collectives on GPUs: call after call, in graphs, long ones, and
 * failures. */
#include <signal.h>
#include <unistd.h>

#include "core/containers.h"
#include "cuda/mixed_player.h"

#define CALLS 12
#define GRAPHS 3
#define RANKS_MOST 8

/* Put inputs of sums and their outputs in place. */
static void put_in_place(struct one_call *c)
{
    char *copy = gpu_read(c->call.input, c->input_bytes);
    gpu_copy(c->call.output, copy, c->input_bytes);
    c->call.input = c->call.output;
    free(copy);
}

static void run_calls(struct player *p, uint64_t most_elems)
{
    struct one_call calls[CALLS];
    for (int i = 0; i < CALLS; i++) {
        make_call(p, most_elems, &calls[i]);
        if (calls[i].call.op == BANYAN_MIXED_ALLREDUCE && i % 3 == 0)
            put_in_place(&calls[i]);
    }
    for (int i = 0; i < CALLS; i++)
        CHECK_OK(run(p, &calls[i]));
    gpu_stream_wait(p->setup.device, p->stream);
    check_fine(p);
    for (int i = 0; i < CALLS; i++) {
        check_call(p, &calls[i]);
        free_call(p, &calls[i]);
    }
}

/* Graphs of several calls, launched in any order with calls between them. */
static void run_graphs(struct player *p, uint64_t most_elems)
{
    struct one_call calls[CALLS];
    void *graphs[GRAPHS];
    DLDevice device = p->setup.device;
    for (int i = 0; i < CALLS; i++)
        make_call(p, most_elems, &calls[i]);
    for (int g = 0; g < GRAPHS; g++) {
        gpu_capture_begin(device, p->stream);
        for (int i = g; i < CALLS; i += GRAPHS)
            CHECK_OK(run(p, &calls[i]));
        graphs[g] = gpu_capture_end(device, p->stream);
    }
    for (int turn = 0; turn < 10; turn++) {
        gpu_graph_launch(device, graphs[turn < GRAPHS ? turn : random_between(&p->random, 0, 2)],
                         p->stream);
        if (random_between(&p->random, 0, 1) == 0)
            CHECK_OK(run(p, &calls[random_between(&p->random, 0, CALLS - 1)]));
    }
    gpu_stream_wait(device, p->stream);
    check_fine(p);
    for (int i = 0; i < CALLS; i++)
        check_call(p, &calls[i]);
    for (int g = 0; g < GRAPHS; g++)
        gpu_graph_destroy(device, graphs[g]);
    for (int i = 0; i < CALLS; i++)
        free_call(p, &calls[i]);
}

static void run_calls_and_graphs(struct player *p)
{
    run_calls(p, 3000);
    run_graphs(p, 3000);
}

/* Cases with equal numbers of ranks share a world, since real GPUs take long to open one. */
typedef struct stage {
    struct case_of of;
    void (*play)(struct player *p);
} stage;
typedef ARRAY(stage) stage_list;

static void run_stages(banyan_world *world, void *context)
{
    const stage_list *stages = context;
    for (size_t i = 0; i < stages->count; i++) {
        const stage *at = &stages->data[i];
        struct player p;
        if (at->of.tp * at->of.dp != banyan_world_size(world))
            continue;
        enter(&p, world, &at->of);
        at->play(&p);
        leave(&p);
    }
}

/* Also frees them. */
static void run_all(stage_list *stages)
{
    for (int ranks = 1; ranks <= RANKS_MOST; ranks++) {
        bool any = false;
        for (size_t i = 0; i < stages->count; i++)
            any |= stages->data[i].of.tp * stages->data[i].of.dp == ranks;
        if (any)
            ranks_run(ranks, run_stages, stages);
    }
    array_free(stages);
}

static void add(stage_list *stages, struct case_of of, void (*play)(struct player *p))
{
    CHECK(array_push(stages, (stage){of, play}));
}

static const DLDataType dtypes[] = {{kDLBfloat, 16, 1}, {kDLFloat, 16, 1}, {kDLFloat, 32, 1}};
static const int grids[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 4}};

static struct case_of case_on(const int *grid, size_t dtype)
{
    return (struct case_of){.tp = grid[0], .dp = grid[1], .dtype = dtypes[dtype % 3]};
}

static void calls_and_graphs_follow_each_other_on_every_grid(void **state)
{
    stage_list stages = {0};
    (void)state;
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++)
        for (size_t d = 0; d < 3; d++)
            add(&stages, case_on(grids[g], d), run_calls_and_graphs);
    run_all(&stages);
}

/* More ranks than a thread awaits at a time; on hardware they would share GPUs. */
static void ranks_may_be_many(void **state)
{
    static const int many[][2] = {{5, 1}, {3, 2}, {2, 3}, {1, 6}, {4, 2}};
    stage_list stages = {0};
    (void)state;
    if (!gpu_worlds_are_cheap())
        skip();
    for (size_t g = 0; g < sizeof many / sizeof *many; g++)
        add(&stages, case_on(many[g], g), run_calls_and_graphs);
    run_all(&stages);
}

static void ranks_may_be_threads(void **state)
{
    stage_list stages = {0};
    (void)state;
    add(&stages, (struct case_of){.tp = 2, .dp = 2, .dtype = dtypes[0]}, run_calls_and_graphs);
    ranks_run_threads(4, run_stages, &stages);
    array_free(&stages);
}

/* A call that takes its full share of the device, followed by a short one, which may begin early.
 * The last rank arrives after the others' calls have begun. */
static void run_long_before_short(struct player *p)
{
    struct one_call calls[2];
    for (int i = 0; i < 2; i++) {
        p->more_elems = i == 0 ? 5000 : 0;
        make_call(p, 500, &calls[i]);
        calls[i].call.mode = BANYAN_MIXED_ONE_SHOT;
    }
    if (p->rank == p->ranks - 1) {
        CHECK_OK(banyan_world_barrier(p->world));
        usleep(100000);
    }
    for (int i = 0; i < 2; i++)
        CHECK_OK(run(p, &calls[i]));
    if (p->rank != p->ranks - 1)
        CHECK_OK(banyan_world_barrier(p->world));
    gpu_stream_wait(p->setup.device, p->stream);
    check_fine(p);
    for (int i = 0; i < 2; i++) {
        check_call(p, &calls[i]);
        free_call(p, &calls[i]);
    }
}

static void ranks_that_share_a_device_leave_each_other_room(void **state)
{
    stage_list stages = {0};
    (void)state;
    if (!gpu_worlds_are_cheap())
        skip();
    add(&stages,
        (struct case_of){
            .tp = 2, .dp = 2, .dtype = dtypes[0], .timeout_ns = 5000000000, .share = true},
        run_long_before_short);
    ranks_run_threads(4, run_stages, &stages);
    array_free(&stages);
}

static void run_long(struct player *p)
{
    run_calls(p, gpu_is_emulated() ? 20000 : 400000);
}

/* Sizes beyond those of packets. */
static void run_gathers(struct player *p)
{
    p->more_elems = (130 << 10) / (p->setup.dtype.bits / 8u);
    for (int i = 0; i < 3; i++) {
        struct one_call c;
        do
            make_call(p, 3000, &c);
        while (c.call.op != BANYAN_MIXED_ALLGATHER && (free_call(p, &c), true));
        c.seed = c.seed / 7 * 7 + (uint64_t)(5 - 2 * i); /* as in element: 5, 3, 1 */
        fill_input(p, &c);
        for (int turn = 0; turn < 2; turn++)
            CHECK_OK(run(p, &c));
        gpu_stream_wait(p->setup.device, p->stream);
        check_fine(p);
        check_call(p, &c);
        free_call(p, &c);
    }
}

static void add_few_threads(stage_list *stages)
{
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
        struct case_of of = case_on(grids[g], g);
        of.max_bytes = 1 << 20;
        of.grid_size = 1; /* each thread goes through many rounds */
        if (of.tp > 1)
            add(stages, of, run_long);
    }
}

static void long_messages_are_right_whatever_carries_them(void **state)
{
    struct case_of cut = {.tp = 2, .dp = 2, .dtype = dtypes[0], .max_bytes = 4096};
    struct case_of cut_data = {.tp = 1, .dp = 3, .dtype = dtypes[2], .max_bytes = 4096};
    struct case_of wide = {
        .tp = 2, .dp = 2, .dtype = dtypes[0], .max_bytes = 1 << 22, .min_num_steps = 1};
    struct case_of three_blocks = {.tp = 1,
                                   .dp = 2,
                                   .dtype = dtypes[0],
                                   .max_bytes = 1 << 22,
                                   .min_num_steps = 1,
                                   .grid_size = 3};
    struct case_of gathered = {.tp = 1, .dp = 3, .dtype = dtypes[2], .max_bytes = 1 << 20};
    stage_list stages = {0};
    (void)state;
    add(&stages, cut, run_long);
    add(&stages, cut_data, run_long);
    add(&stages, wide, run_long);
    add(&stages, three_blocks, run_long);
    add_few_threads(&stages);
    add(&stages, gathered, run_gathers);
    run_all(&stages);
}

/* The others' runs end, and later ones do nothing. */
static void run_without_rank_two(struct player *p, const struct one_call *c)
{
    device_report report;
    for (int i = 0; i < 3; i++)
        CHECK_OK(run(p, c));
    gpu_stream_wait(p->setup.device, p->stream);
    p->ops->check(p->engine, &report);
    CHECK(report.verdict == DEVICE_LATE, "verdict %d", (int)report.verdict);
    CHECK(mixed_report_op(&report) == c->call.op && mixed_report_mode(&report) == c->call.mode);
    CHECK(report.waited_ns >= 900000000 && report.waited_ns < 20000000000, "waited %llu ns",
          (unsigned long long)report.waited_ns);
    CHECK(device_report_rank(&report) >= 0 && device_report_rank(&report) < p->ranks &&
              device_report_rank(&report) != p->rank,
          "for rank %d", device_report_rank(&report));
    if (c->call.mode == BANYAN_MIXED_ONE_SHOT)
        CHECK(device_report_rank(&report) == 2, "for rank %d", device_report_rank(&report));
    gpu_fill(c->output_memory, POISON, c->output_bytes + 3 * GUARD);
    CHECK_OK(run(p, c));
    gpu_stream_wait(p->setup.device, p->stream);
    char *memory = gpu_read(c->output_memory, c->output_bytes + 3 * GUARD);
    for (uint64_t i = 0; i < c->output_bytes + 3 * GUARD; i++)
        CHECK((unsigned char)memory[i] == POISON, "byte %llu", (unsigned long long)i);
    free(memory);
}

static void run_late(struct player *p)
{
    struct one_call c;
    make_call(p, 500, &c);
    if (p->rank != 2)
        run_without_rank_two(p, &c);
    CHECK_OK(banyan_world_barrier(p->world));
    p->setup.timeout_ns = banyan_world_timeout_ns(p->world);
    use(p);
    free_call(p, &c);
    run_calls(p, 500);
}

static void a_late_peer_ends_runs_until_the_memory_is_used_anew(void **state)
{
    stage_list stages = {0};
    (void)state;
    for (int tp = 2; tp >= 1; tp--)
        add(&stages,
            (struct case_of){.tp = tp, .dp = 4 / tp, .dtype = dtypes[0], .timeout_ns = 1000000000},
            run_late);
    run_all(&stages);
}

/* Rank 1 dies while rank 0's kernel waits for it. */
static void die(int rank, int count, const banyan_unique_id *id, void *context)
{
    struct player p;
    struct one_call c;
    device_report report;
    enter(&p, ranks_open_world(rank, count, id, UINT64_C(30000000000)), context);
    make_call(&p, 500, &c);
    CHECK_OK(banyan_world_barrier(p.world));
    if (rank == 1) {
        usleep(100000);
        raise(SIGKILL);
    }
    CHECK_OK(run(&p, &c));
    gpu_stream_wait(p.setup.device, p.stream);
    p.ops->check(p.engine, &report);
    CHECK(report.verdict == DEVICE_STOPPED && device_report_rank(&report) == 1,
          "verdict %d for rank %d", (int)report.verdict, device_report_rank(&report));
    CHECK(report.waited_ns < 20000000000u);
    p.ops->close(p.engine);
    exit(0);
}

static void a_dead_peer_ends_runs(void **state)
{
    (void)state;
    struct case_of of = {.tp = 2, .dp = 1, .dtype = dtypes[0]};
    ranks_fork_and_lose_one(die, &of);
}

/* An argument selects tests by name; it may contain *. */
int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    gpu_count();
    random_seed(); /* one for all ranks */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_and_graphs_follow_each_other_on_every_grid),
        cmocka_unit_test(long_messages_are_right_whatever_carries_them),
        cmocka_unit_test(a_late_peer_ends_runs_until_the_memory_is_used_anew),
        cmocka_unit_test(a_dead_peer_ends_runs),
        cmocka_unit_test(ranks_may_be_threads),
        cmocka_unit_test(ranks_that_share_a_device_leave_each_other_room),
        cmocka_unit_test(ranks_may_be_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
