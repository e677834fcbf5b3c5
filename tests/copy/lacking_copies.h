/* One rank fails each allocation in turn while a copy service is opened, or prepares: that fails
 * on all ranks at once, and a retry succeeds. */
#ifndef TESTS_COPY_LACKING_COPIES_H
#define TESTS_COPY_LACKING_COPIES_H

#include "support/gpu/gpu_stream.h"
#include "support/lacking.h"

#define BYTES 50000
#define TRIES 500 /* more than there are allocations */

typedef struct lacking_copies {
    bool on_gpus;
    const char *backend, *transport;
} lacking_copies;

typedef struct rig {
    banyan_world *world;
    DLDevice device;
    void *stream;
    banyan_memory *memory; /* the sent data, then the received */
    banyan_copy_options options;
    const lacking_copies *test;
} rig;

static banyan_status open_service(const rig *r, banyan_copy_service **service)
{
    *service = NULL;
    return banyan_copy_service_open(r->world, r->test->backend, &r->options, service);
}

static char *part_at(const rig *r, int part)
{
    return (char *)banyan_memory_local(r->memory) + (size_t)part * BYTES;
}

/* Every second row goes to the next rank and comes from the previous one. */
static banyan_status prepare(const rig *r, banyan_copy_service *service,
                             banyan_copy_schedule **schedule)
{
    static int64_t shape[] = {25, 1000}, strides[] = {2000, 1};
    int rank = banyan_world_rank(r->world), size = banyan_world_size(r->world);
    DLTensor tensor = {
        .device = r->device, .ndim = 2, .dtype = BANYAN_U8, .shape = shape, .strides = strides};
    tensor.data = part_at(r, 0);
    CHECK_OK(banyan_copy_service_submit_send(service, &tensor, (rank + 1) % size, 1));
    tensor.data = part_at(r, 1);
    CHECK_OK(banyan_copy_service_submit_recv(service, &tensor, (rank + size - 1) % size, 1));
    *schedule = NULL;
    return banyan_copy_service_prepare(service, schedule);
}

static void fill(const rig *r)
{
    static unsigned char bytes[2 * BYTES];
    memset(bytes, 1 + banyan_world_rank(r->world), BYTES);
    memset(bytes + BYTES, 0xC9, BYTES);
    CHECK_OK(banyan_memory_copy(part_at(r, 0), bytes, sizeof bytes));
}

static void check(const rig *r)
{
    static unsigned char got[BYTES];
    int rank = banyan_world_rank(r->world), size = banyan_world_size(r->world);
    unsigned char sent = (unsigned char)(1 + (rank + size - 1) % size);
    CHECK_OK(banyan_memory_copy(got, part_at(r, 1), sizeof got));
    for (size_t i = 0; i < sizeof got; i++)
        CHECK((got[i] == sent) == (i / 1000 % 2 == 0), "%s: byte %zu is %d", r->test->backend, i,
              got[i]);
}

static void run(const rig *r, banyan_copy_service *service, banyan_copy_schedule *schedule)
{
    fill(r);
    CHECK_OK(banyan_world_barrier(r->world));
    CHECK_OK(banyan_copy_schedule_run(schedule, r->stream));
    if (!device_is_host(r->device))
        gpu_stream_wait(r->device, r->stream);
    CHECK_OK(banyan_copy_service_check(service));
    check(r);
}

/* Open with each allocation failing in turn, then with none. */
static banyan_copy_service *open_at_last(const rig *r)
{
    for (int n = 0; n < TRIES; n++) {
        banyan_copy_service *service;
        lack_begin(r->world, LACK_ANY, n);
        if (!lack_end(r->world, open_service(r, &service), BANYAN_ERR_NO_MEMORY))
            return service;
    }
    CHECK(false, "%s: no end of allocations", r->test->backend);
    return NULL;
}

static banyan_copy_schedule *prepare_at_last(const rig *r, banyan_copy_service *service)
{
    for (int n = 0; n < TRIES; n++) {
        banyan_copy_schedule *schedule;
        lack_begin(r->world, LACK_ANY, n);
        if (!lack_end(r->world, prepare(r, service, &schedule), BANYAN_ERR_NO_MEMORY))
            return schedule;
    }
    CHECK(false, "%s: no end of allocations", r->test->backend);
    return NULL;
}

static void lack_for_copies(banyan_world *world, void *context)
{
    rig r = {.world = world,
             .device = BANYAN_HOST,
             .options = BANYAN_COPY_OPTIONS_INIT,
             .test = context};
    if (r.test->on_gpus) {
        r.device = gpu_device_for(banyan_world_rank(world));
        r.stream = gpu_stream_create(r.device);
    }
    r.options.device = r.device;
    r.options.transport = r.test->transport;
    CHECK_OK(banyan_memory_alloc_on(world, r.device, 2 * BYTES, &r.memory));
    banyan_copy_service *service = open_at_last(&r);
    banyan_copy_schedule *schedule = prepare_at_last(&r, service);
    run(&r, service, schedule);
    banyan_copy_schedule_destroy(schedule);
    banyan_copy_service_close(service);
    banyan_memory_free(r.memory);
    if (r.test->on_gpus)
        gpu_stream_destroy(r.device, r.stream);
}

#endif
