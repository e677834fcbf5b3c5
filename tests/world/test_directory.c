#include "support/test.h"

#include "core/containers.h"
#include "core/deadline.h"
#include "world/directory/directory.h"

/* A world of parts in this process; messages are delivered by hand, in order of their senders. */
struct simulation {
    int size;
    directory_part **parts;
};

static struct simulation simulation_of(int size)
{
    struct simulation simulated = {size, calloc((size_t)size, sizeof(directory_part *))};
    for (int rank = 0; rank < size; rank++)
        CHECK_OK(directory_part_create(rank, size, &simulated.parts[rank]));
    return simulated;
}

static void simulation_free(struct simulation *simulated)
{
    for (int rank = 0; rank < simulated->size; rank++)
        directory_part_destroy(simulated->parts[rank]);
    free(simulated->parts);
}

static void commit(struct simulation *simulated)
{
    for (int rank = 0; rank < simulated->size; rank++) {
        control_message *messages;
        size_t count;
        CHECK_OK(directory_part_take_puts(simulated->parts[rank], &messages, &count));
        for (size_t i = 0; i < count; i++)
            CHECK_OK(directory_part_absorb(simulated->parts[messages[i].rank], rank,
                                           messages[i].data, messages[i].bytes));
        for (size_t i = 0; i < count; i++)
            free(messages[i].data);
        free(messages);
    }
}

static banyan_status get(struct simulation *simulated, int rank, size_t count,
                         const char *const *keys, banyan_directory_visit visit, void *context)
{
    directory_part *asker = simulated->parts[rank];
    control_message *messages;
    size_t message_count;
    CHECK_OK(directory_part_ask(asker, count, keys, &messages, &message_count));
    for (size_t i = 0; i < message_count; i++) {
        void *question = messages[i].data;
        CHECK_OK(directory_part_answer(simulated->parts[messages[i].rank], question,
                                       messages[i].bytes, &messages[i].data, &messages[i].bytes));
        free(question);
    }
    banyan_status status = directory_part_visit(asker, messages, message_count, visit, context);
    for (size_t i = 0; i < message_count; i++)
        free(messages[i].data);
    free(messages);
    return status;
}

#define MODEL_KEYS 12
#define MODEL_VALUES 5
#define MODEL_RANKS 5000

struct model {
    int size;
    unsigned char held[MODEL_KEYS][MODEL_VALUES][MODEL_RANKS];
    unsigned visited;
};

static void model_key(size_t k, char text[32])
{
    snprintf(text, 32, "layers.%zu.weight", k * 7);
}

/* Value 0 is empty, value 2 begins like value 1, to test ties and lengths. */
static size_t model_value(size_t k, size_t v, unsigned char bytes[64])
{
    size_t length = v * 11;
    for (size_t i = 0; i < length; i++)
        bytes[i] = (unsigned char)(i < 11 ? k : v * 37 + i);
    return length;
}

static banyan_status compare_with_model(void *context, size_t key,
                                        const banyan_directory_value *values, size_t count)
{
    struct model *model = context;
    const banyan_directory_value *at = values;
    model->visited |= 1U << key;
    for (size_t v = 0; v < MODEL_VALUES; v++) {
        unsigned char expected[64];
        size_t bytes = model_value(key, v, expected);
        if (!memchr(model->held[key][v], 1, (size_t)model->size))
            continue;
        CHECK(at < values + count, "key %zu lacks value %zu", key, v);
        CHECK(at->bytes == bytes && memcmp(at->data, expected, bytes) == 0, "key %zu value %zu",
              key, v);
        unsigned char seen[MODEL_RANKS] = {0};
        for (size_t s = 0; s < at->rank_set_count; s++) {
            CHECK(s == 0 || at->ranks[s].first > at->ranks[s - 1].first, "sets do not ascend");
            for (int64_t i = 0; i < banyan_rank_set_size(&at->ranks[s]); i++) {
                int rank = banyan_rank_set_at(&at->ranks[s], i);
                CHECK(rank >= 0 && rank < model->size && !seen[rank], "rank %d twice", rank);
                seen[rank] = 1;
            }
        }
        CHECK(memcmp(seen, model->held[key][v], sizeof seen) == 0, "key %zu value %zu: holders",
              key, v);
        at++;
    }
    CHECK(at == values + count, "key %zu has %zu values", key, count);
    return BANYAN_OK;
}

