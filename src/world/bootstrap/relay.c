#include "world/bootstrap/relay.h"

#include <stdio.h>

#include "core/deadline.h"
#include "core/log.h"
#include "world/bootstrap/tree.h"
#include "world/net/descriptors.h"

#define FIRST_WINDOW_NS NS_PER_MS
#define LONGEST_WINDOW_NS (320 * NS_PER_MS)

banyan_status relay_open(struct joiner *joiner)
{
    const struct rendezvous_place *place = joiner->place;
    struct relay *relay = &joiner->relay;
    int rank = joiner->request.rank, fd;
    bool hosts = rank == 0 && place->may_start_late;
    relay->window_ns = FIRST_WINDOW_NS;
    if (!place->has_tree || hosts || joiner->failure || joiner->request.world_size <= 2)
        return BANYAN_OK;
    int most = descriptors_for_relay(&joiner->request.self.descriptors);
    struct address name = tree_address(place, rank);
    relay->of =
        most > 0 ? calloc((size_t)joiner->request.world_size, sizeof(struct relayed *)) : NULL;
    if (!relay->of || address_listen(&name, &fd) != BANYAN_OK)
        return BANYAN_OK;
    RETURN_IF_FAILED(reactor_listen(&joiner->reactor, fd, false));
    relay->most = most < RELAY_CHILDREN ? most : RELAY_CHILDREN;
    joiner->request.relays = true;
    return BANYAN_OK;
}

bool relay_lead(struct joiner *joiner)
{
    struct address name = tree_address(joiner->place, TREE_LEADER);
    struct relay *relay = &joiner->relay;
    int fd, tcp_fd;
    if (relay->most == 0 || address_listen(&name, &fd) != BANYAN_OK)
        return false;
    banyan_status status = reactor_listen(&joiner->reactor, fd, false);
    if (status == BANYAN_OK && address_listen_tcp(false, 0, &tcp_fd, &relay->port) == BANYAN_OK)
        status = reactor_listen(&joiner->reactor, tcp_fd, true);
    joiner->request.relay_port = relay->port;
    relay->failed = error_keep(status);
    relay->leads = status == BANYAN_OK;
    return relay->leads;
}

void relay_close(struct joiner *joiner)
{
    struct relay *relay = &joiner->relay;
    for (int rank = 0; relay->of && rank < joiner->request.world_size; rank++)
        free(relay->of[rank]);
    free(relay->of);
    array_free(&relay->children);
    *relay = (struct relay){0};
}

static bool is_inside(const struct joiner *joiner, int rank)
{
    int own = joiner->request.rank;
    return rank > own && rank < own + tree_span(own, joiner->request.world_size);
}

static void relay_forget(struct joiner *joiner, int rank)
{
    struct relay *relay = &joiner->relay;
    struct relayed *one = relay->of[rank];
    relay->count--;
    relay->inside -= is_inside(joiner, rank);
    relay->unsent -= !one->is_sent;
    relay->ready -= one->is_ready;
    relay->ready_unsent -= one->is_ready && !one->is_ready_sent;
    relay->of[rank] = NULL;
    free(one);
}

static void mark_all(struct joiner *joiner, bool is_sent)
{
    struct relay *relay = &joiner->relay;
    for (int rank = 0; relay->count > 0 && rank < joiner->request.world_size; rank++) {
        if (relay->of[rank])
            relay->of[rank]->is_sent = is_sent;
    }
    relay->unsent = is_sent ? 0 : relay->count;
    relay->flush_ns = 0;
}

/* Send a frame to the rank or rendezvous at which this one joins. */
static banyan_status send_on(struct joiner *joiner, struct link *link, uint32_t kind,
                             const bytes_writer *text)
{
    banyan_status status = reactor_send(&joiner->reactor, link, kind, text, "ranks that join");
    if (status == BANYAN_OK && kind == WIRE_JOIN)
        mark_all(joiner, true);
    return status;
}

static void relay_up(struct joiner *joiner, uint32_t kind, const bytes_writer *text)
{
    banyan_status status = send_on(joiner, joiner->link, kind, text);
    if (status != BANYAN_OK)
        reactor_drop(&joiner->reactor, joiner->link, status);
}

static bool can_send_up(const struct joiner *joiner)
{
    return joiner->link && joiner->link->stage == LINK_READY && !joiner->link->closed;
}

static void write_request(bytes_writer *text, const struct join_request *request)
{
    bytes_writer one = {0};
    join_write(&one, request);
    bytes_write_blob(text, one.data, one.count);
    text->failed |= one.failed;
    bytes_writer_free(&one);
}

