/* Mixed collectives between GPUs of several machines, which are only names here: fused modes over
 * NVSHMEM, and NCCL's; no communicators. */
#include "cuda/gpu_mixed.h"

#define MOST_ELEMS 4000

static banyan_world *open_world(int rank, int count, const banyan_unique_id *id)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    banyan_world *world;
    options.rank = rank;
    options.world_size = count;
    options.unique_id = id;
    options.node = rank < count / 2 ? "here" : "there";
    CHECK_OK(banyan_world_open(&options, &world));
    return world;
}

static void check_modes(const mixed_case *c, banyan_mixed_op op)
{
    banyan_mixed_mode modes[BANYAN_MIXED_MODES];
    size_t count;
    CHECK_OK(banyan_mixed_valid_modes(c->mixed, op, modes, BANYAN_MIXED_MODES, &count));
    CHECK(count == 4 && modes[3] == BANYAN_MIXED_SINGLE_NCCL, "%zu modes", count);
    for (size_t i = 0; i < 3; i++)
        CHECK((size_t)modes[i] == BANYAN_MIXED_ONE_SHOT + i, "mode %s",
              banyan_mixed_mode_name(modes[i]));
}

/* Equal on all ranks. */
typedef struct meeting {
    uint64_t seed;
    bool ibgda;
} meeting;

static void meet(int rank, int count, const banyan_unique_id *id, void *context)
{
    const meeting *of = context;
    banyan_mixed_options options = BANYAN_MIXED_OPTIONS_INIT;
    banyan_world *world = open_world(rank, count, id);
    random_state random = random_from(of->seed);
    mixed_case c;
    options.max_bytes = 1 << 12;
    options.ib_enable_ibgda = of->ibgda;
    options.use_autotune = false;
    gpu_case_open(&c, world, options, MOST_ELEMS);
    CHECK(c.grid.nodes == 2 && c.grid.local_tp == 2 && c.grid.inter_tp == 2);
    const char *said = getenv("NVSHMEM_IB_ENABLE_IBGDA");
    CHECK(said && strcmp(said, of->ibgda ? "1" : "0") == 0, "NVSHMEM_IB_ENABLE_IBGDA is %s",
          said ? said : "not set");
    check_modes(&c, BANYAN_MIXED_ALLREDUCE);
    for (int i = 0; i < 20; i++) {
        mixed_one call = draw_call(&c, &random, MOST_ELEMS);
        case_run(&c, &call);
        case_check_bits(&c, &call);
    }
    mixed_one call = {BANYAN_MIXED_ALLREDUCE, BANYAN_MIXED_SINGLE, DATA_WHOLE, 1, 1, false};
    CHECK_FAILS(case_call(&c, &call), BANYAN_ERR_INVALID,
                "communicators of GPUs are of one machine, and its ranks are on 2");
    gpu_case_close(&c);
    CHECK_OK(banyan_world_close(world));
}

static void fused_modes_go_between_machines(void **state)
{
    (void)state;
    meeting of = {random_seed(), false};
    for (int i = 0; i < 2; i++) {
        int statuses[4];
        of.ibgda = i == 1;
        ranks_fork(4, meet, &of, statuses);
        for (int rank = 0; rank < 4; rank++)
            assert_int_equal(statuses[rank], 0);
    }
}

int main(void)
{
    gpu_count();
    if (!gpu_is_emulated()) {
        printf("skipped: the GPUs of one machine are not several machines\n");
        return 77;
    }
    setenv("BANYAN_NVSHMEM", BANYAN_EMULATED_MODULES "/libnvshmem_host.so.3", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_modes_go_between_machines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