/* A mesh axis, or two or three, that fits the world; strides may be negative. */
static banyan_rank_set random_set(random_state *random, int size)
{
    banyan_rank_set set = banyan_rank_set_one(0);
    int span = 1, levels = (int)random_between(random, 0, 3);
    for (int k = 0; k < levels && span < size; k++) {
        int level = (int)random_between(random, 0, 3);
        if (set.count[level] > 1)
            continue;
        int stride = span * (int)random_between(random, 1, 3);
        int count = (int)random_between(random, 1, 6);
        if (stride >= size || (int64_t)stride * (count - 1) + span > size)
            continue;
        set.count[level] = count;
        set.stride[level] = stride;
        span += stride * (count - 1);
    }
    set.first = (int)random_between(random, 0, size - span);
    if (random_between(random, 0, 4) == 0) {
        for (int k = 0; k < BANYAN_RANK_SET_LEVELS; k++) {
            set.first += (set.count[k] - 1) * set.stride[k];
            set.stride[k] = -set.stride[k];
        }
    }
    return set;
}

static void put_randomly(struct simulation *simulated, struct model *model, random_state *random)
{
    for (int64_t puts = random_between(random, 0, 4 * simulated->size + 40); puts > 0; puts--) {
        size_t k = (size_t)random_between(random, 0, MODEL_KEYS - 2);
        size_t v = (size_t)random_between(random, 0, MODEL_VALUES - 1);
        int rank = (int)random_between(random, 0, simulated->size - 1);
        char key[32];
        unsigned char value[64];
        model_key(k, key);
        size_t bytes = model_value(k, v, value);
        bool self = random_between(random, 0, 3) > 0;
        banyan_rank_set set = self ? banyan_rank_set_one(rank) : random_set(random, model->size);
        CHECK_OK(directory_part_put(simulated->parts[rank], key, value, bytes, self ? NULL : &set));
        for (int64_t i = 0; i < banyan_rank_set_size(&set); i++)
            model->held[k][v][banyan_rank_set_at(&set, i)] = 1;
    }
}

static void gets_find_the_values_that_were_put(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    char texts[MODEL_KEYS][32];
    const char *keys[MODEL_KEYS];
    for (size_t k = 0; k < MODEL_KEYS; k++) {
        model_key(k, texts[k]);
        keys[k] = texts[k];
    }
    for (int trial = 0; trial < 60; trial++) {
        static const int limits[] = {1, 4, 70, 600, MODEL_RANKS};
        struct model *model = calloc(1, sizeof *model);
        model->size = (int)random_between(&random, 1, limits[trial % 5]);
        struct simulation simulated = simulation_of(model->size);
        for (int commits = 0; commits < 2; commits++) {
            put_randomly(&simulated, model, &random);
            commit(&simulated);
            int asker = (int)random_between(&random, 0, model->size - 1);
            model->visited = 0;
            CHECK_OK(get(&simulated, asker, MODEL_KEYS, keys, compare_with_model, model));
            assert_int_equal(model->visited, (1U << MODEL_KEYS) - 1);
        }
        simulation_free(&simulated);
        free(model);
    }
}

struct sets_seen {
    banyan_rank_set sets[8];
    size_t count;
};

static banyan_status note_sets(void *context, size_t key, const banyan_directory_value *values,
                               size_t count)
{
    (void)key;
    struct sets_seen *seen = context;
    CHECK(count == 1, "%zu values", count);
    CHECK(values[0].rank_set_count <= 8, "%zu sets", values[0].rank_set_count);
    seen->count = values[0].rank_set_count;
    memcpy(seen->sets, values[0].ranks, seen->count * sizeof seen->sets[0]);
    return BANYAN_OK;
}

