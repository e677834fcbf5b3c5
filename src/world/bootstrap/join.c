#include "world/bootstrap/rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/log.h"

#define RETRY_NS (20 * NS_PER_MS)
#define LONGEST_RETRY_NS (500 * NS_PER_MS)
/* The rendezvous ends our wait itself, because it can name the missing ranks; so this rank waits a
 * little longer. */
#define GRACE_NS (NS_PER_S)
#define NEWS_BYTES 1000
/* Time between two looks at a guard. */
#define GUARD_NS (50 * NS_PER_MS)
/* Time for which a rank that cannot open the world tries to report this. */
#define REPORT_NS NS_PER_S

static banyan_status admit_nobody(void *owner, struct link *link)
{
    (void)owner;
    return error_set(BANYAN_ERR_REFUSED, "%s connects to a rank that has not joined", link->who);
}

static void ask_to_join(void *owner, struct link *link)
{
    struct joiner *joiner = owner;
    bytes_writer text = {0};
    join_write(&text, &joiner->request);
    if (joiner->failure)
        failure_write(&text, joiner->failure);
    struct wire_frame frame = {.kind = joiner->failure ? WIRE_FAILED : WIRE_JOIN,
                               .bytes = text.count};
    banyan_status status =
        text.failed ? error_no_memory(text.count, "a request to join") : BANYAN_OK;
    pthread_mutex_lock(&joiner->reactor.lock);
    if (status == BANYAN_OK)
        status = link_send(link, &frame, text.data, -1);
    pthread_mutex_unlock(&joiner->reactor.lock);
    bytes_writer_free(&text);
    if (status != BANYAN_OK)
        reactor_drop(&joiner->reactor, link, status);
}

static banyan_status bootstrap_join_take_answer(void *owner, struct link *link,
                                                const struct wire_frame *frame, void *payload,
                                                int fd)
{
    struct joiner *joiner = owner;
    banyan_status status = BANYAN_OK;
    if (fd >= 0)
        close(fd);
    if (frame->kind == WIRE_NEWS) {
        log_warn("rank %d waits to join: %.*s", joiner->request.rank,
                 (int)(frame->bytes < NEWS_BYTES ? frame->bytes : NEWS_BYTES),
                 payload ? (const char *)payload : "");
    } else if (frame->kind == WIRE_GO && joiner->has_table) {
        joiner->may_go = true;
    } else if (frame->kind != WIRE_TABLE || joiner->has_table) {
        status = error_set(BANYAN_ERR_FORMAT, "%s sends frame kind %u instead of a table",
                           link->who, frame->kind);
    } else {
        status =
            table_read(payload, (size_t)frame->bytes, joiner->request.world_size, joiner->table);
        joiner->has_table = status == BANYAN_OK;
        if (joiner->has_table)
            snprintf(joiner->host, sizeof joiner->host, "rank 0 (pid %d on node %s)",
                     joiner->table->members[0].pid, joiner->table->members[0].host);
    }
    free(payload);
    return status;
}

static void notice_gone(void *owner, struct link *link, banyan_status status)
{
    struct joiner *joiner = owner;
    if (link == joiner->link)
        joiner->link = NULL;
    joiner->gone = true;
    joiner->has_reason = link->refused;
    joiner->refused = link->refused || status == BANYAN_ERR_REFUSED || status == BANYAN_ERR_FORMAT;
    joiner->has_failed = link->own_error != 0 || status == BANYAN_ERR_NO_MEMORY;
    joiner->is_identified = link->stage == LINK_READY;
    joiner->closed_early = link->stage != LINK_READY && link->connect_error == 0 &&
                           (status == BANYAN_OK || status == BANYAN_ERR_SYSTEM);
    joiner->status =
        status != BANYAN_OK
            ? status
            : error_set(BANYAN_ERR_PEER_LOST, "%s ended before all %d ranks had joined",
                        joiner->host[0] ? joiner->host : link->who, joiner->request.world_size);
}

static const struct reactor_ops joiner_ops = {
    .link = {.admit = admit_nobody, .ready = ask_to_join, .frame = bootstrap_join_take_answer},
    .closed = notice_gone,
};

static void pause_for(uint64_t ns)
{
    struct timespec pause = {.tv_nsec = (long)ns};
    nanosleep(&pause, NULL);
}

static void pause_a_little(void)
{
    pause_for(RETRY_NS);
}

/* Return why this rank stops before its deadline. */
static banyan_status check_goes_on(const struct joiner *joiner)
{
    if (interrupt_requested())
        return error_set(BANYAN_ERR_ABORTED, "rank %d of %d was joining its world: " INTERRUPT_TEXT,
                         joiner->request.rank, joiner->request.world_size);
    return joiner->guard ? joiner->guard->check(joiner->guard->context) : BANYAN_OK;
}

