/* With work queued on streams, every slot is handed over in time, whatever the order of the
 * streams' work. The device is simulated: queued work runs when the device takes a step. */
#include "copy/pipeline_play.h"

enum { SLOT_BYTES = 400, STREAMS = 4, QUEUE = 64 };
enum { PACK_STREAM, UNPACK_STREAM, SEND_STREAM, COPY_STREAM };

typedef struct sim_event {
    uint64_t recorded, reached; /* versions */
} sim_event;

typedef struct sim_op {
    enum { OP_PACK, OP_UNPACK, OP_COPY, OP_RECORD, OP_WAIT, OP_SEND, OP_GRANT } kind;
    void *slot;
    const banyan_segment *segments;
    size_t count;
    DLTensor tensors[2];
    sim_event *event;
    uint64_t version;
    int peer, from, to;
    uint64_t bytes;
} sim_op;

typedef struct sim_stream {
    sim_op ops[QUEUE];
    size_t first, last;
} sim_stream;

/* One rank and its device. */
typedef struct sim {
    play *play;
    board_end end;
    banyan_pipeline_launcher launcher;
    sim_stream streams[STREAMS];
    sim_event pack_events[BOARD_SLOTS], unpack_events[BOARD_SLOTS];
    random_state random;
    bool lazy; /* steps are taken only when the host waits */
    bool dead; /* no steps are taken */
    bool waited_for_events;
    int synchronizes, reached_calls, longest_queue;
    banyan_status status;
    char message[256];
    pthread_t thread;
} sim;

static void sim_queue(void *stream, sim_op op)
{
    sim_stream *s = stream;
    CHECK(s->last - s->first < QUEUE);
    s->ops[s->last++ % QUEUE] = op;
}

static void sim_do(sim *device, const sim_op *op)
{
    const banyan_pipeline_launcher *host = banyan_pipeline_host_launcher();
    switch (op->kind) {
    case OP_PACK:
        CHECK_OK(host->pack(NULL, NULL, op->slot, op->segments, op->count));
        break;
    case OP_UNPACK:
        CHECK_OK(host->unpack(NULL, NULL, op->slot, op->segments, op->count));
        break;
    case OP_COPY:
        CHECK_OK(host->copy(NULL, NULL, &op->tensors[0], &op->tensors[1]));
        break;
    case OP_RECORD:
        op->event->reached = op->version;
        break;
    case OP_SEND:
        CHECK_OK(board_send(&device->end, NULL, op->peer, op->from, op->to, op->bytes));
        break;
    case OP_GRANT:
        CHECK_OK(board_grant(&device->end, NULL, op->peer, op->to));
        break;
    case OP_WAIT:
        break;
    }
}

/* Perform the first operation of some stream, unless it waits for an event. */
static void sim_step(sim *device)
{
    if (device->dead)
        return;
    sim_stream *s = &device->streams[random_between(&device->random, 0, STREAMS - 1)];
    for (int i = 0; i < STREAMS; i++) {
        int queued = (int)(device->streams[i].last - device->streams[i].first);
        device->longest_queue = queued > device->longest_queue ? queued : device->longest_queue;
    }
    if (s->first == s->last)
        return;
    const sim_op *op = &s->ops[s->first % QUEUE];
    if (op->kind == OP_WAIT && op->event->reached < op->version)
        return;
    sim_do(device, op);
    s->first++;
}

static void sim_run_on(sim *device)
{
    for (int64_t i = random_between(&device->random, 0, 3); i > 0 && !device->lazy; i--)
        sim_step(device);
}

static banyan_status sim_pack(void *context, banyan_stream stream, void *slot,
                              const banyan_segment *segments, size_t count)
{
    CHECK(stream == &((sim *)context)->streams[PACK_STREAM]);
    sim_queue(stream,
              (sim_op){.kind = OP_PACK, .slot = slot, .segments = segments, .count = count});
    return BANYAN_OK;
}

static banyan_status sim_unpack(void *context, banyan_stream stream, const void *slot,
                                const banyan_segment *segments, size_t count)
{
    CHECK(stream == &((sim *)context)->streams[UNPACK_STREAM]);
    sim_queue(stream, (sim_op){.kind = OP_UNPACK,
                               .slot = (void *)(uintptr_t)slot,
                               .segments = segments,
                               .count = count});
    return BANYAN_OK;
}

