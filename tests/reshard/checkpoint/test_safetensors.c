/* safetensors headers read back as written, and no malformed one is accepted. */
#include "support/test.h"

#include "reshard/checkpoint/safetensors.h"

/* A file's first bytes from a header's text. */
static banyan_status parse(const char *json, uint64_t data_bytes, safetensors_header *header)
{
    size_t length = strlen(json);
    char *head = malloc(8 + length);
    uint64_t stored = length;
    memcpy(head, &stored, 8);
    memcpy(head + 8, json, length);
    banyan_status status =
        safetensors_parse("f.safetensors", head, 8 + length, 8 + length + data_bytes, header);
    free(head);
    return status;
}

#define REFUSED(json, data_bytes, part)                                                            \
    do {                                                                                           \
        safetensors_header refused_;                                                               \
        CHECK_FAILS(parse((json), (data_bytes), &refused_), BANYAN_ERR_FORMAT, (part));            \
        CHECK(strstr(banyan_last_error(), "f.safetensors"), "%s", banyan_last_error());            \
    } while (0)

#define TENSOR(name, dtype, shape, begin, end)                                                     \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end   \
    "]}"

static void a_header_lists_its_tensors_in_the_order_of_their_data(void **state)
{
    (void)state;
    safetensors_header header;
    const char *json = "{\"__metadata__\":{\"format\":\"pt\"}," TENSOR(
        "late", "BF16", "[2,3]", "4", "16") "," TENSOR("early", "F32", "[]", "0",
                                                       "4") "," TENSOR("empty", "I64", "[0,7]", "4",
                                                                       "4") "}   ";
    CHECK_OK(parse(json, 16, &header));
    assert_int_equal(header.entries.count, 3);
    const safetensors_entry *entry = header.entries.data;
    assert_string_equal(entry[0].tensor.name, "early");
    assert_int_equal(entry[0].tensor.ndim, 0);
    assert_int_equal(entry[0].offset, header.data_offset);
    assert_string_equal(entry[1].tensor.name, "empty");
    assert_int_equal(entry[1].bytes, 0);
    assert_string_equal(entry[2].tensor.name, "late");
    assert_int_equal(entry[2].offset, header.data_offset + 4);
    assert_int_equal(entry[2].tensor.shape[1], 3);
    assert_true(banyan_dtype_equal(entry[2].tensor.dtype, BANYAN_BF16));
    safetensors_header_free(&header);
    CHECK_OK(parse("{}", 0, &header));
    assert_int_equal(header.entries.count, 0);
    safetensors_header_free(&header);
}

static void a_written_header_reads_back(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 50; round++) {
        safetensors_entry entries[20] = {0};
        char labels[20][32];
        size_t count = (size_t)random_between(&random, 0, 20), head_bytes;
        uint64_t end = 0;
        for (size_t i = 0; i < count; i++) {
            snprintf(labels[i], sizeof labels[i], "ton.\"%zu\"\n\xc3\xa9", i);
            entries[i].tensor.name = labels[i];
            entries[i].tensor.dtype = i % 2 ? BANYAN_BF16 : BANYAN_F8_E8M0;
            entries[i].tensor.ndim = (int)random_between(&random, 0, 4);
            for (int d = 0; d < entries[i].tensor.ndim; d++)
                entries[i].tensor.shape[d] = random_between(&random, 1, 9);
        }
        void *head;
        CHECK_OK(safetensors_format(entries, count, "pt", &head, &head_bytes));
        assert_int_equal(head_bytes % 64, 0);
        for (size_t i = 0; i < count; i++)
            end = entries[i].offset + entries[i].bytes;
        safetensors_header header;
        CHECK_OK(safetensors_parse("f", head, head_bytes, count ? end : head_bytes, &header));
        assert_int_equal(header.entries.count, count);
        for (size_t i = 0; i < count; i++) {
            const safetensors_entry *read = &header.entries.data[i], *wrote = &entries[i];
            assert_string_equal(read->tensor.name, wrote->tensor.name);
            assert_true(banyan_dtype_equal(read->tensor.dtype, wrote->tensor.dtype));
            assert_int_equal(read->tensor.ndim, wrote->tensor.ndim);
            assert_memory_equal(read->tensor.shape, wrote->tensor.shape,
                                sizeof wrote->tensor.shape);
            assert_int_equal(read->offset, wrote->offset);
            assert_int_equal(read->bytes, wrote->bytes);
        }
        safetensors_header_free(&header);
        free(head);
    }
}

