/* What ranks send to a rendezvous: requests to join, that they are ready, failures and losses. */
#include "world/bootstrap/hosting.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/log.h"
#include "world/bootstrap/tree.h"
#include "world/net/descriptors.h"

/* Time for a rank that is cut off to find another way. */
#define RETURN_NS NS_PER_S
/* Time for a rank to report a failure on a second connection, after the first one ended. */
#define REPORT_NS (200 * NS_PER_MS)

static banyan_status admit_anybody(void *owner, struct link *link)
{
    (void)owner;
    link->rank = link->hello.from;
    return BANYAN_OK;
}

static void nothing_to_say(void *owner, struct link *link)
{
    (void)owner;
    (void)link;
}

/* True if a rank has joined on a link of its own. */
static bool is_seated(const struct rendezvous *rendezvous, const struct link *link)
{
    return rendezvous->entries && link->rank >= 0 && link->rank < rendezvous->world_size &&
           rendezvous->entries[link->rank].link == link;
}

/* Count the connections of ranks, as far as they are known. */
static int count_connections(const struct rendezvous *rendezvous)
{
    int count = (int)rendezvous->reactor.near.count;
    for (const struct link *link = rendezvous->reactor.links; link; link = link->next)
        count++;
    return count;
}

banyan_status rendezvous_fix_size(struct rendezvous *rendezvous, int rank, int world_size)
{
    int most = world_size < RELAY_CHILDREN ? world_size : RELAY_CHILDREN;
    if (rendezvous->lacks.status == BANYAN_OK)
        rendezvous->lacks =
            error_keep(descriptors_check_hosting(world_size, most - count_connections(rendezvous)));
    RETURN_IF_FAILED(error_again(&rendezvous->lacks));
    rendezvous->entries = calloc((size_t)world_size, sizeof *rendezvous->entries);
    if (!rendezvous->entries)
        return error_no_memory((size_t)world_size * sizeof *rendezvous->entries,
                               "the ranks that join");
    rendezvous->world_size = world_size;
    rendezvous->sized_by = rank;
    return BANYAN_OK;
}

static banyan_status check_size(struct rendezvous *rendezvous, const struct join_request *request)
{
    int rank = request->rank, world_size = request->world_size;
    if (world_size < 1 || world_size > BANYAN_MAX_RANKS || rank < 0 || rank >= world_size)
        return error_set(BANYAN_ERR_MISMATCH, "rank %d does not exist in a world of %d", rank,
                         world_size);
    if (!rendezvous->entries)
        RETURN_IF_FAILED(rendezvous_fix_size(rendezvous, rank, world_size));
    if (world_size != rendezvous->world_size)
        return error_set(BANYAN_ERR_MISMATCH,
                         "rank %d says that the world has %d ranks, but rank %d said %d", rank,
                         world_size, rendezvous->sized_by, rendezvous->world_size);
    return BANYAN_OK;
}

/* True if one process joins again, on another way. */
static bool is_same_process(const struct member *a, const struct member *b)
{
    return a->pid == b->pid && strcmp(a->name, b->name) == 0;
}

static banyan_status check_request(struct rendezvous *rendezvous,
                                   const struct join_request *request)
{
    int rank = request->rank, world_size = request->world_size;
    RETURN_IF_FAILED(check_size(rendezvous, request));
    const struct rank_entry *entry = &rendezvous->entries[rank];
    if (rendezvous->phase == ALL_READY)
        return error_set(BANYAN_ERR_MISMATCH,
                         "rank %d comes again, and the world of %d ranks is open already", rank,
                         world_size);
    if (entry->link && !is_same_process(&entry->request.self, &request->self))
        return error_set(BANYAN_ERR_MISMATCH,
                         "two processes say that they are rank %d of %d: pid %d on node %s came "
                         "first, then pid %d on node %s",
                         rank, world_size, entry->request.self.pid, entry->request.self.host,
                         request->self.pid, request->self.host);
    return BANYAN_OK;
}

static void refuse_rank(struct rendezvous *rendezvous, struct link *link, int rank,
                        banyan_status status)
{
    bool for_all = rendezvous->refuses || rendezvous->failure.status != BANYAN_OK;
    if (!rendezvous->refuses)
        log_warn("%s refused %s: %s", rendezvous->reactor.name, link->who, banyan_last_error());
    rendezvous_refuse_link(rendezvous, link, rank, status, for_all);
}

