/* The functions of banyan/device in kernels give the host's results. */
#include "support/test.h"

#include "channel/reduce.h"
#include "functions.h"

#define MEMORY_BYTES (1 << 18)
#define POISON 0xC9

enum { TYPES = 9, OPS = 4 };

static const DLDataType dtypes[TYPES] = {
    BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_F8_E4M3, BANYAN_F8_E5M2,
    BANYAN_I32, BANYAN_U32, BANYAN_I64,  BANYAN_U8,
};

/* The memory of a call, and its expected contents afterwards. */
struct fixture {
    unsigned char *memory, *expected;
    random_state random;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->memory = aligned_alloc(256, MEMORY_BYTES);
    f->expected = aligned_alloc(256, MEMORY_BYTES);
    f->random = random_from(random_seed());
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    free(f->memory);
    free(f->expected);
    free(f);
    return 0;
}

static uint64_t between(struct fixture *f, uint64_t low, uint64_t high)
{
    return (uint64_t)random_between(&f->random, (int64_t)low, (int64_t)high);
}

static void fill(struct fixture *f)
{
    for (size_t i = 0; i < MEMORY_BYTES; i += sizeof(uint64_t)) {
        uint64_t word = random_next(&f->random);
        memcpy(f->memory + i, &word, sizeof word);
    }
    memcpy(f->expected, f->memory, MEMORY_BYTES);
}

static void run(struct fixture *f, const function_call *call, uint32_t threads)
{
    assert_true(functions_run(call, f->memory, MEMORY_BYTES, threads));
}

static void compare(const struct fixture *f, const char *what)
{
    for (size_t i = 0; i < MEMORY_BYTES; i++) {
        if (f->memory[i] != f->expected[i])
            fail_msg("%s: byte %zu is 0x%02x, and should be 0x%02x", what, i, f->memory[i],
                     f->expected[i]);
    }
}

/* Places for operands at sufficient distances, `alignment` bytes after a multiple of 256. */
static uint64_t place(uint32_t number, uint64_t alignment)
{
    return (uint64_t)number * (MEMORY_BYTES / 16) + 256 + alignment;
}

#define MOST_BYTES (MEMORY_BYTES / 16 - 512)

static void copy_once(struct fixture *f, uint64_t bytes, uint64_t from, uint32_t places,
                      const uint64_t *alignments)
{
    function_call call = {.kind = FUNCTION_COPY, .places = places, .bytes = bytes};
    char what[128];
    snprintf(what, sizeof what, "copy of %zu bytes from %zu to %zu and %u more", (size_t)bytes,
             (size_t)from, (size_t)alignments[0], places - 1);
    call.from[0] = place(0, from);
    for (uint32_t i = 0; i < places; i++)
        call.to[i] = place(i + 1, alignments[i]);
    fill(f);
    for (uint32_t i = 0; i < places; i++)
        memcpy(f->expected + call.to[i], f->expected + call.from[0], bytes);
    run(f, &call, 32 * (uint32_t)between(f, 1, 3));
    compare(f, what);
}

static void copies_of_all_alignments_arrive_and_touch_nothing_else(void **state)
{
    struct fixture *f = *state;
    for (uint64_t from = 0; from <= 16; from++) {
        for (uint64_t to = 0; to <= 16; to += from % 3 + 1) {
            uint64_t bytes = between(f, 0, 80);
            copy_once(f, bytes, from, 1, &to);
        }
    }
}

static void copies_of_all_sizes_go_to_several_places(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 100; i++) {
        uint64_t bytes = i < 50 ? between(f, 0, 600) : between(f, 0, MOST_BYTES);
        uint64_t same = between(f, 0, 15), to[FUNCTIONS_MOST];
        for (int k = 0; k < FUNCTIONS_MOST; k++)
            to[k] = i % 2 ? same : between(f, 0, 31);
        copy_once(f, bytes, i % 4 == 3 ? same : between(f, 0, 31), (uint32_t)between(f, 1, 9), to);
    }
}

/* In place, a chunk's source is one of its destinations. */
static void a_place_that_is_the_source_is_left_alone(void **state)
{
    struct fixture *f = *state;
    function_call call = {.kind = FUNCTION_COPY, .places = 2, .bytes = 1000};
    call.from[0] = call.to[1] = place(0, 16);
    call.to[0] = place(1, 16);
    fill(f);
    memcpy(f->expected + call.to[0], f->expected + call.from[0], call.bytes);
    run(f, &call, 64);
    compare(f, "copy in place");
}

