/* Short puts and additions, as active messages that the owner's processor carries out.
 *
 * A message has records of puts and additions, and the data of its puts. A put waits in the open
 * message of its peer until an addition, a flush, or a full message: so a put and its signal are
 * one message, which the owner does not acknowledge. Short data is copied into the message. Longer
 * data is read from its source, one part for each message, and is pending until UCX has read it.
 *
 * Order: messages have numbers, and the owner carries them out in order. UCX orders its own puts
 * before messages only by a flush. So an addition behind such a put waits in a queue until a flush
 * has ended. All messages that follow wait there too, and the caller goes on.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ucx/ucx.h"

#define DATA_BYTES ((size_t)8 << 10)
/* A longer put is not copied into the message. */
#define COPIED_MOST ((size_t)4 << 10)
/* A part, with its header, fits into one packet of UCX over TCP (64 KiB). */
#define PART_MOST ((size_t)62 << 10)
#define PART_MULTIPLE 64
#define RECORDS_MAX 64
/* Messages to a peer that UCX has not sent. */
#define QUEUED_MAX 128

enum { RECORD_PUT, RECORD_ADD, RECORD_FETCH, RECORD_CONFIRM };

typedef struct ucx_record {
    uint32_t what, kind; /* kind and id name the memory */
    uint64_t id, address;
    uint64_t value; /* bytes of a put; what is added */
} ucx_record;

typedef struct ucx_message_header {
    int32_t rank; /* of the sender */
    uint32_t record_count;
    uint64_t number;
    ucx_record records[];
} ucx_message_header;

struct ucx_message {
    ucx_message *next;
    ucx_peer *peer;
    uint64_t after;     /* puts of UCX that must be flushed before */
    const void *source; /* of the data; NULL: it is in `data` */
    size_t bytes;       /* of the data */
    char *data;         /* NULL: not allocated */
    ucx_message_header header;
};

typedef struct ucx_reply {
    int32_t rank; /* of the sender */
    uint32_t has_fetched;
    uint64_t confirms, received; /* confirmations, of all messages up to this number */
    uint64_t fetched;
} ucx_reply;

static size_t header_bytes(uint32_t records)
{
    return sizeof(ucx_message_header) + records * sizeof(ucx_record);
}

/* ---- the sender's side ---- */

static ucx_message *message_take(ucx *of)
{
    size_t bytes = offsetof(ucx_message, header) + header_bytes(RECORDS_MAX);
    ucx_message *message = calloc(1, bytes);
    if (!message)
        (void)ucx_no_memory(of, bytes);
    return message;
}

static void message_free(ucx_message *message)
{
    if (!message)
        return;
    free(message->data);
    free(message);
}

/* Return the peer's open message. NULL: out of memory. */
static ucx_message *message_open(ucx *of, int rank)
{
    ucx_peer *peer = &of->peers[rank];
    if (peer->open)
        return peer->open;
    ucx_message *message = of->unused;
    if (message)
        of->unused = message->next;
    else
        message = message_take(of);
    if (!message)
        return NULL;
    message->next = NULL;
    message->peer = peer;
    message->after = 0;
    message->source = NULL;
    message->bytes = 0;
    message->header.rank = of->rank;
    message->header.record_count = 0;
    peer->open = message;
    return message;
}

/* The message is sent, or dropped. */
static void message_end(ucx_message *message)
{
    ucx_peer *peer = message->peer;
    if (message->source)
        peer->pending--;
    message->next = peer->of->unused;
    peer->of->unused = message;
}

static void peer_failed(ucx_peer *peer, ucs_status_t status)
{
    if (!peer->has_failed)
        peer->failure = status;
    peer->has_failed = true;
}

static void message_sent(void *request, ucs_status_t status, void *argument)
{
    ucx_message *message = argument;
    ucx_peer *peer = message->peer;
    ucx_calls.ucp_request_free(request);
    if (status != UCS_OK)
        peer_failed(peer, status);
    peer->queued--;
    message_end(message);
}

