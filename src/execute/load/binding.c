#include "execute/load/binding.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/stream.h"

static const char *const buffer_names[] = {"input", "output"};

/* True if no rank's `shorter` buffer is longer than its `longer` one. */
static bool is_no_longer(const banyan_plan *plan, plan_buffer shorter, plan_buffer longer)
{
    for (int r = 0; r < plan->rank_count; r++) {
        if (plan->ranks[r].chunks[shorter] > plan->ranks[r].chunks[longer])
            return false;
    }
    return true;
}

banyan_status binding_find_longer(const banyan_plan *plan, plan_buffer *longer)
{
    if (is_no_longer(plan, PLAN_INPUT, PLAN_OUTPUT))
        *longer = PLAN_OUTPUT;
    else if (is_no_longer(plan, PLAN_OUTPUT, PLAN_INPUT))
        *longer = PLAN_INPUT;
    else
        return error_set(BANYAN_ERR_INVALID,
                         "plan %s is in place, and neither its inputs nor its outputs hold the "
                         "other on every rank",
                         plan->name);
    return BANYAN_OK;
}

static const reach *binding_reach_of(const banyan_loaded_plan *loaded, int rank, plan_buffer buffer)
{
    return &loaded->reaches[step_base(rank, buffer)];
}

static bool peers_reach(const banyan_loaded_plan *loaded, int rank, plan_buffer buffer)
{
    if (!loaded->plan->in_place)
        return binding_reach_of(loaded, rank, buffer)->peers;
    return buffer == loaded->longer && (binding_reach_of(loaded, rank, PLAN_INPUT)->peers ||
                                        binding_reach_of(loaded, rank, PLAN_OUTPUT)->peers);
}

/* An in-place plan that overwrites its input, as reduce-scatter does, must preserve the input if
 * the caller's output lies elsewhere. */
static bool may_work_apart(const banyan_loaded_plan *loaded)
{
    return loaded->plan->in_place && loaded->longer == PLAN_INPUT;
}

bool binding_is_staged(const banyan_loaded_plan *loaded, int rank, plan_buffer buffer)
{
    return peers_reach(loaded, rank, buffer) &&
           (!loaded->memories[buffer] || may_work_apart(loaded));
}

bool binding_copies_output(const banyan_loaded_plan *loaded)
{
    return binding_is_staged(loaded, loaded->executor->rank, PLAN_OUTPUT) || may_work_apart(loaded);
}

struct given_buffers {
    banyan_loaded_plan *loaded;
    const specialized_plan *specialized;
    int rank;
    char *buffers[2]; /* NULL: this rank does not use it */
    bool apart;       /* in place, but the caller's buffers are not */
};

static banyan_status check_present(const struct given_buffers *with, plan_buffer buffer)
{
    const banyan_plan *plan = with->loaded->plan;
    bool others = with->rank != plan->root;
    bool optional = (plan->collective == BANYAN_BROADCAST && buffer == PLAN_INPUT && others) ||
                    (plan->collective == BANYAN_REDUCE && buffer == PLAN_OUTPUT && others) ||
                    !binding_reach_of(with->loaded, with->rank, buffer)->used;
    if (with->buffers[buffer] || optional || with->specialized->bytes[buffer] == 0)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID, "rank %d runs a plan with %" PRIu64 " bytes of %s at NULL",
                     with->rank, with->specialized->bytes[buffer], buffer_names[buffer]);
}

banyan_status binding_check_device(const banyan_executor *executor, DLDevice device,
                                   const void *address, const char *what)
{
    bool here = executor_is_host(executor) ? device.device_type != kDLCUDA
                                           : device.device_type == executor->device.device_type &&
                                                 device.device_id == executor->device.device_id;
    if (here)
        return BANYAN_OK;
    char runs_on[32] = "the host", lies_on[32] = "on the host";
    if (!executor_is_host(executor))
        snprintf(runs_on, sizeof runs_on, "GPU %d", (int)executor->device.device_id);
    if (device.device_type == kDLCUDA)
        snprintf(lies_on, sizeof lies_on, "on GPU %d", (int)device.device_id);
    else if (!device_is_host(device))
        snprintf(lies_on, sizeof lies_on, "in memory that is not a GPU's own");
    return error_set(
        BANYAN_ERR_INVALID,
        "rank %d: the %s at %p lies %s, and plans run on %s (the device in the options "
        "of the executor or communicator)",
        executor->rank, what, address, lies_on, runs_on);
}

static banyan_status binding_check_own_device(const struct given_buffers *with, plan_buffer buffer)
{
    DLDevice device;
    const char *address = with->buffers[buffer];
    if (!address || with->specialized->bytes[buffer] == 0)
        return BANYAN_OK;
    RETURN_IF_FAILED(banyan_memory_locate(address, &device));
    return binding_check_device(with->loaded->executor, device, address, buffer_names[buffer]);
}