static banyan_status sim_copy(void *context, banyan_stream stream, const DLTensor *destination,
                              const DLTensor *source)
{
    CHECK(stream == &((sim *)context)->streams[COPY_STREAM]);
    sim_queue(stream, (sim_op){.kind = OP_COPY, .tensors = {*destination, *source}});
    return BANYAN_OK;
}

static banyan_status sim_record(void *context, banyan_event event, banyan_stream stream)
{
    (void)context;
    sim_event *e = event;
    sim_queue(stream, (sim_op){.kind = OP_RECORD, .event = e, .version = ++e->recorded});
    return BANYAN_OK;
}

static banyan_status sim_stream_wait(void *context, banyan_stream stream, banyan_event event)
{
    (void)context;
    sim_event *e = event;
    sim_queue(stream, (sim_op){.kind = OP_WAIT, .event = e, .version = e->recorded});
    return BANYAN_OK;
}

static banyan_status sim_reached(void *context, banyan_event event, bool *yes)
{
    sim *device = context;
    sim_event *e = event;
    device->reached_calls++;
    if (device->lazy)
        sim_step(device);
    sim_run_on(device);
    *yes = e->reached == e->recorded;
    return BANYAN_OK;
}

static banyan_status sim_synchronize(void *context, banyan_stream stream)
{
    sim *device = context;
    sim_stream *s = stream;
    device->synchronizes++;
    for (long steps = 0; s->first != s->last && !device->dead; steps++) {
        CHECK(steps < 1000000, "a stream waits for ever");
        sim_step(device);
    }
    return BANYAN_OK;
}

/* Signals on streams. */
static banyan_status sim_grant(void *context, banyan_stream stream, int peer, int slot)
{
    sim *device = context;
    CHECK(stream == &device->streams[UNPACK_STREAM]);
    sim_queue(stream, (sim_op){.kind = OP_GRANT, .peer = peer, .to = slot});
    return BANYAN_OK;
}

static banyan_status sim_send(void *context, banyan_stream stream, int peer, int from, int to,
                              uint64_t bytes)
{
    sim *device = context;
    CHECK(stream == &device->streams[SEND_STREAM]);
    sim_queue(stream,
              (sim_op){.kind = OP_SEND, .peer = peer, .from = from, .to = to, .bytes = bytes});
    return BANYAN_OK;
}

static banyan_status sim_begin(void *context)
{
    return board_begin(&((sim *)context)->end);
}

static void *sim_peer_slot(void *context, int peer, int slot)
{
    return board_peer_slot(&((sim *)context)->end, peer, slot);
}

static banyan_status sim_take_grant(void *context, int peer, int *slot)
{
    sim_run_on(context);
    return board_take_grant(&((sim *)context)->end, peer, slot);
}

static banyan_status sim_take_arrival(void *context, int peer, int slot, bool *yes)
{
    sim_run_on(context);
    return board_take_arrival(&((sim *)context)->end, peer, slot, yes);
}

static banyan_status sim_idle(void *context, const banyan_pipeline_stall *stall)
{
    sim *device = context;
    sim_step(device);
    device->waited_for_events |= stall->for_events;
    return board_idle(&((sim *)context)->end, stall);
}

/* Signal at the call, where the host has waited for the earlier work. */
static banyan_status sim_grant_now(void *context, banyan_stream stream, int peer, int slot)
{
    return board_grant(&((sim *)context)->end, stream, peer, slot);
}

static banyan_status sim_send_now(void *context, banyan_stream stream, int peer, int from, int to,
                                  uint64_t bytes)
{
    return board_send(&((sim *)context)->end, stream, peer, from, to, bytes);
}

static void sim_open(play *p, int rank, bool stream_ordered, bool lazy, sim *device)
{
    *device = (sim){.play = p, .lazy = lazy, .random = random_from(random_next(&p->random))};
    board_end_open(p->board, rank, &device->end);
    banyan_pipeline_buffers *buffers = &device->end.buffers;
    buffers->context = device;
    buffers->stream_ordered = stream_ordered;
    buffers->begin = sim_begin;
    buffers->peer_slot = sim_peer_slot;
    buffers->grant = stream_ordered ? sim_grant : sim_grant_now;
    buffers->send = stream_ordered ? sim_send : sim_send_now;
    buffers->take_grant = sim_take_grant;
    buffers->take_arrival = sim_take_arrival;
    buffers->idle = sim_idle;
    device->launcher = (banyan_pipeline_launcher){.size = sizeof device->launcher,
                                                  .context = device,
                                                  .pack = sim_pack,
                                                  .unpack = sim_unpack,
                                                  .copy = sim_copy,
                                                  .record = sim_record,
                                                  .stream_wait = sim_stream_wait,
                                                  .reached = sim_reached,
                                                  .synchronize = sim_synchronize};
}

