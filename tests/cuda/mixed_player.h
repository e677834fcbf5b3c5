/* Fused modes of mixed collectives on GPUs, called through the module's table: ranks' engines;
 * calls with random operations, modes, sizes and addresses; and expected results. */
#ifndef TESTS_CUDA_MIXED_PLAYER_H
#define TESTS_CUDA_MIXED_PLAYER_H

#include <math.h>

#include "core/module.h"
#include "mixed/engine.h"
#include "mixed/grid.h"
#include "support/float_reference.h"
#include "support/gpu/gpu_stream.h"
#include "support/test.h"

#define GUARD 64 /* bytes before and after every output */
#define POISON 0xC9

struct case_of {
    int tp, dp;
    DLDataType dtype;
    uint64_t max_bytes;
    uint64_t timeout_ns;
    int grid_size, min_num_steps;
    bool share; /* all ranks use the first device */
};

struct player {
    banyan_world *world;
    int rank, ranks;
    mixed_engine_setup setup;
    const mixed_engine_ops *ops;
    void *engine;
    banyan_memory *memory;
    char *parts[16];
    void *stream;
    random_state random; /* equal on all ranks */
    uint64_t more_elems; /* elements beyond a call's */
};

static inline int node_zero(void *context, int rank)
{
    (void)context;
    (void)rank;
    return 0;
}

static inline void fill_setup(struct player *p, const struct case_of *of)
{
    banyan_mixed_options options = BANYAN_MIXED_OPTIONS_INIT;
    options.local_tp = of->tp;
    options.local_dp = of->dp;
    p->setup = (mixed_engine_setup){
        .dtype = of->dtype,
        .device = gpu_device_for(of->share ? 0 : p->rank),
        .grid_size = of->grid_size,
        .min_block_size = options.min_block_size,
        .min_num_steps = of->min_num_steps ? of->min_num_steps : options.min_num_steps,
        .max_bytes = of->max_bytes ? of->max_bytes : 1 << 16,
        .timeout_ns = of->timeout_ns ? of->timeout_ns : banyan_world_timeout_ns(p->world),
    };
    if (p->ranks > 1)
        p->setup.worlds[MIXED_WORLD] = p->setup.worlds[MIXED_NODE] = p->world;
    CHECK_OK(grid_resolve(&options, p->rank, p->ranks, node_zero, NULL, &p->setup.grid));
}

static inline void use(struct player *p)
{
    CHECK_OK(p->ops->use(p->engine, p->parts));
}

static inline void enter(struct player *p, banyan_world *world, const struct case_of *of)
{
    const module_tables *tables;
    *p = (struct player){
        .world = world, .rank = banyan_world_rank(world), .ranks = banyan_world_size(world)};
    CHECK_OK(module_load("cuda", &tables));
    p->ops = tables->mixed;
    fill_setup(p, of);
    CHECK_OK(p->ops->open(&p->setup, &p->engine));
    uint64_t room = p->ops->room(p->engine);
    CHECK((room > 0) == (p->ranks > 1), "%llu bytes", (unsigned long long)room);
    if (room > 0) {
        CHECK_OK(banyan_memory_alloc_on(world, p->setup.device, room, &p->memory));
        for (int i = 0; i < p->ranks; i++) {
            size_t bytes;
            CHECK_OK(banyan_memory_peer(p->memory, i, (void **)&p->parts[i], &bytes));
        }
    }
    use(p);
    p->stream = gpu_stream_create(p->setup.device);
    p->random = random_from(random_seed() + (uint64_t)of->tp * 64 + (uint64_t)of->dp);
}

static inline void leave(struct player *p)
{
    gpu_stream_wait(p->setup.device, p->stream);
    CHECK_OK(banyan_world_barrier(p->world));
    gpu_stream_destroy(p->setup.device, p->stream);
    p->ops->close(p->engine);
    banyan_memory_free(p->memory);
}

static inline void check_fine(struct player *p)
{
    device_report report;
    p->ops->check(p->engine, &report);
    CHECK(report.verdict == DEVICE_FINE, "rank %d: verdict %d, for rank %d after %.3f s", p->rank,
          (int)report.verdict, device_report_rank(&report), (double)report.waited_ns * 1e-9);
}

static inline float_format format_of(DLDataType dtype)
{
    return dtype.bits == 32 ? format_f32 : dtype.code == kDLBfloat ? format_bf16 : format_f16;
}

/* A rank's element: numbers of similar size, and sometimes -0, infinities and NaN. */
static inline uint32_t element(DLDataType dtype, int rank, uint64_t seed, uint64_t index)
{
    random_state random = random_from(seed * 977 + (uint64_t)rank * 0x9E3779B97F4A7C15u + index);
    uint64_t word = random_next(&random);
    float_format format = format_of(dtype);
    uint32_t sign = (uint32_t)1 << (format.exponent_bits + format.mantissa_bits);
    uint32_t infinity = ((1u << format.exponent_bits) - 1) << format.mantissa_bits;
    unsigned kind = word >> 56;
    if (seed % 7 == 3 || kind < 16)
        return sign;   /* -0 */
    if (seed % 7 == 5) /* words that differ little from two -0, or from one */
        return dtype.bits == 32 || index % 2 == 0 ? sign ^ (uint32_t)(index / 2 % 300) : sign;
    if (kind < 18)
        return infinity | (kind & 1 ? sign : 0);
    if (kind < 19)
        return infinity | 1 | (word & 1 ? sign : 0);
    double value = ((double)(word & 0xffff) - 32768) / 4096;
    return format_encode(format, value);
}

