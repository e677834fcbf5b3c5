/* A rendezvous gives up: it informs the ranks that are connected, and keeps the reason for those
 * that come later. */
#include "world/bootstrap/hosting.h"

#include <string.h>
#include <sys/socket.h>

#include "core/log.h"
#include "world/bootstrap/tree.h"

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

void rendezvous_call_off(struct rendezvous *rendezvous, const error_kept *why)
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

void rendezvous_call_off_for(struct rendezvous *rendezvous, int rank, const error_kept *why)
{
    error_kept named = tree_name_failure(rank, why);
    keep_failure(rendezvous, &named);
    rendezvous->entries[rank].came = true;
    rendezvous_call_off(rendezvous, &rendezvous->failure);
}

void rendezvous_call_off_here(struct rendezvous *rendezvous, banyan_status status)
{
    error_kept why = error_keep(status);
    if (!rendezvous->detached)
        why = tree_name_failure(0, &why);
    keep_failure(rendezvous, &why);
    rendezvous_call_off(rendezvous, &rendezvous->failure);
}

void rendezvous_call_off_for_loss(struct rendezvous *rendezvous)
{
    struct rank_entry *entry = &rendezvous->entries[rendezvous->lost];
    const struct member *lost = &entry->request.self;
    error_kept why = error_keep(error_set(BANYAN_ERR_PEER_LOST,
                                          "rank %d (pid %d on node %s) died while the world was "
                                          "opened",
                                          rendezvous->lost, lost->pid, lost->host));
    entry->came = true;
    keep_failure(rendezvous, &why);
    rendezvous_call_off(rendezvous, &rendezvous->failure);
}

void rendezvous_refuse_link(struct rendezvous *rendezvous, struct link *link, int rank,
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
