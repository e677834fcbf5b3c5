/* Layout files: an accepted file is written and read again without change. */
#include "fuzz.h"

#include "reshard/layout/file.h"

#define BEGIN "{\"format\":\"banyan.layout\",\"version\":1,\"ranks\":["

void fuzz_write_seeds(void)
{
    fuzz_seed_text(BEGIN "]}");
    fuzz_seed_text(
        BEGIN "{\"ranks\":[0,4],\"facts\":{\"head_dim\":64},\"tensors\":[{\"name\":\"t\",\"dtype\":"
              "\"BF16\",\"shape\":[4,6],\"pieces\":[{\"tensor\":\"w\",\"shape\":[6,8],\"start\":["
              "0,4],\"extent\":[6,3],\"local_start\":[1,0],\"dim_map\":[1,0],\"fallback\":\"e\","
              "\"persistent_buffer\":true,\"replicas\":{\"first\":0,\"count\":[1,1,1,2],\"stride\":"
              "[0,0,0,4]}}],\"padding\":[{\"start\":[0,0],\"extent\":[1,3],\"fill\":1.5}],"
              "\"left_alone\":[{\"start\":[0,3],\"extent\":[1,3]}]}]}]}");
    fuzz_seed_text(BEGIN "{\"ranks\":[0],\"tensors\":[{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":["
                         "4],\"pieces\":[{\"tensor\":\"A_log\",\"shape\":[4],\"start\":[0],"
                         "\"extent\":[4],\"map\":\"negative_exp\"}]}]}]}");
    fuzz_seed_text(BEGIN "{\"ranks\":[1],\"tensors\":[{\"name\":\"t\",\"dtype\":\"I32\",\"shape\":["
                         "4],\"pieces\":[],\"padding\":[{\"start\":[0],\"extent\":[2],\"fill\":-7},"
                         "{\"start\":[2],\"extent\":[2],\"fill\":\"0x0000ffff\"}]}]}]}");
}

/* Each group's layout as text, one after another; to be freed. */
static char *text_of(const banyan_layout_file *file)
{
    char *all = calloc(1, 1);
    size_t used = 0;
    for (size_t g = 0; g < banyan_layout_file_group_count(file); g++) {
        char *text;
        FUZZ_REQUIRE(layout_file_write_layout(banyan_layout_file_group_layout(file, g), &text) ==
                     BANYAN_OK);
        size_t bytes = strlen(text), count;
        banyan_layout_file_group_ranks(file, g, &count);
        if (count > 0) {
            all = realloc(all, used + bytes + 1);
            FUZZ_REQUIRE(all);
            memcpy(all + used, text, bytes + 1);
            used += bytes;
        }
        free(text);
    }
    return all;
}

static void save_and_load(const banyan_layout_file *file)
{
    char path[] = "/tmp/fuzz_layout_XXXXXX";
    int fd = mkstemp(path);
    banyan_layout_file *again;
    FUZZ_REQUIRE(fd >= 0);
    close(fd);
    FUZZ_REQUIRE(banyan_layout_file_save(file, path) == BANYAN_OK);
    FUZZ_REQUIRE(banyan_layout_file_load(path, &again) == BANYAN_OK);
    unlink(path);
    char *a = text_of(file), *b = text_of(again);
    FUZZ_REQUIRE(strcmp(a, b) == 0);
    FUZZ_REQUIRE(banyan_layout_file_rank_count(file) == banyan_layout_file_rank_count(again));
    free(a);
    free(b);
    banyan_layout_file_destroy(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    banyan_layout_file *file;
    FUZZ_REQUIRE(banyan_layout_file_create(&file) == BANYAN_OK);
    if (fuzz_took(layout_file_parse("l.json", (const char *)data, size, file))) {
        fuzz_took(banyan_layout_file_check(file, BANYAN_SOURCE));
        fuzz_took(banyan_layout_file_check(file, BANYAN_DESTINATION));
        save_and_load(file);
    }
    banyan_layout_file_destroy(file);
    return 0;
}
