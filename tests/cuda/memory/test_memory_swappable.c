/* Memory with a shadow: both change places at unchanged addresses, graphs and copies see what is
 * there now, nobody else can map it, and nothing of it is left behind. */
#include "support/test.h"

#include "support/gpu/gpu_stream.h"

#define BYTES ((size_t)5000000)

static void expect(const void *at, uint8_t value)
{
    uint8_t *here = gpu_read(at, BYTES);
    for (size_t i = 0; i < BYTES; i++)
        CHECK(here[i] == value, "byte %zu is %u, not %u", i, here[i], value);
    free(here);
}

static size_t free_bytes(DLDevice device)
{
    size_t left, all;
    CHECK_OK(gpu_memory()->room(device.device_id, &left, &all));
    return left;
}

static void swap_often(banyan_world *world, void *context)
{
    (void)world, (void)context;
    const memory_device_ops *ops = gpu_memory();
    DLDevice device = gpu_device_for(0);
    device_swappable *memory;
    void *live, *shadow, *again;
    CHECK_OK(ops->open(device.device_id));
    void *stream = gpu_stream_create(device);
    uint8_t *copied = gpu_plain_alloc(device, BYTES);
    size_t before = free_bytes(device);
    CHECK_OK(ops->swappable_create(device.device_id, BYTES, &memory, &live));
    CHECK_OK(ops->fill(live, 1, BYTES));
    CHECK_OK(ops->swappable_double(memory, &shadow));
    CHECK_OK(ops->swappable_double(memory, &again));
    CHECK(again == shadow && shadow != live);
    CHECK_OK(ops->fill(shadow, 2, BYTES));
    gpu_capture_begin(device, stream);
    gpu_stream_copy(device, stream, copied, live, BYTES);
    void *graph = gpu_capture_end(device, stream);
    for (int i = 0; i < 5; i++) {
        CHECK_OK(ops->swappable_swap(memory));
        expect(live, i % 2 == 0 ? 2 : 1);
        expect(shadow, i % 2 == 0 ? 1 : 2);
        gpu_graph_launch(device, graph, stream);
        gpu_stream_wait(device, stream);
        expect(copied, i % 2 == 0 ? 2 : 1);
    }
    ops->swappable_undouble(memory);
    expect(live, 2);
    CHECK_OK(ops->swappable_double(memory, &shadow));
    CHECK_OK(ops->copy(shadow, live, BYTES));
    CHECK_OK(ops->swappable_swap(memory));
    expect(live, 2);
    ops->swappable_free(memory);
    if (gpu_is_emulated()) /* elsewhere others use the device, too */
        CHECK(free_bytes(device) == before, "memory is left behind");
    gpu_graph_destroy(device, graph);
    gpu_plain_free(device, copied);
    gpu_stream_destroy(device, stream);
}

static void memory_and_shadow_change_places(void **state)
{
    (void)state;
    ranks_run(1, swap_often, NULL);
}

/* Peers of the owner would keep what was mapped, so they cannot map it. */
static void describe(banyan_world *world, void *context)
{
    (void)world, (void)context;
    const memory_device_ops *ops = gpu_memory();
    device_swappable *memory;
    device_share share = {0};
    char reason[256] = "";
    void *live;
    int device = gpu_device_for(0).device_id;
    CHECK_OK(ops->open(device));
    CHECK_OK(ops->swappable_create(device, BYTES, &memory, &live));
    CHECK_OK(ops->share(live, BYTES, &share, reason, sizeof reason));
    CHECK(strstr(reason, "without a handle for other processes"), "%s", reason);
    ops->swappable_free(memory);
}

static void no_other_process_can_map_it(void **state)
{
    (void)state;
    ranks_run(1, describe, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_and_shadow_change_places),
        cmocka_unit_test(no_other_process_can_map_it),
    };
    gpu_count();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
