#include "core/containers/bytes.h"

void bytes_write(bytes_writer *writer, const void *data, size_t bytes)
{
    if (writer->failed || !array_reserve(writer, bytes)) {
        writer->failed = true;
        return;
    }
    if (bytes > 0)
        memcpy(writer->data + writer->count, data, bytes);
    writer->count += bytes;
}

void bytes_write_u32(bytes_writer *writer, uint32_t value)
{
    bytes_write(writer, &value, sizeof value);
}

void bytes_write_u64(bytes_writer *writer, uint64_t value)
{
    bytes_write(writer, &value, sizeof value);
}

void bytes_write_blob(bytes_writer *writer, const void *data, size_t bytes)
{
    bytes_write_u64(writer, bytes);
    bytes_write(writer, data, bytes);
}

void bytes_writer_free(bytes_writer *writer)
{
    array_free(writer);
    writer->failed = false;
}

bytes_reader bytes_reader_of(const void *data, size_t bytes)
{
    return (bytes_reader){.data = data, .left = bytes};
}

static const unsigned char *containers_bytes_take(bytes_reader *reader, size_t bytes)
{
    if (reader->failed || bytes > reader->left) {
        reader->failed = true;
        return NULL;
    }
    const unsigned char *at = reader->data;
    reader->data += bytes;
    reader->left -= bytes;
    return at;
}

void bytes_read(bytes_reader *reader, void *data, size_t bytes)
{
    const unsigned char *at = containers_bytes_take(reader, bytes);
    if (at && bytes > 0)
        memcpy(data, at, bytes);
    else if (!at)
        memset(data, 0, bytes);
}

uint32_t bytes_read_u32(bytes_reader *reader)
{
    uint32_t value;
    bytes_read(reader, &value, sizeof value);
    return value;
}

uint64_t bytes_read_u64(bytes_reader *reader)
{
    uint64_t value;
    bytes_read(reader, &value, sizeof value);
    return value;
}

const void *bytes_read_blob(bytes_reader *reader, size_t *bytes)
{
    uint64_t length = bytes_read_u64(reader);
    const void *at = length <= reader->left ? containers_bytes_take(reader, (size_t)length)
                                            : containers_bytes_take(reader, SIZE_MAX);
    *bytes = at ? (size_t)length : 0;
    return at;
}
