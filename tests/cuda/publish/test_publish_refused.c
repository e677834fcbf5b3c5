/* Publications on a GPU: tied weights, a GPU without memory, and streams that are being captured.
 * Elements tell their version. */
#include "publish/following.h"

#define ROWS 96
#define COLUMNS 1024
#define ELEMS (ROWS * COLUMNS)

/* ---- tied weights ---- */

/* Two tensors in one place. */
struct tied {
    banyan_layout *layout;
    banyan_tensors *set;
    DLDevice device;
    void *memory;
};

static struct tied tied_open(void)
{
    static const char *const names[] = {"embedding", "head"};
    int64_t shape[] = {ROWS, COLUMNS};
    DLTensor tensors[2];
    struct tied made = {.device = gpu_device_for(0)};
    made.memory = gpu_plain_alloc(made.device, 2 * ELEMS);
    gpu_poison(made.memory, 2 * ELEMS);
    CHECK_OK(banyan_layout_create(&made.layout));
    for (int i = 0; i < 2; i++) {
        banyan_piece piece = {.name = names[i],
                              .ndim = 2,
                              .shape = {ROWS, COLUMNS},
                              .dim_map = {0, 1},
                              .box = {.ndim = 2, .extent = {ROWS, COLUMNS}}};
        piece.tensor = banyan_layout_add_tensor(made.layout, names[i], BANYAN_BF16, 2, shape);
        banyan_layout_add_piece(made.layout, &piece);
        tensors[i] = (DLTensor){.data = made.memory,
                                .device = made.device,
                                .ndim = 2,
                                .dtype = BANYAN_BF16,
                                .shape = shape};
    }
    CHECK_OK(banyan_tensors_create(made.layout, tensors, 2, &made.set));
    return made;
}

static void tied_close(struct tied *tied)
{
    banyan_tensors_destroy(tied->set);
    banyan_layout_destroy(tied->layout);
    gpu_plain_free(tied->device, tied->memory);
}

static uint16_t tied_value(size_t i, int version)
{
    int changed_in = version;
    while (changed_in > 1 && (i * 7919 + (size_t)changed_in) % 40 != 0)
        changed_in--;
    return (uint16_t)(i * 31 + (size_t)changed_in * 257);
}

static void tied_check(const struct tied *tied, int version)
{
    uint16_t *all = gpu_read(tied->memory, 2 * ELEMS);
    for (size_t i = 0; i < ELEMS; i++)
        CHECK(all[i] == tied_value(i, version), "element %zu is not that of version %d", i,
              version);
    free(all);
}

static void publish_tied(banyan_world *world, struct apart *shared)
{
    struct tied mine = tied_open();
    struct following names = {.layout = mine.layout};
    banyan_publication *publication = publish_open(world, shared, &names, NULL);
    static uint16_t all[ELEMS];
    for (int version = 1; version <= 3; version++) {
        apart_wait(&shared->marks[MARK_STEP], version);
        for (size_t i = 0; i < ELEMS; i++)
            all[i] = tied_value(i, version);
        gpu_copy(mine.memory, all, sizeof all);
        CHECK_OK(banyan_publication_publish(publication, mine.set, (uint64_t)version, NULL));
    }
    apart_wait(&shared->marks[MARK_END], 1);
    banyan_publication_close(publication);
    tied_close(&mine);
}

static void follow_tied(banyan_world *world, struct apart *shared)
{
    struct tied mine = tied_open();
    struct following names = {.layout = mine.layout, .set = mine.set};
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    options.keep_previous = true;
    banyan_subscription *subscription = subscribe(world, shared, &names, &options);
    uint64_t version;
    for (int wanted = 1; wanted <= 3; wanted++) {
        atomic_store(&shared->marks[MARK_STEP], wanted);
        CHECK_OK(
            banyan_subscription_wait(subscription, (uint64_t)wanted - 1, 60 * NS_PER_S, &version));
        CHECK_OK(banyan_subscription_commit(subscription, &version));
        CHECK(version == (uint64_t)wanted);
        tied_check(&mine, wanted);
    }
    CHECK_OK(banyan_subscription_rollback(subscription, &version));
    CHECK(version == 2);
    tied_check(&mine, 2);
    CHECK(banyan_subscription_get_status(subscription).delta_fetches == 2);
    atomic_store(&shared->marks[MARK_END], 1);
    banyan_subscription_close(subscription);
    tied_close(&mine);
}

