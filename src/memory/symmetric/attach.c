#include "memory/symmetric/symmetric.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/containers.h"
#include "core/log.h"
#include "world/control.h"

#define NOT_REGISTERED UINT32_MAX

struct memory_attachments {
    memory_space *space;
    ARRAY(attached_share *) shares;
    char reason[320];
};

/* State of a collective attach. */
struct attaching {
    memory_space *space;
    int device;
    memory_wanted *wanted;
    size_t count;
    attached_share **places; /* the share of each wanted range; NULL: none */
    const memory_device_ops *ops;
    memory_attachments *made;
    ARRAY(attached_share *) fresh; /* to be mapped part by part */
    control_message *messages;     /* one a local rank */
    bytes_writer *writers;
};

static attached_share *attached_find(const memory_space *space, int owner, uint64_t id, int device)
{
    attached_share *at = space->attached;
    while (at && (at->owner != owner || at->id != id || at->device != device))
        at = at->next;
    return at;
}

static void attached_drop(memory_space *space, attached_share *share)
{
    if (--share->uses > 0)
        return;
    attached_share **at = &space->attached;
    while (*at != share)
        at = &(*at)->next;
    *at = share->next;
    const memory_device_ops *ops = memory_device_loaded(kDLCUDA);
    if (share->where.base)
        ops->detach(share->device, &share->what, &share->where);
    free(share);
}

void memory_attachments_free(memory_attachments *attached)
{
    if (!attached)
        return;
    for (size_t i = 0; i < attached->shares.count; i++)
        attached_drop(attached->space, attached->shares.data[i]);
    array_free(&attached->shares);
    free(attached);
}

void attached_shares_free(memory_space *space)
{
    while (space->attached) {
        space->attached->uses = 1;
        attached_drop(space, space->attached);
    }
}

const char *memory_attachments_reason(const memory_attachments *attached)
{
    return attached->reason;
}

static banyan_status work_begin(struct attaching *work)
{
    size_t peers = (size_t)work->space->local_size;
    work->made = calloc(1, sizeof *work->made);
    work->messages = calloc(peers, sizeof *work->messages);
    work->writers = calloc(peers, sizeof *work->writers);
    work->places = calloc(work->count + 1, sizeof *work->places);
    if (!work->made || !work->messages || !work->writers || !work->places)
        return error_no_memory((peers + work->count) * sizeof *work->writers,
                               "the attaching of peers' memory");
    work->made->space = work->space;
    if (work->count == 0)
        return BANYAN_OK;
    RETURN_IF_FAILED(memory_device_find(kDLCUDA, &work->ops));
    return work->ops->open(work->device);
}

static void writers_clear(struct attaching *work)
{
    for (int i = 0; work->writers && i < work->space->local_size; i++)
        bytes_writer_free(&work->writers[i]);
}

static void work_end(struct attaching *work)
{
    writers_clear(work);
    free(work->writers);
    free(work->messages);
    free(work->places);
    array_free(&work->fresh);
}

/* Turn the bytes written for each local rank into messages, and empty the writers. */
static banyan_status symmetric_attach_exchange(struct attaching *work, banyan_status mine,
                                               const char *what, control_message **received,
                                               size_t *received_count)
{
    size_t count = 0;
    for (int i = 0; mine == BANYAN_OK && i < work->space->local_size; i++) {
        if (work->writers[i].count > 0)
            work->messages[count++] = (control_message){
                work->space->local_ranks[i], work->writers[i].data, work->writers[i].count};
    }
    return control_exchange(work->space->world, work->messages, count, what, received,
                            received_count);
}

static bool attach_is_own(const struct attaching *work, const memory_wanted *one)
{
    return one->handle.rank == work->space->rank;
}

static void symmetric_attach_explain(struct attaching *work, const banyan_memory_handle *handle,
                                     const char *reason)
{
    if (work->made->reason[0] == '\0')
        snprintf(work->made->reason, sizeof work->made->reason,
                 "%" PRIu64 " bytes at %#" PRIx64 " of rank %d: %s", handle->bytes, handle->address,
                 handle->rank, reason);
}

