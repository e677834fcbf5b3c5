#include "copy/match/match.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "copy/strided/strided.h"
#include "core/containers.h"
#include "world/control.h"

/* A rank writes to each of its partners a list of its sends to it and a list of its receives from
 * it. Each is a count and as many entries in the common order. */

/* One side of a task as the partner described it. */
typedef struct peer_side {
    task_key key;
    uint64_t elems, elem_bytes;
    strided_format format;
    const void *note;
    size_t note_bytes;
} peer_side;

#define PEER_SIDE_BYTES_MIN (4 * sizeof(uint64_t) + 2 * sizeof(uint32_t))

typedef struct peer_list {
    peer_side *sides;
    size_t count;
} peer_list;

/* One direction: this rank's operations, without those to itself, in the common order. */
typedef struct match_side {
    bool is_send;
    const banyan_copy_op *ops;
    task_key *keys;
    size_t count;
    copy_match *matches; /* one per key */
} match_side;

typedef struct matcher {
    banyan_world *world;
    const char *who;
    int rank;
    copy_note_fn note_fn;
    void *note_context;
    match_side send, recv;
    control_message *sent, *received;
    size_t sent_count, received_count;
} matcher;

/* Messages that notes point into. */
typedef struct match_storage {
    control_message *messages;
    size_t count;
} match_storage;

static banyan_status side_open(match_side *side, bool is_send, const banyan_copy_op *ops,
                               size_t count, int rank)
{
    *side = (match_side){.is_send = is_send, .ops = ops};
    side->keys = malloc((count + 1) * sizeof *side->keys);
    side->matches = malloc((count + 1) * sizeof *side->matches);
    if (!side->keys || !side->matches)
        return error_no_memory(count * (sizeof *side->keys + sizeof *side->matches),
                               "matching a batch");
    side->count = task_keys_sort(ops, count, -1, rank, side->keys);
    return BANYAN_OK;
}

static size_t first_of_peer(const match_side *side, int peer)
{
    return BISECT(i, 0, side->count, side->keys[i].peer < peer);
}

/* Return the next partner above `after`; -1 when there is none. */
static int next_partner(const matcher *match, int after)
{
    size_t i = first_of_peer(&match->send, after + 1), j = first_of_peer(&match->recv, after + 1);
    int a = i < match->send.count ? match->send.keys[i].peer : -1;
    int b = j < match->recv.count ? match->recv.keys[j].peer : -1;
    return a < 0 || (b >= 0 && b < a) ? b : a;
}

static banyan_status write_entry(const matcher *match, const match_side *side, size_t i,
                                 bytes_writer *message)
{
    const banyan_copy_op *op = &side->ops[side->keys[i].op];
    strided_view view;
    RETURN_IF_FAILED(copy_op_view(op, side->is_send, &view));
    bytes_write_u64(message, op->task_id);
    bytes_write_u32(message, op->part);
    bytes_write_u64(message, view.elems);
    bytes_write_u64(message, view.elem_bytes);
    bytes_write_u32(message, (uint32_t)view.format);
    bytes_writer note = {0};
    banyan_status status = BANYAN_OK;
    if (match->note_fn)
        status = match->note_fn(match->note_context, op, side->is_send, &note);
    bytes_write_blob(message, note.data, note.count);
    message->failed |= note.failed;
    bytes_writer_free(&note);
    return status;
}

static banyan_status write_side(const matcher *match, const match_side *side, int peer,
                                bytes_writer *message)
{
    size_t first = first_of_peer(side, peer), behind = first_of_peer(side, peer + 1);
    bytes_write_u64(message, behind - first);
    for (size_t i = first; i < behind; i++)
        RETURN_IF_FAILED(write_entry(match, side, i, message));
    return BANYAN_OK;
}