static void play_tied(struct apart *shared)
{
    struct apart_job publishing = apart_start(shared, 1, 0, publish_tied);
    struct apart_job following = apart_start(shared, 1, 1, follow_tied);
    apart_end_well(&following);
    apart_end_well(&publishing);
}

static void tied_weights_are_exchanged_once_and_back(void **state)
{
    (void)state;
    apart_test(play_tied);
}

/* ---- no memory ---- */

/* Take all memory of the device. */
static size_t take_all(DLDevice device, void **taken, size_t most)
{
    size_t free_bytes, all_bytes, count = 0;
    CHECK_OK(gpu_memory()->room(device.device_id, &free_bytes, &all_bytes));
    for (size_t bytes = free_bytes; bytes >= 4096 && count < most;) {
        if (gpu_memory()->alloc(device.device_id, bytes, &taken[count]) == BANYAN_OK)
            count++;
        else
            bytes /= 2;
    }
    return count;
}

static void follow_without_memory(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_matrix(banyan_world_rank(world), true, NULL);
    banyan_subscription *subscription = subscribe(world, shared, &mine, NULL);
    void *taken[256];
    uint64_t version;
    char named[32];
    atomic_store(&shared->marks[MARK_STEP], 1);
    take_above(subscription, &mine, 0);
    size_t count = take_all(mine.device, taken, sizeof taken / sizeof taken[0]);
    CHECK_OK(banyan_world_barrier(world));
    atomic_store(&shared->marks[MARK_STEP], 2);
    snprintf(named, sizeof named, "device %d", mine.device.device_id);
    expect_error(subscription, BANYAN_ERR_NO_MEMORY, "device ");
    CHECK(banyan_world_rank(world) > 0 || strstr(banyan_last_error(), named), "%s",
          banyan_last_error());
    CHECK_OK(banyan_subscription_commit(subscription, &version));
    CHECK(version == 1);
    following_check(&mine, 1);
    for (size_t i = 0; i < count; i++)
        gpu_memory()->free(mine.device.device_id, taken[i]);
    CHECK_OK(banyan_world_barrier(world));
    atomic_store(&shared->marks[MARK_STEP], 3);
    CHECK(take_above(subscription, &mine, 1) == 3);
    CHECK(banyan_subscription_get_status(subscription).whole_fetches == 1);
    CHECK_OK(banyan_world_barrier(world));
    end_engine(shared, subscription, &mine);
}

static void play_without_memory(struct apart *shared)
{
    play_with(shared, publish_matrix, follow_without_memory);
}

/* On hardware other processes may free memory meanwhile. */
static void an_engine_whose_gpu_is_full_keeps_its_version(void **state)
{
    (void)state;
    if (!gpu_is_emulated())
        skip();
    following_trainers_on_gpu = false; /* an emulated device of one process is another's, too */
    following_engines_on_gpu = true;
    apart_test(play_without_memory);
}

/* ---- captured streams ---- */

static void publish_beside_a_capture(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world);
    struct following mine = following_open_matrix(rank, false, NULL);
    banyan_publication *publication = publish_open(world, shared, &mine, NULL);
    publish_version(publication, &mine, 1);
    following_write(&mine, 2);
    if (rank == 1)
        gpu_capture_begin(mine.device, mine.stream);
    CHECK_FAILS(banyan_publication_publish(publication, mine.set, 2, NULL), BANYAN_ERR_INVALID,
                "is being captured");
    if (rank == 1)
        gpu_graph_destroy(mine.device, gpu_capture_end(mine.device, mine.stream));
    CHECK_OK(banyan_publication_publish(publication, mine.set, 2, NULL));
    apart_wait(&shared->marks[MARK_END], FOLLOWING_ENGINES);
    banyan_publication_close(publication);
    following_close(&mine);
}

static void commit_beside_a_capture(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world);
    struct following mine = following_open_matrix(rank, true, NULL);
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    options.keep_previous = true;
    banyan_subscription *subscription = subscribe(world, shared, &mine, &options);
    uint64_t version = 7;
    CHECK_OK(banyan_subscription_wait(subscription, 0, 60 * NS_PER_S, &version));
    CHECK_OK(banyan_world_barrier(world));
    if (rank == 1)
        gpu_capture_begin(mine.device, mine.stream);
    CHECK_FAILS(banyan_subscription_commit(subscription, &version), BANYAN_ERR_INVALID,
                "is being captured");
    CHECK(banyan_subscription_get_status(subscription).version == 0);
    if (rank == 1)
        gpu_graph_destroy(mine.device, gpu_capture_end(mine.device, mine.stream));
    CHECK(take_above(subscription, &mine, 1) == 2);
    end_engine(shared, subscription, &mine);
}

