/* The steps that a GPU pipeline takes, played on the host: batches are packed, travel to the slot
 * that the receiver announced, and are unpacked there. */
#include <inttypes.h>

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

/* A conversion, where it runs, and its bytes on the wire. */
static const struct conversion {
    DLDataType sent, received;
    uint32_t flags;
    bool is_scales, at_sender, at_receiver;
    uint64_t bytes; /* for BLOCK elements */
} conversions[] = {
    {{kDLFloat, 32, 1}, {kDLBfloat, 16, 1}, BANYAN_COPY_OP_CAST, false, true, false, 64},
    {{kDLFloat, 16, 1}, {kDLFloat, 32, 1}, BANYAN_COPY_OP_CAST, false, false, true, 64},
    {{kDLFloat, 16, 1}, {kDLBfloat, 16, 1}, BANYAN_COPY_OP_CAST, false, true, false, 64},
    {{kDLFloat, 32, 1}, {kDLFloat, 32, 1}, BANYAN_COPY_OP_CAST, false, false, false, 128},
    {{kDLBfloat, 16, 1}, {kDLUInt, 8, 1}, BANYAN_COPY_OP_MXFP8, false, true, false, 32},
    {{kDLFloat, 32, 1}, {kDLUInt, 8, 1}, BANYAN_COPY_OP_MXFP8, true, true, false, 1},
};

enum { BLOCK = STRIDED_BLOCK, BLOCKS = 512 };

static void check_moves(const gpu_pipeline_batch *batch, bool converts, uint64_t *bytes)
{
    for (size_t i = 0; batch->peer >= 0 && i < batch->moves->list.count; i++) {
        const direct_move *move = &batch->moves->list.data[i];
        CHECK((move->to_format != move->from_format) == converts);
    }
    *bytes += batch->peer >= 0 ? batch->bytes : 0;
}

static void plan_conversion(banyan_world *world, const struct conversion *of)
{
    static uint32_t memory[BLOCK * BLOCKS];
    int64_t shape[] = {BLOCKS, BLOCK}, scales_shape[] = {BLOCKS};
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    banyan_copy_op send = {.tensor = {.data = memory, .ndim = 2, .shape = shape},
                           .peer = (rank + 1) % size,
                           .flags = of->flags};
    send.tensor.device = BANYAN_HOST;
    banyan_copy_op recv = send;
    send.tensor.dtype = of->sent;
    recv.tensor.dtype = of->received;
    recv.peer = (rank + size - 1) % size;
    if (of->is_scales) {
        send.flags = recv.flags = of->flags | BANYAN_COPY_OP_SCALES;
        recv.tensor.ndim = 1;
        recv.tensor.shape = scales_shape;
    }
    banyan_copy_batch batch = {.sends = &send, .send_count = 1, .recvs = &recv, .recv_count = 1};
    void *state, *schedule;
    CHECK_OK(player_open(world, NULL, &state));
    CHECK_OK(player_prepare(state, &batch, &schedule));
    const gpu_pipeline_steps *steps = schedule;
    uint64_t sent = 0, received = 0;
    for (size_t i = 0; i < steps->count; i++) {
        check_moves(&steps->list[i].send, of->at_sender, &sent);
        check_moves(&steps->list[i].recv, of->at_receiver, &received);
    }
    CHECK(sent == BLOCKS * of->bytes && received == sent,
          "%" PRIu64 " bytes sent and %" PRIu64 " received, not %" PRIu64, sent, received,
          BLOCKS * of->bytes);
    player_release(state, schedule);
    free(state);
}

static void plan_conversions(banyan_world *world, void *context)
{
    (void)context;
    for (size_t i = 0; i < sizeof conversions / sizeof *conversions; i++)
        plan_conversion(world, &conversions[i]);
}

static void elements_travel_in_the_smaller_type(void **state)
{
    (void)state;
    ranks_run(2, plan_conversions, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_travel_in_the_smaller_type),
        cmocka_unit_test(every_element_arrives_in_the_announced_slot),
        cmocka_unit_test(threads_are_ranks_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
