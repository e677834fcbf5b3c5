#include <inttypes.h>
#include <stdlib.h>

#include "core/deadline.h"
#include "core/log.h"
#include "core/threads/thread.h"
#include "publish/fetch_parts.h"
#include "publish/parallel.h"
#include "reshard/layout/box.h"
#include "world/control.h"

/* A transfer that this rank receives. */
struct incoming {
    const banyan_transfer *transfer;
    size_t tensor;
    uint64_t blocks; /* that have arrived */
};

/* Progress of one sender. */
struct sender {
    int rank;
    uint64_t parts, parts_expected; /* UINT64_MAX: more come */
};

/* Contents of one sender's message in a wave. */
struct wave_part {
    int rank;
    unsigned char *stream; /* until a version keeps it; in `buffer` if that has memory */
    struct publish_buffer buffer;
    uint64_t bytes;
    const struct part_head *heads;
    size_t head_count;
};

/* A wave that has arrived. It is checked while the next one travels. */
struct fetch_wave {
    struct fetch_receiving *receiving;
    control_message *messages; /* the heads of the parts lie there */
    struct wave_part *parts;
    size_t count;
    banyan_request *checking;
};

struct fetch_receiving {
    struct session *session;
    const struct fetch_target *into;
    bool whole;
    ARRAY(struct incoming) incoming;
    ARRAY(strided_view) boxes; /* of `incoming` */
    hash_map by_task;
    ARRAY(struct sender) senders;
    ARRAY(struct box_sum) sums;
    struct fetch_wave before; /* the wave that is checked */
    void *there;              /* the device's memory for streams in place */
    size_t there_bytes;
    /* For the log. */
    uint64_t run_ns, wait_ns, check_ns, upload_ns, exchange_ns;
};

static banyan_status receiving_open(struct fetch_receiving *receiving)
{
    const banyan_reshard_plan *plan = receiving->session->plan;
    const struct fetch_target *into = receiving->into;
    for (size_t i = 0; i < banyan_reshard_plan_recv_count(plan); i++) {
        const banyan_transfer *transfer = banyan_reshard_plan_recv(plan, i);
        struct incoming one = {.transfer = transfer};
        strided_view box;
        RETURN_IF_FAILED(part_view_box(into->layout, into->tensors, transfer->destination_piece,
                                       &transfer->box, &box, &one.tensor));
        RETURN_IF_NO_MEMORY(array_push(&receiving->incoming, one));
        RETURN_IF_NO_MEMORY(array_push(&receiving->boxes, box));
        RETURN_IF_NO_MEMORY(
            map_put(&receiving->by_task, &transfer->task_id, sizeof transfer->task_id, i));
    }
    return BANYAN_OK;
}

