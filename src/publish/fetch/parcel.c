#include "publish/fetch/sending.h"

#include "core/deadline.h"

/* Bytes of streams that a rank sends in a wave at most, and for each receiver at least. */
#define WAVE_BYTES_MOST ((uint64_t)32 << 20)
#define WAVE_BYTES_LEAST ((uint64_t)64 << 10)
/* Waves of a fetch with a limit of bytes per second. */
#define WAVES_PER_S 10

/* Describe the box of the i-th send of the list. */
banyan_status sending_source(const struct fetch_sending *sending, size_t i, delta_source *source)
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

static const banyan_transfer *transfer_of(const struct fetch_sending *sending,
                                          const struct fetch_outgoing *to)
{
    return banyan_reshard_plan_send(sending->session->plan, sending->order.data[to->first]);
}

static banyan_status end_transfer(const struct fetch_sending *sending, struct fetch_outgoing *to)
{
    const strided_view *box = &to->source.box;
    struct box_sum sum = {.task_id = transfer_of(sending, to)->task_id};
    bool is_wanted = to->changed || sending->from->goes_on;
    if (is_wanted && sending->session->hello.verify) {
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

static unsigned char *parcel_stream(const struct fetch_parcel *parcel)
{
    return parcel->pieces.count > 0 ? parcel->pinned.memory : parcel->stream.data;
}

static struct part_head *parcel_head(const struct fetch_parcel *parcel, size_t i)
{
    return (struct part_head *)(void *)parcel->heads.data + i;
}

static void sum_part(void *context, int worker, size_t i)
{
    (void)worker;
    const struct fetch_parcel *parcel = context;
    const struct parcel_part *part = &parcel->parts.data[i];
    parcel_head(parcel, i)->hash = hash_bytes(parcel_stream(parcel) + part->at, part->of.bytes, 0);
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
    parallel_run(parcel->parts.count, sum_part, parcel);
    return BANYAN_OK;
}

/* ---- compression ---- */

struct parcel_packing {
    struct fetch_parcel *parcel;
    planes_coder *coders; /* of each worker */
};

/* Streams of fewer bytes are not compressed: the coder needs as long to begin. */
#define PACKED_LEAST 1024

/* Compress a part to its place in `packed`. */
static void pack_part(void *context, int worker, size_t i)
{
    const struct parcel_packing *packing = context;
    const struct fetch_parcel *parcel = packing->parcel;
    const struct parcel_part *part = &parcel->parts.data[i];
    const unsigned char *stream = parcel_stream(parcel) + part->at;
    unsigned char *to = parcel->packed.data + part->at;
    size_t bytes = part->of.bytes < PACKED_LEAST
                       ? 0
                       : planes_pack(&packing->coders[worker], &part->of, stream, to);
    if (bytes == 0)
        memcpy(to, stream, part->of.bytes);
    else
        parcel_head(parcel, i)->packed_bytes = bytes;
}

/* Compress the parts of a parcel. Without memory for it they travel as they are. */
static void pack_parcel(struct fetch_sending *sending, struct fetch_parcel *parcel)
{
    struct parcel_packing packing = {parcel, sending->coders};
    uint64_t began_ns = time_now_ns();
    parcel->packed.count = 0;
    if (!array_reserve(&parcel->packed, parcel->bytes))
        return;
    parallel_run(parcel->parts.count, pack_part, &packing);
    for (size_t i = 0; i < parcel->parts.count; i++) {
        size_t bytes = parcel_head(parcel, i)->packed_bytes;
        memmove(parcel->packed.data + parcel->packed.count,
                parcel->packed.data + parcel->parts.data[i].at, bytes);
        parcel->packed.count += bytes;
    }
    parcel->sent = parcel->packed.data;
    parcel->sent_bytes = parcel->packed.count;
    sending->wave.compressed_bytes += parcel->bytes;
    sending->wave.packed_bytes += parcel->sent_bytes;
    sending->wave.compress_ns += time_now_ns() - began_ns;
}

/* ---- waves ---- */

/* Fill a receiver's parcel with parts, up to about `most` bytes. */
static banyan_status fill(struct fetch_sending *sending, struct fetch_outgoing *to, uint64_t most)
{
    bool on_host = publish_device_is_host(sending->from->device);
    struct fetch_parcel *parcel = to->parcel;
    bytes_writer *stream = &parcel->stream;
    uint64_t began_ns = time_now_ns();
    parcel->heads.count = parcel->sums.count = parcel->message.count = stream->count = 0;
    parcel->bytes = parcel->pieces.count = parcel->parts.count = 0;
    while (to->first < to->end && parcel->bytes < most && !stream->failed) {
        if (to->block == 0) {
            RETURN_IF_FAILED(sending_source(sending, to->first, &to->source));
            to->changed = false;
        }
        uint64_t left = delta_blocks(to->source.box.elems) - to->block;
        struct part_head head = {.task_id = transfer_of(sending, to)->task_id,
                                 .first = to->block,
                                 .count = part_blocks(&to->source.box, to->block, most)};
        to->block += head.count;
        uint64_t at = parcel->bytes;
        if (on_host ? sending_write_part(to, &head) > 0 : plan_part(sending, to, &head)) {
            planes_stream of = {to->source.box.elems, head.first, head.count,
                                to->source.box.elem_bytes, head.bytes};
            head.packed_bytes = head.bytes;
            bytes_write(&parcel->heads, &head, sizeof head);
            parcel->heads.failed |= !array_push(&parcel->parts, (struct parcel_part){of, at});
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
    parcel->sent = parcel_stream(parcel);
    parcel->sent_bytes = parcel->bytes;
    sending->wave.bytes += parcel->bytes;
    sending->wave.ns += time_now_ns() - began_ns;
    bool all = sending->session->compression.choice == BANYAN_COMPRESSION_ALWAYS;
    if (sending->compresses && (all || parcel->bytes >= COMPRESSION_LEAST))
        pack_parcel(sending, parcel);
    bytes_write_u64(&parcel->message, to->first == to->end ? to->parts : UINT64_MAX);
    bytes_write_u64(&parcel->message, parcel->sent_bytes);
    bytes_write_blob(&parcel->message, parcel->heads.data, parcel->heads.count);
    bytes_write_blob(&parcel->message, parcel->sums.data, parcel->sums.count);
    return parcel->message.failed ? error_no_memory(parcel->bytes, "changes to send") : BANYAN_OK;
}

/* Fill the parcels of the next wave. */
banyan_status sending_fill_wave(void *context)
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
