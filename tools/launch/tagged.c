#include "launch/tagged.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define READ_BYTES 65536
/* A line that grows past this is cut. */
#define LONGEST_LINE ((size_t)1 << 20)

static void tagged_write_all(int to, struct iovec *parts, int count)
{
    while (count > 0) {
        ssize_t written = writev(to, parts, count);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return;
        for (; count > 0 && (size_t)written >= parts->iov_len; parts++, count--)
            written -= (ssize_t)parts->iov_len;
        if (count > 0) {
            parts->iov_base = (char *)parts->iov_base + written;
            parts->iov_len -= (size_t)written;
        }
    }
}

static void tagged_write_line(const tagged_stream *stream, const char *line, size_t bytes,
                              bool ended)
{
    struct iovec parts[] = {{(void *)stream->tag, strlen(stream->tag)},
                            {(void *)line, bytes},
                            {(void *)"\n", ended ? 0 : 1}};
    tagged_write_all(stream->to, parts, 3);
}

static void write_lines(tagged_stream *stream, size_t unseen_from)
{
    const char *start = stream->line, *end = stream->line + stream->bytes;
    const char *look = stream->line + unseen_from, *newline;
    while ((newline = memchr(look, '\n', (size_t)(end - look)))) {
        tagged_write_line(stream, start, (size_t)(newline + 1 - start), true);
        start = look = newline + 1;
    }
    stream->bytes = (size_t)(end - start);
    memmove(stream->line, start, stream->bytes);
    if (stream->bytes >= LONGEST_LINE) {
        tagged_write_line(stream, stream->line, stream->bytes, false);
        stream->bytes = 0;
    }
}

void tagged_stream_close(tagged_stream *stream)
{
    if (stream->bytes > 0)
        tagged_write_line(stream, stream->line, stream->bytes, false);
    if (stream->from >= 0)
        close(stream->from);
    free(stream->line);
    *stream = (tagged_stream){.from = -1, .to = -1};
}

bool tagged_stream_pump(tagged_stream *stream)
{
    if (stream->capacity - stream->bytes < READ_BYTES) {
        char *grown = realloc(stream->line, stream->bytes + 2 * READ_BYTES);
        if (!grown)
            goto ended;
        stream->line = grown;
        stream->capacity = stream->bytes + 2 * READ_BYTES;
    }
    size_t before = stream->bytes;
    ssize_t got = read(stream->from, stream->line + before, READ_BYTES);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return true;
    if (got <= 0)
        goto ended;
    stream->bytes += (size_t)got;
    write_lines(stream, before);
    return true;
ended:
    tagged_stream_close(stream);
    return false;
}
