/* Trainers and engines of random layouts, whose elements tell their version. */
#ifndef TESTS_PUBLISH_FOLLOWING_H
#define TESTS_PUBLISH_FOLLOWING_H

#include "world/connect/apart.h"

#include "reshard/filled.h"
#include "reshard/random_case.h"
#include "support/gpu/gpu.h"
#include "support/gpu/gpu_stream.h"

/* Marks that all processes of a test share. */
enum {
    MARK_PUBLISHED,
    MARK_COMMITTED,
    MARK_END,
    MARK_STEP,
    MARK_OTHERS,
    MARK_TRAINERS_OPEN,
    MARK_OTHERS_OPEN,
    MARK_STANDING
};

#define FOLLOWING_MOST_ELEMS 5000
#define FOLLOWING_ENGINES 2
#define FOLLOWING_DELAY_BYTES ((size_t)4 << 20)

/* One of how many elements changes from a version to the next. */
#define CHANGED_ONE_OF 40

/* Return the last version, up to `version`, in which an element changed. */
static inline int changed_in(const char *name, uint64_t flat, int version)
{
    for (; version > 1; version--) {
        uint64_t key[2] = {flat, (uint64_t)version};
        uint64_t hash = 0x9e3779b97f4a7c15u;
        for (const char *at = name; *at; at++)
            hash = (hash ^ (unsigned char)*at) * 0x100000001b3u;
        for (int i = 0; i < 2; i++) {
            hash = (hash ^ key[i]) * 0xbf58476d1ce4e5b9u;
            hash ^= hash >> 29;
        }
        if (hash % CHANGED_ONE_OF == 0)
            break;
    }
    return version;
}

static inline void write_version(const banyan_piece *piece, const int64_t *index, uint64_t flat,
                                 unsigned char *element, size_t elem_bytes, void *context)
{
    (void)index;
    filled_value(piece->name, changed_in(piece->name, flat, *(const int *)context), flat,
                 elem_bytes, element);
}

static inline void check_version(const banyan_piece *piece, const int64_t *index, uint64_t flat,
                                 unsigned char *element, size_t elem_bytes, void *context)
{
    unsigned char expected[16];
    (void)index;
    int version = *(const int *)context;
    filled_value(piece->name, changed_in(piece->name, flat, version), flat, elem_bytes, expected);
    CHECK(memcmp(element, expected, elem_bytes) == 0, "element %lu of %s is not that of version %d",
          (unsigned long)flat, piece->name, version);
}

/* The sides whose tensors lie on GPUs, and whether trainers keep their copies on the host. */
static bool following_trainers_on_gpu, following_engines_on_gpu, following_keeps_on_host;
/* Engines commit by exchanging their tensors with a shadow. */
static bool following_has_shadow;

/* The compression of all publications. Tests that count bytes turn it off. */
static banyan_publication_compression following_compression;

/* One rank's side of a case. */
struct following {
    random_case *of;
    banyan_layout *layout;
    banyan_tensors *tensors; /* in host memory, where elements are written and read */
    banyan_tensors *set;     /* that is published or subscribed: the same, or a GPU's */
    DLDevice device;
    void *stream;  /* of the GPU */
    char *scratch; /* on the GPU, as large as the set */
};

static inline size_t following_bytes(const struct following *mine, size_t i)
{
    const DLTensor *tensor = banyan_tensors_get(mine->tensors, i);
    return filled_elems(tensor) * banyan_dtype_bytes(tensor->dtype);
}

static inline void *following_at(const banyan_tensors *set, size_t i)
{
    const DLTensor *tensor = banyan_tensors_get(set, i);
    return (char *)tensor->data + tensor->byte_offset;
}

/* Copy the elements to the set. On a GPU the copy waits in the stream. */
static inline void following_send(const struct following *mine)
{
    size_t count = banyan_tensors_count(mine->set), at = 0;
    if (mine->set == mine->tensors)
        return;
    gpu_stream_wait(mine->device, mine->stream);
    for (size_t i = 0; i < count; at += following_bytes(mine, i++))
        gpu_copy(mine->scratch + at, following_at(mine->tensors, i), following_bytes(mine, i));
    gpu_stream_delay(mine->device, mine->stream, mine->scratch + at, FOLLOWING_DELAY_BYTES);
    at = 0;
    for (size_t i = 0; i < count; at += following_bytes(mine, i++)) {
        if (following_bytes(mine, i) > 0)
            gpu_stream_copy(mine->device, mine->stream, following_at(mine->set, i),
                            mine->scratch + at, following_bytes(mine, i));
    }
}

static inline void following_fetch(const struct following *mine)
{
    for (size_t i = 0; mine->set != mine->tensors && i < banyan_tensors_count(mine->set); i++)
        CHECK_OK(banyan_memory_copy(following_at(mine->tensors, i), following_at(mine->set, i),
                                    following_bytes(mine, i)));
}