static banyan_status write_questions(struct attaching *work)
{
    for (size_t i = 0; i < work->count; i++) {
        memory_wanted *one = &work->wanted[i];
        int local = memory_space_local(work->space, one->handle.rank);
        one->address = attach_is_own(work, one) ? (char *)(uintptr_t)one->handle.address : NULL;
        if (local < 0)
            symmetric_attach_explain(work, &one->handle, "it is on another node");
        else if (!attach_is_own(work, one))
            bytes_write(&work->writers[local], &one->handle, sizeof one->handle);
    }
    for (int i = 0; i < work->space->local_size; i++) {
        if (work->writers[i].failed)
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

/* For each handle the index of its share in a list; then the list. */
struct answer {
    bytes_writer indices, list;
    ARRAY(uint64_t) ids;
};

static bool answer_index(struct answer *answer, const memory_share *share, uint32_t *index)
{
    size_t i = answer->ids.count;
    while (i > 0 && answer->ids.data[i - 1] != share->id)
        i--;
    if (i > 0) {
        *index = (uint32_t)(i - 1);
        return true;
    }
    *index = (uint32_t)answer->ids.count;
    bytes_write_u64(&answer->list, share->id);
    bytes_write(&answer->list, &share->what, sizeof share->what);
    bytes_write_blob(&answer->list, share->reason, strlen(share->reason));
    return array_push(&answer->ids, share->id);
}

static banyan_status answer_handle(memory_space *space, const banyan_memory_handle *handle,
                                   struct answer *answer)
{
    const memory_share *share;
    uint32_t index = NOT_REGISTERED;
    banyan_status status = memory_share_of(space, handle, &share);
    if (status == BANYAN_OK && !answer_index(answer, share, &index))
        return BANYAN_ERR_NO_MEMORY;
    if (status != BANYAN_OK && status != BANYAN_ERR_INVALID)
        return status;
    bytes_write_u32(&answer->indices, index);
    return BANYAN_OK;
}

static banyan_status answer_rank(struct attaching *work, const control_message *question)
{
    struct answer answer = {0};
    banyan_status status = BANYAN_OK;
    const banyan_memory_handle *handles = question->data;
    size_t count = question->bytes / sizeof *handles;
    for (size_t i = 0; i < count && status == BANYAN_OK; i++)
        status = answer_handle(work->space, &handles[i], &answer);
    bytes_writer *reply = &work->writers[memory_space_local(work->space, question->rank)];
    bytes_write_blob(reply, answer.indices.data, answer.indices.count);
    bytes_write_u32(reply, (uint32_t)answer.ids.count);
    bytes_write(reply, answer.list.data, answer.list.count);
    if (status == BANYAN_OK && (reply->failed || answer.indices.failed || answer.list.failed))
        status = BANYAN_ERR_NO_MEMORY;
    bytes_writer_free(&answer.indices);
    bytes_writer_free(&answer.list);
    array_free(&answer.ids);
    return status;
}

static banyan_status write_answers(struct attaching *work, const control_message *questions,
                                   size_t count)
{
    writers_clear(work);
    for (size_t i = 0; i < count; i++) {
        if (memory_space_local(work->space, questions[i].rank) >= 0)
            RETURN_IF_FAILED(answer_rank(work, &questions[i]));
    }
    return BANYAN_OK;
}

static banyan_status symmetric_attach_malformed(int owner)
{
    return error_set(BANYAN_ERR_FORMAT, "rank %d sent an invalid description of its GPU's memory",
                     owner);
}

/* Map the share. A share by parts is mapped later, together with all others. */
static void attach_share(struct attaching *work, attached_share *share)
{
    bool here = control_pid(work->space->world, share->owner) == getpid();
    banyan_status status = work->ops->reach(work->device, share->what.uuid);
    if (status == BANYAN_OK)
        status = work->ops->attach(work->device, &share->what, here, &share->where);
    if (status != BANYAN_OK)
        snprintf(share->reason, sizeof share->reason, "%s", banyan_last_error());
}

static banyan_status share_begin(struct attaching *work, int owner, uint64_t id,
                                 const device_share *what, const char *reason,
                                 attached_share **begun)
{
    if (!array_reserve(&work->fresh, 1) || !array_reserve(&work->made->shares, 1))
        return BANYAN_ERR_NO_MEMORY;
    attached_share *share = attached_find(work->space, owner, id, work->device);
    if (!share) {
        share = calloc(1, sizeof *share);
        if (!share)
            return error_no_memory(sizeof *share, "a peer's memory");
        *share = (attached_share){.next = work->space->attached,
                                  .owner = owner,
                                  .id = id,
                                  .device = work->device,
                                  .what = *what};
        work->space->attached = share;
        snprintf(share->reason, sizeof share->reason, "%s", reason);
        if (what->sharing != DEVICE_SHARED_BY_NOBODY)
            attach_share(work, share);
        if (what->sharing == DEVICE_SHARED_BY_PARTS && share->where.base)
            work->fresh.data[work->fresh.count++] = share;
    }
    share->uses++;
    work->made->shares.data[work->made->shares.count++] = share;
    *begun = share;
    return BANYAN_OK;
}

static banyan_status symmetric_attach_read_share(struct attaching *work, int owner,
                                                 bytes_reader *reader, attached_share **share)
{
    device_share what;
    size_t reason_bytes;
    char reason[160];
    uint64_t id = bytes_read_u64(reader);
    bytes_read(reader, &what, sizeof what);
    const char *text = bytes_read_blob(reader, &reason_bytes);
    if (reader->failed || what.sharing > DEVICE_SHARED_BY_PARTS ||
        what.base > UINT64_MAX - what.bytes)
        return symmetric_attach_malformed(owner);
    if (what.sharing != DEVICE_SHARED_BY_NOBODY && what.bytes == 0)
        return symmetric_attach_malformed(owner);
    snprintf(reason, sizeof reason, "%.*s", (int)(reason_bytes < 159 ? reason_bytes : 159),
             text ? text : "");
    return share_begin(work, owner, id, &what, reason, share);
}

/* Read the shares of one answer; from here on the attachments own them. */
static banyan_status read_shares(struct attaching *work, int owner, bytes_reader *reader)
{
    uint32_t count = bytes_read_u32(reader);
    for (uint32_t i = 0; i < count; i++) {
        attached_share *share;
        RETURN_IF_FAILED(symmetric_attach_read_share(work, owner, reader, &share));
    }
    return reader->failed || reader->left > 0 ? symmetric_attach_malformed(owner) : BANYAN_OK;
}

/* Assign each wanted handle of this owner to its share. */
static banyan_status place_wanted(struct attaching *work, int owner, const void *indices,
                                  size_t index_bytes, size_t first_share)
{
    size_t shares = work->made->shares.count - first_share;
    bytes_reader reader = bytes_reader_of(indices, index_bytes);
    for (size_t i = 0; i < work->count; i++) {
        const memory_wanted *one = &work->wanted[i];
        if (one->handle.rank != owner)
            continue;
        uint32_t index = bytes_read_u32(&reader);
        if (reader.failed)
            return symmetric_attach_malformed(owner);
        if (index == NOT_REGISTERED)
            return error_set(BANYAN_ERR_INVALID,
                             "rank %d wants %" PRIu64 " bytes at %#" PRIx64
                             " of rank %d's GPU, which has not registered them (id %#" PRIx64 ")",
                             work->space->rank, one->handle.bytes, one->handle.address, owner,
                             one->handle.id);
        if (index >= shares)
            return symmetric_attach_malformed(owner);
        work->places[i] = work->made->shares.data[first_share + index];
    }
    return reader.left > 0 ? symmetric_attach_malformed(owner) : BANYAN_OK;
}

static banyan_status take_answers(struct attaching *work, const control_message *answers,
                                  size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t index_bytes, first = work->made->shares.count;
        bytes_reader reader = bytes_reader_of(answers[i].data, answers[i].bytes);
        const void *indices = bytes_read_blob(&reader, &index_bytes);
        if (reader.failed)
            return symmetric_attach_malformed(answers[i].rank);
        RETURN_IF_FAILED(read_shares(work, answers[i].rank, &reader));
        RETURN_IF_FAILED(place_wanted(work, answers[i].rank, indices, index_bytes, first));
    }
    return BANYAN_OK;
}

static banyan_status set_address(struct attaching *work, const attached_share *share,
                                 memory_wanted *one)
{
    if (share->reason[0] != '\0') {
        symmetric_attach_explain(work, &one->handle, share->reason);
        return BANYAN_OK;
    }
    uint64_t offset = one->handle.address - share->what.base;
    if (one->handle.address < share->what.base || one->handle.bytes > share->what.bytes ||
        offset > share->what.bytes - one->handle.bytes)
        return symmetric_attach_malformed(share->owner);
    one->address = share->where.base + offset;
    return BANYAN_OK;
}

static banyan_status set_addresses(struct attaching *work)
{
    for (size_t i = 0; i < work->count; i++) {
        if (work->places[i])
            RETURN_IF_FAILED(set_address(work, work->places[i], &work->wanted[i]));
    }
    if (work->made->reason[0] != '\0')
        log_info("rank %d cannot map %s", work->space->rank, work->made->reason);
    return BANYAN_OK;
}

static banyan_status ask_and_map(struct attaching *work, banyan_status mine)
{
    control_message *received = NULL;
    size_t received_count = 0;
    const char *what = "attaching memory of GPUs";
    if (mine == BANYAN_OK)
        mine = write_questions(work);
    RETURN_IF_FAILED(symmetric_attach_exchange(work, mine, what, &received, &received_count));
    if (mine == BANYAN_OK)
        mine = write_answers(work, received, received_count);
    control_messages_free(received, received_count);
    received = NULL;
    RETURN_IF_FAILED(symmetric_attach_exchange(work, mine, what, &received, &received_count));
    if (mine == BANYAN_OK)
        mine = take_answers(work, received, received_count);
    control_messages_free(received, received_count);
    RETURN_IF_FAILED(control_agree(work->space->world, mine));
    RETURN_IF_FAILED(attached_shares_fetch(work->space, work->fresh.data, work->fresh.count));
    return control_agree(work->space->world, set_addresses(work));
}

/* When no rank wants anything, this costs one message per rank. */
static banyan_status attach_all(struct attaching *work)
{
    uint64_t most;
    banyan_status mine = work_begin(work);
    RETURN_IF_FAILED(control_max(work->space->world, work->count, &most));
    return most == 0 ? control_agree(work->space->world, mine) : ask_and_map(work, mine);
}

banyan_status memory_attach(banyan_world *world, int device, memory_wanted *wanted, size_t count,
                            memory_attachments **attached)
{
    memory_space *space;
    RETURN_IF_FAILED(memory_space_of(world, &space));
    struct attaching work = {.space = space, .device = device, .wanted = wanted, .count = count};
    banyan_status status = attach_all(&work);
    work_end(&work);
    if (status != BANYAN_OK) {
        memory_attachments_free(work.made);
        return status;
    }
    *attached = work.made;
    return BANYAN_OK;
}

banyan_status memory_check_attachable(banyan_world *world, const banyan_memory_handle *handle,
                                      const char **reason)
{
    memory_space *space;
    const memory_share *share;
    RETURN_IF_FAILED(memory_space_of(world, &space));
    RETURN_IF_FAILED(memory_share_of(space, handle, &share));
    *reason = share->what.sharing == DEVICE_SHARED_BY_NOBODY ? share->reason : NULL;
    return BANYAN_OK;
}
