/* The steps that a GPU pipeline takes, played on the host: batches are packed, travel to the slot
 * that the receiver announced, and are unpacked there. */
#include "support/test.h"

#include "copy/pipeline/backend.h"
#include "copy/strided/strided.h"
#include "copy/traffic.h"
#include "world/control.h"

enum { SLOT_BYTES = 4096, SLOTS = BANYAN_PIPELINE_SLOTS };

typedef struct player {
    banyan_world *world;
    gpu_pipeline_slots slots;
    char memory[2 * SLOTS][SLOT_BYTES];
} player;

static banyan_status player_open(banyan_world *world, const banyan_copy_options *options,
                                 void **state)
{
    (void)options;
    player *made = calloc(1, sizeof *made);
    made->world = world;
    made->slots.bytes = SLOT_BYTES;
    for (int slot = 0; slot < SLOTS; slot++) {
        made->slots.send[slot] = made->memory[slot];
        made->slots.recv[slot] = made->memory[SLOTS + slot];
    }
    *state = made;
    return BANYAN_OK;
}

static banyan_status player_prepare(void *state, const banyan_copy_batch *batch, void **schedule)
{
    player *of = state;
    pipeline_schedule planned;
    gpu_pipeline_steps *steps = calloc(1, sizeof *steps);
    CHECK_OK(pipeline_plan(of->world, NULL, SLOT_BYTES, false, batch, &planned));
    CHECK_OK(gpu_pipeline_steps_make(of->world, &planned, &of->slots, steps));
    pipeline_schedule_free(&planned);
    *schedule = steps;
    return BANYAN_OK;
}

static void player_release(void *state, void *schedule)
{
    (void)state;
    gpu_pipeline_steps_free(schedule);
    free(schedule);
}

static void make_moves(const direct_moves *moves)
{
    for (size_t i = 0; i < moves->list.count; i++) {
        const direct_move *move = &moves->list.data[i];
        const direct_walk *walk = move->walk;
        if (walk)
            strided_copy(&walk->to, walk->first, &walk->from, walk->first, walk->count);
        else
            strided_move_run(&move->move, false);
    }
}

/* Both ends of a batch know the round and the slot. */
static uint64_t tag_of(const gpu_pipeline_step *step, const gpu_pipeline_batch *batch)
{
    return step->round * SLOTS + (uint64_t)batch->slot;
}

static void send_batch(player *of, const gpu_pipeline_step *step, size_t number)
{
    const gpu_pipeline_batch *batch = &step->send;
    char *slot = of->slots.send[number % SLOTS];
    CHECK(batch->bytes <= SLOT_BYTES && batch->slot < SLOTS);
    make_moves(batch->moves);
    CHECK_OK(control_send(of->world, batch->peer, tag_of(step, batch), slot, batch->bytes));
}

static void receive_batch(player *of, const gpu_pipeline_step *step, size_t number)
{
    const gpu_pipeline_batch *batch = &step->recv;
    void *data;
    size_t bytes;
    CHECK(batch->slot == (int)(number % SLOTS));
    CHECK_OK(
        control_receive(of->world, batch->peer, tag_of(step, batch), "a batch", &data, &bytes));
    CHECK(bytes == batch->bytes);
    memcpy(of->slots.recv[batch->slot], data, bytes);
    free(data);
    make_moves(batch->moves);
}

static banyan_status player_execute(void *state, void *schedule, void *stream)
{
    const gpu_pipeline_steps *steps = schedule;
    size_t sent = 0, received = 0;
    CHECK(!stream);
    make_moves(&steps->local);
    for (size_t i = 0; i < steps->count; i++) {
        const gpu_pipeline_step *step = &steps->list[i];
        CHECK(i == 0 || steps->list[i - 1].round < step->round);
        if (step->send.peer >= 0)
            send_batch(state, step, sent++);
        if (step->recv.peer >= 0)
            receive_batch(state, step, received++);
    }
    return BANYAN_OK;
}

static const banyan_copy_backend player_backend = {
    .size = sizeof(banyan_copy_backend),
    .name = "player",
    .capabilities = BANYAN_COPY_STRIDED | BANYAN_COPY_MATCH_BY_ORDER | BANYAN_COPY_KEEPS_SCHEDULES,
    .open = player_open,
    .close = free,
    .prepare = player_prepare,
    .execute = player_execute,
    .release = player_release,
};

static void play_traffic(banyan_world *world, void *context)
{
    uint64_t seed = *(const uint64_t *)context;
    banyan_copy_service *service;
    CHECK_OK(banyan_copy_service_open_backend(world, &player_backend, NULL, &service));
    for (uint64_t batch = 0; batch < 3; batch++) {
        traffic *all = traffic_make(world, seed + batch, 60, TRAFFIC_BY_ID, 1500);
        banyan_copy_schedule *schedule;
        traffic_submit(all, service);
        CHECK_OK(banyan_copy_service_prepare(service, &schedule));
        for (uint64_t run = 0; run < 2; run++) {
            traffic_fill(all, run);
            CHECK_OK(banyan_copy_schedule_run(schedule, NULL));
            traffic_check(all, run);
        }
        banyan_copy_schedule_destroy(schedule);
        traffic_free(all);
    }
    banyan_copy_service_close(service);
}

static void every_element_arrives_in_the_announced_slot(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 5};
    random_state random = random_from(random_seed());
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t seed = random_next(&random);
        ranks_run(sizes[i], play_traffic, &seed);
    }
}

static void threads_are_ranks_too(void **state)
{
    (void)state;
    uint64_t seed = random_seed() + 1;
    ranks_run_threads(3, play_traffic, &seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_arrives_in_the_announced_slot),
        cmocka_unit_test(threads_are_ranks_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