static void reduce_on_host(struct fixture *f, const function_call *call)
{
    static unsigned char sum[MOST_BYTES];
    const void *sources[FUNCTIONS_MOST];
    assert_true(call->bytes <= MOST_BYTES);
    for (uint32_t i = 0; i < call->sources; i++)
        sources[i] = f->expected + call->from[i];
    DLDataType dtype = dtypes[call->type];
    reduce_find(dtype, (banyan_reduce_op)call->op)(sum, sources, call->sources,
                                                   call->bytes / banyan_dtype_bytes(dtype));
    for (uint32_t i = 0; i < call->places; i++)
        memcpy(f->expected + call->to[i], sum, call->bytes);
}

static void reduce_and_compare(struct fixture *f, function_call *call, uint32_t threads)
{
    char what[128];
    snprintf(what, sizeof what, "%s of %u sources of %s, %zu bytes",
             banyan_reduce_op_name((banyan_reduce_op)call->op), call->sources,
             banyan_dtype_name(dtypes[call->type]), (size_t)call->bytes);
    memcpy(f->expected, f->memory, MEMORY_BYTES);
    reduce_on_host(f, call);
    run(f, call, threads);
    compare(f, what);
}

static void reductions_have_the_bits_of_the_host(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 30 * TYPES * OPS; i++) {
        function_call call = {.kind = FUNCTION_REDUCE,
                              .type = (uint32_t)(i % TYPES),
                              .op = (uint32_t)(i / TYPES % OPS),
                              .sources = (uint32_t)between(f, 1, 9),
                              .places = (uint32_t)between(f, 1, 3)};
        size_t elem = banyan_dtype_bytes(dtypes[call.type]);
        bool aligned = between(f, 0, 1);
        call.bytes = between(f, 1, (i % 2 ? 300 : 3000) / elem) * elem;
        for (uint32_t k = 0; k < call.sources; k++)
            call.from[k] = place(k, aligned ? 0 : between(f, 0, 31));
        for (uint32_t k = 0; k < call.places; k++)
            call.to[k] = place(k + 9, aligned ? 16 : between(f, 0, 31));
        fill(f);
        reduce_and_compare(f, &call, 32 * (uint32_t)between(f, 1, 2));
    }
}

static void set_element(unsigned char *to, DLDataType dtype, uint64_t index, uint64_t bits)
{
    size_t bytes = banyan_dtype_bytes(dtype);
    memcpy(to + index * bytes, &bits, bytes);
}

/* Values with special rounding, overflow and NaN behaviour, and their neighbours. */
static uint64_t special(DLDataType dtype, uint64_t i)
{
    static const uint32_t tops[] = {0x00, 0x01, 0x38, 0x3c, 0x3f, 0x43, 0x47, 0x7a, 0x7b,
                                    0x7c, 0x7e, 0x7f, 0x80, 0x81, 0xbf, 0xfb, 0xfc, 0xff};
    static const uint32_t rests[] = {0,        1,        2,        0x7fffff, 0x800000,
                                     0x800001, 0xfffffe, 0xffffff, 0x6fffff, 0x700000,
                                     0x700001, 0x7fefff, 0x7ff000};
    uint32_t rest = rests[i / 18 % 13];
    uint32_t bits = tops[i % 18] << 24 | rest;
    return dtype.bits == 32 ? bits : dtype.bits == 16 ? (bits >> 16 | (rest & 1)) : bits >> 24;
}

static void all_pairs_of_special_floats_have_the_bits_of_the_host(void **state)
{
    struct fixture *f = *state;
    enum { SPECIAL = 18 * 13, AT_A_TIME = MOST_BYTES / sizeof(float) };
    for (uint32_t i = 0; i < 5 * OPS; i++) {
        function_call call = {.kind = FUNCTION_REDUCE,
                              .type = i % 5,
                              .op = i / 5,
                              .sources = 2,
                              .places = 1,
                              .from = {place(0, 0), place(1, 0)},
                              .to = {place(2, 0)}};
        DLDataType dtype = dtypes[call.type];
        uint64_t bytes = banyan_dtype_bytes(dtype);
        uint64_t values = dtype.bits == 8 ? 256 : SPECIAL, pairs = values * values;
        for (uint64_t at = 0; at < pairs; at += AT_A_TIME) {
            uint64_t some = pairs - at < AT_A_TIME ? pairs - at : AT_A_TIME;
            for (uint64_t k = 0; k < some; k++) {
                uint64_t a = (at + k) / values, b = (at + k) % values;
                set_element(f->memory + call.from[0], dtype, k,
                            dtype.bits == 8 ? a : special(dtype, a));
                set_element(f->memory + call.from[1], dtype, k,
                            dtype.bits == 8 ? b : special(dtype, b));
            }
            call.bytes = some * bytes;
            memset(f->memory + call.to[0], POISON, call.bytes);
            reduce_and_compare(f, &call, 64);
        }
    }
}

