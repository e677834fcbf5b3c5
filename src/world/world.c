#include "world/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/containers.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"
#include "world/bootstrap/rendezvous.h"
#include "world/bootstrap/tree.h"
#include "world/net/descriptors.h"
#include "world/net/interface.h"

#define DEFAULT_TIMEOUT_NS (600 * NS_PER_S)
#define JOB_CONTEXT 1
/* Time for which late ranks are still informed that the world does not open. */
#define TURN_AWAY_NS NS_PER_S
/* Descriptors to report a failure: for a connection, or for a rendezvous without its ranks. */
#define REPORT_DESCRIPTORS 16

static banyan_status find_timeout(uint64_t wanted_ns, uint64_t *timeout_ns)
{
    const char *text = getenv("BANYAN_TIMEOUT");
    uint64_t found_ns = wanted_ns > 0 ? wanted_ns : DEFAULT_TIMEOUT_NS;
    if (wanted_ns == 0 && text && *text) {
        char *end;
        double seconds = strtod(text, &end);
        if (end == text || *end != '\0' || !isfinite(seconds) || seconds < 0)
            return error_set(BANYAN_ERR_INVALID,
                             "BANYAN_TIMEOUT is \"%s\", not a number of seconds (0: for ever)",
                             text);
        found_ns = seconds == 0 || seconds > 1e9 ? BANYAN_FOREVER_NS : (uint64_t)(seconds * 1e9);
        found_ns += found_ns == 0;
    }
    *timeout_ns = found_ns < BANYAN_FOREVER_NS ? found_ns : BANYAN_FOREVER_NS;
    return BANYAN_OK;
}

static banyan_status find_node(const char *wanted, char node[ADDRESS_NODE_BYTES])
{
    const char *name = wanted ? wanted : getenv("BANYAN_NODE");
    if (!name || !*name)
        return address_node(node);
    if (strlen(name) >= ADDRESS_NODE_BYTES)
        return error_set(BANYAN_ERR_INVALID, "the node's name has %zu characters, %d at most",
                         strlen(name), ADDRESS_NODE_BYTES - 1);
    snprintf(node, ADDRESS_NODE_BYTES, "%s", name);
    return BANYAN_OK;
}

/* Use the node name that the user gave, if any: people know the node by it. */
static void find_host(const struct member *self, const char *wanted, char host[MEMBER_HOST_BYTES])
{
    const char *name = wanted ? wanted : getenv("BANYAN_NODE");
    if (name && *name)
        snprintf(host, MEMBER_HOST_BYTES, "%s", self->node);
    else if (gethostname(host, MEMBER_HOST_BYTES - 1) != 0 || !host[0])
        snprintf(host, MEMBER_HOST_BYTES, "(no name)");
}

banyan_status banyan_unique_id_create(banyan_unique_id *id)
{
    char node[ADDRESS_NODE_BYTES];
    struct rendezvous_place place;
    banyan_unique_id made;
    int tcp_fd;
    RETURN_IF_FAILED(interface_check());
    RETURN_IF_FAILED(descriptors_check_id());
    RETURN_IF_FAILED(find_node(NULL, node));
    RETURN_IF_FAILED(rendezvous_place_new(node, &place, &made, &tcp_fd));
    RETURN_IF_FAILED(rendezvous_start(&place, tcp_fd, 0, true, NULL));
    *id = made;
    return BANYAN_OK;
}

static banyan_status table_of_one(const struct member *self, struct member_table *table)
{
    table->members = malloc(sizeof *self);
    if (!table->members)
        return error_no_memory(sizeof *self, "a world of one rank");
    table->members[0] = *self;
    return BANYAN_OK;
}

static enum endpoint_tcp which_tcp(const struct identity *identity,
                                   const struct rendezvous_place *place)
{
    if (identity->has_unique_id)
        return ENDPOINT_TCP_ANYWHERE;
    if (!identity->has_secret)
        return ENDPOINT_NO_TCP;
    return place->local ? ENDPOINT_TCP_LOOPBACK : ENDPOINT_TCP_ANYWHERE;
}