static struct sets_seen sets_after(struct simulation *simulated)
{
    commit(simulated);
    const char *key = "weight";
    struct sets_seen seen;
    CHECK_OK(get(simulated, 0, 1, &key, note_sets, &seen));
    return seen;
}

static void put_one_by_one(struct simulation *simulated, const banyan_rank_set *holders)
{
    for (int64_t i = 0; i < banyan_rank_set_size(holders); i++)
        CHECK_OK(directory_part_put(simulated->parts[banyan_rank_set_at(holders, i)], "weight",
                                    "shard", 5, NULL));
}

static void ranks_that_put_one_by_one_become_one_set(void **state)
{
    (void)state;
    static const banyan_rank_set holders[] = {
        {0, {1, 1, 1, 1000}, {0, 0, 0, 1}},  {3, {1, 1, 1, 100}, {0, 0, 0, 8}},
        {5, {1, 1, 40, 4}, {0, 0, 16, 1}},   {1, {1, 10, 4, 2}, {0, 80, 16, 1}},
        {2, {3, 3, 4, 2}, {300, 72, 16, 3}},
    };
    for (size_t i = 0; i < sizeof(holders) / sizeof(holders[0]); i++) {
        struct simulation simulated = simulation_of(1024);
        put_one_by_one(&simulated, &holders[i]);
        put_one_by_one(&simulated, &holders[i]);
        struct sets_seen seen = sets_after(&simulated);
        assert_int_equal(seen.count, 1);
        assert_memory_equal(&seen.sets[0], &holders[i], sizeof holders[i]);
        simulation_free(&simulated);
    }
}

static void replicas_that_come_in_any_order_become_one_set(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    int order[512];
    for (int i = 0; i < 512; i++) {
        int j = (int)random_between(&random, 0, i);
        order[i] = order[j];
        order[j] = i;
    }
    struct simulation simulated = simulation_of(512);
    for (int i = 0; i < 512; i++) {
        CHECK_OK(directory_part_put(simulated.parts[order[i]], "weight", "shard", 5, NULL));
        if (i % 100 == 0)
            commit(&simulated);
    }
    struct sets_seen seen = sets_after(&simulated);
    assert_int_equal(seen.count, 1);
    assert_int_equal(banyan_rank_set_size(&seen.sets[0]), 512);
    simulation_free(&simulated);
}

static void a_thousand_replicas_take_the_place_of_few(void **state)
{
    (void)state;
    struct simulation few = simulation_of(2048), many = simulation_of(2048);
    for (int rank = 0; rank < 2048; rank += rank < 8 ? 1 : 8) {
        if (rank < 16)
            CHECK_OK(directory_part_put(few.parts[rank], "weight", "shard", 5, NULL));
        CHECK_OK(directory_part_put(many.parts[rank], "weight", "shard", 5, NULL));
    }
    commit(&few);
    commit(&many);
    int owner = directory_owner("weight", 2048);
    assert_int_equal(directory_part_memory(few.parts[owner]),
                     directory_part_memory(many.parts[owner]));
    simulation_free(&few);
    simulation_free(&many);
}

static void two_sets_that_interleave_stay_two(void **state)
{
    (void)state;
    struct simulation simulated = simulation_of(64);
    banyan_rank_set tens = {0, {1, 1, 1, 4}, {0, 0, 0, 10}};
    banyan_rank_set elevens = {3, {1, 1, 1, 4}, {0, 0, 0, 11}};
    CHECK_OK(directory_part_put(simulated.parts[9], "weight", "shard", 5, &elevens));
    CHECK_OK(directory_part_put(simulated.parts[10], "weight", "shard", 5, &tens));
    struct sets_seen seen = sets_after(&simulated);
    assert_int_equal(seen.count, 2);
    assert_memory_equal(&seen.sets[0], &tens, sizeof tens);
    assert_memory_equal(&seen.sets[1], &elevens, sizeof elevens);
    simulation_free(&simulated);
}

