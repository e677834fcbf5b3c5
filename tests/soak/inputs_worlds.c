/* Inputs of collective calls: worlds, memory, collectives, mixed collectives. */
#include "soak/inputs.h"

#include <banyan/collective.h>
#include <banyan/memory.h>
#include <banyan/mixed.h>

static void try_handles(inputs *of, const banyan_memory *memory)
{
    random_state *random = &of->alone;
    banyan_memory_handle handle;
    char data[64];
    void *address = NULL;
    size_t bytes = 0;
    int rank = input_int(random), size = banyan_world_size(of->world);
    if (input_taken(of, banyan_memory_peer(memory, rank, &address, &bytes)))
        CHECK(rank >= 0 && rank < size && (address || bytes == 0), "rank %d of %d", rank, size);
    CHECK_OK(banyan_memory_register(of->world, data, sizeof data, &handle));
    banyan_memory_handle wrong = handle;
    switch (random_next(random) % 5) {
    case 0:
        wrong.rank = input_int(random);
        break;
    case 1:
        wrong.kind = (uint32_t)input_int(random);
        break;
    case 2:
        wrong.id = random_next(random);
        break;
    case 3:
        wrong.address += random_next(random);
        break;
    default:
        wrong.bytes += random_next(random);
    }
    (void)input_taken(of, banyan_memory_map(of->world, &wrong, &address));
    (void)input_taken(of, banyan_memory_find(of->world, data + random_next(random) % 80,
                                             (size_t)random_between(random, 0, 100), &wrong));
    wrong = handle;
    wrong.id += 1 + random_next(random) % 100;
    CHECK(!input_taken(of, banyan_memory_unregister(of->world, &wrong)));
    CHECK_OK(banyan_memory_unregister(of->world, &handle));
    CHECK(!input_taken(of, banyan_memory_unregister(of->world, &handle)), "unregistered twice");
}

void inputs_memory(inputs *of)
{
    banyan_memory *memory = NULL;
    bool is_wild = input_chance(&of->together, 4);
    int wild = (int)random_between(&of->together, 0, banyan_world_size(of->world) - 1);
    size_t bytes = (size_t)random_between(&of->alone, 0, 10000);
    if (is_wild && wild == banyan_world_rank(of->world))
        bytes = SIZE_MAX - bytes * (random_next(&of->alone) % 2 ? 1 : 1 << 30);
    bool taken = input_taken_by_all(of, banyan_memory_alloc(of->world, bytes, &memory));
    CHECK(taken == !is_wild, "%zu bytes", bytes);
    if (taken)
        try_handles(of, memory);
    CHECK_OK(banyan_world_barrier(of->world));
    banyan_memory_free(memory);
}

static void split_wrongly(inputs *of)
{
    random_state *random = &of->alone;
    int size = banyan_world_size(of->world), rank = banyan_world_rank(of->world);
    banyan_world *sub = NULL;
    int lists[][4] = {{rank, rank, 0, 0},
                      {rank, size, 0, 0},
                      {rank, -1, 0, 0},
                      {(rank + 1) % size, 0, 0, 0},
                      {INT32_MAX, INT32_MIN, rank, 0}};
    int counts[] = {2, 2, 2, size > 1 ? 1 : 0, 3}, i = (int)random_between(random, 0, 4);
    CHECK(!input_taken(of, banyan_world_split(of->world, lists[i], counts[i], &sub)), "list %d", i);
    CHECK(!input_taken(of, banyan_world_split(of->world, lists[0], -counts[0], &sub)));
}

void inputs_worlds(inputs *of)
{
    char data[64] = {0}, all[INPUTS_MAX_RANKS * 64];
    int size = banyan_world_size(of->world), rank = banyan_world_rank(of->world);
    int root = input_int(&of->together);
    size_t bytes = (size_t)random_between(&of->together, 0, 60);
    bool differs = input_chance(&of->together, 3);
    bytes += differs && rank == 0;
    /* The root of a broadcast need not learn that the others expect another size. */
    bool taken = input_taken(of, banyan_world_broadcast(of->world, data, bytes, root));
    CHECK(!taken || (root >= 0 && root < size), "root %d", root);
    CHECK(taken || differs || root < 0 || root >= size, "%s", banyan_last_error());
    taken = input_taken_by_all(of, banyan_world_allgather(of->world, data, bytes, all));
    CHECK(taken == (!differs || size == 1), "%s", banyan_last_error());
    void *joined = NULL;
    size_t each[INPUTS_MAX_RANKS];
    CHECK_OK(banyan_world_allgatherv(of->world, data, bytes, &joined, each));
    CHECK(each[rank] == bytes, "%zu bytes", each[rank]);
    free(joined);
    split_wrongly(of);
    CHECK_OK(banyan_world_check(of->world));
}