/* Give a message to UCX. */
static banyan_status message_transmit(ucx *of, int rank, ucx_message *message)
{
    ucx_peer *peer = message->peer;
    ucp_ep_h endpoint;
    banyan_status status = ucx_connect(of, rank, &endpoint);
    if (status != BANYAN_OK) {
        message_end(message);
        return status;
    }
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .cb = {.send = message_sent},
        .user_data = message,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucs_status_ptr_t request = ucx_calls.ucp_am_send_nbx(
        endpoint, UCX_MESSAGE, &message->header, header_bytes(message->header.record_count),
        message->source ? message->source : message->data, message->bytes, &params);
    if (UCS_PTR_IS_PTR(request)) {
        peer->queued++;
        return BANYAN_OK;
    }
    message_end(message);
    if (!request)
        return BANYAN_OK;
    peer_failed(peer, UCS_PTR_STATUS(request));
    return banyan_error_set(BANYAN_ERR_PEER_LOST, "ucx: rank %d cannot send to rank %d: %s",
                            of->rank, rank, ucx_calls.ucs_status_string(UCS_PTR_STATUS(request)));
}

static void messages_advance(ucx *of, int rank);

static void puts_flushed(void *request, ucs_status_t status, void *argument)
{
    ucx_peer *peer = argument;
    ucx *of = peer->of;
    ucx_calls.ucp_request_free(request);
    peer->is_flushing = false;
    if (status != UCS_OK)
        peer_failed(peer, status);
    if (peer->has_failed)
        return;
    peer->flushed = peer->flushing;
    messages_advance(of, (int)(peer - of->peers));
}

/* Flush all puts of UCX that have started. */
static void puts_flush(ucx_peer *peer)
{
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb = {.send = puts_flushed},
        .user_data = peer,
    };
    peer->flushing = peer->puts;
    ucs_status_ptr_t request = ucx_calls.ucp_ep_flush_nbx(peer->endpoint, &params);
    peer->is_flushing = UCS_PTR_IS_PTR(request);
    if (UCS_PTR_IS_ERR(request))
        peer_failed(peer, UCS_PTR_STATUS(request));
    else if (!request)
        peer->flushed = peer->flushing;
}

/* Send the messages whose puts are flushed, and flush what others wait for. */
static void messages_advance(ucx *of, int rank)
{
    ucx_peer *peer = &of->peers[rank];
    while (peer->endpoint && !peer->has_failed && !peer->is_flushing) {
        ucx_message *first = peer->owed;
        uint64_t needed = first ? first->after : 0;
        needed = needed > peer->flush_to ? needed : peer->flush_to;
        if (needed > peer->flushed) {
            puts_flush(peer);
        } else if (first) {
            peer->owed = first->next;
            peer->queued--;
            (void)message_transmit(of, rank, first); /* the peer's failure is noted */
        } else {
            break;
        }
    }
}

/* Send the open message, or queue it behind `after` puts. */
static banyan_status message_close(ucx *of, int rank, uint64_t after)
{
    ucx_peer *peer = &of->peers[rank];
    ucx_message *message = peer->open;
    peer->open = NULL;
    peer->is_held = false;
    message->header.number = ++peer->sent;
    message->after = after;
    if (!peer->owed && after <= peer->flushed)
        return message_transmit(of, rank, message);
    if (peer->owed)
        peer->owed_last->next = message;
    else
        peer->owed = message;
    peer->owed_last = message;
    peer->queued++;
    messages_advance(of, rank);
    return BANYAN_OK;
}

bool ucx_messages_have_room(const ucx_peer *peer)
{
    return peer->queued < QUEUED_MAX;
}

