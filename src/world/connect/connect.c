#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "world/connect/connect.h"
#include "world/connect/join.h"
#include "world/connect/options.h"
#include "world/world.h"

#define RETRY_NS (20 * NS_PER_MS)
#define LONGEST_RETRY_NS (500 * NS_PER_MS)
/* Time for an address to be reached, and for its first answer. */
#define ATTEMPT_NS (5 * NS_PER_S)
/* Least time for a world to open that connects until something is over. */
#define LEAST_OPENING_NS (10 * NS_PER_S)

/* Rank 0 of a connecting world, on its way to a listener. */
struct caller {
    struct reactor reactor;
    bool is_open; /* the reactor is */
    banyan_world *world;
    const char *text; /* the address, as the user gave it */
    char host[CONNECT_HOST_BYTES];
    int port;
    unsigned char key[WIRE_KEY_BYTES];
    struct connect_request request;
    bool (*is_over)(void *context); /* NULL: it is not asked */
    void *context;
    uint64_t timeout_ns; /* of connecting */
    uint64_t joined_timeout_ns;
    uint64_t began_ns, until_ns, log_ns;

    struct address addresses[RENDEZVOUS_ADDRESSES];
    int address_count, next_address;
    uint64_t retry_ns, pause_ns;
    struct link *link; /* NULL: none */
    uint64_t attempt_until_ns;
    bool is_final;       /* the last failure: to try again is in vain */
    error_kept last;     /* the latest failure */
    bool has_listener;   /* the listening world has described itself, on this link or before */
    bool waits, invited; /* on this link: it is in the queue; it is accepted */
    struct connect_party listener;
    banyan_unique_id id;
};

/* "the listener at 10.0.0.5:4711", or with its world once that is known. */
#define CALLER_WHO_BYTES (CONNECT_HOST_BYTES + CONNECT_PARTY_BYTES + 64)
static const char *caller_who(const struct caller *caller, char text[CALLER_WHO_BYTES])
{
    char party[CONNECT_PARTY_BYTES];
    if (caller->has_listener)
        snprintf(text, CALLER_WHO_BYTES, "%s that listens at %.*s",
                 connect_party_text(&caller->listener, party), CONNECT_HOST_BYTES, caller->text);
    else
        snprintf(text, CALLER_WHO_BYTES, "a world that listens at %.*s", CONNECT_HOST_BYTES,
                 caller->text);
    return text;
}

#define CALLER_REASON_BYTES (sizeof(((error_kept *)0)->message) + 64)

/* ---- the connection ---- */

static banyan_status caller_admit(void *owner, struct link *link)
{
    (void)owner;
    return error_set(BANYAN_ERR_REFUSED, "%s connects to a world that does not listen", link->who);
}

static void caller_ask(void *owner, struct link *link)
{
    struct caller *caller = owner;
    bytes_writer text = {0};
    connect_request_write(&text, &caller->request);
    banyan_status status =
        reactor_send(&caller->reactor, link, WIRE_JOIN, &text, "a request to connect");
    bytes_writer_free(&text);
    if (status != BANYAN_OK)
        reactor_drop(&caller->reactor, link, status);
}

static banyan_status caller_take_frame(void *owner, struct link *link,
                                       const struct wire_frame *frame, void *payload, int fd)
{
    struct caller *caller = owner;
    banyan_status status = BANYAN_OK;
    if (fd >= 0)
        close(fd);
    if (frame->kind == WIRE_NEWS && !caller->waits) {
        caller->waits = caller->has_listener =
            connect_party_read(payload, (size_t)frame->bytes, &caller->listener);
        if (!caller->waits)
            status = error_set(BANYAN_ERR_FORMAT, "%s describes its world wrongly", link->who);
    } else if (frame->kind == WIRE_TABLE && caller->waits && frame->bytes == sizeof caller->id) {
        memcpy(&caller->id, payload, sizeof caller->id);
        caller->invited = true;
    } else {
        status = error_set(BANYAN_ERR_FORMAT, "%s sends frame kind %u with %llu bytes", link->who,
                           frame->kind, (unsigned long long)frame->bytes);
    }
    free(payload);
    return status;
}

/* True if another attempt would fail in the same way. */
static bool is_final(const struct link *link, banyan_status status)
{
    switch (status) {
    case BANYAN_ERR_REFUSED:
    case BANYAN_ERR_FORMAT:
    case BANYAN_ERR_MISMATCH:
        return true;
    case BANYAN_ERR_NO_MEMORY:
        return !link->refused;
    default:
        return link->own_error != 0;
    }
}

