#include "world/bootstrap/member.h"

#include <sodium.h>

#include "core/error.h"

static void member_write_text(bytes_writer *writer, const char *text)
{
    bytes_write_blob(writer, text, strlen(text));
}

static void member_read_text(bytes_reader *reader, char *text, size_t room)
{
    size_t bytes;
    const char *from = bytes_read_blob(reader, &bytes);
    if (!from || bytes == 0 || bytes >= room || memchr(from, 0, bytes)) {
        reader->failed = true;
        return;
    }
    memcpy(text, from, bytes);
    text[bytes] = '\0';
}

static int read_port(bytes_reader *reader)
{
    uint32_t port = bytes_read_u32(reader);
    reader->failed |= port > UINT16_MAX;
    return reader->failed ? 0 : (int)port;
}

static int read_count(bytes_reader *reader)
{
    uint32_t count = bytes_read_u32(reader);
    reader->failed |= count > INT32_MAX;
    return reader->failed ? 0 : (int)count;
}

static void read_tcp_address(bytes_reader *reader, struct address *address)
{
    uint32_t bytes = bytes_read_u32(reader);
    reader->failed |= bytes > sizeof address->socket;
    if (reader->failed)
        return;
    address->bytes = bytes;
    bytes_read(reader, &address->socket, bytes);
    reader->failed |= bytes != 0 && !address_is_ip(address);
}

void member_write(bytes_writer *writer, const struct member *member)
{
    member_write_text(writer, member->node);
    member_write_text(writer, member->host);
    member_write_text(writer, member->name);
    bytes_write_u32(writer, (uint32_t)member->pid);
    bytes_write_u32(writer, (uint32_t)member->port);
    bytes_write_u32(writer, member->tcp.bytes);
    bytes_write(writer, &member->tcp.socket, member->tcp.bytes);
    bytes_write_u32(writer, (uint32_t)member->descriptors.limit);
    bytes_write_u32(writer, (uint32_t)member->descriptors.free);
    bytes_write_u32(writer, (uint32_t)member->descriptors.above);
}

static void member_read(bytes_reader *reader, struct member *member)
{
    member_read_text(reader, member->node, sizeof member->node);
    member_read_text(reader, member->host, sizeof member->host);
    member_read_text(reader, member->name, sizeof member->name);
    member->pid = read_count(reader);
    member->port = read_port(reader);
    read_tcp_address(reader, &member->tcp);
    member->descriptors.limit = read_count(reader);
    member->descriptors.free = read_count(reader);
    member->descriptors.above = read_count(reader);
}

void join_write(bytes_writer *writer, const struct join_request *request)
{
    bytes_write_u32(writer, (uint32_t)request->rank);
    bytes_write_u32(writer, (uint32_t)request->world_size);
    bytes_write_u64(writer, request->timeout_ns);
    bytes_write_u64(writer, request->limit_ns);
    bytes_write_u32(writer, request->relays);
    bytes_write_u32(writer, (uint32_t)request->relay_port);
    bytes_write_u32(writer, (uint32_t)request->lost);
    bytes_write_u64(writer, request->failure);
    member_write(writer, &request->self);
}

static void read_request(bytes_reader *reader, struct join_request *request)
{
    request->rank = read_count(reader);
    request->world_size = read_count(reader);
    request->timeout_ns = bytes_read_u64(reader);
    request->limit_ns = bytes_read_u64(reader);
    request->relays = bytes_read_u32(reader) != 0;
    request->relay_port = read_port(reader);
    request->lost = read_count(reader);
    request->failure = bytes_read_u64(reader);
    member_read(reader, &request->self);
}

bool join_read(const void *data, size_t bytes, struct join_request *request)
{
    bytes_reader reader = bytes_reader_of(data, bytes);
    read_request(&reader, request);
    return !reader.failed && reader.left == 0;
}

void ready_write(bytes_writer *writer, int rank)
{
    bytes_write_u32(writer, (uint32_t)rank);
}

bool ready_read(bytes_reader *reader, int world_size, int *rank)
{
    if (reader->failed || reader->left == 0)
        return false;
    uint32_t number = bytes_read_u32(reader);
    reader->failed |= number >= (uint32_t)world_size;
    *rank = (int)number;
    return !reader->failed;
}

void loss_write(bytes_writer *writer, const struct member_loss *loss)
{
    bytes_write_u32(writer, (uint32_t)loss->rank);
    bytes_write_u32(writer, loss->died);
}

bool loss_read(bytes_reader *reader, int world_size, struct member_loss *loss)
{
    if (!ready_read(reader, world_size, &loss->rank))
        return false;
    uint32_t died = bytes_read_u32(reader);
    reader->failed |= died > 1;
    loss->died = died == 1;
    return !reader->failed;
}

void failure_write(bytes_writer *writer, const error_kept *why)
{
    bytes_write_u32(writer, (uint32_t)why->status);
    member_write_text(writer, why->message);
}

bool failure_read(const void *data, size_t bytes, struct join_request *request, error_kept *why)
{
    bytes_reader reader = bytes_reader_of(data, bytes);
    read_request(&reader, request);
    uint32_t status = bytes_read_u32(&reader);
    member_read_text(&reader, why->message, sizeof why->message);
    why->status = (banyan_status)status;
    return !reader.failed && reader.left == 0 && status > BANYAN_OK && status <= BANYAN_ERR_NVSHMEM;
}

void table_write(bytes_writer *writer, int world_size)
{
    unsigned char token[MEMBER_TOKEN_BYTES];
    randombytes_buf(token, sizeof token);
    bytes_write(writer, token, sizeof token);
    bytes_write_u32(writer, (uint32_t)world_size);
}

void table_write_again(bytes_writer *writer, const struct member_table *table, int world_size)
{
    bytes_write(writer, table->token, sizeof table->token);
    bytes_write_u32(writer, (uint32_t)world_size);
    for (int rank = 0; rank < world_size; rank++)
        member_write(writer, &table->members[rank]);
}

banyan_status table_read(const void *data, size_t bytes, int world_size, struct member_table *table)
{
    bytes_reader reader = bytes_reader_of(data, bytes);
    struct member_table found = {0};
    bytes_read(&reader, found.token, sizeof found.token);
    int count = read_count(&reader);
    if (reader.failed || count != world_size)
        return error_set(BANYAN_ERR_FORMAT, "the table of ranks has %d entries, not %d", count,
                         world_size);
    found.members = calloc((size_t)world_size, sizeof *found.members);
    if (!found.members)
        return error_no_memory((size_t)world_size * sizeof *found.members, "the table of ranks");
    for (int rank = 0; rank < world_size; rank++)
        member_read(&reader, &found.members[rank]);
    if (reader.failed || reader.left != 0) {
        free(found.members);
        return error_set(BANYAN_ERR_FORMAT, "the table of ranks is malformed (%zu bytes)", bytes);
    }
    *table = found;
    return BANYAN_OK;
}
