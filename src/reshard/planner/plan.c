#include "reshard/planner/plan.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "reshard/layout/layout.h"
#include "reshard/run/execute.h"
#include "world/control.h"

/* Options must be equal on all ranks. */

enum { OPTION_VALUES = 7 };

static const char *const option_names[OPTION_VALUES] = {
    "min_split_bytes",      "max_staging_bytes", "checksums",        "transform (as a hash)",
    "require_whole_source", "skip (as a hash)",  "each_rank_fetches"};

static uint64_t hash_skip(const banyan_reshard_options *options)
{
    uint64_t hash = options->skip_count;
    for (size_t i = 0; i < options->skip_count; i++)
        hash = hash_string(options->skip[i], hash);
    return hash;
}

static banyan_status same_everywhere(banyan_world *world, uint64_t mine, uint64_t *most, bool *same)
{
    uint64_t inverse_of_least;
    RETURN_IF_FAILED(control_max(world, mine, most));
    RETURN_IF_FAILED(control_max(world, ~mine, &inverse_of_least));
    *same = *most == ~inverse_of_least;
    return BANYAN_OK;
}

/* Two small collectives; a third round only names the option that differs. */
static banyan_status agree_on_options(banyan_world *world, const banyan_reshard_options *options)
{
    const banyan_transform *transform = options->transform;
    const uint64_t values[OPTION_VALUES] = {
        options->min_split_bytes,
        options->max_staging_bytes,
        options->checksums,
        transform ? hash_string(transform->name ? transform->name : "", 1) : 0,
        options->require_whole_source,
        hash_skip(options),
        options->each_rank_fetches,
    };
    uint64_t most;
    bool same;
    RETURN_IF_FAILED(same_everywhere(world, hash_bytes(values, sizeof values, 0), &most, &same));
    if (same)
        return BANYAN_OK;
    banyan_status status = BANYAN_OK;
    for (int i = 0; i < OPTION_VALUES; i++) {
        RETURN_IF_FAILED(same_everywhere(world, values[i], &most, &same));
        if (!same && values[i] != most && status == BANYAN_OK)
            status = error_set(BANYAN_ERR_MISMATCH,
                               "rank %d plans with %s %" PRIu64 ", another rank with %" PRIu64
                               ": all ranks must give the same options",
                               banyan_world_rank(world), option_names[i], values[i], most);
    }
    return control_agree(world, status);
}

/* Both ends must derive the same transfers. */

/* Digest of everything that one rank sends to another. */
typedef struct pair_digest {
    uint64_t count, bytes, ids;
} pair_digest;

static void digest_add(pair_digest *digest, const banyan_transfer *transfer)
{
    digest->count++;
    digest->bytes += transfer->bytes;
    digest->ids += hash_bytes(&transfer->task_id, sizeof transfer->task_id, transfer->bytes);
}

static banyan_status digest_sends(const planner_result *transfers, control_message **messages,
                                  size_t *count)
{
    ARRAY(control_message) made = {0};
    for (size_t i = 0; i < transfers->send_count; i++) {
        const banyan_transfer *send = &transfers->sends[i];
        if (made.count == 0 || made.data[made.count - 1].rank != send->destination_rank) {
            pair_digest *digest = calloc(1, sizeof *digest);
            control_message message = {send->destination_rank, digest, sizeof *digest};
            if (!digest || !array_push(&made, message)) {
                free(digest);
                control_messages_free(made.data, made.count);
                return error_no_memory(sizeof *digest, "a plan's digests");
            }
        }
        digest_add(made.data[made.count - 1].data, send);
    }
    *messages = made.data;
    *count = made.count;
    return BANYAN_OK;
}

static banyan_status compare_digests(int rank, int source, const pair_digest *expected,
                                     const pair_digest *sent)
{
    if (memcmp(expected, sent, sizeof *sent) == 0)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_MISMATCH,
                     "rank %d expects %" PRIu64 " transfers of %" PRIu64
                     " bytes from rank %d, which would send %" PRIu64 " of %" PRIu64
                     " bytes: their layouts disagree about which rank holds which part",
                     rank, expected->count, expected->bytes, source, sent->count, sent->bytes);
}

/* Both lists are sorted by source rank. */
static banyan_status check_digests(int rank, const planner_result *transfers,
                                   const control_message *received, size_t received_count)
{
    size_t at = 0, i = 0;
    while (i < transfers->recv_count || at < received_count) {
        int expected_from = i < transfers->recv_count ? transfers->recvs[i].source_rank : INT_MAX;
        int sent_from = at < received_count ? received[at].rank : INT_MAX;
        pair_digest expected = {0}, sent = {0};
        int source = expected_from < sent_from ? expected_from : sent_from;
        while (i < transfers->recv_count && transfers->recvs[i].source_rank == source)
            digest_add(&expected, &transfers->recvs[i++]);
        if (sent_from == source && received[at].bytes == sizeof sent)
            memcpy(&sent, received[at].data, sizeof sent);
        at += sent_from == source;
        if (source != rank)
            RETURN_IF_FAILED(compare_digests(rank, source, &expected, &sent));
    }
    return BANYAN_OK;
}

