/* The description of a model that a publication sends. */
#include "fuzz.h"

#include "publish/description.c"

static void seed(const char *header, const char *files)
{
    char text[1024];
    uint64_t length = strlen(header);
    memcpy(text, &length, sizeof length);
    snprintf(text + sizeof length, sizeof text - sizeof length, "%s%s", header, files);
    fuzz_seed(text, sizeof length + length + strlen(files));
}

void fuzz_write_seeds(void)
{
    seed("{\"model\": {\"a\": {\"dtype\": \"BF16\", \"shape\": [2]}}, \"files\": []}", "");
    seed("{\"model\": {}, \"files\": [{\"name\": \"config.json\", \"bytes\": 2}, "
         "{\"name\": \"a/b\", \"bytes\": 3}]}",
         "{}abc");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    description arrived = {.data = malloc(size + 1), .bytes = size};
    memcpy(arrived.data, data, size);
    if (fuzz_took(description_parse(&arrived))) {
        uint64_t bytes = 0;
        for (size_t i = 0; i < arrived.file_count; i++) {
            FUZZ_REQUIRE(is_safe_name(arrived.files[i].name));
            bytes += arrived.files[i].bytes;
        }
        FUZZ_REQUIRE(bytes < size);
    }
    description_free(&arrived);
    return 0;
}
