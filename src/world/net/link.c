#include "world/net/link.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/error.h"

/* Limit of a refusal's reason in a message. */
#define REFUSAL_BYTES 1024
/* Memory for a payload before any of it has arrived. A header can claim any size at no cost, so
 * memory grows with the bytes that arrive. */
#define FIRST_PAYLOAD_BYTES (256 * 1024)

struct link_chunk {
    struct link_chunk *next;
    size_t bytes, sent;
    int fd; /* sent with the first byte; -1: none */
    unsigned char data[];
};

static_assert(sizeof(struct wire_challenge) <= LINK_HEAD_BYTES, "a challenge fits the head");
static_assert(sizeof(struct wire_hello) <= LINK_HEAD_BYTES, "a hello fits the head");

void link_init(struct link *link, int fd, bool connects, bool connected, uint32_t purpose, int from,
               int to)
{
    link->fd = fd;
    link->connects = connects;
    link->rank = -1;
    link->stage = !connected ? LINK_CONNECTING : connects ? LINK_CHALLENGE : LINK_HELLO;
    link->hello = (struct wire_hello){
        .magic = WIRE_MAGIC, .version = WIRE_VERSION, .purpose = purpose, .from = from, .to = to};
    if (connects)
        randombytes_buf(link->hello.nonce, sizeof link->hello.nonce);
    else
        randombytes_buf(link->nonce, sizeof link->nonce);
}

void link_close_descriptors(struct link *link)
{
    for (struct link_chunk *chunk = link->first; chunk; chunk = chunk->next) {
        if (chunk->fd >= 0)
            close(chunk->fd);
    }
    for (int i = 0; i < link->descriptor_count; i++) {
        if (link->descriptors[i] >= 0)
            close(link->descriptors[i]);
    }
    if (link->fd >= 0)
        close(link->fd);
}

void link_destroy(struct link *link)
{
    link_close_descriptors(link);
    while (link->first) {
        struct link_chunk *chunk = link->first;
        link->first = chunk->next;
        free(chunk);
    }
    free(link->payload);
    sodium_memzero(link, sizeof *link);
    free(link);
}

/* Send as sendmsg does, with a descriptor. -1 with errno set. */
static ssize_t send_some(int socket, struct iovec *pieces, size_t count, int fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count};
    if (fd >= 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    ssize_t sent;
    do
        sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent;
}

static bool must_wait(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS || error == ENOMEM ||
           error == ETOOMANYREFS;
}

bool link_is_peers_error(int error)
{
    return error == EPIPE || error == ECONNRESET || error == ECONNABORTED || error == ETIMEDOUT ||
           error == ECONNREFUSED || error == EHOSTUNREACH || error == EHOSTDOWN ||
           error == ENETUNREACH || error == ENETDOWN;
}

static void break_off(struct link *link, int error)
{
    link->broken = true;
    if (!link_is_peers_error(error))
        link->own_error = error;
}

void link_flush(struct link *link)
{
    while (link_has_output(link)) {
        struct link_chunk *chunk = link->first;
        struct iovec rest = {chunk->data + chunk->sent, chunk->bytes - chunk->sent};
        ssize_t sent = send_some(link->fd, &rest, 1, chunk->sent == 0 ? chunk->fd : -1);
        if (sent < 0) {
            if (!must_wait(errno))
                break_off(link, errno);
            return;
        }
        chunk->sent += (size_t)sent;
        if (chunk->sent < chunk->bytes)
            continue;
        link->first = chunk->next;
        if (!link->first)
            link->last = NULL;
        if (chunk->fd >= 0)
            close(chunk->fd);
        free(chunk);
    }
}

