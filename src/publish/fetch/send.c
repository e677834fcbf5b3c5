#include <stdlib.h>

#include "core/deadline.h"
#include "core/log.h"
#include "core/threads/thread.h"
#include "publish/fetch/sending.h"
#include "world/control.h"

/* Bytes of streams that a rank sends in its first wave. Waves grow: the first one cannot be written
 * while another travels. */
#define WAVE_BYTES_FIRST ((uint64_t)1 << 20)
/* The longest sleep before the state of the joined world is looked at again. */
#define NAP_NS (20 * NS_PER_MS)

static int compare_by_receiver(const void *a, const void *b, void *plan)
{
    size_t i = *(const size_t *)a, k = *(const size_t *)b;
    RETURN_IF_UNEQUAL(banyan_reshard_plan_send(plan, i)->destination_rank,
                      banyan_reshard_plan_send(plan, k)->destination_rank);
    return COMPARE(i, k);
}

/* Let the device measure all blocks. */
static banyan_status open_packing(struct fetch_sending *sending)
{
    const struct publish_device *device = sending->from->device;
    size_t count = sending->order.count;
    uint64_t blocks = 0;
    delta_source *sources = alloc_zeroed(count, sizeof *sources, "the boxes of a fetch");
    sending->first_blocks = alloc_zeroed(count, sizeof *sending->first_blocks, "a fetch");
    banyan_status status = sources && sending->first_blocks ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    for (size_t i = 0; i < count && status == BANYAN_OK; i++) {
        status = sending_source(sending, i, &sources[i]);
        sending->first_blocks[i] = blocks;
        blocks += delta_blocks(sources[i].box.elems);
    }
    if (status == BANYAN_OK)
        status = device->delta->pack_open(device->engine, sources, count, &sending->packing,
                                          &sending->block_bytes);
    free(sources);
    return status;
}

static banyan_status sending_open(struct fetch_sending *sending)
{
    banyan_reshard_plan *plan = sending->session->plan;
    size_t count = banyan_reshard_plan_send_count(plan);
    for (size_t i = 0; i < count; i++)
        RETURN_IF_NO_MEMORY(array_push(&sending->order, i));
    if (count > 0)
        qsort_r(sending->order.data, count, sizeof(size_t), compare_by_receiver, plan);
    for (size_t i = 0; i < count; i++) {
        int rank = banyan_reshard_plan_send(plan, sending->order.data[i])->destination_rank;
        size_t known = sending->to.count;
        if (known == 0 || sending->to.data[known - 1].rank != rank)
            RETURN_IF_NO_MEMORY(
                array_push(&sending->to, (struct fetch_outgoing){.rank = rank, .first = i}));
        sending->to.data[sending->to.count - 1].end = i + 1;
    }
    if (!publish_device_is_host(sending->from->device))
        RETURN_IF_FAILED(open_packing(sending));
    if (!sending->session->hello.verify)
        return BANYAN_OK;
    sending->box_memory = malloc(PART_BLOCKS * delta_block_bytes_most(16));
    return sending->box_memory
               ? BANYAN_OK
               : error_no_memory(PART_BLOCKS * delta_block_bytes_most(16), "a part to verify");
}

static void sending_close(struct fetch_sending *sending)
{
    const struct publish_device *device = sending->from->device;
    for (size_t i = 0; i < sending->to.count; i++) {
        for (size_t k = 0; k < 2; k++) {
            struct fetch_parcel *parcel = &sending->to.data[i].parcels[k];
            bytes_writer_free(&parcel->heads);
            bytes_writer_free(&parcel->sums);
            bytes_writer_free(&parcel->stream);
            bytes_writer_free(&parcel->message);
            bytes_writer_free(&parcel->packed);
            array_free(&parcel->parts);
            array_free(&parcel->pieces);
            publish_device_give(device, &parcel->pinned);
        }
    }
    for (int i = 0; i < PARALLEL_WORKERS; i++)
        planes_coder_free(&sending->coders[i]);
    if (sending->packing)
        device->delta->pack_close(sending->packing);
    free(sending->first_blocks);
    array_free(&sending->to);
    array_free(&sending->order);
    free(sending->box_memory);
}

static bool sending_has_more(const struct fetch_sending *sending)
{
    for (size_t i = 0; i < sending->to.count; i++) {
        if (sending->to.data[i].first < sending->to.data[i].end)
            return true;
    }
    return false;
}

/* Sleep until the limit of bytes per second allows more; less if the joined world ends. */
static banyan_status keep_to_rate(const struct session *session)
{
    uint64_t left_ns;
    while ((left_ns = deadline_left_ns(session->may_send_ns)) > 0) {
        struct timespec nap = {0, (long)(left_ns < NAP_NS ? left_ns : NAP_NS)};
        RETURN_IF_FAILED(control_check(session->joined));
        nanosleep(&nap, NULL);
    }
    return BANYAN_OK;
}

static void count_for_rate(struct session *session, uint64_t rate, uint64_t bytes)
{
    uint64_t now = time_now_ns();
    if (session->may_send_ns < now)
        session->may_send_ns = now;
    if (rate > 0)
        session->may_send_ns += (uint64_t)((double)bytes / (double)rate * 1e9);
}

/* ---- waves ---- */