static void join_step(struct joiner *joiner, uint64_t left_ns)
{
    uint64_t nap_ns = interrupt_left(left_ns);
    if (joiner->guard && nap_ns > GUARD_NS)
        nap_ns = GUARD_NS;
    reactor_step(&joiner->reactor, nap_ns);
}

/* Make one attempt at one address, until its connection ends. */
static banyan_status ask_once(struct joiner *joiner, const struct address *address,
                              uint64_t deadline_ns)
{
    char text[ADDRESS_TEXT_BYTES], who[ADDRESS_TEXT_BYTES];
    snprintf(who, sizeof who, "the rendezvous at %.120s", address_text(address, text));
    joiner->gone = joiner->refused = joiner->has_reason = joiner->closed_early = false;
    joiner->has_failed = joiner->is_identified = false;
    while (!(joiner->link =
                 reactor_connect(&joiner->reactor, address, who, joiner->request.rank, -1))) {
        int error = errno;
        char other[ADDRESS_TEXT_BYTES];
        joiner->refused = error == EACCES && address_is_taken(address, other);
        if (joiner->refused)
            return address_say_taken(address, other);
        errno = error;
        /* EAGAIN: the queue of a Unix listener is full. */
        if (errno != EAGAIN || deadline_left_ns(deadline_ns) == 0)
            return error_set_errno("rank %d cannot connect to %s", joiner->request.rank, who);
        pause_a_little();
    }
    while (!joiner->has_table && !joiner->gone) {
        uint64_t left_ns = deadline_left_ns(deadline_ns);
        RETURN_IF_FAILED(check_goes_on(joiner));
        if (left_ns == 0)
            return error_set(BANYAN_ERR_TIMEOUT,
                             "rank %d waited %.1f s for an answer from %s (to join a world of %d)",
                             joiner->request.rank, (double)joiner->request.timeout_ns / 1e9, who,
                             joiner->request.world_size);
        join_step(joiner, left_ns);
    }
    return joiner->has_table ? BANYAN_OK : joiner->status;
}

/* Ask, and ask again at increasing intervals: among thousands of unknown connections, the
 * rendezvous may have dropped this rank's. */
static banyan_status bootstrap_join_ask(struct joiner *joiner, const struct address *address,
                                        uint64_t deadline_ns)
{
    uint64_t pause_ns = RETRY_NS;
    for (;;) {
        banyan_status status = ask_once(joiner, address, deadline_ns);
        if (!joiner->gone || !joiner->closed_early || deadline_left_ns(deadline_ns) <= pause_ns)
            return status;
        pause_for(pause_ns);
        pause_ns = 2 * pause_ns < LONGEST_RETRY_NS ? 2 * pause_ns : LONGEST_RETRY_NS;
    }
}

/* True if another attempt may succeed: a rendezvous that did not answer may do so later. A refusal
 * is final. */
static bool may_try_again(const struct joiner *joiner, banyan_status status)
{
    if (joiner->refused || joiner->has_failed)
        return false;
    return status == BANYAN_ERR_SYSTEM || status == BANYAN_ERR_PEER_LOST;
}

static banyan_status ask_everywhere(struct joiner *joiner, const struct rendezvous_place *place,
                                    uint64_t deadline_ns)
{
    struct address name = address_unix(place->name);
    if (place->local)
        return bootstrap_join_ask(joiner, &name, deadline_ns);
    banyan_status status =
        error_set(BANYAN_ERR_UNSUPPORTED,
                  "the unique id was made on another node, where TCP could not be used");
    for (int i = 0; i < place->address_count; i++) {
        status = bootstrap_join_ask(joiner, &place->addresses[i], deadline_ns);
        joiner->via = &place->addresses[i];
        if (status == BANYAN_OK || status == BANYAN_ERR_TIMEOUT || status == BANYAN_ERR_ABORTED ||
            joiner->is_identified || joiner->has_failed)
            break;
    }
    return status;
}

/* A rank that joined from the rendezvous's own node has no visible address there: use the
 * rendezvous's. */
static void complete_addresses(const struct joiner *joiner)
{
    for (int rank = 0; rank < joiner->request.world_size; rank++) {
        struct member *member = &joiner->table->members[rank];
        if (member->tcp.bytes == 0 && member->port != 0)
            member->tcp = joiner->via ? address_with_port(joiner->via, member->port)
                                      : address_loopback(member->port);
    }
}

#define OTHER_BYTES (ADDRESS_TEXT_BYTES + 128)

/* Empty, or why rank 0 may be there and yet not be found. Returns `text`. */
static const char *other_text(const struct rendezvous_place *place, char text[OTHER_BYTES])
{
    char who[ADDRESS_TEXT_BYTES];
    text[0] = '\0';
    if (rendezvous_has_other_secret(place, who))
        snprintf(text, OTHER_BYTES,
                 "; %s waits for ranks of this job with another secret: BANYAN_SECRET, or the "
                 "world's secret, differs or is missing",
                 who);
    return text;
}

