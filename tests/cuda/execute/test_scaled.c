/* Averages and scaled sums between GPUs, also in graphs. */
#include "collective/scaled_check.h"
#include "support/gpu/gpu_stream.h"

#define MOST 3000 /* elements of a block */

static void run_case(const scaled_case *c, banyan_comm *comm, char *memory, DLDevice device,
                     void *stream, int rank, int ranks)
{
    size_t elem = banyan_dtype_bytes(scaled_dtypes[c->type]);
    size_t inputs = c->count * (c->kind == BANYAN_REDUCESCATTER ? (size_t)ranks : 1);
    /* Odd offsets take the kernel's path for any address. */
    char *input = memory + (c->salt % 2) * elem;
    char *output = memory + ((size_t)ranks * MOST + 8) * 8;
    if (c->in_place)
        output = c->kind == BANYAN_REDUCESCATTER ? input + (size_t)rank * c->count * elem : input;
    bool has_result = c->kind != BANYAN_REDUCE || c->root == rank;
    char *values = malloc(inputs * elem);
    for (size_t i = 0; i < inputs; i++)
        scaled_put(values, c->type, i, scaled_value(c->type, rank, i, c->salt));
    gpu_copy(input, values, inputs * elem);
    double factor = scaled_factor(c, rank, ranks);
    bool in_graph = c->salt % 5 == 0;
    if (in_graph)
        gpu_capture_begin(device, stream);
    CHECK_OK(scaled_call(comm, c, input, has_result ? output : NULL, factor, stream));
    if (in_graph) {
        void *graph = gpu_capture_end(device, stream);
        gpu_graph_launch(device, graph, stream);
        gpu_stream_wait(device, stream);
        gpu_graph_destroy(device, graph);
    }
    gpu_stream_wait(device, stream);
    CHECK_OK(banyan_comm_status(comm));
    if (has_result) {
        char *got = gpu_read(output, c->count * elem);
        scaled_compare(c, got, rank, ranks);
        free(got);
    }
    if (!c->in_place || !has_result) {
        char *kept = gpu_read(input, inputs * elem);
        CHECK(memcmp(kept, values, inputs * elem) == 0, "the input changed");
        free(kept);
    }
    free(values);
}

static void run_cases(banyan_world *world, void *context)
{
    random_state random = random_from(*(uint64_t *)context);
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    DLDevice device = gpu_device_for(rank);
    size_t bytes = 2 * ((size_t)ranks * MOST + 8) * 8;
    banyan_comm_options options = BANYAN_COMM_OPTIONS_INIT;
    banyan_comm *comm;
    banyan_memory *memory;
    void *ordinary;
    options.device = device;
    CHECK_OK(banyan_comm_create(world, &options, &comm));
    void *stream = gpu_stream_create(device);
    CHECK_OK(gpu_memory()->alloc(device.device_id, bytes, &ordinary));
    CHECK_OK(banyan_memory_alloc_on(world, device, bytes, &memory));
    CHECK_OK(banyan_comm_register(comm, memory));
    for (int i = 0; i < 60; i++) {
        scaled_case c = scaled_draw(&random, ranks, MOST);
        run_case(&c, comm, i % 2 ? banyan_memory_local(memory) : ordinary, device, stream, rank,
                 ranks);
    }
    CHECK_OK(banyan_comm_unregister(comm, memory));
    CHECK_OK(banyan_comm_destroy(comm));
    banyan_memory_free(memory);
    gpu_memory()->free(device.device_id, ordinary);
    gpu_stream_destroy(device, stream);
}

static void averages_and_scaled_sums_follow_their_definition(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    ranks_run(2, run_cases, &seed);
    seed++;
    if (gpu_count() >= 3)
        ranks_run(3, run_cases, &seed);
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(averages_and_scaled_sums_follow_their_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
