#include <stdlib.h>

#include "core/deadline.h"
#include "core/log.h"
#include "core/threads/thread.h"
#include "publish/fetch_parts.h"
#include "publish/parallel.h"
#include "world/control.h"

/* Bytes that a rank sends in its first wave, the most in any, and the least for each receiver.
 * Waves grow: the first one cannot be packed while another travels. */
#define WAVE_BYTES_FIRST ((uint64_t)1 << 20)
#define WAVE_BYTES_MOST ((uint64_t)32 << 20)
#define WAVE_BYTES_LEAST ((uint64_t)64 << 10)
/* Waves of a fetch with a limit of bytes per second. */
#define WAVES_PER_S 10
/* The longest sleep before the state of the joined world is looked at again. */
#define NAP_NS (20 * NS_PER_MS)

/* A receiver's share of one wave. */
struct fetch_parcel {
    bytes_writer heads, sums, stream, message;
    /* From a device: the blocks that it writes, and the memory that it writes them to. */
    ARRAY(struct delta_piece) pieces;
    uint64_t bytes;
    struct publish_buffer pinned;
};

/* A receiver, and the place that has been reached in its transfers. One parcel is filled while the
 * other one travels. */
struct fetch_outgoing {
    int rank;
    size_t first, end; /* of the list of sends */
    uint64_t block;    /* the next of transfer `first` */
    bool changed;      /* something in this transfer */
    delta_source source;
    uint64_t parts;
    struct fetch_parcel parcels[2], *parcel; /* `parcel`: the one that is filled */
};

struct fetch_sending {
    struct session *session;
    const struct fetch_source *from;
    ARRAY(size_t) order; /* of the plan's sends, by receiver */
    ARRAY(struct fetch_outgoing) to;
    void *box_memory;    /* of one part, to compute checksums */
    uint64_t wave_bytes; /* of the next wave */
    /* From a device: the first block of each send in `block_bytes`, which is NULL if all elements
     * are sent. */
    void *packing;
    uint64_t *first_blocks;
    const uint64_t *block_bytes;
    /* For the log: the device writes streams, parcels are filled, and streams travel. */
    uint64_t pack_ns, fill_ns, run_ns;
};

static int compare_by_receiver(const void *a, const void *b, void *plan)
{
    size_t i = *(const size_t *)a, k = *(const size_t *)b;
    RETURN_IF_UNEQUAL(banyan_reshard_plan_send(plan, i)->destination_rank,
                      banyan_reshard_plan_send(plan, k)->destination_rank);
    return COMPARE(i, k);
}

/* Describe the box of the i-th send of the list. */
static banyan_status source_of(const struct fetch_sending *sending, size_t i, delta_source *source)
{
    const banyan_transfer *transfer =
        banyan_reshard_plan_send(sending->session->plan, sending->order.data[i]);
    const struct fetch_source *from = sending->from;
    size_t tensor;
    RETURN_IF_FAILED(part_view_box(from->layout, from->kept, transfer->source_piece, &transfer->box,
                                   &source->box, &tensor));
    const DLTensor *kept = banyan_tensors_get(from->kept, tensor);
    source->memory = (const char *)kept->data + kept->byte_offset;
    source->maps = from->whole ? NULL : from->maps[tensor];
    source->map_count = from->map_count;
    source->whole = from->whole;
    return BANYAN_OK;
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
        status = source_of(sending, i, &sources[i]);
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
            array_free(&parcel->pieces);
            publish_device_give(device, &parcel->pinned);
        }
    }
    if (sending->packing)
        device->delta->pack_close(sending->packing);
    free(sending->first_blocks);
    array_free(&sending->to);
    array_free(&sending->order);
    free(sending->box_memory);
}

static const banyan_transfer *transfer_of(const struct fetch_sending *sending,
                                          const struct fetch_outgoing *to)
{
    return banyan_reshard_plan_send(sending->session->plan, sending->order.data[to->first]);
}

static banyan_status end_transfer(const struct fetch_sending *sending, struct fetch_outgoing *to)
{
    const strided_view *box = &to->source.box;
    struct box_sum sum = {.task_id = transfer_of(sending, to)->task_id};
    if (to->changed && sending->session->hello.verify) {
        for (uint64_t block = 0; block < delta_blocks(box->elems); block += PART_BLOCKS) {
            size_t elems = part_elems(box, block);
            RETURN_IF_FAILED(publish_device_read(sending->from->device, box, block * DELTA_BLOCK,
                                                 elems, sending->box_memory));
            sum.hash = hash_bytes(sending->box_memory, elems * box->elem_bytes, sum.hash);
        }
        bytes_write(&to->parcel->sums, &sum, sizeof sum);
    }
    to->first++;
    to->block = 0;
    return BANYAN_OK;
}

