#include "world/net/endpoint.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/containers.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"
#include "core/threads/thread.h"
#include "world/net/descriptors.h"
#include "world/net/interface.h"

/* Longest time for a rank's last messages to arrive. */
#define FAREWELL_NS (2 * NS_PER_S)
#define FLUSH_NS (200 * NS_PER_MS)
#define AWAIT_PEERS_NS (500 * NS_PER_MS)
/* Reconnect to a rank that does not answer for this long. */
#define ANSWER_NS (5 * NS_PER_S)

struct context *endpoint_find_context(const struct endpoint *endpoint, uint64_t id)
{
    for (size_t i = 0; i < endpoint->contexts.count; i++) {
        if (endpoint->contexts.data[i]->id == id)
            return endpoint->contexts.data[i];
    }
    return NULL;
}

struct context *endpoint_context(struct endpoint *endpoint, uint64_t id)
{
    struct context *context = endpoint_find_context(endpoint, id);
    if (context)
        return context;
    context = context_create(id);
    if (context && !array_push(&endpoint->contexts, context)) {
        context_destroy(context);
        context = NULL;
    }
    return context;
}

void endpoint_forget_context(struct endpoint *endpoint, struct context *context)
{
    for (size_t i = 0; i < endpoint->contexts.count; i++) {
        if (endpoint->contexts.data[i] != context)
            continue;
        endpoint->contexts.data[i] = endpoint->contexts.data[--endpoint->contexts.count];
        context_destroy(context);
        return;
    }
}

const char *endpoint_rank_text(const struct endpoint *endpoint, const struct context *context,
                               int job_rank, char text[ENDPOINT_RANK_TEXT_BYTES])
{
    const struct member *member = &endpoint->members[job_rank];
    int rank = context ? context_rank_of(context, job_rank) : job_rank;
    if (rank == job_rank)
        snprintf(text, ENDPOINT_RANK_TEXT_BYTES, "rank %d (pid %d on node %s)", rank, member->pid,
                 member->host);
    else if (rank < 0)
        snprintf(text, ENDPOINT_RANK_TEXT_BYTES, "rank %d of the job (pid %d on node %s)", job_rank,
                 member->pid, member->host);
    else
        snprintf(text, ENDPOINT_RANK_TEXT_BYTES, "rank %d (rank %d of the job, pid %d on node %s)",
                 rank, job_rank, member->pid, member->host);
    return text;
}

banyan_status endpoint_deliver(struct endpoint *endpoint, int source,
                               const struct wire_frame *frame, void *data, int fd)
{
    struct message *message = malloc(sizeof *message);
    struct context *context = endpoint_context(endpoint, frame->context);
    if (!message || !context) {
        free(message);
        free(data);
        if (fd >= 0)
            close(fd);
        return error_no_memory(sizeof *message, "a message");
    }
    *message = (struct message){.kind = frame->kind,
                                .source = source,
                                .tag = frame->tag,
                                .data = data,
                                .bytes = (size_t)frame->bytes,
                                .fd = fd};
    context_deliver(context, message);
    return BANYAN_OK;
}

static banyan_status copy_payload(const struct wire_frame *frame, const void *data, int fd,
                                  void **data_copy, int *fd_copy)
{
    void *copy = NULL;
    if (frame->bytes > 0 && !(copy = malloc((size_t)frame->bytes)))
        return error_no_memory((size_t)frame->bytes, "a message");
    if (copy)
        memcpy(copy, data, (size_t)frame->bytes);
    *fd_copy = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (fd >= 0 && *fd_copy < 0) {
        free(copy);
        return error_set_errno("cannot duplicate descriptor %d to send it", fd);
    }
    *data_copy = copy;
    return BANYAN_OK;
}

void endpoint_acknowledge(struct endpoint *endpoint, struct context *context, int rank)
{
    if (!context || context->unacknowledged == 0 || endpoint->peers[rank].unacknowledged == 0)
        return;
    endpoint->peers[rank].unacknowledged--;
    if (--context->unacknowledged == 0)
        pthread_cond_broadcast(&context->changed);
}

static banyan_status send_to_self(struct endpoint *endpoint, const struct wire_frame *frame,
                                  const void *data, int fd)
{
    void *data_copy;
    int fd_copy;
    RETURN_IF_FAILED(copy_payload(frame, data, fd, &data_copy, &fd_copy));
    RETURN_IF_FAILED(endpoint_deliver(endpoint, endpoint->rank, frame, data_copy, fd_copy));
    if (frame->kind == WIRE_EXCHANGE)
        endpoint_acknowledge(endpoint, endpoint_find_context(endpoint, frame->context),
                             endpoint->rank);
    return BANYAN_OK;
}

