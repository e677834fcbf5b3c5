#include <arpa/inet.h>
#include <assert.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/containers.h"
#include "core/error.h"
#include "core/log.h"
#include "world/bootstrap/rendezvous.h"
#include "world/net/interface.h"

#define ID_MAGIC UINT64_C(0x1d4e41594e4142f5)

/* The contents of a unique id, written and read as bytes. */
struct id_content {
    uint64_t magic;
    uint64_t node_hash;
    unsigned char secret[IDENTITY_SECRET_BYTES];
    char name[ADDRESS_NAME_BYTES];
    uint32_t port;
    uint32_t address_count;
    struct {
        unsigned char bytes[16]; /* IPv6, or IPv4 mapped into it */
    } addresses[RENDEZVOUS_ADDRESSES];
};

static_assert(sizeof(struct id_content) <= BANYAN_UNIQUE_ID_BYTES, "an id holds it");

static void key_of_secret(const unsigned char secret[IDENTITY_SECRET_BYTES],
                          unsigned char key[WIRE_KEY_BYTES])
{
    static const char label[] = "banyan rendezvous";
    crypto_generichash(key, WIRE_KEY_BYTES, (const unsigned char *)label, sizeof label, secret,
                       IDENTITY_SECRET_BYTES);
}

static struct address address_of_v6(const unsigned char bytes[16], int port)
{
    struct address address = {.bytes = sizeof(struct sockaddr_in6)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    memcpy(&v6.sin6_addr, bytes, 16);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) { /* some machines have no IPv6 */
        struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = v6.sin6_port};
        memcpy(&v4.sin_addr, bytes + 12, 4);
        address.bytes = sizeof v4;
        memcpy(&address.socket, &v4, sizeof v4);
        return address;
    }
    memcpy(&address.socket, &v6, sizeof v6);
    return address;
}

static bool interface_bytes(const struct sockaddr *socket, unsigned char bytes[16])
{
    if (socket->sa_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, socket, sizeof v4);
        memset(bytes, 0, 10);
        memset(bytes + 10, 0xff, 2);
        memcpy(bytes + 12, &v4.sin_addr, 4);
        return true;
    }
    if (socket->sa_family != AF_INET6)
        return false;
    struct sockaddr_in6 v6;
    memcpy(&v6, socket, sizeof v6);
    memcpy(bytes, &v6.sin6_addr, 16);
    return !IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
}

/* Add the machine's addresses. Loopback comes last: on another machine it leads to a different
 * host. */
static void add_interfaces(struct id_content *content)
{
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) != 0)
        list = NULL;
    for (int loopback = 0; loopback <= 1; loopback++) {
        for (struct ifaddrs *entry = list; entry; entry = entry->ifa_next) {
            bool is_loopback = entry->ifa_flags & IFF_LOOPBACK;
            if (!entry->ifa_addr || !(entry->ifa_flags & IFF_UP) || is_loopback != loopback ||
                !interface_is_selected(entry->ifa_name) ||
                content->address_count == RENDEZVOUS_ADDRESSES)
                continue;
            /* The last entry is reserved for loopback. */
            if (!loopback && content->address_count == RENDEZVOUS_ADDRESSES - 1)
                continue;
            if (interface_bytes(entry->ifa_addr, content->addresses[content->address_count].bytes))
                content->address_count++;
        }
    }
    freeifaddrs(list);
}

bool rendezvous_own_address(int port, struct address *address)
{
    struct id_content content = {0};
    add_interfaces(&content);
    if (content.address_count > 0)
        *address = address_of_v6(content.addresses[0].bytes, port);
    return content.address_count > 0;
}

static banyan_status place_of_content(const struct id_content *content, const char *node,
                                      struct rendezvous_place *place)
{
    *place = (struct rendezvous_place){.local = hash_string(node, 0) == content->node_hash};
    memcpy(place->name, content->name, sizeof place->name);
    place->address_count = (int)content->address_count;
    for (int i = 0; i < place->address_count; i++)
        place->addresses[i] = address_of_v6(content->addresses[i].bytes, (int)content->port);
    key_of_secret(content->secret, place->key);
    return BANYAN_OK;
}