/* Open a message that takes one more record and `bytes` of data: copied, or else its first. */
static banyan_status message_with_room(ucx *of, int rank, size_t bytes, bool is_copied,
                                       ucx_message **message)
{
    const ucx_message *open = of->peers[rank].open;
    if (open && (open->header.record_count == of->records_most ||
                 (bytes > 0 && (open->source || open->bytes + bytes > DATA_BYTES)) ||
                 (!is_copied && open->bytes > 0))) {
        banyan_status status = message_close(of, rank, 0);
        if (status != BANYAN_OK)
            return status;
    }
    *message = message_open(of, rank);
    return *message ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static void record_append(ucx_message *message, uint32_t what, const ucx_key *key, uint64_t address,
                          uint64_t value)
{
    message->header.records[message->header.record_count++] =
        (ucx_record){what, key ? key->entry.kind : 0, key ? key->entry.id : 0, address, value};
}

size_t ucx_message_part(size_t bytes)
{
    size_t parts = (bytes + PART_MOST - 1) / PART_MOST;
    return parts < 2 ? bytes : (bytes / parts + PART_MULTIPLE) / PART_MULTIPLE * PART_MULTIPLE;
}

/* Copy data into a message. */
static banyan_status message_copy(ucx *of, ucx_message *message, const void *source, size_t bytes)
{
    if (!message->data)
        message->data = malloc(DATA_BYTES);
    if (!message->data)
        return ucx_no_memory(of, DATA_BYTES);
    memcpy(message->data + message->bytes, source, bytes);
    return BANYAN_OK;
}

banyan_status ucx_message_put(ucx *of, int rank, const ucx_key *key, uint64_t address,
                              const void *source, size_t bytes)
{
    bool is_copied = bytes <= COPIED_MOST;
    ucx_message *message;
    banyan_status status = message_with_room(of, rank, bytes, is_copied, &message);
    if (status == BANYAN_OK && is_copied)
        status = message_copy(of, message, source, bytes);
    if (status != BANYAN_OK)
        return status;
    record_append(message, RECORD_PUT, key, address, bytes);
    message->bytes += bytes;
    if (!is_copied) {
        message->source = source;
        message->peer->pending++;
        message->peer->is_held = true;
    }
    return BANYAN_OK;
}

banyan_status ucx_message_add(ucx *of, int rank, const ucx_key *key, uint64_t address, uint64_t add,
                              uint64_t *before)
{
    ucx_peer *peer = &of->peers[rank];
    ucx_message *message;
    banyan_status status = message_with_room(of, rank, 0, true, &message);
    if (status != BANYAN_OK)
        return status;
    record_append(message, before ? RECORD_FETCH : RECORD_ADD, key, address, add);
    if (before) {
        peer->fetch = before;
        peer->asked++;
        peer->pending++;
    }
    return message_close(of, rank, peer->puts);
}

banyan_status ucx_messages_release(ucx *of, int rank)
{
    return of->peers[rank].is_held ? message_close(of, rank, 0) : BANYAN_OK;
}

banyan_status ucx_messages_flush(ucx *of, int rank)
{
    ucx_peer *peer = &of->peers[rank];
    ucx_message *message;
    peer->flush_to = peer->puts;
    messages_advance(of, rank);
    if (!peer->open && peer->confirmed == peer->sent)
        return BANYAN_OK;
    banyan_status status = message_with_room(of, rank, 0, true, &message);
    if (status != BANYAN_OK)
        return status;
    record_append(message, RECORD_CONFIRM, NULL, 0, 0);
    peer->asked++;
    peer->pending++;
    return message_close(of, rank, 0);
}

void ucx_messages_drop(ucx *of, int rank)
{
    ucx_peer *peer = &of->peers[rank];
    if (peer->open)
        message_end(peer->open);
    for (ucx_message *message = peer->owed, *next; message; message = next) {
        next = message->next;
        message_end(message);
    }
    peer->pending -= peer->asked;
    peer->open = peer->owed = NULL;
    peer->is_held = false;
    peer->is_flushing = false;
    peer->queued = peer->asked = 0;
    peer->fetch = NULL;
}

static ucs_status_t reply_arrived(void *argument, const void *header, size_t bytes, void *data,
                                  size_t data_bytes, const ucp_am_recv_param_t *params)
{
    (void)data, (void)data_bytes, (void)params;
    ucx *of = argument;
    ucx_reply reply;
    if (bytes != sizeof reply)
        return UCS_OK;
    memcpy(&reply, header, sizeof reply);
    if (reply.rank < 0 || reply.rank >= of->size)
        return UCS_OK;
    ucx_peer *peer = &of->peers[reply.rank];
    uint64_t answers = reply.confirms + reply.has_fetched;
    if (answers > peer->asked)
        return UCS_OK; /* to a wait that has failed */
    if (reply.has_fetched && peer->fetch)
        *peer->fetch = reply.fetched;
    if (reply.confirms > 0)
        peer->confirmed = reply.received;
    peer->asked -= answers;
    peer->pending -= answers;
    return UCS_OK;
}

/* ---- the owner's side ---- */

/* Note the first fault. The sender's library is at fault, or memory that ended too early: the data
 * is lost, and nobody may wait for it. */
static void fault_note(ucx *of, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void fault_note(ucx *of, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (!of->fault[0])
        vsnprintf(of->fault, sizeof of->fault, format, arguments);
    va_end(arguments);
}

void ucx_report_fault(ucx *of)
{
    char fault[sizeof of->fault];
    if (!atomic_load_explicit(&of->has_fault, memory_order_relaxed))
        return;
    pthread_mutex_lock(&of->lock);
    memcpy(fault, of->fault, sizeof fault);
    of->has_fault = false;
    pthread_mutex_unlock(&of->lock);
    if (banyan_world_check(of->world) == BANYAN_OK)
        (void)banyan_world_abort(of->world, fault);
}

static void replies_owe(ucx *of, int rank)
{
    ucx_peer *peer = &of->peers[rank];
    if (!peer->owes)
        of->owing[of->owing_count++] = rank;
    peer->owes = true;
}

/* Find the bytes of a record in own memory. NULL: there are none, which is noted. */
static char *record_find(ucx *of, int rank, const ucx_record *record, uint64_t bytes,
                         uint64_t alignment)
{
    const ucx_mapping *mapping = ucx_find_mapping(of, record->kind, record->id);
    uint64_t offset = mapping ? record->address - mapping->address : 0;
    if (mapping && mapping->is_on_host && record->address >= mapping->address &&
        offset <= mapping->bytes && bytes <= mapping->bytes - offset &&
        record->address % alignment == 0)
        return (char *)(uintptr_t)record->address; /* NOLINT(performance-no-int-to-ptr) */
    fault_note(of,
               "ucx: a message of rank %d writes %" PRIu64 " bytes at %#" PRIx64
               " of memory %#" PRIx64 ", of which rank %d has %" PRIu64 " bytes at %#" PRIx64,
               rank, bytes, record->address, record->id, of->rank, mapping ? mapping->bytes : 0,
               mapping ? mapping->address : 0);
    return NULL;
}

/* List bytes of the redirected part. False: there is no space in the list. */
static bool redirection_note(banyan_redirection *of, size_t offset, size_t bytes)
{
    for (size_t i = 0; i < of->span_count; i++) {
        if (of->spans[i].offset + of->spans[i].bytes == offset) {
            of->spans[i].bytes += bytes;
            return true;
        }
    }
    if (of->span_count == BANYAN_REDIRECTION_SPANS)
        return false;
    of->spans[of->span_count].offset = offset;
    of->spans[of->span_count++].bytes = bytes;
    return true;
}

/* Return where a put arrives. */
static char *record_destination(const ucx *of, char *to, uint64_t bytes)
{
    banyan_redirection *redirection = of->redirection;
    if (!redirection || to < redirection->address)
        return to;
    size_t offset = (size_t)(to - redirection->address);
    if (offset > redirection->bytes || bytes > redirection->bytes - offset ||
        !redirection_note(redirection, offset, bytes))
        return to;
    return redirection->to + offset;
}

void ucx_redirect(void *state, banyan_redirection *redirection)
{
    ucx *of = state;
    pthread_mutex_lock(&of->lock);
    of->redirection = redirection;
    pthread_mutex_unlock(&of->lock);
}

/* False: the message is wrong, which is noted. */
static bool record_carry_out(ucx *of, int rank, const ucx_record *record, const char *data)
{
    ucx_peer *peer = &of->peers[rank];
    if (record->what == RECORD_CONFIRM) {
        peer->confirms++;
        replies_owe(of, rank);
        return true;
    }
    if (record->what > RECORD_CONFIRM) {
        fault_note(of, "ucx: rank %d sent rank %d a record of kind %" PRIu32 ", which is none",
                   rank, of->rank, record->what);
        return false;
    }
    if (record->what == RECORD_PUT) {
        char *to = record_find(of, rank, record, record->value, 1);
        if (to)
            memcpy(record_destination(of, to, record->value), data, record->value);
        return to;
    }
    char *counter = record_find(of, rank, record, sizeof(uint64_t), sizeof(uint64_t));
    if (!counter)
        return false;
    uint64_t before = atomic_fetch_add_explicit((_Atomic uint64_t *)(void *)counter, record->value,
                                                memory_order_acq_rel);
    if (record->what == RECORD_FETCH) {
        peer->fetched = before;
        peer->has_fetched = true;
        replies_owe(of, rank);
    }
    return true;
}

static void message_carry_out(ucx *of, const ucx_message_header *header, const char *data,
                              size_t bytes)
{
    size_t done = 0;
    for (uint32_t i = 0; i < header->record_count && !of->fault[0]; i++) {
        const ucx_record *record = &header->records[i];
        uint64_t some = record->what == RECORD_PUT ? record->value : 0;
        if (some > bytes - done) {
            fault_note(of,
                       "ucx: message %" PRIu64 " of rank %d to rank %d has %zu bytes, not %" PRIu64
                       " and more",
                       header->number, header->rank, of->rank, bytes, some);
            break;
        }
        if (!record_carry_out(of, header->rank, record, data + done))
            break;
        done += some;
    }
    of->peers[header->rank].received = header->number;
    if (of->fault[0])
        of->has_fault = true;
}

/* Keep a message until earlier ones have come. */
static void message_keep(ucx *of, const ucx_message_header *header, const char *data, size_t bytes)
{
    ucx_message **at = &of->peers[header->rank].early;
    ucx_message *kept = message_take(of);
    if (kept)
        kept->data = malloc(bytes + 1);
    if (!kept || !kept->data) {
        message_free(kept);
        fault_note(of, "ucx: rank %d is out of memory for a message of rank %d of %zu bytes",
                   of->rank, header->rank, bytes);
        of->has_fault = true;
        return;
    }
    memcpy(&kept->header, header, header_bytes(header->record_count));
    if (bytes > 0)
        memcpy(kept->data, data, bytes);
    kept->bytes = bytes;
    while (*at && (*at)->header.number < header->number)
        at = &(*at)->next;
    kept->next = *at;
    *at = kept;
}

static ucs_status_t message_arrived(void *argument, const void *given, size_t given_bytes,
                                    void *data, size_t bytes, const ucp_am_recv_param_t *params)
{
    ucx *of = argument;
    _Alignas(ucx_message_header) char
        copy[sizeof(ucx_message_header) + RECORDS_MAX * sizeof(ucx_record)];
    ucx_message_header *header = (ucx_message_header *)(void *)copy;
    if (given_bytes >= sizeof *header && given_bytes <= sizeof copy)
        memcpy(copy, given, given_bytes);
    if (given_bytes < sizeof *header || given_bytes > sizeof copy ||
        header->record_count > RECORDS_MAX || given_bytes != header_bytes(header->record_count) ||
        header->rank < 0 || header->rank >= of->size ||
        header->number <= of->peers[header->rank].received ||
        (params->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        fault_note(of, "ucx: rank %d received a message of %zu + %zu bytes that is none", of->rank,
                   given_bytes, bytes);
        of->has_fault = true;
        return UCS_OK;
    }
    ucx_peer *peer = &of->peers[header->rank];
    if (header->number > peer->received + 1) {
        message_keep(of, header, data, bytes);
        return UCS_OK;
    }
    message_carry_out(of, header, data, bytes);
    while (peer->early && peer->early->header.number == peer->received + 1) {
        ucx_message *next = peer->early;
        peer->early = next->next;
        message_carry_out(of, &next->header, next->data, next->bytes);
        message_free(next);
    }
    return UCS_OK;
}

size_t ucx_messages_reply(ucx *of)
{
    size_t count = (size_t)of->owing_count;
    while (of->owing_count > 0) {
        int rank = of->owing[--of->owing_count];
        ucx_peer *peer = &of->peers[rank];
        ucx_reply reply = {of->rank, peer->has_fetched, peer->confirms, peer->received,
                           peer->fetched};
        peer->owes = peer->has_fetched = false;
        peer->confirms = 0;
        /* If it cannot be sent, the peer's wait ends with its own endpoint's error or deadline. */
        (void)ucx_send(of, rank, UCX_REPLY, &reply, sizeof reply, NULL, 0);
    }
    return count;
}

banyan_status ucx_messages_listen(ucx *of)
{
    ucp_worker_attr_t attributes = {.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
    ucs_status_t queried = ucx_calls.ucp_worker_query(of->worker, &attributes);
    if (queried != UCS_OK)
        return ucx_failed(of, "ucp_worker_query", queried);
    if (attributes.max_am_header < header_bytes(2))
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "ucx: rank %d sends headers of %zu bytes at most; %zu are needed",
                                of->rank, attributes.max_am_header, header_bytes(2));
    size_t records = (attributes.max_am_header - header_bytes(0)) / sizeof(ucx_record);
    of->records_most = records < RECORDS_MAX ? (uint32_t)records : RECORDS_MAX;
    banyan_status status = ucx_listen(of, UCX_MESSAGE, message_arrived);
    return status == BANYAN_OK ? ucx_listen(of, UCX_REPLY, reply_arrived) : status;
}

static void messages_list_free(ucx_message *first)
{
    while (first) {
        ucx_message *next = first->next;
        message_free(first);
        first = next;
    }
}

void ucx_messages_free(ucx *of)
{
    for (int rank = 0; of->peers && rank < of->size; rank++) {
        messages_list_free(of->peers[rank].early);
        messages_list_free(of->peers[rank].owed);
        message_free(of->peers[rank].open);
    }
    messages_list_free(of->unused);
}
