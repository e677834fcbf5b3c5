/* Execution plans, and operations on a plan before it runs: write, compare, list, specialize,
 * measure. */
#include "fuzz.h"

#include "plan/geometry/geometry.h"

/* A plan of two ranks with most of the operations, as text. */
static char *sample(bool reuse, size_t *bytes)
{
    const banyan_collective collective = {.kind = BANYAN_ALLREDUCE, .in_place = true};
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    banyan_program *program;
    banyan_plan *plan;
    char *text;
    options.reuse_resources = options.double_scratch = reuse;
    FUZZ_REQUIRE(banyan_program_create("sample", &collective, 2, &options, &program) == BANYAN_OK);
    banyan_chunk scratch[2] = {banyan_program_scratch(program, 0, 4),
                               banyan_program_scratch(program, 1, 4)};
    banyan_program_switch_channel *all =
        banyan_program_switch_channel_create(program, (const int[]){0, 1}, 2, BANYAN_INPUT);
    for (int r = 0; r < 2; r++) {
        banyan_program_memory_channel *memory =
            banyan_program_memory_channel_create(program, 1 - r, r);
        banyan_program_port_channel *port = banyan_program_port_channel_create(program, 1 - r, r);
        banyan_program_semaphore *semaphore = banyan_program_semaphore_create(program, r, 1);
        banyan_program_group *group = banyan_program_group_create(program, (const int[]){0, 1}, 2);
        banyan_chunk here = banyan_program_input(program, r, (uint64_t)r, (uint64_t)r + 1);
        banyan_chunk there = banyan_program_input(program, 1 - r, (uint64_t)r, (uint64_t)r + 1);
        banyan_chunk own = banyan_program_slice(program, scratch[r], 0, 1);
        banyan_chunk other = banyan_program_slice(program, scratch[1 - r], 1, 2);
        banyan_program_semaphore_acquire(semaphore, 0, BANYAN_SYNC_BOTH);
        banyan_program_barrier(program, r, (const int[]){0, 1}, 2);
        banyan_program_loop_begin(program, 64, 1);
        banyan_program_copy(program, r, own, here, BANYAN_TB_GROUP(group));
        banyan_program_memory_reduce(memory, here, &there, 1, BANYAN_IN_SOURCE, BANYAN_SUM,
                                     BANYAN_TB(0));
        banyan_program_memory_put(memory, there, here, BANYAN_TB(0));
        banyan_program_loop_end(program);
        if (!reuse) {
            banyan_program_memory_put_packets(memory, other, here, BANYAN_TB(1));
            banyan_chunk packets = banyan_program_slice(program, scratch[r], 1, 2);
            banyan_program_reduce_packets(program, r, here, &packets, 1, BANYAN_IN_SOURCE,
                                          BANYAN_MAX, BANYAN_TB(1));
        }
        banyan_program_memory_signal(memory, 0, BANYAN_SYNC_BOTH);
        banyan_program_memory_wait(memory, 0, BANYAN_SYNC_BOTH);
        banyan_program_port_put_with_signal_and_flush(port, there, here, 2);
        banyan_program_port_wait(port, 2, BANYAN_SYNC_BOTH);
        banyan_program_switch_reduce(all, r, (uint64_t)r, 1, here, BANYAN_SUM, 2);
        banyan_program_switch_broadcast(all, r, here, (uint64_t)r, 1, 2);
        banyan_program_semaphore_release(semaphore, 2, BANYAN_SYNC_BOTH);
    }
    FUZZ_REQUIRE(banyan_program_compile(program, &plan) == BANYAN_OK);
    FUZZ_REQUIRE(banyan_plan_print(plan, &text, bytes) == BANYAN_OK);
    banyan_plan_destroy(plan);
    banyan_program_destroy(program);
    return text;
}

/* Inputs with this first byte change numbers of the sample: two bytes choose the number, a third
 * the change. */
#define CHANGES 0xfe

/* The corpus has a plan with every operation; these are the compiler's. */
void fuzz_write_seeds(void)
{
    static const unsigned char changes[] = {CHANGES, 0, 10, 1, 0, 40, 2, 0, 90, 3};
    fuzz_seed(changes, sizeof changes);
    for (int reuse = 0; reuse < 2; reuse++) {
        size_t bytes;
        char *text = sample(reuse, &bytes);
        fuzz_seed(text, bytes);
        free(text);
    }
}

/* Find the text's numbers: runs of digits. */
static const char *next_number(const char *text, size_t *digits)
{
    text += strcspn(text, "0123456789");
    *digits = strspn(text, "0123456789");
    return text;
}

static const char *const numbers[] = {
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "7",
    "8",
    "16",
    "17",
    "31",
    "63",
    "64",
    "100",
    "255",
    "1000",
    "4096",
    "65535",
    "1048576",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "1152921504606846976",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "null",
    "[]",
    "{}",
};

/* The sample with its numbers changed as the input says; to be freed. */
static char *change_sample(const uint8_t *data, size_t size, size_t *bytes)
{
    char *text = sample(size % 2, bytes);
    for (size_t i = 0; i + 3 <= size; i += 3) {
        size_t which = (size_t)data[i] << 8 | data[i + 1], digits;
        const char *value = numbers[data[i + 2] % (sizeof numbers / sizeof numbers[0])];
        const char *at = next_number(text, &digits);
        for (size_t k = 0; k < which % 1024 && *at; k++)
            at = next_number(at + digits, &digits);
        char *changed;
        int length = asprintf(&changed, "%.*s%s%s", (int)(at - text), text, value, at + digits);
        FUZZ_REQUIRE(length >= 0);
        free(text);
        text = changed;
        *bytes = (size_t)length;
    }
    return text;
}

