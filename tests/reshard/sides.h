/* The two sides of a case at one rank, over memory of several kinds, and a case to run with
 * checks. */
#ifndef TESTS_RESHARD_SIDES_H
#define TESTS_RESHARD_SIDES_H

#include "support/test.h"

#include "reshard/filled.h"
#include "reshard/mailbox.h"
#include "reshard/random_case.h"

/* One rank's two sides of a random case. */
typedef struct sides {
    banyan_layout *source_layout, *destination_layout;
    banyan_tensors *source, *destination;
    void *memory[2]; /* memory bound to them; NULL: their own */
} sides;

typedef enum memory_kind { MEMORY_SYMMETRIC, MEMORY_ORDINARY, MEMORY_STRIDED } memory_kind;

/* A set over the caller's memory, with gaps between all elements and the dimensions in reverse
 * order. */
static inline banyan_tensors *bind_strided(const banyan_layout *layout, void **memory)
{
    size_t count = banyan_layout_tensor_count(layout), bytes = 1;
    for (size_t i = 0; i < count; i++) {
        const banyan_local_tensor *tensor = banyan_layout_tensor(layout, i);
        size_t taken = 2 * banyan_dtype_bytes(tensor->dtype);
        for (int d = 0; d < tensor->ndim; d++)
            taken *= (size_t)tensor->shape[d];
        bytes += taken;
    }
    DLTensor *tensors = calloc(count + 1, sizeof *tensors);
    int64_t(*strides)[BANYAN_MAX_DIMS] = calloc(count + 1, sizeof *strides);
    char *at = *memory = malloc(bytes);
    for (size_t i = 0; i < count; i++) {
        const banyan_local_tensor *tensor = banyan_layout_tensor(layout, i);
        int64_t stride = 2;
        for (int d = 0; d < tensor->ndim; d++) {
            strides[i][d] = stride;
            stride *= tensor->shape[d];
        }
        tensors[i] = (DLTensor){.data = at,
                                .device = {kDLCPU, 0},
                                .ndim = tensor->ndim,
                                .dtype = tensor->dtype,
                                .shape = (int64_t *)tensor->shape,
                                .strides = strides[i]};
        at += (size_t)stride * banyan_dtype_bytes(tensor->dtype);
    }
    banyan_tensors *set;
    CHECK_OK(banyan_tensors_create(layout, tensors, count, &set));
    free(strides);
    free(tensors);
    return set;
}

static inline sides sides_make(const random_case *of, banyan_world *world, memory_kind kind)
{
    int rank = banyan_world_rank(world);
    sides made = {case_layout(of, rank, false), case_layout(of, rank, true), NULL, NULL, {0}};
    banyan_world *symmetric = kind == MEMORY_SYMMETRIC ? world : NULL;
    if (kind == MEMORY_STRIDED) {
        made.source = bind_strided(made.source_layout, &made.memory[0]);
        made.destination = bind_strided(made.destination_layout, &made.memory[1]);
    } else {
        CHECK_OK(banyan_tensors_alloc(made.source_layout, symmetric, &made.source));
        CHECK_OK(banyan_tensors_alloc(made.destination_layout, symmetric, &made.destination));
    }
    filled_poison(made.destination);
    return made;
}

static inline void sides_free(sides *of)
{
    free(of->memory[0]);
    free(of->memory[1]);
    banyan_tensors_destroy(of->source);
    banyan_tensors_destroy(of->destination);
    banyan_layout_destroy(of->source_layout);
    banyan_layout_destroy(of->destination_layout);
}

static inline banyan_copy_service *open_service(banyan_world *world, const char *backend)
{
    banyan_copy_service *service;
    if (strcmp(backend, "mailbox") == 0)
        CHECK_OK(banyan_copy_service_open_backend(world, &mailbox_backend, NULL, &service));
    else
        CHECK_OK(banyan_copy_service_open(world, backend, NULL, &service));
    return service;
}

static inline random_case *any_case(banyan_world *world, uint64_t seed, int64_t max_elems)
{
    random_state random = random_from(seed);
    case_options options = {.world_size = banyan_world_size(world), .max_elems = max_elems};
    if (options.world_size > 1 && random_next(&random) % 2)
        options.first_destination_rank = (int)random_between(&random, 1, options.world_size - 1);
    return case_make(random_next(&random), &options);
}

/* A case in which every rank but the first receives from another. */
typedef struct lane {
    random_case *of;
    sides mine;
    banyan_copy_service *service;
    banyan_reshard_plan *plan;
} lane;

/* Rows of a tensor move from each rank to the next. */
static inline random_case *shift_case(int world_size, int64_t rows, int64_t columns)
{
    random_case *made = calloc(1, sizeof *made);
    made->world_size = world_size;
    made->tensor_count = 1;
    made->tensors[0] = (case_tensor){"w", {kDLBfloat, 16, 1}, 2, {rows * world_size, columns}};
    for (int rank = 0; rank < world_size; rank++)
        for (int side = 0; side <= 1; side++)
            made->holdings[made->holding_count++] =
                (case_holding){.is_destination = side,
                               .box = {2, {(rank + side) % world_size * rows, 0}, {rows, columns}},
                               .ranks = banyan_rank_set_one(rank),
                               .seed = (uint64_t)rank};
    return made;
}

static inline lane lane_make(banyan_world *world, const char *backend,
                             const banyan_reshard_options *options)
{
    lane made = {.of = shift_case(banyan_world_size(world), 40, 30)};
    made.mine = sides_make(made.of, world, MEMORY_ORDINARY);
    made.service = open_service(world, backend);
    CHECK_OK(banyan_reshard_plan_create(made.mine.source_layout, made.mine.destination_layout,
                                        world, options, &made.plan));
    return made;
}

/* A random case over memory of a random kind, with a plan of random options. The caller keeps the
 * service. */
static inline lane lane_random(banyan_world *world, uint64_t seed, banyan_copy_service *service)
{
    random_state random = random_from(seed);
    lane made = {.service = service};
    made.of = any_case(world, random_next(&random), random_between(&random, 1, 2000));
    memory_kind kind = (memory_kind)random_between(&random, 0, MEMORY_STRIDED);
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.min_split_bytes = (uint64_t)random_between(&random, 1, 500);
    options.checksums = random_next(&random) % 2;
    if (random_next(&random) % 2)
        options.max_staging_bytes = (uint64_t)random_between(&random, 1024, 8192);
    made.mine = sides_make(made.of, world, kind);
    CHECK_OK(banyan_reshard_plan_create(made.mine.source_layout, made.mine.destination_layout,
                                        world, &options, &made.plan));
    return made;
}

static inline banyan_status lane_run(lane *on, banyan_world *world, int pass)
{
    filled_make(on->mine.source_layout, on->mine.source, pass);
    CHECK_OK(banyan_world_barrier(world));
    return banyan_reshard_execute(on->plan, on->mine.source, on->mine.destination, on->service,
                                  world, NULL, NULL);
}

static inline void lane_check(const lane *on, int pass, uint64_t version)
{
    CHECK(banyan_tensors_get_state(on->mine.destination) == BANYAN_TENSORS_WHOLE);
    CHECK(banyan_tensors_version(on->mine.destination) == version);
    filled_check(on->mine.destination_layout, on->mine.destination, pass, false);
}

/* Free all but the service. */
static inline void lane_end(lane *on)
{
    banyan_reshard_plan_destroy(on->plan);
    sides_free(&on->mine);
    free(on->of);
}

static inline void lane_free(lane *on)
{
    banyan_copy_service_close(on->service);
    lane_end(on);
}

#endif