static void holders_that_cannot_be_are_refused(void **state)
{
    (void)state;
    directory_part *part;
    CHECK_OK(directory_part_create(3, 16, &part));
    static const struct {
        banyan_rank_set set;
        const char *problem;
    } cases[] = {
        {{0}, "an empty level"},
        {{-1, {1, 1, 1, 1}, {0}}, "outside the world"},
        {{16, {1, 1, 1, 1}, {0}}, "outside the world"},
        {{0, {1, 1, 1, 4}, {0, 0, 0, 8}}, "outside the world"},
        {{3, {1, 1, 1, 3}, {0, 0, 0, -2}}, "outside the world"},
        {{0, {1, 1, 1, 17}, {0, 0, 0, 1}}, "more ranks than the world"},
        {{0, {1000000, 1000000, 1000000, 1000000}, {0}}, "more ranks than the world"},
        {{0, {1, 1, 1, 2}, {0, 0, 0, 0}}, "a rank twice"},
        {{0, {1, 1, 3, 3}, {0, 0, 2, 1}}, "a rank twice"},
        {{0, {1, 1, 2, 2}, {0, 0, INT32_MAX, INT32_MIN}}, "outside the world"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        CHECK_FAILS(directory_part_put(part, "weight", "", 0, &cases[i].set), BANYAN_ERR_INVALID,
                    cases[i].problem);
    banyan_rank_set apart = {0, {1, 1, 2, 3}, {0, 0, 3, 2}};
    CHECK_OK(directory_part_put(part, "weight", "", 0, &apart));
    CHECK_FAILS(directory_part_put(part, NULL, "", 0, NULL), BANYAN_ERR_INVALID, "without a key");
    CHECK_FAILS(directory_part_put(part, "weight", NULL, 1, NULL), BANYAN_ERR_INVALID,
                "without a value");
    control_message *messages;
    size_t count;
    CHECK_FAILS(directory_part_ask(part, 1, (const char *[]){NULL}, &messages, &count),
                BANYAN_ERR_INVALID, "key 0 of 1");
    directory_part_destroy(part);
    CHECK_FAILS(directory_part_create(4, 4, &part), BANYAN_ERR_INVALID, "rank 4");
}

static banyan_status refuse(void *context, size_t key, const banyan_directory_value *values,
                            size_t count)
{
    (void)values;
    (void)count;
    (*(int *)context)++;
    return key == 1 ? banyan_error_set(BANYAN_ERR_NOT_FOUND, "enough") : BANYAN_OK;
}

static void a_visit_that_fails_ends_the_get(void **state)
{
    (void)state;
    struct simulation simulated = simulation_of(5);
    int calls = 0;
    CHECK_FAILS(get(&simulated, 2, 3, (const char *[]){"a", "b", "c"}, refuse, &calls),
                BANYAN_ERR_NOT_FOUND, "enough");
    assert_int_equal(calls, 2);
    CHECK_OK(get(&simulated, 2, 0, NULL, refuse, &calls));
    assert_int_equal(calls, 2);
    simulation_free(&simulated);
}

static void a_key_at_the_wrong_owner_is_refused(void **state)
{
    (void)state;
    struct simulation simulated = simulation_of(7);
    control_message *messages;
    size_t count;
    CHECK_OK(directory_part_put(simulated.parts[0], "weight", "shard", 5, NULL));
    CHECK_OK(directory_part_take_puts(simulated.parts[0], &messages, &count));
    assert_int_equal(count, 1);
    CHECK_FAILS(directory_part_absorb(simulated.parts[(messages[0].rank + 1) % 7], 0,
                                      messages[0].data, messages[0].bytes),
                BANYAN_ERR_FORMAT, "belongs to another rank");
    free(messages[0].data);
    free(messages);
    simulation_free(&simulated);
}

static banyan_status ignore(void *context, size_t key, const banyan_directory_value *values,
                            size_t count)
{
    (void)key;
    unsigned *sum = context;
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < values[i].bytes; k++)
            *sum += ((const unsigned char *)values[i].data)[k];
        for (size_t k = 0; k < values[i].rank_set_count; k++)
            *sum += (unsigned)banyan_rank_set_size(&values[i].ranks[k]);
    }
    return BANYAN_OK;
}