typedef struct call {
    int kind, root, shift, op;
    size_t count;
    DLDataType dtype;
    bool overlaps, no_input, no_output;
} call;

static call any_call(random_state *random)
{
    call c = {.kind = (int)random_between(random, 0, 6), .dtype = BANYAN_U32, .shift = 1};
    c.count = (size_t)random_between(random, 0, 500);
    switch (random_next(random) % 12) {
    case 0:
        c.dtype = input_dtype(random);
        break;
    case 1:
        c.op = input_int(random);
        break;
    case 2:
        c.root = input_int(random);
        break;
    case 3:
        c.shift = input_int(random);
        break;
    case 4:
        c.count = SIZE_MAX - random_next(random) % 1000;
        break;
    case 5:
        c.count = SIZE_MAX / 4 + random_next(random) % 1000;
        break;
    case 6:
        c.overlaps = true;
        break;
    case 7:
        c.no_input = true;
        break;
    case 8:
        c.no_output = true;
        break;
    default:
        break;
    }
    return c;
}

static banyan_status make_call(banyan_comm *comm, const call *c, uint32_t *input, uint32_t *output)
{
    void *out = c->no_output ? NULL : c->overlaps ? (char *)input + 4 : (char *)output;
    const void *in = c->no_input ? NULL : input;
    banyan_reduce_op op = (banyan_reduce_op)c->op;
    switch (c->kind) {
    case 0:
        return banyan_comm_allreduce(comm, in, out, c->count, c->dtype, op, NULL);
    case 1:
        return banyan_comm_allgather(comm, in, out, c->count, c->dtype, NULL);
    case 2:
        return banyan_comm_reducescatter(comm, in, out, c->count, c->dtype, op, NULL);
    case 3:
        return banyan_comm_alltoall(comm, in, out, c->count, c->dtype, NULL);
    case 4:
        return banyan_comm_broadcast(comm, in, out, c->count, c->dtype, c->root, NULL);
    case 5:
        return banyan_comm_reduce(comm, in, out, c->count, c->dtype, op, c->root, NULL);
    default:
        return banyan_comm_sendrecv(comm, in, out, c->count, c->dtype, c->shift, NULL);
    }
}

static uint32_t value_of(int rank, size_t i)
{
    return (uint32_t)((size_t)(rank + 1) * 2654435761u + i * 40503u);
}

/* Sums of u32 wrap around; the other operators are not checked. */
static void check_call(const call *c, int rank, int size, const uint32_t *output)
{
    size_t count = c->count;
    size_t outputs = c->kind == 1 || c->kind == 3 ? count * (size_t)size : count;
    if (c->overlaps || c->no_output || c->op != BANYAN_SUM || c->dtype.code != kDLUInt ||
        c->dtype.bits != 32 || c->dtype.lanes != 1 || (c->kind == 5 && c->root != rank))
        return;
    for (size_t i = 0; i < outputs; i++) {
        int block = count > 0 ? (int)(i / count) : 0;
        uint32_t sum = 0;
        for (int r = 0; r < size; r++)
            sum += value_of(r, c->kind == 2 ? (size_t)rank * count + i : i);
        int shifted = (int)((((int64_t)rank - c->shift) % size + size) % size);
        uint32_t right = c->kind == 1   ? value_of(block, i % count)
                         : c->kind == 3 ? value_of(block, (size_t)rank * count + i % count)
                         : c->kind == 4 ? value_of(c->root, i)
                         : c->kind == 6 ? value_of(shifted, i)
                                        : sum;
        CHECK(output[i] == right, "call %d of %zu, element %zu of rank %d: %u, not %u", c->kind,
              count, i, rank, output[i], right);
    }
}

