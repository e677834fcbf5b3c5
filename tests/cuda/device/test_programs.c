/* Programs are fused and packed as the kernel requires. */
#include "support/test.h"

#include "cuda/execute/fuse.h"
#include "cuda/execute/pack.h"

/* Bases: rank × 3 + buffer. */
enum { INPUT = 0, OUTPUT = 1, SCRATCH = 2, PEER = 3 };

#define BYTES 4096

/* A program of one thread block, written step by step. */
struct draft {
    engine_step steps[16];
    uint32_t operands[64];
    uint64_t words[256];
    engine_block block;
    engine_program program;
};

static engine_step *add(struct draft *d, step_kind kind, uint32_t number, uint32_t sources,
                        uint32_t destinations)
{
    engine_step *step = &d->steps[d->block.step_count++];
    *step = (engine_step){.kind = (uint8_t)kind,
                          .number = number,
                          .source_count = (uint16_t)sources,
                          .destination_count = (uint16_t)destinations,
                          .operands = d->block.operand_count,
                          .words = d->block.word_count,
                          .piece_count = sources + destinations > 0};
    return step;
}

static void add_place(struct draft *d, uint32_t base, uint64_t offset)
{
    d->operands[d->block.operand_count++] = base;
    d->words[d->block.word_count++] = offset;
}

/* Add a move of `bytes` from one place to another. */
static engine_step *add_move(struct draft *d, step_kind kind, uint32_t number, uint64_t bytes,
                             uint32_t from, uint64_t from_at, uint32_t to, uint64_t to_at)
{
    engine_step *step = add(d, kind, number, 1, 1);
    d->words[d->block.word_count++] = bytes;
    add_place(d, from, from_at);
    add_place(d, to, to_at);
    return step;
}

static fused_program fuse(struct draft *d)
{
    d->program = (engine_program){.dtype = BANYAN_F32,
                                  .elem_bytes = 4,
                                  .flags = 1,
                                  .blocks = &d->block,
                                  .block_count = 1,
                                  .steps = d->steps,
                                  .step_count = d->block.step_count,
                                  .operands = d->operands,
                                  .operand_count = d->block.operand_count,
                                  .words = d->words,
                                  .word_count = d->block.word_count};
    fused_program fused;
    assert_int_equal(fuse_program(&d->program, &fused), BANYAN_OK);
    return fused;
}

static void assert_word(const fused_program *fused, uint64_t at, uint64_t expected)
{
    assert_true(at < fused->program.word_count);
    if (fused->words[at] != expected)
        fail_msg("word %zu is 0x%zx, and should be 0x%zx", (size_t)at, (size_t)fused->words[at],
                 (size_t)expected);
}

static void parts_of_one_source_get_all_destinations(void **state)
{
    (void)state;
    struct draft d = {0};
    for (uint32_t peer = 1; peer <= 3; peer++)
        add_move(&d, STEP_PACK, 0, BYTES, INPUT, 64, (3 * peer + SCRATCH) | ENGINE_PACKETS,
                 128 * peer);
    add(&d, STEP_NOP, 1, 0, 0);
    fused_program fused = fuse(&d);
    assert_int_equal(fused.steps[0].destination_count, 3);
    assert_int_equal(fused.steps[0].piece_count, 1);
    assert_int_equal(KERNEL_STEP_UNITS(&fused.steps[0]), (BYTES + 7) / 8);
    assert_int_equal(fused.steps[0].jump, 3);
    assert_int_equal(fused.steps[1].kind, KERNEL_PASS);
    assert_int_equal(fused.program.word_count, 5);
    assert_word(&fused, 0, BYTES);
    assert_word(&fused, 1, KERNEL_PLACE(INPUT, UINT64_C(64)));
    for (uint32_t peer = 1; peer <= 3; peer++)
        assert_word(&fused, 1 + peer,
                    KERNEL_PLACE((3 * peer + SCRATCH) | ENGINE_PACKETS, UINT64_C(128) * peer));
    fuse_free(&fused);
}