static banyan_status agree_on_pairs(banyan_world *world, const planner_result *transfers)
{
    control_message *messages = NULL, *received = NULL;
    size_t count = 0, received_count = 0;
    banyan_status status = control_agree(world, digest_sends(transfers, &messages, &count));
    if (status == BANYAN_OK)
        status = control_exchange(world, messages, count, "reshard plan's digests", &received,
                                  &received_count);
    control_messages_free(messages, count);
    if (status != BANYAN_OK)
        return status;
    status = check_digests(banyan_world_rank(world), transfers, received, received_count);
    control_messages_free(received, received_count);
    return control_agree(world, status);
}

static banyan_status directory_put(void *directory, const char *key, const void *value,
                                   size_t bytes, const banyan_rank_set *holders)
{
    return banyan_directory_put(directory, key, value, bytes, holders);
}

/* Every rank takes part in every step, even after its own part has failed: the ranks agree after
 * each step, so none waits for another that has given up. */
static banyan_status planner_consult(banyan_world *world, banyan_directory *directory,
                                     planner *planning)
{
    RETURN_IF_FAILED(control_agree(world, planner_describe(planning, directory_put, directory)));
    RETURN_IF_FAILED(banyan_directory_commit(directory));
    for (int round = 0; round < PLANNER_ROUNDS; round++) {
        size_t count = 0;
        const char *const *keys = NULL;
        RETURN_IF_FAILED(control_agree(world, planner_ask(planning, &count, &keys)));
        RETURN_IF_FAILED(control_agree(
            world, banyan_directory_get(directory, count, keys, planner_receive, planning)));
    }
    return BANYAN_OK;
}

static banyan_reshard_plan_bytes count_peer_bytes(const banyan_world *world,
                                                  const planner_result *transfers)
{
    banyan_reshard_plan_bytes bytes = {.fetched_again = transfers->fetched_again};
    int rank = banyan_world_rank(world), node = banyan_world_node_of(world, rank);
    for (size_t i = 0; i < transfers->send_count; i++) {
        const banyan_transfer *sent = &transfers->sends[i];
        bool inside = banyan_world_node_of(world, sent->destination_rank) == node;
        *(inside ? &bytes.inside_sent : &bytes.network_sent) += sent->wire_bytes;
        bytes.passed_on += sent->stage > 0 ? sent->wire_bytes : 0;
    }
    for (size_t i = 0; i < transfers->recv_count; i++) {
        const banyan_transfer *recv = &transfers->recvs[i];
        bool inside = banyan_world_node_of(world, recv->source_rank) == node;
        *(recv->source_rank == rank ? &bytes.local
          : inside                  ? &bytes.inside_received
                                    : &bytes.network_received) += recv->wire_bytes;
    }
    return bytes;
}

static banyan_status planner_assemble(const banyan_layout *source, const banyan_layout *destination,
                                      banyan_world *world, const banyan_reshard_options *options,
                                      planner_result *transfers, banyan_reshard_plan **plan)
{
    banyan_reshard_plan *made = calloc(1, sizeof *made);
    if (!made) {
        planner_result_free(transfers);
        return error_no_memory(sizeof *made, "a plan");
    }
    made->rank = banyan_world_rank(world);
    made->timeout = control_timeout_now(world);
    made->world_size = banyan_world_size(world);
    made->max_staging_bytes = options->max_staging_bytes;
    made->checksums = options->checksums;
    made->transfers = *transfers;
    made->bytes = count_peer_bytes(world, transfers);
    banyan_status status = layout_copy(source, NULL, &made->source);
    if (status == BANYAN_OK)
        status = layout_copy(destination, made->transfers.destination_dtypes, &made->destination);
    if (status != BANYAN_OK) {
        banyan_reshard_plan_destroy(made);
        return status;
    }
    *plan = made;
    return BANYAN_OK;
}

static banyan_status make_planner(banyan_world *world, const banyan_layout *source,
                                  const banyan_layout *destination,
                                  const banyan_reshard_options *options, int **nodes,
                                  planner **planning)
{
    int ranks = banyan_world_size(world);
    if (banyan_world_node_count(world) > 1) {
        *nodes = alloc_zeroed((size_t)ranks, sizeof **nodes, "the nodes of ranks");
        RETURN_IF_NO_MEMORY(*nodes);
        for (int rank = 0; rank < ranks; rank++)
            (*nodes)[rank] = banyan_world_node_of(world, rank);
    }
    return planner_create(banyan_world_rank(world), ranks, *nodes, source, destination, options,
                          planning);
}

