#include <banyan/copy.h>

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "copy/direct/plan.h"
#include "copy/match/match.h"
#include "copy/service/backends.h"
#include "copy/service/queue.h"
#include "core/error.h"
#include "memory/device.h"
#include "world/control.h"

#define BACKEND_NAME_BYTES 64

struct banyan_copy_service {
    banyan_world *world;
    control_timeout timeout;
    const banyan_copy_backend *backend;
    banyan_copy_options options;
    char transport[64]; /* options.transport points here */
    void *state;
    bool is_open;
    copy_queue queue;
    banyan_copy_schedule *schedules; /* schedules made and not yet freed */
};

/* The backend's own schedule or, if the backend keeps none, the operations to submit again each
 * time. */
struct banyan_copy_schedule {
    banyan_copy_service *service; /* NULL once it is closed */
    banyan_copy_schedule *previous, *next;
    void *planned;
    bool is_planned;
    copy_queue batch;
    banyan_copy_pair *local;
    size_t local_count;
};

static banyan_status service_take_options(banyan_copy_service *service,
                                          const banyan_copy_options *options)
{
    banyan_copy_options taken = BANYAN_COPY_OPTIONS_INIT;
    RETURN_IF_FAILED(options_take(options, "BANYAN_COPY_OPTIONS_INIT", &taken, sizeof taken));
    if (taken.transport) {
        snprintf(service->transport, sizeof service->transport, "%s", taken.transport);
        taken.transport = service->transport;
    }
    service->options = taken;
    return BANYAN_OK;
}

/* Callers built with an older header have no device to name. */
static bool service_is_on_device(const banyan_copy_options *options)
{
    size_t end = offsetof(banyan_copy_options, device) + sizeof options->device;
    return options && options->size >= end && !device_is_host(options->device);
}

/* Check that all ranks open the same backend. */
static banyan_status agree_on_backend(banyan_world *world, banyan_status found, const char *name)
{
    char zero[BACKEND_NAME_BYTES] = "";
    snprintf(zero, sizeof zero, "%s", name);
    RETURN_IF_FAILED(banyan_world_broadcast(world, zero, sizeof zero, 0));
    if (found == BANYAN_OK && strncmp(zero, name, sizeof zero - 1) != 0)
        found = error_set(BANYAN_ERR_MISMATCH, "rank %d opens copy backend %s, rank 0 opens %s",
                          banyan_world_rank(world), name, zero);
    return copy_agree(world, found);
}

/* Open the backend's state on every rank, or on none. */
static banyan_status open_state(banyan_copy_service *service)
{
    void *state = NULL;
    banyan_status opened = service->backend->open(service->world, &service->options, &state);
    banyan_status status = copy_agree(service->world, opened);
    if (status == BANYAN_OK)
        service->state = state;
    else if (opened == BANYAN_OK)
        service->backend->close(state);
    service->is_open = status == BANYAN_OK;
    return status;
}

static void service_close_state(banyan_copy_service *service)
{
    if (service->is_open)
        service->backend->close(service->state);
    service->is_open = false;
}

static banyan_status service_create(banyan_world *world, const banyan_copy_backend *backend,
                                    const banyan_copy_options *options,
                                    banyan_copy_service **service)
{
    banyan_copy_service *made = alloc_zeroed(1, sizeof *made, "a copy service");
    RETURN_IF_NO_MEMORY(made);
    made->world = world;
    made->timeout = control_timeout_now(world);
    made->backend = backend;
    banyan_status status = service_take_options(made, options);
    if (status != BANYAN_OK) {
        free(made);
        return status;
    }
    *service = made;
    return BANYAN_OK;
}

static banyan_status open_backend(banyan_world *world, banyan_status found,
                                  const banyan_copy_backend *backend, const char *name,
                                  const banyan_copy_options *options, banyan_copy_service **service)
{
    banyan_copy_service *made = NULL;
    if (found == BANYAN_OK)
        found = copy_backend_check(backend);
    if (found == BANYAN_OK)
        found = service_create(world, backend, options, &made);
    banyan_status status = agree_on_backend(world, found, name);
    if (status == BANYAN_OK)
        status = open_state(made);
    if (status != BANYAN_OK) {
        free(made);
        return status;
    }
    *service = made;
    return BANYAN_OK;
}

/* Check that ranks agree on where tensors lie before they open different backends. */
static banyan_status open_on_device(banyan_world *world, const char *name,
                                    const banyan_copy_options *options,
                                    banyan_copy_service **service)
{
    char agreed[BACKEND_NAME_BYTES];
    const banyan_copy_backend *table = NULL;
    banyan_status found = banyan_copy_backend_find_on(name, options->device, &table);
    snprintf(agreed, sizeof agreed, "%s on device type %d", name, (int)options->device.device_type);
    return open_backend(world, found, table, agreed, options, service);
}

