/* What a rendezvous tells the ranks that wait: who is missing, who died, who took a place. */
#include "world/bootstrap/hosting.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "core/deadline.h"
#include "core/log.h"

#define MISSING_NAMED 10

banyan_status rendezvous_send_down(struct rendezvous *rendezvous, const struct wire_frame *frame,
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

void rendezvous_send_news(struct rendezvous *rendezvous, const char *text)
{
    struct wire_frame frame = {.kind = WIRE_NEWS, .tag = WIRE_ALL, .bytes = strlen(text)};
    log_info("the rendezvous: %s", text);
    (void)rendezvous_send_down(rendezvous, &frame, text);
}

static void write_death(const struct rendezvous *rendezvous, int rank, char text[NEWS_BYTES])
{
    const struct member *self = &rendezvous->entries[rank].request.self;
    snprintf(text, NEWS_BYTES,
             "rank %d (pid %d on node %s) died before all %d ranks had joined; until the deadline "
             "another process may take its place",
             rank, self->pid, self->host, rendezvous->world_size);
}

void rendezvous_send_death(struct rendezvous *rendezvous, int rank)
{
    char text[NEWS_BYTES];
    write_death(rendezvous, rank, text);
    rendezvous_send_news(rendezvous, text);
}

void rendezvous_send_deaths(struct rendezvous *rendezvous, int to)
{
    char text[NEWS_BYTES];
    for (int rank = 0; rank < rendezvous->world_size; rank++) {
        if (!rendezvous->entries[rank].died)
            continue;
        write_death(rendezvous, rank, text);
        send_news_to(rendezvous, to, text);
    }
}

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

void rendezvous_name_missing(const struct rendezvous *rendezvous, char *text, size_t bytes)
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

void rendezvous_send_missing(struct rendezvous *rendezvous)
{
    uint64_t now = time_now_ns();
    if (rendezvous->joined == 0 || now < rendezvous->news_ns)
        return;
    char missing[MISSING_BYTES], text[NEWS_BYTES];
    rendezvous->news_ns = now + log_wait_period_ns();
    rendezvous_name_missing(rendezvous, missing, sizeof missing);
    snprintf(text, sizeof text,
             "%.1f s after the first of all %d ranks joined, not there yet: rank %s",
             (double)(now - rendezvous->came_ns) / 1e9, rendezvous->world_size, missing);
    log_info("the rendezvous: %s", text);
    int lowest = 0;
    while (!rendezvous->entries[lowest].link)
        lowest++;
    send_news_to(rendezvous, lowest, text);
}