/* A rank that was informed of a failure and tries again starts over. A process that comes a second
 * time in one attempt was not informed. */
static banyan_status check_failure(struct rendezvous *rendezvous, struct rank_entry *entry,
                                   const struct join_request *request)
{
    bool knows = request->failure != 0 && request->failure == rendezvous->failure_number;
    if (!is_same_process(&entry->request.self, &request->self) && (entry->came || knows))
        rendezvous->failure.status = BANYAN_OK;
    entry->came = true;
    return error_again(&rendezvous->failure);
}

/* Send a rank to one of the ranks that have joined here, if there are many of them. */
static bool send_elsewhere(struct rendezvous *rendezvous, struct link *link)
{
    struct address address;
    if (link->rank == 0 || rendezvous->children.count < RELAY_CHILDREN ||
        !tree_choose_child(&rendezvous->children, &rendezvous->place, link->authenticated,
                           &address))
        return false;
    pthread_mutex_lock(&rendezvous->reactor.lock);
    tree_redirect(link, link->rank, &address);
    reactor_update(&rendezvous->reactor, link);
    pthread_mutex_unlock(&rendezvous->reactor.lock);
    return true;
}

/* Count each rank once: one that did not get the answer comes again. */
static void count_refused(struct rendezvous *rendezvous, int rank)
{
    if (!rendezvous->refuses || rank < 0 || rank >= rendezvous->world_size)
        return;
    if (rendezvous->entries && rendezvous->entries[rank].came)
        return;
    if (rendezvous->entries)
        rendezvous->entries[rank].came = true;
    rendezvous->refused++;
}

static banyan_status check_join(struct rendezvous *rendezvous, const struct join_request *request)
{
    if (rendezvous->refuses) {
        count_refused(rendezvous, request->rank);
        return error_again(rendezvous->refuses);
    }
    RETURN_IF_FAILED(check_request(rendezvous, request));
    struct rank_entry *entry = &rendezvous->entries[request->rank];
    if (rendezvous->phase == PREPARING) {
        /* Its way to here has ended, or it takes a place too late. */
        bool returns = is_same_process(&entry->request.self, &request->self);
        if (rendezvous->lost < 0 && request->lost <= rendezvous->world_size)
            rendezvous->lost = request->lost - 1;
        if (rendezvous->lost < 0)
            rendezvous_call_off_here(rendezvous,
                                     error_set(BANYAN_ERR_PEER_LOST,
                                               "the rank through which rank %d had joined died "
                                               "while the world was opened",
                                               request->rank));
        else
            rendezvous_call_off_for_loss(rendezvous);
        entry->came = !returns;
    }
    return check_failure(rendezvous, entry, request);
}

static void seat(struct rendezvous *rendezvous, struct link *link,
                 const struct join_request *request)
{
    struct rank_entry *entry = &rendezvous->entries[request->rank];
    char text[NEWS_BYTES];
    bool returns = is_same_process(&entry->request.self, &request->self);
    if (entry->died && !returns) {
        snprintf(text, sizeof text, "rank %d (pid %d on node %s) has taken its place",
                 request->rank, request->self.pid, request->self.host);
        rendezvous_send_news(rendezvous, text);
    }
    if (rendezvous->joined == 0)
        rendezvous->news_ns = (rendezvous->came_ns = time_now_ns()) + log_wait_period_ns();
    rendezvous->joined += !entry->link;
    *entry = (struct rank_entry){.link = link,
                                 .request = *request,
                                 .gives_up_ns = deadline_after(request->timeout_ns),
                                 .came = true};
    if (returns)
        rendezvous_send_deaths(rendezvous, request->rank);
    log_debug("rank %d of %d (pid %d) joins%s", request->rank, request->world_size,
              request->self.pid, link->rank == request->rank ? "" : " through another rank");
}

