#include "world/bootstrap/rendezvous.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"
#include "core/threads/thread.h"
#include "world/bootstrap/member.h"
#include "world/net/descriptors.h"
#include "world/net/reactor.h"

/* Longest time for sent tables and messages to arrive. */
#define FAREWELL_NS (10 * NS_PER_S)
#define LOOK_NS (100 * NS_PER_MS)
/* Most copies of the table in flight at once: each copy grows with the job. */
#define HANDED_AT_ONCE 64
/* Time for a rank to report a failure on a second connection, after the first one ended. */
#define REPORT_NS (200 * NS_PER_MS)
/* Time for which late ranks are still informed that the world does not open. */
#define TURN_AWAY_NS NS_PER_S
#define MISSING_NAMED 10
#define MISSING_BYTES 256
#define NEWS_BYTES 512

/* A rank's state at the rendezvous. */
struct rank_entry {
    struct link *link; /* NULL: not connected */
    struct join_request request;
    uint64_t gives_up_ns;
    bool gave_up, died; /* the last process of this rank */
    bool came;          /* a process was here, or none will be */
    bool ready;         /* has the table, and accepts connections */
};

enum phase {
    GATHERING, /* not all ranks have joined */
    PREPARING, /* all have: they receive the table, and become ready */
    ALL_READY  /* all know that all are ready, and leave */
};

struct rendezvous {
    struct reactor reactor;
    pthread_t thread;
    atomic_bool stop;
    bool detached;
    enum phase phase;
    unsigned char key[WIRE_KEY_BYTES];
    int world_size, joined, sized_by;
    error_kept lacks;          /* missing descriptors for all ranks */
    const error_kept *refuses; /* refuses every rank; NULL: only invalid requests */
    uint64_t refuses_until_ns;
    int refused;
    struct rank_entry *entries;
    /* when the first rank joined, and when the next status line is due */
    uint64_t came_ns, news_ns;
    error_kept failure;     /* of a rank: sent to ranks that join later */
    bool turned_away;       /* the others have been informed of it */
    error_kept own_failure; /* of the hosting rank; set before `stop` */
    /* Set once all ranks have joined. */
    bytes_writer table;
    int handed; /* ranks that were sent the table */
    int ready;
    int lost; /* a rank whose connection ended; -1: none */
    uint64_t lost_ns, ends_ns;
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

/* Count the connections of ranks, as far as they are known. */
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
        RETURN_IF_FAILED(fix_world_size(rendezvous, rank, world_size));
    if (world_size != rendezvous->world_size)
        return error_set(BANYAN_ERR_MISMATCH,
                         "rank %d says that the world has %d ranks, but rank %d said %d", rank,
                         world_size, rendezvous->sized_by, rendezvous->world_size);
    return BANYAN_OK;
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
    if (entry->link)
        return error_set(BANYAN_ERR_MISMATCH,
                         "two processes say that they are rank %d of %d: pid %d on node %s came "
                         "first, then pid %d on node %s",
                         rank, world_size, entry->request.self.pid, entry->request.self.host,
                         request->self.pid, request->self.host);
    return BANYAN_OK;
}

/* Send a rank the reason, and disconnect it. A rank that cannot be reached connects again and gets
 * the reason then. */
static void rendezvous_dismiss(struct rendezvous *rendezvous, struct rank_entry *entry,
                               const error_kept *why)
{
    struct link *link = entry->link;
    pthread_mutex_lock(&rendezvous->reactor.lock);
    bool informed = link_refuse(link, why->status, why->message) == BANYAN_OK;
    if (!informed)
        shutdown(link->fd, SHUT_RDWR);
    pthread_mutex_unlock(&rendezvous->reactor.lock);
    *entry = (struct rank_entry){.request = entry->request, .came = informed};
    reactor_drop(&rendezvous->reactor, link, why->status);
}

/* Give up opening the world, and inform all connected ranks. */
static void call_off(struct rendezvous *rendezvous, const error_kept *why)
{
    log_info("the rendezvous: the world is not opened: %s", why->message);
    for (int rank = 0; rank < rendezvous->world_size; rank++) {
        if (rendezvous->entries[rank].link)
            rendezvous_dismiss(rendezvous, &rendezvous->entries[rank], why);
    }
    bytes_writer_free(&rendezvous->table);
    rendezvous->table = (bytes_writer){0};
    rendezvous->phase = GATHERING;
    rendezvous->joined = rendezvous->handed = rendezvous->ready = 0;
    rendezvous->lost = -1;
}

