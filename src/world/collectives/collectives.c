#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/containers.h"
#include "core/error.h"
#include "core/module.h"
#include "world/world.h"

/* Dissemination: in log2(ranks) steps every rank receives a value from every other, directly or
 * through others. A value may arrive twice, so combining it must be idempotent. */

struct gathered_value {
    const void *data;
    size_t bytes;
    void *owned; /* memory of the value to free; NULL: none */
};

/* True if the received value replaces the current one. */
typedef bool (*value_wins)(const struct gathered_value *received,
                           const struct gathered_value *held);

/* Return the tag of the first step of the collective that begins. Between enter and leave this rank
 * is inside. */
static uint64_t world_enter_collective(banyan_world *world)
{
    struct context *context = world->context;
    pthread_mutex_lock(&world->endpoint->reactor.lock);
    while (context_gave_up(context, context->number))
        context->number++;
    context->inside = true;
    uint64_t tag = context->number << NUMBER_SHIFT;
    pthread_mutex_unlock(&world->endpoint->reactor.lock);
    return tag;
}

static void world_leave_collective(banyan_world *world)
{
    struct context *context = world->context;
    pthread_mutex_lock(&world->endpoint->reactor.lock);
    context->inside = false;
    context->number++;
    pthread_mutex_unlock(&world->endpoint->reactor.lock);
}

uint64_t world_next_collective(banyan_world *world)
{
    uint64_t tag = world_enter_collective(world);
    world_leave_collective(world);
    return tag;
}

static banyan_status collectives_take_step(banyan_world *world, uint64_t tag, int reach,
                                           const char *what, value_wins wins,
                                           struct gathered_value *value)
{
    int to = (int)(((int64_t)world->rank + reach) % world->size);
    int from = (int)(((int64_t)world->rank - reach + world->size) % world->size);
    RETURN_IF_FAILED(world_send(world, WIRE_COLLECTIVE, to, tag, value->data, value->bytes, -1));
    struct message *message;
    RETURN_IF_FAILED(world_receive(world, WIRE_COLLECTIVE, from, tag, what, &message));
    struct gathered_value received = {message->data, message->bytes, message->data};
    if (wins && wins(&received, value)) {
        free(value->owned);
        *value = received;
        message->data = NULL;
    }
    message_free(message);
    return BANYAN_OK;
}

/* Exchange values; a received value that wins replaces `value`. */
static banyan_status collectives_disseminate(banyan_world *world, const char *what, value_wins wins,
                                             struct gathered_value *value)
{
    uint64_t tag = world_enter_collective(world);
    banyan_status status = BANYAN_OK;
    for (int reach = 1; reach < world->size && status == BANYAN_OK; reach *= 2)
        status = collectives_take_step(world, tag++, reach, what, wins, value);
    world_leave_collective(world);
    return status;
}

banyan_status world_barrier(banyan_world *world, const char *what)
{
    RETURN_IF_FAILED(control_check(world));
    struct gathered_value nothing = {0};
    return collectives_disseminate(world, what, NULL, &nothing);
}

/* A gate that was given up is retried under its next number, with its old deadline. */
typedef banyan_status (*gate_try)(banyan_world *world, void *state);
static banyan_status pass_gate(banyan_world *world, gate_try attempt, void *state)
{
    control_wait wait = control_wait_begin(world);
    banyan_status status;
    world->gate = &wait;
    do {
        world->again = false;
        status = control_check(world);
        if (status == BANYAN_OK)
            status = attempt(world, state);
    } while (world->again);
    world->gate = NULL;
    world->missed = status == BANYAN_ERR_TIMEOUT ? error_keep(status) : (error_kept){0};
    return status;
}

static banyan_status collectives_try_barrier(banyan_world *world, void *state)
{
    (void)state;
    return world_barrier(world, "to enter the call");
}

banyan_status control_enter(banyan_world *world)
{
    if (!world || !world_begins_call())
        return world ? control_check(world) : BANYAN_OK;
    return pass_gate(world, collectives_try_barrier, NULL);
}

banyan_status banyan_world_barrier(banyan_world *world)
{
    CONTROL_CALL(world, __func__);
    return world_begins_call() ? pass_gate(world, collectives_try_barrier, NULL)
                               : world_barrier(world, "barrier");
}