banyan_status rendezvous_place_of_id(const banyan_unique_id *id, const char *node,
                                     struct rendezvous_place *place)
{
    struct id_content content;
    memcpy(&content, id->bytes, sizeof content);
    if (content.magic != ID_MAGIC || content.address_count > RENDEZVOUS_ADDRESSES ||
        content.port > UINT16_MAX || !memchr(content.name, 0, sizeof content.name))
        return error_set(BANYAN_ERR_FORMAT,
                         "these %d bytes are not a unique id of this version of Banyan",
                         BANYAN_UNIQUE_ID_BYTES);
    return place_of_content(&content, node, place);
}

banyan_status rendezvous_place_new(const char *node, struct rendezvous_place *place,
                                   banyan_unique_id *id, int *tcp_fd)
{
    if (sodium_init() < 0)
        return error_set(BANYAN_ERR_SYSTEM, "libsodium finds no source of random numbers");
    struct id_content content = {.magic = ID_MAGIC, .node_hash = hash_string(node, 0)};
    int fd = -1, port = 0;
    if (address_listen_tcp(false, 0, &fd, &port) == BANYAN_OK) {
        content.port = (uint32_t)port;
        add_interfaces(&content);
    } else {
        log_info("ranks of other machines cannot join: %s", banyan_last_error());
    }
    randombytes_buf(content.secret, sizeof content.secret);
    address_random_name(content.name);
    banyan_status status = place_of_content(&content, node, place);
    memset(id->bytes, 0, sizeof id->bytes);
    memcpy(id->bytes, &content, sizeof content);
    *tcp_fd = fd;
    return status;
}

static bool is_loopback(const unsigned char bytes[16])
{
    struct in6_addr v6;
    memcpy(&v6, bytes, sizeof v6);
    return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && bytes[12] == 127);
}

void rendezvous_id_prefer(banyan_unique_id *id, const struct address *address)
{
    struct id_content content;
    unsigned char bytes[16];
    uint32_t last = 0;
    memcpy(&content, id->bytes, sizeof content);
    if (!interface_bytes((const struct sockaddr *)&address->socket, bytes) || is_loopback(bytes))
        return;
    while (last < content.address_count && memcmp(content.addresses[last].bytes, bytes, 16) != 0)
        last++;
    if (last == content.address_count && last < RENDEZVOUS_ADDRESSES)
        content.address_count++;
    else if (last == RENDEZVOUS_ADDRESSES)
        last--; /* instead of the last one */
    memmove(&content.addresses[1], &content.addresses[0], last * sizeof content.addresses[0]);
    memcpy(content.addresses[0].bytes, bytes, 16);
    memcpy(id->bytes, &content, sizeof content);
}

static banyan_status bootstrap_place_resolve(const char *host, int port,
                                             struct rendezvous_place *place)
{
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char literal[INET6_ADDRSTRLEN + IF_NAMESIZE + 1];
    size_t length = strlen(host);
    if (host[0] == '[' && host[length - 1] == ']' && length - 2 < sizeof literal) {
        snprintf(literal, sizeof literal, "%.*s", (int)length - 2, host + 1);
        host = literal;
    }
    int error = getaddrinfo(host, service, &hints, &found);
    if (error != 0)
        return error_set(BANYAN_ERR_SYSTEM, "cannot resolve rank 0's address \"%s\": %s", host,
                         gai_strerror(error));
    for (struct addrinfo *info = found; info && place->address_count < RENDEZVOUS_ADDRESSES;
         info = info->ai_next) {
        struct address *address = &place->addresses[place->address_count++];
        address->bytes = info->ai_addrlen;
        memcpy(&address->socket, info->ai_addr, info->ai_addrlen);
    }
    freeaddrinfo(found);
    return BANYAN_OK;
}

