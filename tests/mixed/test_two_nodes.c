/* Jobs of two nodes: features that do not work between nodes fail on every rank at once, at
 * creation or before anything moves; features within a node work. */
#include "support/test.h"

#include <unistd.h>

#include "core/deadline.h"

#define AT_ONCE_NS (10 * NS_PER_S)

enum { RANKS = 4, PER_NODE = 2, ROWS = 64, COLUMNS = 32 };

static void open_on(int rank, const banyan_unique_id *id, banyan_world **world)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = RANKS;
    options.unique_id = id;
    options.node = rank < PER_NODE ? "left" : "right";
    options.timeout_ns = 20 * NS_PER_S;
    CHECK_OK(banyan_world_open(&options, world));
    CHECK(banyan_world_node_count(*world) == 2);
}

/* The call fails here and on all ranks, soon, and the world continues. */
#define CHECK_REFUSED(world, call, part)                                                           \
    do {                                                                                           \
        CHECK_OK(banyan_world_barrier(world));                                                     \
        uint64_t began_ = time_now_ns();                                                           \
        CHECK_FAILS(call, BANYAN_ERR_UNSUPPORTED, part);                                           \
        CHECK(time_now_ns() - began_ < AT_ONCE_NS);                                                \
        CHECK_OK(banyan_world_barrier(world));                                                     \
    } while (0)

static void refuse_collectives(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)count;
    (void)context;
    banyan_world *world;
    banyan_comm *comm = NULL;
    banyan_mixed *mixed = NULL;
    open_on(rank, id, &world);
    CHECK_REFUSED(world, banyan_comm_create(world, NULL, &comm),
                  "collectives need a way between all ranks: transport shm: rank");
    CHECK_REFUSED(world, banyan_comm_create(world, NULL, &comm), "module ucx");
    CHECK_REFUSED(world, banyan_mixed_open(world, NULL, &mixed),
                  "mixed collectives on the host need a way between all ranks: transport shm");
    CHECK_REFUSED(world, banyan_mixed_open(world, NULL, &mixed), "module ucx");
    CHECK(!comm && !mixed);
    CHECK_OK(banyan_world_close(world));
}

/* As the messages advise. */
static void run_collectives_of_a_node(int rank, int count, const banyan_unique_id *id,
                                      void *context)
{
    (void)count;
    (void)context;
    banyan_world *world, *node;
    banyan_comm *comm;
    int first = rank / PER_NODE * PER_NODE, near[] = {first, first + 1};
    float sums[100];
    open_on(rank, id, &world);
    CHECK_OK(banyan_world_split(world, near, PER_NODE, &node));
    CHECK_OK(banyan_comm_create(node, NULL, &comm));
    for (int i = 0; i < 100; i++)
        sums[i] = (float)(rank + i);
    CHECK_OK(banyan_comm_allreduce(comm, sums, sums, 100, BANYAN_F32, BANYAN_SUM, NULL));
    for (int i = 0; i < 100; i++)
        CHECK(sums[i] == (float)(2 * first + 1 + 2 * i));
    CHECK_OK(banyan_comm_destroy(comm));
    CHECK_OK(banyan_world_close(node));
    CHECK_OK(banyan_world_close(world));
}

static void refuse_memory(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)count;
    (void)context;
    banyan_world *world;
    banyan_memory *memory;
    open_on(rank, id, &world);
    CHECK_OK(banyan_memory_alloc(world, 4096, &memory));
    for (int peer = 0; peer < RANKS; peer++) {
        void *address;
        size_t bytes;
        if (peer / PER_NODE == rank / PER_NODE)
            CHECK_OK(banyan_memory_peer(memory, peer, &address, &bytes));
        else
            CHECK_FAILS(banyan_memory_peer(memory, peer, &address, &bytes), BANYAN_ERR_UNSUPPORTED,
                        "which is on another node");
    }
    banyan_memory_free(memory);
    CHECK_OK(banyan_world_close(world));
}

struct reshard {
    banyan_layout *from, *to;
    banyan_tensors *source, *destination;
    banyan_reshard_plan *plan;
};

