/* Messages of ranks to a rendezvous, in any order: requests to join, for themselves and for others,
 * that ranks are ready, losses, failures, and ends of connections. The input is a list of steps:
 * a byte for the step, a byte for the connection, and more for some steps. Whatever arrives, the
 * rendezvous counts its ranks right, and nobody belongs to a connection that has ended. */
#include "fuzz.h"

#include <sys/socket.h>

#include "world/bootstrap/rendezvous.c"

enum { WORLD = 5, CONNECTIONS = 6, PROCESSES = 2 };
enum { CONNECT, JOIN, RAW_JOIN, READY, LEFT, FAILED, OTHER, END, LOOK, STEPS };

struct input {
    const uint8_t *data;
    size_t left;
};

static uint8_t take(struct input *from)
{
    if (from->left == 0)
        return 0;
    from->left--;
    return *from->data++;
}

/* The other ends of the connections; -1: none. */
struct play {
    struct rendezvous *rendezvous;
    struct link *links[CONNECTIONS];
    int ends[CONNECTIONS];
};

static struct join_request request_of(int rank, int process, int world_size)
{
    struct join_request request = {
        .rank = rank, .world_size = world_size, .timeout_ns = NS_PER_S, .limit_ns = NS_PER_S};
    strcpy(request.self.node, "node");
    strcpy(request.self.host, "host");
    snprintf(request.self.name, sizeof request.self.name, "name-%d", process);
    request.self.pid = 100 + process;
    request.self.descriptors = (struct descriptors){1024, 1000, 0};
    return request;
}

/* A rank's connection, after its handshake. */
static void play_connect(struct play *p, int at, int rank)
{
    int fds[2];
    if (p->ends[at] >= 0)
        return;
    FUZZ_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    struct reactor *reactor = &p->rendezvous->reactor;
    pthread_mutex_lock(&reactor->lock);
    struct link *link = reactor_add(reactor, fds[0], true, false, rank, -1, NULL);
    FUZZ_REQUIRE(link);
    link->connects = false;
    link->stage = LINK_READY;
    link->rank = rank;
    snprintf(link->who, sizeof link->who, "connection %d", at);
    pthread_mutex_unlock(&reactor->lock);
    p->links[at] = link;
    p->ends[at] = fds[1];
}

static bool play_has(const struct play *p, const struct link *link)
{
    for (const struct link *at = p->rendezvous->reactor.links; at; at = at->next)
        if (at == link)
            return true;
    return false;
}

static void play_end(struct play *p, int at)
{
    if (p->ends[at] >= 0)
        close(p->ends[at]);
    p->ends[at] = -1;
}

/* Let the rendezvous take what has arrived. */
static void play_look(struct play *p)
{
    reactor_step(&p->rendezvous->reactor, 0);
    (void)serve_once(p->rendezvous);
    for (int at = 0; at < CONNECTIONS; at++)
        if (p->ends[at] >= 0 && !play_has(p, p->links[at]))
            play_end(p, at);
}

static void play_send(struct play *p, int at, uint32_t kind, const void *data, size_t bytes)
{
    struct wire_frame frame = {.kind = kind, .bytes = bytes};
    char drained[4096];
    if (p->ends[at] < 0)
        return;
    while (recv(p->ends[at], drained, sizeof drained, 0) > 0)
        continue;
    ssize_t sent = send(p->ends[at], &frame, sizeof frame, MSG_NOSIGNAL);
    if (sent == (ssize_t)sizeof frame && bytes > 0)
        (void)send(p->ends[at], data, bytes, MSG_NOSIGNAL);
}

static void write_blob_of(bytes_writer *text, const struct join_request *request)
{
    bytes_writer one = {0};
    join_write(&one, request);
    bytes_write_blob(text, one.data, one.count);
    bytes_writer_free(&one);
}

/* Valid requests of up to four ranks. */
static void play_join(struct play *p, int at, struct input *from)
{
    bytes_writer text = {0};
    int count = take(from) % 4 + 1;
    for (int i = 0; i < count; i++) {
        uint8_t who = take(from), more = take(from);
        struct join_request request =
            request_of(who % WORLD, who / WORLD % PROCESSES, more % 16 == 1 ? WORLD + 1 : WORLD);
        request.lost = more / 16 % (WORLD + 2);
        request.failure = more % 2 ? p->rendezvous->failure_number : 0;
        request.timeout_ns = more % 8 == 2 ? 0 : NS_PER_S;
        write_blob_of(&text, &request);
    }
    play_send(p, at, WIRE_JOIN, text.data, text.count);
    bytes_writer_free(&text);
}