static bool rank_0_hosts(const struct identity *identity)
{
    return !identity->has_unique_id && identity->world_size > 1;
}

/* Rank 0 listens at the address that the others know, and itself joins at a private name. */
static banyan_status prepare_to_serve(const struct identity *identity,
                                      struct rendezvous_place *place, int *tcp_fd)
{
    int port;
    *tcp_fd = -1;
    if (!place->local) {
        RETURN_IF_FAILED(address_listen_tcp(false, identity->port, tcp_fd, &port));
        tree_name(place, 0, place->name);
        place->local = true;
    }
    return BANYAN_OK;
}

static banyan_status world_check_descriptors(const struct identity *identity, struct member *self)
{
    if (identity->world_size == 1)
        return BANYAN_OK;
    self->descriptors = descriptors_count(identity->world_size);
    return descriptors_check_rendezvous(&self->descriptors, identity->rank, identity->world_size,
                                        rank_0_hosts(identity));
}

static banyan_status world_find_place(const struct identity *identity, const char *node,
                                      struct rendezvous_place *place)
{
    RETURN_IF_FAILED(identity->has_unique_id
                         ? rendezvous_place_of_id(&identity->unique_id, node, place)
                         : rendezvous_place_of_job(identity, place));
    place->all_here = identity->local_size == identity->world_size;
    tree_base(place, node);
    return BANYAN_OK;
}

/* State that exists only while a world is opened. */
struct joining {
    struct rendezvous_place place;
    struct rendezvous *rendezvous; /* hosted by rank 0 */
    struct joiner joiner;
};

/* Join the rendezvous. Rank 0 continues to serve while it opens its world: others may take the
 * table later. */
static banyan_status world_join_ranks(const struct identity *identity, const struct member *self,
                                      uint64_t timeout_ns, struct member_table *table,
                                      struct joining *joining)
{
    struct join_request request = {.rank = identity->rank,
                                   .world_size = identity->world_size,
                                   .timeout_ns = timeout_ns,
                                   .self = *self};
    if (identity->rank == 0 && rank_0_hosts(identity)) {
        int tcp_fd;
        RETURN_IF_FAILED(prepare_to_serve(identity, &joining->place, &tcp_fd));
        RETURN_IF_FAILED(rendezvous_start(&joining->place, tcp_fd, identity->world_size, false,
                                          &joining->rendezvous));
    }
    return joiner_join(&joining->joiner, &joining->place, &request, table);
}

/* Rank 0 cannot open the world: inform the ranks that look for it now. */
static void world_turn_away(const struct identity *identity, struct rendezvous_place *place,
                            const error_kept *why)
{
    int tcp_fd;
    if (prepare_to_serve(identity, place, &tcp_fd) == BANYAN_OK)
        rendezvous_refuse(place, tcp_fd, identity->world_size, why, TURN_AWAY_NS);
}

/* This rank cannot open the world: inform the others, as far as they can be reached. */
static bool world_report(const banyan_world_options *options, const struct identity *identity,
                         bool was_there, const error_kept *why)
{
    struct join_request request = {.rank = identity->rank, .world_size = identity->world_size};
    struct rendezvous_place place = {0};
    struct rlimit limit;
    bool raised = descriptors_raise_limit(REPORT_DESCRIPTORS + identity->world_size, &limit);
    bool reported = false;
    request.self.pid = getpid();
    snprintf(request.self.name, sizeof request.self.name, "none");
    if (find_node(options->node, request.self.node) == BANYAN_OK &&
        world_find_place(identity, request.self.node, &place) == BANYAN_OK) {
        find_host(&request.self, options->node, request.self.host);
        if (identity->rank == 0 && rank_0_hosts(identity))
            world_turn_away(identity, &place, why);
        else
            reported = join_report(&place, &request, was_there, why);
    }
    if (raised)
        setrlimit(RLIMIT_NOFILE, &limit);
    sodium_memzero(&place, sizeof place);
    return reported;
}