static banyan_status take_request(struct rendezvous *rendezvous, struct link *link,
                                  struct join_request *request)
{
    bool is_own = request->rank == link->rank;
    bool is_new = is_own && !tree_has_child(&rendezvous->children, link);
    banyan_status status = check_join(rendezvous, request);
    if (status != BANYAN_OK || link->closed) {
        if (!link->closed)
            refuse_rank(rendezvous, link, request->rank, status);
        return is_own ? status : BANYAN_OK;
    }
    if (is_new && send_elsewhere(rendezvous, link))
        return BANYAN_OK;
    if (is_new && !array_reserve(&rendezvous->children, 1))
        return BANYAN_ERR_NO_MEMORY;
    tree_complete_address(link, &request->self);
    seat(rendezvous, link, request);
    return is_new ? tree_add_child(&rendezvous->children, link, request) : BANYAN_OK;
}

/* A link was refused for all ranks that join on it: the one at its other end informs the others,
 * whose requests follow. */
static void count_informed(struct rendezvous *rendezvous, bytes_reader *reader)
{
    while (reader->left > 0 && !reader->failed) {
        struct join_request request = {0};
        size_t length;
        const void *blob = bytes_read_blob(reader, &length);
        if (!blob || !join_read(blob, length, &request))
            continue;
        count_refused(rendezvous, request.rank);
        if (rendezvous->refuses || check_request(rendezvous, &request) != BANYAN_OK ||
            rendezvous->entries[request.rank].came)
            continue;
        rendezvous->entries[request.rank] = (struct rank_entry){.request = request, .came = true};
    }
}

static banyan_status take_joins(struct rendezvous *rendezvous, struct link *link, const void *data,
                                size_t bytes)
{
    bytes_reader reader = bytes_reader_of(data, bytes);
    banyan_status status = BANYAN_OK;
    for (bool first = true; status == BANYAN_OK && (first || reader.left > 0); first = false) {
        struct join_request request = {0};
        size_t length;
        const void *blob = bytes_read_blob(&reader, &length);
        bool ok = blob && join_read(blob, length, &request);
        if (!ok || (first && !is_seated(rendezvous, link) && request.rank != link->rank)) {
            status =
                error_set(BANYAN_ERR_FORMAT, "%s sends a malformed request to join", link->who);
            refuse_rank(rendezvous, link, link->rank, status);
            break;
        }
        status = take_request(rendezvous, link, &request);
        if (status == BANYAN_OK && !is_seated(rendezvous, link))
            break; /* it was sent elsewhere, with all behind it */
    }
    if (rendezvous->refuses || rendezvous->failure.status != BANYAN_OK)
        count_informed(rendezvous, &reader);
    return status;
}

static banyan_status take_ready(struct rendezvous *rendezvous, const struct link *link,
                                const void *data, size_t bytes)
{
    bytes_reader reader = bytes_reader_of(data, bytes);
    reader.failed = rendezvous->phase != PREPARING;
    for (int rank; ready_read(&reader, rendezvous->world_size, &rank);) {
        struct rank_entry *entry = &rendezvous->entries[rank];
        reader.failed = entry->link != link || entry->ready;
        if (reader.failed)
            break;
        entry->ready = true;
        rendezvous->ready++;
    }
    if (reader.failed)
        return error_set(BANYAN_ERR_FORMAT, "%s is ready for a world that is not opened",
                         link->who);
    return BANYAN_OK;
}

/* True if another process claims a connected rank; the claim is refused. */
static bool is_of_another(const struct rank_entry *entry, const struct member *self)
{
    const struct member *here = &entry->request.self;
    return entry->link && (here->pid != self->pid || strcmp(here->node, self->node) != 0);
}

/* Take a failure report; the answer acknowledges it. */
static banyan_status rendezvous_take_failure(struct rendezvous *rendezvous, struct link *link,
                                             const void *data, size_t bytes)
{
    struct join_request request = {0};
    error_kept why;
    if (!failure_read(data, bytes, &request, &why) || request.rank != link->rank)
        return error_set(BANYAN_ERR_FORMAT, "%s sends a malformed report of a failure", link->who);
    banyan_status status = rendezvous->refuses ? error_again(rendezvous->refuses) : BANYAN_OK;
    count_refused(rendezvous, request.rank);
    if (status == BANYAN_OK)
        status = check_size(rendezvous, &request);
    /* Others open the world: the rank tries to, without an answer. */
    if (status == BANYAN_OK && rendezvous->phase == ALL_READY)
        return error_set(BANYAN_ERR_MISMATCH, "rank %d fails, and all ranks were ready",
                         request.rank);
    if (status == BANYAN_OK && !is_of_another(&rendezvous->entries[request.rank], &request.self)) {
        /* It informs the ranks that joined through it. */
        for (int rank = 0; rank < rendezvous->world_size; rank++)
            rendezvous->entries[rank].came |= rendezvous->entries[rank].cut_off == request.rank + 1;
        rendezvous_call_off_for(rendezvous, request.rank, &why);
        status = error_again(&rendezvous->failure);
    }
    if (status == BANYAN_OK)
        status = error_set(BANYAN_ERR_MISMATCH, "rank %d is another process", request.rank);
    pthread_mutex_lock(&rendezvous->reactor.lock);
    link_refuse_all(link, rendezvous->failure_number, status, banyan_last_error());
    pthread_mutex_unlock(&rendezvous->reactor.lock);
    return status;
}

