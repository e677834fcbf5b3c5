/* Runs with a transform of this test: it is called at the right times, its parts travel, its
 * memory stays in place, and its failures stop every rank. */
#include "support/test.h"

#include "copy/strided/strided.h"
#include "reshard/filled.h"
#include "reshard/mailbox.h"
#include "reshard/random_case.h"
#include "reshard/run/memory.h"

/* Sends each box as its inverted bytes, with a label that identifies it. */
typedef struct mirror {
    int begun, finished, sent, received, finalized;
    int fail_send; /* the n-th prepare_send from now on fails; 0: none */
    uint64_t most_bytes;
} mirror;

static bool mirror_takes(void *context, const banyan_transfer *transfer)
{
    (void)context;
    return transfer->name[strlen("layer.")] % 2 == 0; /* layer.0, layer.2, … */
}

static banyan_status mirror_begin(void *context)
{
    ((mirror *)context)->begun++;
    return BANYAN_OK;
}

static banyan_status mirror_finish(void *context)
{
    ((mirror *)context)->finished++;
    return BANYAN_OK;
}

/* Shapes lie in the scratch too: they must last as long as the parts. */
static banyan_status make_parts(const banyan_transform_task *task,
                                banyan_transform_scratch *scratch, DLTensor *parts, int *part_count)
{
    uint64_t elems = banyan_box_elems(&task->transfer->box);
    size_t bytes = elems * banyan_dtype_bytes(task->local->dtype);
    int64_t *shape = banyan_transform_scratch_take(scratch, 2 * sizeof *shape);
    void *data = shape ? banyan_transform_scratch_take(scratch, bytes) : NULL;
    uint64_t *label = data ? banyan_transform_scratch_take(scratch, sizeof *label) : NULL;
    if (!label)
        return BANYAN_ERR_NO_MEMORY;
    shape[0] = (int64_t)bytes;
    shape[1] = 1;
    parts[0] = (DLTensor){
        .data = data, .device = {kDLCPU, 0}, .ndim = 1, .dtype = BANYAN_U8, .shape = &shape[0]};
    parts[1] = (DLTensor){.data = label,
                          .device = {kDLCPU, 0},
                          .ndim = 1,
                          .dtype = {kDLUInt, 64, 1},
                          .shape = &shape[1]};
    *part_count = 2;
    return BANYAN_OK;
}

static uint64_t label_of(const banyan_transfer *transfer)
{
    return transfer->task_id ^ (uint64_t)transfer->box.start[0] * 31 ^
           banyan_box_elems(&transfer->box);
}

static void turn_over(unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (unsigned char)~bytes[i];
}

static banyan_status mirror_prepare_send(void *context, const banyan_transform_task *task,
                                         banyan_transform_scratch *scratch, DLTensor *parts,
                                         int *part_count)
{
    mirror *self = context;
    self->sent++;
    if (self->fail_send > 0 && --self->fail_send == 0)
        return banyan_error_set(BANYAN_ERR_INVALID, "the mirror is broken");
    RETURN_IF_FAILED(make_parts(task, scratch, parts, part_count));
    strided_view view;
    RETURN_IF_FAILED(strided_view_of(task->local, &view));
    strided_pack(parts[0].data, &view, 0, view.elems);
    turn_over(parts[0].data, (size_t)parts[0].shape[0]);
    *(uint64_t *)parts[1].data = label_of(task->transfer);
    if (task->transfer->bytes > self->most_bytes)
        self->most_bytes = task->transfer->bytes;
    return BANYAN_OK;
}

static banyan_status mirror_prepare_recv(void *context, const banyan_transform_task *task,
                                         banyan_transform_scratch *scratch, DLTensor *parts,
                                         int *part_count)
{
    mirror *self = context;
    self->received++;
    RETURN_IF_FAILED(make_parts(task, scratch, parts, part_count));
    memset(parts[0].data, 0x11, (size_t)parts[0].shape[0]);
    return BANYAN_OK;
}

/* The task's description of the local tensor must lead to the same memory as its view. */
static void check_place(const banyan_transform_task *task)
{
    int64_t offset = 0;
    for (int k = 0; k < task->whole->ndim; k++)
        offset += task->local_start[k] * task->whole->strides[k];
    CHECK((char *)task->whole->data + task->whole->byte_offset +
              offset * (int64_t)banyan_dtype_bytes(task->whole->dtype) ==
          (char *)task->local->data + task->local->byte_offset);
    for (int d = 0; d < task->local->ndim; d++)
        CHECK((task->dim_map[d] == BANYAN_NO_DIM ||
               task->local->strides[d] == task->whole->strides[task->dim_map[d]]) &&
              task->local->shape[d] == task->transfer->box.extent[d]);
    CHECK(strncmp(task->local_name, "local.", 6) == 0);
}

