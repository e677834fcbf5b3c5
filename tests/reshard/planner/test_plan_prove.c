/* Plans pass the proof, and damaged ones do not. */
#include "support/test.h"

#include "reshard/planner/plan.h"
#include "reshard/random_case.h"

#define RANKS 3

static banyan_reshard_plan *plan_of(banyan_world *world, const random_case *planned)
{
    int rank = banyan_world_rank(world);
    banyan_layout *source = case_layout(planned, rank, false);
    banyan_layout *destination = case_layout(planned, rank, true);
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.min_split_bytes = 64;
    banyan_reshard_plan *plan;
    CHECK_OK(banyan_reshard_plan_create(source, destination, world, &options, &plan));
    banyan_layout_destroy(destination);
    banyan_layout_destroy(source);
    return plan;
}

static void damage_receives(banyan_reshard_plan *plan)
{
    banyan_transfer *recv = &plan->transfers.recvs[0], kept = *recv;
    if (recv->box.ndim > 0 && recv->box.extent[0] > 1) {
        recv->box.extent[0]--;
        recv->bytes = banyan_box_elems(&recv->box) * banyan_dtype_bytes(recv->source_dtype);
        CHECK_FAILS(banyan_reshard_plan_prove(plan), BANYAN_ERR_INVALID, "no transfer writes");
        *recv = kept;
    }
    if (recv->box.ndim > 0) {
        recv->box.start[0] += recv->box.extent[0];
        CHECK(banyan_reshard_plan_prove(plan) == BANYAN_ERR_INVALID);
        *recv = kept;
    }
    recv->name = "another";
    CHECK_FAILS(banyan_reshard_plan_prove(plan), BANYAN_ERR_INVALID,
                "\"another\" is received into a piece of");
    *recv = kept;
    recv->destination_piece = banyan_layout_piece_count(plan->destination);
    CHECK(banyan_reshard_plan_prove(plan) == BANYAN_ERR_INVALID);
    *recv = kept;
    if (plan->transfers.recv_count > 1) {
        banyan_transfer *other = &plan->transfers.recvs[1], also = *other;
        *other = kept;
        CHECK(banyan_reshard_plan_prove(plan) == BANYAN_ERR_INVALID);
        *other = also;
    }
}

static void damage_sends(banyan_reshard_plan *plan)
{
    banyan_transfer *send = &plan->transfers.sends[0], kept = *send;
    send->source_piece = banyan_layout_piece_count(plan->source);
    CHECK_FAILS(banyan_reshard_plan_prove(plan), BANYAN_ERR_INVALID, "(none) does not hold that");
    *send = kept;
    if (send->box.ndim > 0) {
        send->box.start[0] = INT64_C(1) << 40;
        CHECK_FAILS(banyan_reshard_plan_prove(plan), BANYAN_ERR_INVALID, "does not hold that");
        *send = kept;
    }
}

static void prove_random_cases(banyan_world *world, void *context)
{
    random_state random = random_from(*(const uint64_t *)context);
    case_options options = {.world_size = RANKS, .max_elems = 2000};
    for (int i = 0; i < 10; i++) {
        random_case *planned = case_make(random_next(&random), &options);
        banyan_reshard_plan *plan = plan_of(world, planned);
        CHECK_OK(banyan_reshard_plan_prove(plan));
        if (plan->transfers.recv_count > 0)
            damage_receives(plan);
        if (plan->transfers.send_count > 0)
            damage_sends(plan);
        CHECK_OK(banyan_reshard_plan_prove(plan));
        banyan_reshard_plan_destroy(plan);
        free(planned);
    }
}

static void plans_prove_right_and_damaged_ones_do_not(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    ranks_run(RANKS, prove_random_cases, &seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_prove_right_and_damaged_ones_do_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