/* Inform the others that this rank cannot join, unless it has timed out or was refused. False when
 * no rank was informed. */
static bool inform_others(const banyan_world_options *options, const struct identity *identity,
                          struct joining *joining, const error_kept *why)
{
    bool gave_up = why->status == BANYAN_ERR_TIMEOUT;
    if (joining->rendezvous) {
        bool informed = rendezvous_stop(joining->rendezvous, gave_up ? NULL : why);
        joining->rendezvous = NULL;
        return informed;
    }
    if (identity->world_size == 1 || gave_up || joining->joiner.refused ||
        (why->status == BANYAN_ERR_PEER_LOST && !joining->joiner.lost_relay))
        return false;
    return joiner_is_turned_away(&joining->joiner) ||
           world_report(options, identity, joining->joiner.has_table, why);
}

/* Without a secret, only ranks of one node may be in a world. */
static banyan_status check_nodes(const struct identity *identity, const struct member_table *table)
{
    for (int rank = 1; rank < identity->world_size; rank++) {
        const struct member *first = &table->members[0], *other = &table->members[rank];
        if (strcmp(first->node, other->node) == 0)
            continue;
        if (!identity->has_unique_id && !identity->has_secret)
            return error_set(BANYAN_ERR_REFUSED,
                             "rank %d is on node %s and rank 0 on node %s: ranks of different "
                             "nodes must prove that they belong to the job; set BANYAN_SECRET to "
                             "the same 32 hexadecimal digits (128 random bits) on every rank",
                             rank, other->host, first->host);
        if (first->port == 0 || other->port == 0)
            return error_set(BANYAN_ERR_UNSUPPORTED,
                             "rank %d is on node %s and rank 0 on node %s, but rank %d cannot "
                             "listen for TCP connections",
                             rank, other->host, first->host, first->port == 0 ? 0 : rank);
    }
    return BANYAN_OK;
}

static int job_node(const banyan_world *world, int rank)
{
    return world->endpoint->peers[context_job_rank(world->context, rank)].node;
}

/* Nodes are numbered in order of appearance; `seen` has an entry for every node of the job. */
static void place_ranks(banyan_world *world, int *seen)
{
    for (int rank = 0; rank < world->size; rank++)
        seen[job_node(world, rank)] = -1;
    for (int rank = 0; rank < world->size; rank++) {
        int node = job_node(world, rank);
        if (seen[node] < 0)
            seen[node] = world->node_count++;
        world->node_of[rank] = seen[node];
    }
    for (int rank = 0; rank < world->size; rank++) {
        if (world->node_of[rank] != world->node_of[world->rank])
            continue;
        if (rank == world->rank)
            world->local_rank = world->local_size;
        world->local_peers[world->local_size++] = rank;
    }
}

static banyan_status world_locate(banyan_world *world)
{
    size_t size = (size_t)world->size;
    world->node_of = calloc(size, sizeof *world->node_of);
    world->local_peers = calloc(size, sizeof *world->local_peers);
    int *seen = calloc((size_t)world->endpoint->size, sizeof *seen);
    if (world->node_of && world->local_peers && seen)
        place_ranks(world, seen);
    bool ok = world->local_size > 0;
    free(seen);
    return ok ? BANYAN_OK : error_no_memory(size * sizeof *seen, "the nodes of a world");
}

static void free_world(banyan_world *world)
{
    array_free(&world->splits);
    free(world->node_of);
    free(world->local_peers);
    free(world);
}