/* The elements may be overwritten, and what is published or received is none of these. */
static inline void following_poison(const struct following *mine)
{
    filled_poison(mine->tensors);
    for (size_t i = 0; mine->set != mine->tensors && i < banyan_tensors_count(mine->set); i++) {
        if (following_bytes(mine, i) > 0)
            gpu_poison(following_at(mine->set, i), following_bytes(mine, i));
    }
}

/* Allocate tensors of the layout. */
static inline void following_alloc(struct following *made, int rank, bool is_engine)
{
    size_t bytes = FOLLOWING_DELAY_BYTES;
    CHECK_OK(banyan_tensors_alloc(made->layout, NULL, &made->tensors));
    made->set = made->tensors;
    if (is_engine ? following_engines_on_gpu : following_trainers_on_gpu) {
        made->device = gpu_device_for(rank);
        if (following_has_shadow)
            CHECK_OK(banyan_tensors_alloc_swappable(made->layout, made->device, &made->set));
        else
            CHECK_OK(banyan_tensors_alloc_on(made->layout, NULL, made->device, &made->set));
        made->stream = gpu_stream_create(made->device);
        for (size_t i = 0; i < banyan_tensors_count(made->set); i++)
            bytes += following_bytes(made, i);
        made->scratch = gpu_plain_alloc(made->device, bytes);
    }
    following_poison(made);
}

/* All worlds of a test have the case of one number of trainer ranks. */
static inline struct following following_open(uint64_t seed, int trainers, int rank, bool is_engine)
{
    case_options options = {.world_size = trainers + FOLLOWING_ENGINES,
                            .max_elems = FOLLOWING_MOST_ELEMS,
                            .first_destination_rank = trainers};
    struct following made = {.of = case_make(seed, &options)};
    /* The ranks that an engine's layout names are those of the engine. */
    for (int i = 0; i < made.of->holding_count; i++)
        made.of->holdings[i].replicas_known &= !made.of->holdings[i].is_destination;
    made.layout = case_layout(made.of, is_engine ? trainers + rank : rank, is_engine);
    following_alloc(&made, rank, is_engine);
    return made;
}

/* A matrix, of which the trainer's two ranks hold rows and the engine's two ranks columns; an
 * engine that wants more than there is has a tensor of another name besides. */
static inline struct following following_open_rows(int rank, bool is_engine, int64_t all_rows,
                                                   int64_t all_columns, const char *other)
{
    struct following made = {0};
    int64_t rows = is_engine ? all_rows : all_rows / 2;
    int64_t columns = is_engine ? all_columns / 2 : all_columns;
    banyan_piece piece = {
        .name = "matrix",
        .ndim = 2,
        .shape = {all_rows, all_columns},
        .dim_map = {0, 1},
        .box = {.ndim = 2,
                .start = {is_engine ? 0 : rank * rows, is_engine ? rank * columns : 0},
                .extent = {rows, columns}}};
    CHECK_OK(banyan_layout_create(&made.layout));
    piece.tensor = banyan_layout_add_tensor(made.layout, "matrix", (DLDataType){kDLBfloat, 16, 1},
                                            2, (int64_t[]){rows, columns});
    banyan_layout_add_piece(made.layout, &piece);
    if (other) {
        piece.name = other;
        piece.tensor = banyan_layout_add_tensor(made.layout, other, (DLDataType){kDLBfloat, 16, 1},
                                                2, (int64_t[]){rows, columns});
        banyan_layout_add_piece(made.layout, &piece);
    }
    CHECK_OK(banyan_layout_check(made.layout));
    following_alloc(&made, rank, is_engine);
    return made;
}

/* A small one. */
static inline struct following following_open_matrix(int rank, bool is_engine, const char *other)
{
    return following_open_rows(rank, is_engine, 96, 512, other);
}

static inline void following_write(const struct following *mine, int version)
{
    filled_each(mine->layout, mine->tensors, write_version, &version);
    following_send(mine);
}

static inline void following_check(const struct following *mine, int version)
{
    CHECK(banyan_tensors_get_state(mine->set) == BANYAN_TENSORS_WHOLE);
    CHECK(banyan_tensors_version(mine->set) == (uint64_t)version);
    following_fetch(mine);
    filled_each(mine->layout, mine->tensors, check_version, &version);
}

static inline void following_close(struct following *mine)
{
    if (mine->set != mine->tensors) {
        gpu_stream_wait(mine->device, mine->stream);
        gpu_stream_destroy(mine->device, mine->stream);
        gpu_plain_free(mine->device, mine->scratch);
        banyan_tensors_destroy(mine->set);
    }
    banyan_tensors_destroy(mine->tensors);
    banyan_layout_destroy(mine->layout);
    free(mine->of);
}