static void caller_note_gone(void *owner, struct link *link, banyan_status status)
{
    struct caller *caller = owner;
    if (link != caller->link)
        return;
    if (status == BANYAN_OK)
        status = error_set(BANYAN_ERR_PEER_LOST, "it has closed the connection");
    else if (status == BANYAN_ERR_SYSTEM && link->own_error == 0)
        status = BANYAN_ERR_PEER_LOST; /* the connection broke */
    caller->link = NULL;
    caller->waits = caller->invited = false;
    caller->last = error_keep(status);
    caller->is_final = is_final(link, status);
    caller->retry_ns = deadline_after(caller->pause_ns);
}

static const struct reactor_ops caller_ops = {
    .link = {.admit = caller_admit, .ready = caller_ask, .frame = caller_take_frame},
    .closed = caller_note_gone,
};

/* ---- attempts ---- */

/* Start to connect to the next address; look the host up again before the first. */
static void caller_try(struct caller *caller)
{
    char text[ADDRESS_TEXT_BYTES], who[ADDRESS_TEXT_BYTES];
    if (caller->next_address == caller->address_count) {
        caller->next_address = 0;
        caller->address_count =
            connect_resolve(caller->host, caller->port, caller->addresses, RENDEZVOUS_ADDRESSES);
        uint64_t longer_ns = 2 * caller->pause_ns;
        caller->pause_ns = longer_ns < LONGEST_RETRY_NS ? longer_ns : LONGEST_RETRY_NS;
    }
    if (caller->address_count == 0) {
        caller->last = error_keep(BANYAN_ERR_SYSTEM);
        caller->retry_ns = deadline_after(LONGEST_RETRY_NS);
        return;
    }
    const struct address *address = &caller->addresses[caller->next_address++];
    snprintf(who, sizeof who, "the listener at %.120s", address_text(address, text));
    caller->attempt_until_ns = deadline_after(ATTEMPT_NS);
    caller->link = reactor_connect(&caller->reactor, address, who, -1, -1);
    if (!caller->link) {
        caller->last = error_keep(error_set_errno("cannot connect to %s", who));
        caller->is_final = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
        caller->retry_ns = deadline_after(caller->pause_ns);
    }
}

/* Return the reason why the world still waits: the latest failure, if any. */
static const char *caller_reason(const struct caller *caller, char text[CALLER_REASON_BYTES])
{
    const char *last = caller->last.message;
    if (caller->waits)
        snprintf(text, CALLER_REASON_BYTES, " to accept it%s%s", last[0] ? "; before that: " : "",
                 last);
    else
        snprintf(text, CALLER_REASON_BYTES, ": %s", last[0] ? last : "it has not answered yet");
    return text;
}

static void caller_log(struct caller *caller)
{
    char who[CALLER_WHO_BYTES], reason[CALLER_REASON_BYTES];
    uint64_t now = time_now_ns();
    if (now < caller->log_ns || caller->is_over)
        return;
    caller->log_ns = now + log_wait_period_ns();
    log_warn("rank 0 of a world of %d has waited %.1f s for %s%s", caller->request.party.size,
             (double)(now - caller->began_ns) / 1e9, caller_who(caller, who),
             caller_reason(caller, reason));
}

/* Move on by one step, at most `ns` long. */
static void caller_step(struct caller *caller, uint64_t ns)
{
    uint64_t now = time_now_ns(), wait_ns = interrupt_left(ns);
    if (!caller->link && now >= caller->retry_ns)
        caller_try(caller);
    uint64_t wake_ns = caller->link ? caller->attempt_until_ns : caller->retry_ns;
    bool is_timed = !caller->link || !caller->waits;
    if (is_timed && wake_ns < now + wait_ns)
        wait_ns = wake_ns > now ? wake_ns - now : 0;
    reactor_step(&caller->reactor, wait_ns);
    if (caller->link && !caller->waits && time_now_ns() >= caller->attempt_until_ns)
        reactor_drop(&caller->reactor, caller->link,
                     error_set(BANYAN_ERR_SYSTEM, "%s does not answer", caller->link->who));
    caller_log(caller);
}

