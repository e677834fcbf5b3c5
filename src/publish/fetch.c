#include "publish/fetch.h"

#include <inttypes.h>

#include "core/deadline.h"
#include "reshard/layout/box.h"
#include "reshard/layout/layout.h"
#include "world/control.h"

#define PART_BLOCKS DELTA_PART_BLOCKS
/* The most bytes that a rank sends in one wave, and the least for each receiver. */
#define WAVE_BYTES ((uint64_t)32 << 20)
#define WAVE_BYTES_LEAST ((uint64_t)64 << 10)
/* Waves of a fetch with a limit of bytes per second. */
#define WAVES_PER_S 10
/* The longest sleep before the state of the joined world is looked at again. */
#define NAP_NS (20 * NS_PER_MS)

/* ---- both sides ---- */

/* View a transfer's box in a local tensor. */
static banyan_status view_box(const banyan_layout *layout, const banyan_tensors *tensors,
                              size_t piece, const banyan_box *box, strided_view *view,
                              size_t *tensor)
{
    int64_t shape[BANYAN_MAX_DIMS], strides[BANYAN_MAX_DIMS];
    const banyan_piece *held = banyan_layout_piece(layout, piece);
    DLTensor local;
    *tensor = (size_t)held->tensor;
    piece_view(held, box, banyan_tensors_get(tensors, *tensor), shape, strides, &local);
    return strided_view_of(&local, view);
}

/* What a message says about a part of a transfer. */
struct part_head {
    uint64_t task_id, first, count, bytes, hash;
};

/* The checksum of a whole box. */
struct box_sum {
    uint64_t task_id, hash;
};

static size_t part_elems(const strided_view *box, uint64_t first)
{
    uint64_t left = box->elems - first * DELTA_BLOCK, most = PART_BLOCKS * DELTA_BLOCK;
    return left < most ? left : most;
}

/* ---- publication ---- */

/* What one receiver gets. */
struct fetch_outgoing {
    int rank;
    size_t first, end; /* of the list of sends */
    uint64_t block;    /* the next of transfer `first` */
    bool changed;      /* something in this transfer */
    delta_source source;
    uint64_t parts;
    bytes_writer heads, sums, stream, message;
};