/* Flip, cut or lengthen: exact-size copies, so that a sanitizer sees a read past the end. */
static void *spoil(random_state *random, const void *data, size_t bytes, size_t *spoilt_bytes)
{
    size_t length = bytes;
    if (random_between(random, 0, 3) == 0)
        length = (size_t)random_between(random, 0, (int64_t)bytes + 9);
    unsigned char *spoilt = malloc(length ? length : 1);
    for (size_t i = 0; i < length; i++)
        spoilt[i] =
            i < bytes ? ((const unsigned char *)data)[i] : (unsigned char)random_next(random);
    for (int64_t flips = random_between(random, 0, 3); flips > 0 && length > 0; flips--)
        spoilt[random_between(random, 0, (int64_t)length - 1)] =
            (unsigned char)(random_next(random) % 4 ? random_next(random) : 255);
    *spoilt_bytes = length;
    return spoilt;
}

static void spoilt_messages_are_refused_or_taken_whole(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    const char *keys[] = {"a", "weight", "c"};
    int refused = 0;
    unsigned sum = 0;
    for (int trial = 0; trial < 30000; trial++) {
        int size = trial % 2 ? 100 : 1;
        directory_part *part, *owner;
        CHECK_OK(directory_part_create(size / 2, size, &part));
        banyan_rank_set set = random_set(&random, size);
        for (int i = 0; i < 3; i++)
            CHECK_OK(directory_part_put(part, keys[i], "some value", (size_t)(3 + i), &set));
        control_message *puts, *questions;
        size_t put_count, question_count, bytes;
        CHECK_OK(directory_part_take_puts(part, &puts, &put_count));
        CHECK_OK(directory_part_create(puts[0].rank, size, &owner));
        size_t before = directory_part_memory(owner);
        void *spoilt = spoil(&random, puts[0].data, puts[0].bytes, &bytes);
        banyan_status status = directory_part_absorb(owner, 3, spoilt, bytes);
        free(spoilt);
        if (status != BANYAN_OK) {
            assert_int_equal(status, BANYAN_ERR_FORMAT);
            assert_int_equal(directory_part_memory(owner), before);
            refused++;
        }
        CHECK_OK(directory_part_absorb(owner, 3, puts[0].data, puts[0].bytes));

        CHECK_OK(directory_part_ask(part, 3, keys, &questions, &question_count));
        for (size_t i = 0; i < question_count; i++) {
            void *answer;
            size_t answer_bytes;
            spoilt = spoil(&random, questions[i].data, questions[i].bytes, &bytes);
            status = directory_part_answer(owner, spoilt, bytes, &answer, &answer_bytes);
            free(spoilt);
            free(questions[i].data);
            questions[i].data = NULL;
            questions[i].bytes = 0;
            if (status != BANYAN_OK) {
                assert_int_equal(status, BANYAN_ERR_FORMAT);
                refused++;
                continue;
            }
            questions[i].data = spoil(&random, answer, answer_bytes, &questions[i].bytes);
            free(answer);
        }
        status = directory_part_visit(part, questions, question_count, ignore, &sum);
        assert_true(status == BANYAN_OK || status == BANYAN_ERR_FORMAT);
        refused += status != BANYAN_OK;
        for (size_t i = 0; i < question_count; i++)
            free(questions[i].data);
        for (size_t i = 0; i < put_count; i++)
            free(puts[i].data);
        free(questions);
        free(puts);
        directory_part_destroy(owner);
        directory_part_destroy(part);
    }
    assert_true(refused > 10000);
}

