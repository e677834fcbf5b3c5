/* Trainers and engines of random layouts, whose elements tell their version. */
#ifndef TESTS_PUBLISH_FOLLOWING_H
#define TESTS_PUBLISH_FOLLOWING_H

#include "world/connect/apart.h"

#include "reshard/filled.h"
#include "reshard/random_case.h"

/* Marks that all processes of a test share. */
enum {
    MARK_PUBLISHED,
    MARK_COMMITTED,
    MARK_END,
    MARK_STEP,
    MARK_OTHERS,
    MARK_TRAINERS_OPEN,
    MARK_OTHERS_OPEN
};

#define FOLLOWING_MOST_ELEMS 5000
#define FOLLOWING_ENGINES 2

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

/* One rank's side of a case. */
struct following {
    random_case *of;
    banyan_layout *layout;
    banyan_tensors *tensors;
};

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
    CHECK_OK(banyan_tensors_alloc(made.layout, NULL, &made.tensors));
    filled_poison(made.tensors);
    return made;
}

/* A matrix, of which the trainer's two ranks hold rows and the engine's two ranks columns; an
 * engine that wants more than there is has a tensor of another name besides. */
static inline struct following following_open_matrix(int rank, bool is_engine, const char *other)
{
    enum { ROWS = 96, COLUMNS = 512 };
    struct following made = {0};
    int64_t rows = is_engine ? ROWS : ROWS / 2, columns = is_engine ? COLUMNS / 2 : COLUMNS;
    banyan_piece piece = {
        .name = "matrix",
        .ndim = 2,
        .shape = {ROWS, COLUMNS},
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
    CHECK_OK(banyan_tensors_alloc(made.layout, NULL, &made.tensors));
    filled_poison(made.tensors);
    return made;
}

static inline void following_write(const struct following *mine, int version)
{
    filled_each(mine->layout, mine->tensors, write_version, &version);
}

static inline void following_check(const struct following *mine, int version)
{
    CHECK(banyan_tensors_get_state(mine->tensors) == BANYAN_TENSORS_WHOLE);
    CHECK(banyan_tensors_version(mine->tensors) == (uint64_t)version);
    filled_each(mine->layout, mine->tensors, check_version, &version);
}

static inline void following_close(struct following *mine)
{
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
    CHECK_OK(banyan_publication_open(world, mine->layout,
                                     shared->listen_at[0] ? shared->listen_at : NULL, APART_SECRET,
                                     options, &publication));
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
    CHECK_OK(banyan_publication_publish(publication, mine->tensors, (uint64_t)version, &report));
    filled_poison(mine->tensors); /* they may be overwritten */
    return report;
}

static inline banyan_subscription *subscribe(banyan_world *world, struct apart *shared,
                                             const struct following *mine,
                                             const banyan_subscription_options *options)
{
    banyan_subscription *subscription;
    apart_wait(&shared->listens, 1);
    CHECK_OK(banyan_subscription_open(world, mine->layout, mine->tensors, shared->address,
                                      APART_SECRET, options, &subscription));
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

#endif
