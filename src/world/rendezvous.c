#include "world/rendezvous.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"
#include "core/thread.h"
#include "world/descriptors.h"
#include "world/member.h"
#include "world/reactor.h"

/* What was handed out is on its way for so long at most. */
#define FAREWELL_NS (10 * NS_PER_S)
#define LOOK_NS (100 * NS_PER_MS)
/* So many copies of the table may be on their way at once: each is as long as the job is large. */
#define HANDED_AT_ONCE 64
#define MISSING_NAMED 10
#define MISSING_BYTES 256
#define NEWS_BYTES 512

/* A rank that has come and waits for the others. */
struct seat {
    struct link *link; /* NULL: nobody */
    struct join_request request;
    uint64_t gives_up_ns;
    bool gave_up, died; /* whoever was here last */
};

struct rendezvous {
    struct reactor reactor;
    pthread_t thread;
    atomic_bool stop;
    bool detached;
    bool complete;
    unsigned char key[WIRE_KEY_BYTES];
    int world_size, joined, sized_by;
    error_kept lacks;          /* descriptors for all ranks */
    const error_kept *refuses; /* everybody; NULL: only those who are wrong here */
    uint64_t refuses_until_ns;
    int refused;
    struct seat *seats;
    uint64_t came_ns, news_ns; /* when the first rank came, and when there is news next */
    /* Once complete. */
    bytes_writer table;
    int handed; /* ranks that were sent the table */
    uint64_t ends_ns;
};

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

/* Of ranks, as far as is known. */
static int count_connections(const struct rendezvous *rendezvous)
{
    int count = (int)rendezvous->reactor.near.count;
    for (const struct link *link = rendezvous->reactor.links; link; link = link->next)
        count++;
    return count;
}

static banyan_status fix_world_size(struct rendezvous *rendezvous, int rank, int world_size)
{
    if (rendezvous->lacks.status == BANYAN_OK)
        rendezvous->lacks = error_keep(
            descriptors_check_hosting(world_size, world_size - count_connections(rendezvous)));
    RETURN_IF_FAILED(error_again(&rendezvous->lacks));
    rendezvous->seats = calloc((size_t)world_size, sizeof *rendezvous->seats);
    if (!rendezvous->seats)
        return error_no_memory((size_t)world_size * sizeof *rendezvous->seats,
                               "the ranks that join");
    rendezvous->world_size = world_size;
    rendezvous->sized_by = rank;
    return BANYAN_OK;
}

static banyan_status check_request(struct rendezvous *rendezvous,
                                   const struct join_request *request)
{
    int rank = request->rank, world_size = request->world_size;
    if (world_size < 1 || world_size > BANYAN_MAX_RANKS || rank < 0 || rank >= world_size)
        return error_set(BANYAN_ERR_MISMATCH, "rank %d does not exist in a world of %d", rank,
                         world_size);
    if (!rendezvous->seats)
        RETURN_IF_FAILED(fix_world_size(rendezvous, rank, world_size));
    if (world_size != rendezvous->world_size)
        return error_set(BANYAN_ERR_MISMATCH,
                         "rank %d says that the world has %d ranks, but rank %d said %d", rank,
                         world_size, rendezvous->sized_by, rendezvous->world_size);
    const struct seat *seat = &rendezvous->seats[rank];
    if (seat->link)
        return error_set(BANYAN_ERR_MISMATCH,
                         "two processes say that they are rank %d of %d: pid %d on node %s came "
                         "first, then pid %d on node %s",
                         rank, world_size, seat->request.self.pid, seat->request.self.host,
                         request->self.pid, request->self.host);
    return BANYAN_OK;
}

/* All have come. */
static void write_table(struct rendezvous *rendezvous)
{
    table_write(&rendezvous->table, rendezvous->world_size);
    for (int rank = 0; rank < rendezvous->world_size; rank++)
        member_write(&rendezvous->table, &rendezvous->seats[rank].request.self);
    if (rendezvous->table.failed)
        log_error("the rendezvous has no memory for the table of %d ranks", rendezvous->world_size);
    rendezvous->complete = true;
}