static void every_half_float_goes_to_f32_and_back(void **state)
{
    struct fixture *f = *state;
    for (uint32_t i = 0; i < 2 * OPS; i++) {
        function_call call = {.kind = FUNCTION_REDUCE,
                              .type = 1 + i % 2,
                              .op = i / 2,
                              .sources = 1,
                              .places = 1,
                              .bytes = 8192,
                              .from = {place(0, 0)},
                              .to = {place(1, 0)}};
        for (uint32_t first = 0; first < 65536; first += 4096) {
            for (uint32_t k = 0; k < 4096; k++)
                set_element(f->memory + call.from[0], dtypes[call.type], k, first + k);
            memset(f->memory + call.to[0], POISON, call.bytes);
            reduce_and_compare(f, &call, 64);
        }
    }
}

static void groups_are_reduced_into_themselves(void **state)
{
    struct fixture *f = *state;
    for (uint32_t i = 0; i < TYPES * OPS; i++) {
        function_call call = {.kind = FUNCTION_GROUP,
                              .type = i % TYPES,
                              .op = i / TYPES,
                              .sources = 4,
                              .places = 4,
                              .bytes = 8 * between(f, 1, 300)};
        for (uint32_t k = 0; k < call.places; k++)
            call.from[k] = call.to[k] = place(k, 32);
        fill(f);
        reduce_and_compare(f, &call, 64);
    }
}

static void packets_bring_their_data(void **state)
{
    struct fixture *f = *state;
    for (uint64_t bytes = 8; bytes <= 4096; bytes *= 2) {
        function_call call = {.kind = FUNCTION_PACKETS, .bytes = bytes};
        call.from[0] = place(0, 8);
        call.to[0] = place(1, 0);
        call.to[1] = place(3, 8);
        fill(f);
        memcpy(f->expected + call.to[1], f->expected + call.from[0], bytes);
        for (uint64_t i = 0; i < bytes / 4; i++) {
            uint32_t flag = 0x12345;
            memcpy(f->expected + call.to[0] + 8 * i, f->expected + call.from[0] + 4 * i, 4);
            memcpy(f->expected + call.to[0] + 8 * i + 4, &flag, 4);
        }
        run(f, &call, 64);
        compare(f, "packets");
    }
}

static void signals_order_earlier_writes(void **state)
{
    struct fixture *f = *state;
    function_call call = {.kind = FUNCTION_SIGNALS, .bytes = 20};
    call.to[0] = place(1, 0);
    memset(f->memory, 0, MEMORY_BYTES);
    run(f, &call, 64);
    uint32_t is, expected = 0;
    for (int i = 0; i < 20; i++)
        expected = 2 * (expected + 1);
    memcpy(&is, f->memory + call.to[0], sizeof is);
    assert_int_equal(is, expected);
}

/* Post more requests than the queue holds. */
static void a_flush_waits_for_all_that_was_posted(void **state)
{
    enum { PIECES = 11, BYTES = 200 };
    struct fixture *f = *state;
    function_call call = {.kind = FUNCTION_PORTS, .places = PIECES, .bytes = BYTES};
    call.from[0] = place(0, 0);
    call.to[0] = place(1, 0);
    call.to[1] = place(2, 0);
    memset(f->memory, 0, MEMORY_BYTES);
    for (size_t i = 0; i < PIECES * BYTES; i++)
        f->memory[call.from[0] + i] = (unsigned char)(1 + i % 199);
    run(f, &call, 64);
    for (size_t i = 0; i < PIECES * BYTES; i++) {
        assert_int_equal(f->memory[call.to[0] + i], 1 + i % 199);
        assert_int_equal(f->memory[call.from[0] + i], FUNCTION_OVER);
    }
    function_ports ports;
    memcpy(&ports, f->memory + call.to[1], sizeof ports);
    assert_int_equal(ports.signals, PIECES / 3);
    assert_int_equal(ports.done, PIECES + PIECES / 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_of_all_alignments_arrive_and_touch_nothing_else),
        cmocka_unit_test(copies_of_all_sizes_go_to_several_places),
        cmocka_unit_test(a_place_that_is_the_source_is_left_alone),
        cmocka_unit_test(reductions_have_the_bits_of_the_host),
        cmocka_unit_test(all_pairs_of_special_floats_have_the_bits_of_the_host),
        cmocka_unit_test(every_half_float_goes_to_f32_and_back),
        cmocka_unit_test(groups_are_reduced_into_themselves),
        cmocka_unit_test(packets_bring_their_data),
        cmocka_unit_test(signals_order_earlier_writes),
        cmocka_unit_test(a_flush_waits_for_all_that_was_posted),
    };
    if (!functions_can_run()) {
        printf("there is no GPU to run this on\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, setup, teardown);
}