static banyan_status caller_give_up(const struct caller *caller)
{
    char who[CALLER_WHO_BYTES], reason[CALLER_REASON_BYTES];
    return error_set(BANYAN_ERR_TIMEOUT,
                     "rank 0 of a world of %d waited %.1f s for %s%s; connect_timeout_ns of "
                     "banyan_connect_options" TIMEOUT_SETS,
                     caller->request.party.size, (double)caller->timeout_ns / 1e9,
                     caller_who(caller, who), caller_reason(caller, reason));
}

/* Wait until the world is accepted, at most `ns`. */
static banyan_status caller_wait(struct caller *caller, uint64_t ns)
{
    uint64_t until_ns = deadline_after(ns);
    while (!caller->invited) {
        uint64_t left_ns = deadline_left_ns(until_ns);
        if (caller->is_final)
            return error_set(caller->last.status,
                             "rank 0 of a world of %d cannot connect to %s: %s",
                             caller->request.party.size, caller->text, caller->last.message);
        if (deadline_left_ns(caller->until_ns) == 0 ||
            (caller->is_over && caller->is_over(caller->context)))
            return caller_give_up(caller);
        if (interrupt_requested())
            return control_fail(caller->world,
                                error_set(BANYAN_ERR_ABORTED,
                                          "rank 0 was connecting its world to %s: " INTERRUPT_TEXT,
                                          caller->text));
        if (left_ns == 0)
            break;
        caller_step(caller, left_ns < 100 * NS_PER_MS ? left_ns : 100 * NS_PER_MS);
        RETURN_IF_FAILED(control_check(caller->world));
    }
    return BANYAN_OK;
}

/* Report that all ranks have the joined world's id. A failure ends the connection, and is found by
 * caller_check. */
static void caller_send_ready(struct caller *caller)
{
    struct wire_frame frame = {.kind = WIRE_READY};
    pthread_mutex_lock(&caller->reactor.lock);
    banyan_status status = link_send(caller->link, &frame, NULL, -1);
    reactor_update(&caller->reactor, caller->link);
    pthread_mutex_unlock(&caller->reactor.lock);
    if (status != BANYAN_OK)
        reactor_drop(&caller->reactor, caller->link, status);
}

/* Return an error when the listening world has dropped this one, or has gone. */
static banyan_status caller_check(void *context)
{
    struct caller *caller = context;
    char who[CALLER_WHO_BYTES];
    if (caller->is_over && caller->is_over(caller->context))
        return error_set(BANYAN_ERR_ABORTED, "this world does not want to connect any more");
    if (caller->link)
        reactor_step(&caller->reactor, 0);
    if (caller->link)
        return BANYAN_OK;
    return error_set(caller->last.status, "%s did not join: %s", caller_who(caller, who),
                     caller->last.message);
}

static banyan_status caller_open(struct caller *caller, const char *address, const char *secret,
                                 const banyan_connect_options *options)
{
    banyan_connect_options taken;
    banyan_world *world = caller->world;
    RETURN_IF_FAILED(connect_take_options(world, options, &taken));
    RETURN_IF_NULL(address);
    RETURN_IF_FAILED(connect_split_address(address, caller->host, &caller->port));
    if (!caller->host[0] || caller->port == 0)
        return error_set(BANYAN_ERR_INVALID, "the address \"%.300s\" has no %s to connect to",
                         address, caller->host[0] ? "port" : "host");
    RETURN_IF_FAILED(connect_key(secret, caller->key));
    caller->text = address;
    caller->request.party = connect_party_of(world);
    snprintf(caller->request.version, sizeof caller->request.version, "%s", banyan_version());
    snprintf(caller->request.name, sizeof caller->request.name, "%s", taken.name);
    caller->timeout_ns =
        taken.connect_timeout_ns ? taken.connect_timeout_ns : banyan_world_timeout_ns(world);
    caller->joined_timeout_ns = taken.timeout_ns;
    caller->pause_ns = RETRY_NS / 2;
    caller->began_ns = time_now_ns();
    caller->until_ns = deadline_after(caller->timeout_ns);
    caller->log_ns = caller->began_ns + log_wait_period_ns();
    RETURN_IF_FAILED(
        reactor_open(&caller->reactor, WIRE_PURPOSE_CONNECT, -1, caller->key, &caller_ops, caller));
    caller->reactor.name = "a world that connects";
    caller->reactor.answer_ns = ATTEMPT_NS;
    caller->is_open = true;
    return BANYAN_OK;
}