static void write_unsent(struct joiner *joiner, bytes_writer *text)
{
    struct relay *relay = &joiner->relay;
    for (int rank = 0; relay->unsent > 0 && rank < joiner->request.world_size; rank++) {
        struct relayed *one = relay->of[rank];
        if (!one || one->is_sent)
            continue;
        one->request.timeout_ns = deadline_left_ns(one->gives_up_ns);
        write_request(text, &one->request);
    }
}

banyan_status relay_introduce(struct joiner *joiner, struct link *link)
{
    bytes_writer text = {0};
    write_request(&text, &joiner->request);
    mark_all(joiner, false);
    write_unsent(joiner, &text);
    banyan_status status = send_on(joiner, link, WIRE_JOIN, &text);
    bytes_writer_free(&text);
    return status;
}

static void send_unsent(struct joiner *joiner)
{
    bytes_writer text = {0};
    write_unsent(joiner, &text);
    relay_up(joiner, WIRE_JOIN, &text);
    bytes_writer_free(&text);
}

static void send_ready(struct joiner *joiner)
{
    struct relay *relay = &joiner->relay;
    bytes_writer text = {0};
    if (!joiner->is_ready)
        ready_write(&text, joiner->request.rank);
    for (int rank = 0; relay->ready_unsent > 0 && rank < joiner->request.world_size; rank++) {
        struct relayed *one = relay->of[rank];
        if (!one || !one->is_ready || one->is_ready_sent)
            continue;
        ready_write(&text, rank);
        one->is_ready_sent = true;
        relay->ready_unsent--;
    }
    joiner->is_ready = true;
    relay_up(joiner, WIRE_READY, &text);
    bytes_writer_free(&text);
}

uint64_t relay_flush(struct joiner *joiner)
{
    struct relay *relay = &joiner->relay;
    bool joins = relay->unsent > 0;
    bool readies = joiner->is_prepared && (relay->ready_unsent > 0 || !joiner->is_ready);
    if (!can_send_up(joiner) || (!joins && !readies))
        return UINT64_MAX;
    int span = tree_span(joiner->request.rank, joiner->request.world_size);
    bool complete = joins ? relay->inside == span - 1 : relay->ready == relay->count;
    if (!complete) {
        if (relay->flush_ns == 0) {
            relay->flush_ns = deadline_after(relay->window_ns);
            if (relay->window_ns < LONGEST_WINDOW_NS)
                relay->window_ns *= 2;
        }
        uint64_t left_ns = deadline_left_ns(relay->flush_ns);
        if (left_ns > 0)
            return left_ns;
    }
    relay->flush_ns = 0;
    if (joins)
        send_unsent(joiner);
    if (readies && can_send_up(joiner))
        send_ready(joiner);
    return can_send_up(joiner) ? UINT64_MAX : 0;
}

static void redirect(struct joiner *joiner, struct link *link, int rank,
                     const struct address *address)
{
    pthread_mutex_lock(&joiner->reactor.lock);
    tree_redirect(link, rank, address);
    reactor_update(&joiner->reactor, link);
    pthread_mutex_unlock(&joiner->reactor.lock);
}

/* True if the rendezvous has to judge the request, since another process claims its rank, or the
 * request cannot be right. */
static bool is_disputed(const struct joiner *joiner, const struct join_request *request)
{
    int rank = request->rank;
    if (rank < 0 || rank >= joiner->request.world_size || rank == joiner->request.rank ||
        request->world_size != joiner->request.world_size || joiner->has_table)
        return true;
    const struct relayed *one = joiner->relay.of[rank];
    return one && (one->request.self.pid != request->self.pid ||
                   strcmp(one->request.self.name, request->self.name) != 0);
}

static banyan_status relay_keep(struct joiner *joiner, struct link *link,
                                const struct join_request *request)
{
    struct relay *relay = &joiner->relay;
    if (relay->of[request->rank])
        relay_forget(joiner, request->rank);
    struct relayed *one = malloc(sizeof *one);
    if (!one)
        return error_no_memory(sizeof *one, "a rank that joins");
    *one = (struct relayed){
        .link = link, .request = *request, .gives_up_ns = deadline_after(request->timeout_ns)};
    tree_complete_address(link, &one->request.self);
    relay->of[request->rank] = one;
    relay->count++;
    relay->inside += is_inside(joiner, request->rank);
    relay->unsent++;
    return BANYAN_OK;
}