static inline void put(DLDataType dtype, void *to, uint64_t index, uint32_t bits)
{
    if (dtype.bits == 32)
        ((uint32_t *)to)[index] = bits;
    else
        ((uint16_t *)to)[index] = (uint16_t)bits;
}

static inline uint32_t get(DLDataType dtype, const void *from, uint64_t index)
{
    return dtype.bits == 32 ? ((const uint32_t *)from)[index] : ((const uint16_t *)from)[index];
}

struct one_call {
    mixed_call call;
    uint64_t seed;
    uint64_t input_bytes, output_bytes;
    char *input_memory, *output_memory;
};

static inline uint64_t skew(struct player *p)
{
    return random_between(&p->random, 0, 2) == 0
               ? (uint64_t)random_between(&p->random, 0, 7) * p->setup.dtype.bits / 8
               : 0;
}

static inline banyan_mixed_op choose_op(struct player *p)
{
    const banyan_mixed_grid *grid = &p->setup.grid;
    bool second = random_between(&p->random, 0, 1) == 1;
    if (grid->dp == 1)
        return BANYAN_MIXED_ALLREDUCE;
    if (grid->tp == 1)
        return second ? BANYAN_MIXED_ALLGATHER : BANYAN_MIXED_REDUCESCATTER;
    return second ? BANYAN_MIXED_ALLREDUCE_ALLGATHER : BANYAN_MIXED_REDUCESCATTER_ALLREDUCE;
}

static inline void fill_input(const struct player *p, const struct one_call *c)
{
    uint64_t elems = mixed_input_elems(c->call.op, c->call.elems, p->setup.grid.dp);
    char *values = malloc(c->input_bytes);
    CHECK(values);
    for (uint64_t i = 0; i < elems; i++)
        put(p->setup.dtype, values, i, element(p->setup.dtype, p->rank, c->seed, i));
    gpu_copy((void *)c->call.input, values, c->input_bytes);
    free(values);
}

/* Equal on all ranks, except for the addresses of input and output. */
static inline void make_call(struct player *p, uint64_t most_elems, struct one_call *c)
{
    int dp = p->setup.grid.dp;
    uint64_t elem_bytes = p->setup.dtype.bits / 8u;
    char reason[128];
    *c = (struct one_call){.seed = random_next(&p->random) >> 20};
    c->call.op = choose_op(p);
    bool small = random_between(&p->random, 0, 2) == 0;
    c->call.elems = (uint64_t)random_between(&p->random, 1, small ? 40 : (int64_t)most_elems);
    c->call.elems += p->more_elems;
    if (random_between(&p->random, 0, 1) == 0)
        c->call.elems = (c->call.elems + 15) / 16 * 16;
    c->call.mode = BANYAN_MIXED_ONE_SHOT;
    if (random_between(&p->random, 0, 1) == 1 &&
        p->ops->has(p->engine, c->call.op, BANYAN_MIXED_TWO_SHOT, reason, sizeof reason))
        c->call.mode = BANYAN_MIXED_TWO_SHOT;
    c->input_bytes = mixed_input_elems(c->call.op, c->call.elems, dp) * elem_bytes;
    c->output_bytes = mixed_output_elems(c->call.op, c->call.elems, dp) * elem_bytes;
    CHECK_OK(gpu_memory()->alloc(p->setup.device.device_id, c->input_bytes + GUARD,
                                 (void **)&c->input_memory));
    CHECK_OK(gpu_memory()->alloc(p->setup.device.device_id, c->output_bytes + 3 * GUARD,
                                 (void **)&c->output_memory));
    c->call.input = c->input_memory + skew(p) * (uint64_t)(p->rank % 2 + 1) % GUARD;
    c->call.output = c->output_memory + GUARD + skew(p) * (uint64_t)(p->rank % 3 + 1) % GUARD;
    fill_input(p, c);
    gpu_fill(c->output_memory, POISON, c->output_bytes + 3 * GUARD);
}

static inline void free_call(const struct player *p, const struct one_call *c)
{
    gpu_memory()->free(p->setup.device.device_id, c->input_memory);
    gpu_memory()->free(p->setup.device.device_id, c->output_memory);
}

static inline banyan_status run(struct player *p, const struct one_call *c)
{
    return p->ops->run(p->engine, &c->call, p->stream);
}

struct expected {
    double sum, magnitude;
};

