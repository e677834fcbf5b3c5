/* Messages: values written one after another, and read back with every length checked. */
#ifndef CORE_CONTAINERS_BYTES_H
#define CORE_CONTAINERS_BYTES_H

#include <stdint.h>
#include <string.h>

#include "core/containers/array.h"

/* A failed write (out of memory) stays in `failed`: check it once, after the last write. */
typedef struct bytes_writer {
    unsigned char *data;
    size_t count, capacity;
    bool failed;
} bytes_writer;

void bytes_write(bytes_writer *writer, const void *data, size_t bytes);
void bytes_write_u32(bytes_writer *writer, uint32_t value);
void bytes_write_u64(bytes_writer *writer, uint64_t value);
/* Write the length, then the bytes. */
void bytes_write_blob(bytes_writer *writer, const void *data, size_t bytes);
void bytes_writer_free(bytes_writer *writer);

/* A read past the end returns zeros and sets `failed`, which stays set. */
typedef struct bytes_reader {
    const unsigned char *data;
    size_t left;
    bool failed;
} bytes_reader;

bytes_reader bytes_reader_of(const void *data, size_t bytes);
void bytes_read(bytes_reader *reader, void *data, size_t bytes);
uint32_t bytes_read_u32(bytes_reader *reader);
uint64_t bytes_read_u64(bytes_reader *reader);
/* Return a pointer into the message; NULL, and 0 bytes, when the message is too short. */
const void *bytes_read_blob(bytes_reader *reader, size_t *bytes);

#endif