/* Count this rank's peers that no transport reaches. Collective. */
static banyan_status count_unreachable(banyan_world *world, const banyan_copy_options *options,
                                       uint64_t *count)
{
    banyan_copy_options taken = BANYAN_COPY_OPTIONS_INIT;
    banyan_transport *transport;
    RETURN_IF_FAILED(options_take(options, "BANYAN_COPY_OPTIONS_INIT", &taken, sizeof taken));
    RETURN_IF_FAILED(banyan_transport_open(world, taken.transport, &transport));
    *count = 0;
    for (int rank = 0; rank < banyan_world_size(world); rank++)
        *count += banyan_transport_capabilities(transport, rank) == 0;
    banyan_transport_close(transport);
    return BANYAN_OK;
}

/* Between nodes, direct over UCX carries tensors in host memory, or MPI where UCX is missing, and
 * the pipeline tensors in GPU memory, over UCX or NVSHMEM. Direct fills a link that the pipeline
 * uses to nine tenths (docs/internals/transports.md). */
static banyan_status open_across_nodes(banyan_world *world, const banyan_copy_options *options,
                                       banyan_copy_service **service)
{
    bool on_host = !service_is_on_device(options);
    const banyan_copy_backend *table = NULL;
    char nodes[CONTROL_NODES_TEXT_BYTES];
    uint64_t unreachable = 0;
    banyan_status status;
    if (on_host) {
        RETURN_IF_FAILED(agree_on_backend(world, BANYAN_OK, "by default"));
        RETURN_IF_FAILED(count_unreachable(world, options, &unreachable));
        RETURN_IF_FAILED(control_max(world, unreachable, &unreachable));
    }
    if (on_host && unreachable == 0)
        return banyan_copy_service_open(world, "direct", options, service);
    if (on_host) {
        banyan_status found = banyan_copy_backend_find("mpi", &table);
        status = open_backend(world, found, table, "mpi", options, service);
    } else {
        status = open_on_device(world, "pipeline", options, service);
    }
    if (status != BANYAN_ERR_UNSUPPORTED && status != BANYAN_ERR_NVSHMEM)
        return status;
    return error_set(status,
                     "no copy backend carries tensors between the %d nodes of this world (%s): "
                     "%s where it is there (%s); if no tensor leaves its node, name %s",
                     banyan_world_node_count(world), control_nodes_text(world, nodes),
                     on_host ? "direct with module ucx does, or mpi"
                             : "pipeline, over UCX or NVSHMEM, does",
                     banyan_last_error(), on_host ? "direct or pipeline" : "direct");
}

/* Open direct inside a node. */
static banyan_status open_default(banyan_world *world, const banyan_copy_options *options,
                                  banyan_copy_service **service)
{
    if (banyan_world_node_count(world) > 1)
        return open_across_nodes(world, options, service);
    return open_backend(world, BANYAN_OK, &copy_backend_direct, "by default", options, service);
}

banyan_status banyan_copy_service_open(banyan_world *world, const char *backend,
                                       const banyan_copy_options *options,
                                       banyan_copy_service **service)
{
    CONTROL_ENTER_WITHIN(world, CONTROL_TIMEOUT(options, banyan_copy_options));
    banyan_copy_service *made = NULL;
    if (!backend)
        backend = getenv("BANYAN_COPY");
    bool is_default = !backend || backend[0] == '\0';
    if (service_is_on_device(options)) {
        if (is_default && banyan_world_node_count(world) > 1)
            RETURN_IF_FAILED(open_across_nodes(world, options, &made));
        else
            RETURN_IF_FAILED(
                open_on_device(world, is_default ? "direct" : backend, options, &made));
    } else if (is_default) {
        RETURN_IF_FAILED(open_default(world, options, &made));
    } else {
        const banyan_copy_backend *table = NULL;
        banyan_status found = banyan_copy_backend_find(backend, &table);
        RETURN_IF_FAILED(open_backend(world, found, table, backend, options, &made));
    }
    *service = made;
    return BANYAN_OK;
}

banyan_status banyan_copy_service_open_backend(banyan_world *world,
                                               const banyan_copy_backend *backend,
                                               const banyan_copy_options *options,
                                               banyan_copy_service **service)
{
    CONTROL_ENTER_WITHIN(world, CONTROL_TIMEOUT(options, banyan_copy_options));
    const char *name = backend && backend->name ? backend->name : "";
    return open_backend(world, BANYAN_OK, backend, name, options, service);
}

