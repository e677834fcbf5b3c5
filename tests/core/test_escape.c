/* Text from files cannot control a terminal: messages and log lines have no control characters. */
#include "support/test.h"

#include <errno.h>

#include "core/error.h"
#include "core/log.h"
#include "core/text/escape.h"

static void expect(const char *text, const char *escaped)
{
    char room[64];
    assert_string_equal(escape_controls(text, room, sizeof room), escaped);
    assert_string_equal(escape_controls(escaped, room, sizeof room), escaped);
}

static void control_characters_are_written_in_hexadecimal(void **state)
{
    (void)state;
    expect("", "");
    expect("model.norm.weight", "model.norm.weight");
    expect("a\x1b[2Jb", "a\\x1b[2Jb");
    expect("\x01\t\n\r\x1f \x7f~", "\\x01\\x09\\x0a\\x0d\\x1f \\x7f~");
    /* U+009B begins a command as ESC [ does; ü and € are letters like others. */
    expect("\xc2\x9b"
           "2J",
           "\\xc2\\x9b2J");
    expect("\xc3\xbc\xe2\x82\xac\xc2\xa0", "\xc3\xbc\xe2\x82\xac\xc2\xa0");
    expect("\xc2", "\xc2");
}

static void long_text_is_cut_before_an_escape(void **state)
{
    (void)state;
    char room[8];
    memset(room, 'x', sizeof room);
    assert_string_equal(escape_controls("abc\x1b"
                                        "d",
                                        room, 7),
                        "abc");
    assert_int_equal(room[7], 'x');
    assert_string_equal(escape_controls("abc\x1b"
                                        "d",
                                        room, 8),
                        "abc\\x1b");
    assert_string_equal(escape_controls("abcdefghij", room, 8), "abcdefg");
    assert_string_equal(escape_controls("abc", room, 1), "");
}

static void note(banyan_log_level level, const char *text, void *context)
{
    (void)level;
    snprintf(context, 64, "%s", text);
}

static void messages_and_log_lines_are_escaped(void **state)
{
    (void)state;
    char line[64] = "";
    error_set(BANYAN_ERR_INVALID, "tensor %s", "\x1b]0;title\a");
    assert_string_equal(banyan_last_error(), "tensor \\x1b]0;title\\x07");
    error_set(BANYAN_ERR_INVALID, "again: %s", banyan_last_error());
    assert_string_equal(banyan_last_error(), "again: tensor \\x1b]0;title\\x07");
    errno = ENOENT;
    error_set_errno("opening %s", "\x1b[0m");
    CHECK(strncmp(banyan_last_error(), "opening \\x1b[0m: No such file", 29) == 0, "%s",
          banyan_last_error());
    banyan_log_set(note, line);
    log_warn("tensor %s", "a\nbanyan: error: b");
    banyan_log_set(NULL, NULL);
    assert_string_equal(line, "tensor a\\x0abanyan: error: b");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(control_characters_are_written_in_hexadecimal),
        cmocka_unit_test(long_text_is_cut_before_an_escape),
        cmocka_unit_test(messages_and_log_lines_are_escaped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