static banyan_status relay_take_joins(struct joiner *joiner, struct link *link, const void *data,
                                      size_t bytes)
{
    struct relay *relay = &joiner->relay;
    bytes_reader reader = bytes_reader_of(data, bytes);
    while (reader.left > 0) {
        struct join_request request = {0};
        struct address address;
        size_t length;
        const void *blob = bytes_read_blob(&reader, &length);
        bool known = tree_has_child(&relay->children, link);
        if (!blob || !join_read(blob, length, &request) || (!known && request.rank != link->rank))
            return error_set(BANYAN_ERR_FORMAT, "%s sends a malformed request to join", link->who);
        if (is_disputed(joiner, &request)) {
            redirect(joiner, link, request.rank, NULL);
            if (!known)
                return BANYAN_OK;
            continue;
        }
        if (!known && (int)relay->children.count >= relay->most) {
            bool found =
                tree_choose_child(&relay->children, joiner->place, link->authenticated, &address);
            redirect(joiner, link, request.rank, found ? &address : NULL);
            return BANYAN_OK;
        }
        if (!known)
            RETURN_IF_FAILED(tree_add_child(&relay->children, link, &request));
        RETURN_IF_FAILED(relay_keep(joiner, link, &request));
        log_debug("rank %d of %d (pid %d) joins through rank %d", request.rank, request.world_size,
                  request.self.pid, joiner->request.rank);
    }
    return BANYAN_OK;
}

static struct relayed *find_relayed(const struct joiner *joiner, uint64_t rank,
                                    const struct link *link)
{
    const struct relay *relay = &joiner->relay;
    struct relayed *one =
        relay->of && rank < (uint64_t)joiner->request.world_size ? relay->of[rank] : NULL;
    return one && (!link || one->link == link) ? one : NULL;
}

static banyan_status relay_take_ready(struct joiner *joiner, const struct link *link,
                                      const void *data, size_t bytes)
{
    bytes_reader reader = bytes_reader_of(data, bytes);
    for (int rank; ready_read(&reader, joiner->request.world_size, &rank);) {
        struct relayed *one = find_relayed(joiner, (uint64_t)rank, link);
        reader.failed = !one || one->is_ready;
        if (reader.failed)
            break;
        one->is_ready = true;
        joiner->relay.ready++;
        joiner->relay.ready_unsent++;
    }
    if (reader.failed)
        return error_set(BANYAN_ERR_FORMAT, "%s is ready for a world that is not opened",
                         link->who);
    return BANYAN_OK;
}

/* Report losses, after the entries of these ranks. */
static void relay_report_left(struct joiner *joiner, const bytes_writer *text)
{
    if (text->count > 0 && can_send_up(joiner))
        relay_up(joiner, WIRE_LEFT, text);
}

static void announce(struct joiner *joiner)
{
    if (joiner->relay.unsent > 0 && can_send_up(joiner))
        send_unsent(joiner);
}

static banyan_status relay_take_left(struct joiner *joiner, const struct link *link,
                                     const void *data, size_t bytes)
{
    bytes_reader reader = bytes_reader_of(data, bytes);
    bytes_writer text = {0};
    announce(joiner);
    for (struct member_loss loss; loss_read(&reader, joiner->request.world_size, &loss);) {
        if (!find_relayed(joiner, (uint64_t)loss.rank, link))
            continue; /* it has come again on another way */
        loss_write(&text, &loss);
        relay_forget(joiner, loss.rank);
    }
    relay_report_left(joiner, &text);
    bytes_writer_free(&text);
    return reader.failed ? error_set(BANYAN_ERR_FORMAT, "%s reports malformed losses", link->who)
                         : BANYAN_OK;
}

banyan_status relay_take(struct joiner *joiner, struct link *link, const struct wire_frame *frame,
                         const void *payload)
{
    size_t bytes = (size_t)frame->bytes;
    switch (frame->kind) {
    case WIRE_JOIN:
        return relay_take_joins(joiner, link, payload, bytes);
    case WIRE_READY:
        return relay_take_ready(joiner, link, payload, bytes);
    case WIRE_LEFT:
        return relay_take_left(joiner, link, payload, bytes);
    default:
        return error_set(BANYAN_ERR_FORMAT, "%s sends frame kind %u to a rank that joins",
                         link->who, frame->kind);
    }
}

/* Report that the ranks behind a link are gone. `died`: the one at its other end has. */
static void report_gone(struct joiner *joiner, const struct link *link, bool died)
{
    bytes_writer text = {0};
    announce(joiner);
    for (int rank = 0; rank < joiner->request.world_size; rank++) {
        if (!find_relayed(joiner, (uint64_t)rank, link))
            continue;
        loss_write(&text, &(struct member_loss){rank, died && rank == link->rank});
        relay_forget(joiner, rank);
    }
    relay_report_left(joiner, &text);
    bytes_writer_free(&text);
}

/* True if the entry of the rank at the other end was sent on. */
static bool is_announced(const struct joiner *joiner, const struct link *link)
{
    const struct relayed *one = find_relayed(joiner, (uint64_t)link->rank, link);
    return one && one->is_sent;
}

/* True if the rank at the other end is known to be ready, and all others may be. */
static bool may_be_open(const struct joiner *joiner, const struct link *link)
{
    const struct relayed *one = find_relayed(joiner, (uint64_t)link->rank, link);
    return one && one->is_ready_sent;
}