static void play_captures(struct apart *shared)
{
    play_with(shared, publish_beside_a_capture, commit_beside_a_capture);
}

static void a_captured_stream_is_refused_before_anything_moves(void **state)
{
    (void)state;
    following_trainers_on_gpu = following_engines_on_gpu = true;
    apart_test(play_captures);
}

/* ---- nothing to publish ---- */

static void subscribe_for_nothing(banyan_world *world, void *context)
{
    struct following mine = {.device = gpu_device_for(0)};
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    banyan_subscription *subscription;
    (void)context;
    CHECK_OK(banyan_layout_create(&mine.layout));
    CHECK_OK(banyan_layout_check(mine.layout));
    CHECK_OK(banyan_tensors_alloc_on(mine.layout, NULL, mine.device, &mine.set));
    options.stream = gpu_stream_create(mine.device);
    CHECK_OK(banyan_subscription_open(world, mine.layout, mine.set, "127.0.0.1:1", APART_SECRET,
                                      &options, &subscription));
    banyan_subscription_close(subscription);
    gpu_stream_destroy(mine.device, options.stream);
    banyan_tensors_destroy(mine.set);
    banyan_layout_destroy(mine.layout);
}

static void a_rank_without_tensors_may_pass_a_stream(void **state)
{
    (void)state;
    ranks_run(1, subscribe_for_nothing, NULL);
}

/* ---- shadows ---- */

static void expect_no_shadow(banyan_world *world, const struct following *mine,
                             banyan_status expected, const char *text)
{
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    banyan_subscription *subscription;
    options.shadow = true;
    options.stream = mine->stream;
    CHECK_FAILS(banyan_subscription_open(world, mine->layout, mine->set, "127.0.0.1:1",
                                         APART_SECRET, &options, &subscription),
                expected, text);
}

static void ask_for_shadows(banyan_world *world, void *context)
{
    int rank = banyan_world_rank(world);
    void *taken[256];
    (void)context;
    following_engines_on_gpu = following_has_shadow = false;
    struct following mine = following_open_matrix(rank, true, NULL);
    CHECK_FAILS(banyan_tensors_alloc_swappable(mine.layout, BANYAN_HOST, &mine.set),
                BANYAN_ERR_UNSUPPORTED, "only those of a GPU");
    expect_no_shadow(world, &mine, BANYAN_ERR_UNSUPPORTED, "banyan_tensors_alloc_swappable");
    following_close(&mine);
    following_engines_on_gpu = true;
    following_has_shadow = rank == 0; /* the other rank's tensors cannot be swapped */
    mine = following_open_matrix(rank, true, NULL);
    expect_no_shadow(world, &mine, BANYAN_ERR_UNSUPPORTED, "a shadow needs tensors of");
    following_close(&mine);
    following_has_shadow = true;
    mine = following_open_matrix(rank, true, NULL);
    size_t count = gpu_is_emulated() ? take_all(mine.device, taken, 256) : 0;
    if (gpu_is_emulated())
        expect_no_shadow(world, &mine, BANYAN_ERR_NO_MEMORY, "device ");
    CHECK_OK(banyan_world_barrier(world));
    for (size_t i = 0; i < count; i++)
        gpu_memory()->free(mine.device.device_id, taken[i]);
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    banyan_subscription *subscription;
    options.shadow = true;
    options.stream = mine.stream;
    CHECK_OK(banyan_world_barrier(world));
    CHECK_OK(banyan_subscription_open(world, mine.layout, mine.set, "127.0.0.1:1", APART_SECRET,
                                      &options, &subscription));
    expect_no_shadow(world, &mine, BANYAN_ERR_INVALID, "a shadow of another subscription");
    banyan_subscription_close(subscription);
    following_close(&mine);
}

static void a_shadow_that_cannot_be_is_refused(void **state)
{
    (void)state;
    ranks_run(FOLLOWING_ENGINES, ask_for_shadows, NULL);
    following_has_shadow = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tied_weights_are_exchanged_once_and_back),
        cmocka_unit_test(an_engine_whose_gpu_is_full_keeps_its_version),
        cmocka_unit_test(a_rank_without_tensors_may_pass_a_stream),
        cmocka_unit_test(a_shadow_that_cannot_be_is_refused),
        cmocka_unit_test(a_captured_stream_is_refused_before_anything_moves),
    };
    gpu_count();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