/* Append the rest of the pieces, after `skip` bytes, to the queue. */
static banyan_status queue_rest(struct link *link, const struct iovec *pieces, size_t count,
                                size_t skip, int fd)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += pieces[i].iov_len;
    bytes -= skip;
    struct link_chunk *chunk = malloc(sizeof *chunk + bytes);
    if (!chunk)
        return error_no_memory(bytes, "a message that waits to be sent");
    *chunk = (struct link_chunk){.bytes = bytes, .fd = -1};
    if (fd >= 0 && skip == 0 && (chunk->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0) {
        free(chunk);
        return error_set_errno("cannot duplicate descriptor %d to send it", fd);
    }
    unsigned char *to = chunk->data;
    for (size_t i = 0; i < count; i++) {
        size_t skipped = skip < pieces[i].iov_len ? skip : pieces[i].iov_len;
        skip -= skipped;
        if (pieces[i].iov_len > skipped)
            memcpy(to, (char *)pieces[i].iov_base + skipped, pieces[i].iov_len - skipped);
        to += pieces[i].iov_len - skipped;
    }
    if (link->last)
        link->last->next = chunk;
    else
        link->first = chunk;
    link->last = chunk;
    return BANYAN_OK;
}

static banyan_status write_pieces(struct link *link, struct iovec *pieces, size_t count, int fd)
{
    errno = link->own_error;
    if (link->broken)
        return errno == 0 ? BANYAN_OK : error_set_errno("cannot write to %s", link->who);
    size_t total = 0, sent = 0;
    for (size_t i = 0; i < count; i++)
        total += pieces[i].iov_len;
    if (!link->first) {
        ssize_t wrote = send_some(link->fd, pieces, count, fd);
        if (wrote < 0 && !must_wait(errno)) {
            break_off(link, errno);
            errno = link->own_error;
            return errno == 0 ? BANYAN_OK : error_set_errno("cannot write to %s", link->who);
        }
        sent = wrote < 0 ? 0 : (size_t)wrote;
    }
    return sent == total ? BANYAN_OK : queue_rest(link, pieces, count, sent, fd);
}

static banyan_status write_bytes(struct link *link, const void *data, size_t bytes)
{
    struct iovec piece = {(void *)data, bytes};
    return write_pieces(link, &piece, 1, -1);
}

static void link_mac_start(crypto_generichash_state *state, const unsigned char *key,
                           uint64_t count, char part)
{
    crypto_generichash_init(state, key, WIRE_KEY_BYTES, WIRE_MAC_BYTES);
    crypto_generichash_update(state, (const unsigned char *)&count, sizeof count);
    crypto_generichash_update(state, (const unsigned char *)&part, 1);
}

static void link_mac(const unsigned char *key, uint64_t count, char part, const void *data,
                     size_t bytes, unsigned char mac[WIRE_MAC_BYTES])
{
    crypto_generichash_state state;
    link_mac_start(&state, key, count, part);
    crypto_generichash_update(&state, data, bytes);
    crypto_generichash_final(&state, mac, WIRE_MAC_BYTES);
}

banyan_status link_send(struct link *link, const struct wire_frame *frame, const void *data, int fd)
{
    struct iovec pieces[4];
    size_t count = 0;
    unsigned char macs[2][WIRE_MAC_BYTES];
    size_t bytes = (size_t)frame->bytes;
    pieces[count++] = (struct iovec){(void *)frame, sizeof *frame};
    if (link->authenticated) {
        link_mac(link->out_key, link->out_count, 'h', frame, sizeof *frame, macs[0]);
        pieces[count++] = (struct iovec){macs[0], WIRE_MAC_BYTES};
    }
    if (bytes > 0)
        pieces[count++] = (struct iovec){(void *)data, bytes};
    if (bytes > 0 && link->authenticated) {
        link_mac(link->out_key, link->out_count, 'p', data, bytes, macs[1]);
        pieces[count++] = (struct iovec){macs[1], WIRE_MAC_BYTES};
    }
    link->out_count++;
    return write_pieces(link, pieces, count, fd);
}

static banyan_status send_refusal(struct link *link, uint32_t flags, uint64_t failure,
                                  banyan_status status, const char *text)
{
    struct wire_frame frame = {.kind = WIRE_REFUSED,
                               .flags = flags,
                               .context = failure,
                               .tag = (uint64_t)status,
                               .bytes = strlen(text)};
    return link_send(link, &frame, text, -1);
}

banyan_status link_refuse(struct link *link, banyan_status status, const char *text)
{
    return send_refusal(link, 0, 0, status, text);
}

banyan_status link_refuse_all(struct link *link, uint64_t failure, banyan_status status,
                              const char *text)
{
    return send_refusal(link, WIRE_FOR_ALL, failure, status, text);
}