/* Keep the larger of each two values; this rank's value is its own array of them. */
static bool keep_larger(const struct gathered_value *received, const struct gathered_value *held)
{
    uint64_t *mine = (uint64_t *)held->data, theirs;
    for (size_t at = 0; received->bytes == held->bytes && at < held->bytes; at += sizeof theirs) {
        memcpy(&theirs, (const char *)received->data + at, sizeof theirs);
        if (theirs > mine[at / sizeof theirs])
            mine[at / sizeof theirs] = theirs;
    }
    return false;
}

banyan_status control_max_each(banyan_world *world, uint64_t *values, size_t count)
{
    RETURN_IF_FAILED(control_check(world));
    struct gathered_value value = {.data = values, .bytes = count * sizeof *values};
    return collectives_disseminate(world, "largest value of all ranks", keep_larger, &value);
}

banyan_status control_max(banyan_world *world, uint64_t mine, uint64_t *max)
{
    RETURN_IF_FAILED(control_max_each(world, &mine, 1));
    *max = mine;
    return BANYAN_OK;
}

struct largest {
    uint64_t mine, all;
};

static banyan_status try_max(banyan_world *world, void *state)
{
    struct largest *of = state;
    return control_max(world, of->mine, &of->all);
}

banyan_status control_enter_max(banyan_world *world, uint64_t mine, uint64_t *max)
{
    struct largest of = {.mine = mine};
    if (!world_begins_call())
        return control_max(world, mine, max);
    RETURN_IF_FAILED(pass_gate(world, try_max, &of));
    *max = of.all;
    return BANYAN_OK;
}

/* A rank's failure: its number, its status, its message; empty when it has none. */
static bool lower_rank_wins(const struct gathered_value *received,
                            const struct gathered_value *held)
{
    if (received->bytes < 2 * sizeof(uint32_t) || held->bytes == 0)
        return received->bytes >= 2 * sizeof(uint32_t);
    bytes_reader theirs = bytes_reader_of(received->data, received->bytes);
    bytes_reader mine = bytes_reader_of(held->data, held->bytes);
    return bytes_read_u32(&theirs) < bytes_read_u32(&mine);
}

/* True if the message begins with the rank's name. */
static bool names_rank(const char *text, size_t bytes, const char *name)
{
    size_t length = strlen(name);
    return bytes > length && memcmp(text, name, length) == 0 &&
           (text[length] == ':' || text[length] == ' ');
}

/* The name at the start of the latest message that this thread has received from an agreement or
 * the end of a world. */
static _Thread_local char agreed_name[CONTEXT_RANK_BYTES];

/* Flag of a failure whose message begins with a rank's name that is valid in all worlds. */
#define FAILURE_IS_NAMED (UINT32_C(1) << 31)

/* True if the message already names the failed rank: an agreement on the result of an agreement
 * keeps that name. */
static bool is_named(const char *text)
{
    return context_names_rank(text) ||
           (agreed_name[0] && names_rank(text, strlen(text), agreed_name));
}

/* Write a failure and return its length. Allocates nothing, because the failure may be out of
 * memory. */
static size_t write_failure(int rank, banyan_status status, unsigned char *text, size_t bytes)
{
    uint32_t flags = is_named(banyan_last_error()) ? FAILURE_IS_NAMED : 0;
    uint32_t head[2] = {(uint32_t)rank, (uint32_t)status | flags};
    uint64_t length = strnlen(banyan_last_error(), bytes - sizeof head - sizeof length);
    memcpy(text, head, sizeof head);
    memcpy(text + sizeof head, &length, sizeof length);
    memcpy(text + sizeof head + sizeof length, banyan_last_error(), (size_t)length);
    return sizeof head + sizeof length + (size_t)length;
}

/* Records "rank 3" or "rank 1 (rank 3 of the job)". */
void world_note_name(const char *text)
{
    int at = 0, rank, job_rank, end = 0;
    agreed_name[0] = '\0';
    if (sscanf(text, "rank %d%n (rank %d of the job)%n", &rank, &at, &job_rank, &end) < 1)
        return;
    snprintf(agreed_name, sizeof agreed_name, "%.*s", end > 0 ? end : at, text);
}

