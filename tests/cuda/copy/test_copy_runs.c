/* Runs of bytes at any address between GPUs: all arrive, and no byte beside them changes. */
#include "support/gpu/gpu_stream.h"
#include "support/test.h"

#define CASES 40

/* A box of rows on each side, in a larger memory. */
typedef struct runs_side {
    int64_t strides[3];
    size_t offset, bytes;
} runs_side;

typedef struct runs_case {
    int64_t shape[3];
    runs_side to, from;
} runs_case;

/* One side's rows are dense or apart, by an odd number of bytes or by whole words. */
static runs_side draw_side(random_state *random, const int64_t *shape)
{
    int64_t gap = random_between(random, 0, 2) == 0 ? 0 : random_between(random, 1, 40);
    runs_side made = {.offset = (size_t)random_between(random, 0, 33)};
    if (random_between(random, 0, 2) == 0)
        gap = (shape[2] + 15) / 16 * 16 - shape[2];
    made.strides[2] = 1;
    made.strides[1] = shape[2] + gap;
    made.strides[0] = shape[1] * made.strides[1] + random_between(random, 0, 20);
    made.bytes = made.offset + (size_t)(shape[0] * made.strides[0]) + 40;
    return made;
}

static runs_case draw_case(random_state *random)
{
    static const int64_t most[] = {40, 200, 1100, 20000};
    runs_case made;
    made.shape[2] = random_between(random, 1, most[random_between(random, 0, 3)]);
    made.shape[1] = random_between(random, 1, made.shape[2] > 2000 ? 3 : 20);
    made.shape[0] = random_between(random, 1, 3);
    made.to = draw_side(random, made.shape);
    made.from = draw_side(random, made.shape);
    return made;
}

static void fill(unsigned char *memory, size_t bytes, uint64_t seed, int rank)
{
    random_state random = random_from(seed ^ (uint64_t)rank << 32);
    for (size_t i = 0; i < bytes; i++)
        memory[i] = (unsigned char)random_next(&random);
}

static DLTensor tensor_of(runs_case *of, runs_side *side, void *memory, DLDevice device)
{
    return (DLTensor){.data = memory,
                      .device = device,
                      .ndim = 3,
                      .dtype = BANYAN_U8,
                      .shape = of->shape,
                      .strides = side->strides,
                      .byte_offset = side->offset};
}

static size_t place(const runs_side *side, int64_t i, int64_t k, int64_t byte)
{
    return side->offset + (size_t)(i * side->strides[0] + k * side->strides[1] + byte);
}

static void move_one(banyan_world *world, banyan_copy_service *service, DLDevice device,
                     uint64_t seed)
{
    random_state random = random_from(seed);
    runs_case of = draw_case(&random);
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    int ahead = (rank + 1) % size, behind = (rank + size - 1) % size;
    unsigned char *image = malloc(of.from.bytes), *wanted = malloc(of.to.bytes);
    void *sent;
    banyan_memory *received;
    CHECK_OK(gpu_memory()->alloc(device.device_id, of.from.bytes, &sent));
    CHECK_OK(banyan_memory_alloc_on(world, device, of.to.bytes, &received));
    fill(image, of.from.bytes, seed, rank);
    gpu_copy(sent, image, of.from.bytes);
    gpu_fill(banyan_memory_local(received), 0xa5, of.to.bytes);
    DLTensor from = tensor_of(&of, &of.from, sent, device);
    DLTensor to = tensor_of(&of, &of.to, banyan_memory_local(received), device);
    CHECK_OK(banyan_world_barrier(world));
    CHECK_OK(banyan_copy_service_submit_send(service, &from, ahead, 3));
    CHECK_OK(banyan_copy_service_submit_recv(service, &to, behind, 3));
    CHECK_OK(banyan_copy_service_run(service, NULL));
    fill(image, of.from.bytes, seed, behind);
    memset(wanted, 0xa5, of.to.bytes);
    for (int64_t i = 0; i < of.shape[0]; i++)
        for (int64_t k = 0; k < of.shape[1]; k++)
            for (int64_t byte = 0; byte < of.shape[2]; byte++)
                wanted[place(&of.to, i, k, byte)] = image[place(&of.from, i, k, byte)];
    unsigned char *got = gpu_read(banyan_memory_local(received), of.to.bytes);
    for (size_t i = 0; i < of.to.bytes; i++)
        CHECK(got[i] == wanted[i], "byte %zu of %zu, rows of %d bytes: %#x, not %#x", i,
              of.to.bytes, (int)of.shape[2], got[i], wanted[i]);
    CHECK_OK(banyan_world_barrier(world));
    free(got);
    free(wanted);
    free(image);
    gpu_memory()->free(device.device_id, sent);
    banyan_memory_free(received);
}

static void move_many(banyan_world *world, void *context)
{
    random_state random = random_from(*(const uint64_t *)context);
    DLDevice device = gpu_device_for(banyan_world_rank(world));
    banyan_copy_service *service;
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.device = device;
    CHECK_OK(banyan_copy_service_open(world, "direct", &options, &service));
    for (int i = 0; i < CASES; i++)
        move_one(world, service, device, random_next(&random));
    banyan_copy_service_close(service);
}

static void runs_arrive_whole_and_nothing_beside_them(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    ranks_run(1, move_many, &seed);
    ranks_run(2, move_many, &seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(runs_arrive_whole_and_nothing_beside_them)};
    gpu_count();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