/* Return the failure of a rank that cannot open the world, with the rank's name, for the others. */
static error_kept name_failure(int rank, const error_kept *why)
{
    char name[32];
    int length = snprintf(name, sizeof name, "rank %d", rank);
    bool is_named = strncmp(why->message, name, (size_t)length) == 0;
    error_kept named = {.status = why->status};
    snprintf(named.message, sizeof named.message, "%s%s%.1900s", is_named ? "" : name,
             is_named ? "" : ": ", why->message);
    return named;
}

/* Give up because a rank cannot open the world; ranks that join later are informed, too. */
static void call_off_for(struct rendezvous *rendezvous, int rank, const error_kept *why)
{
    rendezvous->failure = name_failure(rank, why);
    rendezvous->entries[rank].came = true;
    call_off(rendezvous, &rendezvous->failure);
}

/* Give up because the rendezvous itself has failed. */
static void call_off_here(struct rendezvous *rendezvous, banyan_status status)
{
    error_kept why = error_keep(status);
    rendezvous->failure = rendezvous->detached ? why : name_failure(0, &why);
    why = rendezvous->failure;
    call_off(rendezvous, &why);
}

/* Give up because a rank is lost while others may have the table. */
static void call_off_for_loss(struct rendezvous *rendezvous)
{
    const struct member *lost = &rendezvous->entries[rendezvous->lost].request.self;
    error_kept why = error_keep(error_set(BANYAN_ERR_PEER_LOST,
                                          "rank %d (pid %d on node %s) died while the world was "
                                          "opened",
                                          rendezvous->lost, lost->pid, lost->host));
    call_off(rendezvous, &why);
}

/* Write the table, once all ranks have joined. */
static void rendezvous_write_table(struct rendezvous *rendezvous)
{
    table_write(&rendezvous->table, rendezvous->world_size);
    for (int rank = 0; rank < rendezvous->world_size; rank++)
        member_write(&rendezvous->table, &rendezvous->entries[rank].request.self);
    rendezvous->phase = PREPARING;
}

static void hand_out_table(struct rendezvous *rendezvous)
{
    const bytes_writer *table = &rendezvous->table;
    struct wire_frame frame = {.kind = WIRE_TABLE, .bytes = table->count};
    banyan_status status =
        table->failed ? error_no_memory(table->count, "the table of ranks to hand out") : BANYAN_OK;
    pthread_mutex_lock(&rendezvous->reactor.lock);
    while (status == BANYAN_OK && rendezvous->handed < rendezvous->world_size &&
           rendezvous->handed - rendezvous->ready < HANDED_AT_ONCE) {
        struct link *link = rendezvous->entries[rendezvous->handed++].link;
        if (link) {
            status = link_send(link, &frame, table->data, -1);
            reactor_update(&rendezvous->reactor, link);
        }
    }
    pthread_mutex_unlock(&rendezvous->reactor.lock);
    if (status != BANYAN_OK)
        call_off_here(rendezvous, status);
}

/* Inform all ranks that all accept connections. Each rank then disconnects. A rank that cannot be
 * reached loses its connection instead, and then tries to open its world. */
static void let_go(struct rendezvous *rendezvous)
{
    struct wire_frame frame = {.kind = WIRE_GO};
    reactor_stop_listening(&rendezvous->reactor);
    rendezvous->phase = ALL_READY;
    rendezvous->ends_ns = deadline_after(FAREWELL_NS);
    pthread_mutex_lock(&rendezvous->reactor.lock);
    for (int rank = 0; rank < rendezvous->world_size; rank++) {
        struct link *link = rendezvous->entries[rank].link;
        if (link) {
            if (link_send(link, &frame, NULL, -1) != BANYAN_OK)
                shutdown(link->fd, SHUT_RDWR);
            reactor_update(&rendezvous->reactor, link);
        }
    }
    pthread_mutex_unlock(&rendezvous->reactor.lock);
}

/* Send a log line to the lowest `most` waiting ranks. */
static void rendezvous_send_news(struct rendezvous *rendezvous, const char *text, int most)
{
    struct wire_frame frame = {.kind = WIRE_NEWS, .bytes = strlen(text)};
    log_info("the rendezvous: %s", text);
    pthread_mutex_lock(&rendezvous->reactor.lock);
    for (int rank = 0; rank < rendezvous->world_size && most > 0; rank++) {
        struct link *link = rendezvous->entries[rank].link;
        if (!link || link->closed)
            continue;
        link_send(link, &frame, text, -1);
        reactor_update(&rendezvous->reactor, link);
        most--;
    }
    pthread_mutex_unlock(&rendezvous->reactor.lock);
}

