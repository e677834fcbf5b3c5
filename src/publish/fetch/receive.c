#include <inttypes.h>
#include <stdlib.h>

#include "core/deadline.h"
#include "core/log.h"
#include "core/threads/thread.h"
#include "publish/fetch/receiving.h"

static void free_wave(struct fetch_wave *wave)
{
    control_messages_free(wave->messages, wave->count);
    for (size_t i = 0; wave->parts && i < wave->count; i++) {
        struct wave_part *part = &wave->parts[i];
        if (part->buffer.memory)
            publish_device_give(wave->receiving->into->staged->device, &part->buffer);
        else
            free(part->stream);
        free(part->packed);
    }
    free(wave->parts);
    *wave = (struct fetch_wave){0};
}

/* Wait until a wave is checked; OK if none is. */
static banyan_status end_check(struct fetch_wave *wave)
{
    banyan_status status = wave->checking ? banyan_request_wait(wave->checking) : BANYAN_OK;
    free_wave(wave);
    return status;
}

static struct sender *sender_of(struct fetch_receiving *receiving, int rank)
{
    for (size_t i = 0; i < receiving->senders.count; i++) {
        if (receiving->senders.data[i].rank == rank)
            return &receiving->senders.data[i];
    }
    return array_push(&receiving->senders, (struct sender){rank, 0, UINT64_MAX})
               ? &receiving->senders.data[receiving->senders.count - 1]
               : NULL;
}

/* Make room for the streams, and for what arrives if some of it is compressed. */
static banyan_status make_room(const struct fetch_receiving *receiving, struct wave_part *part)
{
    if (part->packed_bytes < part->bytes) {
        part->packed = malloc(part->packed_bytes);
        if (!part->packed)
            return error_no_memory(part->packed_bytes, "changes that are received");
    }
    if (receiving_keeps_on_host(receiving)) {
        part->stream = malloc(part->bytes);
        return part->stream ? BANYAN_OK : error_no_memory(part->bytes, "changes that are received");
    }
    RETURN_IF_FAILED(
        publish_device_take(receiving->into->staged->device, part->bytes, &part->buffer));
    part->stream = part->buffer.memory;
    return BANYAN_OK;
}

/* Check the heads of a message, and add up the bytes of their streams: no block of a box comes
 * twice, so they are bounded by what the rank is to receive. */
static bool take_heads(struct fetch_receiving *receiving, struct wave_part *part)
{
    uint64_t packed_bytes = 0;
    for (size_t i = 0; i < part->head_count; i++) {
        struct part_head head;
        size_t number;
        memcpy(&head, part->heads + i, sizeof head); /* a message has no alignment */
        struct incoming *one = receiving_find(receiving, head.task_id, part->rank, &number);
        if (!one || head.count > PART_BLOCKS)
            return false;
        const strided_view *box = &receiving->boxes.data[number];
        one->blocks += head.count;
        if (one->blocks > delta_blocks(box->elems) || head.packed_bytes > head.bytes ||
            head.bytes > head.count * delta_block_bytes_most(box->elem_bytes))
            return false;
        part->bytes += head.bytes;
        packed_bytes += head.packed_bytes;
    }
    return packed_bytes == part->packed_bytes;
}

/* Take a message: make room for the streams, and submit their receive. */
static banyan_status take_message(struct fetch_receiving *receiving, const control_message *message,
                                  struct wave_part *part)
{
    struct staged *staged = receiving->into->staged;
    struct sender *sender = sender_of(receiving, message->rank);
    bytes_reader reader = bytes_reader_of(message->data, message->bytes);
    size_t head_bytes, sum_bytes;
    RETURN_IF_NO_MEMORY(sender);
    sender->parts_expected = bytes_read_u64(&reader);
    *part = (struct wave_part){.rank = message->rank, .packed_bytes = bytes_read_u64(&reader)};
    part->heads = bytes_read_blob(&reader, &head_bytes);
    const struct box_sum *sums = bytes_read_blob(&reader, &sum_bytes);
    part->head_count = head_bytes / sizeof *part->heads;
    if (reader.failed || reader.left > 0 || head_bytes % sizeof *part->heads != 0 ||
        sum_bytes % sizeof *sums != 0 || !take_heads(receiving, part))
        return receiving_fail_malformed(message->rank);
    sender->parts += part->head_count;
    for (size_t i = 0; i < sum_bytes / sizeof *sums; i++) {
        struct box_sum sum;
        memcpy(&sum, sums + i, sizeof sum);
        RETURN_IF_NO_MEMORY(array_push(&receiving->sums, sum));
    }
    if (part->packed_bytes == 0)
        return BANYAN_OK;
    if (part->bytes > receiving->into->max_bytes - staged->bytes)
        return error_set(BANYAN_ERR_INVALID,
                         "version %" PRIu64 " needs more than the %" PRIu64
                         " bytes that max_staging_bytes leaves at this rank",
                         staged->version, receiving->into->max_bytes);
    RETURN_IF_FAILED(make_room(receiving, part));
    staged->bytes += staged->in_place ? 0 : part->bytes;
    staged->received += part->packed_bytes;
    int64_t bytes = (int64_t)part->packed_bytes;
    DLTensor tensor = bytes_tensor(part->packed ? part->packed : part->stream, &bytes);
    return banyan_copy_service_submit_recv(receiving->session->service, &tensor, message->rank, 0);
}