banyan_status link_refuse_in_doubt(struct link *link, banyan_status status, const char *text)
{
    return send_refusal(link, WIRE_FOR_ALL | WIRE_IN_DOUBT, 0, status, text);
}

void link_greet(struct link *link)
{
    link->stage = LINK_CHALLENGE;
    wire_tag(link->key, &link->hello);
    if (write_bytes(link, &link->hello, sizeof link->hello) != BANYAN_OK)
        shutdown(link->fd, SHUT_RDWR); /* reading reports it */
}

static void derive_session_keys(struct link *link)
{
    enum wire_role mine = link->connects ? WIRE_CONNECTS : WIRE_ACCEPTS;
    enum wire_role theirs = link->connects ? WIRE_ACCEPTS : WIRE_CONNECTS;
    wire_session_key(link->key, mine, &link->hello, link->nonce, link->out_key);
    wire_session_key(link->key, theirs, &link->hello, link->nonce, link->in_key);
}

/* A peer with another key or version is answered too, so that it learns the reason. */
static banyan_status answer_hello(struct link *link)
{
    struct wire_hello hello;
    memcpy(&hello, link->head, sizeof hello);
    if (hello.magic != WIRE_MAGIC)
        return error_set(BANYAN_ERR_FORMAT, "%s does not speak Banyan's protocol", link->who);
    bool same_version = hello.version == WIRE_VERSION;
    if (same_version && (hello.purpose != link->hello.purpose || hello.to != link->hello.to))
        return error_set(BANYAN_ERR_FORMAT,
                         "%s looks for rank %d (purpose %u), this is rank %d (purpose %u)",
                         link->who, hello.to, hello.purpose, link->hello.to, link->hello.purpose);
    link->hello = hello;
    struct wire_challenge challenge = {.magic = WIRE_MAGIC, .version = WIRE_VERSION};
    memcpy(challenge.nonce, link->nonce, sizeof challenge.nonce);
    wire_prove(link->key, WIRE_ACCEPTS, &hello, link->nonce, challenge.proof);
    pthread_mutex_lock(link->lock);
    banyan_status status = write_bytes(link, &challenge, sizeof challenge);
    link->stage = LINK_PROOF;
    pthread_mutex_unlock(link->lock);
    if (!same_version)
        return error_set(BANYAN_ERR_FORMAT, "%s speaks version %u of the protocol, this is %u",
                         link->who, hello.version, WIRE_VERSION);
    if (!wire_tag_is_right(link->key, &hello))
        return error_set(BANYAN_ERR_REFUSED, "it has another secret, or belongs to another job");
    return status;
}

static banyan_status answer_challenge(struct link *link)
{
    struct wire_challenge challenge;
    memcpy(&challenge, link->head, sizeof challenge);
    if (challenge.magic != WIRE_MAGIC)
        return error_set(BANYAN_ERR_FORMAT, "%s does not speak Banyan's protocol", link->who);
    if (challenge.version != WIRE_VERSION)
        return error_set(BANYAN_ERR_REFUSED, "%s speaks version %llu of the protocol, this is %u",
                         link->who, (unsigned long long)challenge.version, WIRE_VERSION);
    unsigned char proof[WIRE_PROOF_BYTES];
    wire_prove(link->key, WIRE_ACCEPTS, &link->hello, challenge.nonce, proof);
    if (!wire_proof_equal(proof, challenge.proof))
        return error_set(BANYAN_ERR_REFUSED,
                         "%s does not know this job's secret: another job, or a wrong secret here",
                         link->who);
    memcpy(link->nonce, challenge.nonce, sizeof link->nonce);
    derive_session_keys(link);
    wire_prove(link->key, WIRE_CONNECTS, &link->hello, link->nonce, proof);
    pthread_mutex_lock(link->lock);
    banyan_status status = write_bytes(link, proof, sizeof proof);
    link->stage = LINK_WELCOME;
    pthread_mutex_unlock(link->lock);
    return status;
}