/* A rank hangs up once it has the table. */
static void hand_out_table(struct rendezvous *rendezvous)
{
    const bytes_writer *table = &rendezvous->table;
    struct wire_frame frame = {.kind = WIRE_TABLE, .bytes = table->count};
    int hung_up = rendezvous->world_size - rendezvous->joined;
    pthread_mutex_lock(&rendezvous->reactor.lock);
    while (!table->failed && rendezvous->handed < rendezvous->world_size &&
           rendezvous->handed - hung_up < HANDED_AT_ONCE) {
        struct link *link = rendezvous->seats[rendezvous->handed++].link;
        rendezvous->ends_ns = deadline_after(FAREWELL_NS);
        if (link) {
            link_send(link, &frame, table->data, -1);
            reactor_update(&rendezvous->reactor, link);
        }
    }
    pthread_mutex_unlock(&rendezvous->reactor.lock);
}

/* To the lowest `most` ranks that wait, for their logs. */
static void spread_news(struct rendezvous *rendezvous, const char *text, int most)
{
    struct wire_frame frame = {.kind = WIRE_NEWS, .bytes = strlen(text)};
    log_info("the rendezvous: %s", text);
    pthread_mutex_lock(&rendezvous->reactor.lock);
    for (int rank = 0; rank < rendezvous->world_size && most > 0; rank++) {
        struct link *link = rendezvous->seats[rank].link;
        if (!link || link->closed)
            continue;
        link_send(link, &frame, text, -1);
        reactor_update(&rendezvous->reactor, link);
        most--;
    }
    pthread_mutex_unlock(&rendezvous->reactor.lock);
}

static banyan_status refuse(struct rendezvous *rendezvous, struct link *link, banyan_status status)
{
    if (!rendezvous->refuses)
        log_warn("%s refused %s: %s", rendezvous->reactor.name, link->who, banyan_last_error());
    pthread_mutex_lock(&rendezvous->reactor.lock);
    link_refuse(link, status, banyan_last_error());
    pthread_mutex_unlock(&rendezvous->reactor.lock);
    return status;
}

static banyan_status take_join(void *owner, struct link *link, const struct wire_frame *frame,
                               void *payload, int fd)
{
    struct rendezvous *rendezvous = owner;
    struct join_request request = {0};
    banyan_status status = BANYAN_OK;
    if (fd >= 0)
        close(fd);
    if (frame->kind != WIRE_JOIN || !join_read(payload, (size_t)frame->bytes, &request) ||
        request.rank != link->rank)
        status = error_set(BANYAN_ERR_FORMAT, "%s sends a malformed request to join", link->who);
    free(payload);
    if (status == BANYAN_OK && rendezvous->refuses) {
        rendezvous->refused++;
        status = error_again(rendezvous->refuses);
    }
    if (status == BANYAN_OK)
        status = check_request(rendezvous, &request);
    if (status != BANYAN_OK)
        return refuse(rendezvous, link, status);
    struct address remote = {.bytes = sizeof remote.socket};
    if (link->sealed &&
        getpeername(link->fd, (struct sockaddr *)&remote.socket, &remote.bytes) == 0)
        request.self.tcp = address_with_port(&remote, request.self.port);
    struct seat *seat = &rendezvous->seats[request.rank];
    char text[NEWS_BYTES];
    if (seat->died) {
        snprintf(text, sizeof text, "rank %d (pid %d on node %s) has taken its place", request.rank,
                 request.self.pid, request.self.host);
        spread_news(rendezvous, text, rendezvous->world_size);
    }
    *seat = (struct seat){link, request, deadline_after(request.timeout_ns), false, false};
    if (rendezvous->joined++ == 0)
        rendezvous->news_ns = (rendezvous->came_ns = time_now_ns()) + log_wait_period_ns();
    log_debug("rank %d of %d (pid %d) joins", request.rank, request.world_size, request.self.pid);
    return BANYAN_OK;
}

/* The link of a rank that waits ends with the rank. */
static void leave_seat(void *owner, struct link *link, banyan_status status)
{
    struct rendezvous *rendezvous = owner;
    (void)status;
    int rank = link->rank;
    if (!rendezvous->seats || rank < 0 || rank >= rendezvous->world_size ||
        rendezvous->seats[rank].link != link)
        return;
    struct seat *seat = &rendezvous->seats[rank];
    seat->link = NULL;
    rendezvous->joined--;
    if (rendezvous->complete || seat->gave_up)
        return;
    char text[NEWS_BYTES];
    seat->died = true;
    snprintf(text, sizeof text,
             "rank %d (pid %d on node %s) died before all %d ranks had joined; until the deadline "
             "another process may take its place",
             rank, seat->request.self.pid, seat->request.self.host, rendezvous->world_size);
    spread_news(rendezvous, text, rendezvous->world_size);
}

