/* Thousands of transfers of very different sizes between GPUs in one run, as in the benchmark: all
 * arrive, and nothing between them changes. */
#include "common/many_layout.h"

#include "support/gpu/gpu_stream.h"
#include "support/random.h"
#include "support/ranks.h"
#include "support/test.h"

#define RANKS 4
#define RUNS 2

typedef struct way {
    const char *backend, *transport;
    size_t slot_bytes;
    bool optional;
} way;

typedef struct many_test {
    many_options options;
    way ways[3];
    int way_count;
} many_test;

static many_options options_of(size_t count)
{
    return (many_options){.ranks = RANKS,
                          .count = count,
                          .least_bytes = 16,
                          .most_bytes = 256 << 10,
                          .total_bytes = RANKS * count * 256,
                          .seed = random_seed()};
}

static void write_element(char *at, uint32_t value, uint32_t bytes)
{
    memcpy(at, &value, bytes); /* little-endian */
}

static void fill(const many_layout *layout, int rank, char *image)
{
    for (size_t i = 0; i < layout->count; i++) {
        const many_area of = many_area_of(&layout->list[i], true, image);
        if (layout->list[i].from != rank)
            continue;
        for (uint64_t a = 0; a < of.outer; a++)
            for (uint64_t b = 0; b < of.inner; b++)
                write_element(of.data + (a * of.pitch + b) * of.elem_bytes,
                              many_value(of.name, a * of.outer_step + b * of.inner_step),
                              of.elem_bytes);
    }
}

/* Write the expected destination. */
static void expect(const many_layout *layout, int rank, char *image)
{
    for (size_t i = 0; i < layout->count; i++) {
        const many_transfer *one = &layout->list[i];
        if (one->to != rank)
            continue;
        many_area of = many_area_of(one, false, image);
        for (uint64_t row = 0; row < one->rows; row++)
            for (uint64_t column = 0; column < one->columns; column++) {
                uint64_t place = one->destination.transposed
                                     ? column * one->destination.pitch + row
                                     : row * one->destination.pitch + column;
                write_element(of.data + place * of.elem_bytes,
                              many_value(of.name, row * one->columns + column), of.elem_bytes);
            }
    }
}

typedef struct sides {
    char *source, *destination, *expected;
    banyan_memory *received;
    size_t source_bytes, destination_bytes;
    DLDevice device;
} sides;

static sides make_sides(banyan_world *world, const many_layout *layout)
{
    int rank = banyan_world_rank(world);
    sides made = {.device = gpu_device_for(rank),
                  .source_bytes = layout->source_bytes[rank],
                  .destination_bytes = layout->destination_bytes[rank]};
    size_t most = 0;
    for (int i = 0; i < RANKS; i++)
        most = layout->destination_bytes[i] > most ? layout->destination_bytes[i] : most;
    char *image = calloc(1, made.source_bytes);
    made.source = gpu_plain_alloc(made.device, made.source_bytes);
    fill(layout, rank, image);
    gpu_copy(made.source, image, made.source_bytes);
    free(image);
    CHECK_OK(banyan_memory_alloc_on(world, made.device, most, &made.received));
    made.destination = banyan_memory_local(made.received);
    gpu_poison(made.destination, made.destination_bytes);
    made.expected = gpu_read(made.destination, made.destination_bytes);
    expect(layout, rank, made.expected);
    return made;
}

static void submit(banyan_copy_service *service, const many_layout *layout, const sides *of,
                   int rank)
{
    for (size_t i = 0; i < layout->count; i++) {
        const many_transfer *one = &layout->list[i];
        int64_t dims[4];
        if (one->from == rank) {
            DLTensor tensor = many_tensor(one, true, of->source, of->device, dims);
            CHECK_OK(banyan_copy_service_submit_send(service, &tensor, one->to, i));
        }
        if (one->to == rank) {
            DLTensor tensor = many_tensor(one, false, of->destination, of->device, dims);
            CHECK_OK(banyan_copy_service_submit_recv(service, &tensor, one->from, i));
        }
    }
}

