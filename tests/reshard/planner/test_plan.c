/* The planner, executed for whole worlds in one process: for every layout, each element of a
 * destination is sent once, by a rank that holds it, and both ends give it one name. */
#include <time.h>

#include "reshard/planned.h"

#include "reshard/planner/share.h"

static void every_element_arrives_once_from_a_rank_that_holds_it(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    size_t remote = 0, local = 0;
    for (int round = 0; round < 1000; round++) {
        uint64_t seed = random_next(&random);
        case_options options = {.world_size = (int)random_between(&random, 1, 12),
                                .max_elems = random_between(&random, 1, 600)};
        if (options.world_size > 2 && random_next(&random) % 3 == 0)
            options.first_destination_rank =
                (int)random_between(&random, 1, options.world_size - 1);
        random_case *planned = case_make(seed, &options);
        plan_world *world = plan_case(planned, NULL, (uint64_t)random_between(&random, 1, 200));
        for (int rank = 0; rank < world->size; rank++)
            CHECK(world->statuses[rank] == BANYAN_OK, "round %d: %s", round, world->errors[rank]);
        for (int rank = 0; rank < world->size; rank++) {
            check_receiver(world, rank);
            check_both_ends(world, rank);
            remote += world->results[rank].send_count;
            for (size_t i = 0; i < world->results[rank].recv_count; i++)
                local += world->results[rank].recvs[i].source_rank == rank;
        }
        plan_world_free(world);
        free(planned);
    }
    printf("%zu transfers between ranks, %zu local\n", remote, local);
    CHECK(remote > 10000 && local > 1000);
}

/* Rank 1 reverses a vector of rank 0, element by element. */
static void many_pieces_of_one_tensor_are_planned_quickly(void **state)
{
    (void)state;
    enum { ELEMS = 60000 };
    banyan_layout **sides = calloc(4, sizeof(banyan_layout *));
    for (int i = 0; i < 4; i++)
        CHECK_OK(banyan_layout_create(&sides[i]));
    for (int rank = 0; rank < 2; rank++) {
        banyan_layout *layout = rank == 0 ? sides[0] : sides[3];
        int tensor = banyan_layout_add_tensor(layout, "w", BANYAN_BF16, 1, (int64_t[]){ELEMS});
        int64_t pieces = rank == 0 ? 1 : ELEMS;
        for (int64_t i = 0; i < pieces; i++)
            banyan_layout_add_piece(
                layout, &(banyan_piece){.tensor = tensor,
                                        .name = "w",
                                        .ndim = 1,
                                        .shape = {ELEMS},
                                        .box = {1, {i}, {ELEMS / pieces}},
                                        .local_start = {rank == 0 ? 0 : ELEMS - 1 - i}});
    }
    banyan_layout **sources = calloc(2, sizeof *sources);
    banyan_layout **destinations = calloc(2, sizeof *destinations);
    memcpy(sources, sides, 2 * sizeof *sources);
    memcpy(destinations, sides + 2, 2 * sizeof *destinations);
    free(sides);
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    clock_t begin = clock();
    plan_world *world = plan_world_make(2, sources, destinations, &options);
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    for (int rank = 0; rank < 2; rank++)
        CHECK(world->statuses[rank] == BANYAN_OK, "%s", world->errors[rank]);
    assert_int_equal(world->results[0].send_count, ELEMS);
    assert_int_equal(world->results[1].recv_count, ELEMS);
    printf("%d pieces of one tensor: planned in %.2f s of processor time\n", ELEMS, seconds);
    CHECK(seconds < 5, "%.2f s", seconds);
    plan_world_free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_arrives_once_from_a_rank_that_holds_it),
        cmocka_unit_test(many_pieces_of_one_tensor_are_planned_quickly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
