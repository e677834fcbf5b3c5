/* Damage to sound plans is found, or does no harm: then neither the symbolic executor, which is
 * independent of the checker, nor the host executor, in random orders, finds anything either. One
 * of them also confirms the checker's findings: the symbolic executor where it models the fault;
 * the host executor whenever an operator is changed, and usually when a nop is removed. */
#include <time.h>

#include "core/threads/sanitizer.h"
#include "execute/shuffled.h"
#include "support/plans.h"
#include "support/proof.h"
#include "support/symbolic/symbolic.h"
#include "support/test.h"

#define ROUNDS_MOST 4000
#define SECONDS 6
#define TRIES 32 /* of places to damage */

typedef enum damage {
    DROP_WAIT,
    DROP_SIGNAL,
    DROP_NOP,
    DROP_FLUSH,
    DROP_MEMBER,
    MOVE_CHUNK,
    SWAP_OPERATIONS,
    SWAP_BUFFER,
    CHANGE_OPERATOR,
    DAMAGES
} damage;

static const char *const damage_names[DAMAGES] = {"a wait is dropped",
                                                  "a signal is dropped",
                                                  "a nop is dropped",
                                                  "a flush is dropped",
                                                  "a barrier's member is left out",
                                                  "a chunk is moved",
                                                  "two operations are swapped",
                                                  "a buffer is swapped",
                                                  "an operator is changed"};

/* Packets, scratch, loops with reused scratch, direct access, ports. */
static const char *const algorithms[] = {"allreduce_packets",        "allreduce_packets_twoshot",
                                         "allreduce_ring",           "allreduce_pipelined",
                                         "allreduce_twoshot_direct", "allgather_bruck",
                                         "reducescatter_halving",    "alltoall_pairwise",
                                         "alltoall_pipelined",       "broadcast_tree",
                                         "reduce_twoshot",           "sendrecv_port"};

/* Semaphores, barriers and ports; the first has both of the former. */
static const char *const plan_names[] = {
    "multi_node_allgather_tbg_4", "single_node_alltoall_ring_2", "single_node_alltoall_pipeline_2",
    "single_node_allgather_pkt_rppkt_2"};

/* A list of operations: a thread block's, or a loop's body. */
typedef struct op_list {
    plan_op **ops;
    uint32_t *count;
} op_list;

static op_list any_list(banyan_plan *plan, random_state *random)
{
    plan_rank *rank = &plan->ranks[random_between(random, 0, plan->rank_count - 1)];
    plan_thread_block *block = &rank->blocks[random_between(random, 0, rank->block_count - 1)];
    op_list list = {&block->ops, &block->op_count};
    if (block->op_count == 0)
        return list;
    plan_op *op = &block->ops[random_between(random, 0, block->op_count - 1)];
    return op->kind == PLAN_PIPELINE ? (op_list){&op->ops, &op->op_count} : list;
}

static void drop(op_list list, uint32_t i)
{
    plan_op *ops = *list.ops;
    memmove(&ops[i], &ops[i + 1], (--*list.count - i) * sizeof *ops);
}

static bool is_signal(const plan_op *op)
{
    return op->kind == PLAN_SIGNAL || op->kind == PLAN_RELAXED_SIGNAL ||
           op->kind == PLAN_SEM_RELEASE;
}

static bool is_wait(const plan_op *op)
{
    return op->kind == PLAN_WAIT || op->kind == PLAN_RELAXED_WAIT || op->kind == PLAN_SEM_ACQUIRE;
}

static bool move_chunk(const banyan_plan *plan, plan_op *op, random_state *random)
{
    uint32_t operands = op->source_count + op->destination_count;
    if (operands == 0)
        return false;
    uint32_t i = (uint32_t)random_between(random, 0, operands - 1);
    plan_operand *at =
        i < op->source_count ? &op->sources[i] : &op->destinations[i - op->source_count];
    uint64_t before = at->index;
    if (at->place == PLAN_LOCAL) {
        uint64_t chunks = plan->ranks[0].chunks[at->buffer];
        at->index = chunks > at->size ? (at->index + 1) % (chunks - at->size + 1) : before;
    } else if (at->place == PLAN_REMOTE) {
        at->index = at->index > 0 ? at->index - 1 : at->index + 1;
    }
    return at->index != before;
}