static void check(const sides *of, const way *by, int rank)
{
    char *got = gpu_read(of->destination, of->destination_bytes);
    size_t i = 0;
    while (i < of->destination_bytes && got[i] == of->expected[i])
        i++;
    CHECK(i == of->destination_bytes, "rank %d: byte %zu of %zu by %s is wrong", rank, i,
          of->destination_bytes, by->backend);
    free(got);
}

static void move_by(banyan_world *world, const many_layout *layout, const sides *of, const way *by)
{
    banyan_copy_service *service;
    banyan_copy_schedule *schedule;
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.device = of->device;
    options.transport = by->transport;
    options.slot_bytes = by->slot_bytes;
    if (strcmp(by->backend, "nccl") == 0 && banyan_world_size(world) > gpu_count()) {
        printf("without nccl, which wants a GPU for each rank\n");
        return;
    }
    banyan_status status = banyan_copy_service_open(world, by->backend, &options, &service);
    if (status == BANYAN_ERR_UNSUPPORTED && by->optional) {
        printf("without %s: %s\n", by->backend, banyan_last_error());
        return;
    }
    CHECK_OK(status);
    submit(service, layout, of, banyan_world_rank(world));
    CHECK_OK(banyan_copy_service_prepare(service, &schedule));
    void *stream = gpu_stream_create(of->device);
    gpu_poison(of->destination, of->destination_bytes);
    CHECK_OK(banyan_world_barrier(world));
    for (int run = 0; run < RUNS; run++)
        CHECK_OK(banyan_copy_schedule_run(schedule, stream));
    gpu_stream_wait(of->device, stream);
    CHECK_OK(banyan_copy_service_check(service));
    check(of, by, banyan_world_rank(world));
    CHECK_OK(banyan_world_barrier(world));
    gpu_stream_destroy(of->device, stream);
    banyan_copy_schedule_destroy(schedule);
    banyan_copy_service_close(service);
}

static void move_many(banyan_world *world, void *context)
{
    const many_test *test = context;
    many_layout layout;
    CHECK(many_layout_make(&test->options, &layout), "out of memory");
    sides of = make_sides(world, &layout);
    for (int i = 0; i < test->way_count; i++)
        move_by(world, &layout, &of, &test->ways[i]);
    banyan_memory_free(of.received);
    gpu_plain_free(of.device, of.source);
    free(of.expected);
    many_layout_free(&layout);
}

static void thousands_of_transfers_arrive_by_every_way(void **state)
{
    (void)state;
    many_test test = {.options = options_of(3000),
                      .ways = {{"direct", NULL, 0, false},
                               {"pipeline", "peer", 64 << 10, false},
                               {"nccl", NULL, 0, true}},
                      .way_count = 3};
    ranks_run(RANKS, move_many, &test);
}

static void so_they_do_over_nvshmem(void **state)
{
    (void)state;
    many_test test = {.options = options_of(1000),
                      .ways = {{"pipeline", "nvshmem", 64 << 10, !gpu_is_emulated()}},
                      .way_count = 1};
    ranks_run(RANKS, move_many, &test);
}

static void sizes_add_up_and_most_are_small(void **state)
{
    (void)state;
    many_options options = options_of(3000);
    many_layout layout;
    assert_true(many_layout_make(&options, &layout));
    size_t small = 0;
    for (size_t i = 0; i < layout.count; i++) {
        const many_transfer *one = &layout.list[i];
        small += one->rows * one->columns * one->elem_bytes < 256;
    }
    assert_in_range(layout.bytes, options.total_bytes * 9 / 10, options.total_bytes * 11 / 10);
    assert_in_range(small, layout.count / 2, layout.count);
    many_layout_free(&layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_add_up_and_most_are_small),
        cmocka_unit_test(thousands_of_transfers_arrive_by_every_way),
        cmocka_unit_test(so_they_do_over_nvshmem),
    };
    gpu_count();
    if (gpu_is_emulated())
        setenv("BANYAN_NVSHMEM", BANYAN_EMULATED_MODULES "/libnvshmem_host.so.3", 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
