#include "world/control.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "world/world.h"

static banyan_status control_check_rank(const banyan_world *world, int rank, const char *what)
{
    if (rank >= 0 && rank < world->size)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID, "%s rank %d in a world of %d", what, rank, world->size);
}

banyan_status control_send(banyan_world *world, int destination, uint64_t tag, const void *data,
                           size_t bytes)
{
    RETURN_IF_FAILED(control_check_rank(world, destination, "a message to"));
    return world_send(world, WIRE_MESSAGE, destination, tag, data, bytes, -1);
}

banyan_status control_receive(banyan_world *world, int source, uint64_t tag, const char *what,
                              void **data, size_t *bytes)
{
    RETURN_IF_FAILED(control_check_rank(world, source, "a message from"));
    struct message *message;
    RETURN_IF_FAILED(world_receive(world, WIRE_MESSAGE, source, tag, what, &message));
    *data = message->data;
    *bytes = message->bytes;
    message->data = NULL;
    message_free(message);
    return BANYAN_OK;
}

/* Number of nested Banyan calls of this thread, and whether the outermost one entered. An inner
 * call may be on another world, split from the outer one's. */
static _Thread_local int calls;
static _Thread_local bool entered;

control_call control_call_begin(banyan_world *world, const char *name, control_timeout timeout)
{
    if (!world)
        return (control_call){.world = NULL};
    control_call made = {world, !world->call, timeout.ns > 0 && world->call_timeout_ns == 0};
    calls++;
    if (made.names)
        world->call = name;
    if (made.bounds) {
        world->call_option = timeout.option;
        world->call_timeout_ns = timeout.ns < BANYAN_FOREVER_NS ? timeout.ns : BANYAN_FOREVER_NS;
    }
    return made;
}

void control_call_end(const control_call *call)
{
    if (call->bounds) {
        call->world->call_timeout_ns = 0;
        call->world->call_option = NULL;
    }
    if (call->names)
        call->world->call = NULL;
    if (call->world && --calls == 0)
        entered = false;
}

control_timeout control_timeout_now(const banyan_world *world)
{
    return (control_timeout){world->call_timeout_ns, world->call_option};
}

bool world_begins_call(void)
{
    bool begins = calls <= 1 && !entered;
    entered = calls > 0;
    return begins;
}

static int compare_by_rank(const void *a, const void *b)
{
    const control_message *left = a, *right = b;
    return (left->rank > right->rank) - (left->rank < right->rank);
}

static banyan_status control_collect(banyan_world *world, uint64_t tag, control_message **received,
                                     size_t *received_count)
{
    pthread_mutex_lock(&world->endpoint->reactor.lock);
    struct message *list = context_take_exchanged(world->context, tag);
    pthread_mutex_unlock(&world->endpoint->reactor.lock);
    ARRAY(control_message) found = {0};
    bool ok = true;
    while (list) {
        struct message *message = list;
        list = message->next;
        int rank = context_rank_of(world->context, message->source);
        if (ok && (ok = array_push(&found, (control_message){rank, message->data, message->bytes})))
            message->data = NULL;
        message_free(message);
    }
    if (!ok) {
        control_messages_free(found.data, found.count);
        return control_fail(world, BANYAN_ERR_NO_MEMORY);
    }
    if (found.count > 1)
        qsort(found.data, found.count, sizeof *found.data, compare_by_rank);
    *received = found.data;
    *received_count = found.count;
    return BANYAN_OK;
}

/* A rank that has left the barrier knows that all messages to it have been delivered: each rank
 * enters the barrier only after its own messages are acknowledged. */
banyan_status control_exchange(banyan_world *world, const control_message *messages, size_t count,
                               const char *what, control_message **received, size_t *received_count)
{
    uint64_t tag = world->exchanges++;
    for (size_t i = 0; i < count; i++)
        RETURN_IF_FAILED(control_check_rank(world, messages[i].rank, "an exchange with"));
    for (size_t i = 0; i < count; i++)
        RETURN_IF_FAILED(world_send(world, WIRE_EXCHANGE, messages[i].rank, tag, messages[i].data,
                                    messages[i].bytes, -1));
    RETURN_IF_FAILED(world_wait_delivered(world, messages, count, what));
    RETURN_IF_FAILED(world_barrier(world, what));
    return control_collect(world, tag, received, received_count);
}

void control_messages_free(control_message *messages, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(messages[i].data);
    free(messages);
}

/* The first byte of a message with a descriptor. It distinguishes a lost descriptor from one that
 * was not given, and from one that could not be sent, whose message has the reason. */