/* Log that this rank is searching: rank 0, which is the rendezvous, has not started yet or has
 * ended. */
static void log_search(const struct joiner *joiner, const struct rendezvous_place *place,
                       banyan_status status, uint64_t began_ns, uint64_t *log_ns)
{
    char other[OTHER_BYTES];
    uint64_t now = time_now_ns();
    if (status != BANYAN_ERR_PEER_LOST && now < *log_ns)
        return;
    *log_ns = now + log_wait_period_ns();
    log_warn("rank %d of %d has waited %.1f s for rank 0, which may come until the deadline: %s%s",
             joiner->request.rank, joiner->request.world_size, (double)(now - began_ns) / 1e9,
             banyan_last_error(), other_text(place, other));
}

static banyan_status open_joiner(struct joiner *joiner, const struct rendezvous_place *place,
                                 const struct join_request *request)
{
    joiner->request = *request;
    RETURN_IF_FAILED(
        reactor_open(&joiner->reactor, WIRE_PURPOSE_JOIN, -1, place->key, &joiner_ops, joiner));
    joiner->reactor.name = "a rank that joins";
    joiner->is_open = true;
    return BANYAN_OK;
}

banyan_status joiner_join(struct joiner *joiner, const struct rendezvous_place *place,
                          const struct join_request *request, struct member_table *table)
{
    int rank = request->rank, world_size = request->world_size;
    RETURN_IF_FAILED(open_joiner(joiner, place, request));
    joiner->table = table;
    uint64_t deadline_ns = deadline_after(request->timeout_ns);
    joiner->ends_ns = deadline_ns > UINT64_MAX - GRACE_NS ? UINT64_MAX : deadline_ns + GRACE_NS;
    uint64_t began_ns = time_now_ns(), log_ns = began_ns + log_wait_period_ns();
    banyan_status status;
    char other[OTHER_BYTES];
    for (;;) {
        joiner->request.timeout_ns = deadline_left_ns(deadline_ns);
        status = ask_everywhere(joiner, place, joiner->ends_ns);
        if (!place->may_start_late || !may_try_again(joiner, status) ||
            deadline_left_ns(deadline_ns) == 0)
            break;
        RETURN_IF_FAILED(check_goes_on(joiner));
        log_search(joiner, place, status, began_ns, &log_ns);
        pause_a_little();
    }
    if (place->may_start_late && may_try_again(joiner, status))
        status = error_set(BANYAN_ERR_TIMEOUT,
                           "rank %d of %d waited %.1f s for rank 0: %s%s; " TIMEOUT_HINT, rank,
                           world_size, (double)request->timeout_ns / 1e9, banyan_last_error(),
                           other_text(place, other));
    if (!place->may_start_late)
        joiner->host[0] = '\0';
    if (status == BANYAN_OK)
        complete_addresses(joiner);
    return status;
}

banyan_status joiner_wait_for_all(struct joiner *joiner)
{
    struct wire_frame ready = {.kind = WIRE_READY};
    pthread_mutex_lock(&joiner->reactor.lock);
    banyan_status status = BANYAN_OK;
    if (joiner->link) {
        status = link_send(joiner->link, &ready, NULL, -1);
        reactor_update(&joiner->reactor, joiner->link);
        joiner->is_ready = status == BANYAN_OK;
    }
    pthread_mutex_unlock(&joiner->reactor.lock);
    while (status == BANYAN_OK && !joiner->may_go) {
        uint64_t left_ns = deadline_left_ns(joiner->ends_ns);
        if (joiner->gone)
            status = joiner->status;
        else if ((status = check_goes_on(joiner)) != BANYAN_OK)
            break;
        else if (left_ns == 0)
            status = error_set(BANYAN_ERR_TIMEOUT,
                               "rank %d waited for the rendezvous to say that all %d ranks are "
                               "ready; " TIMEOUT_HINT,
                               joiner->request.rank, joiner->request.world_size);
        else
            join_step(joiner, left_ns);
    }
    return status;
}

void joiner_close(struct joiner *joiner)
{
    if (joiner->is_open)
        reactor_close(&joiner->reactor);
    joiner->is_open = false;
}

bool join_report(const struct rendezvous_place *place, const struct join_request *request,
                 const error_kept *why)
{
    struct joiner joiner = {.failure = why};
    uint64_t deadline_ns = deadline_after(REPORT_NS);
    if (open_joiner(&joiner, place, request) != BANYAN_OK)
        return false;
    do {
        (void)ask_everywhere(&joiner, place, deadline_ns);
        if (joiner.has_reason || !place->may_start_late)
            break;
        pause_a_little();
    } while (deadline_left_ns(deadline_ns) > 0);
    joiner_close(&joiner);
    return joiner.has_reason;
}