static inline struct expected sum_over(const struct player *p, const struct one_call *c, int first,
                                       int count, uint64_t index)
{
    struct expected of = {0};
    for (int r = first; r < first + count; r++) {
        double value =
            format_decode(format_of(p->setup.dtype), element(p->setup.dtype, r, c->seed, index));
        of.sum += value;
        of.magnitude += fabs(value);
    }
    return of;
}

/* Return the expected sum for an output's element. Ranks of one tensor-parallel group are
 * consecutive. */
static inline struct expected expect(const struct player *p, const struct one_call *c,
                                     uint64_t index)
{
    const banyan_mixed_grid *grid = &p->setup.grid;
    uint64_t elems = c->call.elems;
    switch (c->call.op) {
    case BANYAN_MIXED_REDUCESCATTER:
    case BANYAN_MIXED_REDUCESCATTER_ALLREDUCE:
        return sum_over(p, c, 0, p->ranks, (uint64_t)grid->dp_index * elems + index);
    default:
        return sum_over(p, c, (int)(index / elems) * grid->tp, grid->tp, index % elems);
    }
}

static inline void check_sum(const struct player *p, const struct one_call *c, uint64_t index,
                             uint32_t bits)
{
    float_format format = format_of(p->setup.dtype);
    struct expected of = expect(p, c, index);
    double got = format_decode(format, bits);
    double most = ldexp(fabs(of.sum), -format.mantissa_bits) + ldexp(of.magnitude, -20) +
                  (format.mantissa_bits == 10 ? ldexp(1, -24) : 0);
    bool right = isnan(of.sum)   ? isnan(got)
                 : isinf(of.sum) ? got == of.sum
                                 : fabs(got - of.sum) <= most;
    CHECK(right, "rank %d: %s, %s, %llu elements: element %llu is %g (%#x), not %g", p->rank,
          banyan_mixed_op_name(c->call.op), banyan_mixed_mode_name(c->call.mode),
          (unsigned long long)c->call.elems, (unsigned long long)index, got, bits, of.sum);
}

static inline void check_gathered(const struct player *p, const struct one_call *c, uint64_t index,
                                  uint32_t bits)
{
    uint64_t elems = c->call.elems;
    uint32_t wanted = element(p->setup.dtype, (int)(index / elems), c->seed, index % elems);
    CHECK(bits == wanted, "rank %d: allgather of %llu elements: element %llu is %#x, not %#x",
          p->rank, (unsigned long long)elems, (unsigned long long)index, bits, wanted);
}

static inline void check_guards(const struct player *p, const struct one_call *c,
                                const char *memory)
{
    uint64_t begin = (uint64_t)((char *)c->call.output - c->output_memory);
    uint64_t end = begin + c->output_bytes, all = c->output_bytes + 3 * GUARD;
    for (uint64_t i = 0; i < all; i++) {
        if (i == begin)
            i = end;
        CHECK((unsigned char)memory[i] == POISON,
              "rank %d: %s, %s, %llu elements: byte %lld of the output was written", p->rank,
              banyan_mixed_op_name(c->call.op), banyan_mixed_mode_name(c->call.mode),
              (unsigned long long)c->call.elems, (long long)i - (long long)begin);
    }
}

static inline uint64_t digest(const char *bytes, uint64_t count)
{
    uint64_t hash = 14695981039346656037u;
    for (uint64_t i = 0; i < count; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * 1099511628211u;
    return hash;
}

/* Check that ranks with one output have equal bits. */
static inline void check_equal(const struct player *p, const struct one_call *c, uint64_t mine)
{
    const banyan_mixed_grid *grid = &p->setup.grid;
    bool by_dp = c->call.op == BANYAN_MIXED_REDUCESCATTER ||
                 c->call.op == BANYAN_MIXED_REDUCESCATTER_ALLREDUCE;
    uint64_t all[16];
    CHECK_OK(banyan_world_allgather(p->world, &mine, sizeof mine, all));
    for (int r = 0; r < p->ranks; r++) {
        if (!by_dp || r / grid->tp == grid->dp_index)
            CHECK(all[r] == mine, "ranks %d and %d differ after %s, %s of %llu elements", p->rank,
                  r, banyan_mixed_op_name(c->call.op), banyan_mixed_mode_name(c->call.mode),
                  (unsigned long long)c->call.elems);
    }
}

static inline void check_call(const struct player *p, const struct one_call *c)
{
    DLDataType dtype = p->setup.dtype;
    uint64_t elems = mixed_output_elems(c->call.op, c->call.elems, p->setup.grid.dp);
    char *memory = gpu_read(c->output_memory, c->output_bytes + 3 * GUARD);
    char *values = malloc(c->output_bytes);
    CHECK(values);
    memcpy(values, memory + ((char *)c->call.output - c->output_memory), c->output_bytes);
    for (uint64_t i = 0; i < elems; i++)
        (c->call.op == BANYAN_MIXED_ALLGATHER ? check_gathered : check_sum)(p, c, i,
                                                                            get(dtype, values, i));
    check_guards(p, c, memory);
    check_equal(p, c, digest(values, c->output_bytes));
    free(values);
    free(memory);
}

#endif