static bool swap_buffer(plan_op *op)
{
    for (uint32_t i = 0; i < op->source_count; i++) {
        plan_operand *at = &op->sources[i];
        if (at->place != PLAN_LOCAL || plan_source_is_packets(op, i))
            continue;
        at->buffer = at->buffer == PLAN_INPUT ? PLAN_OUTPUT : PLAN_INPUT;
        return true;
    }
    return false;
}

static bool can_drop(damage what, const plan_op *op)
{
    if (what == DROP_NOP)
        return op->kind == PLAN_NOP;
    return what == DROP_WAIT ? is_wait(op) : is_signal(op);
}

static bool drop_flush(plan_op *op)
{
    if (op->kind != PLAN_PUT_WITH_SIGNAL_AND_FLUSH)
        return false;
    op->kind = PLAN_PUT_WITH_SIGNAL;
    return true;
}

/* One block no longer comes to the barrier, and its members do not expect it. */
static bool drop_member(banyan_plan *plan, const op_list *list, uint32_t barrier)
{
    for (int r = 0; r < plan->rank_count; r++) {
        plan_rank *rank = &plan->ranks[r];
        bool own = false;
        for (uint32_t b = 0; b < rank->block_count; b++)
            own |= &rank->blocks[b].ops == list->ops;
        for (uint32_t b = 0; own && b < rank->block_count; b++) {
            plan_thread_block *block = &rank->blocks[b];
            for (uint32_t i = block->op_count; i-- > 0;) {
                plan_op *op = &block->ops[i];
                if (op->kind != PLAN_BARRIER || op->barrier != barrier)
                    continue;
                if (&block->ops == list->ops)
                    *op = (plan_op){.kind = PLAN_NOP};
                else
                    op->barrier_members--;
            }
        }
    }
    return true;
}

/* False: there was nothing to damage. */
static bool do_damage(banyan_plan *plan, damage what, random_state *random)
{
    op_list list = any_list(plan, random);
    if (*list.count == 0)
        return false;
    uint32_t i = (uint32_t)random_between(random, 0, *list.count - 1);
    plan_op *op = &(*list.ops)[i], kept = *op;
    switch (what) {
    case DROP_WAIT:
    case DROP_SIGNAL:
    case DROP_NOP:
        if (!can_drop(what, op))
            return false;
        drop(list, i);
        return true;
    case DROP_FLUSH:
        return drop_flush(op);
    case DROP_MEMBER:
        return op->kind == PLAN_BARRIER && drop_member(plan, &list, op->barrier);
    case MOVE_CHUNK:
        return move_chunk(plan, op, random);
    case SWAP_OPERATIONS:
        if (i + 1 == *list.count)
            return false;
        op[0] = op[1];
        op[1] = kept;
        return true;
    case SWAP_BUFFER:
        return swap_buffer(op);
    case CHANGE_OPERATOR:
        op->reduce_op = BANYAN_MAX;
        return plan_op_reduces(op->kind);
    case DAMAGES:
        break;
    }
    return false;
}

/* Remaining signals are a fault to the symbolic executor; to the checker only if a wait for them
 * was needed. */
static bool is_harm(const char *problem)
{
    return !strstr(problem, "nobody waited for a signal") && !strstr(problem, "not played");
}

static bool player_finds(const banyan_plan *plan, random_state *random, char *problem, size_t bytes)
{
    for (int i = 0; i < 4; i++) {
        symbolic_options options = {
            .runs = 3, .units = 1 + 8 * (i % 2), .seed = random_next(random), .same_bits = false};
        problem[0] = 0;
        if (!symbolic_play(plan, &options, problem, bytes) && is_harm(problem))
            return true;
    }
    return false;
}

