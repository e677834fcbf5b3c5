/* Switch channels of plans on devices use multicast addresses where these exist: see
 * memory/symmetric/symmetric.h. All other accesses go to each rank's memory. */
#include "execute/device/program.h"

#include <string.h>

#include "core/log.h"
#include "memory/symmetric/symmetric.h"
#include "world/control.h"

/* Groups of a plan that get a multicast address. Channels of further groups access each rank's
 * memory. */
#define GROUPS_MOST 4

/* Bytes that one multimem instruction accesses. */
#define WORD_BYTES 16

static uint32_t members_of(const plan_switch *group)
{
    uint32_t members = 0;
    for (int i = 0; i < group->rank_count; i++)
        members |= UINT32_C(1) << group->ranks[i];
    return members;
}

/* Find the plan's distinct groups, in an order that is equal on all ranks. */
static uint32_t device_multicast_find_groups(const banyan_plan *plan, uint32_t found[GROUPS_MOST])
{
    uint32_t count = 0;
    for (int r = 0; r < plan->rank_count; r++) {
        const plan_rank *rank = &plan->ranks[r];
        for (uint32_t i = 0; i < rank->channel_count[PLAN_SWITCH]; i++) {
            uint32_t members = members_of(&rank->switches[i]), k = 0;
            while (k < count && found[k] != members)
                k++;
            if (k == count && count < GROUPS_MOST && rank->switches[i].rank_count > 1)
                found[count++] = members;
        }
    }
    return count;
}

/* The memories of a plan's buffers: those given for its input and output, then its block. */
static const banyan_memory *memory_at(const banyan_loaded_plan *loaded, int i)
{
    return i < 2 ? loaded->memories[i] : loaded->block;
}

/* In an in-place plan, one buffer's memory stands for both. */
static bool names_memory(const banyan_loaded_plan *loaded, const plan_switch *group, int i)
{
    const banyan_plan *plan = loaded->plan;
    if (i == PLAN_SCRATCH)
        return true;
    if (plan->in_place)
        return group->buffer != PLAN_SCRATCH && i == (int)loaded->longer;
    return (int)group->buffer == i;
}

static bool needs_address(const banyan_loaded_plan *loaded, uint32_t members, int i)
{
    const banyan_memory *memory = memory_at(loaded, i);
    if (!memory || memory->attached)
        return false;
    for (int r = 0; r < loaded->plan->rank_count; r++) {
        const plan_rank *rank = &loaded->plan->ranks[r];
        for (uint32_t k = 0; k < rank->channel_count[PLAN_SWITCH]; k++) {
            if (members_of(&rank->switches[k]) == members &&
                names_memory(loaded, &rank->switches[k], i))
                return true;
        }
    }
    return false;
}

static banyan_status make_group(banyan_loaded_plan *loaded, uint32_t members)
{
    int ranks[ENGINE_RANKS_MAX], count = 0;
    bool own = members >> loaded->executor->rank & 1;
    plan_multicast made = {.members = members};
    for (int r = 0; own && r < loaded->executor->ranks; r++) {
        if (members >> r & 1)
            ranks[count++] = r;
    }
    for (int i = 0; i < PLAN_BUFFERS; i++) {
        if (needs_address(loaded, members, i))
            RETURN_IF_FAILED(memory_multicast_make((banyan_memory *)memory_at(loaded, i), ranks,
                                                   count, &made.of[i].address, &made.of[i].bytes));
    }
    if (own && loaded->group_count < ENGINE_GROUPS_MAX)
        loaded->groups[loaded->group_count++] = made;
    return BANYAN_OK;
}

banyan_status multicast_load(banyan_loaded_plan *loaded)
{
    banyan_executor *executor = loaded->executor;
    uint32_t groups[GROUPS_MOST], count = device_multicast_find_groups(loaded->plan, groups);
    banyan_status status = BANYAN_OK;
    for (uint32_t i = 0; i < count && status == BANYAN_OK && executor->multicast; i++)
        status = make_group(loaded, groups[i]);
    if (status == BANYAN_OK)
        return BANYAN_OK;
    log_info("rank %d: switch channels go without multicast: %s", executor->rank,
             banyan_last_error());
    executor->multicast = false;
    loaded->group_count = 0;
    return control_check(executor->world);
}

