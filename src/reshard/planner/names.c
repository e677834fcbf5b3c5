/* Each rank sends each of its unmatched names to a rank chosen by the name's hash, which counts it
 * once. All ranks gather the first few names of every counting rank, agree on the first of them
 * all, and search their own tensors for the most similar name. The rank with the nearest name
 * reports it. */
#include "reshard/planner/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/containers/array.h"
#include "core/containers/bytes.h"
#include "core/containers/map.h"
#include "core/error.h"
#include "core/log.h"
#include "core/nearest.h"
#include "world/control.h"

#define MESSAGE_BYTES 3500

typedef ARRAY(const char *) name_list;

static int compare_names(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static void sort_names(name_list *list)
{
    size_t kept = 0;
    array_sort(list, compare_names);
    for (size_t i = 0; i < list->count; i++)
        if (kept == 0 || strcmp(list->data[kept - 1], list->data[i]) != 0)
            list->data[kept++] = list->data[i];
    list->count = kept;
}

/* Append names, each with its final 0, one after another. The end of a peer's message may lack its
 * 0. */
static bool append_names(name_list *list, const char *data, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        size_t length = strnlen(data + at, bytes - at);
        if (at + length == bytes)
            return true;
        if (!array_push(list, data + at))
            return false;
        at += length + 1;
    }
    return true;
}

static banyan_status make_messages(banyan_world *world, const char **texts, size_t count,
                                   control_message **made, size_t *made_count)
{
    int ranks = banyan_world_size(world);
    ARRAY(control_message) messages = {0};
    map by_rank = {0};
    ARRAY(int) keys = {0};
    bool ok = array_reserve(&messages, count) && array_reserve(&keys, count);
    for (size_t i = 0; i < count && ok; i++) {
        int rank = (int)(hash_string(texts[i], 0) % (uint64_t)ranks);
        uint64_t at;
        if (!map_get(&by_rank, &rank, sizeof rank, &at)) {
            at = messages.count;
            keys.data[keys.count++] = rank;
            messages.data[messages.count++] = (control_message){rank, NULL, 0};
            ok = map_put(&by_rank, &keys.data[at], sizeof rank, at);
        }
        control_message *to = &messages.data[at];
        size_t bytes = strlen(texts[i]) + 1;
        char *grown = ok ? realloc(to->data, to->bytes + bytes) : NULL;
        ok = grown != NULL;
        if (ok) {
            memcpy(grown + to->bytes, texts[i], bytes);
            to->data = grown;
            to->bytes += bytes;
        }
    }
    map_free(&by_rank);
    array_free(&keys);
    if (!ok) {
        control_messages_free(messages.data, messages.count);
        return error_no_memory(count, "a plan's names");
    }
    *made = messages.data;
    *made_count = messages.count;
    return BANYAN_OK;
}

/* Concatenate the bytes of every rank; `*all` is to be freed. Collective. */
static banyan_status planner_names_gather(banyan_world *world, const bytes_writer *mine, char **all,
                                          size_t *all_bytes)
{
    size_t ranks = (size_t)banyan_world_size(world), total = 0;
    size_t *bytes = calloc(ranks, sizeof *bytes);
    banyan_status status = bytes ? BANYAN_OK : error_no_memory(ranks * sizeof *bytes, "names");
    if (mine->failed)
        status = BANYAN_ERR_NO_MEMORY;
    status = control_agree(world, status);
    void *gathered = NULL;
    if (status == BANYAN_OK)
        status = banyan_world_allgatherv(world, mine->data, mine->count, &gathered, bytes);
    for (size_t rank = 0; rank < ranks && status == BANYAN_OK; rank++)
        total += bytes[rank];
    free(bytes);
    *all = gathered;
    *all_bytes = total;
    return status;
}

/* Choose the first names that are unmatched anywhere, and count them all. `text` holds the names
 * and is to be freed. Collective. */
static banyan_status choose_names(banyan_world *world, const planner *planning, banyan_side side,
                                  name_list *chosen, uint64_t *count, char **text)
{
    const char **own = NULL;
    size_t own_count = 0, sent_count = 0, received_count = 0, bytes;
    control_message *sent = NULL, *received = NULL;
    name_list counted = {0};
    bytes_writer first = {0};
    banyan_status status = planner_list_unmatched(planning, side, &own, &own_count);
    if (status == BANYAN_OK)
        status = make_messages(world, own, own_count, &sent, &sent_count);
    free(own);
    status = control_agree(world, status);
    if (status == BANYAN_OK)
        status = control_exchange(world, sent, sent_count, "names that have no partner", &received,
                                  &received_count);
    control_messages_free(sent, sent_count);
    if (status != BANYAN_OK)
        return status;
    bool ok = true;
    for (size_t i = 0; i < received_count && ok; i++)
        ok = append_names(&counted, received[i].data, received[i].bytes);
    sort_names(&counted);
    uint64_t mine = counted.count;
    bytes_write_u64(&first, mine);
    for (size_t i = 0; i < counted.count && i < PLAN_NAMES_LISTED; i++)
        bytes_write(&first, counted.data[i], strlen(counted.data[i]) + 1);
    first.failed = first.failed || !ok;
    array_free(&counted);
    control_messages_free(received, received_count);

    size_t ranks = (size_t)banyan_world_size(world);
    size_t *each = calloc(ranks, sizeof *each);
    void *all = NULL;
    status = control_agree(world, first.failed || !each ? BANYAN_ERR_NO_MEMORY : BANYAN_OK);
    if (status == BANYAN_OK)
        status = banyan_world_allgatherv(world, first.data, first.count, &all, each);
    bytes_writer_free(&first);
    *count = 0;
    ok = true;
    bytes = 0;
    for (size_t rank = 0; rank < ranks && status == BANYAN_OK && ok; rank++) {
        bytes_reader part = bytes_reader_of((const char *)all + bytes, each[rank]);
        *count += bytes_read_u64(&part);
        ok = append_names(chosen, (const char *)part.data, part.left);
        bytes += each[rank];
    }
    free(each);
    *text = all;
    sort_names(chosen);
    if (chosen->count > PLAN_NAMES_LISTED)
        chosen->count = PLAN_NAMES_LISTED;
    return status != BANYAN_OK ? status
                               : control_agree(world, ok ? BANYAN_OK : BANYAN_ERR_NO_MEMORY);
}

