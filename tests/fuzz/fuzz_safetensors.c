/* Headers of safetensors files. An accepted header can be written, and reads back unchanged. */
#include "fuzz.h"

#include "reshard/checkpoint/safetensors.h"

void fuzz_write_seeds(void)
{
    safetensors_entry entries[3] = {
        {.tensor = {.name = "a", .dtype = BANYAN_F32, .ndim = 2, .shape = {4, 6}}},
        {.tensor = {.name = "b.weight", .dtype = BANYAN_BF16, .ndim = 1, .shape = {3}}},
        {.tensor = {.name = "c", .dtype = BANYAN_F8_E4M3, .ndim = 0}},
    };
    for (size_t count = 0; count <= 3; count++) {
        void *head;
        size_t bytes;
        FUZZ_REQUIRE(safetensors_format(entries, count, "pt", &head, &bytes) == BANYAN_OK);
        char *file = calloc(1, bytes + 128);
        memcpy(file, head, bytes);
        uint64_t data = count > 0 ? entries[count - 1].offset + entries[count - 1].bytes : bytes;
        fuzz_seed(file, data);
        free(file);
        free(head);
    }
}

static void check_same(const safetensors_header *a, const safetensors_header *b)
{
    FUZZ_REQUIRE(a->entries.count == b->entries.count);
    for (size_t i = 0; i < a->entries.count; i++) {
        const safetensors_entry *x = &a->entries.data[i], *y = &b->entries.data[i];
        FUZZ_REQUIRE(strcmp(x->tensor.name, y->tensor.name) == 0);
        FUZZ_REQUIRE(banyan_dtype_equal(x->tensor.dtype, y->tensor.dtype));
        FUZZ_REQUIRE(x->tensor.ndim == y->tensor.ndim);
        FUZZ_REQUIRE(memcmp(x->tensor.shape, y->tensor.shape, sizeof x->tensor.shape) == 0);
        FUZZ_REQUIRE(x->bytes == y->bytes);
        FUZZ_REQUIRE(x->offset - a->data_offset == y->offset - b->data_offset);
    }
}

static void write_again(const safetensors_header *header, uint64_t file_bytes)
{
    size_t count = header->entries.count, bytes;
    safetensors_entry *entries = calloc(count + 1, sizeof *entries);
    void *head;
    safetensors_header again;
    FUZZ_REQUIRE(entries);
    for (size_t i = 0; i < count; i++) {
        const safetensors_entry *entry = &header->entries.data[i];
        FUZZ_REQUIRE(entry->offset >= header->data_offset);
        FUZZ_REQUIRE(entry->bytes <= file_bytes - entry->offset);
        entries[i].tensor = entry->tensor;
    }
    FUZZ_REQUIRE(safetensors_format(entries, count, "pt", &head, &bytes) == BANYAN_OK);
    uint64_t data_bytes = file_bytes - header->data_offset;
    FUZZ_REQUIRE(safetensors_parse("again", head, bytes, bytes + data_bytes, &again) == BANYAN_OK);
    check_same(header, &again);
    safetensors_header_free(&again);
    free(entries);
    free(head);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    safetensors_header header;
    if (fuzz_took(safetensors_parse("f.safetensors", data, size, size, &header))) {
        write_again(&header, size);
        safetensors_header_free(&header);
    }
    return 0;
}
