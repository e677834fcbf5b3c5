#include "world/connect/message.h"

#include <errno.h>
#include <netdb.h>
#include <sodium.h>
#include <stdio.h>
#include <unistd.h>

#include "core/error.h"
#include "world/world.h"

#define SECRET_BYTES 16

struct connect_party connect_party_of(const banyan_world *world)
{
    int self = context_job_rank(world->context, world->rank);
    struct connect_party party = {.size = world->size, .pid = getpid()};
    snprintf(party.host, sizeof party.host, "%s", world->endpoint->members[self].host);
    return party;
}

const char *connect_party_text(const struct connect_party *party, char text[CONNECT_PARTY_BYTES])
{
    snprintf(text, CONNECT_PARTY_BYTES, "a world of %d rank%s (rank 0: pid %d on node %s)",
             party->size, party->size == 1 ? "" : "s", party->pid, party->host);
    return text;
}

static void write_text(bytes_writer *writer, const char *text)
{
    bytes_write_blob(writer, text, strlen(text));
}

static void read_text(bytes_reader *reader, char *text, size_t room)
{
    size_t bytes;
    const char *from = bytes_read_blob(reader, &bytes);
    if (!from || bytes >= room || memchr(from, 0, bytes)) {
        reader->failed = true;
        return;
    }
    memcpy(text, from, bytes);
    text[bytes] = '\0';
}

void connect_party_write(bytes_writer *writer, const struct connect_party *party)
{
    bytes_write_u32(writer, (uint32_t)party->size);
    bytes_write_u32(writer, (uint32_t)party->pid);
    write_text(writer, party->host);
}

static void read_party(bytes_reader *reader, struct connect_party *party)
{
    uint32_t size = bytes_read_u32(reader), pid = bytes_read_u32(reader);
    read_text(reader, party->host, sizeof party->host);
    reader->failed |= size < 1 || size > BANYAN_MAX_RANKS || pid > INT32_MAX;
    party->size = (int)size;
    party->pid = (int)pid;
}

bool connect_party_read(const void *data, size_t bytes, struct connect_party *party)
{
    bytes_reader reader = bytes_reader_of(data, bytes);
    read_party(&reader, party);
    return !reader.failed && reader.left == 0;
}

/* The version comes first, so that every version can read it. */
void connect_request_write(bytes_writer *writer, const struct connect_request *request)
{
    write_text(writer, request->version);
    write_text(writer, request->name);
    connect_party_write(writer, &request->party);
}

banyan_status connect_request_read(const void *data, size_t bytes, struct connect_request *request)
{
    bytes_reader reader = bytes_reader_of(data, bytes);
    read_text(&reader, request->version, sizeof request->version);
    if (!reader.failed && strcmp(request->version, banyan_version()) != 0)
        return error_set(BANYAN_ERR_MISMATCH,
                         "the connecting world runs Banyan %s, and the listening one %s",
                         request->version, banyan_version());
    read_text(&reader, request->name, sizeof request->name);
    read_party(&reader, &request->party);
    if (reader.failed || reader.left != 0)
        return error_set(BANYAN_ERR_FORMAT, "a request to connect is malformed (%zu bytes)", bytes);
    return BANYAN_OK;
}

banyan_status connect_key(const char *secret, unsigned char key[WIRE_KEY_BYTES])
{
    static const char label[] = "banyan connect";
    unsigned char bytes[SECRET_BYTES];
    size_t count = 0, characters = secret ? strlen(secret) : 0;
    if (!secret)
        return error_set(BANYAN_ERR_INVALID, "rank 0 gives no secret to connect worlds with");
    if (characters != 2 * SECRET_BYTES ||
        sodium_hex2bin(bytes, sizeof bytes, secret, characters, NULL, &count, NULL) != 0 ||
        count != SECRET_BYTES)
        return error_set(BANYAN_ERR_INVALID,
                         "the secret to connect worlds with is not %d hexadecimal digits: it has "
                         "%zu characters, %zu of them digits at its start",
                         2 * SECRET_BYTES, characters, strspn(secret, "0123456789abcdefABCDEF"));
    crypto_generichash(key, WIRE_KEY_BYTES, (const unsigned char *)label, sizeof label, bytes,
                       sizeof bytes);
    sodium_memzero(bytes, sizeof bytes);
    return BANYAN_OK;
}

static banyan_status connect_bad_address(const char *text)
{
    return error_set(BANYAN_ERR_INVALID,
                     "the address \"%.300s\" is not \"host:port\" or \"[IPv6 address]:port\", with "
                     "a port from 0 to 65535",
                     text);
}

banyan_status connect_split_address(const char *text, char host[CONNECT_HOST_BYTES], int *port)
{
    const char *colon = strrchr(text, ':'), *from = text;
    if (!colon)
        return connect_bad_address(text);
    size_t length = (size_t)(colon - text);
    if (text[0] == '[' && length >= 2 && colon[-1] == ']') {
        from++;
        length -= 2;
    } else if (memchr(text, ':', length)) {
        return connect_bad_address(text);
    }
    char *end;
    errno = 0;
    long number = colon[1] >= '0' && colon[1] <= '9' ? strtol(colon + 1, &end, 10) : -1;
    if (number < 0 || number > UINT16_MAX || *end || errno != 0 || length >= CONNECT_HOST_BYTES)
        return connect_bad_address(text);
    memcpy(host, from, length);
    host[length] = '\0';
    *port = (int)number;
    return BANYAN_OK;
}

int connect_resolve(const char *host, int port, struct address *addresses, int most)
{
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int count = 0, error = getaddrinfo(host, service, &hints, &found);
    if (error != 0) {
        error_set(BANYAN_ERR_SYSTEM, "cannot resolve \"%s\": %s", host, gai_strerror(error));
        return 0;
    }
    for (struct addrinfo *info = found; info && count < most; info = info->ai_next) {
        struct address *address = &addresses[count++];
        *address = (struct address){.bytes = info->ai_addrlen};
        memcpy(&address->socket, info->ai_addr, info->ai_addrlen);
    }
    freeaddrinfo(found);
    return count;
}