banyan_status banyan_reshard_plan_create(const banyan_layout *source,
                                         const banyan_layout *destination, banyan_world *world,
                                         const banyan_reshard_options *options,
                                         banyan_reshard_plan **plan)
{
    if (!world || !plan)
        return error_set(BANYAN_ERR_INVALID, "a reshard plan without a %s",
                         world ? "place to put it" : "world");
    CONTROL_ENTER_WITHIN(world, CONTROL_TIMEOUT(options, banyan_reshard_options));
    banyan_reshard_options chosen = BANYAN_RESHARD_OPTIONS_INIT;
    banyan_status status =
        options_take(options, "BANYAN_RESHARD_OPTIONS_INIT", &chosen, sizeof chosen);
    RETURN_IF_FAILED(agree_on_options(world, &chosen));

    planner *planning = NULL;
    int *nodes = NULL;
    banyan_directory *directory = NULL;
    planner_result transfers = {0};
    banyan_reshard_plan *made = NULL;
    if (status == BANYAN_OK)
        status = source ? banyan_layout_check_as(source, BANYAN_SOURCE) : BANYAN_OK;
    if (status == BANYAN_OK && destination)
        status = banyan_layout_check_as(destination, BANYAN_DESTINATION);
    if (status == BANYAN_OK)
        status = make_planner(world, source, destination, &chosen, &nodes, &planning);
    status = control_agree(world, status);
    if (status != BANYAN_OK)
        goto destroy_planner;
    status = banyan_directory_open(world, &directory);
    if (status != BANYAN_OK)
        goto destroy_planner;
    status = planner_consult(world, directory, planning);
    banyan_directory_close(directory);
    if (status != BANYAN_OK)
        goto destroy_planner;
    status = control_agree(world, planner_derive(planning, &transfers));
    if (status == BANYAN_ERR_NOT_FOUND)
        status = planner_report_unmatched(world, planning, BANYAN_DESTINATION, status);
    if (status == BANYAN_OK && chosen.require_whole_source) {
        status = control_agree(world, planner_check_whole_source(planning));
        if (status == BANYAN_ERR_INVALID)
            status = planner_report_unmatched(world, planning, BANYAN_SOURCE, status);
    }
    if (status == BANYAN_OK)
        status = agree_on_pairs(world, &transfers);
    if (status == BANYAN_OK)
        status = control_agree(
            world, planner_assemble(source, destination, world, &chosen, &transfers, &made));
    else
        planner_result_free(&transfers);
    if (status == BANYAN_OK)
        *plan = made;
    else
        banyan_reshard_plan_destroy(made);
destroy_planner:
    planner_destroy(planning);
    free(nodes);
    return status;
}

void banyan_reshard_plan_destroy(banyan_reshard_plan *plan)
{
    if (!plan)
        return;
    banyan_reshard_plan_release(plan);
    planner_result_free(&plan->transfers);
    banyan_layout_destroy(plan->source);
    banyan_layout_destroy(plan->destination);
    free(plan);
}

void banyan_reshard_plan_release(banyan_reshard_plan *plan)
{
    execution_destroy(plan->execution);
    plan->execution = NULL;
}

size_t banyan_reshard_plan_send_count(const banyan_reshard_plan *plan)
{
    return plan->transfers.send_count;
}

const banyan_transfer *banyan_reshard_plan_send(const banyan_reshard_plan *plan, size_t i)
{
    return i < plan->transfers.send_count ? &plan->transfers.sends[i] : NULL;
}

size_t banyan_reshard_plan_recv_count(const banyan_reshard_plan *plan)
{
    return plan->transfers.recv_count;
}

const banyan_transfer *banyan_reshard_plan_recv(const banyan_reshard_plan *plan, size_t i)
{
    return i < plan->transfers.recv_count ? &plan->transfers.recvs[i] : NULL;
}

banyan_reshard_plan_bytes banyan_reshard_plan_count_bytes(const banyan_reshard_plan *plan)
{
    return plan->bytes;
}

size_t banyan_reshard_plan_tensor_count(const banyan_reshard_plan *plan)
{
    return banyan_layout_tensor_count(plan->destination);
}

const banyan_local_tensor *banyan_reshard_plan_tensor(const banyan_reshard_plan *plan, size_t i)
{
    return i < banyan_layout_tensor_count(plan->destination)
               ? banyan_layout_tensor(plan->destination, i)
               : NULL;
}