/* Set the agreed failure as this rank's error. */
static banyan_status collectives_take_failure(const banyan_world *world,
                                              const struct gathered_value *value)
{
    bytes_reader reader = bytes_reader_of(value->data, value->bytes);
    int rank = (int)bytes_read_u32(&reader);
    uint32_t flags = bytes_read_u32(&reader);
    banyan_status status = (banyan_status)(flags & ~FAILURE_IS_NAMED);
    size_t bytes;
    const char *text = bytes_read_blob(&reader, &bytes);
    char name[CONTEXT_RANK_BYTES], own[CONTEXT_RANK_BYTES];
    context_rank_text(world->context, rank, name);
    if (!text)
        return error_set(status, "%s failed", name);
    int skipped = snprintf(own, sizeof own, "rank %d", rank);
    if ((flags & FAILURE_IS_NAMED) || names_rank(text, bytes, name))
        (void)error_set(status, "%.*s", (int)bytes, text);
    else if (names_rank(text, bytes, own))
        (void)error_set(status, "%s%.*s", name, (int)bytes - skipped, text + skipped);
    else if (rank == world->rank)
        (void)error_set(status, "%.*s", (int)bytes, text);
    else
        (void)error_set(status, "%s: %.*s", name, (int)bytes, text);
    world_note_name(banyan_last_error());
    return status;
}

/* `in_vain`: this rank has waited for the others, so that it does not wait for them here for as
 * long again. */
static banyan_status collectives_agree(banyan_world *world, banyan_status mine, bool in_vain)
{
    unsigned char text[4096];
    struct gathered_value value = {.data = text};
    if (mine == BANYAN_OK)
        agreed_name[0] = '\0';
    if (mine == BANYAN_OK)
        RETURN_IF_FAILED(control_check(world));
    else
        value.bytes = write_failure(world->rank, mine, text, sizeof text);
    error_kept kept = error_keep(mine);
    world->agreeing = control_check(world) == BANYAN_OK;
    world->in_vain = in_vain && !world->in_vain ? &kept : world->in_vain;
    banyan_status status = collectives_disseminate(
        world, "agreement on whether all ranks succeeded", lower_rank_wins, &value);
    world->agreeing = false;
    world->in_vain = world->in_vain == &kept ? NULL : world->in_vain;
    if (status == BANYAN_OK && value.bytes > 0) {
        endpoint_flush(world->endpoint); /* a failing rank may end its process at once */
        status = collectives_take_failure(world, &value);
    }
    free(value.owned);
    return status;
}

banyan_status control_agree(banyan_world *world, banyan_status mine)
{
    return collectives_agree(world, mine, mine == BANYAN_ERR_TIMEOUT);
}

banyan_status control_agree_on_other_world(banyan_world *world, banyan_status mine)
{
    return collectives_agree(world, mine, false);
}

banyan_status control_fail_together(banyan_world *world, banyan_status status)
{
    if (status == BANYAN_OK)
        return status;
    error_kept kept = error_keep(status);
    (void)control_agree(world, status);
    return error_again(&kept);
}

banyan_status banyan_module_agree(banyan_world *world, banyan_status mine)
{
    return control_agree(world, mine);
}

banyan_status control_gather(banyan_world *world, banyan_status status, const void *mine,
                             size_t bytes, const char *what, void **all)
{
    size_t all_bytes = (size_t)world->size * bytes;
    void *made = status == BANYAN_OK ? malloc(all_bytes) : NULL;
    *all = NULL;
    if (status == BANYAN_OK && !made)
        status = error_no_memory(all_bytes, what);
    status = control_agree(world, status);
    if (status == BANYAN_OK)
        status = banyan_world_allgather(world, mine, bytes, made);
    if (status == BANYAN_OK)
        *all = made;
    else
        free(made);
    return status;
}

/* Broadcast, along a binomial tree. */

static banyan_status collectives_pass_on(banyan_world *world, uint64_t tag, int root, int reach,
                                         const void *data, size_t bytes)
{
    int place = (int)(((int64_t)world->rank - root + world->size) % world->size);
    for (; reach > 0; reach /= 2) {
        if ((int64_t)place + reach >= world->size)
            continue;
        int to = (int)(((int64_t)world->rank + reach) % world->size);
        RETURN_IF_FAILED(world_send(world, WIRE_COLLECTIVE, to, tag, data, bytes, -1));
    }
    return BANYAN_OK;
}

