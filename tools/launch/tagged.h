/* Output of several processes with a tag before every line, whole lines at a time. */
#ifndef TOOLS_TAGGED_H
#define TOOLS_TAGGED_H

#include <stdbool.h>
#include <stddef.h>

typedef struct tagged_stream {
    int from, to; /* descriptors; from -1: at its end */
    char tag[16];
    char *line; /* what has come of a line that has not ended */
    size_t bytes, capacity;
} tagged_stream;

/* Read once from the stream, which has something or is at its end, and write the lines that are
 * complete. False when there is nothing more to come: what was left has been written. */
bool tagged_stream_pump(tagged_stream *stream);
/* Write what has come, close, free. */
void tagged_stream_close(tagged_stream *stream);

#endif