static void tensors_without_a_valid_name_are_not_written(void **state)
{
    (void)state;
    safetensors_entry twice[2] = {{.tensor = {.name = "w", .dtype = BANYAN_F32}},
                                  {.tensor = {.name = "w", .dtype = BANYAN_F32}}};
    void *head;
    size_t bytes;
    CHECK_FAILS(safetensors_format(twice, 2, "pt", &head, &bytes), BANYAN_ERR_INVALID,
                "two tensors are named w");
    twice[0].tensor.name = "\xff";
    CHECK_FAILS(safetensors_format(twice, 1, "pt", &head, &bytes), BANYAN_ERR_INVALID, "JSON");
    twice[0].tensor.name = "w";
    twice[0].tensor.dtype = (DLDataType){kDLFloat, 4, 1};
    CHECK_FAILS(safetensors_format(twice, 1, "pt", &head, &bytes), BANYAN_ERR_INVALID, "4 bits");
    twice[0].tensor = (banyan_local_tensor){
        .name = "w", .dtype = BANYAN_F32, .ndim = 2, .shape = {INT64_MAX / 4, 2}};
    CHECK_FAILS(safetensors_format(twice, 1, "pt", &head, &bytes), BANYAN_ERR_INVALID,
                "does not fit");
}

static void a_header_longer_than_its_file_is_refused(void **state)
{
    (void)state;
    safetensors_header header;
    unsigned char head[16] = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    CHECK_OK(safetensors_parse("f", head, 10, 10, &header));
    safetensors_header_free(&header);
    CHECK_FAILS(safetensors_parse("f", head, 7, 7, &header), BANYAN_ERR_FORMAT, "too short");
    CHECK_FAILS(safetensors_parse("f", head, 0, 0, &header), BANYAN_ERR_FORMAT, "0 bytes");
    CHECK_FAILS(safetensors_parse("f", head, 9, 9, &header), BANYAN_ERR_FORMAT,
                "says 2, but the file has 9 bytes");
    memset(head, 0xff, 8);
    CHECK_FAILS(safetensors_parse("f", head, 10, 10, &header), BANYAN_ERR_FORMAT,
                "18446744073709551615, above the limit");
    memset(head, 0, 8);
    CHECK_FAILS(safetensors_parse("f", head, 10, 10, &header), BANYAN_ERR_FORMAT,
                "does not begin with {");
    head[0] = 2;
    head[8] = '[';
    head[9] = ']';
    CHECK_FAILS(safetensors_parse("f", head, 10, 10, &header), BANYAN_ERR_FORMAT, "at byte 8");
}

static void malformed_json_is_refused_with_its_place(void **state)
{
    (void)state;
    REFUSED("{\"a\":", 0, "f.safetensors:1:");
    REFUSED("{} trailing", 0, "f.safetensors:1:");
    REFUSED("{\"\xff\xfe\":1}", 0, "f.safetensors:1:");
    REFUSED("{\"a\\u0000b\":1}", 0, "f.safetensors:1:");
    REFUSED("{" TENSOR("w", "U8", "[1]", "0", "1") "," TENSOR("w", "U8", "[1]", "1", "2") "}", 2,
            "duplicate");
    REFUSED("{\"w\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,1]}}", 1,
            "f.safetensors:1:");
    size_t depth = 100000;
    char *deep = malloc(depth * 5 + 1);
    for (size_t i = 0; i < depth; i++)
        memcpy(deep + i * 5, "{\"a\":", 5);
    deep[depth * 5] = 0;
    REFUSED(deep, 0, "depth");
    free(deep);
}