static const memory_part *device_multicast_part_of(const banyan_loaded_plan *loaded,
                                                   const banyan_memory *memory, int rank)
{
    return &memory->parts[memory_space_local(loaded->executor->space, rank)];
}

static uint64_t device_multicast_bytes_of(const banyan_loaded_plan *loaded,
                                          const specialized_plan *specialized, int rank,
                                          plan_buffer buffer)
{
    if (buffer == PLAN_SCRATCH)
        return loaded->layouts[rank].scratch_bytes;
    return plan_geometry_bytes(&specialized->geometry, loaded->plan, rank, buffer);
}

/* True if the buffers of all members begin at the same offset of that memory, and end within the
 * bytes that the address covers. */
static bool lies_in(const banyan_loaded_plan *loaded, const specialized_plan *specialized,
                    const binding *placed, const plan_multicast *group, plan_buffer buffer, int i,
                    uint64_t *offset)
{
    const banyan_memory *memory = memory_at(loaded, i);
    int rank = loaded->executor->rank;
    if (!group->of[i].address)
        return false;
    *offset = (uint64_t)(placed->bases[step_base(rank, buffer)] -
                         device_multicast_part_of(loaded, memory, rank)->mapped.address);
    for (int r = 0; r < loaded->executor->ranks; r++) {
        const char *base = placed->bases[step_base(r, buffer)];
        uint64_t bytes = device_multicast_bytes_of(loaded, specialized, r, buffer);
        if ((group->members >> r & 1) &&
            (!base ||
             (uint64_t)(base - device_multicast_part_of(loaded, memory, r)->mapped.address) !=
                 *offset ||
             *offset > group->of[i].bytes || bytes > group->of[i].bytes - *offset))
            return false;
    }
    return true;
}

static bool all_are_aligned(const banyan_loaded_plan *loaded, const binding *placed)
{
    uintptr_t all = 0;
    for (int i = 0; i < loaded->executor->ranks * PLAN_BUFFERS; i++)
        all |= (uintptr_t)placed->bases[i];
    return all % WORD_BYTES == 0;
}

void multicast_place(const banyan_loaded_plan *loaded, const specialized_plan *specialized,
                     binding *placed)
{
    memset(placed->group_bases, 0, sizeof placed->group_bases);
    placed->multicast = 0;
    if (!all_are_aligned(loaded, placed))
        return;
    for (uint32_t g = 0; g < loaded->group_count; g++) {
        for (int buffer = 0; buffer < PLAN_BUFFERS; buffer++) {
            uint32_t at = g * PLAN_BUFFERS + (uint32_t)buffer;
            uint64_t offset;
            for (int i = 0; i < PLAN_BUFFERS && !placed->group_bases[at]; i++) {
                if (lies_in(loaded, specialized, placed, &loaded->groups[g], (plan_buffer)buffer, i,
                            &offset))
                    placed->group_bases[at] = loaded->groups[g].of[i].address + offset;
            }
            placed->multicast |= (uint32_t)(placed->group_bases[at] != NULL) << at;
        }
    }
}

struct user {
    const banyan_loaded_plan *loaded;
    const specialized_plan *specialized;
    const plan_thread_block *block;
    uint32_t bases;
    engine_arrays *arrays;
};

static bool is_of_group(const step *s, uint32_t i)
{
    return plan_operand_at(s->op, i)->place == PLAN_GROUP;
}

/* Find the base of an operand's group. False: the operand has none. */
static bool find_base(const struct user *user, const step *s, uint32_t i, uint32_t *base)
{
    const plan_switch *group = plan_operand_group(user->loaded->plan, user->loaded->executor->rank,
                                                  user->block, plan_operand_at(s->op, i));
    uint32_t members = members_of(group);
    for (uint32_t g = 0; g < user->loaded->group_count; g++) {
        uint32_t at = g * PLAN_BUFFERS + (uint32_t)group->buffer;
        if (user->loaded->groups[g].members == members && (user->bases >> at & 1)) {
            *base = ENGINE_GROUP_BASES + at;
            return true;
        }
    }
    return false;
}