static void parts_of_one_shape_become_pieces(void **state)
{
    (void)state;
    struct draft d = {0};
    for (uint32_t peer = 1; peer <= 3; peer++)
        add_move(&d, STEP_COPY, 0, BYTES, INPUT, BYTES * peer, 3 * peer + OUTPUT, 0);
    fused_program fused = fuse(&d);
    assert_int_equal(fused.steps[0].piece_count, 3);
    assert_int_equal(KERNEL_STEP_UNITS(&fused.steps[0]), 3 * ((BYTES + 7) / 8));
    assert_int_equal(fused.steps[0].jump, 3);
    for (uint32_t peer = 1; peer <= 3; peer++) {
        assert_word(&fused, 3 * (peer - 1), BYTES);
        assert_word(&fused, 3 * (peer - 1) + 1, KERNEL_PLACE(INPUT, (uint64_t)BYTES * peer));
        assert_word(&fused, 3 * (peer - 1) + 2, KERNEL_PLACE(3 * peer + OUTPUT, UINT64_C(0)));
    }
    fuse_free(&fused);
}

static void operations_stay_apart(void **state)
{
    (void)state;
    struct draft d = {0};
    add_move(&d, STEP_COPY, 0, BYTES, INPUT, 0, PEER + OUTPUT, 0);
    add_move(&d, STEP_COPY, 1, BYTES, INPUT, 0, 2 * PEER + OUTPUT, 0);
    add_move(&d, STEP_PACK, 1, BYTES, INPUT, 0, (2 * PEER + SCRATCH) | ENGINE_PACKETS, 0);
    fused_program fused = fuse(&d);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(fused.steps[i].jump, i + 1);
        assert_int_equal(fused.steps[i].kind, d.steps[i].kind);
    }
    fuse_free(&fused);
}

/* A report of a piece names its original step. */
static void operations_that_unpack_become_pieces(void **state)
{
    (void)state;
    struct draft d = {0};
    for (uint32_t i = 0; i < 3; i++)
        add_move(&d, STEP_UNPACK, i, BYTES, SCRATCH | ENGINE_PACKETS, 2 * BYTES * i, OUTPUT,
                 BYTES * i);
    fused_program fused = fuse(&d);
    assert_int_equal(fused.steps[0].piece_count, 3);
    assert_int_equal(fused.steps[0].barrier, 1);
    assert_int_equal(fused.steps[0].jump, 3);
    assert_int_equal(fused.steps[2].kind, KERNEL_PASS);
    fuse_free(&fused);
}

/* The second part reads bytes that the first one writes; the third has bytes of its own. */
static void parts_that_overlap_meet_first(void **state)
{
    (void)state;
    struct draft d = {0};
    add_move(&d, STEP_COPY, 0, BYTES, INPUT, 0, OUTPUT, 0);
    add_move(&d, STEP_COPY, 0, BYTES, OUTPUT, BYTES - 16, PEER + OUTPUT, 0);
    add_move(&d, STEP_COPY, 0, BYTES, OUTPUT, 2 * BYTES, PEER + OUTPUT, BYTES);
    fused_program fused = fuse(&d);
    assert_int_equal(fused.steps[0].relaxed, 0);
    assert_int_equal(fused.steps[0].jump, 1);
    assert_int_equal(fused.steps[1].relaxed, KERNEL_BARRIER_FIRST);
    assert_int_equal(fused.steps[1].piece_count, 2);
    fuse_free(&fused);
}

