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
#include "world/bootstrap/tree.h"
#include "world/net/descriptors.h"
#include "world/net/reactor.h"

/* Longest time for sent tables and messages to arrive. */
#define FAREWELL_NS (10 * NS_PER_S)
#define LOOK_NS (100 * NS_PER_MS)
/* Time for a rank that is cut off to find another way. */
#define RETURN_NS NS_PER_S
/* Time for a rank to report a failure on a second connection, after the first one ended. */
#define REPORT_NS (200 * NS_PER_MS)
/* Time for which late ranks are still informed that the world does not open. */
#define TURN_AWAY_NS NS_PER_S
#define MISSING_NAMED 10
#define MISSING_BYTES 256
#define NEWS_BYTES 512

/* A rank's state at the rendezvous. */
struct rank_entry {
    struct link *link; /* by which it joined, its own or that of a rank before it; NULL: none */
    struct join_request request;
    uint64_t gives_up_ns;
    bool gave_up, died;        /* the last process of this rank */
    bool came;                 /* a process was here, or none will be */
    int cut_off;               /* 1 + the rank whose end cut its way off; 0: none */
    uint64_t returns_until_ns; /* it is cut off, and looks for another way */
    bool ready;                /* has the table, and accepts connections */
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
    struct rendezvous_place place;
    int world_size, joined, sized_by;
    struct tree_children children;
    error_kept lacks;          /* missing descriptors for all ranks */
    const error_kept *refuses; /* refuses every rank; NULL: only invalid requests */
    uint64_t refuses_until_ns;
    int refused;
    struct rank_entry *entries;
    /* when the first rank joined, and when the next status line is due */
    uint64_t came_ns, news_ns;
    error_kept failure; /* of a rank: sent to ranks that join later */
    uint64_t failure_number;
    bool turned_away;       /* the others have been informed of it */
    error_kept own_failure; /* of the hosting rank; set before `stop` */
    /* Set once all ranks have joined. */
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

static banyan_status fix_world_size(struct rendezvous *rendezvous, int rank, int world_size)
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
        RETURN_IF_FAILED(fix_world_size(rendezvous, rank, world_size));
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

/* Disconnect a rank, and those behind it, with the reason. A rank that cannot be reached connects
 * again and gets the reason then. */
static void rendezvous_dismiss(struct rendezvous *rendezvous, struct link *link,
                               const error_kept *why)
{
    pthread_mutex_lock(&rendezvous->reactor.lock);
    uint64_t number = why == &rendezvous->failure ? rendezvous->failure_number : 0;
    bool informed = link_refuse_all(link, number, why->status, why->message) == BANYAN_OK;
    if (!informed)
        shutdown(link->fd, SHUT_RDWR);
    pthread_mutex_unlock(&rendezvous->reactor.lock);
    for (int rank = 0; rank < rendezvous->world_size; rank++) {
        struct rank_entry *entry = &rendezvous->entries[rank];
        if (entry->link == link)
            *entry = (struct rank_entry){.request = entry->request, .came = informed};
    }
    tree_remove_child(&rendezvous->children, link);
    reactor_drop(&rendezvous->reactor, link, why->status);
}

/* Give up opening the world, and inform all connected ranks. */
static void call_off(struct rendezvous *rendezvous, const error_kept *why)
{
    log_info("the rendezvous: the world is not opened: %s", why->message);
    while (rendezvous->children.count > 0)
        rendezvous_dismiss(rendezvous, rendezvous->children.data[0].link, why);
    rendezvous->phase = GATHERING;
    rendezvous->joined = rendezvous->ready = 0;
    rendezvous->lost = -1;
}

/* Keep a failure for ranks that join later. */
static void keep_failure(struct rendezvous *rendezvous, const error_kept *why)
{
    rendezvous->failure = *why;
    do
        randombytes_buf(&rendezvous->failure_number, sizeof rendezvous->failure_number);
    while (rendezvous->failure_number == 0);
}

/* Give up because a rank cannot open the world; ranks that join later are informed, too. */
static void call_off_for(struct rendezvous *rendezvous, int rank, const error_kept *why)
{
    error_kept named = tree_name_failure(rank, why);
    keep_failure(rendezvous, &named);
    rendezvous->entries[rank].came = true;
    call_off(rendezvous, &rendezvous->failure);
}

/* Give up because the rendezvous itself has failed. */
static void call_off_here(struct rendezvous *rendezvous, banyan_status status)
{
    error_kept why = error_keep(status);
    if (!rendezvous->detached)
        why = tree_name_failure(0, &why);
    keep_failure(rendezvous, &why);
    call_off(rendezvous, &rendezvous->failure);
}

/* Give up because a rank is lost while others may have the table. Ranks that joined through it are
 * informed when they connect again. */
static void call_off_for_loss(struct rendezvous *rendezvous)
{
    struct rank_entry *entry = &rendezvous->entries[rendezvous->lost];
    const struct member *lost = &entry->request.self;
    error_kept why = error_keep(error_set(BANYAN_ERR_PEER_LOST,
                                          "rank %d (pid %d on node %s) died while the world was "
                                          "opened",
                                          rendezvous->lost, lost->pid, lost->host));
    entry->came = true;
    keep_failure(rendezvous, &why);
    call_off(rendezvous, &rendezvous->failure);
}

/* Send a frame to every rank that has a connection, for it and for those behind it. */
static banyan_status send_down(struct rendezvous *rendezvous, const struct wire_frame *frame,
                               const void *data)
{
    banyan_status status = BANYAN_OK;
    pthread_mutex_lock(&rendezvous->reactor.lock);
    for (size_t i = 0; i < rendezvous->children.count; i++) {
        struct link *link = rendezvous->children.data[i].link;
        banyan_status sent = link_send(link, frame, data, -1);
        if (sent != BANYAN_OK && frame->kind == WIRE_GO)
            shutdown(link->fd, SHUT_RDWR);
        status = status == BANYAN_OK ? sent : status;
        reactor_update(&rendezvous->reactor, link);
    }
    pthread_mutex_unlock(&rendezvous->reactor.lock);
    return status;
}

/* Send all ranks the table, once all have joined. */
static void hand_out_table(struct rendezvous *rendezvous)
{
    bytes_writer table = {0};
    table_write(&table, rendezvous->world_size);
    for (int rank = 0; rank < rendezvous->world_size; rank++)
        member_write(&table, &rendezvous->entries[rank].request.self);
    struct wire_frame frame = {.kind = WIRE_TABLE, .bytes = table.count};
    rendezvous->phase = PREPARING;
    banyan_status status = table.failed
                               ? error_no_memory(table.count, "the table of ranks to hand out")
                               : send_down(rendezvous, &frame, table.data);
    bytes_writer_free(&table);
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
    (void)send_down(rendezvous, &frame, NULL);
}

/* Send a log line to a waiting rank. */
static void send_news_to(struct rendezvous *rendezvous, int rank, const char *text)
{
    struct link *link = rendezvous->entries[rank].link;
    struct wire_frame frame = {.kind = WIRE_NEWS, .tag = (uint64_t)rank, .bytes = strlen(text)};
    pthread_mutex_lock(&rendezvous->reactor.lock);
    link_send(link, &frame, text, -1);
    reactor_update(&rendezvous->reactor, link);
    pthread_mutex_unlock(&rendezvous->reactor.lock);
}

/* Send a log line to all waiting ranks. */
static void rendezvous_send_news(struct rendezvous *rendezvous, const char *text)
{
    struct wire_frame frame = {.kind = WIRE_NEWS, .tag = WIRE_ALL, .bytes = strlen(text)};
    log_info("the rendezvous: %s", text);
    (void)send_down(rendezvous, &frame, text);
}

static void write_death(const struct rendezvous *rendezvous, int rank, char text[NEWS_BYTES])
{
    const struct member *self = &rendezvous->entries[rank].request.self;
    snprintf(text, NEWS_BYTES,
             "rank %d (pid %d on node %s) died before all %d ranks had joined; until the deadline "
             "another process may take its place",
             rank, self->pid, self->host, rendezvous->world_size);
}

/* A rank has come again: it may have missed the news of deaths. */
static void send_deaths(struct rendezvous *rendezvous, int to)
{
    char text[NEWS_BYTES];
    for (int rank = 0; rank < rendezvous->world_size; rank++) {
        if (!rendezvous->entries[rank].died)
            continue;
        write_death(rendezvous, rank, text);
        send_news_to(rendezvous, to, text);
    }
}

/* Send a rank the last error. It came on this link, its own or that of a rank before it. `for_all`:
 * it concerns the ranks behind it, too. */
static void refuse_link(struct rendezvous *rendezvous, struct link *link, int rank,
                        banyan_status status, bool for_all)
{
    const char *text = banyan_last_error();
    struct wire_frame frame = {.kind = WIRE_DISMISS,
                               .flags = (uint32_t)status,
                               .tag = (uint64_t)rank,
                               .bytes = strlen(text)};
    pthread_mutex_lock(&rendezvous->reactor.lock);
    if (rank != link->rank)
        link_send(link, &frame, text, -1);
    else if (for_all)
        link_refuse_all(link, rendezvous->failure_number, status, text);
    else
        link_refuse(link, status, text);
    reactor_update(&rendezvous->reactor, link);
    pthread_mutex_unlock(&rendezvous->reactor.lock);
}

static void refuse_rank(struct rendezvous *rendezvous, struct link *link, int rank,
                        banyan_status status)
{
    bool for_all = rendezvous->refuses || rendezvous->failure.status != BANYAN_OK;
    if (!rendezvous->refuses)
        log_warn("%s refused %s: %s", rendezvous->reactor.name, link->who, banyan_last_error());
    refuse_link(rendezvous, link, rank, status, for_all);
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

static banyan_status check_join(struct rendezvous *rendezvous, const struct join_request *request)
{
    if (rendezvous->refuses) {
        rendezvous->refused++;
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
            call_off_here(rendezvous, error_set(BANYAN_ERR_PEER_LOST,
                                                "the rank through which rank %d had joined died "
                                                "while the world was opened",
                                                request->rank));
        else
            call_off_for_loss(rendezvous);
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
        send_deaths(rendezvous, request->rank);
    log_debug("rank %d of %d (pid %d) joins%s", request->rank, request->world_size,
              request->self.pid, link->rank == request->rank ? "" : " through another rank");
}

static banyan_status take_request(struct rendezvous *rendezvous, struct link *link,
                                  struct join_request *request)
{
    bool is_own = request->rank == link->rank, is_new = is_own && !is_seated(rendezvous, link);
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
        rendezvous->refused += rendezvous->refuses != NULL;
        if (rendezvous->refuses || !blob || !join_read(blob, length, &request) ||
            check_request(rendezvous, &request) != BANYAN_OK ||
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
    while (reader.left > 0) {
        uint32_t rank = bytes_read_u32(&reader);
        struct rank_entry *entry =
            rendezvous->phase == PREPARING && rank < (uint32_t)rendezvous->world_size
                ? &rendezvous->entries[rank]
                : NULL;
        if (reader.failed || !entry || entry->link != link || entry->ready)
            return error_set(BANYAN_ERR_FORMAT, "%s is ready for a world that is not opened",
                             link->who);
        entry->ready = true;
        rendezvous->ready++;
    }
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
        /* It informs the ranks that joined through it. */
        for (int rank = 0; rank < rendezvous->world_size; rank++)
            rendezvous->entries[rank].came |= rendezvous->entries[rank].cut_off == request.rank + 1;
        call_off_for(rendezvous, request.rank, &why);
        status = error_again(&rendezvous->failure);
    }
    if (status == BANYAN_OK)
        status = error_set(BANYAN_ERR_MISMATCH, "rank %d is another process", request.rank);
    pthread_mutex_lock(&rendezvous->reactor.lock);
    link_refuse_all(link, rendezvous->failure_number, status, banyan_last_error());
    pthread_mutex_unlock(&rendezvous->reactor.lock);
    return status;
}

/* A rank has lost its way to this process. `died`: it will not come back. Otherwise another rank's
 * end has cut it off (-1: which is unknown). */
static void rank_left(struct rendezvous *rendezvous, int rank, bool died, int ended)
{
    struct rank_entry *entry = &rendezvous->entries[rank];
    char text[NEWS_BYTES];
    entry->link = NULL;
    rendezvous->joined--;
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
    write_death(rendezvous, rank, text);
    rendezvous_send_news(rendezvous, text);
}

/* Return the rank that died, of a message about losses; -1: none. */
static int find_died(const void *data, size_t bytes)
{
    bytes_reader reader = bytes_reader_of(data, bytes);
    while (reader.left > 0 && !reader.failed) {
        uint32_t rank = bytes_read_u32(&reader);
        if (bytes_read_u32(&reader) != 0)
            return (int)rank;
    }
    return -1;
}

static banyan_status take_left(struct rendezvous *rendezvous, const struct link *link,
                               const void *data, size_t bytes)
{
    bytes_reader reader = bytes_reader_of(data, bytes);
    int ended = find_died(data, bytes);
    while (reader.left > 0) {
        uint32_t rank = bytes_read_u32(&reader), died = bytes_read_u32(&reader);
        if (reader.failed || rank >= (uint32_t)rendezvous->world_size || (int)rank == link->rank)
            return error_set(BANYAN_ERR_FORMAT, "%s reports malformed losses", link->who);
        if (rendezvous->entries[rank].link == link)
            rank_left(rendezvous, (int)rank, died != 0, ended);
    }
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
        call_off_here(rendezvous, status);
        return;
    }
    tree_remove_child(&rendezvous->children, link);
    for (int rank = 0; rank < rendezvous->world_size; rank++) {
        if (rendezvous->entries[rank].link == link)
            rank_left(rendezvous, rank, rank == link->rank, link->rank);
    }
}

static const struct reactor_ops rendezvous_ops = {
    .link = {.admit = admit_anybody, .ready = nothing_to_say, .frame = rendezvous_take_frame},
    .closed = leave_seat,
};

/* Why a rank is not connected. A rank that is cut off returns soon. */
enum absence { PRESENT, NEVER_JOINED, GAVE_UP, RETURNS, ABSENCES };

static enum absence absence_of(const struct rank_entry *entry)
{
    if (entry->link)
        return PRESENT;
    if (entry->gave_up)
        return GAVE_UP;
    return time_now_ns() < entry->returns_until_ns ? RETURNS : NEVER_JOINED;
}

/* List the ranks that never joined or, if there are none, those that joined and gave up. */
static void name_missing(const struct rendezvous *rendezvous, char *text, size_t bytes)
{
    int named = 0, counts[ABSENCES] = {0};
    size_t used = 0;
    for (int rank = 0; rank < rendezvous->world_size; rank++)
        counts[absence_of(&rendezvous->entries[rank])]++;
    enum absence listed = counts[NEVER_JOINED] > 0 ? NEVER_JOINED
                          : counts[GAVE_UP] > 0    ? GAVE_UP
                                                   : RETURNS;
    text[0] = '\0';
    for (int rank = 0; rank < rendezvous->world_size && named < MISSING_NAMED; rank++) {
        const struct rank_entry *entry = &rendezvous->entries[rank];
        if (absence_of(entry) == listed)
            used += (size_t)snprintf(text + used, bytes - used, "%s%d%s", named++ ? ", " : "", rank,
                                     entry->died ? " (died)" : "");
    }
    if (counts[listed] > named)
        used +=
            (size_t)snprintf(text + used, bytes - used, " and %d others", counts[listed] - named);
    if (listed == GAVE_UP)
        snprintf(text + used, bytes - used, " (gave up waiting)");
}

/* Disconnect ranks whose deadline has passed, with a list of the missing ranks. A rank comes after
 * those that join through it. */
static void send_home(struct rendezvous *rendezvous)
{
    uint64_t now = time_now_ns();
    for (int rank = rendezvous->world_size - 1; rendezvous->entries && rank >= 0; rank--) {
        struct rank_entry *entry = &rendezvous->entries[rank];
        struct link *link = entry->link;
        if (!link || now < entry->gives_up_ns)
            continue;
        char missing[MISSING_BYTES];
        name_missing(rendezvous, missing, sizeof missing);
        banyan_status status = error_set(
            BANYAN_ERR_TIMEOUT,
            "rank %d waited %.1f s for all %d ranks to join: not there yet: rank %s; " TIMEOUT_HINT,
            rank, (double)entry->request.limit_ns / 1e9, rendezvous->world_size, missing);
        entry->gave_up = true;
        refuse_link(rendezvous, link, rank, status, false);
        if (rank == link->rank)
            reactor_drop(&rendezvous->reactor, link, status);
        else
            rank_left(rendezvous, rank, false, -1);
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
        rank, (double)rendezvous->entries[rank].request.limit_ns / 1e9, late, who->pid, who->host));
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
    log_info("the rendezvous: %s", text);
    int lowest = 0;
    while (!rendezvous->entries[lowest].link)
        lowest++;
    send_news_to(rendezvous, lowest, text);
}

static void rendezvous_free(struct rendezvous *rendezvous)
{
    char what[64];
    snprintf(what, sizeof what, "the rendezvous of %d ranks", rendezvous->world_size);
    reactor_log_traffic(&rendezvous->reactor, what);
    reactor_close(&rendezvous->reactor);
    sodium_memzero(&rendezvous->place, sizeof rendezvous->place);
    array_free(&rendezvous->children);
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
        hand_out_table(rendezvous);
    if (rendezvous->phase == GATHERING) {
        send_home(rendezvous);
        rendezvous_send_missing(rendezvous);
        return false;
    }
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
                                                 opened->place.key, &rendezvous_ops, opened)
                                  : error_no_memory(sizeof *opened, "a rendezvous");
    if (status != BANYAN_OK) {
        if (tcp_fd >= 0)
            close(tcp_fd);
        free(opened);
        return status;
    }
    opened->place = *place;
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
    error_kept named = tree_name_failure(0, why);
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