static void require_equal(const banyan_plan *a, const banyan_plan *b)
{
    char *text;
    size_t differences;
    FUZZ_REQUIRE(banyan_plan_diff(a, b, 1, &text, &differences) == BANYAN_OK);
    FUZZ_REQUIRE(differences == 0);
    free(text);
}

static void write_and_read_again(const banyan_plan *plan)
{
    char *text;
    size_t bytes;
    banyan_plan *again, *clone;
    FUZZ_REQUIRE(banyan_plan_print(plan, &text, &bytes) == BANYAN_OK);
    FUZZ_REQUIRE(banyan_plan_parse(text, bytes, "again", &again) == BANYAN_OK);
    require_equal(plan, again);
    banyan_plan_destroy(again);
    free(text);
    FUZZ_REQUIRE(plan_clone(plan, &clone) == BANYAN_OK);
    require_equal(plan, clone);
    banyan_plan_destroy(clone);
    FUZZ_REQUIRE(banyan_plan_list(plan, -1, &text) == BANYAN_OK);
    free(text);
}

/* A piece lies in every operand's buffer. */
struct looked_at {
    const banyan_plan *plan;
    const plan_geometry *geometry;
    int rank;
    const plan_thread_block *block;
    const plan_op *op;
    uint32_t pieces;
};

static banyan_status look_at_piece(void *context, const plan_piece *piece)
{
    struct looked_at *at = context;
    for (uint32_t i = 0; i < at->op->source_count + at->op->destination_count; i++) {
        bool source = i < at->op->source_count;
        uint32_t k = source ? i : i - at->op->source_count;
        const plan_operand *operand = source ? &at->op->sources[k] : &at->op->destinations[k];
        bool packets =
            source ? plan_source_is_packets(at->op, k) : plan_destination_is_packets(at->op, k);
        plan_where where = plan_operand_where(at->plan, at->rank, at->block, at->op, operand);
        uint64_t bytes = plan_geometry_bytes(at->geometry, at->plan, where.rank, where.buffer);
        if (where.buffer == PLAN_SCRATCH)
            bytes = at->geometry->scratch_half_bytes / (packets ? 2 : 1);
        FUZZ_REQUIRE(piece->bytes <= bytes && piece->offsets[i] <= bytes - piece->bytes);
    }
    return ++at->pieces < 64 ? BANYAN_OK : BANYAN_ERR_ABORTED;
}

static void cut_op(struct looked_at *at, const plan_op *op, const plan_op *loop, uint64_t iteration)
{
    plan_op one = *op;
    bool pairs = plan_op_is_pairs(op->kind);
    for (uint32_t i = 0; i < (pairs ? op->source_count : 1); i++) {
        if (pairs) {
            one.sources = &op->sources[i];
            one.destinations = &op->destinations[i];
            one.source_count = one.destination_count = 1;
        }
        at->op = &one;
        at->pieces = 0;
        plan_geometry_cut(at->geometry, at->plan, at->rank, at->block, &one, loop, iteration,
                          look_at_piece, at);
    }
}

static void cut_all(const banyan_plan *plan, const plan_geometry *geometry)
{
    struct looked_at at = {.plan = plan, .geometry = geometry};
    for (at.rank = 0; at.rank < plan->rank_count; at.rank++) {
        for (uint32_t b = 0; b < plan->ranks[at.rank].block_count; b++) {
            at.block = &plan->ranks[at.rank].blocks[b];
            for (uint32_t i = 0; i < at.block->op_count; i++) {
                const plan_op *op = &at.block->ops[i];
                uint64_t last = plan_geometry_iterations(geometry, op);
                cut_op(&at, op, NULL, 0);
                for (uint32_t k = 0; k < op->op_count && last > 0; k++) {
                    cut_op(&at, &op->ops[k], op, 0);
                    cut_op(&at, &op->ops[k], op, last - 1);
                }
            }
        }
    }
}

static void try_message(const banyan_plan *plan, uint64_t message)
{
    plan_geometry geometry;
    if (fuzz_took(plan_geometry_make(plan, message, 1, &geometry)))
        cut_all(plan, &geometry);
}

static void try_text(const char *text, size_t bytes)
{
    banyan_plan *plan;
    banyan_plan_stats stats;
    if (!fuzz_took(banyan_plan_parse(text, bytes, "fuzz", &plan)))
        return;
    write_and_read_again(plan);
    for (uint64_t message = 0; message <= 4096; message += message / 3 + 60)
        try_message(plan, message);
    try_message(plan, UINT64_MAX / 64);
    if (fuzz_took(banyan_plan_measure(plan, 480, &stats)))
        free(stats.links);
    banyan_plan_destroy(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && data[0] == CHANGES) {
        size_t bytes;
        char *text = change_sample(data + 1, size < 64 ? size - 1 : 63, &bytes);
        try_text(text, bytes);
        free(text);
    } else {
        try_text((const char *)data, size);
    }
    return 0;
}