static bool binding_overlap(const char *a, uint64_t a_bytes, const char *b, uint64_t b_bytes)
{
    return a && b && a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

static banyan_status binding_check_overlap(struct given_buffers *with)
{
    const specialized_plan *specialized = with->specialized;
    const banyan_plan *plan = with->loaded->plan;
    const char *input = with->buffers[PLAN_INPUT], *output = with->buffers[PLAN_OUTPUT];
    if (plan->in_place && input && output &&
        input + specialized_place(specialized, plan, with->rank, PLAN_OUTPUT) ==
            output + specialized_place(specialized, plan, with->rank, PLAN_INPUT)) {
        with->apart = false;
        return BANYAN_OK;
    }
    with->apart = true;
    if (!binding_overlap(input, specialized->bytes[PLAN_INPUT], output,
                         specialized->bytes[PLAN_OUTPUT]))
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d: input [%p, +%" PRIu64 ") and output [%p, +%" PRIu64
                     ") overlap in a way that %s plan cannot use",
                     with->rank, (const void *)input, specialized->bytes[PLAN_INPUT],
                     (const void *)output, specialized->bytes[PLAN_OUTPUT],
                     plan->in_place ? "an in-place" : "this");
}

/* Find the offset of the caller's buffer in the symmetric memory that was given for it. */
static banyan_status find_in_memory(const struct given_buffers *with, plan_buffer buffer,
                                    uint64_t *offset)
{
    const banyan_memory *memory = with->loaded->memories[buffer];
    const char *start = banyan_memory_local(memory), *at = with->buffers[buffer];
    uint64_t room = banyan_memory_bytes(memory), bytes = with->specialized->bytes[buffer];
    if (at && at >= start && (uint64_t)(at - start) <= room &&
        bytes <= room - (uint64_t)(at - start)) {
        *offset = (uint64_t)(at - start);
        return BANYAN_OK;
    }
    if (bytes == 0) {
        *offset = 0;
        return BANYAN_OK;
    }
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d: %s [%p, +%" PRIu64 ") does not lie in the symmetric memory [%p, "
                     "+%" PRIu64 ") that its plan was loaded with",
                     with->rank, buffer_names[buffer], (const void *)at, bytes, (const void *)start,
                     room);
}

static banyan_status take_private(const banyan_executor *executor, uint64_t bytes, char **taken)
{
    if (executor_is_host(executor)) {
        *taken = malloc(bytes + 1);
        return *taken ? BANYAN_OK : error_no_memory(bytes, "a plan's buffer");
    }
    void *address = NULL;
    RETURN_IF_FAILED(
        executor->device_memory->alloc(executor->device.device_id, bytes + 1, &address));
    *taken = address;
    return BANYAN_OK;
}

static banyan_status private_buffer(banyan_loaded_plan *loaded, plan_buffer buffer, char **address)
{
    if (!loaded->private_buffers[buffer])
        RETURN_IF_FAILED(take_private(loaded->executor, loaded->largest.buffers[buffer].bytes,
                                      &loaded->private_buffers[buffer]));
    *address = loaded->private_buffers[buffer];
    return BANYAN_OK;
}

/* Place a rank's buffer in its part of a memory, which has `bytes` bytes. */
static void place_in_part(const banyan_loaded_plan *loaded, binding *made, int rank,
                          plan_buffer buffer, const banyan_memory *memory, uint64_t bytes,
                          uint64_t offset)
{
    uint32_t base = step_base(rank, buffer);
    int local = memory_space_local(loaded->executor->space, rank);
    if (local >= 0)
        made->bases[base] = memory_part_of(memory, local) + offset;
    else if (executor_is_host(loaded->executor))
        made->bases[base] = REMOTE_PORT_START + offset;
    else
        made->bases[base] = engine_remote(memory->id, offset);
    if (made->remote)
        made->remote[base] = (memory_extent){memory->id, bytes};
}

void binding_place_in_block(const banyan_loaded_plan *loaded, binding *made, int rank,
                            plan_buffer buffer, uint64_t offset)
{
    place_in_part(loaded, made, rank, buffer, loaded->block, loaded->layouts[rank].bytes, offset);
}

/* Return the length of a rank's part of the memory given for a buffer. */
static uint64_t memory_bytes_of(const banyan_loaded_plan *loaded, int rank, plan_buffer buffer)
{
    if (loaded->memory_bytes[buffer])
        return loaded->memory_bytes[buffer][rank];
    int local = memory_space_local(loaded->executor->space, rank);
    return loaded->memories[buffer]->parts[local].bytes;
}

/* Find every rank's buffer, if all lie in symmetric memory at this rank's offset. */
static banyan_status place_in_memory(const struct given_buffers *with, plan_buffer buffer,
                                     binding *made)
{
    const banyan_loaded_plan *loaded = with->loaded;
    const banyan_memory *memory = loaded->memories[buffer];
    uint64_t offset = 0;
    RETURN_IF_FAILED(find_in_memory(with, buffer, &offset));
    for (int r = 0; r < loaded->executor->ranks; r++) {
        uint64_t bytes = plan_geometry_bytes(&with->specialized->geometry, loaded->plan, r, buffer);
        uint64_t room = memory_bytes_of(loaded, r, buffer);
        if (bytes > 0 && (offset > room || bytes > room - offset))
            return error_set(BANYAN_ERR_INVALID,
                             "rank %d: %" PRIu64 " bytes of %s at offset %" PRIu64
                             " extend beyond rank %d's %" PRIu64 " bytes of symmetric memory",
                             with->rank, bytes, buffer_names[buffer], offset, r, room);
        place_in_part(loaded, made, r, buffer, memory, room, offset);
    }
    return BANYAN_OK;
}

static void place_in_staging(const struct given_buffers *with, plan_buffer buffer, binding *made)
{
    const banyan_loaded_plan *loaded = with->loaded;
    for (int r = 0; r < loaded->executor->ranks; r++) {
        if (binding_is_staged(loaded, r, buffer))
            binding_place_in_block(loaded, made, r, buffer, loaded->layouts[r].staging[buffer]);
        else
            made->bases[step_base(r, buffer)] = NULL;
    }
}

static void plan_copy_out(const struct given_buffers *with, binding *made, const char *from)
{
    char *to = with->buffers[PLAN_OUTPUT];
    if (to && to != from) {
        made->copy_out.to = to;
        made->copy_out.from = from;
    }
}

static void plan_copy_in(const struct given_buffers *with, binding *made, char *to)
{
    const char *from = with->buffers[PLAN_INPUT];
    if (from && from != to && with->specialized->bytes[PLAN_INPUT] > 0) {
        made->copy_in.to = to;
        made->copy_in.from = from;
        made->copy_in.bytes = with->specialized->bytes[PLAN_INPUT];
    }
}

/* Bind a buffer of a plan that is not in place. */
static banyan_status place_buffer(const struct given_buffers *with, plan_buffer buffer,
                                  binding *made)
{
    banyan_loaded_plan *loaded = with->loaded;
    const reach *of = binding_reach_of(loaded, with->rank, buffer);
    char **mine = &made->bases[step_base(with->rank, buffer)];
    if (loaded->memories[buffer])
        return place_in_memory(with, buffer, made);
    place_in_staging(with, buffer, made);
    /* Never write to the caller's input. */
    bool kept = buffer == PLAN_INPUT && of->written;
    if (!*mine && of->used && (kept || !with->buffers[buffer]))
        RETURN_IF_FAILED(private_buffer(loaded, buffer, mine));
    if (!*mine)
        *mine = with->buffers[buffer];
    else if (buffer == PLAN_INPUT)
        plan_copy_in(with, made, *mine);
    else
        plan_copy_out(with, made, *mine);
    /* This rank writes to the caller's output, since nobody reads what it writes. */
    if (buffer == PLAN_OUTPUT && loaded->redirects_output && made->copy_out.to)
        *mine = made->copy_out.to;
    return BANYAN_OK;
}

/* Set both bases of every rank from the base of the buffer that stands for both. */
static void binding_fill_bases(const struct given_buffers *with, binding *made)
{
    char **bases = made->bases;
    const banyan_plan *plan = with->loaded->plan;
    plan_buffer longer = with->loaded->longer;
    for (int r = 0; r < with->loaded->executor->ranks; r++) {
        char *both = bases[step_base(r, longer)];
        for (int buffer = PLAN_INPUT; made->remote && buffer <= PLAN_OUTPUT; buffer++)
            made->remote[step_base(r, (plan_buffer)buffer)] = made->remote[step_base(r, longer)];
        for (int buffer = PLAN_INPUT; buffer <= PLAN_OUTPUT; buffer++)
            bases[step_base(r, (plan_buffer)buffer)] =
                both ? both + specialized_place(with->specialized, plan, r, (plan_buffer)buffer)
                     : NULL;
    }
}

static banyan_status place_both(const struct given_buffers *with, binding *made)
{
    banyan_loaded_plan *loaded = with->loaded;
    const banyan_plan *plan = loaded->plan;
    plan_buffer longer = loaded->longer;
    bool works_apart = may_work_apart(loaded) && with->apart;
    char **mine = &made->bases[step_base(with->rank, longer)];
    if (loaded->memories[longer] && !works_apart) {
        RETURN_IF_FAILED(place_in_memory(with, longer, made));
    } else {
        place_in_staging(with, longer, made);
        if (!*mine && (works_apart || !with->buffers[longer]))
            RETURN_IF_FAILED(private_buffer(loaded, longer, mine));
        if (!*mine)
            *mine = with->buffers[longer];
    }
    char *own = *mine;
    binding_fill_bases(with, made);
    if (plan->collective != BANYAN_BROADCAST || with->rank == plan->root)
        plan_copy_in(with, made,
                     own + specialized_place(with->specialized, plan, with->rank, PLAN_INPUT));
    if (plan->collective != BANYAN_REDUCE || with->rank == plan->root)
        plan_copy_out(with, made,
                      own + specialized_place(with->specialized, plan, with->rank, PLAN_OUTPUT));
    return BANYAN_OK;
}

banyan_status binding_make(banyan_loaded_plan *loaded, const specialized_plan *specialized,
                           const void *input, void *output, binding *made)
{
    struct given_buffers with = {.loaded = loaded,
                                 .specialized = specialized,
                                 .rank = loaded->executor->rank,
                                 .buffers = {(char *)input, output}};
    made->specialized = NULL;
    RETURN_IF_FAILED(check_present(&with, PLAN_INPUT));
    RETURN_IF_FAILED(check_present(&with, PLAN_OUTPUT));
    RETURN_IF_FAILED(binding_check_own_device(&with, PLAN_INPUT));
    RETURN_IF_FAILED(binding_check_own_device(&with, PLAN_OUTPUT));
    RETURN_IF_FAILED(binding_check_overlap(&with));
    made->copy_in.to = made->copy_out.to = NULL;
    if (loaded->plan->in_place) {
        RETURN_IF_FAILED(place_both(&with, made));
    } else {
        RETURN_IF_FAILED(place_buffer(&with, PLAN_INPUT, made));
        RETURN_IF_FAILED(place_buffer(&with, PLAN_OUTPUT, made));
    }
    made->specialized = specialized;
    made->input = input;
    made->output = output;
    return BANYAN_OK;
}

/* Peers read staged data soon, so it bypasses the caches only if it is larger than they are. The
 * output is for the caller, whose next access is not known. */
#define STAGED_PAST_CACHE ((uint64_t)8 << 20)

static void binding_copy_bytes(char *to, const char *from, uint64_t bytes, bool past_cache)
{
    if (past_cache) {
        stream_past_cache(to, from, bytes);
        stream_fence();
    } else {
        stream_copy(to, from, bytes);
    }
}

void binding_copy_in(const binding *of)
{
    if (of->copy_in.to)
        binding_copy_bytes(of->copy_in.to, of->copy_in.from, of->copy_in.bytes,
                           of->copy_in.bytes >= STAGED_PAST_CACHE);
}

static int binding_compare_spans(const void *left, const void *right)
{
    const specialized_span *a = left, *b = right;
    return COMPARE(a->offset, b->offset);
}

static void binding_copy_span(const binding *of, uint64_t offset, uint64_t end)
{
    if (end > offset)
        binding_copy_bytes(of->copy_out.to + offset, of->copy_out.from + offset, end - offset,
                           stream_is_worthwhile(end - offset));
}

/* Copy a span, except for what has arrived in the caller's output: `arrived`, in order. */
static void binding_copy_rest(const binding *of, const specialized_span *whole,
                              const specialized_span *arrived, size_t count)
{
    uint64_t at = whole->offset, end = whole->offset + whole->bytes;
    for (size_t i = 0; i < count && at < end; i++) {
        uint64_t behind = arrived[i].offset + arrived[i].bytes;
        if (behind <= at)
            continue;
        binding_copy_span(of, at, arrived[i].offset < end ? arrived[i].offset : end);
        at = behind;
    }
    binding_copy_span(of, at, end);
}

void binding_copy_out(const binding *of, const banyan_redirection *redirection)
{
    specialized_span arrived[BANYAN_REDIRECTION_SPANS];
    size_t count = redirection->span_count;
    if (!of->copy_out.to)
        return;
    for (size_t i = 0; i < count; i++)
        arrived[i] = (specialized_span){redirection->spans[i].offset, redirection->spans[i].bytes};
    qsort(arrived, count, sizeof *arrived, binding_compare_spans);
    for (size_t i = 0; i < of->specialized->spans.count; i++)
        binding_copy_rest(of, &of->specialized->spans.data[i], arrived, count);
}

bool binding_redirection(const banyan_loaded_plan *loaded, const binding *of,
                         banyan_redirection *redirection)
{
    redirection->span_count = 0;
    if (!loaded->redirects_output || !of->copy_out.to)
        return false;
    redirection->address = (char *)(uintptr_t)of->copy_out.from;
    redirection->bytes = (size_t)of->specialized->bytes[PLAN_OUTPUT];
    redirection->to = of->copy_out.to;
    return true;
}
