/* Versions that travel compressed arrive bit for bit, in fewer bytes. */
#ifndef TESTS_PUBLISH_COMPRESSING_H
#define TESTS_PUBLISH_COMPRESSING_H

#include "core/containers.h"
#include "core/threads/sanitizer.h"
#include "publish/following.h"

enum { WEIGHT_ROWS = 512, WEIGHT_COLUMNS = 2048, WEIGHT_VERSIONS = 3 };

/* Under the thread sanitizer, the compressor is slower than the slow link below. */
#ifdef SANITIZER_THREAD
#define COMPRESSOR_IS_FAST false
#else
#define COMPRESSOR_IS_FAST true
#endif

/* Bytes per second of an engine with a slow link. */
#define SLOW_BYTES_PER_S ((uint64_t)2 << 20)

/* Bf16 that is distributed about like weights; all elements change in each version. */
static uint16_t alike_weight(uint64_t flat, int version)
{
    uint64_t key[2] = {flat, (uint64_t)version};
    uint64_t hash = hash_bytes(key, sizeof key, 0);
    uint64_t exponent = 122 - (uint64_t)__builtin_ctzll(hash >> 8 | 256);
    return (uint16_t)((hash & 1) << 15 | exponent << 7 | (hash >> 32 & 127));
}

static void write_alike(const banyan_piece *piece, const int64_t *index, uint64_t flat,
                        unsigned char *element, size_t elem_bytes, void *context)
{
    (void)piece;
    (void)index;
    uint16_t bits = alike_weight(flat, *(const int *)context);
    memcpy(element, &bits, elem_bytes);
}

static void check_alike(const banyan_piece *piece, const int64_t *index, uint64_t flat,
                        unsigned char *element, size_t elem_bytes, void *context)
{
    (void)piece;
    (void)index;
    uint16_t bits = alike_weight(flat, *(const int *)context);
    CHECK(memcmp(element, &bits, elem_bytes) == 0, "element %lu", (unsigned long)flat);
}

static struct following weights_of(int rank, bool is_engine)
{
    struct following made = {0};
    int64_t rows = is_engine ? WEIGHT_ROWS : WEIGHT_ROWS / 2;
    int64_t columns = is_engine ? WEIGHT_COLUMNS / 2 : WEIGHT_COLUMNS;
    banyan_piece piece = {
        .name = "weights",
        .ndim = 2,
        .shape = {WEIGHT_ROWS, WEIGHT_COLUMNS},
        .dim_map = {0, 1},
        .box = {2, {is_engine ? 0 : rank * rows, is_engine ? rank * columns : 0}, {rows, columns}}};
    CHECK_OK(banyan_layout_create(&made.layout));
    piece.tensor =
        banyan_layout_add_tensor(made.layout, "weights", BANYAN_BF16, 2, piece.box.extent);
    banyan_layout_add_piece(made.layout, &piece);
    following_alloc(&made, rank, is_engine);
    return made;
}

static void publish_weights(banyan_world *world, struct apart *shared)
{
    struct following mine = weights_of(banyan_world_rank(world), false);
    banyan_publication *publication = publish_open(world, shared, &mine, NULL);
    for (int version = 1; version <= WEIGHT_VERSIONS; version++) {
        filled_each(mine.layout, mine.tensors, write_alike, &version);
        following_send(&mine);
        CHECK_OK(banyan_publication_publish(publication, mine.set, (uint64_t)version, NULL));
        following_poison(&mine);
        apart_wait(&shared->marks[MARK_COMMITTED], FOLLOWING_ENGINES * version);
    }
    apart_wait(&shared->marks[MARK_END], FOLLOWING_ENGINES);
    banyan_publication_close(publication);
    following_close(&mine);
}

/* All versions come compressed, or, if the trainer first measures, those after the second one. */
static void follow_weights(banyan_world *world, struct apart *shared, uint64_t bytes_per_s)
{
    struct following mine = weights_of(banyan_world_rank(world), true);
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    options.bytes_per_s = bytes_per_s;
    options.verify = true;
    banyan_subscription *subscription = subscribe(world, shared, &mine, &options);
    bool always = following_compression == BANYAN_COMPRESSION_ALWAYS;
    uint64_t received = 0, committed = 0, staged;
    for (int version = 1; version <= WEIGHT_VERSIONS; version++) {
        while (committed < (uint64_t)version) {
            CHECK_OK(banyan_subscription_wait(subscription, committed, 60 * NS_PER_S, &staged));
            CHECK_OK(banyan_subscription_commit(subscription, &committed));
        }
        following_fetch(&mine);
        filled_each(mine.layout, mine.tensors, check_alike, &version);
        uint64_t now = banyan_subscription_get_status(subscription).received_bytes;
        uint64_t bytes = WEIGHT_ROWS * WEIGHT_COLUMNS, came = now - received;
        CHECK(!(always || (version > 2 && COMPRESSOR_IS_FAST)) ||
                  came < bytes * (always ? 75 : 85) / 100,
              "version %d took %lu of %lu bytes", version, (unsigned long)came,
              (unsigned long)bytes);
        received = now;
        CHECK_OK(banyan_world_barrier(world));
        atomic_fetch_add(&shared->marks[MARK_COMMITTED], 1);
    }
    end_engine(shared, subscription, &mine);
}

static void follow_at_full_speed(banyan_world *world, struct apart *shared)
{
    follow_weights(world, shared, 0);
}

static void follow_slowly(banyan_world *world, struct apart *shared)
{
    follow_weights(world, shared, SLOW_BYTES_PER_S);
}

static void play_always(struct apart *shared)
{
    following_compression = BANYAN_COMPRESSION_ALWAYS;
    play_with(shared, publish_weights, follow_at_full_speed);
}

static void all_versions_take_fewer_bytes_if_told_to(void **state)
{
    (void)state;
    apart_test(play_always);
}

static void play_automatic(struct apart *shared)
{
    following_compression = BANYAN_COMPRESSION_AUTOMATIC;
    play_with(shared, publish_weights, follow_slowly);
}

static void a_slow_link_is_found_and_compressed_for(void **state)
{
    (void)state;
    apart_test(play_automatic);
}

#endif