enum fd_mark { FD_GIVEN = 'd', FD_NOT_SENT = 'n' };

/* Peers wait for the message, so if the descriptor cannot be sent, the message goes without it. */
static banyan_status share_fd(banyan_world *world, int peer, uint64_t tag, int fd)
{
    char mark = FD_GIVEN;
    if (fd < 0)
        return world_send(world, WIRE_DESCRIPTOR, peer, tag, NULL, 0, -1);
    banyan_status status = world_send(world, WIRE_DESCRIPTOR, peer, tag, &mark, 1, fd);
    if (status == BANYAN_OK)
        return status;
    error_kept kept = error_keep(status);
    RETURN_IF_FAILED(control_check(world));
    char why[sizeof kept.message + 1];
    int length = snprintf(why, sizeof why, "%c%s", FD_NOT_SENT, kept.message);
    RETURN_IF_FAILED(world_send(world, WIRE_DESCRIPTOR, peer, tag, why, (size_t)length, -1));
    return error_again(&kept);
}

static const char *rank_text(const banyan_world *world, int rank, char *text)
{
    return endpoint_rank_text(world->endpoint, world->context,
                              context_job_rank(world->context, rank), text);
}

/* Report a descriptor that could not be sent; the message names the rank, once. */
static banyan_status report_not_sent(const banyan_world *world, int source, const char *why,
                                     int bytes)
{
    char there[ENDPOINT_RANK_TEXT_BYTES], own[32];
    int length = snprintf(own, sizeof own, "rank %d", source);
    bool names = bytes > length && memcmp(why, own, (size_t)length) == 0 &&
                 (why[length] == ' ' || why[length] == ':');
    return error_set(BANYAN_ERR_SYSTEM, "%s%s%.*s", names ? "" : rank_text(world, source, there),
                     names ? "" : ": ", bytes, why);
}

static banyan_status receive_fd(banyan_world *world, int source, uint64_t tag, int *fd)
{
    struct message *message;
    RETURN_IF_FAILED(
        world_receive(world, WIRE_DESCRIPTOR, source, tag, "sharing a descriptor", &message));
    char here[ENDPOINT_RANK_TEXT_BYTES], there[ENDPOINT_RANK_TEXT_BYTES];
    banyan_status status = BANYAN_OK;
    const char *text = message->data;
    if (message->bytes > 0 && text[0] == FD_NOT_SENT)
        status = report_not_sent(world, source, text + 1, (int)message->bytes - 1);
    else if (message->bytes > 0 && message->fd < 0)
        status = error_set(BANYAN_ERR_SYSTEM,
                           "%s has no room for the descriptor that %s shares: too many open files",
                           rank_text(world, world->rank, here), rank_text(world, source, there));
    else
        *fd = message->fd;
    if (status == BANYAN_OK)
        message->fd = -1;
    message_free(message);
    return status;
}

/* Keep the first failure's message; true unless the world has ended, which ends the exchange. */
static bool goes_on(banyan_world *world, banyan_status status, error_kept *first)
{
    if (status != BANYAN_OK && first->status == BANYAN_OK)
        *first = error_keep(status);
    return status == BANYAN_OK || atomic_load(&world->context->ended) == BANYAN_OK;
}

banyan_status control_share_fd(banyan_world *world, int mine, int *fds)
{
    for (int i = 0; i < world->local_size; i++)
        fds[i] = -1;
    RETURN_IF_FAILED(control_check(world));
    uint64_t tag = world_next_collective(world);
    error_kept first = {.status = BANYAN_OK};
    bool on = true;
    for (int i = 0; i < world->local_size && on; i++) {
        if (i != world->local_rank)
            on = goes_on(world, share_fd(world, world->local_peers[i], tag, mine), &first);
    }
    for (int i = 0; i < world->local_size && on; i++) {
        if (i != world->local_rank)
            on = goes_on(world, receive_fd(world, world->local_peers[i], tag, &fds[i]), &first);
    }
    for (int i = 0; i < world->local_size && first.status != BANYAN_OK; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
        fds[i] = -1;
    }
    return error_again(&first);
}

uint64_t control_take_tag(banyan_world *world)
{
    return world_next_collective(world);
}

banyan_status control_send_fd(banyan_world *world, int destination, uint64_t tag, const void *data,
                              size_t bytes, int fd)
{
    RETURN_IF_FAILED(control_check_rank(world, destination, "a descriptor to"));
    return world_send(world, WIRE_DESCRIPTOR, destination, tag, data, bytes, fd);
}

