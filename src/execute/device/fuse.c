/* Remove steps that a device does not need: a reduction can read its sources where they arrive. */
#include "execute/device/program.h"

struct fuser {
    const banyan_loaded_plan *loaded;
    engine_arrays *all;
};

/* Four consecutive steps: own data to own packets, packets to the output, a barrier, a
 * reduction. */
struct chain {
    engine_step *pack, *unpack, *combine;
    uint32_t own; /* the reduction's source with the own packets */
};

static uint32_t *device_fuse_operands(const struct fuser *fuser, const engine_step *s)
{
    return fuser->all->operands.data + s->operands;
}

/* Return a piece of a step outside of loops: its bytes, then one offset for each operand. */
static uint64_t *device_fuse_piece(const struct fuser *fuser, const engine_step *s, uint64_t i)
{
    return fuser->all->words.data + s->words +
           i * (1 + (uint32_t)s->source_count + s->destination_count);
}

static uint64_t room_of(uint32_t operand, uint64_t bytes)
{
    bytes &= ~ENGINE_PAD;
    return operand & ENGINE_PACKETS ? (bytes + 3) / 4 * 8 : bytes;
}

/* True if operand a of s and operand b of t lie in the same place, piece by piece. */
static bool device_fuse_same_place(const struct fuser *fuser, const engine_step *s, uint32_t a,
                                   const engine_step *t, uint32_t b)
{
    if (device_fuse_operands(fuser, s)[a] != device_fuse_operands(fuser, t)[b] ||
        s->piece_count != t->piece_count)
        return false;
    for (uint64_t i = 0; i < s->piece_count; i++) {
        if (device_fuse_piece(fuser, s, i)[0] != device_fuse_piece(fuser, t, i)[0] ||
            device_fuse_piece(fuser, s, i)[1 + a] != device_fuse_piece(fuser, t, i)[1 + b])
            return false;
    }
    return true;
}

static bool device_fuse_overlap(const struct fuser *fuser, const engine_step *s, uint32_t a,
                                const engine_step *t, uint32_t b)
{
    uint32_t first = device_fuse_operands(fuser, s)[a], second = device_fuse_operands(fuser, t)[b];
    if (first != second)
        return false;
    for (uint64_t i = 0; i < s->piece_count; i++) {
        const uint64_t *one = device_fuse_piece(fuser, s, i);
        for (uint64_t k = 0; k < t->piece_count; k++) {
            const uint64_t *other = device_fuse_piece(fuser, t, k);
            if (one[1 + a] < other[1 + b] + room_of(second, other[0]) &&
                other[1 + b] < one[1 + a] + room_of(first, one[0]))
                return true;
        }
    }
    return false;
}

static bool is_read_here(const struct fuser *fuser, const struct chain *chain)
{
    for (size_t i = 0; i < fuser->all->steps.count; i++) {
        const engine_step *s = &fuser->all->steps.data[i];
        for (uint32_t k = 0; k < s->source_count; k++) {
            bool same =
                device_fuse_operands(fuser, s)[k] == device_fuse_operands(fuser, chain->pack)[1];
            if (same && s->in_loop)
                return true;
            if (same && (s != chain->combine || k != chain->own) &&
                device_fuse_overlap(fuser, s, k, chain->pack, 1))
                return true;
        }
    }
    return false;
}

static bool peers_read_scratch(const struct fuser *fuser)
{
    int own = fuser->loaded->executor->rank;
    for (plan_cursor at = {.plan = fuser->loaded->plan}; plan_cursor_next(&at);) {
        for (uint32_t k = 0; k < at.op->source_count && at.rank != own; k++) {
            plan_where where =
                plan_operand_where(at.plan, at.rank, at.block, at.op, &at.op->sources[k]);
            if (at.op->sources[k].place == PLAN_GROUP ||
                (where.rank == own && where.buffer == PLAN_SCRATCH))
                return true;
        }
    }
    return false;
}

static bool device_fuse_is_single(const engine_step *s, step_kind kind)
{
    return s->kind == kind && !s->in_loop && s->source_count == 1 && s->destination_count == 1;
}

/* The reduction's target must be the place where its first source was unpacked: then no step
 * misses the unpacked data. */
static bool find_chain(const struct fuser *fuser, engine_step *first, struct chain *chain)
{
    *chain = (struct chain){.pack = first, .unpack = first + 1, .combine = first + 3};
    if (!device_fuse_is_single(chain->pack, STEP_PACK) ||
        !device_fuse_is_single(chain->unpack, STEP_UNPACK) || first[2].kind != STEP_NOP ||
        chain->combine->kind != STEP_COMBINE || chain->combine->in_loop)
        return false;
    const engine_step *combine = chain->combine;
    if (!device_fuse_same_place(fuser, chain->unpack, 1, combine, 0) ||
        !device_fuse_same_place(fuser, chain->unpack, 1, combine, combine->source_count))
        return false;
    chain->own = 1;
    while (chain->own < combine->source_count &&
           !device_fuse_same_place(fuser, chain->pack, 1, combine, chain->own))
        chain->own++;
    return chain->own < combine->source_count && !is_read_here(fuser, chain);
}

static void read_from(const struct fuser *fuser, const engine_step *combine, uint32_t source,
                      const engine_step *from)
{
    device_fuse_operands(fuser, combine)[source] = device_fuse_operands(fuser, from)[0];
    for (uint64_t i = 0; i < combine->piece_count; i++)
        device_fuse_piece(fuser, combine, i)[1 + source] = device_fuse_piece(fuser, from, i)[1];
}

static void device_fuse_leave_out(engine_step *s)
{
    s->kind = STEP_COPY;
    s->piece_count = 0;
}

void engine_fuse(const banyan_loaded_plan *loaded, engine_arrays *arrays)
{
    struct fuser fuser = {.loaded = loaded, .all = arrays};
    bool looked = false;
    for (size_t b = 0; b < arrays->blocks.count; b++) {
        const engine_block *block = &arrays->blocks.data[b];
        engine_step *steps = arrays->steps.data + block->first_step;
        struct chain chain;
        for (uint32_t i = 0; i + 3 < block->step_count; i++) {
            if (!find_chain(&fuser, &steps[i], &chain))
                continue;
            if (!looked && peers_read_scratch(&fuser))
                return;
            looked = true;
            read_from(&fuser, chain.combine, 0, chain.unpack);
            read_from(&fuser, chain.combine, chain.own, chain.pack);
            device_fuse_leave_out(chain.pack);
            device_fuse_leave_out(chain.unpack);
        }
    }
}

bool engine_is_fused(const step *s, uint32_t source)
{
    return s->kind == STEP_COMBINE && source == 0 && !s->operands[0].packets;
}