static void members_of_the_wrong_kind_are_refused(void **state)
{
    (void)state;
    REFUSED("{\"w\":[]}", 0, "w is not an object");
    REFUSED("{\"w\":{}}", 0, "w has no \"dtype\"");
    REFUSED("{\"w\":{\"dtype\":7}}", 0, "w.dtype");
    REFUSED("{" TENSOR("w", "BF17", "[1]", "0", "2") "}", 2, "unknown type \"BF17\"");
    REFUSED("{" TENSOR("w", "bfloat16", "[1]", "0", "2") "}", 2, "unknown type \"bfloat16\"");
    REFUSED("{" TENSOR("w", "U8", "{}", "0", "1") "}", 1, "w.shape");
    REFUSED("{" TENSOR("w", "U8", "[1.0]", "0", "1") "}", 1, "w.shape[0]");
    REFUSED("{" TENSOR("w", "U8", "[-1]", "0", "1") "}", 1, "w.shape[0] is -1");
    REFUSED("{" TENSOR("w", "U8", "[1]", "-1", "1") "}", 1, "w.data_offsets[0] is -1");
    REFUSED("{" TENSOR("w", "U8", "[1]", "1", "0") "}", 1, "not a range");
    REFUSED("{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "not a range");
    REFUSED("{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", 1,
            "w.data_offsets has 3 entries");
    REFUSED("{\"w\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "w has no \"data_offsets\"");
    REFUSED("{\"__metadata__\":{\"a\":1}}", 0, "not a string");
    REFUSED("{\"__metadata__\":\"a\"}", 0, "__metadata__ is not an object");
    safetensors_header header;
    CHECK_FAILS(parse("{" TENSOR("w", "U8", "[1,1,1,1,1,1,1,1,1]", "0", "1") "}", 1, &header),
                BANYAN_ERR_UNSUPPORTED, "w has 9 dimensions");
}

static void places_that_lie_are_refused(void **state)
{
    (void)state;
    REFUSED("{" TENSOR("w", "BF16", "[2,3]", "0", "13") "}", 13,
            "w has data from 0 to 13, 13 bytes, but type and shape make 12");
    REFUSED("{" TENSOR("w", "U8", "[8]", "0", "8") "}", 7,
            "w has data from 0 to 8, but the file ends after 7");
    REFUSED("{" TENSOR("w", "U8", "[8]", "0", "8") "}", 9,
            "end at byte 8 of the data, which has 9");
    REFUSED("{}", 1, "end at byte 0 of the data, which has 1");
    REFUSED("{" TENSOR("a", "U8", "[8]", "0", "8") "," TENSOR("b", "U8", "[8]", "4", "12") "}", 12,
            "tensor b begins at byte 4 of the data, inside tensor a, which ends at 8");
    REFUSED("{" TENSOR("a", "U8", "[8]", "0", "8") "," TENSOR("b", "U8", "[8]", "0", "8") "}", 8,
            "tensor b begins at byte 0 of the data, inside tensor a");
    REFUSED("{" TENSOR("a", "U8", "[2]", "0", "2") "," TENSOR("b", "U8", "[2]", "4", "6") "}", 6,
            "bytes 2 to 4 of the data, before tensor b");
    REFUSED("{" TENSOR("a", "U8", "[2]", "2", "4") "}", 4, "bytes 0 to 2 of the data");
    REFUSED("{" TENSOR("w", "F32", "[4611686018427387904,4]", "0", "0") "}", 0, "more than 2^63");
    REFUSED("{" TENSOR("w", "U8", "[9223372036854775807]", "0", "9223372036854775807") "}", 5,
            "but the file ends after 5");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_lists_its_tensors_in_the_order_of_their_data),
        cmocka_unit_test(a_written_header_reads_back),
        cmocka_unit_test(tensors_without_a_valid_name_are_not_written),
        cmocka_unit_test(a_header_longer_than_its_file_is_refused),
        cmocka_unit_test(malformed_json_is_refused_with_its_place),
        cmocka_unit_test(members_of_the_wrong_kind_are_refused),
        cmocka_unit_test(places_that_lie_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
