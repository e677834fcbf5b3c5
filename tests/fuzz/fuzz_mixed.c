/* Autotuned tables of mixed collectives. An accepted table chooses modes that can run, and is
 * unchanged after it was saved. */
#include "fuzz.h"

static banyan_mixed *context_of_one(void)
{
    static banyan_world *world;
    static banyan_mixed *mixed;
    banyan_mixed_options options = BANYAN_MIXED_OPTIONS_INIT;
    options.use_autotune = false;
    if (!mixed) {
        FUZZ_REQUIRE(banyan_world_open(NULL, &world) == BANYAN_OK);
        FUZZ_REQUIRE(banyan_mixed_open(world, &options, &mixed) == BANYAN_OK);
    }
    return mixed;
}

#define HEAD                                                                                       \
    "{\"format\": \"banyan mixed tuning\", \"version\": 1, \"local_tp\": 1, \"local_dp\": 1, "     \
    "\"inter_tp\": 1, \"inter_dp\": 1, \"dtype\": \"BF16\", \"device\": \"host\", \"rows\": ["
#define ROW(bytes, mode, ns)                                                                       \
    "{\"op\": \"allreduce\", \"bytes\": " #bytes ", \"mode\": \"" mode "\", \"ns\": " #ns "}"

void fuzz_write_seeds(void)
{
    fuzz_seed_text(HEAD "]}");
    fuzz_seed_text(HEAD ROW(1024, "one_shot", 10) "]}");
    fuzz_seed_text(HEAD ROW(1024, "one_shot", 10) "," ROW(1024, "single", 9) "," ROW(
        4096, "two_shot_nodes", 1) "," ROW(8192, "separate_nccl", 9223372036854775807) "]}");
}

static void check_choices(const banyan_mixed *mixed)
{
    banyan_mixed_mode valid[BANYAN_MIXED_MODES], chosen;
    size_t count, at;
    FUZZ_REQUIRE(banyan_mixed_valid_modes(mixed, BANYAN_MIXED_ALLREDUCE, valid, BANYAN_MIXED_MODES,
                                          &count) == BANYAN_OK);
    for (int shift = 0; shift < 64; shift++) {
        FUZZ_REQUIRE(banyan_mixed_select_autotune_mode(mixed, BANYAN_MIXED_ALLREDUCE,
                                                       UINT64_C(1) << shift, &chosen) == BANYAN_OK);
        for (at = 0; at < count && valid[at] != chosen; at++)
            continue;
        FUZZ_REQUIRE(at < count);
    }
}

/* All of the table's measurements; returns how many. */
static size_t list(const banyan_mixed *mixed, banyan_mixed_timing *timings, size_t room)
{
    size_t count = 0;
    while (count < room && banyan_mixed_timing_at(mixed, count, &timings[count]) == BANYAN_OK)
        count++;
    return count;
}

static void save_and_load(banyan_mixed *mixed)
{
    static banyan_mixed_timing before[512], after[512];
    size_t count = list(mixed, before, 512);
    fuzz_file saved = fuzz_file_open("", 0);
    if (count > 0) {
        FUZZ_REQUIRE(banyan_mixed_save_autotune(mixed, saved.path) == BANYAN_OK);
        FUZZ_REQUIRE(banyan_mixed_load_autotune(mixed, saved.path) == BANYAN_OK);
    }
    FUZZ_REQUIRE(list(mixed, after, 512) == count);
    for (size_t i = 0; i < count; i++)
        FUZZ_REQUIRE(before[i].op == after[i].op && before[i].bytes == after[i].bytes &&
                     before[i].mode == after[i].mode && before[i].ns == after[i].ns &&
                     before[i].is_best == after[i].is_best);
    fuzz_file_close(&saved);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    banyan_mixed *mixed = context_of_one();
    fuzz_file file = fuzz_file_open(data, size);
    if (fuzz_took(banyan_mixed_load_autotune(mixed, file.path))) {
        check_choices(mixed);
        save_and_load(mixed);
    }
    fuzz_file_close(&file);
    return 0;
}
