/* A temporary file for a parser. */
#ifndef TESTS_SUPPORT_TEXT_FILE_H
#define TESTS_SUPPORT_TEXT_FILE_H

#include <string.h>
#include <unistd.h>

#include "support/test.h"

typedef struct text_file {
    char path[32]; /* "/tmp/banyan_text_…" */
} text_file;

static inline text_file text_file_of_bytes(const void *data, size_t bytes)
{
    text_file made = {.path = "/tmp/banyan_text_XXXXXX"};
    int fd = mkstemp(made.path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), bytes);
    close(fd);
    return made;
}

static inline text_file text_file_of(const char *text)
{
    return text_file_of_bytes(text, strlen(text));
}

static inline void text_file_remove(const text_file *file)
{
    unlink(file->path);
}

#endif