/* 256 tensors, of which each of 1024 ranks holds one shard of 8, as with a planner for thousands
 * of ranks. */
static void puts_are_absorbed_quickly_in_little_memory(void **state)
{
    (void)state;
    enum { RANKS = 1024, TENSORS = 256, VALUE_BYTES = 100 };
    struct simulation simulated = simulation_of(RANKS);
    for (int rank = 0; rank < RANKS; rank++) {
        for (int tensor = 0; tensor < TENSORS; tensor++) {
            char key[64], value[VALUE_BYTES] = "shard";
            value[10] = (char)(rank % 8);
            snprintf(key, sizeof key, "model.layers.%d.mlp.experts.down_proj.weight", tensor);
            CHECK_OK(directory_part_put(simulated.parts[rank], key, value, sizeof value, NULL));
        }
    }
    uint64_t start = time_now_ns();
    commit(&simulated);
    double ns_per_put = (double)(time_now_ns() - start) / (RANKS * TENSORS);
    size_t memory = 0, empty;
    for (int rank = 0; rank < RANKS; rank++)
        memory += directory_part_memory(simulated.parts[rank]);
    directory_part *part;
    CHECK_OK(directory_part_create(0, RANKS, &part));
    empty = directory_part_memory(part) * RANKS;
    directory_part_destroy(part);
    double bytes_per_value = (double)(memory - empty) / (TENSORS * 8);
    printf("%.0f ns to send and absorb a put, %.0f bytes for a value of %d\n", ns_per_put,
           bytes_per_value, VALUE_BYTES);
    assert_true(bytes_per_value < 1000);
    simulation_free(&simulated);
}

struct large_value {
    unsigned char *bytes;
    size_t count, visited;
};

static banyan_status compare_large(void *context, size_t key, const banyan_directory_value *values,
                                   size_t count)
{
    struct large_value *large = context;
    (void)key;
    CHECK(count == 1 && values[0].bytes == large->count);
    CHECK(memcmp(values[0].data, large->bytes, large->count) == 0);
    large->visited++;
    return BANYAN_OK;
}

static void answers_that_an_owner_keeps_are_bounded_and_right(void **state)
{
    (void)state;
    enum { KEYS = 100, ROUNDS = 3, LARGEST = 300000 };
    struct simulation simulated = simulation_of(1);
    struct large_value large = {malloc(LARGEST), 0, 0};
    for (size_t key = 0; key < KEYS; key++) {
        char text[32];
        snprintf(text, sizeof text, "tensor %zu", key);
        large.count = key == 0 ? LARGEST : 10000 + key;
        memset(large.bytes, (int)key, large.count);
        CHECK_OK(directory_part_put(simulated.parts[0], text, large.bytes, large.count, NULL));
    }
    commit(&simulated);
    size_t before = directory_part_memory(simulated.parts[0]);
    for (size_t ask = 0; ask < ROUNDS * KEYS; ask++) {
        char text[32];
        const char *keys[] = {text, text};
        snprintf(text, sizeof text, "tensor %zu", ask % KEYS);
        large.count = ask % KEYS == 0 ? LARGEST : 10000 + ask % KEYS;
        memset(large.bytes, (int)(ask % KEYS), large.count);
        CHECK_OK(get(&simulated, 0, 2, keys, compare_large, &large));
    }
    assert_int_equal(large.visited, 2 * ROUNDS * KEYS);
    size_t kept = directory_part_memory(simulated.parts[0]) - before;
    assert_true(kept > 0);
    if (kept > 400 * 1024)
        fail_msg("%zu bytes of answers are kept", kept);
    free(large.bytes);
    simulation_free(&simulated);
}