static banyan_status mirror_finalize(void *context, const banyan_transform_task *task,
                                     const DLTensor *parts, int part_count)
{
    ((mirror *)context)->finalized++;
    CHECK(part_count == 2 && *(uint64_t *)parts[1].data == label_of(task->transfer));
    check_place(task);
    turn_over(parts[0].data, (size_t)parts[0].shape[0]);
    strided_view view;
    RETURN_IF_FAILED(strided_view_of(task->local, &view));
    strided_unpack(&view, 0, view.elems, parts[0].data);
    return BANYAN_OK;
}

static banyan_transform mirror_transform(mirror *self)
{
    return (banyan_transform){
        .size = sizeof(banyan_transform),
        .name = "mirror",
        .context = self,
        .should_transform = mirror_takes,
        .begin = mirror_begin,
        .prepare_send = mirror_prepare_send,
        .prepare_recv = mirror_prepare_recv,
        .finalize_recv = mirror_finalize,
        .finish = mirror_finish,
    };
}

typedef struct bench {
    banyan_layout *source_layout, *destination_layout;
    banyan_tensors *source, *destination;
    banyan_reshard_plan *plan;
    banyan_copy_service *service;
    banyan_transform transform;
} bench;

static bench bench_make(banyan_world *world, const random_case *of, const char *backend,
                        banyan_reshard_options *options, mirror *self)
{
    int rank = banyan_world_rank(world);
    bench made = {.source_layout = case_layout(of, rank, false),
                  .destination_layout = case_layout(of, rank, true),
                  .transform = mirror_transform(self)};
    CHECK_OK(banyan_tensors_alloc(made.source_layout, world, &made.source));
    CHECK_OK(banyan_tensors_alloc(made.destination_layout, world, &made.destination));
    filled_poison(made.destination);
    options->transform = &made.transform;
    CHECK_OK(banyan_reshard_plan_create(made.source_layout, made.destination_layout, world, options,
                                        &made.plan));
    if (backend)
        CHECK_OK(banyan_copy_service_open(world, backend, NULL, &made.service));
    else
        CHECK_OK(banyan_copy_service_open_backend(world, &mailbox_backend, NULL, &made.service));
    return made;
}

static void bench_free(bench *of)
{
    banyan_reshard_plan_destroy(of->plan);
    banyan_copy_service_close(of->service);
    banyan_tensors_destroy(of->source);
    banyan_tensors_destroy(of->destination);
    banyan_layout_destroy(of->source_layout);
    banyan_layout_destroy(of->destination_layout);
}

static banyan_status bench_run(bench *of, banyan_world *world, int pass)
{
    filled_make(of->source_layout, of->source, pass);
    CHECK_OK(banyan_world_barrier(world));
    return banyan_reshard_execute(of->plan, of->source, of->destination, of->service, world,
                                  &of->transform, NULL);
}

static void run_mirrored(banyan_world *world, void *context)
{
    random_state random = random_from(*(const uint64_t *)context);
    static const char *const backends[] = {NULL, "direct"};
    static const uint64_t bounds[] = {0, 1024, 20000};
    for (int round = 0; round < 12; round++) {
        case_options shape = {.world_size = banyan_world_size(world), .max_elems = 1500};
        random_case *of = case_make(random_next(&random), &shape);
        banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
        options.min_split_bytes = 64;
        options.max_staging_bytes = bounds[round % 3];
        options.checksums = round % 2;
        mirror self = {0};
        run_memory_restart();
        bench mine = bench_make(world, of, backends[round / 2 % 2], &options, &self);
        for (int pass = 1; pass <= 3; pass++) {
            int finalized = self.finalized, received = self.received;
            CHECK_OK(bench_run(&mine, world, pass));
            filled_check(mine.destination_layout, mine.destination, pass, false);
            CHECK(self.finished == pass && self.begun == pass + 1);
            /* The first run calls once more, to learn its memory use. */
            CHECK(self.received - received == (pass == 1 ? 2 : 1) * (self.finalized - finalized));
        }
        CHECK(options.max_staging_bytes == 0 || self.most_bytes <= options.max_staging_bytes / 4);
        CHECK(options.max_staging_bytes == 0 || run_memory_peak() <= options.max_staging_bytes,
              "%llu of %llu", (unsigned long long)run_memory_peak(),
              (unsigned long long)options.max_staging_bytes);
        bench_free(&mine);
        free(of);
    }
}

static void the_parts_of_a_transform_arrive(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    ranks_run(3, run_mirrored, &seed);
}