static banyan_status match_write_messages(matcher *match)
{
    int partners = 0;
    for (int peer = next_partner(match, -1); peer >= 0; peer = next_partner(match, peer))
        partners++;
    RETURN_IF_NO_MEMORY(match->sent = alloc_zeroed((size_t)partners + 1, sizeof *match->sent,
                                                   "describing a batch"));
    banyan_status status = BANYAN_OK;
    for (int peer = next_partner(match, -1); peer >= 0; peer = next_partner(match, peer)) {
        bytes_writer message = {0};
        if (status == BANYAN_OK)
            status = write_side(match, &match->send, peer, &message);
        if (status == BANYAN_OK)
            status = write_side(match, &match->recv, peer, &message);
        if (status == BANYAN_OK && message.failed)
            status = BANYAN_ERR_NO_MEMORY;
        match->sent[match->sent_count++] = (control_message){peer, message.data, message.count};
    }
    return status;
}

static banyan_status match_malformed(const matcher *match, int peer)
{
    return error_set(BANYAN_ERR_FORMAT,
                     "%s: rank %d got a malformed description of rank %d's batch", match->who,
                     match->rank, peer);
}

static bool is_format(strided_format format, uint64_t elem_bytes)
{
    if (format == STRIDED_BYTES)
        return true;
    if (strided_is_mxfp8(format))
        return format <= STRIDED_SCALES_OCP && elem_bytes == 1;
    return elem_bytes == (format == STRIDED_F32 ? 4 : 2);
}

static banyan_status match_read_list(const matcher *match, int peer, bytes_reader *reader,
                                     peer_list *list)
{
    uint64_t count = bytes_read_u64(reader);
    if (reader->failed || count > reader->left / PEER_SIDE_BYTES_MIN)
        return match_malformed(match, peer);
    list->sides = malloc(((size_t)count + 1) * sizeof *list->sides);
    if (!list->sides)
        return error_no_memory((size_t)count * sizeof *list->sides, "a partner's batch");
    list->count = (size_t)count;
    for (size_t i = 0; i < list->count; i++) {
        peer_side *side = &list->sides[i];
        side->key = (task_key){.peer = peer, .op = i};
        side->key.task_id = bytes_read_u64(reader);
        side->key.part = bytes_read_u32(reader);
        side->elems = bytes_read_u64(reader);
        side->elem_bytes = bytes_read_u64(reader);
        side->format = (strided_format)bytes_read_u32(reader);
        side->note = bytes_read_blob(reader, &side->note_bytes);
        if (reader->failed || !is_format(side->format, side->elem_bytes) ||
            (i > 0 && task_key_compare(&side[-1].key, &side->key) >= 0))
            return match_malformed(match, peer);
    }
    return BANYAN_OK;
}

/* A comparison of both ends: the keys in one range of this rank's with the peer's list. */
typedef struct side_range {
    const match_side *side;
    size_t first, count;
    int peer;
} side_range;

static banyan_status check_same_tasks(const matcher *match, const side_range *range,
                                      const peer_list *list)
{
    const task_key *keys = range->side->keys + range->first;
    task_names own = {0}, theirs = {0};
    size_t i = 0, j = 0;
    while (i < range->count || j < list->count) {
        const task_key *mine = i < range->count ? &keys[i] : NULL;
        const task_key *far = j < list->count ? &list->sides[j].key : NULL;
        int order = !mine ? 1 : !far ? -1 : task_key_compare(mine, far);
        /* Tasks without an id match by number. */
        if (mine && far && mine->task_id == BANYAN_TASK_ID_NONE && far->task_id == mine->task_id)
            order = 0;
        if (order < 0)
            task_names_add(&own, keys[i].task_id, keys[i].part);
        if (order > 0)
            task_names_add(&theirs, list->sides[j].key.task_id, list->sides[j].key.part);
        i += order <= 0;
        j += order >= 0;
    }
    if (own.count == 0 && theirs.count == 0)
        return BANYAN_OK;
    char only_own[64] = "", only_theirs[64] = "";
    if (own.count > 0)
        snprintf(only_own, sizeof only_own, "; only rank %d has task ids ", match->rank);
    if (theirs.count > 0)
        snprintf(only_theirs, sizeof only_theirs, "; only rank %d has task ids ", range->peer);
    return error_set(BANYAN_ERR_MISMATCH,
                     "%s: rank %d %s %zu tensors %s rank %d, which %s %zu%s%s%s%s", match->who,
                     match->rank, range->side->is_send ? "sends" : "expects", range->count,
                     range->side->is_send ? "to" : "from", range->peer,
                     range->side->is_send ? "expects" : "sends it", list->count, only_own,
                     task_names_text(&own), only_theirs, task_names_text(&theirs));
}