static void caller_close(struct caller *caller)
{
    if (caller->is_open)
        reactor_close(&caller->reactor);
    sodium_memzero(caller->key, sizeof caller->key);
}

/* ---- all ranks ---- */

/* A message of rank 0 to the others. */
struct connect_step {
    enum { CONNECT_FAILED, CONNECT_WAITS, CONNECT_OPENS } kind;
    struct join_plan plan;
};

/* Return the time for opening the joined world. */
static uint64_t caller_limit_ns(const struct caller *caller)
{
    uint64_t left_ns = deadline_left_ns(caller->until_ns);
    return caller->is_over && left_ns < LEAST_OPENING_NS ? LEAST_OPENING_NS : left_ns;
}

static banyan_status caller_look(struct caller *caller, struct connect_step *step)
{
    step->kind = CONNECT_FAILED;
    RETURN_IF_FAILED(caller_wait(caller, connect_slice_ns(caller->world)));
    step->kind = caller->invited ? CONNECT_OPENS : CONNECT_WAITS;
    step->plan = (struct join_plan){.id = caller->id,
                                    .listening_size = caller->listener.size,
                                    .size = caller->listener.size + caller->request.party.size,
                                    .limit_ns = caller_limit_ns(caller),
                                    .timeout_ns = caller->joined_timeout_ns};
    return BANYAN_OK;
}

/* Wait until the listening world accepts this one, and all ranks have the plan of the joined world.
 * A listener that has gone before is looked for again. */
static banyan_status connect_wait(banyan_world *world, struct caller *caller, banyan_status status,
                                  struct join_plan *plan)
{
    for (;;) {
        struct connect_step step = {.kind = CONNECT_FAILED};
        if (caller && status == BANYAN_OK)
            status = caller_look(caller, &step);
        error_kept kept = error_keep(status);
        RETURN_IF_FAILED(banyan_world_broadcast(world, &step, sizeof step, 0));
        if (step.kind == CONNECT_FAILED)
            return control_agree_on_other_world(world, error_again(&kept));
        if (step.kind == CONNECT_WAITS)
            continue;
        *plan = step.plan;
        RETURN_IF_FAILED(control_agree(world, BANYAN_OK)); /* a late rank has come */
        if (control_agree(world, caller ? caller_check(caller) : BANYAN_OK) == BANYAN_OK)
            return BANYAN_OK;
        RETURN_IF_FAILED(control_check(world));
    }
}

static banyan_status connect_all(banyan_world *world, struct caller *caller, banyan_status status,
                                 banyan_world **joined)
{
    struct join_plan plan;
    struct join_guard guard = {caller_check, caller};
    RETURN_IF_FAILED(connect_wait(world, caller, status, &plan));
    if (caller)
        caller_send_ready(caller);
    banyan_world *opened = NULL;
    status =
        join_open(world, &plan, plan.listening_size + world->rank, caller ? &guard : NULL, &opened);
    return join_agree(world, &plan, status, opened, joined);
}

banyan_status connect_until_over(banyan_world *world, const char *address, const char *secret,
                                 const banyan_connect_options *options,
                                 bool (*is_over)(void *context), void *context,
                                 banyan_world **joined)
{
    CONTROL_CALL(world, "banyan_world_connect");
    RETURN_IF_FAILED(control_enter(world));
    struct caller *caller = NULL;
    banyan_status status = BANYAN_OK;
    if (world->rank == 0) {
        caller = calloc(1, sizeof *caller);
        status = caller ? BANYAN_OK : error_no_memory(sizeof *caller, "a connecting world");
    }
    if (caller) {
        caller->world = world;
        caller->is_over = is_over;
        caller->context = context;
        status = caller_open(caller, address, secret, options);
    }
    banyan_world *opened = NULL;
    status = connect_all(world, caller, status, &opened);
    error_kept kept = error_keep(status);
    if (caller)
        caller_close(caller);
    free(caller);
    if (status == BANYAN_OK)
        *joined = opened;
    return error_again(&kept);
}

banyan_status banyan_world_connect(banyan_world *world, const char *address, const char *secret,
                                   const banyan_connect_options *options, banyan_world **joined)
{
    RETURN_IF_NULL(world);
    RETURN_IF_NULL(joined);
    return connect_until_over(world, address, secret, options, NULL, NULL, joined);
}