/* ---- calls ---- */

static inline banyan_publication *publish_open(banyan_world *world, struct apart *shared,
                                               const struct following *mine,
                                               const banyan_publication_options *options)
{
    banyan_publication *publication;
    banyan_publication_options with = BANYAN_PUBLICATION_OPTIONS_INIT;
    if (options)
        with = *options;
    with.stream = mine->stream;
    with.keep_on_host = following_keeps_on_host;
    with.compression = following_compression;
    CHECK_OK(banyan_publication_open(world, mine->layout,
                                     shared->listen_at[0] ? shared->listen_at : NULL, APART_SECRET,
                                     &with, &publication));
    if (banyan_world_rank(world) == 0) {
        const char *address = banyan_publication_address(publication);
        snprintf(shared->address, sizeof shared->address, "%s", address);
        snprintf(shared->listen_at, sizeof shared->listen_at, "%s", strrchr(address, ':'));
        atomic_fetch_add(&shared->listens, 1);
    }
    return publication;
}

static inline banyan_publish_report publish_version(banyan_publication *publication,
                                                    const struct following *mine, int version)
{
    banyan_publish_report report;
    following_write(mine, version);
    CHECK_OK(banyan_publication_publish(publication, mine->set, (uint64_t)version, &report));
    following_poison(mine);
    return report;
}

static inline banyan_subscription *subscribe(banyan_world *world, struct apart *shared,
                                             const struct following *mine,
                                             const banyan_subscription_options *options)
{
    banyan_subscription *subscription;
    banyan_subscription_options with = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    if (options)
        with = *options;
    with.stream = mine->stream;
    with.shadow = following_has_shadow;
    apart_wait(&shared->listens, 1);
    CHECK_OK(banyan_subscription_open(world, mine->layout, mine->set, shared->address, APART_SECRET,
                                      &with, &subscription));
    return subscription;
}

/* Commit what all ranks have, above a version; every element is then of the version returned. */
static inline int take_above(banyan_subscription *subscription, const struct following *mine,
                             int above)
{
    uint64_t version = 0, staged;
    while (version <= (uint64_t)above) {
        CHECK_OK(banyan_subscription_wait(subscription, (uint64_t)above, 60 * NS_PER_S, &staged));
        CHECK_OK(banyan_subscription_commit(subscription, &version));
    }
    following_check(mine, (int)version);
    return (int)version;
}

/* Publish the versions that MARK_STEP asks for, until MARK_END counts all of the engine's ranks. */
static inline void publish_steps(banyan_world *world, struct apart *shared,
                                 banyan_publication *publication, const struct following *mine)
{
    for (int version = 0;;) {
        int words[2] = {atomic_load(&shared->marks[MARK_STEP]),
                        atomic_load(&shared->marks[MARK_END])};
        CHECK_OK(banyan_world_broadcast(world, words, sizeof words, 0));
        if (words[1] == FOLLOWING_ENGINES)
            break;
        if (version < words[0])
            publish_version(publication, mine, ++version);
        else
            usleep(1000);
        if (banyan_world_rank(world) == 0)
            atomic_store(&shared->marks[MARK_PUBLISHED], version);
    }
}

/* ---- the matrix ---- */

static inline void publish_matrix(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_matrix(banyan_world_rank(world), false, NULL);
    banyan_publication *publication = publish_open(world, shared, &mine, NULL);
    publish_steps(world, shared, publication, &mine);
    banyan_publication_close(publication);
    following_close(&mine);
}

static inline void play_with(struct apart *shared, apart_rank trainer, apart_rank engine)
{
    struct apart_job publishing = apart_start(shared, 2, 0, trainer);
    struct apart_job following = apart_start(shared, FOLLOWING_ENGINES, 1, engine);
    apart_end_well(&following);
    apart_end_well(&publishing);
}

/* Wait until the subscription has this error. */
static inline void expect_error(banyan_subscription *subscription, banyan_status expected,
                                const char *text)
{
    uint64_t until_ns = deadline_after(30 * NS_PER_S);
    banyan_status status;
    while ((status = banyan_subscription_check(subscription)) == BANYAN_OK) {
        CHECK(deadline_left_ns(until_ns) > 0, "no error with \"%s\" comes", text);
        usleep(1000);
    }
    CHECK(status == expected && strstr(banyan_last_error(), text), "%s: %s",
          banyan_status_name(status), banyan_last_error());
}

static inline void end_engine(struct apart *shared, banyan_subscription *subscription,
                              struct following *mine)
{
    atomic_fetch_add(&shared->marks[MARK_END], 1);
    banyan_subscription_close(subscription);
    following_close(mine);
}

#endif