static banyan_status check_same_sizes(const matcher *match, const side_range *range,
                                      const peer_list *list)
{
    task_names unequal = {0};
    for (size_t i = 0; i < range->count; i++) {
        const task_key *key = &range->side->keys[range->first + i];
        const peer_side *theirs = &list->sides[i];
        strided_view own;
        RETURN_IF_FAILED(copy_op_view(&range->side->ops[key->op], range->side->is_send, &own));
        strided_view far = {
            .elems = theirs->elems, .elem_bytes = theirs->elem_bytes, .format = theirs->format};
        if (copy_views_fit(&own, &far))
            continue;
        task_names_add(&unequal, key->task_id, key->part);
        task_names_explain(
            &unequal, "%" PRIu64 " elements of %zu bytes here, %" PRIu64 " of %" PRIu64 " there",
            own.elems, own.elem_bytes, theirs->elems, theirs->elem_bytes);
    }
    if (unequal.count == 0)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_MISMATCH,
                     "%s: rank %d %s rank %d tensors of another size than that rank has: task ids "
                     "%s",
                     match->who, match->rank, range->side->is_send ? "sends to" : "expects from",
                     range->peer, task_names_text(&unequal));
}

static banyan_status match_side_with(const matcher *match, const match_side *side, int peer,
                                     const peer_list *list)
{
    side_range range = {side, first_of_peer(side, peer), 0, peer};
    range.count = first_of_peer(side, peer + 1) - range.first;
    RETURN_IF_FAILED(check_same_tasks(match, &range, list));
    RETURN_IF_FAILED(check_same_sizes(match, &range, list));
    for (size_t i = 0; i < range.count; i++) {
        const peer_side *theirs = &list->sides[i];
        side->matches[range.first + i] = (copy_match){
            .op = side->keys[range.first + i].op,
            .peer = peer,
            .bytes = theirs->elems * theirs->elem_bytes,
            .elem_bytes = theirs->elem_bytes,
            .format = theirs->format,
            .note = theirs->note_bytes > 0 ? theirs->note : NULL,
            .note_bytes = theirs->note_bytes,
        };
    }
    return BANYAN_OK;
}

/* Match one peer. `message` NULL: the peer has nothing to do with this rank. */
static banyan_status match_peer(const matcher *match, int peer, const control_message *message)
{
    peer_list sent = {0}, expected = {0};
    banyan_status status = BANYAN_OK;
    if (message) {
        bytes_reader reader = bytes_reader_of(message->data, message->bytes);
        status = match_read_list(match, peer, &reader, &sent);
        if (status == BANYAN_OK)
            status = match_read_list(match, peer, &reader, &expected);
        if (status == BANYAN_OK && reader.left > 0)
            status = match_malformed(match, peer);
    }
    if (status == BANYAN_OK)
        status = match_side_with(match, &match->send, peer, &expected);
    if (status == BANYAN_OK)
        status = match_side_with(match, &match->recv, peer, &sent);
    free(sent.sides);
    free(expected.sides);
    return status;
}