static banyan_status open_endpoint(const banyan_world_options *options,
                                   const struct identity *identity, uint64_t timeout_ns,
                                   struct joining *joining, struct endpoint **endpoint)
{
    struct member self = {0};
    struct member_table table = {0};
    struct endpoint *opened;
    bool alone = identity->world_size == 1 && !identity->has_unique_id;
    RETURN_IF_FAILED(interface_check());
    RETURN_IF_FAILED(world_check_descriptors(identity, &self));
    RETURN_IF_FAILED(find_node(options->node, self.node));
    find_host(&self, options->node, self.host);
    if (!alone)
        RETURN_IF_FAILED(world_find_place(identity, self.node, &joining->place));
    RETURN_IF_FAILED(endpoint_open(identity->rank, identity->world_size,
                                   which_tcp(identity, &joining->place), &self, &opened));
    banyan_status status = alone ? table_of_one(&self, &table)
                                 : world_join_ranks(identity, &self, timeout_ns, &table, joining);
    if (status == BANYAN_OK)
        status = check_nodes(identity, &table);
    if (status == BANYAN_OK)
        status = endpoint_introduce(opened, &table, joining->place.key, rank_0_hosts(identity));
    free(table.members);
    if (status != BANYAN_OK)
        endpoint_close(opened, status, banyan_last_error());
    else
        *endpoint = opened;
    return status;
}

/* Assign the context of this id to a world, which receives its messages from now on. With the lock
 * held. */
static banyan_status open_context(banyan_world *world, uint64_t id, struct context *parent,
                                  int *job_ranks)
{
    struct endpoint *endpoint = world->endpoint;
    struct context *context = endpoint_context(endpoint, id);
    if (!context)
        return error_no_memory(sizeof *context, "a world");
    context->open = true;
    context->parent = parent;
    context->rank = world->rank;
    context->size = world->size;
    context->job_ranks = job_ranks;
    world->context = context;
    return BANYAN_OK;
}

/* Do everything that can fail on this rank alone, before others connect to it. */
static banyan_status prepare_world(banyan_world *world)
{
    pthread_mutex_lock(&world->endpoint->reactor.lock);
    banyan_status status = open_context(world, JOB_CONTEXT, NULL, NULL);
    pthread_mutex_unlock(&world->endpoint->reactor.lock);
    if (status == BANYAN_OK)
        status = world_locate(world);
    return status == BANYAN_OK ? endpoint_start(world->endpoint) : status;
}

/* Start the world, once all ranks are prepared. */
static banyan_status start_world(banyan_world *world)
{
    endpoint_connect(world->endpoint);
    banyan_status status = world_wait_connected(world);
    if (status == BANYAN_OK)
        status = world_barrier(world, "opening the world");
    char what[64];
    snprintf(what, sizeof what, "rank %d of %d opened", world->rank, world->size);
    pthread_mutex_lock(&world->endpoint->reactor.lock);
    reactor_log_traffic(&world->endpoint->reactor, what);
    pthread_mutex_unlock(&world->endpoint->reactor.lock);
    return status;
}

/* Send the failure to peers that may be connecting to this rank: they have no other way to learn
 * it. */
static void world_inform_peers(banyan_world *world, const error_kept *why)
{
    struct endpoint *endpoint = world->endpoint;
    if (!endpoint->has_thread)
        return;
    pthread_mutex_lock(&endpoint->reactor.lock);
    liveness_abort(endpoint, world->context, world->rank, why->status, why->message);
    pthread_mutex_unlock(&endpoint->reactor.lock);
    endpoint_wait_for_peers(endpoint, world->context);
}

static banyan_status join_and_prepare(const banyan_world_options *options,
                                      const struct identity *identity, banyan_world *world,
                                      struct joining *joining)
{
    uint64_t timeout_ns = 0;
    RETURN_IF_FAILED(find_timeout(options->timeout_ns, &timeout_ns));
    world->timeout_ns = world->opened_timeout_ns = timeout_ns;
    world->opens_until_ns = deadline_after(timeout_ns);
    RETURN_IF_FAILED(open_endpoint(options, identity, timeout_ns, joining, &world->endpoint));
    RETURN_IF_FAILED(prepare_world(world));
    return joining->joiner.is_open ? joiner_wait_for_all(&joining->joiner) : BANYAN_OK;
}

