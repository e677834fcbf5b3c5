/* Inputs of calls that move tensors: copy services, reshards. One rank's part may be wrong; then
 * all ranks must get the error, and nothing may move. */
#include "copy/traffic.h"
#include "reshard/filled.h"
#include "reshard/random_case.h"
#include "soak/inputs.h"

#include <banyan/reshard.h>

/* Make one property of one operation wrong. Its memory remains inside of the real one. */
static void spoil(random_state *random, banyan_copy_op *op, int64_t *shape)
{
    switch (random_next(random) % 9) {
    case 0:
        op->task_id += 1 + random_next(random) % 1000;
        break;
    case 1:
        op->peer = input_int(random);
        break;
    case 2:
        op->part += 1 + (uint32_t)random_next(random) % 5;
        break;
    case 3:
        op->tensor.ndim = input_chance(random, 2) ? -1 : BANYAN_MAX_DIMS + 1;
        break;
    case 4:
        op->tensor.device.device_type = (DLDeviceType)random_between(random, 2, 14);
        break;
    case 5:
        op->tensor.data = NULL;
        break;
    case 6:
        op->tensor.dtype.bits = (uint8_t)(op->tensor.dtype.bits > 8 ? 8 : 4);
        break;
    case 7:
        op->flags = (uint32_t)random_next(random);
        break;
    default:
        if (op->tensor.ndim > 0)
            shape[0] = input_chance(random, 2) ? -shape[0] : shape[0] - 1;
    }
}

static void submit(inputs *of, traffic *all, banyan_copy_service *service, bool is_wrong)
{
    size_t count = all->send_count + all->recv_count;
    size_t wrong = is_wrong && count > 0 ? random_next(&of->alone) % count : SIZE_MAX;
    for (size_t i = 0; i < count; i++) {
        bool sends = i < all->send_count;
        traffic_end *end = sends ? &all->sends[i] : &all->recvs[i - all->send_count];
        banyan_copy_op op = {*boxed_tensor(&end->box), end->peer, end->task_id, end->part, 0};
        int64_t shape[BANYAN_MAX_DIMS + 2] = {0}, strides[BANYAN_MAX_DIMS + 2] = {0};
        if (op.tensor.ndim > 0)
            memcpy(shape, op.tensor.shape, (size_t)op.tensor.ndim * sizeof *shape);
        if (op.tensor.ndim > 0 && op.tensor.strides)
            memcpy(strides, op.tensor.strides, (size_t)op.tensor.ndim * sizeof *strides);
        op.tensor.shape = shape;
        op.tensor.strides = op.tensor.strides ? strides : NULL;
        if (i == wrong)
            spoil(&of->alone, &op, shape);
        banyan_status status = sends ? banyan_copy_service_submit_send_op(service, &op)
                                     : banyan_copy_service_submit_recv_op(service, &op);
        CHECK(input_taken(of, status) || i == wrong, "%s", banyan_last_error());
    }
}

void inputs_copies(inputs *of)
{
    random_state *random = &of->together;
    const char *backend = input_chance(random, 2) ? "direct" : "pipeline";
    int size = banyan_world_size(of->world), rank = banyan_world_rank(of->world);
    banyan_copy_service *service;
    CHECK_OK(banyan_copy_service_open(of->world, backend, NULL, &service));
    for (int i = 0; i < 3; i++) {
        int wrong = (int)random_between(random, 0, 2 * size);
        int tasks = (int)random_between(random, 0, 20);
        traffic *all = traffic_make(of->world, random_next(random), tasks, TRAFFIC_BY_ID, 300);
        traffic_fill(all, (uint64_t)i);
        submit(of, all, service, wrong == rank);
        bool taken = input_taken_by_all(of, banyan_copy_service_run(service, NULL));
        CHECK(taken || wrong < size, "%s", banyan_last_error());
        if (taken && wrong >= size)
            traffic_check(all, (uint64_t)i);
        if (!taken)
            traffic_check_untouched(all);
        CHECK_OK(banyan_world_barrier(of->world));
        traffic_free(all);
    }
    banyan_copy_service_close(service);
}