static const struct reactor_ops rendezvous_ops = {
    .link = {.admit = admit_anybody, .ready = nothing_to_say, .frame = take_join},
    .closed = leave_seat,
};

/* The ranks that never came or, when there are none, those that came and gave up. */
static void name_missing(const struct rendezvous *rendezvous, char *text, size_t bytes)
{
    int named = 0, missing = 0, gone = 0;
    size_t used = 0;
    for (int rank = 0; rank < rendezvous->world_size; rank++) {
        const struct seat *seat = &rendezvous->seats[rank];
        missing += !seat->link && !seat->gave_up;
        gone += !seat->link;
    }
    bool came = missing == 0;
    for (int rank = 0; rank < rendezvous->world_size && named < MISSING_NAMED; rank++) {
        const struct seat *seat = &rendezvous->seats[rank];
        if (!seat->link && seat->gave_up == came)
            used += (size_t)snprintf(text + used, bytes - used, "%s%d%s", named++ ? ", " : "", rank,
                                     seat->died ? " (died)" : "");
    }
    int unnamed = (came ? gone : missing) - named;
    if (unnamed > 0)
        used += (size_t)snprintf(text + used, bytes - used, " and %d others", unnamed);
    if (came)
        snprintf(text + used, bytes - used, " (gave up waiting)");
}

/* Those whose patience ends hear who is missing. */
static void send_home(struct rendezvous *rendezvous)
{
    uint64_t now = time_now_ns();
    for (int rank = 0; rendezvous->seats && rank < rendezvous->world_size; rank++) {
        struct seat *seat = &rendezvous->seats[rank];
        if (!seat->link || now < seat->gives_up_ns)
            continue;
        char missing[MISSING_BYTES];
        name_missing(rendezvous, missing, sizeof missing);
        banyan_status status = error_set(
            BANYAN_ERR_TIMEOUT,
            "rank %d waited %.1f s for all %d ranks to join: not there yet: rank %s; " TIMEOUT_HINT,
            rank, (double)seat->request.timeout_ns / 1e9, rendezvous->world_size, missing);
        seat->gave_up = true;
        pthread_mutex_lock(&rendezvous->reactor.lock);
        link_refuse(seat->link, status, banyan_last_error());
        pthread_mutex_unlock(&rendezvous->reactor.lock);
        reactor_drop(&rendezvous->reactor, seat->link, status);
    }
}

/* One line every so often, at one rank. */
static void tell_missing(struct rendezvous *rendezvous)
{
    uint64_t now = time_now_ns();
    if (rendezvous->joined == 0 || now < rendezvous->news_ns)
        return;
    char missing[MISSING_BYTES], text[NEWS_BYTES];
    rendezvous->news_ns = now + log_wait_period_ns();
    name_missing(rendezvous, missing, sizeof missing);
    snprintf(text, sizeof text,
             "%.1f s after the first of all %d ranks joined, not there yet: rank %s",
             (double)(now - rendezvous->came_ns) / 1e9, rendezvous->world_size, missing);
    spread_news(rendezvous, text, 1);
}

static void rendezvous_free(struct rendezvous *rendezvous)
{
    reactor_close(&rendezvous->reactor);
    sodium_memzero(rendezvous->key, sizeof rendezvous->key);
    bytes_writer_free(&rendezvous->table);
    free(rendezvous->seats);
    free(rendezvous);
}

static bool all_have_come(const struct rendezvous *rendezvous)
{
    return rendezvous->world_size > 0 && rendezvous->joined == rendezvous->world_size;
}

/* In the caller's thread, which has nothing else to do. */
static void refuse_all(struct rendezvous *rendezvous)
{
    uint64_t left_ns;
    while (rendezvous->refused < rendezvous->world_size - 1 &&
           (left_ns = deadline_left_ns(rendezvous->refuses_until_ns)) > 0)
        reactor_step(&rendezvous->reactor, left_ns);
}