void rendezvous_rank_left(struct rendezvous *rendezvous, int rank, bool died, int ended)
{
    struct rank_entry *entry = &rendezvous->entries[rank];
    rendezvous->joined--;
    rendezvous->ready -= entry->ready;
    entry->link = NULL;
    entry->ready = false;
    if (rendezvous->phase == ALL_READY || entry->gave_up)
        return;
    entry->came = entry->died = died;
    entry->cut_off = died ? 0 : ended + 1;
    entry->returns_until_ns = died ? 0 : deadline_after(RETURN_NS);
    if (!died)
        return;
    if (rendezvous->phase == PREPARING) {
        if (rendezvous->lost < 0) {
            rendezvous->lost = rank;
            rendezvous->lost_ns = deadline_after(REPORT_NS);
        }
        return;
    }
    rendezvous_send_death(rendezvous, rank);
}

static banyan_status take_left(struct rendezvous *rendezvous, const struct link *link,
                               const void *data, size_t bytes)
{
    bytes_reader reader = bytes_reader_of(data, bytes);
    struct member_loss loss;
    int ended = -1; /* the rank that died */
    while (loss_read(&reader, rendezvous->world_size, &loss)) {
        ended = loss.died && ended < 0 ? loss.rank : ended;
        reader.failed = loss.rank == link->rank;
    }
    if (reader.failed)
        return error_set(BANYAN_ERR_FORMAT, "%s reports malformed losses", link->who);
    reader = bytes_reader_of(data, bytes);
    while (loss_read(&reader, rendezvous->world_size, &loss))
        if (rendezvous->entries[loss.rank].link == link)
            rendezvous_rank_left(rendezvous, loss.rank, loss.died, ended);
    return BANYAN_OK;
}

static banyan_status rendezvous_take_frame(void *owner, struct link *link,
                                           const struct wire_frame *frame, void *payload, int fd)
{
    banyan_status status;
    if (fd >= 0)
        close(fd);
    size_t bytes = (size_t)frame->bytes;
    if (link->closed)
        status = BANYAN_OK; /* an earlier frame of it called the opening off */
    else if (frame->kind == WIRE_READY)
        status = take_ready(owner, link, payload, bytes);
    else if (frame->kind == WIRE_FAILED)
        status = rendezvous_take_failure(owner, link, payload, bytes);
    else if (frame->kind == WIRE_LEFT)
        status = take_left(owner, link, payload, bytes);
    else
        status = take_joins(owner, link, frame->kind == WIRE_JOIN ? payload : NULL,
                            frame->kind == WIRE_JOIN ? bytes : 0);
    free(payload);
    return status;
}

/* A rank whose link ends is gone; the ranks behind it may come again. */
static void leave_seat(void *owner, struct link *link, banyan_status status)
{
    struct rendezvous *rendezvous = owner;
    if (!tree_has_child(&rendezvous->children, link))
        return;
    if ((link->own_error != 0 || status == BANYAN_ERR_NO_MEMORY) &&
        rendezvous->phase != ALL_READY) {
        rendezvous_call_off_here(rendezvous, status);
        return;
    }
    tree_remove_child(&rendezvous->children, link);
    for (int rank = 0; rank < rendezvous->world_size; rank++) {
        if (rendezvous->entries[rank].link == link)
            rendezvous_rank_left(rendezvous, rank, rank == link->rank, link->rank);
    }
}

const struct reactor_ops rendezvous_ops = {
    .link = {.admit = admit_anybody, .ready = nothing_to_say, .frame = rendezvous_take_frame},
    .closed = leave_seat,
};