/* Match every rank that is a partner here, or lists this rank as one. */
static banyan_status match_peers(const matcher *match)
{
    size_t received = 0;
    int partner = next_partner(match, -1);
    while (partner >= 0 || received < match->received_count) {
        const control_message *message =
            received < match->received_count ? &match->received[received] : NULL;
        int peer = !message || (partner >= 0 && partner < message->rank) ? partner : message->rank;
        bool wrote = message && message->rank == peer;
        RETURN_IF_FAILED(match_peer(match, peer, wrote ? message : NULL));
        received += wrote;
        if (partner == peer)
            partner = next_partner(match, peer);
    }
    return BANYAN_OK;
}

banyan_status copy_agree(banyan_world *world, banyan_status mine)
{
    error_kept kept = error_keep(mine);
    banyan_status status = control_agree(world, mine);
    return status == BANYAN_OK || mine == BANYAN_OK ? status : error_again(&kept);
}

banyan_status copy_keep_on_all(banyan_world *world, banyan_status mine, void *made,
                               void (*release)(void *context, void *made), void *context,
                               void **kept)
{
    banyan_status status = copy_agree(world, mine);
    if (status == BANYAN_OK)
        *kept = made;
    else if (made)
        release(context, made);
    return status;
}

banyan_status copy_alloc_on_all(banyan_world *world, size_t bytes, const char *what, void **memory)
{
    void *made = calloc(1, bytes);
    banyan_status status = copy_agree(world, made ? BANYAN_OK : error_no_memory(bytes, what));
    if (status == BANYAN_OK)
        *memory = made;
    else
        free(made);
    return status;
}

static banyan_status matches_take(matcher *match, copy_matches *matches)
{
    match_storage *storage = malloc(sizeof *storage);
    if (!storage)
        return error_no_memory(sizeof *storage, "matching a batch");
    *storage = (match_storage){match->received, match->received_count};
    *matches = (copy_matches){match->send.matches, match->send.count, match->recv.matches,
                              match->recv.count, storage};
    match->received = NULL;
    match->received_count = 0;
    match->send.matches = match->recv.matches = NULL;
    return BANYAN_OK;
}

banyan_status copy_match_batch(banyan_world *world, const char *who, const banyan_copy_batch *batch,
                               copy_note_fn note_fn, void *note_context, copy_matches *matches)
{
    matcher match = {.world = world,
                     .who = who,
                     .rank = banyan_world_rank(world),
                     .note_fn = note_fn,
                     .note_context = note_context};
    banyan_status mine = side_open(&match.send, true, batch->sends, batch->send_count, match.rank);
    if (mine == BANYAN_OK)
        mine = side_open(&match.recv, false, batch->recvs, batch->recv_count, match.rank);
    if (mine == BANYAN_OK)
        mine = match_write_messages(&match);
    /* A rank that cannot describe its batch must not make others report an error in theirs. */
    banyan_status status = copy_agree(world, mine);
    copy_matches made = {0};
    if (status == BANYAN_OK)
        status = control_exchange(world, match.sent, match.sent_count, who, &match.received,
                                  &match.received_count);
    if (status == BANYAN_OK) {
        mine = match_peers(&match);
        if (mine == BANYAN_OK)
            mine = matches_take(&match, &made);
        status = copy_agree(world, mine);
    }
    if (status == BANYAN_OK)
        *matches = made;
    else
        copy_matches_free(&made);
    control_messages_free(match.received, match.received_count);
    control_messages_free(match.sent, match.sent_count);
    free(match.send.keys);
    free(match.send.matches);
    free(match.recv.keys);
    free(match.recv.matches);
    return status;
}

void copy_matches_free(copy_matches *matches)
{
    match_storage *storage = matches->storage;
    free(matches->sends);
    free(matches->recvs);
    if (storage)
        control_messages_free(storage->messages, storage->count);
    free(storage);
    *matches = (copy_matches){0};
}

banyan_status banyan_copy_match_batch(banyan_world *world, const char *who,
                                      const banyan_copy_batch *batch)
{
    CONTROL_ENTER(world);
    copy_matches matches;
    RETURN_IF_FAILED(copy_match_batch(world, who, batch, NULL, NULL, &matches));
    copy_matches_free(&matches);
    return BANYAN_OK;
}
