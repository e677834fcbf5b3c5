/* Output of several processes with a tag before every line, whole lines at a time. */
#ifndef TOOLS_TAGGED_H
#define TOOLS_TAGGED_H

#include <stdbool.h>
#include <stddef.h>

typedef struct tagged_stream {
    int from, to; /* descriptors; from -1: at its end */
    char tag[16];
    char *line; /* beginning of an unfinished line */
    size_t bytes, capacity;
} tagged_stream;

/* Read once from the stream, which is readable or at its end, and write complete lines. False at
 * the end, after the rest has been written. */
bool tagged_stream_pump(tagged_stream *stream);
/* Write the rest, close, free. */
void tagged_stream_close(tagged_stream *stream);

#endif