/* Rows divided among `parts` ranks become columns divided among as many. */
static void prepare(struct reshard *r, banyan_world *world, int parts)
{
    banyan_mesh mesh = {.ndim = 1, .extent = {parts}};
    banyan_placement rows = {BANYAN_SHARD, 0}, columns = {BANYAN_SHARD, 1};
    int64_t shape[] = {ROWS, COLUMNS};
    int rank = banyan_world_rank(world);
    CHECK_OK(banyan_layout_create(&r->from));
    CHECK_OK(banyan_layout_create(&r->to));
    banyan_layout_add_sharded(r->from, "weight", BANYAN_F32, 2, shape, &mesh, &rows, rank);
    banyan_layout_add_sharded(r->to, "weight", BANYAN_F32, 2, shape, &mesh, &columns, rank);
    CHECK_OK(banyan_tensors_alloc(r->from, world, &r->source));
    CHECK_OK(banyan_tensors_alloc(r->to, world, &r->destination));
    CHECK_OK(banyan_reshard_plan_create(r->from, r->to, world, NULL, &r->plan));
    float *data = banyan_tensors_get(r->source, 0)->data;
    for (int i = 0; i < ROWS / parts * COLUMNS; i++)
        data[i] = (float)(rank * (ROWS / parts) * COLUMNS + i);
    data = banyan_tensors_get(r->destination, 0)->data;
    for (int i = 0; i < ROWS * COLUMNS / parts; i++)
        data[i] = -1;
}

static void release(struct reshard *r)
{
    banyan_reshard_plan_destroy(r->plan);
    banyan_tensors_destroy(r->source);
    banyan_tensors_destroy(r->destination);
    banyan_layout_destroy(r->from);
    banyan_layout_destroy(r->to);
}

static void refuse_reshards(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)count;
    (void)context;
    static const char *const names[] = {"direct", "pipeline"};
    static const char *const refusals[] = {"rank 0 (node 0) cannot map",
                                           "rank 0 (node 0) cannot reach"};
    banyan_world *world;
    banyan_copy_service *service = NULL;
    struct reshard r;
    open_on(rank, id, &world);
    CHECK_REFUSED(world, banyan_copy_service_open(world, NULL, NULL, &service),
                  "no copy backend carries tensors between the 2 nodes of this world (rank 0 is on "
                  "node left, rank 2 on node right)");
    CHECK(!service);
    prepare(&r, world, RANKS);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(banyan_copy_service_open(world, names[i], NULL, &service));
        CHECK_REFUSED(
            world,
            banyan_reshard_execute(r.plan, r.source, r.destination, service, world, NULL, NULL),
            refusals[i]);
        const float *data = banyan_tensors_get(r.destination, 0)->data;
        for (int j = 0; j < ROWS * COLUMNS / RANKS; j++)
            CHECK(data[j] == -1, "element %d has moved", j);
        banyan_copy_service_close(service);
    }
    release(&r);
    CHECK_OK(banyan_world_close(world));
}

static void run_reshards_of_a_node(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)count;
    (void)context;
    static const char *const names[] = {NULL, "direct", "pipeline"};
    banyan_world *world, *node;
    int first = rank / PER_NODE * PER_NODE, near[] = {first, first + 1};
    open_on(rank, id, &world);
    CHECK_OK(banyan_world_split(world, near, PER_NODE, &node));
    for (int i = 0; i < 3; i++) {
        banyan_copy_service *service;
        struct reshard r;
        prepare(&r, node, PER_NODE);
        CHECK_OK(banyan_copy_service_open(node, names[i], NULL, &service));
        CHECK_OK(
            banyan_reshard_execute(r.plan, r.source, r.destination, service, node, NULL, NULL));
        const float *data = banyan_tensors_get(r.destination, 0)->data;
        int width = COLUMNS / PER_NODE;
        for (int j = 0; j < ROWS * width; j++)
            CHECK(data[j] == (float)(j / width * COLUMNS + (rank - first) * width + j % width));
        banyan_copy_service_close(service);
        release(&r);
    }
    CHECK_OK(banyan_world_close(node));
    CHECK_OK(banyan_world_close(world));
}

static void run(ranks_raw_fn fn)
{
    int statuses[RANKS];
    ranks_fork(RANKS, fn, NULL, statuses);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(statuses[rank], 0);
}

static void collectives_between_nodes_are_refused_when_they_are_made(void **state)
{
    (void)state;
    run(refuse_collectives);
}

static void collectives_of_a_node_run(void **state)
{
    (void)state;
    run(run_collectives_of_a_node);
}

static void memory_of_another_node_cannot_be_mapped(void **state)
{
    (void)state;
    run(refuse_memory);
}

static void reshards_between_nodes_are_refused_before_anything_moves(void **state)
{
    (void)state;
    run(refuse_reshards);
}

static void reshards_of_a_node_run(void **state)
{
    (void)state;
    run(run_reshards_of_a_node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_between_nodes_are_refused_when_they_are_made),
        cmocka_unit_test(collectives_of_a_node_run),
        cmocka_unit_test(memory_of_another_node_cannot_be_mapped),
        cmocka_unit_test(reshards_between_nodes_are_refused_before_anything_moves),
        cmocka_unit_test(reshards_of_a_node_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
