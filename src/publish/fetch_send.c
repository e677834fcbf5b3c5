#include <stdlib.h>

#include "core/deadline.h"
#include "core/threads/thread.h"
#include "publish/fetch_parts.h"
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
};

static int compare_by_receiver(const void *a, const void *b, void *plan)
{
    size_t i = *(const size_t *)a, k = *(const size_t *)b;
    RETURN_IF_UNEQUAL(banyan_reshard_plan_send(plan, i)->destination_rank,
                      banyan_reshard_plan_send(plan, k)->destination_rank);
    return COMPARE(i, k);
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
    if (!sending->session->hello.verify)
        return BANYAN_OK;
    sending->box_memory = malloc(PART_BLOCKS * delta_block_bytes_most(16));
    return sending->box_memory
               ? BANYAN_OK
               : error_no_memory(PART_BLOCKS * delta_block_bytes_most(16), "a part to verify");
}

static void sending_close(struct fetch_sending *sending)
{
    for (size_t i = 0; i < sending->to.count; i++) {
        for (size_t k = 0; k < 2; k++) {
            struct fetch_parcel *parcel = &sending->to.data[i].parcels[k];
            bytes_writer_free(&parcel->heads);
            bytes_writer_free(&parcel->sums);
            bytes_writer_free(&parcel->stream);
            bytes_writer_free(&parcel->message);
        }
    }
    array_free(&sending->to);
    array_free(&sending->order);
    free(sending->box_memory);
}

static const banyan_transfer *transfer_of(const struct fetch_sending *sending,
                                          const struct fetch_outgoing *to)
{
    return banyan_reshard_plan_send(sending->session->plan, sending->order.data[to->first]);
}

static banyan_status begin_transfer(const struct fetch_sending *sending, struct fetch_outgoing *to)
{
    const banyan_transfer *transfer = transfer_of(sending, to);
    const struct fetch_source *from = sending->from;
    size_t tensor;
    RETURN_IF_FAILED(part_view_box(from->layout, from->kept, transfer->source_piece, &transfer->box,
                                   &to->source.box, &tensor));
    const DLTensor *kept = banyan_tensors_get(from->kept, tensor);
    to->source.memory = (const char *)kept->data + kept->byte_offset;
    to->source.maps = from->whole ? NULL : from->maps[tensor];
    to->source.map_count = from->map_count;
    to->source.whole = from->whole;
    to->changed = false;
    return BANYAN_OK;
}

static void end_transfer(const struct fetch_sending *sending, struct fetch_outgoing *to)
{
    const strided_view *box = &to->source.box;
    struct box_sum sum = {.task_id = transfer_of(sending, to)->task_id};
    if (to->changed && sending->session->hello.verify) {
        for (uint64_t block = 0; block < delta_blocks(box->elems); block += PART_BLOCKS) {
            size_t elems = part_elems(box, block);
            strided_pack(sending->box_memory, box, block * DELTA_BLOCK, elems);
            sum.hash = hash_bytes(sending->box_memory, elems * box->elem_bytes, sum.hash);
        }
        bytes_write(&to->parcel->sums, &sum, sizeof sum);
    }
    to->first++;
    to->block = 0;
}

/* Return the number of blocks of the next part, which ends at a multiple of PART_BLOCKS at the
 * latest. With a low limit of bytes per second it has one. */
static uint64_t part_blocks(const strided_view *box, uint64_t block, uint64_t most_bytes)
{
    uint64_t left = delta_blocks(box->elems) - block, part = PART_BLOCKS - block % PART_BLOCKS;
    uint64_t count = left < part ? left : part;
    return most_bytes < count * DELTA_BLOCK * box->elem_bytes ? 1 : count;
}

/* Fill a receiver's parcel with parts, up to about `most` bytes. */
static banyan_status fill(const struct fetch_sending *sending, struct fetch_outgoing *to,
                          uint64_t most)
{
    struct fetch_parcel *parcel = to->parcel;
    bytes_writer *stream = &parcel->stream;
    parcel->heads.count = parcel->sums.count = parcel->message.count = stream->count = 0;
    while (to->first < to->end && stream->count < most) {
        if (to->block == 0)
            RETURN_IF_FAILED(begin_transfer(sending, to));
        size_t before = stream->count;
        uint64_t left = delta_blocks(to->source.box.elems) - to->block;
        struct part_head head = {.task_id = transfer_of(sending, to)->task_id,
                                 .first = to->block,
                                 .count = part_blocks(&to->source.box, to->block, most)};
        uint64_t changed = delta_write(&to->source, head.first, head.count, stream);
        to->block += head.count;
        if (changed > 0) {
            head.bytes = stream->count - before;
            head.hash = stream->failed ? 0 : hash_bytes(stream->data + before, head.bytes, 0);
            bytes_write(&parcel->heads, &head, sizeof head);
            to->parts++;
            to->changed = true;
        } else {
            stream->count = before;
        }
        if (head.count == left)
            end_transfer(sending, to);
    }
    bytes_write_u64(&parcel->message, to->first == to->end ? to->parts : UINT64_MAX);
    bytes_write_u64(&parcel->message, stream->count);
    bytes_write_blob(&parcel->message, parcel->heads.data, parcel->heads.count);
    bytes_write_blob(&parcel->message, parcel->sums.data, parcel->sums.count);
    if (parcel->heads.failed || parcel->sums.failed || stream->failed || parcel->message.failed)
        return error_no_memory(stream->count, "changes to send");
    return BANYAN_OK;
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
    uint64_t rate = sending->session->hello.bytes_per_s, most = sending->wave_bytes;
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

static void count_for_rate(struct session *session, uint64_t bytes)
{
    uint64_t now = time_now_ns(), rate = session->hello.bytes_per_s;
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
        int64_t count = (int64_t)parcel->stream.count;
        DLTensor tensor = bytes_tensor(parcel->stream.data, &count);
        if (!array_push(&messages,
                        (control_message){to->rank, parcel->message.data, parcel->message.count}))
            *mine = BANYAN_ERR_NO_MEMORY;
        else if (count > 0)
            *mine = banyan_copy_service_submit_send(session->service, &tensor, to->rank, 0);
        *bytes += parcel->stream.count;
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
    if (status == BANYAN_OK)
        status = banyan_copy_service_run(session->service, NULL);
    kept = error_keep(status);
    *mine = filling ? banyan_request_wait(filling) : fill_wave(sending);
    return status == BANYAN_OK ? BANYAN_OK : error_again(&kept);
}

banyan_status fetch_send(struct session *session, const struct fetch_source *source,
                         _Atomic uint64_t *sent_bytes)
{
    struct fetch_sending sending = {
        .session = session, .from = source, .wave_bytes = WAVE_BYTES_FIRST};
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
        count_for_rate(session, bytes);
        *sent_bytes += bytes;
        status = control_max(session->joined, has_more, &more);
        mine = error_again(&kept);
    }
    if (status == BANYAN_OK)
        status = control_agree(session->joined, mine);
    sending_close(&sending);
    return status;
}