/* The layout again with one change; its own check may find it. */
static banyan_layout *changed(random_state *random, const banyan_layout *layout)
{
    banyan_layout *made;
    size_t tensors = banyan_layout_tensor_count(layout), pieces = banyan_layout_piece_count(layout);
    size_t at = pieces > 0 ? random_next(random) % pieces : 0;
    int what = (int)random_between(random, 0, 6);
    CHECK_OK(banyan_layout_create(&made));
    for (size_t t = 0; t < tensors; t++) {
        banyan_local_tensor local = *banyan_layout_tensor(layout, t);
        if (what == 0 && t == at % tensors)
            local.dtype = BANYAN_I64;
        banyan_layout_add_tensor(made, local.name, local.dtype, local.ndim, local.shape);
    }
    for (size_t p = 0; p < pieces; p++) {
        banyan_piece piece = *banyan_layout_piece(layout, p);
        if (p == at && what == 1)
            piece.name = "no.such.tensor";
        if (p == at && what == 2)
            piece.shape[0] += 1;
        if (p == at && what == 3)
            piece.box.extent[0] -= 1;
        if (p == at && what == 4)
            piece.replicas = (banyan_rank_set){.first = input_int(random)};
        if (p == at && what == 5)
            piece.box.start[0] += 1;
        if (p != at || what != 6)
            banyan_layout_add_piece(made, &piece);
    }
    for (size_t i = 0; i < banyan_layout_padding_count(layout); i++) {
        int tensor;
        const banyan_box *box = banyan_layout_padding(layout, i, &tensor);
        banyan_layout_add_padding(made, tensor, box);
    }
    return made;
}

static void run_plan(inputs *of, banyan_reshard_plan *plan, const banyan_layout *source,
                     const banyan_layout *destination)
{
    banyan_copy_service *service;
    banyan_tensors *from, *to;
    CHECK_OK(banyan_copy_service_open(of->world, NULL, NULL, &service));
    CHECK_OK(banyan_tensors_alloc(source, NULL, &from));
    CHECK_OK(banyan_tensors_alloc_planned(plan, NULL, &to));
    filled_make(source, from, 0);
    filled_poison(to);
    if (input_taken_by_all(of,
                           banyan_reshard_execute(plan, from, to, service, of->world, NULL, NULL)))
        filled_check(destination, to, 0, false);
    banyan_tensors_destroy(to);
    banyan_tensors_destroy(from);
    banyan_reshard_plan_release(plan);
    banyan_copy_service_close(service);
}

void inputs_reshard(inputs *of)
{
    random_state *random = &of->together;
    int size = banyan_world_size(of->world), rank = banyan_world_rank(of->world);
    case_options options = {.world_size = size, .max_elems = 600};
    int wrong = (int)random_between(random, 0, 2 * size);
    bool is_destination = input_chance(random, 2);
    random_case *made = case_make(random_next(random), &options);
    banyan_layout *sides[2] = {case_layout(made, rank, false), case_layout(made, rank, true)};
    banyan_reshard_plan *plan = NULL;
    banyan_reshard_options reshard = BANYAN_RESHARD_OPTIONS_INIT;
    reshard.min_split_bytes = (uint64_t)random_between(random, 0, 1000);
    reshard.checksums = input_chance(random, 2);
    if (input_chance(random, 20))
        reshard.size = random_next(random) % 100;
    if (wrong == rank && banyan_layout_piece_count(sides[is_destination]) > 0) {
        banyan_layout *other = changed(&of->alone, sides[is_destination]);
        banyan_layout_destroy(sides[is_destination]);
        sides[is_destination] = other;
    }
    if (input_taken_by_all(
            of, banyan_reshard_plan_create(sides[0], sides[1], of->world, &reshard, &plan)))
        run_plan(of, plan, sides[0], sides[1]);
    banyan_reshard_plan_destroy(plan);
    banyan_layout_destroy(sides[0]);
    banyan_layout_destroy(sides[1]);
    free(made);
}