/* True if all ranks may be ready: this rank was, and got no reason why the world cannot open. */
static bool may_start(const struct joining *joining, banyan_status status)
{
    return status == BANYAN_OK || (joining->joiner.is_ready && !joining->joiner.has_reason &&
                                   status != BANYAN_ERR_TIMEOUT);
}

static banyan_status open_world(const banyan_world_options *options,
                                const struct identity *identity, const struct join_guard *guard,
                                banyan_world *world)
{
    struct joining joining = {.joiner.guard = guard};
    world->rank = identity->rank;
    world->size = world->listening_size = identity->world_size;
    error_kept kept = error_keep(join_and_prepare(options, identity, world, &joining));
    bool informed = kept.status != BANYAN_OK && inform_others(options, identity, &joining, &kept);
    if (kept.status != BANYAN_OK)
        joiner_turn_away(&joining.joiner, informed, &kept);
    joiner_close(&joining.joiner);
    if (!informed && may_start(&joining, kept.status)) {
        error_kept started = error_keep(start_world(world));
        if (started.status == BANYAN_OK || !joining.joiner.has_doubt)
            kept = started;
        if (kept.status != BANYAN_OK)
            world_inform_peers(world, &kept);
    }
    if (kept.status != BANYAN_OK && world->endpoint)
        endpoint_close(world->endpoint, kept.status, kept.message);
    (void)rendezvous_stop(joining.rendezvous, NULL);
    sodium_memzero(&joining.place, sizeof joining.place);
    world->opens_until_ns = 0;
    return error_again(&kept);
}

banyan_status world_open_guarded(const banyan_world_options *options,
                                 const struct join_guard *guard, banyan_world **world)
{
    struct identity identity;
    banyan_world_options taken = BANYAN_WORLD_OPTIONS_INIT;
    RETURN_IF_FAILED(options_take(options, "BANYAN_WORLD_OPTIONS_INIT", &taken, sizeof taken));
    RETURN_IF_FAILED(identity_discover(&taken, &identity));
    banyan_world *opened = calloc(1, sizeof *opened);
    banyan_status status = opened ? open_world(&taken, &identity, guard, opened)
                                  : error_no_memory(sizeof *opened, "a world");
    error_kept kept = error_keep(status);
    if (!opened && identity.world_size > 1)
        (void)world_report(&taken, &identity, false, &kept);
    sodium_memzero(&identity, sizeof identity);
    if (status != BANYAN_OK) {
        if (opened)
            free_world(opened);
        return error_again(&kept);
    }
    *world = opened;
    return BANYAN_OK;
}

banyan_status banyan_world_open(const banyan_world_options *options, banyan_world **world)
{
    return world_open_guarded(options, NULL, world);
}

static void destroy_attachments(banyan_world *world)
{
    while (world->attachments) {
        struct attachment *attachment = world->attachments;
        world->attachments = attachment->next;
        attachment->destroy(attachment->data);
        free(attachment);
    }
}

/* A rank that leaves after a failed wait informs the members, which may still wait. */
static void leave_sub(banyan_world *sub, const error_kept *why)
{
    pthread_mutex_lock(&sub->endpoint->reactor.lock);
    if (why->status == BANYAN_ERR_TIMEOUT)
        liveness_give_up(sub->endpoint, sub->context, sub->rank, why->status, why->message);
    endpoint_forget_context(sub->endpoint, sub->context);
    pthread_mutex_unlock(&sub->endpoint->reactor.lock);
}

banyan_status banyan_world_close(banyan_world *world)
{
    if (!world)
        return BANYAN_OK;
    if (!world->call)
        world->call = __func__;
    banyan_status status = world->missed.status != BANYAN_OK
                               ? error_again(&world->missed)
                               : world_barrier(world, "closing the world");
    error_kept kept = error_keep(status);
    destroy_attachments(world);
    if (world->is_sub)
        leave_sub(world, &kept);
    else
        endpoint_close(world->endpoint, status, kept.message);
    free_world(world);
    return error_again(&kept);
}