static void link_schedule(banyan_copy_schedule *schedule)
{
    banyan_copy_service *service = schedule->service;
    schedule->next = service->schedules;
    if (schedule->next)
        schedule->next->previous = schedule;
    service->schedules = schedule;
}

/* Return the schedule's resources to its service; afterwards it can only be freed. */
static void end_schedule(banyan_copy_schedule *schedule)
{
    banyan_copy_service *service = schedule->service;
    if (schedule->is_planned)
        service->backend->release(service->state, schedule->planned);
    if (schedule->next)
        schedule->next->previous = schedule->previous;
    if (schedule->previous)
        schedule->previous->next = schedule->next;
    else
        service->schedules = schedule->next;
    schedule->is_planned = false;
    schedule->service = NULL;
}

void banyan_copy_service_close(banyan_copy_service *service)
{
    if (!service)
        return;
    while (service->schedules)
        end_schedule(service->schedules);
    service_close_state(service);
    copy_queue_free(&service->queue);
    free(service);
}

const char *banyan_copy_service_name(const banyan_copy_service *service)
{
    return service->backend->name;
}

uint64_t banyan_copy_service_capabilities(const banyan_copy_service *service)
{
    return service->backend->capabilities;
}

DLDevice banyan_copy_service_device(const banyan_copy_service *service)
{
    return device_is_host(service->options.device) ? BANYAN_HOST : service->options.device;
}

banyan_status banyan_copy_service_check(const banyan_copy_service *service)
{
    if (!service->is_open || !service->backend->check)
        return BANYAN_OK;
    return service->backend->check(service->state);
}

banyan_status banyan_copy_service_submit_send_op(banyan_copy_service *service,
                                                 const banyan_send_op *op)
{
    return copy_queue_add(&service->queue, service->backend, service->world,
                          service->options.device, op, true);
}

banyan_status banyan_copy_service_submit_recv_op(banyan_copy_service *service,
                                                 const banyan_recv_op *op)
{
    return copy_queue_add(&service->queue, service->backend, service->world,
                          service->options.device, op, false);
}

banyan_status banyan_copy_service_submit_send(banyan_copy_service *service, const DLTensor *tensor,
                                              int dest_rank, uint64_t task_id)
{
    banyan_send_op op = {.tensor = *tensor, .peer = dest_rank, .task_id = task_id};
    return banyan_copy_service_submit_send_op(service, &op);
}

banyan_status banyan_copy_service_submit_recv(banyan_copy_service *service, const DLTensor *tensor,
                                              int src_rank, uint64_t task_id)
{
    banyan_recv_op op = {.tensor = *tensor, .peer = src_rank, .task_id = task_id};
    return banyan_copy_service_submit_recv_op(service, &op);
}

static banyan_status service_check_batch(const banyan_copy_service *service,
                                         banyan_copy_schedule *schedule)
{
    const char *who = service->backend->name;
    const copy_queue *batch = &schedule->batch;
    int rank = banyan_world_rank(service->world);
    bool by_order = service->backend->capabilities & BANYAN_COPY_MATCH_BY_ORDER;
    size_t most = batch->sends.count < batch->recvs.count ? batch->sends.count : batch->recvs.count;
    schedule->local = malloc((most + 1) * sizeof *schedule->local);
    if (!schedule->local)
        return error_no_memory(most * sizeof *schedule->local, "moves to oneself");
    RETURN_IF_FAILED(
        copy_check_ids(who, rank, batch->sends.data, batch->sends.count, true, by_order));
    RETURN_IF_FAILED(
        copy_check_ids(who, rank, batch->recvs.data, batch->recvs.count, false, by_order));
    return banyan_copy_match_local(who, rank, batch->sends.data, batch->sends.count,
                                   batch->recvs.data, batch->recvs.count, schedule->local,
                                   &schedule->local_count);
}

/* Plan in the backend; its schedule replaces the operations from here on. */
static banyan_status plan_in_backend(banyan_copy_schedule *schedule)
{
    const banyan_copy_service *service = schedule->service;
    copy_queue *queue = &schedule->batch;
    banyan_copy_batch batch = {.sends = queue->sends.data,
                               .send_count = queue->sends.count,
                               .recvs = queue->recvs.data,
                               .recv_count = queue->recvs.count,
                               .local = schedule->local,
                               .local_count = schedule->local_count};
    RETURN_IF_FAILED(service->backend->prepare(service->state, &batch, &schedule->planned));
    schedule->is_planned = true;
    copy_queue_free(queue);
    free(schedule->local);
    schedule->local = NULL;
    return BANYAN_OK;
}