static banyan_status count_holders(void *context, size_t key, const banyan_directory_value *values,
                                   size_t count)
{
    int64_t *holders = context;
    holders[key] = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < values[i].rank_set_count; k++)
            holders[key] += banyan_rank_set_size(&values[i].ranks[k]);
    return BANYAN_OK;
}

static void put_and_get_in_world(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    banyan_directory *directory;
    CHECK_OK(banyan_directory_open(world, &directory));
    CHECK_OK(banyan_directory_put(directory, "all", "same", 4, NULL));
    CHECK_OK(banyan_directory_put(directory, "each", &rank, sizeof rank, NULL));
    if (rank == 0)
        CHECK_OK(banyan_directory_put(directory, "zero", "0", 1, NULL));
    CHECK_OK(banyan_directory_commit(directory));
    const char *keys[] = {"zero", "nobody", "each", "all"};
    int64_t holders[4];
    CHECK_OK(banyan_directory_get(directory, rank == 1 ? 0 : 4, keys, count_holders, holders));
    CHECK(rank == 1 ||
          (holders[0] == 1 && holders[1] == 0 && holders[2] == size && holders[3] == size));
    banyan_directory_close(directory);
}

static void a_world_of_processes_finds_its_values(void **state)
{
    (void)state;
    ranks_run(1, put_and_get_in_world, NULL);
    ranks_run(5, put_and_get_in_world, NULL);
}

static void ask_wrongly(banyan_world *world, void *context)
{
    (void)context;
    banyan_directory *directory;
    int64_t holders[1];
    CHECK_OK(banyan_directory_open(world, &directory));
    const char *none = banyan_world_rank(world) == 1 ? NULL : "weight";
    CHECK_FAILS(banyan_directory_get(directory, 1, &none, count_holders, holders),
                BANYAN_ERR_INVALID, "key 0 of 1 is NULL");
    const char *key = "weight";
    CHECK_OK(banyan_directory_get(directory, 1, &key, count_holders, holders));
    banyan_directory_close(directory);
}

static void a_wrong_question_fails_on_every_rank(void **state)
{
    (void)state;
    ranks_run(3, ask_wrongly, NULL);
}

/* Holders repeat their puts, in any order; the list stays one run of ranks. */
static void ranks_that_come_again_take_no_room(void **state)
{
    (void)state;
    enum { RANKS = 12 };
    uint64_t seen[1] = {0};
    arena memory = {0};
    rank_list list = {0};
    for (int turn = 0; turn < 2; turn++) {
        for (int rank = 0; rank < RANKS; rank++) {
            banyan_rank_set one = banyan_rank_set_one(1 + 2 * rank);
            CHECK(rank_list_add(&list, &one, 2 * RANKS, seen, &memory));
            CHECK(list.count == 1 && list.folded, "rank %d in turn %d", 1 + 2 * rank, turn);
        }
    }
    CHECK(banyan_rank_set_size(&list.sets[0]) == RANKS);
    arena_free(&memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_come_again_take_no_room),
        cmocka_unit_test(gets_find_the_values_that_were_put),
        cmocka_unit_test(ranks_that_put_one_by_one_become_one_set),
        cmocka_unit_test(replicas_that_come_in_any_order_become_one_set),
        cmocka_unit_test(a_thousand_replicas_take_the_place_of_few),
        cmocka_unit_test(two_sets_that_interleave_stay_two),
        cmocka_unit_test(holders_that_cannot_be_are_refused),
        cmocka_unit_test(a_visit_that_fails_ends_the_get),
        cmocka_unit_test(a_key_at_the_wrong_owner_is_refused),
        cmocka_unit_test(spoilt_messages_are_refused_or_taken_whole),
        cmocka_unit_test(puts_are_absorbed_quickly_in_little_memory),
        cmocka_unit_test(answers_that_an_owner_keeps_are_bounded_and_right),
        cmocka_unit_test(a_world_of_processes_finds_its_values),
        cmocka_unit_test(a_wrong_question_fails_on_every_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
