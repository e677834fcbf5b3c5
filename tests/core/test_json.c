/* Documents: integers of 64 bits without a sign. */
#include "support/test.h"

#include "core/files/new_file.h"
#include "core/text/json.h"

static uint64_t number_of(const char *text)
{
    json_t *root;
    json_path path = {.file = "text"};
    uint64_t number;
    CHECK_OK(json_parse_u64("text", text, strlen(text), &root));
    CHECK_OK(json_member_u64(&path, root, "n", 0, UINT64_MAX, &number));
    json_decref(root);
    return number;
}

static void integers_up_to_the_last_are_read(void **state)
{
    (void)state;
    CHECK(number_of("{\"n\": 0}") == 0);
    CHECK(number_of("{\"n\":9223372036854775807}") == INT64_MAX);
    CHECK(number_of("{\"n\":9223372036854775808}") == UINT64_C(1) << 63);
    CHECK(number_of("{\"n\": 18446744073709551615 , \"m\": [18446744073709551615]}") == UINT64_MAX);
}

static void check_refused(const char *text, const char *said)
{
    json_t *root;
    json_path path = {.file = "text"};
    uint64_t number;
    banyan_status status = json_parse_u64("text", text, strlen(text), &root);
    if (status == BANYAN_OK) {
        status = json_member_u64(&path, root, "n", 1, 100, &number);
        json_decref(root);
    }
    CHECK_FAILS(status, BANYAN_ERR_FORMAT, said);
}

static void numbers_out_of_range_are_refused(void **state)
{
    (void)state;
    check_refused("{\"n\": 18446744073709551616}", "too big");
    check_refused("{\"n\": -9223372036854775809}", "too big");
    check_refused("{\"n\": -1}", "n is -1");
    check_refused("{\"n\": 0}", "n is 0: 1 to 100 are possible");
    check_refused("{\"n\": 18446744073709551615}", "n is 18446744073709551615: 1 to 100");
    check_refused("{\"n\": 9223372036854775808.5}", "n is a number");
    check_refused("{\"n\": 1e3}", "n is a number");
    check_refused("{\"n\": \"5\"}", "n is a string");
    check_refused("{\"n\": 09223372036854775808}", "text:1:");
    check_refused("{}", "has no \"n\"");
}

static void texts_with_digits_stay_as_they_are(void **state)
{
    (void)state;
    static const char text[] = "{\"a\\\"18446744073709551615\": \"9223372036854775808\","
                               " \"b\": \"\\\\\", \"c\": 9223372036854775809}";
    json_t *root;
    CHECK_OK(json_parse_u64("text", text, sizeof text - 1, &root));
    const json_t *value = json_object_get(root, "a\"18446744073709551615");
    CHECK(value && strcmp(json_string_value(value), "9223372036854775808") == 0);
    CHECK(strcmp(json_string_value(json_object_get(root, "b")), "\\") == 0);
    CHECK(strcmp(json_string_value(json_object_get(root, "c")), "9223372036854775809") == 0);
    json_decref(root);
}

static void members_of_another_type_are_refused_with_their_path(void **state)
{
    (void)state;
    static const char text[] = "{\"a\": [{\"b\": 5}]}";
    json_path path = {.file = "text"};
    json_t *root, *list, *member;
    CHECK_OK(json_parse("text", text, strlen(text), &root));
    CHECK_OK(json_member(&path, root, "a", JSON_ARRAY, &list));
    CHECK(list == json_object_get(root, "a") && path.used == 0);
    size_t outer = json_path_key(&path, "a"), inner = json_path_index(&path, 0);
    CHECK_OK(json_member(&path, json_array_get(list, 0), "b", JSON_INTEGER, &member));
    CHECK(json_integer_value(member) == 5);
    CHECK_FAILS(json_member(&path, json_array_get(list, 0), "c", JSON_INTEGER, &member),
                BANYAN_ERR_FORMAT, "text: a[0] has no \"c\"");
    CHECK_FAILS(json_member(&path, json_array_get(list, 0), "b", JSON_STRING, &member),
                BANYAN_ERR_FORMAT, "text: a[0].b is an integer where a string should be");
    json_path_pop(&path, inner);
    json_path_pop(&path, outer);
    CHECK(path.used == 0 && path.text[0] == '\0');
    json_decref(root);
}

static void control_characters_are_refused(void **state)
{
    (void)state;
    json_path path = {.file = "text"};
    CHECK_OK(json_path_check_text(&path, "name", "layer.0 ~ \xc3\xa9"));
    CHECK_OK(json_path_check_text(&path, "name", ""));
    CHECK_FAILS(json_path_check_text(&path, "name", "a\x1b[2J"), BANYAN_ERR_FORMAT,
                "text: the document has a name with the control character 0x1b");
    CHECK_FAILS(json_path_check_text(&path, "name", "\x01"), BANYAN_ERR_FORMAT, "0x01");
    CHECK_FAILS(json_path_check_text(&path, "name", "a\x7f"), BANYAN_ERR_FORMAT, "0x7f");
}

static void the_line_of_a_key_is_found(void **state)
{
    (void)state;
    static const char text[] = "{\n \"key\": 1,\n \"keys\": 2, \"k\": \"x\",\n \"last\": 3}";
    CHECK(json_line_of_key(text, "key") == 2);
    CHECK(json_line_of_key(text, "keys") == 3 && json_line_of_key(text, "k") == 3);
    CHECK(json_line_of_key(text, "last") == 4);
    CHECK(json_line_of_key(text, "las") == 0 && json_line_of_key(text, "") == 0);
}

static void devices_are_written_to_as_they_are(void **state)
{
    (void)state;
    CHECK_OK(new_file_write_at("/dev/null", "text"));
    CHECK_FAILS(new_file_write_at("/dev/full", "text"), BANYAN_ERR_SYSTEM, "/dev/full");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_up_to_the_last_are_read),
        cmocka_unit_test(numbers_out_of_range_are_refused),
        cmocka_unit_test(texts_with_digits_stay_as_they_are),
        cmocka_unit_test(members_of_another_type_are_refused_with_their_path),
        cmocka_unit_test(control_characters_are_refused),
        cmocka_unit_test(the_line_of_a_key_is_found),
        cmocka_unit_test(devices_are_written_to_as_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