/* Return the number of blocks of the next part, which ends at a multiple of PART_BLOCKS at the
 * latest. With a low limit of bytes per second it has one. */
static uint64_t part_blocks(const strided_view *box, uint64_t block, uint64_t most_bytes)
{
    uint64_t left = delta_blocks(box->elems) - block, part = PART_BLOCKS - block % PART_BLOCKS;
    uint64_t count = left < part ? left : part;
    return most_bytes < count * DELTA_BLOCK * box->elem_bytes ? 1 : count;
}

/* Write a part. Return the number of elements in it, and set the head's bytes and checksum. */
static uint64_t sending_write_part(const struct fetch_outgoing *to, struct part_head *head)
{
    bytes_writer *stream = &to->parcel->stream;
    size_t before = stream->count;
    uint64_t changed = delta_write(&to->source, head->first, head->count, stream);
    if (changed == 0 || stream->failed) {
        stream->count = before;
        return changed;
    }
    head->bytes = stream->count - before;
    head->hash = hash_bytes(stream->data + before, head->bytes, 0);
    to->parcel->bytes += head->bytes;
    return changed;
}

/* Let the device write a part with the others of the parcel, and set the head's bytes. Return false
 * if no element has changed. */
static bool plan_part(const struct fetch_sending *sending, const struct fetch_outgoing *to,
                      struct part_head *head)
{
    const strided_view *box = &to->source.box;
    struct delta_piece piece = {to->first, head->first, head->count, to->parcel->bytes};
    uint64_t first = head->first * DELTA_BLOCK, end = first + head->count * DELTA_BLOCK;
    if (sending->block_bytes) {
        const uint64_t *bytes =
            sending->block_bytes + sending->first_blocks[to->first] + head->first;
        for (uint64_t i = 0; i < head->count; i++)
            head->bytes += bytes[i];
        if (head->bytes == head->count * DELTA_HEAD_BYTES)
            return false;
    } else {
        head->bytes = head->count * DELTA_HEAD_BYTES +
                      ((end < box->elems ? end : box->elems) - first) * box->elem_bytes;
    }
    to->parcel->bytes += head->bytes;
    if (!array_push(&to->parcel->pieces, piece))
        to->parcel->heads.failed = true;
    return true;
}

static void sum_part(void *context, size_t i)
{
    struct fetch_parcel *parcel = context;
    struct part_head *head = (struct part_head *)(void *)parcel->heads.data + i;
    const char *stream = (const char *)parcel->pinned.memory + parcel->pieces.data[i].at;
    head->hash = hash_bytes(stream, head->bytes, 0);
}

/* Let the device write the parts of a parcel, and compute their checksums. */
static banyan_status write_planned(struct fetch_sending *sending, struct fetch_parcel *parcel)
{
    const struct publish_device *device = sending->from->device;
    if (parcel->bytes > parcel->pinned.bytes) {
        publish_device_give(device, &parcel->pinned);
        RETURN_IF_FAILED(publish_device_take(device, parcel->bytes, &parcel->pinned));
    }
    uint64_t began_ns = time_now_ns();
    RETURN_IF_FAILED(device->delta->pack(sending->packing, parcel->pieces.data,
                                         parcel->pieces.count, parcel->pinned.memory,
                                         parcel->bytes));
    sending->pack_ns += time_now_ns() - began_ns;
    parallel_run(parcel->pieces.count, sum_part, parcel);
    return BANYAN_OK;
}

/* Fill a receiver's parcel with parts, up to about `most` bytes. */
static banyan_status fill(struct fetch_sending *sending, struct fetch_outgoing *to, uint64_t most)
{
    bool on_host = publish_device_is_host(sending->from->device);
    struct fetch_parcel *parcel = to->parcel;
    bytes_writer *stream = &parcel->stream;
    parcel->heads.count = parcel->sums.count = parcel->message.count = stream->count = 0;
    parcel->bytes = parcel->pieces.count = 0;
    while (to->first < to->end && parcel->bytes < most && !stream->failed) {
        if (to->block == 0) {
            RETURN_IF_FAILED(source_of(sending, to->first, &to->source));
            to->changed = false;
        }
        uint64_t left = delta_blocks(to->source.box.elems) - to->block;
        struct part_head head = {.task_id = transfer_of(sending, to)->task_id,
                                 .first = to->block,
                                 .count = part_blocks(&to->source.box, to->block, most)};
        to->block += head.count;
        if (on_host ? sending_write_part(to, &head) > 0 : plan_part(sending, to, &head)) {
            bytes_write(&parcel->heads, &head, sizeof head);
            to->parts++;
            to->changed = true;
        }
        if (head.count == left)
            RETURN_IF_FAILED(end_transfer(sending, to));
    }
    if (parcel->heads.failed || parcel->sums.failed || stream->failed)
        return error_no_memory(parcel->bytes, "changes to send");
    if (!on_host)
        RETURN_IF_FAILED(write_planned(sending, parcel));
    bytes_write_u64(&parcel->message, to->first == to->end ? to->parts : UINT64_MAX);
    bytes_write_u64(&parcel->message, parcel->bytes);
    bytes_write_blob(&parcel->message, parcel->heads.data, parcel->heads.count);
    bytes_write_blob(&parcel->message, parcel->sums.data, parcel->sums.count);
    return parcel->message.failed ? error_no_memory(parcel->bytes, "changes to send") : BANYAN_OK;
}