banyan_status control_receive_fd(banyan_world *world, int source, uint64_t tag, const char *what,
                                 void **data, size_t *bytes, int *fd)
{
    RETURN_IF_FAILED(control_check_rank(world, source, "a descriptor from"));
    struct message *message;
    RETURN_IF_FAILED(world_receive(world, WIRE_DESCRIPTOR, source, tag, what, &message));
    *data = message->data;
    *bytes = message->bytes;
    *fd = message->fd;
    message->data = NULL;
    message->fd = -1;
    message_free(message);
    return BANYAN_OK;
}

int control_pid(const banyan_world *world, int rank)
{
    if (world->node_of[rank] != world->node_of[world->rank])
        return 0;
    return world->endpoint->members[context_job_rank(world->context, rank)].pid;
}

banyan_status control_check(banyan_world *world)
{
    banyan_status status = (banyan_status)atomic_load(&world->context->ended);
    if (status == BANYAN_OK)
        return BANYAN_OK;
    pthread_mutex_lock(&world->endpoint->reactor.lock);
    error_set(status, "%s", world->context->reason ? world->context->reason : "the world ended");
    world_note_name(banyan_last_error());
    pthread_mutex_unlock(&world->endpoint->reactor.lock);
    return status;
}

banyan_status control_fail_late_run(banyan_world *world, banyan_status status)
{
    char own[CONTROL_RANK_BYTES];
    if (status != BANYAN_ERR_TIMEOUT) /* runs that succeed take no lock */
        return status;
    pthread_mutex_lock(&world->endpoint->reactor.lock);
    uint64_t ended_ns = world->context->ended_ns;
    pthread_mutex_unlock(&world->endpoint->reactor.lock);
    if (ended_ns == 0)
        return status;
    return error_set(status, "%s, %.1f s before this run of %s", banyan_last_error(),
                     (double)(time_now_ns() - ended_ns) / 1e9, control_own_name(world, own));
}

banyan_status control_first_cause(banyan_world *world, banyan_status status)
{
    uint64_t deadline = deadline_after(NS_PER_S / 2);
    do {
        RETURN_IF_FAILED(control_check(world));
        usleep(1000);
    } while (deadline_left_ns(deadline) > 0);
    return status;
}

banyan_status control_fail(banyan_world *world, banyan_status status)
{
    if (status == BANYAN_OK)
        return status;
    error_kept kept = error_keep(status);
    pthread_mutex_lock(&world->endpoint->reactor.lock);
    liveness_abort(world->endpoint, world->context, world->rank, status, kept.message);
    pthread_mutex_unlock(&world->endpoint->reactor.lock);
    return error_again(&kept);
}

banyan_status banyan_world_check(banyan_world *world)
{
    return control_check(world);
}

void control_before_messages(banyan_world *world, banyan_status (*flush)(void *context),
                             void *context)
{
    world->before_messages = flush;
    world->before_context = context;
}

void *world_attachment(banyan_world *world, const void *key)
{
    for (struct attachment *at = world->attachments; at; at = at->next) {
        if (at->key == key)
            return at->data;
    }
    return NULL;
}

banyan_status world_attach(banyan_world *world, const void *key, void *data,
                           void (*destroy)(void *attachment))
{
    struct attachment *attachment = malloc(sizeof *attachment);
    if (!attachment)
        return error_no_memory(sizeof *attachment, "a world's attachment");
    *attachment = (struct attachment){world->attachments, key, data, destroy};
    world->attachments = attachment;
    return BANYAN_OK;
}

const char *control_nodes_text(const banyan_world *world, char text[CONTROL_NODES_TEXT_BYTES])
{
    const struct endpoint *endpoint = world->endpoint;
    int other = 0;
    while (other < world->size - 1 && world->node_of[other] == world->node_of[0])
        other++;
    snprintf(text, CONTROL_NODES_TEXT_BYTES, "rank 0 is on node %.80s, rank %d on node %.80s",
             endpoint->members[context_job_rank(world->context, 0)].host, other,
             endpoint->members[context_job_rank(world->context, other)].host);
    return text;
}

banyan_status control_require_one_node(const banyan_world *world, const char *what,
                                       const char *instead)
{
    char nodes[CONTROL_NODES_TEXT_BYTES];
    if (world->node_count == 1)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_UNSUPPORTED,
                     "%s between ranks of one node, and this world's %d ranks are on %d: %s; %s",
                     what, world->size, world->node_count, control_nodes_text(world, nodes),
                     instead);
}