/* Receive one wave, and begin to check it. `*mine` is this rank's status so far. */
static banyan_status receive_wave(struct fetch_receiving *receiving, banyan_status *mine)
{
    banyan_world *joined = receiving->session->joined;
    struct fetch_wave wave = {.receiving = receiving};
    error_kept kept = error_keep(*mine);
    RETURN_IF_FAILED(
        control_exchange(joined, NULL, 0, "changes of a version", &wave.messages, &wave.count));
    wave.parts = alloc_zeroed(wave.count, sizeof *wave.parts, "a list of changes");
    if (!wave.parts && kept.status == BANYAN_OK)
        kept = error_keep(BANYAN_ERR_NO_MEMORY);
    for (size_t i = 0; i < wave.count && kept.status == BANYAN_OK; i++)
        kept = error_keep(take_message(receiving, &wave.messages[i], &wave.parts[i]));
    banyan_status status = control_agree(joined, error_again(&kept));
    uint64_t began_ns = time_now_ns();
    if (status == BANYAN_OK)
        status = banyan_copy_service_run(receiving->session->service, NULL);
    if (status != BANYAN_OK) {
        free_wave(&wave);
        return status;
    }
    uint64_t arrived_ns = time_now_ns();
    *mine = end_check(&receiving->before);
    receiving->run_ns += arrived_ns - began_ns;
    receiving->wait_ns += time_now_ns() - arrived_ns;
    receiving->before = wave;
    if (*mine == BANYAN_OK)
        *mine =
            request_start(receiving_check_wave, &receiving->before, &receiving->before.checking);
    return BANYAN_OK;
}

/* Verify all that the fetches have brought, and prepare the exchange. */
static banyan_status receiving_finish(struct fetch_receiving *receiving)
{
    const struct fetch_target *into = receiving->into;
    RETURN_IF_FAILED(receiving_verify(receiving));
    for (struct staged *one = into->before->first; one; one = one->next)
        RETURN_IF_FAILED(staged_finish(one, receiving->boxes.data, receiving->boxes.count));
    return staged_finish(into->staged, receiving->boxes.data, receiving->boxes.count);
}

banyan_status fetch_receive(struct session *session, const struct fetch_target *target, bool whole,
                            bool *paused)
{
    struct fetch_receiving receiving = {.session = session, .into = target, .whole = whole};
    uint64_t began_ns = time_now_ns();
    banyan_status mine = receiving_open(&receiving), status = BANYAN_OK;
    struct fetch_next next = {.has_more = true};
    *paused = false;
    while (status == BANYAN_OK && next.has_more) {
        status = receive_wave(&receiving, &mine);
        error_kept kept = error_keep(mine);
        next = (struct fetch_next){0};
        if (status == BANYAN_OK)
            status = fetch_agree(session, &next);
        if (status == BANYAN_OK && next.pauses) {
            *paused = true;
            status = session_pause(session);
        }
        if (status == BANYAN_OK)
            mine = error_again(&kept);
    }
    if (status == BANYAN_OK && mine == BANYAN_OK)
        mine = end_check(&receiving.before);
    if (status == BANYAN_OK && mine == BANYAN_OK)
        mine = receiving_check_complete(&receiving);
    if (status == BANYAN_OK && mine == BANYAN_OK && !*paused)
        mine = receiving_finish(&receiving);
    if (status == BANYAN_OK)
        status = control_agree(session->joined, mine);
    error_kept kept = error_keep(status);
    (void)end_check(&receiving.before);
    log_debug("a fetch: streams travelled for %.3f s, and waited %.3f s for the check of those "
              "before; checks took %.3f s, uploads %.3f s, exchanges %.3f s, of %.3f s in all",
              (double)receiving.run_ns / 1e9, (double)receiving.wait_ns / 1e9,
              (double)receiving.check_ns / 1e9, (double)receiving.upload_ns / 1e9,
              (double)receiving.exchange_ns / 1e9, (double)(time_now_ns() - began_ns) / 1e9);
    receiving_close(&receiving);
    return error_again(&kept);
}