/* The symbolic executor runs a block's operations one after another, and treats all reductions as
 * sums. */
static bool player_sees(damage what)
{
    return what != DROP_NOP && what != DROP_FLUSH && what != DROP_MEMBER &&
           what != SWAP_OPERATIONS && what != CHANGE_OPERATOR;
}

/* Run it in random orders, as the host executor can, with this many elements for each rank. */
static bool executor_finds(const banyan_plan *plan, uint64_t elems, random_state *random,
                           uint64_t *seed)
{
    banyan_plan_info info = banyan_plan_describe(plan);
    shuffled_case s = {.c = {.plan = plan,
                             .message_bytes = (uint64_t)info.ranks * 4 * elems,
                             .dtype = {kDLInt, 32, 1},
                             .symmetric = true,
                             .apart = !info.in_place,
                             .runs = 3},
                       .first_seed = random_next(random) | 1,
                       .seeds = 4,
                       .stops = true};
    return shuffled_run(&s, seed) > 0;
}

/* Damage that causes no deadlock, and that the symbolic executor does not model. */
static bool executor_sees(damage what)
{
#ifdef SANITIZER_THREAD
    return what == CHANGE_OPERATOR; /* without a nop plans race, as expected */
#else
    return what == DROP_NOP || what == DROP_MEMBER || what == CHANGE_OPERATOR;
#endif
}

static banyan_plan *plan_from_elsewhere(size_t which, char *name, size_t name_bytes)
{
    char path[512];
    banyan_plan *plan, *clone;
    snprintf(name, name_bytes, "%s", plan_names[which]);
    snprintf(path, sizeof path, "%s/%s.json", plans_dir(), plan_names[which]);
    CHECK_OK(banyan_plan_read(path, &plan));
    CHECK_OK(plan_clone(plan, &clone));
    banyan_plan_destroy(plan);
    return clone;
}

static banyan_plan *any_plan(random_state *random, bool first, char *name, size_t name_bytes)
{
    size_t count = sizeof algorithms / sizeof *algorithms;
    size_t others = sizeof plan_names / sizeof *plan_names;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    size_t which = (size_t)random_between(random, 0, (int64_t)(count + others) - 1);
    if (which >= count || first)
        return plan_from_elsewhere(first ? 0 : which - count, name, name_bytes);
    const char *algorithm = algorithms[which];
    banyan_plan *plan, *clone;
    params.ranks = (int)random_between(random, 2, 4);
    params.shift = 1;
    CHECK_OK(banyan_algorithm_compile(algorithm, &params, &plan));
    CHECK_OK(plan_clone(plan, &clone));
    banyan_plan_destroy(plan);
    snprintf(name, name_bytes, "%s of %d ranks", algorithm, params.ranks);
    return clone;
}

static void damage_is_found_or_does_no_harm(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    time_t end = time(NULL) + SECONDS;
    int done[DAMAGES] = {0}, found[DAMAGES] = {0}, confirmed[DAMAGES] = {0};
    for (int round = 0; round < ROUNDS_MOST && time(NULL) < end; round++) {
        char name[128], problem[256] = "";
        damage what = (damage)(round % DAMAGES);
        banyan_plan *plan =
            any_plan(&random, what == DROP_MEMBER || what == DROP_FLUSH, name, sizeof name);
        /* An index out of range is refused before anything is checked. */
        bool harmed = false;
        for (int i = 0; i < TRIES && !harmed; i++)
            harmed = do_damage(plan, what, &random);
        if (harmed && plan_check_indices(plan, name) == BANYAN_OK) {
            done[what]++;
            bool checker = !proof_holds(plan);
            bool player = player_finds(plan, &random, problem, sizeof problem);
            CHECK(checker || !player, "%s, %s: %s", name, damage_names[what], problem);
            CHECK(!checker || player || !player_sees(what) || strstr(problem, "not played"),
                  "%s, %s", name, damage_names[what]);
            if (!checker || executor_sees(what)) {
                /* No thread block's share may be empty, since the operator would then have no
                 * effect. */
                int64_t least = what == CHANGE_OPERATOR ? 100 : 1;
                uint64_t elems = (uint64_t)random_between(&random, least, 300), seed;
                bool executor = executor_finds(plan, elems, &random, &seed);
                CHECK(checker || !executor, "%s, %s, %llu elements: wrong under seed %llu", name,
                      damage_names[what], (unsigned long long)elems, (unsigned long long)seed);
                CHECK(executor || what != CHANGE_OPERATOR || !checker, "%s, %llu elements", name,
                      (unsigned long long)elems);
                confirmed[what] += executor;
            }
            found[what] += checker;
        }
        banyan_plan_destroy(plan);
    }
    for (int what = 0; what < DAMAGES; what++) {
        printf("%s: %d times, %d found, %d seen in a run\n", damage_names[what], done[what],
               found[what], confirmed[what]);
        CHECK(!executor_sees((damage)what) || 3 * confirmed[what] >= found[what] || done[what] < 20,
              "%s", damage_names[what]);
        CHECK(found[what] > 0 || done[what] < 20, "%s", damage_names[what]);
    }
}