static banyan_status rendezvous_refuse_newcomer(struct rendezvous *rendezvous, struct link *link,
                                                banyan_status status)
{
    if (!rendezvous->refuses)
        log_warn("%s refused %s: %s", rendezvous->reactor.name, link->who, banyan_last_error());
    pthread_mutex_lock(&rendezvous->reactor.lock);
    link_refuse(link, status, banyan_last_error());
    pthread_mutex_unlock(&rendezvous->reactor.lock);
    return status;
}

/* A rank that was informed of a failure and connects again starts over. */
static banyan_status check_failure(struct rendezvous *rendezvous, struct rank_entry *entry)
{
    if (entry->came)
        rendezvous->failure.status = BANYAN_OK;
    entry->came = true;
    return error_again(&rendezvous->failure);
}

static banyan_status take_join(struct rendezvous *rendezvous, struct link *link, const void *data,
                               size_t bytes)
{
    struct join_request request = {0};
    banyan_status status = BANYAN_OK;
    if (!join_read(data, bytes, &request) || request.rank != link->rank)
        status = error_set(BANYAN_ERR_FORMAT, "%s sends a malformed request to join", link->who);
    if (status == BANYAN_OK && rendezvous->refuses) {
        rendezvous->refused++;
        status = error_again(rendezvous->refuses);
    }
    if (status == BANYAN_OK)
        status = check_request(rendezvous, &request);
    if (status == BANYAN_OK && rendezvous->phase == PREPARING)
        call_off_for_loss(rendezvous);
    if (status == BANYAN_OK)
        status = check_failure(rendezvous, &rendezvous->entries[request.rank]);
    if (status != BANYAN_OK)
        return rendezvous_refuse_newcomer(rendezvous, link, status);
    struct address remote = {.bytes = sizeof remote.socket};
    if (link->authenticated &&
        getpeername(link->fd, (struct sockaddr *)&remote.socket, &remote.bytes) == 0)
        request.self.tcp = address_with_port(&remote, request.self.port);
    struct rank_entry *entry = &rendezvous->entries[request.rank];
    char text[NEWS_BYTES];
    if (entry->died) {
        snprintf(text, sizeof text, "rank %d (pid %d on node %s) has taken its place", request.rank,
                 request.self.pid, request.self.host);
        rendezvous_send_news(rendezvous, text, rendezvous->world_size);
    }
    *entry = (struct rank_entry){.link = link,
                                 .request = request,
                                 .gives_up_ns = deadline_after(request.timeout_ns),
                                 .came = true};
    if (rendezvous->joined++ == 0)
        rendezvous->news_ns = (rendezvous->came_ns = time_now_ns()) + log_wait_period_ns();
    log_debug("rank %d of %d (pid %d) joins", request.rank, request.world_size, request.self.pid);
    return BANYAN_OK;
}

static banyan_status take_ready(struct rendezvous *rendezvous, const struct link *link)
{
    struct rank_entry *entry =
        rendezvous->phase == PREPARING ? &rendezvous->entries[link->rank] : NULL;
    if (!entry || entry->link != link || entry->ready)
        return error_set(BANYAN_ERR_FORMAT, "%s is ready for a world that is not opened",
                         link->who);
    entry->ready = true;
    rendezvous->ready++;
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
    rendezvous->refused += rendezvous->refuses != NULL;
    if (status == BANYAN_OK)
        status = check_size(rendezvous, &request);
    if (status == BANYAN_OK && rendezvous->phase != ALL_READY &&
        !is_of_another(&rendezvous->entries[request.rank], &request.self)) {
        call_off_for(rendezvous, request.rank, &why);
        status = error_again(&rendezvous->failure);
    }
    if (status == BANYAN_OK)
        status = error_set(BANYAN_ERR_MISMATCH, "rank %d is another process", request.rank);
    pthread_mutex_lock(&rendezvous->reactor.lock);
    link_refuse(link, status, banyan_last_error());
    pthread_mutex_unlock(&rendezvous->reactor.lock);
    return status;
}

static banyan_status rendezvous_take_frame(void *owner, struct link *link,
                                           const struct wire_frame *frame, void *payload, int fd)
{
    banyan_status status;
    if (fd >= 0)
        close(fd);
    if (frame->kind == WIRE_READY)
        status = take_ready(owner, link);
    else if (frame->kind == WIRE_FAILED)
        status = rendezvous_take_failure(owner, link, payload, (size_t)frame->bytes);
    else
        status = take_join(owner, link, frame->kind == WIRE_JOIN ? payload : NULL,
                           frame->kind == WIRE_JOIN ? (size_t)frame->bytes : 0);
    free(payload);
    return status;
}