void relay_child_gone(struct joiner *joiner, struct link *link, banyan_status status)
{
    struct relay *relay = &joiner->relay;
    if (!tree_has_child(&relay->children, link))
        return;
    tree_remove_child(&relay->children, link);
    if (link->own_error == 0 && status != BANYAN_ERR_NO_MEMORY) {
        report_gone(joiner, link, true);
        return;
    }
    if (!is_announced(joiner, link)) { /* it connects again */
        for (int rank = 0; rank < joiner->request.world_size; rank++)
            if (find_relayed(joiner, (uint64_t)rank, link))
                relay_forget(joiner, rank);
        return;
    }
    relay->failed = error_keep(status);
    error_kept why = tree_name_failure(joiner->request.rank, &relay->failed);
    if (may_be_open(joiner, link))
        link_refuse_in_doubt(link, why.status, why.message);
    else
        link_refuse_all(link, 0, why.status, why.message);
    for (int rank = 0; rank < joiner->request.world_size; rank++)
        if (find_relayed(joiner, (uint64_t)rank, link))
            relay->of[rank]->link = NULL; /* it is freed */
}

/* Send a frame to a rank behind this one. With the lock held. */
static void relay_down(struct joiner *joiner, struct link *link, const struct wire_frame *frame,
                       const void *payload)
{
    if (link->closed)
        return;
    banyan_status status = link_send(link, frame, payload, -1);
    if (status != BANYAN_OK) {
        joiner->relay.failed = error_keep(status);
        shutdown(link->fd, SHUT_RDWR);
    }
    reactor_update(&joiner->reactor, link);
}

void relay_route(struct joiner *joiner, const struct wire_frame *frame, const void *payload)
{
    struct relayed *one = find_relayed(joiner, frame->tag, NULL);
    char text[1024];
    if (!one || !one->link)
        return; /* it has left meanwhile */
    struct link *link = one->link;
    bool ends = frame->kind == WIRE_DISMISS || frame->kind == WIRE_REDIRECT;
    pthread_mutex_lock(&joiner->reactor.lock);
    if (frame->kind == WIRE_DISMISS && link->rank == (int)frame->tag) {
        snprintf(text, sizeof text, "%.*s", (int)(frame->bytes < 1000 ? frame->bytes : 1000),
                 payload ? (const char *)payload : "");
        link_refuse(link, (banyan_status)frame->flags, text);
        reactor_update(&joiner->reactor, link);
    } else {
        relay_down(joiner, link, frame, payload);
    }
    pthread_mutex_unlock(&joiner->reactor.lock);
    if (ends)
        relay_forget(joiner, (int)frame->tag);
}

void relay_hand_down(struct joiner *joiner, const struct wire_frame *frame, const void *payload)
{
    struct tree_children *children = &joiner->relay.children;
    pthread_mutex_lock(&joiner->reactor.lock);
    for (size_t i = 0; i < children->count; i++)
        relay_down(joiner, children->data[i].link, frame, payload);
    pthread_mutex_unlock(&joiner->reactor.lock);
    for (size_t i = children->count; i-- > 0;) {
        struct link *link = children->data[i].link;
        if (link->own_error == 0)
            continue;
        tree_remove_child(children, link); /* it has to ask elsewhere */
        report_gone(joiner, link, false);
    }
}

void relay_hand_down_table(struct joiner *joiner)
{
    bytes_writer text = {0};
    struct relay *relay = &joiner->relay;
    reactor_stop_listening(&joiner->reactor);
    if (relay->children.count == 0)
        return;
    table_write_again(&text, joiner->table, joiner->request.world_size);
    struct wire_frame frame = {
        .kind = WIRE_TABLE, .tag = (uint64_t)joiner->request.rank + 1, .bytes = text.count};
    if (text.failed)
        relay->failed = error_keep(error_no_memory(text.count, "the table of ranks to hand out"));
    else
        relay_hand_down(joiner, &frame, text.data);
    bytes_writer_free(&text);
}

void relay_refuse_all(struct joiner *joiner, uint64_t failure, banyan_status status,
                      const char *text)
{
    struct wire_frame frame = {
        .kind = WIRE_REFUSED, .context = failure, .tag = (uint64_t)status, .bytes = strlen(text)};
    pthread_mutex_lock(&joiner->reactor.lock);
    for (size_t i = 0; i < joiner->relay.children.count; i++) {
        struct link *link = joiner->relay.children.data[i].link;
        if (!is_announced(joiner, link))
            continue;
        bool in_doubt = failure == 0 && may_be_open(joiner, link);
        frame.flags = in_doubt ? WIRE_FOR_ALL | WIRE_IN_DOUBT : WIRE_FOR_ALL;
        relay_down(joiner, link, &frame, text);
    }
    pthread_mutex_unlock(&joiner->reactor.lock);
}
