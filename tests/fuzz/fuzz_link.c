/* Bytes on a control connection, in pieces of any size: before the handshake, and after it. The
 * first byte chooses which, the second how the input is divided. */
#include "fuzz.h"

#include <sys/socket.h>

#include "world/net/link.h"

enum { BEFORE_HELLO, BEFORE_CHALLENGE, AFTER_HANDSHAKE, STAGES };

static banyan_status admit(void *owner, struct link *link)
{
    (void)owner;
    (void)link;
    FUZZ_REQUIRE(!"somebody without the key was let in");
    return BANYAN_OK;
}

static void ready(void *owner, struct link *link)
{
    (void)owner;
    (void)link;
    FUZZ_REQUIRE(!"somebody without the key was let in");
}

static banyan_status take_frame(void *owner, struct link *link, const struct wire_frame *frame,
                                void *payload, int fd)
{
    (void)link;
    ++*(size_t *)owner;
    FUZZ_REQUIRE(frame->bytes == 0 || payload);
    FUZZ_REQUIRE(frame->bytes <= WIRE_PAYLOAD_MAX);
    /* The last byte must be readable. */
    if (frame->bytes > 0) {
        volatile unsigned char last = ((unsigned char *)payload)[frame->bytes - 1];
        (void)last;
    }
    free(payload);
    if (fd >= 0)
        close(fd);
    return BANYAN_OK;
}

static const struct link_ops ops = {admit, ready, take_frame};

static const unsigned char fuzz_key[WIRE_KEY_BYTES] = {1, 2, 3};

void fuzz_write_seeds(void)
{
    uint8_t seed[2 + 2 * sizeof(struct wire_frame) + 5] = {AFTER_HANDSHAKE, 7};
    struct wire_frame frame = {.kind = WIRE_MESSAGE, .context = 1, .tag = 2, .bytes = 5};
    memcpy(seed + 2, &frame, sizeof frame);
    memcpy(seed + 2 + sizeof frame, "hello", 5);
    frame = (struct wire_frame){.kind = WIRE_GOODBYE};
    memcpy(seed + 2 + sizeof frame + 5, &frame, sizeof frame);
    fuzz_seed(seed, sizeof seed);
    uint8_t hello[2 + sizeof(struct wire_hello)] = {BEFORE_HELLO, 50};
    struct wire_hello said = {WIRE_MAGIC, WIRE_VERSION, WIRE_PURPOSE_PEER, 1, 0, {0}, {0}};
    wire_tag(fuzz_key, &said);
    memcpy(hello + 2, &said, sizeof said);
    fuzz_seed(hello, sizeof hello);
    uint8_t challenge[2 + sizeof(struct wire_challenge)] = {BEFORE_CHALLENGE, 50};
    struct wire_challenge answered = {.magic = WIRE_MAGIC, .version = WIRE_VERSION};
    memcpy(challenge + 2, &answered, sizeof answered);
    fuzz_seed(challenge, sizeof challenge);
}

static void feed(struct link *link, const uint8_t *data, size_t size, size_t cut)
{
    while (size > 0) {
        size_t some = cut < size ? cut : size, room;
        unsigned char *place = link_payload_room(link, &room);
        banyan_status status;
        if (place) {
            some = some < room ? some : room;
            memcpy(place, data, some);
            status = link_filled(link, some);
        } else {
            status = link_feed(link, data, some);
        }
        if (!fuzz_took(status))
            return;
        data += some;
        size -= some;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    int fds[2];
    size_t frames = 0;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    FUZZ_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    struct link *link = calloc(1, sizeof *link);
    bool connects = data[0] % STAGES == BEFORE_CHALLENGE;
    link_init(link, fds[0], connects, true, WIRE_PURPOSE_PEER, connects ? 1 : -1, 0);
    link->key = fuzz_key;
    link->ops = &ops;
    link->owner = &frames;
    link->lock = &lock;
    if (data[0] % STAGES == AFTER_HANDSHAKE)
        link->stage = LINK_READY;
    feed(link, data + 2, size - 2, (size_t)data[1] + 1);
    link_destroy(link);
    close(fds[1]);
    return 0;
}