static void prepare_wave(struct fetch_sending *sending)
{
    sending->wave = (struct fetch_written){0};
    sending->compresses =
        compression_pays(&sending->session->compression, sending->from->bytes_per_s);
}

static void note_wave(struct fetch_sending *sending)
{
    const struct fetch_written *wave = &sending->wave;
    struct compression *compression = &sending->session->compression;
    compression_note_written(compression, wave->bytes, wave->ns);
    compression_note_compressed(compression, wave->compressed_bytes, wave->packed_bytes,
                                wave->compress_ns);
    sending->stream_bytes += wave->bytes;
    sending->compress_ns += wave->compress_ns;
}

/* Send the wave that was filled last, and fill the next one; while this one travels if there is
 * `more`. `*mine` is this rank's status so far. */
static banyan_status send_wave(struct fetch_sending *sending, bool more, banyan_status *mine,
                               uint64_t *bytes)
{
    struct session *session = sending->session;
    ARRAY(control_message) messages = {0};
    control_message *received = NULL;
    size_t received_count = 0;
    banyan_request *filling = NULL;
    *bytes = 0;
    for (size_t i = 0; i < sending->to.count && *mine == BANYAN_OK; i++) {
        struct fetch_outgoing *to = &sending->to.data[i];
        const struct fetch_parcel *parcel = to->parcel;
        int64_t count = (int64_t)parcel->sent_bytes;
        DLTensor tensor = bytes_tensor((void *)parcel->sent, &count);
        if (!array_push(&messages,
                        (control_message){to->rank, parcel->message.data, parcel->message.count}))
            *mine = BANYAN_ERR_NO_MEMORY;
        else if (count > 0)
            *mine = banyan_copy_service_submit_send(session->service, &tensor, to->rank, 0);
        *bytes += parcel->sent_bytes;
    }
    prepare_wave(sending);
    if (*mine == BANYAN_OK && more)
        *mine = request_start(sending_fill_wave, sending, &filling);
    error_kept kept = error_keep(*mine);
    banyan_status status =
        control_exchange(session->joined, messages.data, *mine == BANYAN_OK ? messages.count : 0,
                         "changes of a version", &received, &received_count);
    control_messages_free(received, received_count);
    array_free(&messages);
    if (status == BANYAN_OK)
        status = control_agree(session->joined, error_again(&kept));
    uint64_t began_ns = time_now_ns();
    if (status == BANYAN_OK)
        status = banyan_copy_service_run(session->service, NULL);
    uint64_t ended_ns = time_now_ns();
    sending->run_ns += ended_ns - began_ns;
    /* Buffers of the network take a part of each wave at once, and drain until the next one. */
    compression_note_travelled(&session->compression, *bytes, ended_ns - sending->travels_since_ns);
    kept = error_keep(status);
    *mine = filling ? banyan_request_wait(filling) : sending_fill_wave(sending);
    sending->travels_since_ns = time_now_ns();
    note_wave(sending);
    return status == BANYAN_OK ? BANYAN_OK : error_again(&kept);
}

banyan_status fetch_send(struct session *session, const struct fetch_source *source,
                         _Atomic uint64_t *sent_bytes)
{
    struct fetch_sending sending = {
        .session = session, .from = source, .wave_bytes = WAVE_BYTES_FIRST};
    uint64_t began_ns = time_now_ns();
    banyan_status mine = sending_open(&sending), status = BANYAN_OK;
    struct fetch_next next = {.has_more = true};
    compression_begin_fetch(&session->compression);
    prepare_wave(&sending);
    if (mine == BANYAN_OK)
        mine = sending_fill_wave(&sending);
    note_wave(&sending);
    sending.travels_since_ns = time_now_ns();
    while (status == BANYAN_OK && next.has_more) {
        uint64_t bytes;
        bool has_more = sending_has_more(&sending);
        error_kept kept = error_keep(mine);
        status = keep_to_rate(session);
        if (status != BANYAN_OK)
            break;
        if (source->bytes_per_s > 0)
            sending.travels_since_ns = time_now_ns(); /* it has slept */
        mine = error_again(&kept);
        status = send_wave(&sending, has_more, &mine, &bytes);
        if (status != BANYAN_OK)
            break;
        kept = error_keep(mine);
        count_for_rate(session, source->bytes_per_s, bytes);
        *sent_bytes += bytes;
        sending.sent_bytes += bytes;
        next = (struct fetch_next){has_more, source->has_to_pause(source->context)};
        status = fetch_agree(session, &next);
        if (status == BANYAN_OK && next.pauses) {
            status = source->pause(source->context);
            sending.travels_since_ns = time_now_ns();
        }
        mine = error_again(&kept);
    }
    if (status == BANYAN_OK)
        status = control_agree(session->joined, mine);
    log_debug("a fetch: writing streams of %.1f MB took %.3f s, of which the device %.3f s and "
              "compressing "
              "them %.3f s; they travelled as %.1f MB for %.3f s, of %.3f s in all",
              (double)sending.stream_bytes / 1e6, (double)sending.fill_ns / 1e9,
              (double)sending.pack_ns / 1e9, (double)sending.compress_ns / 1e9,
              (double)sending.sent_bytes / 1e6, (double)sending.run_ns / 1e9,
              (double)(time_now_ns() - began_ns) / 1e9);
    sending_close(&sending);
    return status;
}