/* Every rank has half of one tensor and needs the whole. */
static random_case *gather_case(int world_size)
{
    random_case *made = calloc(1, sizeof *made);
    made->world_size = world_size;
    made->tensor_count = 1;
    made->tensors[0] = (case_tensor){"layer.0", {kDLFloat, 32, 1}, 2, {8 * world_size, 5}};
    for (int rank = 0; rank < world_size; rank++) {
        case_holding holding = {.box = {2, {8 * rank, 0}, {8, 5}},
                                .ranks = banyan_rank_set_one(rank)};
        made->holdings[made->holding_count++] = holding;
        holding.is_destination = true;
        holding.box = box_whole(2, made->tensors[0].shape);
        made->holdings[made->holding_count++] = holding;
    }
    return made;
}

static void break_a_mirror(banyan_world *world, void *context)
{
    const char *backend = context;
    int rank = banyan_world_rank(world);
    random_case *of = gather_case(banyan_world_size(world));
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    mirror self = {0};
    bench mine = bench_make(world, of, backend, &options, &self);
    /* During the run's preparation, in its first move, and in a later one. */
    for (int at = 0; at < 3; at++) {
        int sends = banyan_world_size(world); /* a box to each other rank, and one to itself */
        if (at == 2) {
            CHECK_OK(bench_run(&mine, world, 1));
            filled_check(mine.destination_layout, mine.destination, 1, false);
        }
        self.fail_send = rank == 1 ? 1 + (at == 1 ? sends : 0) : 0;
        CHECK_FAILS(bench_run(&mine, world, 2), BANYAN_ERR_INVALID, "the mirror is broken");
        CHECK(rank == 1 || strstr(banyan_last_error(), "rank 1: "), "%s", banyan_last_error());
        CHECK(!strstr(banyan_last_error(), "rank 0: rank 1"), "%s", banyan_last_error());
        CHECK(banyan_tensors_get_state(mine.destination) == BANYAN_TENSORS_TORN);
        filled_poison(mine.destination);
    }
    CHECK_OK(bench_run(&mine, world, 3));
    filled_check(mine.destination_layout, mine.destination, 3, false);
    bench_free(&mine);
    free(of);
}

static void a_transform_that_fails_stops_every_rank(void **state)
{
    (void)state;
    ranks_run(3, break_a_mirror, NULL);
    ranks_run(3, break_a_mirror, (char[]){"direct"});
}

/* BF16 is the rounded upper half of F32: close in any case. */
static void compare_rounded(const banyan_piece *piece, const int64_t *index, uint64_t flat,
                            unsigned char *element, size_t elem_bytes, void *context)
{
    (void)index;
    (void)context;
    float value, near;
    uint16_t half;
    CHECK(elem_bytes == sizeof half);
    filled_value(piece->name, 1, flat, sizeof value, (unsigned char *)&value);
    memcpy(&half, element, sizeof half);
    uint32_t bits = (uint32_t)half << 16;
    memcpy(&near, &bits, sizeof near);
    float gap = near > value ? near - value : value - near;
    CHECK(gap <= (value < 0 ? -value : value) / 256, "element %llu: %g is not near %g",
          (unsigned long long)flat, (double)near, (double)value);
}

static void leave_out_the_transform(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    random_case *of = gather_case(banyan_world_size(world));
    banyan_layout *source_layout = case_layout(of, rank, false);
    of->tensors[0].dtype = BANYAN_BF16;
    banyan_layout *destination_layout = case_layout(of, rank, true);
    banyan_transform *cast;
    CHECK_OK(banyan_cast_create(NULL, &cast));
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.transform = cast;
    banyan_tensors *source, *destination;
    CHECK_OK(banyan_tensors_alloc(source_layout, world, &source));
    CHECK_OK(banyan_tensors_alloc(destination_layout, world, &destination));
    banyan_reshard_plan *plan;
    CHECK_OK(banyan_reshard_plan_create(source_layout, destination_layout, world, &options, &plan));
    banyan_copy_service *service;
    CHECK_OK(banyan_copy_service_open(world, "direct", NULL, &service));
    CHECK_FAILS(banyan_reshard_execute(plan, source, destination, service, world, NULL, NULL),
                BANYAN_ERR_INVALID, "this run has no transform that takes it");
    filled_make(source_layout, source, 1);
    CHECK_OK(banyan_world_barrier(world));
    CHECK_OK(banyan_reshard_execute(plan, source, destination, service, world, cast, NULL));
    filled_each(destination_layout, destination, compare_rounded, NULL);
    banyan_reshard_plan_destroy(plan);
    banyan_copy_service_close(service);
    banyan_tensors_destroy(source);
    banyan_tensors_destroy(destination);
    banyan_layout_destroy(source_layout);
    banyan_layout_destroy(destination_layout);
    banyan_transform_destroy(cast);
    free(of);
}

static void types_that_differ_need_the_transform_in_the_run_too(void **state)
{
    (void)state;
    ranks_run(2, leave_out_the_transform, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_parts_of_a_transform_arrive),
        cmocka_unit_test(a_transform_that_fails_stops_every_rank),
        cmocka_unit_test(types_that_differ_need_the_transform_in_the_run_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