static void play_fail(struct play *p, int at, struct input *from)
{
    bytes_writer text = {0};
    uint8_t who = take(from);
    struct join_request request = request_of(who % WORLD, who / WORLD % PROCESSES, WORLD);
    error_kept why = {.status = BANYAN_ERR_NO_MEMORY, .message = "out of memory"};
    join_write(&text, &request);
    failure_write(&text, &why);
    play_send(p, at, WIRE_FAILED, text.data, text.count);
    bytes_writer_free(&text);
}

static void play_raw(struct play *p, int at, uint32_t kind, struct input *from)
{
    size_t bytes = take(from);
    bytes = bytes < from->left ? bytes : from->left;
    play_send(p, at, kind, from->data, bytes);
    from->data += bytes;
    from->left -= bytes;
}

/* Lists of ranks, most of which exist. */
static void play_list(struct play *p, int at, uint32_t kind, struct input *from)
{
    uint32_t list[8];
    size_t count = take(from) % 8;
    for (size_t i = 0; i < count; i++) {
        uint8_t value = take(from);
        list[i] = value == 255 ? INT32_MAX : value % (WORLD + 1);
    }
    play_send(p, at, kind, list, count * sizeof *list);
}

static void play_check(const struct play *p)
{
    const struct rendezvous *r = p->rendezvous;
    int joined = 0, ready = 0;
    for (int rank = 0; rank < r->world_size; rank++) {
        const struct rank_entry *entry = &r->entries[rank];
        joined += entry->link != NULL;
        ready += entry->ready;
        FUZZ_REQUIRE(!entry->link ||
                     (play_has(p, entry->link) && tree_has_child(&r->children, entry->link)));
    }
    FUZZ_REQUIRE(joined == r->joined);
    FUZZ_REQUIRE(ready == r->ready && (r->phase != GATHERING || ready == 0));
    FUZZ_REQUIRE(r->lost >= -1 && r->lost < WORLD + 1);
    for (size_t i = 0; i < r->children.count; i++)
        FUZZ_REQUIRE(play_has(p, r->children.data[i].link));
}

static void play_step(struct play *p, struct input *from)
{
    uint8_t step = take(from) % STEPS, value = take(from);
    int at = value % CONNECTIONS;
    switch (step) {
    case CONNECT:
        play_connect(p, at, value / CONNECTIONS % (WORLD + 1) - value % 43 / 42);
        break;
    case JOIN:
        play_join(p, at, from);
        break;
    case RAW_JOIN:
        play_raw(p, at, WIRE_JOIN, from);
        break;
    case READY:
        play_list(p, at, WIRE_READY, from);
        break;
    case LEFT:
        play_list(p, at, WIRE_LEFT, from);
        break;
    case FAILED:
        play_fail(p, at, from);
        break;
    case OTHER:
        play_raw(p, at, take(from) % (WIRE_GOODBYE + 2), from);
        break;
    case END:
        play_end(p, at);
        break;
    default:
        play_look(p);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input from = {data, size < 400 ? size : 400};
    struct rendezvous *opened = calloc(1, sizeof *opened);
    struct play p = {.rendezvous = opened};
    FUZZ_REQUIRE(opened && reactor_open(&opened->reactor, WIRE_PURPOSE_JOIN, -1, opened->place.key,
                                        &rendezvous_ops, opened) == BANYAN_OK);
    opened->lost = -1;
    opened->reactor.name = "the rendezvous";
    opened->detached = take(&from) % 2;
    for (int at = 0; at < CONNECTIONS; at++)
        p.ends[at] = -1;
    while (from.left > 0) {
        play_step(&p, &from);
        play_check(&p);
    }
    play_look(&p);
    play_check(&p);
    for (int at = 0; at < CONNECTIONS; at++)
        play_end(&p, at);
    rendezvous_free(opened);
    return 0;
}

/* All ranks join: on their own, or two of them through another. Then they are ready, or leave. */
void fuzz_write_seeds(void)
{
    static const uint8_t endings[][8] = {
        {READY, 0, 1, 0, READY, 1, 1, 1}, {LEFT, 1, 2, 3, 1, LOOK, 0, 0}, {END, 1, LOOK, 0}};
    for (size_t ending = 0; ending < 3; ending++) {
        uint8_t seed[100] = {0};
        size_t count = 1;
        for (uint8_t rank = 0; rank < WORLD; rank++) {
            bool behind = ending > 0 && rank > 2;
            uint8_t steps[] = {CONNECT, (uint8_t)(rank * CONNECTIONS + rank),
                               JOIN,    behind ? 1 : rank,
                               0,       rank,
                               0,       LOOK,
                               0};
            size_t first = behind ? 2 : 0;
            memcpy(seed + count, steps + first, sizeof steps - first);
            count += sizeof steps - first;
        }
        memcpy(seed + count, endings[ending], 8);
        fuzz_seed(seed, count + 8);
    }
}