/* A waiting rank whose link ends leaves its entry. */
static void leave_seat(void *owner, struct link *link, banyan_status status)
{
    struct rendezvous *rendezvous = owner;
    int rank = link->rank;
    if (!rendezvous->entries || rank < 0 || rank >= rendezvous->world_size ||
        rendezvous->entries[rank].link != link)
        return;
    struct rank_entry *entry = &rendezvous->entries[rank];
    if ((link->own_error != 0 || status == BANYAN_ERR_NO_MEMORY) &&
        rendezvous->phase != ALL_READY) {
        call_off_here(rendezvous, status);
        return;
    }
    entry->link = NULL;
    rendezvous->joined--;
    if (rendezvous->phase == ALL_READY || entry->gave_up)
        return;
    char text[NEWS_BYTES];
    entry->died = true;
    if (rendezvous->phase == PREPARING) {
        if (rendezvous->lost < 0) {
            rendezvous->lost = rank;
            rendezvous->lost_ns = deadline_after(REPORT_NS);
        }
        return;
    }
    snprintf(text, sizeof text,
             "rank %d (pid %d on node %s) died before all %d ranks had joined; until the deadline "
             "another process may take its place",
             rank, entry->request.self.pid, entry->request.self.host, rendezvous->world_size);
    rendezvous_send_news(rendezvous, text, rendezvous->world_size);
}

static const struct reactor_ops rendezvous_ops = {
    .link = {.admit = admit_anybody, .ready = nothing_to_say, .frame = rendezvous_take_frame},
    .closed = leave_seat,
};

/* List the ranks that never joined or, if there are none, those that joined and gave up. */
static void name_missing(const struct rendezvous *rendezvous, char *text, size_t bytes)
{
    int named = 0, missing = 0, gone = 0;
    size_t used = 0;
    for (int rank = 0; rank < rendezvous->world_size; rank++) {
        const struct rank_entry *entry = &rendezvous->entries[rank];
        missing += !entry->link && !entry->gave_up;
        gone += !entry->link;
    }
    bool came = missing == 0;
    for (int rank = 0; rank < rendezvous->world_size && named < MISSING_NAMED; rank++) {
        const struct rank_entry *entry = &rendezvous->entries[rank];
        if (!entry->link && entry->gave_up == came)
            used += (size_t)snprintf(text + used, bytes - used, "%s%d%s", named++ ? ", " : "", rank,
                                     entry->died ? " (died)" : "");
    }
    int unnamed = (came ? gone : missing) - named;
    if (unnamed > 0)
        used += (size_t)snprintf(text + used, bytes - used, " and %d others", unnamed);
    if (came)
        snprintf(text + used, bytes - used, " (gave up waiting)");
}

/* Disconnect ranks whose deadline has passed, with a list of the missing ranks. */
static void send_home(struct rendezvous *rendezvous)
{
    uint64_t now = time_now_ns();
    for (int rank = 0; rendezvous->entries && rank < rendezvous->world_size; rank++) {
        struct rank_entry *entry = &rendezvous->entries[rank];
        if (!entry->link || now < entry->gives_up_ns)
            continue;
        char missing[MISSING_BYTES];
        name_missing(rendezvous, missing, sizeof missing);
        banyan_status status = error_set(
            BANYAN_ERR_TIMEOUT,
            "rank %d waited %.1f s for all %d ranks to join: not there yet: rank %s; " TIMEOUT_HINT,
            rank, (double)entry->request.timeout_ns / 1e9, rendezvous->world_size, missing);
        entry->gave_up = true;
        pthread_mutex_lock(&rendezvous->reactor.lock);
        link_refuse(entry->link, status, banyan_last_error());
        pthread_mutex_unlock(&rendezvous->reactor.lock);
        reactor_drop(&rendezvous->reactor, entry->link, status);
    }
}

/* All ranks have joined, but not all become ready: the first one to die or to exceed its deadline
 * ends the opening. */