static banyan_status collectives_broadcast(banyan_world *world, uint64_t tag, void *data,
                                           size_t bytes, int root)
{
    int place = (int)(((int64_t)world->rank - root + world->size) % world->size);
    int reach = 1;
    while (place == 0 ? reach < world->size : !(place & reach))
        reach *= 2;
    if (place == 0)
        return collectives_pass_on(world, tag, root, reach / 2, data, bytes);
    int from = (int)(((int64_t)world->rank - reach + world->size) % world->size);
    struct message *message;
    RETURN_IF_FAILED(world_receive(world, WIRE_COLLECTIVE, from, tag, "broadcast", &message));
    banyan_status status =
        collectives_pass_on(world, tag, root, reach / 2, message->data, message->bytes);
    if (status == BANYAN_OK && message->bytes != bytes)
        status =
            error_set(BANYAN_ERR_MISMATCH, "rank %d broadcasts %zu bytes, but rank %d expects %zu",
                      root, message->bytes, world->rank, bytes);
    if (status == BANYAN_OK && bytes > 0)
        memcpy(data, message->data, bytes);
    message_free(message);
    return status;
}

banyan_status banyan_world_broadcast(banyan_world *world, void *data, size_t bytes, int root)
{
    if (root < 0 || root >= world->size)
        return error_set(BANYAN_ERR_INVALID, "broadcast from rank %d in a world of %d", root,
                         world->size);
    CONTROL_ENTER(world);
    uint64_t tag = world_enter_collective(world);
    banyan_status status = collectives_broadcast(world, tag, data, bytes, root);
    world_leave_collective(world);
    return status;
}

/* Gather (Bruck): each step doubles the number of ranks whose bytes are here. */

/* Blocks of the ranks from this one upwards, modulo the size. */
struct gathered {
    size_t *sizes;
    int count;
    bytes_writer data;
};

static size_t collectives_sum(const size_t *sizes, int count)
{
    size_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += sizes[i];
    return bytes;
}

static banyan_status collectives_send_blocks(banyan_world *world, int to, uint64_t tag,
                                             const struct gathered *gathered, int count)
{
    bytes_writer text = {0};
    for (int i = 0; i < count; i++)
        bytes_write_u64(&text, gathered->sizes[i]);
    bytes_write(&text, gathered->data.data, collectives_sum(gathered->sizes, count));
    banyan_status status =
        text.failed ? error_no_memory(collectives_sum(gathered->sizes, count), "what is gathered")
                    : world_send(world, WIRE_COLLECTIVE, to, tag, text.data, text.count, -1);
    bytes_writer_free(&text);
    return status;
}

static banyan_status append_blocks(banyan_world *world, int from, const struct message *message,
                                   int count, struct gathered *gathered)
{
    bytes_reader reader = bytes_reader_of(message->data, message->bytes);
    uint64_t left = message->bytes - (uint64_t)count * sizeof(uint64_t);
    bool sane = message->bytes >= (uint64_t)count * sizeof(uint64_t);
    for (int i = 0; i < count && sane; i++) {
        uint64_t bytes = bytes_read_u64(&reader);
        sane = bytes <= left;
        left -= bytes;
        gathered->sizes[gathered->count + i] = (size_t)bytes;
    }
    if (!sane || left != 0)
        return error_set(BANYAN_ERR_MISMATCH,
                         "rank %d expected %d blocks of a gather from rank %d and got %zu bytes: "
                         "the ranks do not call the same operation",
                         world->rank, count, from, message->bytes);
    bytes_write(&gathered->data, reader.data, reader.left);
    gathered->count += count;
    if (gathered->data.failed)
        return error_no_memory(reader.left, "what is gathered");
    return BANYAN_OK;
}

static banyan_status gather_all(banyan_world *world, uint64_t tag, const char *what,
                                struct gathered *gathered)
{
    for (int size = world->size; gathered->count < size; tag++) {
        int reach = gathered->count;
        int count = reach < size - reach ? reach : size - reach;
        int to = (world->rank - reach + size) % size;
        int from = (int)(((int64_t)world->rank + reach) % size);
        RETURN_IF_FAILED(collectives_send_blocks(world, to, tag, gathered, count));
        struct message *message;
        RETURN_IF_FAILED(world_receive(world, WIRE_COLLECTIVE, from, tag, what, &message));
        banyan_status status = append_blocks(world, from, message, count, gathered);
        message_free(message);
        RETURN_IF_FAILED(status);
    }
    return BANYAN_OK;
}