static banyan_status check_proof(struct link *link)
{
    unsigned char proof[WIRE_PROOF_BYTES];
    wire_prove(link->key, WIRE_CONNECTS, &link->hello, link->nonce, proof);
    if (!wire_proof_equal(proof, link->head))
        return error_set(BANYAN_ERR_REFUSED, "%s could not prove that it knows the job's secret",
                         link->who);
    derive_session_keys(link);
    banyan_status status = link->ops->admit(link->owner, link);
    pthread_mutex_lock(link->lock);
    if (status == BANYAN_OK) {
        struct wire_frame welcome = {.kind = WIRE_WELCOME};
        status = link_send(link, &welcome, NULL, -1);
        link->stage = LINK_READY;
    } else {
        link_refuse(link, status, banyan_last_error());
    }
    pthread_mutex_unlock(link->lock);
    if (status == BANYAN_OK)
        link->ops->ready(link->owner, link);
    return status;
}

static size_t head_wanted(const struct link *link)
{
    switch (link->stage) {
    case LINK_HELLO:
        return sizeof(struct wire_hello);
    case LINK_CHALLENGE:
        return sizeof(struct wire_challenge);
    case LINK_PROOF:
        return WIRE_PROOF_BYTES;
    default:
        return sizeof(struct wire_frame) + (link->authenticated ? WIRE_MAC_BYTES : 0);
    }
}

static int take_descriptor(struct link *link)
{
    if (link->descriptor_count == 0)
        return -1;
    int fd = link->descriptors[0];
    link->descriptor_count--;
    memmove(link->descriptors, link->descriptors + 1,
            (size_t)link->descriptor_count * sizeof link->descriptors[0]);
    return fd;
}

static banyan_status be_refused(const struct link *link, const struct wire_frame *frame,
                                const char *text)
{
    banyan_status status = (banyan_status)frame->tag;
    if (frame->tag == BANYAN_OK || frame->tag > BANYAN_ERR_NVSHMEM)
        status = BANYAN_ERR_REFUSED;
    if (!text || text[0] == '\0')
        return error_set(status, "%s refuses this process without a reason", link->who);
    int length = frame->bytes < REFUSAL_BYTES ? (int)frame->bytes : REFUSAL_BYTES;
    return error_set(status, "%.*s", length, text);
}

static void note_goodbye(struct link *link)
{
    pthread_mutex_lock(link->lock);
    link->peer_said_goodbye = true;
    pthread_mutex_unlock(link->lock);
}

static banyan_status complete_frame(struct link *link)
{
    struct wire_frame frame = link->frame;
    void *payload = link->payload;
    link->payload = NULL;
    link->part = LINK_PART_HEAD;
    atomic_fetch_add_explicit(&link->in_count, 1, memory_order_relaxed);
    banyan_status status = BANYAN_OK;
    if (frame.kind == WIRE_REFUSED) {
        link->refused = true;
        link->refused_all = frame.flags & WIRE_FOR_ALL;
        link->in_doubt = frame.flags & WIRE_IN_DOUBT;
        link->failure = frame.context;
        status = be_refused(link, &frame, payload);
        free(payload);
    } else if (frame.kind == WIRE_WELCOME) {
        free(payload);
        if (link->stage != LINK_WELCOME)
            return error_set(BANYAN_ERR_FORMAT, "%s sends a second welcome", link->who);
        pthread_mutex_lock(link->lock);
        link->stage = LINK_READY;
        pthread_mutex_unlock(link->lock);
        link->ops->ready(link->owner, link);
    } else if (link->stage != LINK_READY) {
        free(payload);
        status = error_set(BANYAN_ERR_FORMAT, "%s sends frame kind %u before the welcome",
                           link->who, frame.kind);
    } else {
        bool has_fd = frame.kind == WIRE_DESCRIPTOR && frame.flags & WIRE_HAS_DESCRIPTOR;
        int fd = has_fd ? take_descriptor(link) : -1;
        if (frame.kind == WIRE_GOODBYE)
            note_goodbye(link);
        status = link->ops->frame(link->owner, link, &frame, payload, fd);
    }
    return status;
}