static void check_preparing(struct rendezvous *rendezvous)
{
    uint64_t now = time_now_ns();
    int late = 0, rank = 0;
    if (rendezvous->lost >= 0 && now >= rendezvous->lost_ns) {
        call_off_for_loss(rendezvous);
        return;
    }
    while (rank < rendezvous->world_size && now < rendezvous->entries[rank].gives_up_ns)
        rank++;
    if (rank == rendezvous->world_size)
        return;
    while (rendezvous->entries[late].ready)
        late++;
    const struct member *who = &rendezvous->entries[late].request.self;
    error_kept why = error_keep(error_set(
        BANYAN_ERR_TIMEOUT,
        "rank %d waited %.1f s for rank %d (pid %d on node %s), which has joined and has not "
        "become ready; " TIMEOUT_HINT,
        rank, (double)rendezvous->entries[rank].request.timeout_ns / 1e9, late, who->pid,
        who->host));
    call_off(rendezvous, &why);
}

/* Send one rank a line about the missing ranks, at intervals. */
static void rendezvous_send_missing(struct rendezvous *rendezvous)
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
    rendezvous_send_news(rendezvous, text, 1);
}

static void rendezvous_free(struct rendezvous *rendezvous)
{
    reactor_close(&rendezvous->reactor);
    sodium_memzero(rendezvous->key, sizeof rendezvous->key);
    bytes_writer_free(&rendezvous->table);
    free(rendezvous->entries);
    free(rendezvous);
}

/* Refuse all ranks, in the caller's thread, which has nothing else to do. */
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
    return rendezvous->phase != GATHERING || news_ns > LOOK_NS ? LOOK_NS : news_ns;
}

/* Serve one step; true when the thread is done. */
static bool serve_once(struct rendezvous *rendezvous)
{
    if (rendezvous->phase == GATHERING && rendezvous->world_size > 0 &&
        rendezvous->joined == rendezvous->world_size)
        rendezvous_write_table(rendezvous);
    if (rendezvous->phase == GATHERING) {
        send_home(rendezvous);
        rendezvous_send_missing(rendezvous);
        return false;
    }
    if (rendezvous->phase == PREPARING)
        hand_out_table(rendezvous);
    if (rendezvous->phase == PREPARING && rendezvous->ready == rendezvous->world_size)
        let_go(rendezvous);
    else if (rendezvous->phase == PREPARING)
        check_preparing(rendezvous);
    return rendezvous->phase == ALL_READY &&
           (rendezvous->joined == 0 ||
            (rendezvous->detached && time_now_ns() >= rendezvous->ends_ns));
}

/* The hosting rank has failed: inform the other ranks, and those that join within a short time. */
static void rendezvous_turn_away(struct rendezvous *rendezvous)
{
    uint64_t left_ns, ends_ns = deadline_after(TURN_AWAY_NS);
    int rank = 0;
    if (rendezvous->phase == ALL_READY)
        return;
    rendezvous->turned_away = true;
    if (rendezvous->failure.status == BANYAN_OK)
        call_off_for(rendezvous, 0, &rendezvous->own_failure);
    while ((left_ns = deadline_left_ns(ends_ns)) > 0) {
        while (rank < rendezvous->world_size && rendezvous->entries[rank].came)
            rank++;
        if (rank == rendezvous->world_size)
            break;
        reactor_step(&rendezvous->reactor, left_ns);
    }
}

static void *rendezvous_serve(void *argument)
{
    struct rendezvous *rendezvous = argument;
    while (!atomic_load(&rendezvous->stop)) {
        reactor_step(&rendezvous->reactor, look_again_ns(rendezvous));
        if (serve_once(rendezvous))
            break;
    }
    if (rendezvous->own_failure.status != BANYAN_OK)
        rendezvous_turn_away(rendezvous);
    if (rendezvous->detached)
        rendezvous_free(rendezvous);
    return NULL;
}

/* Listen. Takes ownership of the TCP listener. */
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

/* Open a rendezvous. Takes ownership of the TCP listener, even on failure. */
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
    opened->lost = -1;
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
        status = thread_start(&started->thread, rendezvous_serve, started, detached);
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
    error_kept named = name_failure(0, why);
    rendezvous->world_size = world_size;
    rendezvous->refuses = &named;
    rendezvous->refuses_until_ns = deadline_after(ns);
    rendezvous->reactor.quiet = true;
    refuse_all(rendezvous);
    rendezvous_free(rendezvous);
}

bool rendezvous_stop(struct rendezvous *rendezvous, const error_kept *why)
{
    if (!rendezvous)
        return false;
    if (why)
        rendezvous->own_failure = *why;
    atomic_store(&rendezvous->stop, true);
    reactor_wake(&rendezvous->reactor);
    pthread_join(rendezvous->thread, NULL);
    bool informed = rendezvous->turned_away;
    rendezvous_free(rendezvous);
    return informed;
}
