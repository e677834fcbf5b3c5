/* Messages of the directory: puts, questions and answers. The first byte chooses which. */
#include "fuzz.h"

#include "core/containers.h"
#include "world/directory/directory.h"

enum { WORLD = 4, MESSAGE_PUTS = 0, MESSAGE_QUESTION, MESSAGE_ANSWER, MESSAGE_KINDS };

/* Keys whose owner is rank 0, which is tried. */
static const char *const *owned_keys(void)
{
    static char names[3][16];
    static const char *keys[3];
    for (int i = 0, found = keys[0] ? 3 : 0; found < 3; i++) {
        snprintf(names[found], sizeof names[found], "key.%d", i);
        if (directory_owner(names[found], WORLD) == 0) {
            keys[found] = names[found];
            found++;
        }
    }
    return keys;
}

static void put_some(directory_part *part, int world_size)
{
    const char *const *keys = owned_keys();
    banyan_rank_set all = banyan_rank_set_one(0);
    all.count[BANYAN_RANK_SET_LEVELS - 1] = world_size;
    all.stride[BANYAN_RANK_SET_LEVELS - 1] = 1;
    for (int i = 0; i < 3; i++) {
        FUZZ_REQUIRE(directory_part_put(part, keys[i], "value", 5, &all) == BANYAN_OK);
        FUZZ_REQUIRE(directory_part_put(part, keys[i], &i, sizeof i, NULL) == BANYAN_OK);
    }
}

static void seed_of(uint8_t kind, const void *data, size_t bytes)
{
    uint8_t *seed = malloc(bytes + 1);
    seed[0] = kind;
    memcpy(seed + 1, data, bytes);
    fuzz_seed(seed, bytes + 1);
    free(seed);
}

void fuzz_write_seeds(void)
{
    directory_part *part;
    control_message *messages;
    size_t count, bytes;
    FUZZ_REQUIRE(directory_part_create(0, WORLD, &part) == BANYAN_OK);
    put_some(part, WORLD);
    FUZZ_REQUIRE(directory_part_take_puts(part, &messages, &count) == BANYAN_OK);
    for (size_t i = 0; i < count; i++) {
        seed_of(MESSAGE_PUTS, messages[i].data, messages[i].bytes);
        FUZZ_REQUIRE(directory_part_absorb(part, 0, messages[i].data, messages[i].bytes) ==
                     BANYAN_OK);
    }
    control_messages_free(messages, count);
    FUZZ_REQUIRE(directory_part_ask(part, 3, owned_keys(), &messages, &count) == BANYAN_OK);
    for (size_t i = 0; i < count; i++) {
        void *answer;
        seed_of(MESSAGE_QUESTION, messages[i].data, messages[i].bytes);
        FUZZ_REQUIRE(directory_part_answer(part, messages[i].data, messages[i].bytes, &answer,
                                           &bytes) == BANYAN_OK);
        seed_of(MESSAGE_ANSWER, answer, bytes);
        free(answer);
    }
    control_messages_free(messages, count);
    directory_part_destroy(part);
}

static banyan_status see(void *context, size_t key_index, const banyan_directory_value *values,
                         size_t value_count)
{
    size_t *ranks = context;
    FUZZ_REQUIRE(key_index < 3);
    for (size_t v = 0; v < value_count; v++) {
        for (size_t s = 0; s < values[v].rank_set_count; s++) {
            int64_t size = banyan_rank_set_size(&values[v].ranks[s]);
            FUZZ_REQUIRE(size > 0 && size <= WORLD);
            for (int64_t i = 0; i < size; i++) {
                int rank = banyan_rank_set_at(&values[v].ranks[s], i);
                FUZZ_REQUIRE(rank >= 0 && rank < WORLD);
            }
            *ranks += (size_t)size;
        }
    }
    return BANYAN_OK;
}

static void try_answer(directory_part *part, const uint8_t *data, size_t size)
{
    control_message *questions;
    size_t count, ranks = 0;
    FUZZ_REQUIRE(directory_part_ask(part, 3, owned_keys(), &questions, &count) == BANYAN_OK);
    control_message *answers = calloc(count + 1, sizeof *answers);
    for (size_t i = 0; i < count; i++)
        answers[i] = (control_message){questions[i].rank, (void *)(uintptr_t)data, size};
    fuzz_took(directory_part_visit(part, answers, count, see, &ranks));
    free(answers);
    control_messages_free(questions, count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    directory_part *part;
    FUZZ_REQUIRE(directory_part_create(0, WORLD, &part) == BANYAN_OK);
    void *answer;
    size_t bytes;
    switch (data[0] % MESSAGE_KINDS) {
    case MESSAGE_PUTS:
        fuzz_took(directory_part_absorb(part, 1, data + 1, size - 1));
        break;
    case MESSAGE_QUESTION:
        if (fuzz_took(directory_part_answer(part, data + 1, size - 1, &answer, &bytes)))
            free(answer);
        break;
    default:
        try_answer(part, data + 1, size - 1);
    }
    directory_part_destroy(part);
    return 0;
}