static uint64_t look_again_ns(const struct rendezvous *rendezvous)
{
    uint64_t news_ns = deadline_left_ns(rendezvous->news_ns);
    if (rendezvous->joined == 0)
        return FAREWELL_NS;
    return rendezvous->complete || news_ns > LOOK_NS ? LOOK_NS : news_ns;
}

static void *serve(void *argument)
{
    struct rendezvous *rendezvous = argument;
    while (!atomic_load(&rendezvous->stop)) {
        reactor_step(&rendezvous->reactor, look_again_ns(rendezvous));
        if (!rendezvous->complete && all_have_come(rendezvous)) {
            reactor_stop_listening(&rendezvous->reactor);
            write_table(rendezvous);
        }
        if (!rendezvous->complete) {
            send_home(rendezvous);
            tell_missing(rendezvous);
            continue;
        }
        hand_out_table(rendezvous);
        if (rendezvous->joined == 0 ||
            (rendezvous->detached && time_now_ns() >= rendezvous->ends_ns))
            break;
    }
    if (rendezvous->detached)
        rendezvous_free(rendezvous);
    return NULL;
}

/* Takes the TCP listener. */
static banyan_status listen_everywhere(struct rendezvous *rendezvous,
                                       const struct rendezvous_place *place, int tcp_fd)
{
    struct address name = address_unix(place->name);
    int fd;
    char who[ADDRESS_TEXT_BYTES];
    banyan_status status = address_listen(&name, &fd);
    if (status != BANYAN_OK && address_is_taken(&name, who))
        status = address_say_taken(&name, who);
    if (status == BANYAN_OK)
        status = reactor_listen(&rendezvous->reactor, fd, false);
    if (status == BANYAN_OK && tcp_fd >= 0)
        return reactor_listen(&rendezvous->reactor, tcp_fd, true);
    if (tcp_fd >= 0)
        close(tcp_fd);
    return status;
}

/* Takes the TCP listener, also on failure. */
static banyan_status open_rendezvous(const struct rendezvous_place *place, int tcp_fd,
                                     struct rendezvous **rendezvous)
{
    struct rendezvous *opened = calloc(1, sizeof *opened);
    banyan_status status = opened ? reactor_open(&opened->reactor, WIRE_PURPOSE_JOIN, -1,
                                                 opened->key, &rendezvous_ops, opened)
                                  : error_no_memory(sizeof *opened, "a rendezvous");
    if (status != BANYAN_OK) {
        if (tcp_fd >= 0)
            close(tcp_fd);
        free(opened);
        return status;
    }
    memcpy(opened->key, place->key, sizeof opened->key);
    opened->reactor.name = "the rendezvous";
    status = listen_everywhere(opened, place, tcp_fd);
    if (status != BANYAN_OK)
        rendezvous_free(opened);
    else
        *rendezvous = opened;
    return status;
}

banyan_status rendezvous_start(const struct rendezvous_place *place, int tcp_fd, int world_size,
                               bool detached, struct rendezvous **rendezvous)
{
    struct rendezvous *started;
    RETURN_IF_FAILED(open_rendezvous(place, tcp_fd, &started));
    started->detached = detached;
    banyan_status status = BANYAN_OK;
    if (world_size > 0)
        status = fix_world_size(started, 0, world_size);
    if (status == BANYAN_OK)
        status = thread_start(&started->thread, serve, started, detached);
    if (status != BANYAN_OK) {
        rendezvous_free(started);
        return status;
    }
    if (!detached)
        *rendezvous = started;
    return BANYAN_OK;
}

void rendezvous_refuse(const struct rendezvous_place *place, int tcp_fd, int world_size,
                       const error_kept *why, uint64_t ns)
{
    struct rendezvous *rendezvous;
    if (open_rendezvous(place, tcp_fd, &rendezvous) != BANYAN_OK)
        return;
    rendezvous->world_size = world_size;
    rendezvous->refuses = why;
    rendezvous->refuses_until_ns = deadline_after(ns);
    rendezvous->reactor.quiet = true;
    refuse_all(rendezvous);
    rendezvous_free(rendezvous);
}

void rendezvous_stop(struct rendezvous *rendezvous)
{
    if (!rendezvous)
        return;
    atomic_store(&rendezvous->stop, true);
    reactor_wake(&rendezvous->reactor);
    pthread_join(rendezvous->thread, NULL);
    rendezvous_free(rendezvous);
}