void endpoint_want(struct endpoint *endpoint, int rank)
{
    struct peer *peer = &endpoint->peers[rank];
    if (rank == endpoint->rank || peer->wanted || peer->out || peer->state != PEER_HERE)
        return;
    if (array_push(&endpoint->wanted, rank)) {
        peer->wanted = true;
        peer->gives_up_ns = 0;
        peer->retry_ns = 0;
        reactor_wake(&endpoint->reactor);
    }
}

banyan_status endpoint_send(struct endpoint *endpoint, int rank, const struct wire_frame *frame,
                            const void *data, int fd)
{
    if (rank == endpoint->rank)
        return send_to_self(endpoint, frame, data, fd);
    struct peer *peer = &endpoint->peers[rank];
    if (peer->state != PEER_HERE)
        return BANYAN_OK; /* a rank that waits for an answer is informed */
    if (peer->out && peer->out->stage == LINK_READY && peer->pending.count == 0) {
        banyan_status status = link_send(peer->out, frame, data, fd);
        reactor_update(&endpoint->reactor, peer->out);
        return status;
    }
    struct pending pending = {.frame = *frame, .fd = -1};
    RETURN_IF_FAILED(copy_payload(frame, data, fd, &pending.data, &pending.fd));
    if (!array_push(&peer->pending, pending)) {
        free(pending.data);
        if (pending.fd >= 0)
            close(pending.fd);
        return BANYAN_ERR_NO_MEMORY;
    }
    endpoint_want(endpoint, rank);
    return BANYAN_OK;
}

void endpoint_drop_pending(struct peer *peer)
{
    for (size_t i = 0; i < peer->pending.count; i++) {
        free(peer->pending.data[i].data);
        if (peer->pending.data[i].fd >= 0)
            close(peer->pending.data[i].fd);
    }
    array_free(&peer->pending);
}

void endpoint_send_pending(struct endpoint *endpoint, struct peer *peer)
{
    for (size_t i = 0; i < peer->pending.count; i++) {
        const struct pending *pending = &peer->pending.data[i];
        banyan_status status = link_send(peer->out, &pending->frame, pending->data, pending->fd);
        if (status != BANYAN_OK)
            liveness_fail(endpoint, NULL, status, banyan_last_error());
    }
    endpoint_drop_pending(peer);
    reactor_update(&endpoint->reactor, peer->out);
}

static banyan_status listen_at(struct endpoint *endpoint, enum endpoint_tcp tcp,
                               struct member *self)
{
    int fd;
    struct address name = address_unix(self->name);
    RETURN_IF_FAILED(address_listen(&name, &fd));
    RETURN_IF_FAILED(reactor_listen(&endpoint->reactor, fd, false));
    self->port = 0;
    if (tcp == ENDPOINT_NO_TCP)
        return BANYAN_OK;
    RETURN_IF_FAILED(address_listen_tcp(tcp == ENDPOINT_TCP_LOOPBACK, 0, &fd, &self->port));
    if (tcp == ENDPOINT_TCP_ANYWHERE)
        self->tcp = interface_address(self->port);
    return reactor_listen(&endpoint->reactor, fd, true);
}

static void free_endpoint(struct endpoint *endpoint)
{
    reactor_close(&endpoint->reactor);
    pthread_cond_destroy(&endpoint->changed);
    for (size_t i = 0; i < endpoint->contexts.count; i++)
        context_destroy(endpoint->contexts.data[i]);
    array_free(&endpoint->contexts);
    array_free(&endpoint->wanted);
    array_free(&endpoint->lost);
    for (size_t i = 0; i < endpoint->losses.count; i++)
        free(endpoint->losses.data[i].how);
    array_free(&endpoint->losses);
    for (size_t i = 0; i < endpoint->suspected.count; i++)
        free(endpoint->suspected.data[i].how);
    array_free(&endpoint->suspected);
    for (int rank = 0; endpoint->peers && rank < endpoint->size; rank++) {
        endpoint_drop_pending(&endpoint->peers[rank]);
        free(endpoint->peers[rank].lost_how);
        if (endpoint->peers[rank].process.fd >= 0)
            close(endpoint->peers[rank].process.fd);
    }
    free(endpoint->peers);
    free(endpoint->members);
    sodium_memzero(endpoint, sizeof *endpoint);
    free(endpoint);
}