static banyan_pipeline *sim_pipeline(sim *device)
{
    banyan_event pack[BOARD_SLOTS], unpack[BOARD_SLOTS];
    for (int slot = 0; slot < BOARD_SLOTS; slot++) {
        pack[slot] = &device->pack_events[slot];
        unpack[slot] = &device->unpack_events[slot];
    }
    banyan_pipeline *pipeline;
    CHECK_OK(banyan_pipeline_create(&device->launcher, &device->end.buffers, device->end.rank,
                                    &pipeline));
    sim_stream *s = device->streams;
    CHECK_OK(banyan_pipeline_set_streams(pipeline, &s[PACK_STREAM], &s[UNPACK_STREAM],
                                         &s[SEND_STREAM], &s[COPY_STREAM]));
    CHECK_OK(banyan_pipeline_set_events(pipeline, pack, unpack));
    return pipeline;
}

static void *sim_run(void *context)
{
    sim *device = context;
    play_list *list = &device->play->lists[device->end.rank];
    banyan_pipeline *pipeline = sim_pipeline(device);
    for (int i = 0; i < 2 && device->status == BANYAN_OK; i++)
        device->status = banyan_pipeline_execute(pipeline, list->iterations, list->count);
    if (device->status != BANYAN_OK)
        snprintf(device->message, sizeof device->message, "%s", banyan_last_error());
    banyan_pipeline_destroy(pipeline);
    return NULL;
}

static void run_random_schedules(bool stream_ordered, bool lazy)
{
    random_state random = random_from(random_seed());
    int longest = 0;
    for (int i = 0; i < 30; i++) {
        int ranks = (int)random_between(&random, 2, BOARD_RANKS);
        board *b = board_create(ranks, SLOT_BYTES);
        for (int from = 0; from < ranks; from++) {
            for (int to = 0; to < ranks; to++)
                b->direct[from][to] = random_next(&random) % 2;
        }
        play p = play_create(b, random_next(&random));
        play_random_rounds(&p, 25);
        static sim devices[BOARD_RANKS];
        for (int rank = 0; rank < ranks; rank++)
            sim_open(&p, rank, stream_ordered, lazy, &devices[rank]);
        for (int rank = 0; rank < ranks; rank++)
            CHECK(pthread_create(&devices[rank].thread, NULL, sim_run, &devices[rank]) == 0);
        for (int rank = 0; rank < ranks; rank++) {
            sim *device = &devices[rank];
            pthread_join(device->thread, NULL);
            CHECK(device->status == BANYAN_OK, "rank %d: %s", rank, device->message);
            /* Whole streams are synchronized only at the end, once for each of the three. */
            assert_int_equal(device->synchronizes, 2 * 3);
            if (stream_ordered)
                assert_int_equal(device->reached_calls, 0);
            longest = device->longest_queue > longest ? device->longest_queue : longest;
            board_end_close(&device->end);
        }
        play_check(&p);
        play_destroy(&p);
        board_destroy(b);
    }
    /* Work did accumulate on streams, so an error was possible. */
    assert_true(longest >= 4);
}

static void slots_are_handed_over_in_time_with_signals_on_streams(void **state)
{
    (void)state;
    run_random_schedules(true, false);
    run_random_schedules(true, true);
}

static void slots_are_handed_over_in_time_with_signals_from_the_host(void **state)
{
    (void)state;
    run_random_schedules(false, false);
    run_random_schedules(false, true);
}