static void loops_keep_their_iterations_apart(void **state)
{
    (void)state;
    enum { ITERATIONS = 3 };
    struct draft d = {0};
    engine_step *loop = add(&d, STEP_LOOP, 0, 0, 0);
    loop->iterations = ITERATIONS;
    for (uint32_t part = 0; part < 2; part++) {
        engine_step *step = add(&d, STEP_COPY, 0, 1, 1);
        step->in_loop = 1;
        uint64_t *table = d.words + d.block.word_count;
        d.block.word_count += ITERATIONS + 1;
        d.operands[d.block.operand_count++] = INPUT;
        d.operands[d.block.operand_count++] = (part + 1) * PEER + OUTPUT;
        for (uint64_t i = 0; i < ITERATIONS; i++) {
            table[i] = d.block.word_count;
            d.words[d.block.word_count++] = 16;
            d.words[d.block.word_count++] = 16 * i;
            d.words[d.block.word_count++] = 16 * i + 1024 * part;
        }
        table[ITERATIONS] = d.block.word_count;
    }
    engine_step *end = add(&d, STEP_LOOP_END, 0, 0, 0);
    end->iterations = ITERATIONS;
    end->jump = 1;
    fused_program fused = fuse(&d);
    const engine_step *made = &fused.steps[1];
    assert_int_equal(made->jump, 3);
    assert_int_equal(made->destination_count, 2);
    assert_int_equal(fused.steps[3].jump, 1);
    for (uint64_t i = 0; i < ITERATIONS; i++) {
        uint64_t at = fused.words[made->words + i];
        assert_int_equal(fused.words[made->words + i + 1] - at, 4);
        assert_word(&fused, at, 16);
        assert_word(&fused, at + 1, KERNEL_PLACE(INPUT, 16 * i));
        assert_word(&fused, at + 2, KERNEL_PLACE(PEER + OUTPUT, 16 * i));
        assert_word(&fused, at + 3, KERNEL_PLACE(2 * PEER + OUTPUT, 16 * i + 1024));
    }
    fuse_free(&fused);
}

static kernel_kind kind_of(struct draft *d)
{
    fused_program fused = fuse(d);
    kernel_kind kind = pack_kind(&fused.program, false);
    fuse_free(&fused);
    return kind;
}

static void packets_and_short_copies_are_quick(void **state)
{
    (void)state;
    struct draft d = {0};
    add_move(&d, STEP_PACK, 0, 1024, INPUT, 8, (PEER + SCRATCH) | ENGINE_PACKETS, 16);
    add(&d, STEP_NOP, 1, 0, 0);
    add_move(&d, STEP_UNPACK, 2, 1024, SCRATCH | ENGINE_PACKETS, 16, OUTPUT, 8);
    add_move(&d, STEP_COPY, 3, 1024, INPUT, 8, OUTPUT, 4096);
    assert_int_equal(kind_of(&d), KERNEL_QUICK);
}

static void data_and_signals_are_direct(void **state)
{
    (void)state;
    struct draft d = {0};
    add(&d, STEP_SIGNAL, 0, 0, 0);
    add(&d, STEP_WAIT, 1, 0, 0);
    add_move(&d, STEP_COPY, 2, 1 << 20, INPUT, 16, PEER + OUTPUT, 32);
    for (uint32_t peer = 1; peer <= 3; peer++)
        add_move(&d, STEP_COPY, 3, 64, INPUT, 64 * peer, 3 * peer + OUTPUT, 0);
    assert_int_equal(kind_of(&d), KERNEL_DIRECT);
}

/* Each case changes a program that a smaller kernel runs. */
static void the_rest_needs_the_whole_kernel(void **state)
{
    (void)state;
    for (int change = 0; change < 7; change++) {
        struct draft d = {0};
        engine_step *step =
            add_move(&d, STEP_PACK, 0, change == 0 ? 1020 : 1024, INPUT, change == 1 ? 4 : 8,
                     (PEER + SCRATCH) | ENGINE_PACKETS, change == 2 ? 8 : 16);
        if (change == 3)
            d.words[0] |= ENGINE_PAD;
        if (change == 4)
            add(&d, STEP_BARRIER, 1, 0, 0);
        if (change == 5) {
            step->kind = STEP_COMBINE;
            step->op = BANYAN_MAX;
        }
        if (change == 6)
            d.operands[step->operands] = SCRATCH; /* the half is not known at first */
        assert_int_equal(kind_of(&d), KERNEL_WHOLE);
    }
}