static void free_wave(struct fetch_wave *wave)
{
    control_messages_free(wave->messages, wave->count);
    for (size_t i = 0; wave->parts && i < wave->count; i++) {
        struct wave_part *part = &wave->parts[i];
        if (part->buffer.memory)
            publish_device_give(wave->receiving->into->staged->device, &part->buffer);
        else
            free(part->stream);
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

static void receiving_close(struct fetch_receiving *receiving)
{
    const struct publish_device *device = receiving->into->staged->device;
    if (receiving->there)
        device->memory->free(device->id, receiving->there);
    array_free(&receiving->incoming);
    array_free(&receiving->boxes);
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

/* Find a transfer by its number in the plan. */
static struct incoming *incoming_of(struct fetch_receiving *receiving, uint64_t task_id, int source,
                                    size_t *number)
{
    uint64_t i;
    if (!map_get(&receiving->by_task, &task_id, sizeof task_id, &i))
        return NULL;
    struct incoming *one = &receiving->incoming.data[i];
    *number = i;
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

/* True if host memory keeps the streams until all are verified. */
static bool keeps_on_host(const struct fetch_receiving *receiving)
{
    const struct staged *staged = receiving->into->staged;
    return publish_device_is_host(staged->device) ||
           (receiving->session->hello.verify && !staged->in_place);
}

static banyan_status make_room(const struct fetch_receiving *receiving, struct wave_part *part)
{
    if (keeps_on_host(receiving)) {
        part->stream = malloc(part->bytes);
        return part->stream ? BANYAN_OK : error_no_memory(part->bytes, "changes that are received");
    }
    RETURN_IF_FAILED(
        publish_device_take(receiving->into->staged->device, part->bytes, &part->buffer));
    part->stream = part->buffer.memory;
    return BANYAN_OK;
}

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
    RETURN_IF_FAILED(make_room(receiving, part));
    staged->bytes += staged->in_place ? 0 : part->bytes;
    staged->received += part->bytes;
    int64_t bytes = (int64_t)part->bytes;
    DLTensor tensor = bytes_tensor(part->stream, &bytes);
    return banyan_copy_service_submit_recv(receiving->session->service, &tensor, message->rank, 0);
}

enum part_fault { PART_SOUND, PART_DIFFERS, PART_MALFORMED };

/* Parts of a message, which several threads check. */
struct part_checks {
    const struct part_head *heads;
    const struct staged_part *parts;
    uint64_t *ends; /* NULL: not wanted */
    unsigned char *faults;
};

static void check_part(void *context, size_t i)
{
    const struct part_checks *checks = context;
    const struct staged_part *part = &checks->parts[i];
    struct part_head head;
    uint64_t changed, *ends = checks->ends ? checks->ends + part->first_end : NULL;
    memcpy(&head, checks->heads + i, sizeof head); /* a message has no alignment */
    if (hash_bytes(part->stream, part->bytes, 0) != head.hash)
        checks->faults[i] = PART_DIFFERS;
    else if (!delta_check(part->stream, part->bytes, part->box.elems, part->box.elem_bytes,
                          part->first, part->count, &changed, ends))
        checks->faults[i] = PART_MALFORMED;
}

/* Add the parts of a message to `staged`. They are not checked yet. */
static banyan_status receiving_add_parts(struct fetch_receiving *receiving,
                                         const struct wave_part *part, struct staged *staged)
{
    bool on_host = publish_device_is_host(staged->device);
    unsigned char *at = part->stream;
    uint64_t left = part->bytes;
    for (size_t i = 0; i < part->head_count; i++) {
        struct part_head head;
        size_t number;
        memcpy(&head, part->heads + i, sizeof head);
        struct incoming *one = incoming_of(receiving, head.task_id, part->rank, &number);
        if (!one || head.bytes > left || head.count > PART_BLOCKS)
            return fail_malformed(part->rank);
        struct staged_part kept = {.box = receiving->boxes.data[number],
                                   .number = number,
                                   .layer = on_host ? 0 : receiving->into->layers[one->tensor],
                                   .first = head.first,
                                   .count = head.count,
                                   .stream = at,
                                   .bytes = head.bytes,
                                   .first_end = staged->ends.count};
        RETURN_IF_NO_MEMORY(on_host || array_reserve(&staged->ends, head.count));
        RETURN_IF_NO_MEMORY(array_push(&staged->parts, kept));
        staged->ends.count += on_host ? 0 : head.count;
        one->blocks += head.count;
        at += head.bytes;
        left -= head.bytes;
    }
    return left == 0 ? BANYAN_OK : fail_malformed(part->rank);
}

/* Check what has arrived from a sender in a wave, and add its parts to `staged`. */
static banyan_status receiving_check_parts(struct fetch_receiving *receiving,
                                           const struct wave_part *part, struct staged *staged)
{
    uint64_t began_ns = time_now_ns();
    size_t first = staged->parts.count, bad = 0;
    RETURN_IF_FAILED(receiving_add_parts(receiving, part, staged));
    unsigned char *faults = alloc_zeroed(part->head_count, 1, "a list of changes");
    RETURN_IF_NO_MEMORY(faults);
    struct part_checks checks = {.heads = part->heads,
                                 .parts = staged->parts.data + first,
                                 .ends = staged->ends.data,
                                 .faults = faults};
    parallel_run(part->head_count, check_part, &checks);
    while (bad < part->head_count && faults[bad] == PART_SOUND)
        bad++;
    bool differs = bad < part->head_count && faults[bad] == PART_DIFFERS;
    free(faults);
    receiving->check_ns += time_now_ns() - began_ns;
    if (bad == part->head_count)
        return BANYAN_OK;
    return fail_box(receiving, &receiving->incoming.data[checks.parts[bad].number],
                    differs ? "the checksum of what arrived is wrong"
                            : "what arrived is malformed");
}

/* Copy streams to the device: in place to memory that all waves use. */
static banyan_status upload(struct fetch_receiving *receiving, const struct wave_part *part,
                            struct staged *staged, char **there)
{
    const struct publish_device *device = staged->device;
    void *made;
    if (!staged->in_place) {
        RETURN_IF_NO_MEMORY(array_reserve(&staged->there, 1));
        RETURN_IF_FAILED(device->memory->alloc(device->id, part->bytes, &made));
        staged->there.data[staged->there.count++] = *there = made;
        return device->memory->copy(made, part->stream, part->bytes);
    }
    if (part->bytes > receiving->there_bytes) {
        if (receiving->there)
            device->memory->free(device->id, receiving->there);
        receiving->there = NULL;
        receiving->there_bytes = 0;
        RETURN_IF_FAILED(device->memory->alloc(device->id, part->bytes, &receiving->there));
        receiving->there_bytes = part->bytes;
    }
    *there = receiving->there;
    return device->memory->copy(*there, part->stream, part->bytes);
}

/* Copy the streams of parts from `first` on, which a message brought, to the device. Host memory
 * keeps them until they are verified. */
static banyan_status upload_parts(struct fetch_receiving *receiving, struct wave_part *part,
                                  struct staged *staged, size_t first)
{
    char *there;
    uint64_t began_ns = time_now_ns();
    RETURN_IF_FAILED(upload(receiving, part, staged, &there));
    bool kept_on_host = keeps_on_host(receiving);
    for (size_t i = first; i < staged->parts.count; i++) {
        struct staged_part *kept = &staged->parts.data[i];
        kept->there = there + ((unsigned char *)kept->stream - part->stream);
        if (!kept_on_host)
            kept->stream = NULL;
    }
    receiving->upload_ns += time_now_ns() - began_ns;
    return BANYAN_OK;
}

/* Check what has arrived from a sender in a wave, and keep it. */
static banyan_status keep_parts(struct fetch_receiving *receiving, struct wave_part *part,
                                struct staged *staged)
{
    size_t first = staged->parts.count;
    if (part->bytes == 0)
        return receiving_check_parts(receiving, part, staged);
    RETURN_IF_NO_MEMORY(array_reserve(&staged->memory, 1));
    RETURN_IF_FAILED(receiving_check_parts(receiving, part, staged));
    if (!publish_device_is_host(staged->device))
        RETURN_IF_FAILED(upload_parts(receiving, part, staged, first));
    if (keeps_on_host(receiving)) {
        staged->memory.data[staged->memory.count++] = part->stream;
        part->stream = NULL;
    }
    return BANYAN_OK;
}

/* Check what has arrived from a sender in a wave, and put it into the tensors. */
static banyan_status receiving_put_parts(struct fetch_receiving *receiving, struct wave_part *part)
{
    struct staged *wave = alloc_zeroed(1, sizeof *wave, "a part of a version");
    RETURN_IF_NO_MEMORY(wave);
    wave->device = receiving->into->staged->device;
    wave->in_place = true;
    banyan_status status = keep_parts(receiving, part, wave);
    uint64_t began_ns = time_now_ns();
    if (status == BANYAN_OK)
        status = staged_finish(wave, receiving->boxes.data, receiving->boxes.count);
    if (status == BANYAN_OK)
        status = staged_swap(wave, 0, false, true);
    receiving->exchange_ns += time_now_ns() - began_ns;
    error_kept kept = error_keep(status);
    staged_free(wave);
    return error_again(&kept);
}

static banyan_status check_wave(void *context)
{
    struct fetch_wave *wave = context;
    struct staged *staged = wave->receiving->into->staged;
    for (size_t i = 0; i < wave->count; i++) {
        if (staged->in_place)
            RETURN_IF_FAILED(receiving_put_parts(wave->receiving, &wave->parts[i]));
        else
            RETURN_IF_FAILED(keep_parts(wave->receiving, &wave->parts[i], staged));
    }
    return BANYAN_OK;
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
        *mine = request_start(check_wave, &receiving->before, &receiving->before.checking);
    return BANYAN_OK;
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
        if (one->blocks != delta_blocks(receiving->boxes.data[i].elems))
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
static banyan_status sum_of(const struct staged *staged, const strided_view *box, void *memory,
                            uint64_t *sum)
{
    uint64_t hash = 0;
    for (uint64_t block = 0; block < delta_blocks(box->elems); block += PART_BLOCKS) {
        size_t elems = part_elems(box, block);
        strided_view dense = strided_view_dense(memory, box->elem_bytes, elems);
        RETURN_IF_FAILED(
            publish_device_read(staged->device, box, block * DELTA_BLOCK, elems, memory));
        swap_window(staged, box, block, &dense);
        hash = hash_bytes(memory, elems * box->elem_bytes, hash);
        swap_window(staged, box, block, &dense);
    }
    *sum = hash;
    return BANYAN_OK;
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
        uint64_t hash = 0;
        status = sum_of(staged, &receiving->boxes.data[number], memory, &hash);
        if (status == BANYAN_OK && hash != sum->hash)
            status = fail_box(receiving, one, "it would differ from the trainer's");
    }
    receiving->into->end_verify(receiving->into->context);
    free(memory);
    return status;
}

banyan_status fetch_receive(struct session *session, const struct fetch_target *target, bool whole)
{
    struct fetch_receiving receiving = {.session = session, .into = target, .whole = whole};
    uint64_t began_ns = time_now_ns();
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
        mine = end_check(&receiving.before);
    if (status == BANYAN_OK && mine == BANYAN_OK)
        mine = check_complete(&receiving);
    if (status == BANYAN_OK && mine == BANYAN_OK)
        mine = verify(&receiving);
    if (status == BANYAN_OK && mine == BANYAN_OK)
        mine = staged_finish(target->staged, receiving.boxes.data, receiving.boxes.count);
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