struct fetch_sending {
    struct session *session;
    const struct fetch_source *from;
    ARRAY(size_t) order; /* of the plan's sends, by receiver */
    ARRAY(struct fetch_outgoing) to;
    void *box_memory; /* of one part, to compute checksums */
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
        bytes_writer_free(&sending->to.data[i].heads);
        bytes_writer_free(&sending->to.data[i].sums);
        bytes_writer_free(&sending->to.data[i].stream);
        bytes_writer_free(&sending->to.data[i].message);
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
    RETURN_IF_FAILED(view_box(from->layout, from->kept, transfer->source_piece, &transfer->box,
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
        bytes_write(&to->sums, &sum, sizeof sum);
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

/* Write parts for a receiver, up to about `most` bytes. */
static banyan_status fill(const struct fetch_sending *sending, struct fetch_outgoing *to,
                          uint64_t most)
{
    to->heads.count = to->sums.count = to->stream.count = 0;
    while (to->first < to->end && to->stream.count < most) {
        if (to->block == 0)
            RETURN_IF_FAILED(begin_transfer(sending, to));
        size_t before = to->stream.count;
        uint64_t left = delta_blocks(to->source.box.elems) - to->block;
        struct part_head head = {.task_id = transfer_of(sending, to)->task_id,
                                 .first = to->block,
                                 .count = part_blocks(&to->source.box, to->block, most)};
        uint64_t changed = delta_write(&to->source, head.first, head.count, &to->stream);
        to->block += head.count;
        if (changed > 0) {
            head.bytes = to->stream.count - before;
            head.hash = to->stream.failed ? 0 : hash_bytes(to->stream.data + before, head.bytes, 0);
            bytes_write(&to->heads, &head, sizeof head);
            to->parts++;
            to->changed = true;
        } else {
            to->stream.count = before;
        }
        if (head.count == left)
            end_transfer(sending, to);
    }
    to->message.count = 0;
    bytes_write_u64(&to->message, to->first == to->end ? to->parts : UINT64_MAX);
    bytes_write_u64(&to->message, to->stream.count);
    bytes_write_blob(&to->message, to->heads.data, to->heads.count);
    bytes_write_blob(&to->message, to->sums.data, to->sums.count);
    if (to->heads.failed || to->sums.failed || to->stream.failed || to->message.failed)
        return error_no_memory(to->stream.count, "changes to send");
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

static DLTensor bytes_tensor(void *data, int64_t *bytes)
{
    return (DLTensor){
        .data = data, .device = BANYAN_HOST, .ndim = 1, .dtype = {kDLUInt, 8, 1}, .shape = bytes};
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

/* Send one wave. `mine` is this rank's status so far. */
static banyan_status send_wave(struct fetch_sending *sending, banyan_status mine, uint64_t *bytes)
{
    struct session *session = sending->session;
    ARRAY(control_message) messages = {0};
    control_message *received = NULL;
    size_t received_count = 0;
    *bytes = 0;
    for (size_t i = 0; i < sending->to.count && mine == BANYAN_OK; i++) {
        struct fetch_outgoing *to = &sending->to.data[i];
        int64_t count = (int64_t)to->stream.count;
        DLTensor tensor = bytes_tensor(to->stream.data, &count);
        if (!array_push(&messages,
                        (control_message){to->rank, to->message.data, to->message.count}))
            mine = BANYAN_ERR_NO_MEMORY;
        else if (count > 0)
            mine = banyan_copy_service_submit_send(session->service, &tensor, to->rank, 0);
        *bytes += to->stream.count;
    }
    error_kept kept = error_keep(mine);
    banyan_status status =
        control_exchange(session->joined, messages.data, mine == BANYAN_OK ? messages.count : 0,
                         "changes of a version", &received, &received_count);
    control_messages_free(received, received_count);
    array_free(&messages);
    RETURN_IF_FAILED(status);
    RETURN_IF_FAILED(control_agree(session->joined, error_again(&kept)));
    return banyan_copy_service_run(session->service, NULL);
}

banyan_status fetch_send(struct session *session, const struct fetch_source *source,
                         _Atomic uint64_t *sent_bytes)
{
    struct fetch_sending sending = {.session = session, .from = source};
    banyan_status mine = sending_open(&sending), status = BANYAN_OK;
    uint64_t rate = session->hello.bytes_per_s, more = 1;
    uint64_t most = rate > 0 && rate / WAVES_PER_S < WAVE_BYTES ? rate / WAVES_PER_S : WAVE_BYTES;
    most /= sending.to.count > 0 ? sending.to.count : 1;
    if (most < WAVE_BYTES_LEAST && rate == 0)
        most = WAVE_BYTES_LEAST;
    while (status == BANYAN_OK && more) {
        uint64_t bytes;
        for (size_t i = 0; i < sending.to.count && mine == BANYAN_OK; i++)
            mine = fill(&sending, &sending.to.data[i], most);
        error_kept kept = error_keep(mine);
        status = keep_to_rate(session);
        if (status == BANYAN_OK)
            status = send_wave(&sending, error_again(&kept), &bytes);
        if (status != BANYAN_OK)
            break;
        count_for_rate(session, bytes);
        *sent_bytes += bytes;
        status = control_max(session->joined, sending_has_more(&sending), &more);
    }
    if (status == BANYAN_OK)
        status = control_agree(session->joined, BANYAN_OK);
    sending_close(&sending);
    return status;
}

/* ---- subscription ---- */

/* A transfer that this rank receives. */
struct incoming {
    const banyan_transfer *transfer;
    strided_view box;
    uint64_t blocks; /* that have arrived */
};

/* What one sender has sent so far. */
struct sender {
    int rank;
    uint64_t parts, parts_expected; /* UINT64_MAX: more come */
};

struct fetch_receiving {
    struct session *session;
    const struct fetch_target *into;
    bool whole;
    ARRAY(struct incoming) incoming;
    hash_map by_task;
    ARRAY(struct sender) senders;
    ARRAY(struct box_sum) sums;
};

static banyan_status receiving_open(struct fetch_receiving *receiving)
{
    const banyan_reshard_plan *plan = receiving->session->plan;
    const struct fetch_target *into = receiving->into;
    for (size_t i = 0; i < banyan_reshard_plan_recv_count(plan); i++) {
        const banyan_transfer *transfer = banyan_reshard_plan_recv(plan, i);
        struct incoming one = {.transfer = transfer};
        size_t tensor;
        RETURN_IF_FAILED(view_box(into->layout, into->tensors, transfer->destination_piece,
                                  &transfer->box, &one.box, &tensor));
        RETURN_IF_NO_MEMORY(array_push(&receiving->incoming, one));
        RETURN_IF_NO_MEMORY(
            map_put(&receiving->by_task, &transfer->task_id, sizeof transfer->task_id, i));
    }
    return BANYAN_OK;
}

static void receiving_close(struct fetch_receiving *receiving)
{
    array_free(&receiving->incoming);
    array_free(&receiving->senders);
    array_free(&receiving->sums);
    map_free(&receiving->by_task);
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

static struct incoming *incoming_of(struct fetch_receiving *receiving, uint64_t task_id, int source)
{
    uint64_t i;
    if (!map_get(&receiving->by_task, &task_id, sizeof task_id, &i))
        return NULL;
    struct incoming *one = &receiving->incoming.data[i];
    return one->transfer->source_rank == source ? one : NULL;
}

static banyan_status fail_malformed(int rank)
{
    return error_set(BANYAN_ERR_CORRUPT, "rank %d sends a malformed list of changes", rank);
}

static banyan_status fail_box(const struct fetch_receiving *receiving, const struct incoming *one,
                              const char *what)
{
    char box[BOX_TEXT_BYTES];
    return error_set(BANYAN_ERR_CORRUPT, "version %" PRIu64 ", %s of \"%s\" from rank %d: %s",
                     receiving->into->staged->version,
                     banyan_box_format(&one->transfer->box, box, sizeof box), one->transfer->name,
                     one->transfer->source_rank, what);
}

/* What a message of one sender brings in a wave. */
struct wave_part {
    int rank;
    unsigned char *stream;
    uint64_t bytes;
    const struct part_head *heads;
    size_t head_count;
};

/* Take a message: make room for the stream, and submit its receive. */
static banyan_status take_message(struct fetch_receiving *receiving, const control_message *message,
                                  struct wave_part *part)
{
    struct staged *staged = receiving->into->staged;
    struct sender *sender = sender_of(receiving, message->rank);
    bytes_reader reader = bytes_reader_of(message->data, message->bytes);
    size_t head_bytes, sum_bytes;
    RETURN_IF_NO_MEMORY(sender);
    sender->parts_expected = bytes_read_u64(&reader);
    *part = (struct wave_part){.rank = message->rank, .bytes = bytes_read_u64(&reader)};
    part->heads = bytes_read_blob(&reader, &head_bytes);
    const struct box_sum *sums = bytes_read_blob(&reader, &sum_bytes);
    if (reader.failed || reader.left > 0 || head_bytes % sizeof *part->heads != 0 ||
        sum_bytes % sizeof *sums != 0 || part->bytes > INT64_MAX)
        return fail_malformed(message->rank);
    part->head_count = head_bytes / sizeof *part->heads;
    sender->parts += part->head_count;
    for (size_t i = 0; i < sum_bytes / sizeof *sums; i++) {
        struct box_sum sum;
        memcpy(&sum, sums + i, sizeof sum);
        RETURN_IF_NO_MEMORY(array_push(&receiving->sums, sum));
    }
    if (part->bytes == 0)
        return BANYAN_OK;
    if (part->bytes > receiving->into->max_bytes - staged->bytes)
        return error_set(BANYAN_ERR_INVALID,
                         "version %" PRIu64 " needs more than the %" PRIu64
                         " bytes that max_staging_bytes leaves at this rank",
                         staged->version, receiving->into->max_bytes);
    RETURN_IF_NO_MEMORY(array_reserve(&staged->memory, 1));
    part->stream = malloc(part->bytes);
    if (!part->stream)
        return error_no_memory(part->bytes, "changes that are received");
    staged->memory.data[staged->memory.count++] = part->stream;
    staged->bytes += part->bytes;
    int64_t bytes = (int64_t)part->bytes;
    DLTensor tensor = bytes_tensor(part->stream, &bytes);
    return banyan_copy_service_submit_recv(receiving->session->service, &tensor, message->rank, 0);
}

/* Check what has arrived from a sender in a wave, and keep it. */
static banyan_status keep_parts(struct fetch_receiving *receiving, const struct wave_part *part)
{
    unsigned char *at = part->stream;
    uint64_t left = part->bytes, changed;
    for (size_t i = 0; i < part->head_count; i++) {
        struct part_head head;
        memcpy(&head, part->heads + i, sizeof head); /* a message has no alignment */
        struct incoming *one = incoming_of(receiving, head.task_id, part->rank);
        if (!one || head.bytes > left)
            return fail_malformed(part->rank);
        if (hash_bytes(at, head.bytes, 0) != head.hash)
            return fail_box(receiving, one, "the checksum of what arrived is wrong");
        if (!delta_check(at, head.bytes, one->box.elems, one->box.elem_bytes, head.first,
                         head.count, &changed))
            return fail_box(receiving, one, "what arrived is malformed");
        struct staged_part kept = {one->box, head.first, head.count, at, head.bytes};
        RETURN_IF_NO_MEMORY(array_push(&receiving->into->staged->parts, kept));
        one->blocks += head.count;
        at += head.bytes;
        left -= head.bytes;
    }
    return left == 0 ? BANYAN_OK : fail_malformed(part->rank);
}

/* Receive one wave. `*mine` is this rank's status so far. */
static banyan_status receive_wave(struct fetch_receiving *receiving, banyan_status *mine)
{
    banyan_world *joined = receiving->session->joined;
    control_message *received;
    size_t count;
    error_kept kept = error_keep(*mine);
    RETURN_IF_FAILED(control_exchange(joined, NULL, 0, "changes of a version", &received, &count));
    struct wave_part *parts = alloc_zeroed(count, sizeof *parts, "a list of changes");
    if (!parts && kept.status == BANYAN_OK)
        kept = error_keep(BANYAN_ERR_NO_MEMORY);
    for (size_t i = 0; i < count && kept.status == BANYAN_OK; i++)
        kept = error_keep(take_message(receiving, &received[i], &parts[i]));
    banyan_status status = control_agree(joined, error_again(&kept));
    if (status == BANYAN_OK)
        status = banyan_copy_service_run(receiving->session->service, NULL);
    *mine = BANYAN_OK;
    for (size_t i = 0; i < count && status == BANYAN_OK && *mine == BANYAN_OK; i++)
        *mine = keep_parts(receiving, &parts[i]);
    control_messages_free(received, count);
    free(parts);
    return status;
}

/* Verify that everything has come. */
static banyan_status check_complete(struct fetch_receiving *receiving)
{
    for (size_t i = 0; i < receiving->senders.count; i++) {
        const struct sender *sender = &receiving->senders.data[i];
        if (sender->parts != sender->parts_expected)
            return fail_malformed(sender->rank);
    }
    for (size_t i = 0; i < receiving->incoming.count && receiving->whole; i++) {
        const struct incoming *one = &receiving->incoming.data[i];
        if (one->blocks != delta_blocks(one->box.elems))
            return fail_box(receiving, one, "a part has not come");
    }
    return BANYAN_OK;
}

static int compare_staged_parts(const void *a, const void *b)
{
    const struct staged_part *x = a, *y = b;
    RETURN_IF_UNEQUAL(x->box.data, y->box.data);
    return COMPARE(x->first, y->first);
}

/* Exchange the parts of a box from a block on, up to PART_BLOCKS, with elements of a copy of these.
 * Tied weights have the parts of two boxes in one place, with equal contents: the first counts. */
static void swap_window(const struct staged *staged, const strided_view *box, uint64_t block,
                        const strided_view *copy)
{
    struct staged_part wanted = {.box = *box, .first = block};
    size_t i = BISECT(k, 0, staged->parts.count,
                      compare_staged_parts(&staged->parts.data[k], &wanted) < 0);
    for (uint64_t next = block; i < staged->parts.count; i++) {
        const struct staged_part *part = &staged->parts.data[i];
        if (part->box.data != box->data || part->first >= block + PART_BLOCKS)
            break;
        if (part->first < next)
            continue;
        delta_swap(copy, part->first - block, part->count, part->stream);
        next = part->first + part->count;
    }
}

/* Compute the checksum of a box as it will be. The parts are sorted. */
static uint64_t sum_of(const struct staged *staged, const strided_view *box, void *memory)
{
    uint64_t hash = 0;
    for (uint64_t block = 0; block < delta_blocks(box->elems); block += PART_BLOCKS) {
        size_t elems = part_elems(box, block);
        int64_t count = (int64_t)elems;
        strided_view dense = {.data = memory,
                              .elem_bytes = box->elem_bytes,
                              .elems = elems,
                              .ndim = 1,
                              .extent = {count},
                              .stride = {(int64_t)box->elem_bytes}};
        strided_pack(memory, box, block * DELTA_BLOCK, elems);
        swap_window(staged, box, block, &dense);
        hash = hash_bytes(memory, elems * box->elem_bytes, hash);
        swap_window(staged, box, block, &dense);
    }
    return hash;
}

static banyan_status verify(struct fetch_receiving *receiving)
{
    struct staged *staged = receiving->into->staged;
    banyan_status status = BANYAN_OK;
    if (receiving->sums.count == 0 || !receiving->into->begin_verify(receiving->into->context))
        return BANYAN_OK;
    void *memory = malloc(PART_BLOCKS * delta_block_bytes_most(16));
    if (!memory)
        status = error_no_memory(PART_BLOCKS * delta_block_bytes_most(16), "a part to verify");
    array_sort(&staged->parts, compare_staged_parts);
    for (size_t i = 0; i < receiving->sums.count && status == BANYAN_OK; i++) {
        const struct box_sum *sum = &receiving->sums.data[i];
        uint64_t number;
        if (!map_get(&receiving->by_task, &sum->task_id, sizeof sum->task_id, &number)) {
            status = error_set(BANYAN_ERR_CORRUPT, "a checksum is of an unknown box");
            continue;
        }
        const struct incoming *one = &receiving->incoming.data[number];
        if (sum_of(staged, &one->box, memory) != sum->hash)
            status = fail_box(receiving, one, "it would differ from the trainer's");
    }
    receiving->into->end_verify(receiving->into->context);
    free(memory);
    return status;
}

banyan_status fetch_receive(struct session *session, const struct fetch_target *target, bool whole)
{
    struct fetch_receiving receiving = {.session = session, .into = target, .whole = whole};
    banyan_status mine = receiving_open(&receiving), status = BANYAN_OK;
    uint64_t more = 1;
    while (status == BANYAN_OK && more) {
        status = receive_wave(&receiving, &mine);
        error_kept kept = error_keep(mine);
        if (status == BANYAN_OK)
            status = control_max(session->joined, 0, &more);
        if (status == BANYAN_OK)
            mine = error_again(&kept);
    }
    if (status == BANYAN_OK && mine == BANYAN_OK)
        mine = check_complete(&receiving);
    if (status == BANYAN_OK && mine == BANYAN_OK)
        mine = verify(&receiving);
    if (status == BANYAN_OK)
        status = control_agree(session->joined, mine);
    receiving_close(&receiving);
    return status;
}