/* Find for each name the nearest one of the other side, or an empty text. `text` holds the names
 * and is to be freed. Collective. */
static banyan_status find_nearest(banyan_world *world, const planner *planning, banyan_side side,
                                  const name_list *chosen, name_list *nearest, char **text)
{
    banyan_side other = side == BANYAN_SOURCE ? BANYAN_DESTINATION : BANYAN_SOURCE;
    uint64_t rank = (uint64_t)banyan_world_rank(world);
    bytes_writer mine = {0};
    size_t bytes;
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < chosen->count && status == BANYAN_OK; i++) {
        int limit = names_limit(chosen->data[i]), distance = limit;
        const char *found = planner_nearest(planning, other, chosen->data[i], limit, &distance);
        uint64_t offer = found ? (uint64_t)(limit - distance) << 32 | (UINT32_MAX - rank) : 0, best;
        status = control_max(world, offer, &best);
        if (status == BANYAN_OK && found && offer == best) {
            bytes_write_u32(&mine, (uint32_t)i);
            bytes_write_blob(&mine, found, strlen(found) + 1);
        }
    }
    if (status == BANYAN_OK)
        status = planner_names_gather(world, &mine, text, &bytes);
    bytes_writer_free(&mine);
    RETURN_IF_FAILED(status);
    bytes_reader reader = bytes_reader_of(*text, bytes);
    for (size_t i = 0; i < chosen->count; i++)
        nearest->data[i] = "";
    while (reader.left > 0 && !reader.failed) {
        size_t length;
        uint32_t i = bytes_read_u32(&reader);
        const char *found = bytes_read_blob(&reader, &length);
        if (found && length > 0 && found[length - 1] == '\0' && i < chosen->count)
            nearest->data[i] = found;
    }
    return BANYAN_OK;
}

/* The message holds the first names; rank 0 logs the others. */
static banyan_status planner_names_message(banyan_world *world, banyan_status failed,
                                           const char *cause, banyan_side side,
                                           const name_list *chosen, const name_list *nearest,
                                           uint64_t count)
{
    char text[MESSAGE_BYTES];
    const char *other = side == BANYAN_SOURCE ? "destination" : "source";
    size_t used = 0, i = 0;
    text[0] = '\0';
    for (; i < chosen->count && used < sizeof text - 700; i++) {
        const char *near = nearest->data[i];
        used += (size_t)snprintf(text + used, sizeof text - used, "%s\"%.256s\"", i > 0 ? ", " : "",
                                 chosen->data[i]);
        if (near[0])
            used += (size_t)snprintf(text + used, sizeof text - used, " (the %s has \"%.256s\")",
                                     other, near);
    }
    char more[96] = "";
    if (count > i)
        snprintf(more, sizeof more, " and %" PRIu64 " more; the log of rank 0 has %s%zu of them",
                 count - i, count > chosen->count ? "the first " : "all ", chosen->count - i);
    for (; i < chosen->count && banyan_world_rank(world) == 0; i++)
        log_warn("no %s has the %s's tensor \"%s\"%s%s%s", other,
                 side == BANYAN_SOURCE ? "source" : "destination", chosen->data[i],
                 nearest->data[i][0] ? "; the nearest name there is \"" : "", nearest->data[i],
                 nearest->data[i][0] ? "\"" : "");
    return error_set(failed, "%s. %s %" PRIu64 " tensor%s of the %s: %s%s", cause,
                     side == BANYAN_SOURCE ? "No destination takes" : "No source has", count,
                     count == 1 ? "" : "s", side == BANYAN_SOURCE ? "source" : "destination", text,
                     more);
}

banyan_status plan_report_unmatched(banyan_world *world, const planner *planning, banyan_side side,
                                    banyan_status failed)
{
    char *cause = strdup(banyan_last_error()), *texts[2] = {NULL, NULL};
    name_list chosen = {0}, nearest = {0};
    uint64_t count = 0;
    banyan_status status =
        control_agree(world, cause ? BANYAN_OK : error_no_memory(1, "a plan's names"));
    if (status == BANYAN_OK)
        status = choose_names(world, planning, side, &chosen, &count, &texts[0]);
    if (status == BANYAN_OK)
        status = control_agree(
            world, array_reserve(&nearest, chosen.count + 1) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY);
    if (status == BANYAN_OK)
        status = find_nearest(world, planning, side, &chosen, &nearest, &texts[1]);
    if (status == BANYAN_OK)
        status = count > 0
                     ? planner_names_message(world, failed, cause, side, &chosen, &nearest, count)
                     : error_set(failed, "%s", cause);
    free(cause);
    free(texts[0]);
    free(texts[1]);
    array_free(&chosen);
    array_free(&nearest);
    return status;
}
