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
#include "world/bootstrap/relay.h"
#include "world/bootstrap/tree.h"

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
/* Time for which a rank waits for the nearest rank of its node at which it may join, if it is known
 * to come. */
#define PATIENCE_NS (500 * NS_PER_MS)
/* Time for another rank to answer. */
#define RELAY_ANSWER_NS (5 * NS_PER_S)
#define ELECTIONS 5

static banyan_status admit_behind(void *owner, struct link *link)
{
    (void)owner;
    link->rank = link->hello.from;
    return BANYAN_OK;
}

static banyan_status send_failure(struct joiner *joiner, struct link *link)
{
    bytes_writer text = {0};
    join_write(&text, &joiner->request);
    failure_write(&text, joiner->failure);
    banyan_status status =
        reactor_send(&joiner->reactor, link, WIRE_FAILED, &text, "a report of a failure");
    bytes_writer_free(&text);
    return status;
}

static void ask_to_join(void *owner, struct link *link)
{
    struct joiner *joiner = owner;
    if (!link->connects)
        return; /* its request follows */
    banyan_status status =
        joiner->failure ? send_failure(joiner, link) : relay_introduce(joiner, link);
    if (status != BANYAN_OK)
        reactor_drop(&joiner->reactor, link, status);
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

/* Take the table. A frame that came through another rank has 1 + its number in the tag. */
static banyan_status take_table(struct joiner *joiner, const struct wire_frame *frame,
                                const void *payload)
{
    int world_size = joiner->request.world_size;
    RETURN_IF_FAILED(table_read(payload, (size_t)frame->bytes, world_size, joiner->table));
    joiner->has_table = true;
    joiner->through = frame->tag <= (uint64_t)world_size ? (int)frame->tag - 1 : -1;
    int host = joiner->through < 0 ? 0 : joiner->through;
    const struct member *member = &joiner->table->members[host];
    snprintf(joiner->host, sizeof joiner->host, "rank %d (pid %d on node %s)", host, member->pid,
             member->host);
    complete_addresses(joiner);
    relay_hand_down_table(joiner);
    return BANYAN_OK;
}

static void log_news(const struct joiner *joiner, const struct wire_frame *frame,
                     const char *payload)
{
    log_warn("rank %d waits to join: %.*s", joiner->request.rank,
             (int)(frame->bytes < NEWS_BYTES ? frame->bytes : NEWS_BYTES), payload ? payload : "");
}

/* Handle a frame of the rendezvous, or of the rank at which this one joins. */
static banyan_status take_answer(struct joiner *joiner, const struct link *link,
                                 const struct wire_frame *frame, const void *payload)
{
    bool is_own = frame->tag == (uint64_t)joiner->request.rank;
    if (frame->kind == WIRE_NEWS && (is_own || frame->tag == WIRE_ALL)) {
        log_news(joiner, frame, payload);
        if (frame->tag == WIRE_ALL)
            relay_hand_down(joiner, frame, payload);
    } else if (frame->kind == WIRE_REDIRECT && is_own && !joiner->has_table) {
        if (!tree_read_redirect(payload, (size_t)frame->bytes, &joiner->next))
            return error_set(BANYAN_ERR_FORMAT, "%s sends a malformed address", link->who);
        joiner->redirected = true;
    } else if (frame->kind == WIRE_NEWS || frame->kind == WIRE_REDIRECT ||
               frame->kind == WIRE_DISMISS) {
        relay_route(joiner, frame, payload);
    } else if (frame->kind == WIRE_GO && joiner->has_table) {
        joiner->may_go = true;
    } else if (frame->kind == WIRE_TABLE && !joiner->has_table) {
        return take_table(joiner, frame, payload);
    } else {
        return error_set(BANYAN_ERR_FORMAT, "%s sends frame kind %u instead of a table", link->who,
                         frame->kind);
    }
    return BANYAN_OK;
}

static banyan_status bootstrap_join_take_frame(void *owner, struct link *link,
                                               const struct wire_frame *frame, void *payload,
                                               int fd)
{
    struct joiner *joiner = owner;
    if (fd >= 0)
        close(fd);
    banyan_status status = link->connects ? take_answer(joiner, link, frame, payload)
                                          : relay_take(joiner, link, frame, payload);
    free(payload);
    return status;
}

/* The number of the last failure of which this thread's rank was informed. The rendezvous sends it
 * once, and not again when the rank tries again. */
static _Thread_local uint64_t last_failure;

static void notice_gone(void *owner, struct link *link, banyan_status status)
{
    struct joiner *joiner = owner;
    if (!link->connects) {
        relay_child_gone(joiner, link, status);
        return;
    }
    if (link->refused_all && link->failure != 0)
        last_failure = link->failure;
    if (link->refused_all)
        relay_refuse_all(joiner, link->failure, status, banyan_last_error());
    if (link == joiner->link)
        joiner->link = NULL;
    joiner->gone = true;
    joiner->absent = link->connect_error != 0;
    joiner->has_doubt = link->refused && link->in_doubt;
    joiner->has_reason = link->refused && !joiner->has_doubt;
    joiner->refused = !joiner->has_doubt && (link->refused || status == BANYAN_ERR_REFUSED ||
                                             status == BANYAN_ERR_FORMAT);
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
    .link = {.admit = admit_behind, .ready = ask_to_join, .frame = bootstrap_join_take_frame},
    .closed = notice_gone,
};

/* Wait, and serve the ranks behind this one. */
static void pause_for(struct joiner *joiner, uint64_t ns)
{
    uint64_t left_ns, ends_ns = deadline_after(ns);
    while ((left_ns = deadline_left_ns(ends_ns)) > 0 && !interrupt_requested())
        reactor_step(&joiner->reactor, left_ns);
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
    char text[ADDRESS_TEXT_BYTES], who[ADDRESS_TEXT_BYTES], name[48] = "the rendezvous";
    if (joiner->through >= 0)
        snprintf(name, sizeof name, "rank %d, through which it joins,", joiner->through);
    else if (joiner->to_relay)
        snprintf(name, sizeof name, "the rank through which it joins,");
    snprintf(who, sizeof who, "%s at %.100s", name, address_text(address, text));
    joiner->gone = joiner->refused = joiner->has_reason = joiner->closed_early = false;
    joiner->has_doubt = false;
    joiner->has_failed = joiner->is_identified = joiner->absent = joiner->redirected = false;
    joiner->reactor.answer_ns = joiner->to_relay ? RELAY_ANSWER_NS : 0;
    while (!(joiner->link =
                 reactor_connect(&joiner->reactor, address, who, joiner->request.rank, -1))) {
        int error = errno;
        char other[ADDRESS_TEXT_BYTES];
        joiner->refused = !joiner->to_relay && error == EACCES && address_is_taken(address, other);
        if (joiner->refused)
            return address_say_taken(address, other);
        joiner->absent = error != EAGAIN;
        errno = error;
        /* EAGAIN: the queue of a Unix listener is full. */
        if (errno != EAGAIN || deadline_left_ns(deadline_ns) == 0)
            return error_set_errno("rank %d cannot connect to %s", joiner->request.rank, who);
        pause_for(joiner, RETRY_NS);
    }
    while (!joiner->has_table && !joiner->gone && !joiner->redirected) {
        uint64_t left_ns = deadline_left_ns(deadline_ns);
        RETURN_IF_FAILED(check_goes_on(joiner));
        if (left_ns == 0)
            return error_set(BANYAN_ERR_TIMEOUT,
                             "rank %d waited %.1f s for an answer from %s (to join a world of %d)",
                             joiner->request.rank, (double)joiner->request.limit_ns / 1e9, who,
                             joiner->request.world_size);
        uint64_t due_ns = relay_flush(joiner);
        RETURN_IF_FAILED(error_again(&joiner->relay.failed));
        join_step(joiner, left_ns < due_ns ? left_ns : due_ns);
    }
    if (joiner->redirected && joiner->link)
        reactor_drop(&joiner->reactor, joiner->link,
                     error_set(BANYAN_ERR_PEER_LOST, "%s sends rank %d to another rank", who,
                               joiner->request.rank));
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
        pause_for(joiner, pause_ns);
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

static banyan_status ask_rendezvous(struct joiner *joiner, const struct rendezvous_place *place,
                                    uint64_t deadline_ns)
{
    joiner->to_relay = false;
    joiner->through = -1;
    struct address name = address_unix(place->name);
    if (place->local)
        return bootstrap_join_ask(joiner, &name, deadline_ns);
    banyan_status status =
        error_set(BANYAN_ERR_UNSUPPORTED,
                  "the unique id was made on another node, where TCP could not be used");
    for (int i = 0; i < place->address_count; i++) {
        joiner->via = &place->addresses[i];
        status = bootstrap_join_ask(joiner, joiner->via, deadline_ns);
        if (status == BANYAN_OK || status == BANYAN_ERR_TIMEOUT || status == BANYAN_ERR_ABORTED ||
            joiner->is_identified || joiner->has_failed)
            break;
    }
    return status;
}

/* Ask another rank. False when it is not there. */
static bool ask_rank(struct joiner *joiner, const struct address *address, int rank,
                     uint64_t deadline_ns, banyan_status *status)
{
    joiner->to_relay = true;
    joiner->through = rank;
    *status = ask_once(joiner, address, deadline_ns);
    joiner->to_root = joiner->closed_early; /* it does not answer */
    joiner->astray = joiner->gone && !joiner->refused && !joiner->has_failed &&
                     !joiner->redirected && !joiner->absent;
    if (joiner->astray && rank >= 0)
        joiner->request.lost = rank + 1;
    return !joiner->absent;
}

/* Ask the leader of this node, or become it. */
static bool ask_leader(struct joiner *joiner, uint64_t deadline_ns, banyan_status *status)
{
    struct address name = tree_address(joiner->place, TREE_LEADER);
    for (int i = 0; i < ELECTIONS && !joiner->relay.leads; i++) {
        if (ask_rank(joiner, &name, -1, deadline_ns, status))
            return true;
        if (relay_lead(joiner) || joiner->relay.failed.status != BANYAN_OK)
            return false;
        pause_for(joiner, RETRY_NS / 4); /* another rank becomes it */
    }
    return false;
}

/* Ask ranks of this node, the nearest first. False when none is there. */
static bool ask_near(struct joiner *joiner, uint64_t deadline_ns, banyan_status *status)
{
    const struct rendezvous_place *place = joiner->place;
    int rank = joiner->request.rank;
    if (!place->has_tree || joiner->request.world_size <= 2 || joiner->relay.leads)
        return false;
    while (rank > 0) {
        rank = tree_parent(rank);
        if (rank == 0 && place->may_start_late && place->local)
            return false; /* it is the rendezvous */
        struct address name = tree_address(place, rank);
        if (ask_rank(joiner, &name, rank, deadline_ns, status))
            return true;
        if (place->all_here && time_now_ns() < joiner->patient_until_ns) {
            joiner->astray = true;
            return true;
        }
    }
    return !place->local && ask_leader(joiner, deadline_ns, status);
}

/* Ask near ranks, else the rendezvous, and those to which they send this rank. `joiner->astray`:
 * the way ended, and another one may be there. */
static banyan_status ask_tree(struct joiner *joiner, const struct rendezvous_place *place,
                              uint64_t deadline_ns)
{
    banyan_status status;
    bool to_root = joiner->to_root;
    joiner->astray = joiner->redirected = joiner->to_root = false;
    if (to_root || !ask_near(joiner, deadline_ns, &status))
        status = joiner->relay.failed.status == BANYAN_OK
                     ? ask_rendezvous(joiner, place, deadline_ns)
                     : error_again(&joiner->relay.failed);
    while (joiner->redirected && joiner->next.bytes > 0) {
        struct address next = joiner->next;
        joiner->astray = !ask_rank(joiner, &next, -1, deadline_ns, &status) || joiner->astray;
    }
    if (joiner->redirected)
        joiner->astray = joiner->to_root = true;
    return status;
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
    joiner->request.failure = last_failure;
    joiner->request.limit_ns = request->timeout_ns;
    joiner->place = place;
    joiner->through = -1;
    RETURN_IF_FAILED(
        reactor_open(&joiner->reactor, WIRE_PURPOSE_JOIN, -1, place->key, &joiner_ops, joiner));
    joiner->reactor.name = "a rank that joins";
    joiner->is_open = true;
    return relay_open(joiner);
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
    uint64_t patience_ns = request->timeout_ns / 4;
    joiner->patient_until_ns = began_ns + (patience_ns < PATIENCE_NS ? patience_ns : PATIENCE_NS);
    banyan_status status;
    char other[OTHER_BYTES];
    for (;;) {
        joiner->request.timeout_ns = deadline_left_ns(deadline_ns);
        status = ask_tree(joiner, place, joiner->ends_ns);
        if (status == BANYAN_OK)
            break;
        if (joiner->astray && deadline_left_ns(joiner->ends_ns) > 0) {
            RETURN_IF_FAILED(check_goes_on(joiner));
            pause_for(joiner, RETRY_NS / 4);
            continue;
        }
        if (!place->may_start_late || !may_try_again(joiner, status) ||
            deadline_left_ns(deadline_ns) == 0)
            break;
        RETURN_IF_FAILED(check_goes_on(joiner));
        log_search(joiner, place, status, began_ns, &log_ns);
        pause_for(joiner, RETRY_NS);
    }
    if (status != BANYAN_OK && joiner->astray)
        status = error_set(BANYAN_ERR_TIMEOUT, "rank %d of %d waited %.1f s to join: %s", rank,
                           world_size, (double)request->timeout_ns / 1e9, banyan_last_error());
    else if (status != BANYAN_OK && place->may_start_late && may_try_again(joiner, status))
        status = error_set(BANYAN_ERR_TIMEOUT,
                           "rank %d of %d waited %.1f s for rank 0: %s%s; " TIMEOUT_HINT, rank,
                           world_size, (double)request->timeout_ns / 1e9, banyan_last_error(),
                           other_text(place, other));
    if (!place->may_start_late && joiner->through < 0)
        joiner->host[0] = '\0';
    return status;
}

/* The way to the rendezvous has ended. A rank that died is named, since the rendezvous may not
 * know. */
static banyan_status lose_way(struct joiner *joiner)
{
    joiner->lost_relay = joiner->has_doubt || (joiner->to_relay && joiner->through >= 0 &&
                                               !joiner->refused && !joiner->has_failed);
    return joiner->lost_relay && !joiner->has_doubt
               ? error_set(BANYAN_ERR_PEER_LOST, "%s died while the world was opened", joiner->host)
               : joiner->status;
}

banyan_status joiner_wait_for_all(struct joiner *joiner)
{
    struct wire_frame go = {.kind = WIRE_GO};
    banyan_status status = BANYAN_OK;
    joiner->is_prepared = true;
    while (status == BANYAN_OK && !joiner->may_go) {
        uint64_t left_ns = deadline_left_ns(joiner->ends_ns), due_ns = relay_flush(joiner);
        if (joiner->relay.failed.status != BANYAN_OK)
            status = error_again(&joiner->relay.failed);
        else if (joiner->gone)
            status = lose_way(joiner);
        else if ((status = check_goes_on(joiner)) != BANYAN_OK)
            break;
        else if (left_ns == 0)
            status = error_set(BANYAN_ERR_TIMEOUT,
                               "rank %d waited for the rendezvous to say that all %d ranks are "
                               "ready; " TIMEOUT_HINT,
                               joiner->request.rank, joiner->request.world_size);
        else
            join_step(joiner, left_ns < due_ns ? left_ns : due_ns);
    }
    if (status == BANYAN_OK)
        relay_hand_down(joiner, &go, NULL);
    return status;
}

bool joiner_is_turned_away(struct joiner *joiner)
{
    if (joiner->is_open && !joiner->gone)
        reactor_step(&joiner->reactor, 0);
    bool has_ended = joiner->has_table && joiner->gone && !joiner->has_failed && !joiner->to_relay;
    return joiner->has_reason || has_ended;
}

void joiner_turn_away(struct joiner *joiner, bool informed, const error_kept *why)
{
    bool may_join_elsewhere =
        !joiner->has_table && (why->status == BANYAN_ERR_TIMEOUT || joiner->refused);
    if (!joiner->is_open || may_join_elsewhere)
        return;
    error_kept named = tree_name_failure(joiner->request.rank, why);
    relay_refuse_all(joiner, informed ? last_failure : 0, named.status, named.message);
}

void joiner_close(struct joiner *joiner)
{
    if (!joiner->is_open)
        return;
    char what[64];
    snprintf(what, sizeof what, "rank %d of %d joined", joiner->request.rank,
             joiner->request.world_size);
    reactor_log_traffic(&joiner->reactor, what);
    reactor_close(&joiner->reactor);
    relay_close(joiner);
    joiner->is_open = false;
}

bool join_report(const struct rendezvous_place *place, const struct join_request *request,
                 bool was_there, const error_kept *why)
{
    struct joiner joiner = {.failure = why};
    uint64_t deadline_ns = deadline_after(REPORT_NS);
    if (open_joiner(&joiner, place, request) != BANYAN_OK)
        return false;
    do {
        (void)ask_rendezvous(&joiner, place, deadline_ns);
        if (joiner.has_reason || !place->may_start_late || (was_there && joiner.absent))
            break;
        pause_for(&joiner, RETRY_NS);
    } while (deadline_left_ns(deadline_ns) > 0);
    joiner_close(&joiner);
    return joiner.has_reason;
}