void inputs_collectives(inputs *of)
{
    /* Elements have at most 16 bytes (a complex number), and a rank's block 500 of them. */
    enum { ROOM = 4 * (INPUTS_MAX_RANKS + 1) * 501 };
    int size = banyan_world_size(of->world), rank = banyan_world_rank(of->world);
    uint32_t *input = malloc(ROOM * sizeof *input), *output = malloc(ROOM * sizeof *output);
    banyan_comm *comm;
    CHECK(input && output);
    CHECK_OK(banyan_comm_create(of->world, NULL, &comm));
    for (int i = 0; i < 20; i++) {
        call c = any_call(&of->together);
        int odd = (int)random_between(&of->together, 0, 2 * size);
        size_t elem = banyan_dtype_bytes(c.dtype);
        if (odd == rank)
            c = any_call(&of->alone); /* one rank makes another call */
        elem = banyan_dtype_bytes(c.dtype);
        if (elem > 16)
            c.dtype = BANYAN_U32; /* the sizes stay in the buffers */
        for (size_t k = 0; k < ROOM; k++)
            input[k] = value_of(rank, k);
        memset(output, 0xa5, ROOM * sizeof *output);
        if (input_taken_by_all(of, make_call(comm, &c, input, output)))
            check_call(&c, rank, size, output);
    }
    CHECK_OK(banyan_comm_destroy(comm));
    free(input);
    free(output);
}

static void run_mixed(inputs *of, banyan_mixed *mixed, const banyan_mixed_options *options)
{
    random_state *random = &of->together;
    enum { ROOM = 65536 };
    char *input = calloc(1, ROOM), *output = calloc(1, ROOM);
    for (int i = 0; i < 10; i++) {
        int64_t in_shape[3] = {random_between(random, -1, 8), random_between(random, -1, 16), 1};
        int64_t out_shape[3] = {in_shape[0], in_shape[1], 1};
        banyan_mixed_grid grid = banyan_mixed_describe(mixed);
        banyan_mixed_op op = (banyan_mixed_op)random_between(random, -1, BANYAN_MIXED_OPS);
        if (op == BANYAN_MIXED_ALLGATHER || op == BANYAN_MIXED_ALLREDUCE_ALLGATHER)
            out_shape[0] *= grid.dp;
        if (op == BANYAN_MIXED_REDUCESCATTER || op == BANYAN_MIXED_REDUCESCATTER_ALLREDUCE)
            in_shape[0] *= grid.dp;
        DLTensor in = {.data = input,
                       .device = {kDLCPU, 0},
                       .ndim = (int32_t)random_between(random, 0, 3),
                       .dtype = input_chance(random, 6) ? input_dtype(random) : options->dtype,
                       .shape = in_shape,
                       .byte_offset = input_chance(random, 9) ? 1 : 0};
        DLTensor out = in;
        out.shape = out_shape;
        out.data = input_chance(random, 9) ? input : output;
        if (input_chance(random, 9))
            out_shape[0]++;
        (void)input_taken_by_all(
            of, banyan_mixed_run(mixed, op, &in, &out,
                                 (banyan_mixed_mode)random_between(random, -1, BANYAN_MIXED_MODES),
                                 NULL));
    }
    free(input);
    free(output);
}

void inputs_mixed(inputs *of)
{
    random_state *random = &of->together;
    banyan_mixed_options options = BANYAN_MIXED_OPTIONS_INIT;
    banyan_mixed *mixed = NULL;
    int size = banyan_world_size(of->world);
    int *grid[] = {&options.local_tp, &options.local_dp, &options.inter_tp, &options.inter_dp};
    options.use_autotune = false;
    for (int i = 0; i < 4; i++)
        *grid[i] = input_chance(random, 6)   ? input_int(random)
                   : input_chance(random, 3) ? size
                                             : (int)random_between(random, 0, 2);
    options.nodes = input_chance(random, 6) ? input_int(random) : 0;
    options.dtype = input_chance(random, 6) ? input_dtype(random) : BANYAN_F32;
    options.grid_size = input_chance(random, 9) ? input_int(random) : 0;
    options.max_block_size = input_chance(random, 9) ? input_int(random) : 0;
    options.min_block_size = input_chance(random, 9) ? input_int(random) : 256;
    options.max_bytes = input_chance(random, 9) ? random_next(random) : 4096;
    if (input_chance(random, 9))
        options.size = random_next(random) % 200;
    if (input_taken_by_all(of, banyan_mixed_open(of->world, &options, &mixed))) {
        run_mixed(of, mixed, &options);
        CHECK_OK(banyan_mixed_close(mixed));
    }
}