static bool sending_has_more(const struct fetch_sending *sending)
{
    for (size_t i = 0; i < sending->to.count; i++) {
        if (sending->to.data[i].first < sending->to.data[i].end)
            return true;
    }
    return false;
}

/* Fill the parcels of the next wave. */
static banyan_status fill_wave(void *context)
{
    struct fetch_sending *sending = context;
    uint64_t rate = sending->from->bytes_per_s, most = sending->wave_bytes;
    uint64_t began_ns = time_now_ns();
    if (rate > 0 && rate / WAVES_PER_S < most)
        most = rate / WAVES_PER_S;
    most /= sending->to.count > 0 ? sending->to.count : 1;
    if (most < WAVE_BYTES_LEAST && rate == 0)
        most = WAVE_BYTES_LEAST;
    if (sending->wave_bytes < WAVE_BYTES_MOST)
        sending->wave_bytes *= 2;
    for (size_t i = 0; i < sending->to.count; i++) {
        struct fetch_outgoing *to = &sending->to.data[i];
        to->parcel = to->parcel == &to->parcels[0] ? &to->parcels[1] : &to->parcels[0];
        RETURN_IF_FAILED(fill(sending, to, most));
    }
    sending->fill_ns += time_now_ns() - began_ns;
    return BANYAN_OK;
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
        int64_t count = (int64_t)parcel->bytes;
        DLTensor tensor = bytes_tensor(
            parcel->pieces.count > 0 ? parcel->pinned.memory : (void *)parcel->stream.data, &count);
        if (!array_push(&messages,
                        (control_message){to->rank, parcel->message.data, parcel->message.count}))
            *mine = BANYAN_ERR_NO_MEMORY;
        else if (count > 0)
            *mine = banyan_copy_service_submit_send(session->service, &tensor, to->rank, 0);
        *bytes += parcel->bytes;
    }
    if (*mine == BANYAN_OK && more)
        *mine = request_start(fill_wave, sending, &filling);
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
    sending->run_ns += time_now_ns() - began_ns;
    kept = error_keep(status);
    *mine = filling ? banyan_request_wait(filling) : fill_wave(sending);
    return status == BANYAN_OK ? BANYAN_OK : error_again(&kept);
}

banyan_status fetch_send(struct session *session, const struct fetch_source *source,
                         _Atomic uint64_t *sent_bytes)
{
    struct fetch_sending sending = {
        .session = session, .from = source, .wave_bytes = WAVE_BYTES_FIRST};
    uint64_t began_ns = time_now_ns();
    banyan_status mine = sending_open(&sending), status = BANYAN_OK;
    uint64_t more = 1;
    if (mine == BANYAN_OK)
        mine = fill_wave(&sending);
    while (status == BANYAN_OK && more) {
        uint64_t bytes;
        bool has_more = sending_has_more(&sending);
        error_kept kept = error_keep(mine);
        status = keep_to_rate(session);
        if (status != BANYAN_OK)
            break;
        mine = error_again(&kept);
        status = send_wave(&sending, has_more, &mine, &bytes);
        if (status != BANYAN_OK)
            break;
        kept = error_keep(mine);
        count_for_rate(session, source->bytes_per_s, bytes);
        *sent_bytes += bytes;
        status = control_max(session->joined, has_more, &more);
        mine = error_again(&kept);
    }
    if (status == BANYAN_OK)
        status = control_agree(session->joined, mine);
    log_debug(
        "a fetch: writing streams took %.3f s, of which the device %.3f s; they travelled for "
        "%.3f s, of %.3f s in all",
        (double)sending.fill_ns / 1e9, (double)sending.pack_ns / 1e9, (double)sending.run_ns / 1e9,
        (double)(time_now_ns() - began_ns) / 1e9);
    sending_close(&sending);
    return status;
}
