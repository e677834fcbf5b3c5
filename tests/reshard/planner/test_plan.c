/* The planner, executed for whole worlds in one process: for every layout, each element of a
 * destination is sent once, by a rank that holds it, and both ends give it one name. */
#include <time.h>

#include "reshard/plan_world.h"
#include "reshard/random_case.h"

#include "reshard/planner/share.h"

static plan_world *plan_case(const random_case *planned, uint64_t min_split_bytes)
{
    size_t size = (size_t)planned->world_size;
    banyan_layout **sources = calloc(size, sizeof *sources);
    banyan_layout **destinations = calloc(size, sizeof *destinations);
    for (int rank = 0; rank < planned->world_size; rank++) {
        sources[rank] = case_layout(planned, rank, false);
        destinations[rank] = case_layout(planned, rank, true);
    }
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.min_split_bytes = min_split_bytes;
    return plan_world_make(planned->world_size, sources, destinations, &options);
}

/* Row-major places of a box's elements in a tensor. */
static void for_each_element(const banyan_box *box, const int64_t *shape,
                             void (*visit)(void *context, uint64_t index), void *context)
{
    uint64_t count = banyan_box_elems(box);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t rest = i, index = 0, place[BANYAN_MAX_DIMS];
        for (int d = box->ndim - 1; d >= 0; d--) {
            place[d] = (uint64_t)box->start[d] + rest % (uint64_t)box->extent[d];
            rest /= (uint64_t)box->extent[d];
        }
        for (int d = 0; d < box->ndim; d++)
            index = index * (uint64_t)shape[d] + place[d];
        visit(context, index);
    }
}

static void count_up(void *context, uint64_t index)
{
    ((unsigned char *)context)[index]++;
}

struct expectation {
    unsigned char *counts;
    unsigned char expected;
};

static void expect_count(void *context, uint64_t index)
{
    const struct expectation *expectation = context;
    CHECK(expectation->counts[index] == expectation->expected, "element %" PRIu64 ": %d times",
          index, expectation->counts[index]);
}

static bool holds(const banyan_layout *layout, const char *name, const banyan_box *box)
{
    for (size_t i = 0; i < banyan_layout_piece_count(layout); i++) {
        const banyan_piece *piece = banyan_layout_piece(layout, i);
        banyan_box common;
        if (strcmp(piece->name, name) == 0 &&
            (banyan_box_equal(box, &piece->box) ||
             (banyan_box_intersect(box, &piece->box, &common) && banyan_box_equal(box, &common))))
            return true;
    }
    return false;
}

/* True if the rank holds any element of the box. */
static bool touches(const banyan_layout *layout, const char *name, const banyan_box *box)
{
    for (size_t i = 0; i < banyan_layout_piece_count(layout); i++) {
        const banyan_piece *piece = banyan_layout_piece(layout, i);
        banyan_box common;
        if (strcmp(piece->name, name) == 0 && banyan_box_intersect(box, &piece->box, &common))
            return true;
    }
    return false;
}

static void check_receiver(const plan_world *world, int rank)
{
    const banyan_layout *layout = world->destinations[rank];
    const planner_result *result = &world->results[rank];
    for (size_t p = 0; p < banyan_layout_piece_count(layout); p++) {
        const banyan_piece *piece = banyan_layout_piece(layout, p);
        banyan_box whole = box_whole(piece->ndim, piece->shape);
        struct expectation once = {calloc(banyan_box_elems(&whole), 1), 1};
        for (size_t i = 0; i < result->recv_count; i++) {
            const banyan_transfer *recv = &result->recvs[i];
            if (recv->destination_piece != p)
                continue;
            CHECK(strcmp(recv->name, piece->name) == 0 && recv->destination_rank == rank);
            CHECK(holds(layout, piece->name, &recv->box));
            CHECK(holds(world->sources[recv->source_rank], recv->name, &recv->box));
            /* A rank takes elements that it holds from itself. */
            CHECK(recv->source_rank == rank ||
                  !touches(world->sources[rank], recv->name, &recv->box));
            for_each_element(&recv->box, piece->shape, count_up, once.counts);
        }
        for_each_element(&piece->box, piece->shape, expect_count, &once);
        free(once.counts);
    }
}

static const banyan_transfer *find_id(const banyan_transfer *transfers, size_t count, int from,
                                      int to, uint64_t task_id)
{
    const banyan_transfer *found = NULL;
    for (size_t i = 0; i < count; i++) {
        if (transfers[i].source_rank != from || transfers[i].destination_rank != to ||
            transfers[i].task_id != task_id)
            continue;
        CHECK(!found, "the id %" PRIx64 " twice from %d to %d", task_id, from, to);
        found = &transfers[i];
    }
    return found;
}

static void check_both_ends(const plan_world *world, int rank)
{
    size_t from_others = 0, sent_here = 0;
    const planner_result *mine = &world->results[rank];
    for (size_t i = 0; i < mine->recv_count; i++) {
        const banyan_transfer *recv = &mine->recvs[i];
        CHECK(find_id(mine->recvs, mine->recv_count, recv->source_rank, rank, recv->task_id) ==
              recv);
        if (recv->source_rank == rank) {
            const banyan_piece *piece =
                banyan_layout_piece(world->sources[rank], recv->source_piece);
            banyan_box common;
            CHECK(strcmp(piece->name, recv->name) == 0);
            CHECK(banyan_box_intersect(&piece->box, &recv->box, &common) &&
                  banyan_box_equal(&common, &recv->box));
            continue;
        }
        from_others++;
        CHECK(recv->source_piece == SIZE_MAX);
        const planner_result *theirs = &world->results[recv->source_rank];
        const banyan_transfer *send =
            find_id(theirs->sends, theirs->send_count, recv->source_rank, rank, recv->task_id);
        CHECK(send, "%s: rank %d does not send it to %d", recv->name, recv->source_rank, rank);
        CHECK(strcmp(send->name, recv->name) == 0 && banyan_box_equal(&send->box, &recv->box));
        CHECK(send->bytes == recv->bytes && send->destination_piece == SIZE_MAX);
        CHECK(banyan_dtype_equal(send->destination_dtype, recv->destination_dtype));
        const banyan_piece *piece =
            banyan_layout_piece(world->sources[recv->source_rank], send->source_piece);
        banyan_box common;
        CHECK(banyan_box_intersect(&piece->box, &send->box, &common) &&
              banyan_box_equal(&common, &send->box));
    }
    for (int other = 0; other < world->size; other++)
        for (size_t i = 0; i < world->results[other].send_count; i++)
            sent_here += world->results[other].sends[i].destination_rank == rank;
    CHECK(sent_here == from_others, "%zu sent to rank %d, %zu expected", sent_here, rank,
          from_others);
}

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
        plan_world *world = plan_case(planned, (uint64_t)random_between(&random, 1, 200));
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