banyan_status endpoint_open(int rank, int size, enum endpoint_tcp tcp, struct member *self,
                            struct endpoint **endpoint)
{
    struct endpoint *opened = calloc(1, sizeof *opened);
    if (!opened)
        return error_no_memory(sizeof *opened, "the control plane");
    opened->rank = rank;
    opened->size = size;
    snprintf(opened->name, sizeof opened->name, "rank %d", rank);
    banyan_status status =
        reactor_open(&opened->reactor, WIRE_PURPOSE_PEER, rank, opened->key, &endpoint_ops, opened);
    if (status != BANYAN_OK) {
        free(opened);
        return status;
    }
    opened->reactor.name = opened->name;
    opened->reactor.answer_ns = ANSWER_NS;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&opened->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    address_random_name(self->name);
    self->pid = getpid();
    if (size > 1)
        status = listen_at(opened, tcp, self);
    if (status != BANYAN_OK) {
        free_endpoint(opened);
        return status;
    }
    *endpoint = opened;
    return BANYAN_OK;
}

/* Ranks with equal node names share a node; nodes are numbered by their lowest rank. */
static banyan_status number_nodes(struct endpoint *endpoint)
{
    hash_map nodes = {0};
    int count = 0;
    bool ok = true;
    for (int rank = 0; rank < endpoint->size && ok; rank++) {
        uint64_t node = (uint64_t)count;
        if (!map_get_string(&nodes, endpoint->members[rank].node, &node)) {
            ok = map_put_string(&nodes, endpoint->members[rank].node, node);
            count++;
        }
        endpoint->peers[rank].node = (int)node;
    }
    map_free(&nodes);
    return ok ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

/* Number without its lowest bit: the parent in a binomial tree. */
static int tree_above(int number)
{
    return number & (number - 1);
}

/* Arrange the ranks in a tree: those of a node below its lowest rank, and the lowest ranks of the
 * nodes below rank 0, each in a binomial tree. So no rank has more than 2 log2(ranks) children. */
static banyan_status find_parents(struct endpoint *endpoint)
{
    int size = endpoint->size, nodes = 0, *next, *first, *ordered;
    int *memory = calloc(3 * (size_t)size + 1, sizeof *memory);
    if (!memory)
        return error_no_memory(3 * (size_t)size * sizeof *memory, "the tree of ranks");
    first = memory; /* of each node, in `ordered` */
    next = memory + size + 1;
    ordered = next + size;
    for (int rank = 0; rank < size; rank++) {
        int node = endpoint->peers[rank].node;
        nodes = node + 1 > nodes ? node + 1 : nodes;
        first[node + 1]++;
    }
    for (int node = 0; node < nodes; node++)
        first[node + 1] += first[node];
    for (int rank = 0; rank < size; rank++) {
        struct peer *peer = &endpoint->peers[rank];
        int *of_node = ordered + first[peer->node], index = next[peer->node]++;
        of_node[index] = rank;
        peer->parent = index > 0 ? of_node[tree_above(index)] : -1;
        if (index == 0 && peer->node > 0)
            peer->parent = ordered[first[tree_above(peer->node)]];
    }
    free(memory);
    return BANYAN_OK;
}

static banyan_status endpoint_check_descriptors(const struct endpoint *endpoint, bool rank_0_hosts)
{
    int *nodes = calloc((size_t)endpoint->size, sizeof *nodes);
    if (!nodes)
        return error_no_memory((size_t)endpoint->size * sizeof *nodes, "the nodes of a job");
    for (int rank = 0; rank < endpoint->size; rank++)
        nodes[rank] = endpoint->peers[rank].node;
    banyan_status status =
        descriptors_check_members(endpoint->members, nodes, endpoint->size, rank_0_hosts);
    free(nodes);
    return status;
}

banyan_status endpoint_introduce(struct endpoint *endpoint, struct member_table *table,
                                 const unsigned char job_key[WIRE_KEY_BYTES], bool rank_0_hosts)
{
    endpoint->members = table->members;
    table->members = NULL;
    /* The shared key: from the job's key, if it has one, and the token of this rendezvous. */
    crypto_generichash(endpoint->key, sizeof endpoint->key, table->token, sizeof table->token,
                       job_key, WIRE_KEY_BYTES);
    endpoint->peers = calloc((size_t)endpoint->size, sizeof *endpoint->peers);
    if (!endpoint->peers)
        return error_no_memory((size_t)endpoint->size * sizeof *endpoint->peers, "the ranks");
    for (int rank = 0; rank < endpoint->size; rank++)
        endpoint->peers[rank].process =
            (struct event_source){EVENT_WATCH, -1, &endpoint->peers[rank]};
    RETURN_IF_FAILED(number_nodes(endpoint));
    RETURN_IF_FAILED(find_parents(endpoint));
    if (endpoint->size > 1)
        RETURN_IF_FAILED(endpoint_check_descriptors(endpoint, rank_0_hosts));
    /* Reserve now, so that this rank can connect and record losses even when memory runs out. */
    if (!array_reserve(&endpoint->wanted, (size_t)endpoint->size) ||
        !array_reserve(&endpoint->lost, (size_t)endpoint->size))
        return BANYAN_ERR_NO_MEMORY;
    for (int rank = 0; rank < endpoint->size; rank++) {
        if (endpoint->peers[rank].node != endpoint->peers[0].node)
            return BANYAN_OK;
    }
    reactor_stop_tcp(&endpoint->reactor); /* all ranks are on this node */
    return BANYAN_OK;
}

banyan_status endpoint_start(struct endpoint *endpoint)
{
    if (endpoint->size == 1)
        return BANYAN_OK;
    RETURN_IF_FAILED(thread_start(&endpoint->thread, endpoint_run, endpoint, false));
    endpoint->has_thread = true;
    return BANYAN_OK;
}

void endpoint_connect(struct endpoint *endpoint)
{
    if (endpoint->size == 1)
        return;
    pthread_mutex_lock(&endpoint->reactor.lock);
    liveness_connect(endpoint);
    pthread_mutex_unlock(&endpoint->reactor.lock);
}

/* True if everything is written. Between machines also read, because an early close may destroy
 * sent data. */
static bool is_drained(const struct endpoint *endpoint, bool clean)
{
    for (const struct link *link = endpoint->reactor.links; link; link = link->next) {
        if (link_has_output(link) || (clean && link->authenticated && link->stage == LINK_READY &&
                                      !link->peer_said_goodbye && !link->broken))
            return false;
    }
    return true;
}

static bool has_pending(const struct endpoint *endpoint)
{
    for (int rank = 0; rank < endpoint->size; rank++) {
        if (endpoint->peers[rank].pending.count > 0)
            return true;
    }
    return false;
}

/* The lock is held on entry and return. */
static void pause_unlocked(struct endpoint *endpoint)
{
    struct timespec pause = {.tv_nsec = (long)NS_PER_MS};
    pthread_mutex_unlock(&endpoint->reactor.lock);
    nanosleep(&pause, NULL);
    pthread_mutex_lock(&endpoint->reactor.lock);
}

static bool waits_for_peers(const struct endpoint *endpoint, const struct context *context)
{
    int missing;
    if (context->was_aborted && context->aborted_by == endpoint->rank &&
        !liveness_is_connected(endpoint, &missing))
        return true;
    for (int rank = 0; rank < endpoint->size; rank++) {
        const struct peer *peer = &endpoint->peers[rank];
        if (peer->parent == endpoint->rank && !peer->came && peer->state == PEER_HERE)
            return true;
    }
    return false;
}

void endpoint_wait_for_peers(struct endpoint *endpoint, const struct context *context)
{
    uint64_t deadline_ns = deadline_after(AWAIT_PEERS_NS);
    pthread_mutex_lock(&endpoint->reactor.lock);
    liveness_connect(endpoint);
    while (waits_for_peers(endpoint, context) && deadline_left_ns(deadline_ns) > 0)
        pause_unlocked(endpoint);
    pthread_mutex_unlock(&endpoint->reactor.lock);
}

void endpoint_flush(struct endpoint *endpoint)
{
    uint64_t deadline_ns = deadline_after(FLUSH_NS);
    pthread_mutex_lock(&endpoint->reactor.lock);
    while ((has_pending(endpoint) || !is_drained(endpoint, false)) &&
           deadline_left_ns(deadline_ns) > 0)
        pause_unlocked(endpoint);
    pthread_mutex_unlock(&endpoint->reactor.lock);
}

static void say_goodbye(struct endpoint *endpoint, banyan_status status, const char *reason)
{
    struct wire_frame frame = {
        .kind = WIRE_GOODBYE, .tag = (uint64_t)status, .bytes = status ? strlen(reason) : 0};
    uint64_t deadline_ns = deadline_after(FAREWELL_NS);
    pthread_mutex_lock(&endpoint->reactor.lock);
    for (struct link *link = endpoint->reactor.links; link; link = link->next) {
        if (!link_may_stand(link))
            continue;
        link_send(link, &frame, reason, -1);
        reactor_update(&endpoint->reactor, link);
    }
    while (!is_drained(endpoint, status == BANYAN_OK) && deadline_left_ns(deadline_ns) > 0)
        pause_unlocked(endpoint);
    pthread_mutex_unlock(&endpoint->reactor.lock);
}

void endpoint_close(struct endpoint *endpoint, banyan_status status, const char *reason)
{
    if (endpoint->forked)
        return; /* a forked child: the thread is the parent's, and the memory goes with the process
                 */
    if (endpoint->has_thread) {
        say_goodbye(endpoint, status, reason);
        atomic_store(&endpoint->stop, true);
        reactor_wake(&endpoint->reactor);
        pthread_join(endpoint->thread, NULL);
    }
    free_endpoint(endpoint);
}