banyan_status banyan_copy_service_prepare(banyan_copy_service *service,
                                          banyan_copy_schedule **schedule)
{
    CONTROL_ENTER_WITHIN(service->world, service->timeout);
    banyan_copy_schedule *made = calloc(1, sizeof *made);
    copy_queue queue = service->queue;
    service->queue = (copy_queue){0};
    banyan_status mine = BANYAN_OK;
    if (made) {
        *made = (banyan_copy_schedule){.service = service, .batch = queue};
        link_schedule(made);
        mine = service_check_batch(service, made);
    } else {
        copy_queue_free(&queue);
        mine = error_no_memory(sizeof *made, "a schedule");
    }
    banyan_status status = copy_agree(service->world, mine);
    if (status == BANYAN_OK && copy_backend_keeps_schedules(service->backend))
        status = plan_in_backend(made);
    if (status != BANYAN_OK) {
        banyan_copy_schedule_destroy(made);
        return status;
    }
    *schedule = made;
    return BANYAN_OK;
}

void banyan_copy_schedule_destroy(banyan_copy_schedule *schedule)
{
    if (!schedule)
        return;
    if (schedule->service)
        end_schedule(schedule);
    copy_queue_free(&schedule->batch);
    free(schedule->local);
    free(schedule);
}

static banyan_status submit_list(const banyan_copy_service *service, const copy_op_list *list,
                                 banyan_status (*submit)(void *state, const banyan_copy_op *op))
{
    int rank = banyan_world_rank(service->world);
    for (size_t i = 0; i < list->count; i++)
        if (list->data[i].peer != rank)
            RETURN_IF_FAILED(submit(service->state, &list->data[i]));
    return BANYAN_OK;
}

/* Reopen a backend after a failed submission: other ranks have operations queued in theirs, and its
 * table has no function that clears a queue. */
static banyan_status submit_batch(banyan_copy_service *service, const copy_queue *batch)
{
    const banyan_copy_backend *backend = service->backend;
    banyan_status mine = submit_list(service, &batch->sends, backend->submit_send);
    if (mine == BANYAN_OK)
        mine = submit_list(service, &batch->recvs, backend->submit_recv);
    banyan_status status = copy_agree(service->world, mine);
    if (status == BANYAN_OK)
        return BANYAN_OK;
    error_kept kept = error_keep(status);
    service_close_state(service);
    RETURN_IF_FAILED(open_state(service));
    return error_again(&kept);
}

static banyan_status run_by_submitting(banyan_copy_schedule *schedule, void *stream)
{
    banyan_copy_service *service = schedule->service;
    const copy_queue *batch = &schedule->batch;
    if (!service->is_open)
        return error_set(BANYAN_ERR_INVALID, "%s could not be opened again after a failure",
                         service->backend->name);
    RETURN_IF_FAILED(submit_batch(service, batch));
    RETURN_IF_FAILED(service->backend->run(service->state, stream));
    for (size_t i = 0; i < schedule->local_count; i++) {
        const banyan_copy_pair *pair = &schedule->local[i];
        RETURN_IF_FAILED(banyan_tensor_copy(&batch->recvs.data[pair->recv].tensor,
                                            &batch->sends.data[pair->send].tensor));
    }
    return BANYAN_OK;
}

banyan_status banyan_copy_schedule_run(banyan_copy_schedule *schedule, void *stream)
{
    banyan_copy_service *service = schedule->service;
    if (!service)
        return error_set(BANYAN_ERR_INVALID, "a schedule cannot run after its service is closed");
    CONTROL_CALL_WITHIN(service->world, __func__, service->timeout);
    if (device_is_host(service->options.device))
        RETURN_IF_FAILED(
            stream_check_none(stream, banyan_world_rank(service->world), "a copy service"));
    if (schedule->is_planned)
        return service->backend->execute(service->state, schedule->planned, stream);
    return run_by_submitting(schedule, stream);
}

banyan_status banyan_copy_service_run(banyan_copy_service *service, void *stream)
{
    CONTROL_ENTER_WITHIN(service->world, service->timeout);
    banyan_copy_schedule *schedule;
    RETURN_IF_FAILED(banyan_copy_service_prepare(service, &schedule));
    banyan_status status = banyan_copy_schedule_run(schedule, stream);
    banyan_copy_schedule_destroy(schedule);
    return status == BANYAN_OK ? banyan_copy_service_check(service) : status;
}
