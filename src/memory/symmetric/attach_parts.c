/* Fetch the parts of shares in rounds, so that few descriptors are open at a time, whatever their
 * number. */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "core/containers.h"
#include "memory/symmetric/symmetric.h"
#include "world/control.h"

/* Parts that an owner sends to one peer in a round. */
#define PARTS_A_ROUND 16

/* A peer's request to an owner: the allocations of a share from an offset on. */
struct part_question {
    uint64_t share, offset;
};

/* A part, perhaps with a descriptor, or why there is none. */
struct part_answer {
    uint64_t bytes;
    unsigned char name[DEVICE_NAME_BYTES];
    uint32_t has_fd;
    uint32_t last;   /* of this round */
    uint32_t status; /* banyan_status */
    char reason[160];
};

static banyan_status send_part(memory_space *space, int peer, uint64_t tag,
                               const struct part_question *question, uint64_t *offset, bool last,
                               bool *more)
{
    struct part_answer answer = {0};
    const memory_share *share = memory_share_find(space, question->share);
    device_part part = {.fd = -1};
    banyan_status status = BANYAN_OK;
    if (!share || *offset >= share->what.bytes)
        status =
            error_set(BANYAN_ERR_INVALID, "rank %d shares no memory %" PRIu64 " at offset %" PRIu64,
                      space->rank, question->share, *offset);
    else
        status = memory_device_loaded(kDLCUDA)->share_part(&share->what, *offset, &part);
    answer.status = (uint32_t)status;
    if (status != BANYAN_OK)
        snprintf(answer.reason, sizeof answer.reason, "%s", banyan_last_error());
    answer.bytes = part.bytes;
    answer.has_fd = part.fd >= 0;
    memcpy(answer.name, part.name, sizeof answer.name);
    *offset += part.bytes;
    *more = status == BANYAN_OK && !last && *offset < share->what.bytes;
    answer.last = !*more;
    status = control_send_fd(space->world, peer, tag, &answer, sizeof answer, part.fd);
    if (part.fd < 0)
        return status;
    close(part.fd);
    if (status == BANYAN_OK)
        return status;
    /* The peer waits for an answer: send one without the descriptor. */
    *more = false;
    answer = (struct part_answer){.last = 1, .status = (uint32_t)status};
    snprintf(answer.reason, sizeof answer.reason, "%s", banyan_last_error());
    return control_send_fd(space->world, peer, tag, &answer, sizeof answer, -1);
}

static banyan_status answer_questions(memory_space *space, uint64_t tag,
                                      const control_message *questions, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct part_question question;
        bytes_reader reader = bytes_reader_of(questions[i].data, questions[i].bytes);
        bytes_read(&reader, &question, sizeof question);
        uint64_t offset = question.offset;
        bool more = true;
        for (int part = 1; more; part++)
            RETURN_IF_FAILED(send_part(space, questions[i].rank, tag, &question, &offset,
                                       part == PARTS_A_ROUND, &more));
    }
    return BANYAN_OK;
}

static bool is_missing(const attached_share *share)
{
    return share->reason[0] == '\0' && share->where.mapped_bytes < share->what.bytes;
}

static void map_part(attached_share *share, const struct part_answer *answer, int fd)
{
    banyan_status status;
    device_part part = {.bytes = answer->bytes, .fd = fd};
    memcpy(part.name, answer->name, sizeof part.name);
    if (!is_missing(share))
        return;
    if (answer->status != BANYAN_OK)
        status = error_set((banyan_status)answer->status, "%.*s", (int)sizeof answer->reason,
                           answer->reason);
    else if (answer->has_fd && fd < 0)
        status = error_set(BANYAN_ERR_SYSTEM, "a descriptor was lost: too many open files");
    else
        status = memory_device_loaded(kDLCUDA)->attach_part(share->device, &share->what, &part,
                                                            &share->where);
    if (status != BANYAN_OK)
        snprintf(share->reason, sizeof share->reason, "%s", banyan_last_error());
}

static banyan_status receive_parts(memory_space *space, uint64_t tag, attached_share *share)
{
    struct part_answer answer = {0};
    while (!answer.last) {
        void *data;
        size_t bytes;
        int fd;
        RETURN_IF_FAILED(control_receive_fd(space->world, share->owner, tag,
                                            "sharing memory of a GPU", &data, &bytes, &fd));
        bytes_reader reader = bytes_reader_of(data, bytes);
        bytes_read(&reader, &answer, sizeof answer);
        free(data);
        if (reader.failed)
            answer = (struct part_answer){.last = 1, .status = BANYAN_ERR_FORMAT};
        map_part(share, &answer, fd);
        if (fd >= 0)
            close(fd);
    }
    return BANYAN_OK;
}

/* Choose the first missing share of each owner. */
static size_t attach_parts_choose(memory_space *space, attached_share **missing, size_t count,
                                  attached_share **chosen)
{
    size_t found = 0;
    for (int local = 0; local < space->local_size; local++)
        chosen[local] = NULL;
    for (size_t i = 0; i < count; i++) {
        int local = memory_space_local(space, missing[i]->owner);
        if (!chosen[local] && is_missing(missing[i])) {
            chosen[local] = missing[i];
            found++;
        }
    }
    return found;
}

static banyan_status round_of(memory_space *space, attached_share *const *chosen,
                              struct part_question *questions, control_message *messages)
{
    control_message *received;
    size_t asked = 0, received_count;
    uint64_t tag = control_take_tag(space->world);
    for (int local = 0; local < space->local_size; local++) {
        if (!chosen[local])
            continue;
        questions[asked] =
            (struct part_question){chosen[local]->id, chosen[local]->where.mapped_bytes};
        messages[asked] =
            (control_message){chosen[local]->owner, &questions[asked], sizeof questions[asked]};
        asked++;
    }
    RETURN_IF_FAILED(control_exchange(space->world, messages, asked, "sharing memory of GPUs",
                                      &received, &received_count));
    banyan_status status = answer_questions(space, tag, received, received_count);
    control_messages_free(received, received_count);
    for (int local = 0; local < space->local_size && status == BANYAN_OK; local++) {
        if (chosen[local])
            status = receive_parts(space, tag, chosen[local]);
    }
    return status;
}

banyan_status attached_shares_fetch(memory_space *space, attached_share **missing, size_t count)
{
    size_t peers = (size_t)space->local_size;
    attached_share **chosen = calloc(peers, sizeof *chosen);
    struct part_question *questions = calloc(peers, sizeof *questions);
    control_message *messages = calloc(peers, sizeof *messages);
    banyan_status status = BANYAN_OK;
    if (!chosen || !questions || !messages)
        status = error_no_memory(peers * sizeof *messages, "the attaching of peers' memory");
    status = control_agree(space->world, status);
    for (uint64_t most = 1; status == BANYAN_OK;) {
        status =
            control_max(space->world, attach_parts_choose(space, missing, count, chosen), &most);
        if (status != BANYAN_OK || most == 0)
            break;
        status = round_of(space, chosen, questions, messages);
    }
    free(messages);
    free(questions);
    free(chosen);
    return status;
}