/* Reorder from this rank's order into rank order. */
static banyan_status collectives_unrotate(const banyan_world *world,
                                          const struct gathered *gathered, void **all,
                                          size_t *sizes)
{
    size_t total = gathered->data.count;
    unsigned char *ordered = malloc(total > 0 ? total : 1);
    if (!ordered)
        return error_no_memory(total, "what was gathered");
    int low = world->size - world->rank; /* blocks of this rank and those above it */
    size_t high_bytes = collectives_sum(gathered->sizes, low), low_bytes = total - high_bytes;
    if (low_bytes > 0)
        memcpy(ordered, gathered->data.data + high_bytes, low_bytes);
    if (high_bytes > 0)
        memcpy(ordered + low_bytes, gathered->data.data, high_bytes);
    for (int i = 0; i < world->size; i++)
        sizes[(world->rank + i) % world->size] = gathered->sizes[i];
    *all = ordered;
    return BANYAN_OK;
}

struct gathering {
    const void *mine;
    size_t bytes;
    const char *what;
    void **all;
    size_t *sizes;
};

static banyan_status try_gather(banyan_world *world, void *state)
{
    const struct gathering *of = state;
    struct gathered gathered = {.sizes = calloc((size_t)world->size, sizeof *gathered.sizes),
                                .count = 1};
    if (!gathered.sizes)
        return control_fail(world, error_no_memory((size_t)world->size * sizeof *gathered.sizes,
                                                   "what is gathered"));
    gathered.sizes[0] = of->bytes;
    bytes_write(&gathered.data, of->mine, of->bytes);
    uint64_t tag = world_enter_collective(world);
    banyan_status status = gathered.data.failed ? error_no_memory(of->bytes, "what is gathered")
                                                : gather_all(world, tag, of->what, &gathered);
    world_leave_collective(world);
    if (status == BANYAN_OK)
        status = collectives_unrotate(world, &gathered, of->all, of->sizes);
    bytes_writer_free(&gathered.data);
    free(gathered.sizes);
    return status == BANYAN_ERR_NO_MEMORY ? control_fail(world, status) : status;
}

/* Concatenate the data of all ranks, in rank order; `sizes` has one entry per rank. Also a gate:
 * when all ranks' data is here, all have entered. */
static banyan_status world_gather(banyan_world *world, const void *mine, size_t bytes,
                                  const char *what, void **all, size_t *sizes)
{
    struct gathering of = {mine, bytes, what, all, sizes};
    RETURN_IF_FAILED(control_check(world));
    return world_begins_call() ? pass_gate(world, try_gather, &of) : try_gather(world, &of);
}

banyan_status banyan_world_allgatherv(banyan_world *world, const void *mine, size_t bytes,
                                      void **all, size_t *all_bytes)
{
    CONTROL_CALL(world, __func__);
    return world_gather(world, mine, bytes, "allgatherv", all, all_bytes);
}

banyan_status banyan_world_allgather(banyan_world *world, const void *mine, size_t bytes, void *all)
{
    CONTROL_CALL(world, __func__);
    size_t *sizes = calloc((size_t)world->size, sizeof *sizes);
    if (!sizes)
        return control_fail(world,
                            error_no_memory((size_t)world->size * sizeof *sizes, "an allgather"));
    void *gathered = NULL;
    banyan_status status = world_gather(world, mine, bytes, "allgather", &gathered, sizes);
    for (int rank = 1; rank < world->size && status == BANYAN_OK; rank++) {
        if (sizes[rank] != sizes[0])
            status = error_set(BANYAN_ERR_MISMATCH,
                               "rank %d gives %zu bytes to an allgather, rank 0 gives %zu", rank,
                               sizes[rank], sizes[0]);
        if (status != BANYAN_OK)
            status = control_fail_together(world, status);
    }
    if (status == BANYAN_OK && bytes > 0)
        memcpy(all, gathered, bytes * (size_t)world->size);
    free(gathered);
    free(sizes);
    return status;
}