/* Make space for the next bytes of the payload: at most as many as have arrived. */
static banyan_status grow_payload(struct link *link)
{
    uint64_t wanted = link->payload ? 2 * (uint64_t)link->payload_bytes : FIRST_PAYLOAD_BYTES;
    size_t bytes = (size_t)(wanted < link->frame.bytes ? wanted : link->frame.bytes);
    unsigned char *grown = realloc(link->payload, bytes);
    if (!grown)
        return error_no_memory(bytes, "a message");
    link->payload = grown;
    link->payload_bytes = bytes;
    return BANYAN_OK;
}

static banyan_status start_frame(struct link *link)
{
    memcpy(&link->frame, link->head, sizeof link->frame);
    if (link->authenticated) {
        unsigned char mac[WIRE_MAC_BYTES];
        link_mac(link->in_key, link->in_count, 'h', &link->frame, sizeof link->frame, mac);
        if (sodium_memcmp(mac, link->head + sizeof link->frame, WIRE_MAC_BYTES) != 0)
            return error_set(BANYAN_ERR_FORMAT, "a frame header from %s was changed on the way",
                             link->who);
    }
    uint64_t bytes = link->frame.bytes;
    if (link->frame.kind < WIRE_WELCOME || link->frame.kind > WIRE_GOODBYE ||
        bytes > WIRE_PAYLOAD_MAX)
        return error_set(BANYAN_ERR_FORMAT, "%s sends a frame of kind %u with %llu bytes",
                         link->who, link->frame.kind, (unsigned long long)bytes);
    if (bytes == 0)
        return complete_frame(link);
    RETURN_IF_FAILED(grow_payload(link));
    if (link->authenticated)
        link_mac_start(&link->in_mac, link->in_key, link->in_count, 'p');
    link->part = LINK_PART_PAYLOAD;
    return BANYAN_OK;
}

static banyan_status link_check_mac(struct link *link)
{
    unsigned char mac[WIRE_MAC_BYTES];
    crypto_generichash_final(&link->in_mac, mac, sizeof mac);
    if (sodium_memcmp(mac, link->head, sizeof mac) != 0)
        return error_set(BANYAN_ERR_FORMAT, "a message from %s was changed on the way", link->who);
    return complete_frame(link);
}

static size_t part_wanted(const struct link *link)
{
    switch (link->part) {
    case LINK_PART_PAYLOAD:
        return (size_t)link->frame.bytes;
    case LINK_PART_MAC:
        return WIRE_MAC_BYTES;
    default:
        return head_wanted(link);
    }
}

static banyan_status complete_part(struct link *link)
{
    link->have = 0;
    if (link->part == LINK_PART_MAC)
        return link_check_mac(link);
    if (link->part == LINK_PART_PAYLOAD) {
        if (!link->authenticated)
            return complete_frame(link);
        link->part = LINK_PART_MAC;
        return BANYAN_OK;
    }
    switch (link->stage) {
    case LINK_HELLO:
        return answer_hello(link);
    case LINK_CHALLENGE:
        return answer_challenge(link);
    case LINK_PROOF:
        return check_proof(link);
    default:
        return start_frame(link);
    }
}

banyan_status link_filled(struct link *link, size_t bytes)
{
    if (link->part == LINK_PART_PAYLOAD && link->authenticated)
        crypto_generichash_update(&link->in_mac, link->payload + link->have, bytes);
    link->have += bytes;
    if (link->have == part_wanted(link))
        return complete_part(link);
    bool full = link->part == LINK_PART_PAYLOAD && link->have == link->payload_bytes;
    return full ? grow_payload(link) : BANYAN_OK;
}

unsigned char *link_payload_room(struct link *link, size_t *room)
{
    if (link->part != LINK_PART_PAYLOAD)
        return NULL;
    *room = link->payload_bytes - link->have;
    return link->payload + link->have;
}

banyan_status link_feed(struct link *link, const unsigned char *data, size_t bytes)
{
    while (bytes > 0 && !link->closed) {
        size_t room = 0;
        unsigned char *to = link_payload_room(link, &room);
        if (!to) {
            to = link->head + link->have;
            room = part_wanted(link) - link->have;
        }
        size_t taken = room < bytes ? room : bytes;
        memcpy(to, data, taken);
        data += taken;
        bytes -= taken;
        RETURN_IF_FAILED(link_filled(link, taken));
    }
    return BANYAN_OK;
}
