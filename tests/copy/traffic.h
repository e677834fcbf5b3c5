/* Random traffic between all ranks of a world: every rank derives all tasks, and creates its own
 * ends of them. */
#ifndef TESTS_COPY_TRAFFIC_H
#define TESTS_COPY_TRAFFIC_H

#include "copy/boxed.h"

#define TRAFFIC_TASKS 400

typedef struct traffic_end {
    boxed box;
    int task, peer;
    uint64_t task_id;
    uint32_t part;
    bool symmetric;
    boxed source; /* for a receive, the other end's shape and strides */
} traffic_end;

typedef struct traffic {
    traffic_end sends[TRAFFIC_TASKS], recvs[TRAFFIC_TASKS];
    size_t send_count, recv_count;
    banyan_memory *memory; /* contains the symmetric ends */
} traffic;

typedef enum traffic_ids {
    TRAFFIC_BY_ID,
    TRAFFIC_BY_ORDER /* only tasks of a rank with itself use ids */
} traffic_ids;

static inline void traffic_add(random_state *random, traffic *all, int rank, int from, int to,
                               int task, traffic_ids ids, int64_t most)
{
    size_t elem_bytes = boxed_elem_size(random);
    int ndim, other_ndim;
    int64_t shape[BANYAN_MAX_DIMS], other[BANYAN_MAX_DIMS];
    boxed_random_shape(random, &ndim, shape, most);
    traffic_end recv = {.box = boxed_make(random, elem_bytes, ndim, shape, false)};
    memcpy(other, shape, sizeof shape);
    other_ndim = ndim;
    if (random_between(random, 0, 2) == 0)
        boxed_reshape(random, boxed_elements(&recv.box), &other_ndim, other);
    traffic_end send = {.box = boxed_make(random, elem_bytes, other_ndim, other, true)};
    recv.source = send.box;
    send.symmetric = random_between(random, 0, 1);
    recv.symmetric = random_between(random, 0, 1);
    send.task = recv.task = task;
    send.part = recv.part = (uint32_t)task % 3;
    send.task_id = recv.task_id = (uint64_t)task / 3;
    if (ids == TRAFFIC_BY_ORDER && from != to)
        send.task_id = recv.task_id = BANYAN_TASK_ID_NONE;
    send.peer = to;
    recv.peer = from;
    if (from == rank)
        all->sends[all->send_count++] = send;
    if (to == rank)
        all->recvs[all->recv_count++] = recv;
}

static inline void traffic_place(traffic *all, traffic_end *ends, size_t count, size_t *used)
{
    for (size_t i = 0; i < count; i++) {
        char *memory = all->memory ? (char *)banyan_memory_local(all->memory) + *used : NULL;
        boxed_place(&ends[i].box, ends[i].symmetric ? memory : NULL);
        if (ends[i].symmetric)
            *used += ends[i].box.memory_bytes;
    }
}

/* `tasks` tasks between random ranks, of up to `most` elements. Collective. */
static inline traffic *traffic_make(banyan_world *world, uint64_t seed, int tasks, traffic_ids ids,
                                    int64_t most)
{
    random_state random = random_from(seed);
    int size = banyan_world_size(world);
    traffic *all = calloc(1, sizeof *all);
    for (int task = 0; task < tasks; task++) {
        int from = (int)random_between(&random, 0, size - 1);
        int to = (int)random_between(&random, 0, size - 1);
        traffic_add(&random, all, banyan_world_rank(world), from, to, task, ids, most);
    }
    size_t bytes = 0, used = 0;
    for (size_t i = 0; i < all->send_count; i++)
        bytes += all->sends[i].symmetric ? all->sends[i].box.memory_bytes : 0;
    for (size_t i = 0; i < all->recv_count; i++)
        bytes += all->recvs[i].symmetric ? all->recvs[i].box.memory_bytes : 0;
    CHECK_OK(banyan_memory_alloc(world, bytes, &all->memory));
    traffic_place(all, all->sends, all->send_count, &used);
    traffic_place(all, all->recvs, all->recv_count, &used);
    return all;
}

static inline void traffic_free(traffic *all)
{
    for (size_t i = 0; i < all->send_count; i++)
        boxed_free(&all->sends[i].box);
    for (size_t i = 0; i < all->recv_count; i++)
        boxed_free(&all->recvs[i].box);
    banyan_memory_free(all->memory);
    free(all);
}

static inline void traffic_element(int task, uint64_t run, uint64_t index, size_t bytes, void *out)
{
    char name[64];
    snprintf(name, sizeof name, "task %d in run %d", task, (int)run);
    pattern_element(name, index, bytes, out);
}

/* New data in all sources, poison in all destinations. If a source repeats an element, the last
 * index of its place determines the value. */
static inline void traffic_fill(traffic *all, uint64_t run)
{
    for (size_t i = 0; i < all->send_count; i++) {
        boxed *box = &all->sends[i].box;
        for (uint64_t k = 0; k < boxed_elements(box); k++)
            traffic_element(all->sends[i].task, run, k, box->elem_bytes, boxed_element(box, k));
    }
    for (size_t i = 0; i < all->recv_count; i++)
        boxed_poison(&all->recvs[i].box);
}

/* A source that repeats elements was filled in ascending order: the last index of a place
 * determined its value. */
static inline uint64_t traffic_last_index(const boxed *source, uint64_t index)
{
    uint64_t last = 0, weight = 1;
    for (int i = source->tensor.ndim - 1; i >= 0; i--) {
        uint64_t extent = (uint64_t)source->shape[i];
        last += weight * (source->strides[i] == 0 ? extent - 1 : index % extent);
        index /= extent;
        weight *= extent;
    }
    return last;
}

/* Every element has arrived, and nothing else has changed. */
static inline void traffic_check(const traffic *all, uint64_t run)
{
    for (size_t i = 0; i < all->recv_count; i++) {
        const traffic_end *end = &all->recvs[i];
        const boxed *box = &end->box;
        unsigned char *wanted = malloc(box->memory_bytes);
        memset(wanted, BOXED_POISON, box->memory_bytes);
        for (uint64_t k = 0; k < boxed_elements(box); k++)
            traffic_element(end->task, run, traffic_last_index(&end->source, k), box->elem_bytes,
                            wanted + (boxed_element(box, k) - box->memory));
        CHECK(memcmp(wanted, box->memory, box->memory_bytes) == 0,
              "task %d from rank %d, run %d: %d dimensions, elements of %zu bytes, %s memory",
              end->task, end->peer, (int)run, box->tensor.ndim, box->elem_bytes,
              end->symmetric ? "symmetric" : "ordinary");
        free(wanted);
    }
}

static inline void traffic_check_untouched(const traffic *all)
{
    for (size_t i = 0; i < all->recv_count; i++)
        CHECK(boxed_is_poisoned(&all->recvs[i].box), "task %d was written", all->recvs[i].task);
}

static inline void traffic_submit(traffic *all, banyan_copy_service *service)
{
    for (size_t i = 0; i < all->send_count; i++) {
        traffic_end *end = &all->sends[i];
        banyan_send_op op = {*boxed_tensor(&end->box), end->peer, end->task_id, end->part, 0};
        CHECK_OK(banyan_copy_service_submit_send_op(service, &op));
    }
    for (size_t i = 0; i < all->recv_count; i++) {
        traffic_end *end = &all->recvs[i];
        banyan_recv_op op = {*boxed_tensor(&end->box), end->peer, end->task_id, end->part, 0};
        CHECK_OK(banyan_copy_service_submit_recv_op(service, &op));
    }
}

#endif
