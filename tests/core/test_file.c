/* Files that users name: only files and the user's own pipes are read, and no read waits. */
#include "support/test.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/files/file.h"
#include "support/folder.h"
#include "support/text_file.h"

#define LONG_BYTES 300001

static void *write_long(void *end)
{
    static char text[LONG_BYTES];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i % 23);
    int fd = *(int *)end;
    for (size_t done = 0; done < sizeof text;) {
        ssize_t wrote = write(fd, text + done, sizeof text - done);
        if (wrote <= 0)
            break;
        done += (size_t)wrote;
    }
    close(fd);
    return NULL;
}

/* The pipe is this process's own, like that of a shell's <(…). */
static banyan_status read_from_pipe(size_t max_bytes, char **text, size_t *bytes)
{
    int ends[2];
    char path[32];
    pthread_t writer;
    assert_int_equal(pipe(ends), 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    assert_int_equal(pthread_create(&writer, NULL, write_long, &ends[1]), 0);
    banyan_status status = file_read(path, max_bytes, text, bytes);
    close(ends[0]);
    pthread_join(writer, NULL);
    return status;
}

static void a_pipe_is_read_to_its_end(void **state)
{
    (void)state;
    char *text;
    size_t bytes;
    CHECK_OK(read_from_pipe(LONG_BYTES, &text, &bytes));
    CHECK(bytes == LONG_BYTES && text[bytes] == '\0');
    for (size_t i = 0; i < bytes; i++)
        CHECK(text[i] == (char)('a' + i % 23));
    free(text);
}

static void more_than_is_wanted_is_refused(void **state)
{
    (void)state;
    char *text;
    size_t bytes;
    signal(SIGPIPE, SIG_IGN);
    CHECK_FAILS(read_from_pipe(LONG_BYTES - 1, &text, &bytes), BANYAN_ERR_INVALID,
                "more than 300000 bytes");
    text_file file = text_file_of("12345");
    CHECK_FAILS(file_read(file.path, 4, &text, &bytes), BANYAN_ERR_INVALID,
                "has 5 bytes: at most 4");
    CHECK_OK(file_read(file.path, 5, &text, &bytes));
    CHECK(bytes == 5 && strcmp(text, "12345") == 0);
    free(text);
    text_file_remove(&file);
}

static void expect_kind(const char *path, const char *kind)
{
    char *text, said[64];
    size_t bytes;
    uint64_t size;
    int fd;
    snprintf(said, sizeof said, " is %s, not a file", kind);
    CHECK_FAILS(file_open(path, &fd, &size), BANYAN_ERR_INVALID, said);
    CHECK_FAILS(file_read(path, 100, &text, &bytes), BANYAN_ERR_INVALID, said);
    CHECK(strncmp(banyan_last_error(), path, strlen(path)) == 0, "%s", banyan_last_error());
}

static void paths_that_are_not_files_are_named_at_once(void **state)
{
    char *pipe_path = folder_path(*state, "pipe"), *socket_path = folder_path(*state, "socket");
    char *link_path = folder_path(*state, "link"), *none = folder_path(*state, "none");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    assert_int_equal(symlink("pipe", link_path), 0);
    uint64_t start = time_now_ns();
    expect_kind(*state, "a folder");
    expect_kind(pipe_path, "a named pipe");
    expect_kind(link_path, "a named pipe");
    expect_kind(socket_path, "a socket");
    expect_kind("/dev/null", "a device");
    CHECK(time_now_ns() - start < NS_PER_S);
    uint64_t size;
    int fd;
    CHECK_FAILS(file_open(none, &fd, &size), BANYAN_ERR_NOT_FOUND, "there is no file ");
    close(listener);
    free(pipe_path);
    free(socket_path);
    free(link_path);
    free(none);
}

static void a_file_is_opened_with_its_size(void **state)
{
    (void)state;
    text_file file = text_file_of("12345");
    uint64_t bytes;
    char text[8];
    int fd;
    CHECK_OK(file_open(file.path, &fd, &bytes));
    CHECK(bytes == 5 && read(fd, text, sizeof text) == 5);
    close(fd);
    text_file_remove(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pipe_is_read_to_its_end),
        cmocka_unit_test(more_than_is_wanted_is_refused),
        cmocka_unit_test(a_file_is_opened_with_its_size),
        cmocka_unit_test_setup_teardown(paths_that_are_not_files_are_named_at_once, folder_setup,
                                        folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
