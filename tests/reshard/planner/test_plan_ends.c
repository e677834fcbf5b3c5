/* In a real world, the ranks' sends equal the receivers' receives. */
#include "support/test.h"

#include "reshard/random_case.h"

#define RANKS 4

/* A transfer as both of its ends must name it; its padding is zeroed, so that bytes compare. */
typedef struct said {
    int source, destination;
    uint64_t task_id, bytes;
    banyan_box box;
    char name[32];
} said;

typedef struct said_list {
    said *data;
    size_t count;
} said_list;

typedef size_t (*count_fn)(const banyan_reshard_plan *plan);
typedef const banyan_transfer *(*transfer_fn)(const banyan_reshard_plan *plan, size_t i);

static said said_of(const banyan_transfer *transfer)
{
    said one;
    memset(&one, 0, sizeof one);
    one.source = transfer->source_rank;
    one.destination = transfer->destination_rank;
    one.task_id = transfer->task_id;
    one.bytes = transfer->bytes;
    one.box.ndim = transfer->box.ndim;
    for (int d = 0; d < transfer->box.ndim; d++) {
        one.box.start[d] = transfer->box.start[d];
        one.box.extent[d] = transfer->box.extent[d];
    }
    snprintf(one.name, sizeof one.name, "%s", transfer->name);
    return one;
}

static int in_order(const void *a, const void *b)
{
    const said *first = a, *second = b;
    if (first->source != second->source)
        return first->source - second->source;
    if (first->destination != second->destination)
        return first->destination - second->destination;
    return (first->task_id > second->task_id) - (first->task_id < second->task_id);
}

/* All ranks' transfers of one side, except a rank's copies to itself. */
static said_list all_say(banyan_world *world, const banyan_reshard_plan *plan, count_fn count,
                         transfer_fn transfer)
{
    size_t mine = 0, total = count(plan), bytes[RANKS], all_bytes = 0;
    said *own = calloc(total + 1, sizeof *own);
    for (size_t i = 0; i < total; i++) {
        said one = said_of(transfer(plan, i));
        if (one.source != one.destination)
            own[mine++] = one;
    }
    void *all;
    CHECK_OK(banyan_world_allgatherv(world, own, mine * sizeof *own, &all, bytes));
    free(own);
    for (int rank = 0; rank < RANKS; rank++)
        all_bytes += bytes[rank];
    said_list list = {all, all_bytes / sizeof(said)};
    if (list.count > 0)
        qsort(list.data, list.count, sizeof *list.data, in_order);
    return list;
}

static void check_mine(const banyan_reshard_plan *plan, int rank)
{
    for (size_t i = 0; i < banyan_reshard_plan_send_count(plan); i++) {
        const banyan_transfer *send = banyan_reshard_plan_send(plan, i);
        CHECK(send->source_rank == rank && send->destination_rank != rank, "send %zu: %d to %d", i,
              send->source_rank, send->destination_rank);
    }
    for (size_t i = 0; i < banyan_reshard_plan_recv_count(plan); i++)
        CHECK(banyan_reshard_plan_recv(plan, i)->destination_rank == rank);
}

/* Returns the number of transfers between different ranks. */
static size_t check_ends(banyan_world *world, const random_case *planned)
{
    int rank = banyan_world_rank(world);
    banyan_layout *source = case_layout(planned, rank, false);
    banyan_layout *destination = case_layout(planned, rank, true);
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.min_split_bytes = 64;
    banyan_reshard_plan *plan;
    CHECK_OK(banyan_reshard_plan_create(source, destination, world, &options, &plan));
    check_mine(plan, rank);
    said_list sent = all_say(world, plan, banyan_reshard_plan_send_count, banyan_reshard_plan_send);
    said_list received =
        all_say(world, plan, banyan_reshard_plan_recv_count, banyan_reshard_plan_recv);
    CHECK(sent.count == received.count, "%zu are sent, %zu received", sent.count, received.count);
    for (size_t i = 0; i < sent.count; i++) {
        const said *send = &sent.data[i], *recv = &received.data[i];
        CHECK(memcmp(send, recv, sizeof *send) == 0,
              "%s, task %" PRIx64 " of %" PRIu64
              " bytes, %d to %d, is received as %s, task %" PRIx64 " of %" PRIu64
              " bytes, %d to %d, or another box",
              send->name, send->task_id, send->bytes, send->source, send->destination, recv->name,
              recv->task_id, recv->bytes, recv->source, recv->destination);
        CHECK(i == 0 || in_order(&sent.data[i - 1], send) < 0, "task %" PRIx64 " is there twice",
              send->task_id);
    }
    size_t count = sent.count;
    free(sent.data);
    free(received.data);
    banyan_reshard_plan_destroy(plan);
    banyan_layout_destroy(destination);
    banyan_layout_destroy(source);
    return count;
}

static void check_random_cases(banyan_world *world, void *context)
{
    random_state random = random_from(*(const uint64_t *)context);
    case_options options = {.world_size = RANKS, .max_elems = 4000};
    size_t transfers = 0;
    for (int i = 0; i < 12; i++) {
        options.first_destination_rank = i % 3 == 2 ? RANKS / 2 : 0;
        random_case *planned = case_make(random_next(&random), &options);
        transfers += check_ends(world, planned);
        free(planned);
    }
    CHECK(transfers > 0);
}

static void both_ends_give_every_transfer_the_same_id(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    ranks_run(RANKS, check_random_cases, &seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ends_give_every_transfer_the_same_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