static void every_wait_and_signal_of_a_ring_counts(void **state)
{
    (void)state;
    for (uint32_t i = 0;; i++) {
        banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
        banyan_plan *plan, *damaged;
        params.ranks = 3;
        CHECK_OK(banyan_algorithm_compile("allreduce_ring", &params, &plan));
        CHECK_OK(plan_clone(plan, &damaged));
        banyan_plan_destroy(plan);
        plan_thread_block *block = &damaged->ranks[1].blocks[0];
        bool there = i < block->op_count;
        if (there && (is_wait(&block->ops[i]) || is_signal(&block->ops[i]))) {
            drop((op_list){&block->ops, &block->op_count}, i);
            CHECK(!proof_holds(damaged), "operation %u", i);
        }
        banyan_plan_destroy(damaged);
        if (!there)
            return;
    }
}

static void a_barrier_without_one_of_its_members_is_found(void **state)
{
    (void)state;
    const char *text =
        "{\"name\":\"b\",\"collective\":\"b\",\"protocol\":\"Simple\",\"inplace\":false,\"gpus\":[{"
        "\"id\":0,\"input_chunks\":1,\"output_chunks\":1,\"scratch_chunks\":1,\"channels\":[],"
        "\"threadblocks\":[{\"id\":0,\"ops\":[{\"name\":\"copy\",\"src_buff\":[{\"type\":\"i\","
        "\"index\":0,\"size\":1}],\"dst_buff\":[{\"type\":\"s\",\"index\":0,\"size\":1}]},{"
        "\"name\":"
        "\"barrier\",\"barrier_id\":0,\"num_threadblocks\":2}]},{\"id\":1,\"ops\":[{\"name\":"
        "\"barrier\",\"barrier_id\":0,\"num_threadblocks\":2},{\"name\":\"copy\",\"src_buff\":[{"
        "\"type\":\"s\",\"index\":0,\"size\":1}],\"dst_buff\":[{\"type\":\"o\",\"index\":0,"
        "\"size\":1}]}]}]}]}";
    banyan_plan *plan, *clone;
    CHECK_OK(banyan_plan_parse(text, strlen(text), "b", &plan));
    CHECK_OK(plan_clone(plan, &clone));
    CHECK(proof_holds(clone));
    plan_thread_block *blocks = clone->ranks[0].blocks;
    drop((op_list){&blocks[0].ops, &blocks[0].op_count}, 1);
    banyan_check_report *report;
    CHECK_FAILS(banyan_plan_check(clone, NULL, &report), BANYAN_ERR_FORMAT, "barrier");
    blocks[1].ops[0].barrier_members = 1;
    CHECK(!proof_holds(clone));
    banyan_plan_destroy(clone);
    banyan_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damage_is_found_or_does_no_harm),
        cmocka_unit_test(every_wait_and_signal_of_a_ring_counts),
        cmocka_unit_test(a_barrier_without_one_of_its_members_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