/* Nothing runs on the device before the host waits for the end: all work is queued by then. */
static void a_send_slot_goes_to_the_send_stream_and_back(void **state)
{
    (void)state;
    board *b = board_create(2, SLOT_BYTES);
    play p = play_create(b, random_seed());
    for (int i = 0; i < 2; i++) {
        banyan_iteration *sending = play_iteration(&p, 0);
        play_batch(&p, 0, sending, 1, play_iteration(&p, 1));
    }
    static sim device;
    sim_open(&p, 0, true, true, &device);
    banyan_pipeline *pipeline = sim_pipeline(&device);
    board_link *link = &b->links[1][0];
    *link = (board_link){.granted = {0, 1}, .granted_count = 2};
    CHECK_OK(banyan_pipeline_execute(pipeline, p.lists[0].iterations, 2));
    static const int packs[] = {OP_PACK, OP_RECORD, OP_PACK, OP_RECORD};
    static const int sends[] = {OP_WAIT, OP_SEND, OP_RECORD, OP_WAIT, OP_SEND, OP_RECORD};
    assert_int_equal(device.streams[PACK_STREAM].last, 4);
    assert_int_equal(device.streams[SEND_STREAM].last, 6);
    for (int i = 0; i < 4; i++)
        assert_int_equal(device.streams[PACK_STREAM].ops[i].kind, packs[i]);
    for (int i = 0; i < 6; i++) {
        const sim_op *op = &device.streams[SEND_STREAM].ops[i];
        assert_int_equal(op->kind, sends[i]);
        if (op->kind == OP_WAIT || op->kind == OP_RECORD) {
            assert_ptr_equal(op->event, &device.pack_events[i / 3]);
            assert_int_equal(op->version, op->kind == OP_WAIT ? 1 : 2);
        }
    }
    link->filled_count = 0;
    banyan_pipeline_destroy(pipeline);
    board_end_close(&device.end);
    play_destroy(&p);
    board_destroy(b);
}

static void a_device_that_never_finishes_runs_into_the_deadline(void **state)
{
    (void)state;
    board *b = board_create(2, SLOT_BYTES);
    b->deadline_ns = deadline_after(50 * NS_PER_MS);
    play p = play_create(b, random_seed());
    banyan_iteration *sending = play_iteration(&p, 0);
    play_batch(&p, 0, sending, 1, play_iteration(&p, 1));
    static sim device;
    sim_open(&p, 0, false, false, &device);
    device.dead = true;
    sim_run(&device);
    assert_int_equal(device.status, BANYAN_ERR_TIMEOUT);
    assert_true(device.waited_for_events);
    board_end_close(&device.end);
    play_destroy(&p);
    board_destroy(b);
}

static void moves_to_oneself_are_waited_for_on_the_copy_stream(void **state)
{
    (void)state;
    int64_t shape[] = {5};
    uint16_t data[5] = {1, 2, 3, 4, 5}, out[5] = {0};
    DLTensor from = {
        .data = data, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLUInt, 16, 1}, .shape = shape};
    DLTensor to = from;
    to.data = out;
    banyan_send_op send = {from, 0, 1, 0, 0};
    banyan_recv_op recv = {to, 0, 1, 0, 0};
    board *b = board_create(2, SLOT_BYTES);
    play p = play_create(b, random_seed());
    static sim device;
    sim_open(&p, 0, true, true, &device);
    banyan_pipeline *pipeline = sim_pipeline(&device);
    CHECK_OK(banyan_pipeline_self_moves(pipeline, &send, 1, &recv, 1));
    assert_memory_equal(out, data, sizeof data);
    assert_int_equal(device.synchronizes, 1);
    banyan_pipeline_destroy(pipeline);
    board_end_close(&device.end);
    play_destroy(&p);
    board_destroy(b);
}

static void streams_without_events_are_refused(void **state)
{
    (void)state;
    board *b = board_create(2, SLOT_BYTES);
    play p = play_create(b, random_seed());
    play_iteration(&p, 0);
    static sim device;
    sim_open(&p, 0, true, false, &device);
    banyan_pipeline *pipeline = sim_pipeline(&device);
    banyan_event none[BOARD_SLOTS] = {NULL, NULL};
    CHECK_OK(banyan_pipeline_set_events(pipeline, none, none));
    CHECK_FAILS(banyan_pipeline_execute(pipeline, p.lists[0].iterations, 1), BANYAN_ERR_INVALID,
                "no events for slot 0");
    banyan_pipeline_destroy(pipeline);
    board_end_close(&device.end);
    play_destroy(&p);
    board_destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_handed_over_in_time_with_signals_on_streams),
        cmocka_unit_test(slots_are_handed_over_in_time_with_signals_from_the_host),
        cmocka_unit_test(a_send_slot_goes_to_the_send_stream_and_back),
        cmocka_unit_test(a_device_that_never_finishes_runs_into_the_deadline),
        cmocka_unit_test(moves_to_oneself_are_waited_for_on_the_copy_stream),
        cmocka_unit_test(streams_without_events_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
