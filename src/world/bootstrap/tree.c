#include "world/bootstrap/tree.h"

#include <netinet/in.h>
#include <stdio.h>
#include <sys/un.h>

#include "core/error.h"

int tree_span(int rank, int world_size)
{
    int span = rank == 0 ? world_size : rank & -rank;
    return span < world_size - rank ? span : world_size - rank;
}

void tree_base(struct rendezvous_place *place, const char *node)
{
    crypto_generichash_state state;
    bool local = place->local;
    crypto_generichash_init(&state, place->key, sizeof place->key, sizeof place->tree);
    crypto_generichash_update(&state, (const unsigned char *)place->name, sizeof place->name);
    for (int i = 0; i < place->address_count && !local; i++)
        crypto_generichash_update(&state, (const unsigned char *)&place->addresses[i].socket,
                                  place->addresses[i].bytes);
    if (!local)
        crypto_generichash_update(&state, (const unsigned char *)node, strlen(node));
    crypto_generichash_final(&state, place->tree, sizeof place->tree);
    place->has_tree = true;
}

void tree_name(const struct rendezvous_place *place, int rank, char name[ADDRESS_NAME_BYTES])
{
    unsigned char digest[16];
    char hex[2 * sizeof digest + 1];
    crypto_generichash(digest, sizeof digest, (const unsigned char *)&rank, sizeof rank,
                       place->tree, sizeof place->tree);
    snprintf(name, ADDRESS_NAME_BYTES, "banyan-%s",
             sodium_bin2hex(hex, sizeof hex, digest, sizeof digest));
}

struct address tree_address(const struct rendezvous_place *place, int rank)
{
    char name[ADDRESS_NAME_BYTES];
    tree_name(place, rank, name);
    return address_unix(name);
}

static struct address remote_address(const struct link *link, int port)
{
    struct address remote = {.bytes = sizeof remote.socket};
    if (!link->authenticated || port == 0 ||
        getpeername(link->fd, (struct sockaddr *)&remote.socket, &remote.bytes) != 0)
        return (struct address){0};
    return address_with_port(&remote, port);
}

void tree_complete_address(const struct link *link, struct member *member)
{
    if (member->tcp.bytes == 0)
        member->tcp = remote_address(link, member->port);
}

banyan_status tree_add_child(struct tree_children *children, struct link *link,
                             const struct join_request *request)
{
    struct tree_child child = {.link = link,
                               .relays = request->relays,
                               .over_tcp = remote_address(link, request->relay_port)};
    if (child.over_tcp.bytes > 0 && request->self.tcp.bytes > 0) /* it has chosen an interface */
        child.over_tcp = address_with_port(&request->self.tcp, request->relay_port);
    return array_push(children, child) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

bool tree_has_child(const struct tree_children *children, const struct link *link)
{
    for (size_t i = 0; i < children->count; i++) {
        if (children->data[i].link == link)
            return true;
    }
    return false;
}

void tree_remove_child(struct tree_children *children, const struct link *link)
{
    for (size_t i = 0; i < children->count; i++) {
        if (children->data[i].link != link)
            continue;
        children->data[i] = children->data[--children->count];
        return;
    }
}

bool tree_choose_child(struct tree_children *children, const struct rendezvous_place *place,
                       bool authenticated, struct address *address)
{
    for (size_t i = 0; i < children->count; i++) {
        const struct tree_child *child = &children->data[children->turn++ % children->count];
        if (authenticated ? child->over_tcp.bytes == 0
                          : !child->relays || child->link->authenticated)
            continue;
        *address = authenticated ? child->over_tcp : tree_address(place, child->link->rank);
        return true;
    }
    return false;
}

banyan_status tree_redirect(struct link *link, int rank, const struct address *address)
{
    struct wire_frame frame = {
        .kind = WIRE_REDIRECT, .tag = (uint64_t)rank, .bytes = address ? address->bytes : 0};
    return link_send(link, &frame, address ? &address->socket : NULL, -1);
}

bool tree_read_redirect(const void *data, size_t bytes, struct address *address)
{
    *address = (struct address){.bytes = (socklen_t)bytes};
    if (bytes == 0)
        return true;
    if (bytes > sizeof address->socket)
        return false;
    memcpy(&address->socket, data, bytes);
    bool is_name = address->socket.ss_family == AF_UNIX && bytes > sizeof(sa_family_t) + 1 &&
                   bytes <= sizeof(struct sockaddr_un);
    return is_name || address_is_ip(address);
}

error_kept tree_name_failure(int rank, const error_kept *why)
{
    if (why->status == BANYAN_ERR_PEER_LOST)
        return *why; /* it names the lost rank */
    char name[32];
    int length = snprintf(name, sizeof name, "rank %d", rank), other, end = 0;
    bool is_named = strncmp(why->message, name, (size_t)length) == 0 ||
                    (sscanf(why->message, "rank %d: %n", &other, &end) == 1 && end > 0);
    error_kept named = {.status = why->status};
    snprintf(named.message, sizeof named.message, "%s%s%.1900s", is_named ? "" : name,
             is_named ? "" : ": ", why->message);
    return named;
}
