#include "world/bootstrap/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/log.h"
#include "core/threads/thread.h"
#include "world/bootstrap/hosting.h"
#include "world/bootstrap/tree.h"

/* Longest time for sent tables and messages to arrive. */
#define FAREWELL_NS (10 * NS_PER_S)
#define LOOK_NS (100 * NS_PER_MS)
/* Time for which late ranks are still informed that the world does not open. */
#define TURN_AWAY_NS NS_PER_S

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
                               : rendezvous_send_down(rendezvous, &frame, table.data);
    bytes_writer_free(&table);
    if (status != BANYAN_OK)
        rendezvous_call_off_here(rendezvous, status);
}

/* Inform all ranks that all accept connections. Each rank then disconnects. A rank that cannot be
 * reached loses its connection instead, and then tries to open its world. */
static void let_go(struct rendezvous *rendezvous)
{
    struct wire_frame frame = {.kind = WIRE_GO};
    reactor_stop_listening(&rendezvous->reactor);
    rendezvous->phase = ALL_READY;
    rendezvous->ends_ns = deadline_after(FAREWELL_NS);
    (void)rendezvous_send_down(rendezvous, &frame, NULL);
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
        rendezvous_name_missing(rendezvous, missing, sizeof missing);
        banyan_status status = error_set(
            BANYAN_ERR_TIMEOUT,
            "rank %d waited %.1f s for all %d ranks to join: not there yet: rank %s; " TIMEOUT_HINT,
            rank, (double)entry->request.limit_ns / 1e9, rendezvous->world_size, missing);
        entry->gave_up = true;
        rendezvous_refuse_link(rendezvous, link, rank, status, false);
        if (rank == link->rank)
            reactor_drop(&rendezvous->reactor, link, status);
        else
            rendezvous_rank_left(rendezvous, rank, false, -1);
    }
}

/* All ranks have joined, but not all become ready: the first one to die or to exceed its deadline
 * ends the opening. */
static void check_preparing(struct rendezvous *rendezvous)
{
    uint64_t now = time_now_ns();
    int late = 0, rank = 0;
    if (rendezvous->lost >= 0 && now >= rendezvous->lost_ns) {
        rendezvous_call_off_for_loss(rendezvous);
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
    rendezvous_call_off(rendezvous, &why);
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
        rendezvous_call_off_for(rendezvous, 0, &rendezvous->own_failure);
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
        status = rendezvous_fix_size(started, 0, world_size);
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
    /* Without it, a rank that comes twice counts twice. */
    rendezvous->entries = calloc((size_t)world_size, sizeof *rendezvous->entries);
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