#define TAG_BYTES 7
#define DIGEST_BYTES 12

/* "banyan-", the job's tag, and "-": a digest follows. */
#define PREFIX_CHARACTERS (7 + 2 * TAG_BYTES + 1)
static_assert(PREFIX_CHARACTERS + 2 * DIGEST_BYTES < ADDRESS_NAME_BYTES, "a name holds both");

/* Equal on every rank of one user's job on one machine. All users see the names and can take them.
 * The tag shows that two names are of one job. Where there is a secret, it is the digest's key, so
 * that nobody else can work the name out beforehand. */
static void name_of_job(const char *job, const unsigned char *secret_key,
                        char name[ADDRESS_NAME_BYTES])
{
    char text[320];
    unsigned char tag[16], digest[16];
    char tag_hex[2 * TAG_BYTES + 1], digest_hex[2 * DIGEST_BYTES + 1];
    int length = snprintf(text, sizeof text, "%s\n%u", job, (unsigned)geteuid());
    crypto_generichash(tag, sizeof tag, (const unsigned char *)text, (size_t)length, NULL, 0);
    crypto_generichash(digest, sizeof digest, (const unsigned char *)text, (size_t)length,
                       secret_key, secret_key ? WIRE_KEY_BYTES : 0);
    snprintf(name, ADDRESS_NAME_BYTES, "banyan-%s-%s",
             sodium_bin2hex(tag_hex, sizeof tag_hex, tag, TAG_BYTES),
             sodium_bin2hex(digest_hex, sizeof digest_hex, digest, DIGEST_BYTES));
}

/* True if a process of this user listens at the name. */
static bool listens(const char *name, char who[ADDRESS_TEXT_BYTES])
{
    struct address address = address_unix(name);
    int fd, error;
    address_connect(&address, &fd, &error);
    if (fd < 0)
        return false;
    bool is_own = address_peer_allowed(fd, who);
    close(fd);
    return is_own;
}

bool rendezvous_has_other_secret(const struct rendezvous_place *place, char who[ADDRESS_TEXT_BYTES])
{
    char line[256], name[ADDRESS_NAME_BYTES];
    bool found = false;
    FILE *sockets = place->local && place->may_start_late ? fopen("/proc/net/unix", "re") : NULL;
    while (sockets && !found && fgets(line, sizeof line, sockets)) {
        const char *at = strchr(line, '@');
        if (!at || strncmp(at + 1, place->name, PREFIX_CHARACTERS) != 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at + 1, "\n"), at + 1);
        found = strcmp(name, place->name) != 0 && listens(name, who);
    }
    if (sockets)
        fclose(sockets);
    return found;
}

banyan_status rendezvous_place_of_job(const struct identity *identity,
                                      struct rendezvous_place *place)
{
    if (sodium_init() < 0)
        return error_set(BANYAN_ERR_SYSTEM, "libsodium finds no source of random numbers");
    struct rendezvous_place found = {.may_start_late = true};
    found.local = identity->job[0] && identity->local_size == identity->world_size;
    if (identity->has_secret)
        key_of_secret(identity->secret, found.key);
    if (found.local) {
        name_of_job(identity->job, identity->has_secret ? found.key : NULL, found.name);
        *place = found;
        return BANYAN_OK;
    }
    if (!identity->address[0] || identity->port == 0)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d of %d does not know where rank 0 is: give every rank a unique "
                         "id, or set MASTER_ADDR and BANYAN_PORT (a free port of rank 0's machine)",
                         identity->rank, identity->world_size);
    if (!identity->has_secret)
        return error_set(
            BANYAN_ERR_REFUSED,
            "rank %d of %d would connect to ranks of other machines over TCP, and they must "
            "prove that they belong to the job: set BANYAN_SECRET to the same 32 "
            "hexadecimal digits (128 random bits) on every rank",
            identity->rank, identity->world_size);
    RETURN_IF_FAILED(bootstrap_place_resolve(identity->address, identity->port, &found));
    *place = found;
    return BANYAN_OK;
}