banyan_status banyan_world_abort(banyan_world *world, const char *reason)
{
    pthread_mutex_lock(&world->endpoint->reactor.lock);
    liveness_abort(world->endpoint, world->context, world->rank, BANYAN_ERR_ABORTED,
                   reason ? reason : "no reason given");
    pthread_mutex_unlock(&world->endpoint->reactor.lock);
    return BANYAN_OK;
}

static banyan_status check_list(const banyan_world *parent, const int *ranks, int count, int *mine)
{
    char *seen = calloc((size_t)parent->size, 1);
    for (int i = 0; i < count; i++)
        *mine = ranks[i] == parent->rank ? i : *mine;
    if (!seen)
        return error_no_memory((size_t)parent->size, "a list of ranks");
    banyan_status status = BANYAN_OK;
    for (int i = 0; i < count && status == BANYAN_OK; i++) {
        if (ranks[i] < 0 || ranks[i] >= parent->size)
            status = error_set(BANYAN_ERR_INVALID, "rank %d splits off rank %d of a world of %d",
                               parent->rank, ranks[i], parent->size);
        else if (seen[ranks[i]]++)
            status = error_set(BANYAN_ERR_INVALID, "rank %d splits off rank %d twice", parent->rank,
                               ranks[i]);
    }
    free(seen);
    if (status == BANYAN_OK && *mine < 0)
        status =
            error_set(BANYAN_ERR_INVALID, "rank %d splits off %d ranks without being one of them",
                      parent->rank, count);
    return status;
}

/* Count the earlier splits of this list from the parent: all its members count identically,
 * whatever fails afterwards. */
static banyan_status count_split(banyan_world *parent, uint64_t list_hash, uint64_t *count)
{
    for (size_t i = 0; i < parent->splits.count; i++) {
        if (parent->splits.data[i].list_hash == list_hash) {
            *count = ++parent->splits.data[i].count;
            return BANYAN_OK;
        }
    }
    *count = 0;
    return array_push(&parent->splits, (struct split_count){list_hash, 0}) ? BANYAN_OK
                                                                           : BANYAN_ERR_NO_MEMORY;
}

static banyan_status find_id(banyan_world *parent, const int *ranks, int count, uint64_t *id)
{
    uint64_t list_hash = hash_bytes(ranks, (size_t)count * sizeof *ranks, 0);
    uint64_t origin[3] = {parent->context->id, list_hash};
    RETURN_IF_FAILED(count_split(parent, list_hash, &origin[2]));
    *id = hash_bytes(origin, sizeof origin, 1);
    return BANYAN_OK;
}

static banyan_status open_sub(banyan_world *parent, const int *ranks, uint64_t id,
                              banyan_world *sub)
{
    int *job_ranks = calloc((size_t)sub->size, sizeof *job_ranks);
    if (!job_ranks)
        return error_no_memory((size_t)sub->size * sizeof *job_ranks, "a sub-world");
    for (int i = 0; i < sub->size; i++)
        job_ranks[i] = context_job_rank(parent->context, ranks[i]);
    pthread_mutex_lock(&sub->endpoint->reactor.lock);
    banyan_status status = open_context(sub, id, parent->context, job_ranks);
    if (status == BANYAN_OK)
        liveness_join(sub->endpoint, sub->context);
    pthread_mutex_unlock(&sub->endpoint->reactor.lock);
    if (status != BANYAN_OK)
        free(job_ranks);
    return status == BANYAN_OK ? world_locate(sub) : status;
}

/* This rank cannot open its part of the split: end the worlds of the other members, so that they do
 * not wait for it. Returns `status`. */
