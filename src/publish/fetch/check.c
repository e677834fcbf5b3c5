#include "publish/fetch/receiving.h"

#include <stdlib.h>

#include "core/deadline.h"

enum part_fault { PART_SOUND, PART_DIFFERS, PART_MALFORMED };

/* Parts of a message, which several threads check. */
struct part_checks {
    struct fetch_receiving *receiving;
    const struct wave_part *message;
    const struct staged_part *parts;
    const uint64_t *packed_at; /* of each part, in what arrived */
    uint64_t *ends;            /* NULL: not wanted */
    unsigned char *faults;
};

/* Restore the stream of a part. False if what arrived cannot be one. */
static bool unpack_part(const struct part_checks *checks, int worker,
                        const struct staged_part *part, const struct part_head *head, size_t i)
{
    const unsigned char *packed = checks->message->packed + checks->packed_at[i];
    planes_stream of = {part->box.elems, part->first, part->count, part->box.elem_bytes,
                        part->bytes};
    if (head->packed_bytes < head->bytes)
        return planes_unpack(&checks->receiving->coders[worker], &of, packed, head->packed_bytes,
                             part->stream);
    memcpy(part->stream, packed, part->bytes);
    return true;
}

static void check_part(void *context, int worker, size_t i)
{
    const struct part_checks *checks = context;
    const struct staged_part *part = &checks->parts[i];
    struct part_head head;
    uint64_t changed, *ends = checks->ends ? checks->ends + part->first_end : NULL;
    memcpy(&head, checks->message->heads + i, sizeof head); /* a message has no alignment */
    if (checks->message->packed && !unpack_part(checks, worker, part, &head, i))
        checks->faults[i] = PART_DIFFERS;
    else if (hash_bytes(part->stream, part->bytes, 0) != head.hash)
        checks->faults[i] = PART_DIFFERS;
    else if (!delta_check(part->stream, part->bytes, part->box.elems, part->box.elem_bytes,
                          part->first, part->count, &changed, ends))
        checks->faults[i] = PART_MALFORMED;
}

/* Add the parts of a message, whose heads are checked, to `staged`. The parts are not. */
static banyan_status receiving_add_parts(struct fetch_receiving *receiving,
                                         const struct wave_part *part, struct staged *staged,
                                         uint64_t *packed_at)
{
    bool on_host = publish_device_is_host(staged->device);
    unsigned char *at = part->stream;
    uint64_t packed = 0;
    for (size_t i = 0; i < part->head_count; i++) {
        struct part_head head;
        size_t number;
        memcpy(&head, part->heads + i, sizeof head);
        const struct incoming *one = receiving_find(receiving, head.task_id, part->rank, &number);
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
        packed_at[i] = packed;
        packed += head.packed_bytes;
        at += head.bytes;
    }
    return BANYAN_OK;
}

/* Check the parts of a message from `first` on. `*bad` receives the first fault, or the number of
 * parts. */
static bool find_fault(struct fetch_receiving *receiving, const struct wave_part *part,
                       const struct staged *staged, size_t first, uint64_t *packed_at,
                       unsigned char *faults, size_t *bad)
{
    struct part_checks checks = {receiving,         part,  staged->parts.data + first, packed_at,
                                 staged->ends.data, faults};
    parallel_run(part->head_count, check_part, &checks);
    for (*bad = 0; *bad < part->head_count && faults[*bad] == PART_SOUND;)
        ++*bad;
    return *bad < part->head_count;
}

/* Check what has arrived from a sender in a wave, and add its parts to `staged`. */
static banyan_status receiving_check_parts(struct fetch_receiving *receiving,
                                           const struct wave_part *part, struct staged *staged)
{
    uint64_t began_ns = time_now_ns();
    size_t first = staged->parts.count, bad;
    unsigned char *faults = alloc_zeroed(part->head_count, 1, "a list of changes");
    uint64_t *packed_at = alloc_zeroed(part->head_count, sizeof *packed_at, "a list of changes");
    banyan_status status = faults && packed_at ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    if (status == BANYAN_OK)
        status = receiving_add_parts(receiving, part, staged, packed_at);
    if (status == BANYAN_OK && find_fault(receiving, part, staged, first, packed_at, faults, &bad))
        status = receiving_fail_box(
            receiving, &receiving->incoming.data[staged->parts.data[first + bad].number],
            faults[bad] == PART_DIFFERS ? "the checksum of what arrived is wrong"
                                        : "what arrived is malformed");
    free(packed_at);
    free(faults);
    receiving->check_ns += time_now_ns() - began_ns;
    return status;
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
    bool kept_on_host = receiving_keeps_on_host(receiving);
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
    if (receiving_keeps_on_host(receiving)) {
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

banyan_status receiving_check_wave(void *context)
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