static bool is_added_up(DLDataType dtype)
{
    const DLDataType types[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (memcmp(&types[i], &dtype, sizeof dtype) == 0)
            return true;
    }
    return false;
}

/* True for a copy to a group and for the sum of a group. */
static bool has_form(const struct user *user, const step *s)
{
    if ((s->kind != STEP_COPY && s->kind != STEP_COMBINE) || s->op->source_count != 1 ||
        s->op->destination_count != 1)
        return false;
    if (s->kind == STEP_COPY)
        return !is_of_group(s, 0) && is_of_group(s, 1);
    return is_of_group(s, 0) && s->op->reduce_op == BANYAN_SUM &&
           is_added_up(user->specialized->dtype);
}

static uint64_t iterations_of(const struct user *user, const step *s)
{
    return s->loop ? plan_geometry_iterations(&user->specialized->geometry, s->loop) : 1;
}

/* Find the first and last word of an iteration's pieces. */
static void find_words(const struct user *user, const engine_step *made, uint64_t iteration,
                       uint64_t *begin, uint64_t *end)
{
    const uint64_t *table = &user->arrays->words.data[made->words];
    uint64_t stride = UINT64_C(1) + made->source_count + made->destination_count;
    *begin = made->in_loop ? table[iteration] : made->words;
    *end = made->in_loop ? table[iteration + 1] : made->words + made->piece_count * stride;
}

static bool is_whole(const struct user *user, const step *s, const engine_step *made)
{
    const uint64_t *words = user->arrays->words.data;
    uint32_t destination = 1u + made->source_count, stride = destination + made->destination_count;
    for (uint64_t i = 0; i < iterations_of(user, s); i++) {
        uint64_t at, end;
        for (find_words(user, made, i, &at, &end); at < end; at += stride) {
            if ((words[at] | words[at + 1] | words[at + destination]) % WORD_BYTES != 0)
                return false;
        }
    }
    return true;
}

/* Keep one offset for each group, since all members have the same. Pieces move towards the front,
 * so none is overwritten before it is read. */
static void write_words(const struct user *user, const step *s, const engine_step *made)
{
    uint64_t *words = user->arrays->words.data;
    uint32_t destination = 1u + made->source_count, stride = destination + made->destination_count;
    uint64_t iterations = iterations_of(user, s), to, at, end;
    find_words(user, made, 0, &to, &end);
    for (uint64_t i = 0; i < iterations; i++) {
        find_words(user, made, i, &at, &end);
        if (made->in_loop)
            words[made->words + i] = to;
        for (; at < end; at += stride, to += 3) {
            words[to] = words[at];
            words[to + 1] = words[at + 1];
            words[to + 2] = words[at + destination];
        }
    }
    if (made->in_loop)
        words[made->words + iterations] = to;
}

static void device_multicast_use(const struct user *user, const step *s, engine_step *made)
{
    uint32_t *operands = &user->arrays->operands.data[made->operands];
    uint32_t bases[2] = {operands[0], operands[made->source_count]};
    for (uint32_t i = 0; i < 2; i++) {
        if (is_of_group(s, i) && !find_base(user, s, i, &bases[i]))
            return;
    }
    if (!is_whole(user, s, made))
        return;
    write_words(user, s, made);
    memcpy(operands, bases, sizeof bases);
    made->source_count = made->destination_count = 1;
    made->kind = ENGINE_MULTICAST;
}

void multicast_use(const banyan_loaded_plan *loaded, const specialized_plan *specialized,
                   uint32_t bases, engine_arrays *arrays)
{
    struct user user = {
        .loaded = loaded, .specialized = specialized, .bases = bases, .arrays = arrays};
    const plan_rank *rank = &loaded->plan->ranks[loaded->executor->rank];
    for (uint32_t b = 0; bases != 0 && b < specialized->block_count; b++) {
        user.block = &rank->blocks[b];
        engine_step *steps = &arrays->steps.data[arrays->blocks.data[b].first_step];
        for (size_t i = 0; i < specialized->blocks[b].steps.count; i++) {
            const step *s = &specialized->blocks[b].steps.data[i];
            if (has_form(&user, s))
                device_multicast_use(&user, s, &steps[i]);
        }
    }
}