static banyan_status fail_split(banyan_world *parent, uint64_t id, int rank, banyan_status status)
{
    struct endpoint *endpoint = parent->endpoint;
    error_kept kept = error_keep(status);
    char reason[sizeof kept.message + CONTEXT_RANK_BYTES], name[CONTEXT_RANK_BYTES];
    snprintf(reason, sizeof reason, "%s: %s",
             context_ranks_text(rank, context_job_rank(parent->context, parent->rank), name),
             kept.message);
    pthread_mutex_lock(&endpoint->reactor.lock);
    struct context *context = endpoint_context(endpoint, id);
    /* The context stays until the job's world is closed: messages about its end may still arrive.
     */
    if (context)
        liveness_abort(endpoint, context, rank, status, reason);
    pthread_mutex_unlock(&endpoint->reactor.lock);
    (void)error_again(&kept);
    return context ? status : control_fail(parent, status);
}

static banyan_status make_sub(banyan_world *parent, const int *ranks, int count, int rank,
                              uint64_t id, banyan_world **sub)
{
    banyan_world *split = calloc(1, sizeof *split);
    if (!split)
        return error_no_memory(sizeof *split, "a sub-world");
    split->endpoint = parent->endpoint;
    split->is_sub = true;
    split->rank = rank;
    split->size = split->listening_size = count;
    split->timeout_ns = parent->timeout_ns;
    split->opened_timeout_ns = parent->timeout_ns;
    split->call_timeout_ns = parent->call_timeout_ns;
    split->call_option = parent->call_option;
    banyan_status status = open_sub(parent, ranks, id, split);
    if (status != BANYAN_OK) {
        leave_sub(split, &(error_kept){.status = BANYAN_OK});
        free_world(split);
        return status;
    }
    *sub = split;
    return BANYAN_OK;
}

banyan_status banyan_world_split(banyan_world *parent, const int *ranks, int count,
                                 banyan_world **sub)
{
    int rank = -1;
    uint64_t id = 0;
    RETURN_IF_FAILED(control_check(parent));
    if (count < 1 || count > parent->size)
        return error_set(BANYAN_ERR_INVALID, "rank %d splits %d ranks off a world of %d",
                         parent->rank, count, parent->size);
    RETURN_IF_FAILED(control_fail(parent, find_id(parent, ranks, count, &id)));
    banyan_status status = check_list(parent, ranks, count, &rank);
    if (status == BANYAN_OK)
        status = make_sub(parent, ranks, count, rank, id, sub);
    return status == BANYAN_ERR_NO_MEMORY ? fail_split(parent, id, rank, status) : status;
}

int banyan_world_rank(const banyan_world *world)
{
    return world->rank;
}

int banyan_world_size(const banyan_world *world)
{
    return world->size;
}

int banyan_world_node_count(const banyan_world *world)
{
    return world->node_count;
}

int banyan_world_node_of(const banyan_world *world, int rank)
{
    return rank >= 0 && rank < world->size ? world->node_of[rank] : -1;
}

int banyan_world_local_rank(const banyan_world *world)
{
    return world->local_rank;
}

int banyan_world_local_size(const banyan_world *world)
{
    return world->local_size;
}

int banyan_world_local_peer(const banyan_world *world, int local_rank)
{
    return local_rank >= 0 && local_rank < world->local_size ? world->local_peers[local_rank] : -1;
}

uint64_t banyan_world_timeout_ns(const banyan_world *world)
{
    uint64_t of_call = world->call_timeout_ns;
    return of_call > 0 ? of_call : world->timeout_ns;
}

banyan_status banyan_world_set_timeout(banyan_world *world, uint64_t timeout_ns)
{
    RETURN_IF_NULL(world);
    if (timeout_ns == 0)
        timeout_ns = world->opened_timeout_ns;
    world->timeout_ns = timeout_ns < BANYAN_FOREVER_NS ? timeout_ns : BANYAN_FOREVER_NS;
    return BANYAN_OK;
}