static void many_operands_need_the_whole_kernel(void **state)
{
    (void)state;
    for (uint32_t sources = KERNEL_QUICK_OPERANDS; sources < KERNEL_QUICK_OPERANDS + 2; sources++) {
        struct draft d = {0};
        add(&d, STEP_COMBINE, 0, sources, 1);
        d.words[d.block.word_count++] = 1024;
        for (uint32_t i = 0; i < sources; i++)
            add_place(&d, SCRATCH | ENGINE_PACKETS, 2048 * i);
        add_place(&d, OUTPUT, 0);
        assert_int_equal(kind_of(&d),
                         sources == KERNEL_QUICK_OPERANDS ? KERNEL_QUICK : KERNEL_WHOLE);
    }
}

/* Pack the program for `address`, and read it as the kernel does. */
static const kernel_section *pack(struct draft *d, uint32_t most, uint64_t address,
                                  pack_layout *layout, char **memory)
{
    fused_program fused = fuse(d);
    pack_ends ends = {0};
    pack_plan(&fused.program, most, layout);
    *memory = malloc(layout->bytes);
    pack_write(&fused.program, &ends, layout, address, *memory);
    fuse_free(&fused);
    return (const kernel_section *)*memory;
}

static void arrays_lie_in_the_section_as_far_as_they_fit(void **state)
{
    (void)state;
    const uint64_t address = UINT64_C(0x700000000000);
    const uint32_t head = sizeof(kernel_section), steps = 2 * sizeof(engine_step);
    struct draft d = {0};
    add_move(&d, STEP_COPY, 0, BYTES, INPUT, 0, OUTPUT, 16);
    add_move(&d, STEP_COPY, 1, BYTES, INPUT, 0, PEER + OUTPUT, 32);
    for (int fits = 0; fits < 2; fits++) {
        pack_layout layout;
        char *memory;
        uint32_t most = fits ? KERNEL_SECTION_MOST : head + steps;
        const kernel_section *section = pack(&d, most, address, &layout, &memory);
        assert_int_equal(section->step_count, 2);
        assert_true(section->arrays[KERNEL_STEPS].is_resident);
        assert_int_equal(section->arrays[KERNEL_WORDS].is_resident, fits);
        assert_true(layout.section_bytes <= most && layout.section_bytes % 16 == 0);
        uint64_t words = section->arrays[KERNEL_WORDS].address;
        const uint64_t *at = (const uint64_t *)(memory + (fits ? words : words - address));
        assert_int_equal(at[0], BYTES);
        assert_true(at[2] == KERNEL_PLACE(OUTPUT, UINT64_C(16)));
        assert_true(at[5] == KERNEL_PLACE(PEER + OUTPUT, UINT64_C(32)));
        const engine_step *first =
            (const engine_step *)(memory + section->arrays[KERNEL_STEPS].address);
        assert_int_equal(first[1].number, 1);
        free(memory);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_one_source_get_all_destinations),
        cmocka_unit_test(parts_of_one_shape_become_pieces),
        cmocka_unit_test(operations_stay_apart),
        cmocka_unit_test(operations_that_unpack_become_pieces),
        cmocka_unit_test(parts_that_overlap_meet_first),
        cmocka_unit_test(loops_keep_their_iterations_apart),
        cmocka_unit_test(packets_and_short_copies_are_quick),
        cmocka_unit_test(data_and_signals_are_direct),
        cmocka_unit_test(the_rest_needs_the_whole_kernel),
        cmocka_unit_test(many_operands_need_the_whole_kernel),
        cmocka_unit_test(arrays_lie_in_the_section_as_far_as_they_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
