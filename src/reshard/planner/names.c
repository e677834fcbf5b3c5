/* Each rank sends each of its unmatched names to a rank chosen by the name's hash, which counts it
 * once. All ranks gather the first few names of every counting rank, agree on the first of them
 * all, and search their own tensors for the most similar name. The rank with the nearest name
 * reports it. */
#include "reshard/planner/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/containers.h"
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

static void write_name(bytes_writer *message, const char *name)
{
    bytes_write_blob(message, name, strlen(name) + 1);
}

/* Read a name, which the message keeps; NULL when there is none. */
static const char *read_name(bytes_reader *message)
{
    size_t bytes;
    const char *name = bytes_read_blob(message, &bytes);
    return name && bytes > 0 && name[bytes - 1] == '\0' ? name : NULL;
}

/* The rank that counts a name. */
typedef struct name_owner {
    int rank;
    const char *name;
} name_owner;

static int compare_owners(const void *left, const void *right)
{
    const name_owner *a = left, *b = right;
    return COMPARE(a->rank, b->rank);
}

/* Make a message for each rank that counts some of this rank's unmatched names. */
static banyan_status make_messages(banyan_world *world, const planner *planning, banyan_side side,
                                   control_message **made, size_t *made_count)
{
    ARRAY(control_message) messages = {0};
    const char **unmatched = NULL;
    size_t count = 0;
    RETURN_IF_FAILED(planner_list_unmatched(planning, side, &unmatched, &count));
    name_owner *owners = alloc_zeroed(count, sizeof *owners, "a plan's names");
    bool ok = owners != NULL;
    for (size_t i = 0; i < count && ok; i++)
        owners[i] = (name_owner){
            (int)(hash_string(unmatched[i], 0) % (uint64_t)banyan_world_size(world)), unmatched[i]};
    if (ok)
        sort_elements(owners, count, sizeof *owners, compare_owners);
    for (size_t i = 0; i < count && ok;) {
        bytes_writer message = {0};
        int rank = owners[i].rank;
        for (; i < count && owners[i].rank == rank; i++)
            write_name(&message, owners[i].name);
        ok = !message.failed &&
             array_push(&messages, (control_message){rank, message.data, message.count});
        if (!ok)
            bytes_writer_free(&message);
    }
    free(owners);
    free(unmatched);
    *made = messages.data;
    *made_count = messages.count;
    return ok ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

/* Concatenate the bytes of every rank; `*all` is to be freed. Collective. */
static banyan_status planner_names_gather(banyan_world *world, const bytes_writer *mine, char **all,
                                          bytes_reader *reader)
{
    size_t ranks = (size_t)banyan_world_size(world), total = 0;
    size_t *bytes = alloc_zeroed(ranks, sizeof *bytes, "names");
    void *gathered = NULL;
    banyan_status status =
        control_agree(world, mine->failed || !bytes ? BANYAN_ERR_NO_MEMORY : BANYAN_OK);
    if (status == BANYAN_OK)
        status = banyan_world_allgatherv(world, mine->data, mine->count, &gathered, bytes);
    for (size_t rank = 0; rank < ranks && status == BANYAN_OK; rank++)
        total += bytes[rank];
    free(bytes);
    *all = gathered;
    *reader = bytes_reader_of(gathered, total);
    return status;
}

/* Choose the first names that are unmatched anywhere, and count them all. `text` holds the names
 * and is to be freed. Collective. */
static banyan_status choose_names(banyan_world *world, const planner *planning, banyan_side side,
                                  name_list *chosen, uint64_t *count, char **text)
{
    size_t sent_count = 0, received_count = 0;
    control_message *sent = NULL, *received = NULL;
    banyan_status status =
        control_agree(world, make_messages(world, planning, side, &sent, &sent_count));
    if (status == BANYAN_OK)
        status = control_exchange(world, sent, sent_count, "names that have no partner", &received,
                                  &received_count);
    control_messages_free(sent, sent_count);
    RETURN_IF_FAILED(status);
    name_list counted = {0};
    bytes_writer first = {0};
    const char *name;
    bool ok = true;
    for (size_t i = 0; i < received_count; i++) {
        bytes_reader message = bytes_reader_of(received[i].data, received[i].bytes);
        while (ok && (name = read_name(&message)))
            ok = array_push(&counted, name);
    }
    sort_names(&counted);
    bytes_write_u64(&first, counted.count);
    for (size_t i = 0; i < counted.count && i < PLAN_NAMES_LISTED; i++)
        write_name(&first, counted.data[i]);
    write_name(&first, "");
    first.failed |= !ok;
    array_free(&counted);
    control_messages_free(received, received_count);

    bytes_reader all;
    status = planner_names_gather(world, &first, text, &all);
    bytes_writer_free(&first);
    RETURN_IF_FAILED(status);
    for (*count = 0; all.left > 0 && !all.failed && ok;) {
        *count += bytes_read_u64(&all);
        while (ok && (name = read_name(&all)) && name[0])
            ok = array_push(chosen, name);
    }
    sort_names(chosen);
    if (chosen->count > PLAN_NAMES_LISTED)
        chosen->count = PLAN_NAMES_LISTED;
    return control_agree(world, ok ? BANYAN_OK : BANYAN_ERR_NO_MEMORY);
}

/* Find for each name the nearest one of the other side, or an empty text. `text` holds the names
 * and is to be freed. Collective. */
static banyan_status find_nearest(banyan_world *world, const planner *planning, banyan_side side,
                                  const name_list *chosen, name_list *nearest, char **text)
{
    banyan_side other = side == BANYAN_SOURCE ? BANYAN_DESTINATION : BANYAN_SOURCE;
    uint64_t rank = (uint64_t)banyan_world_rank(world);
    size_t count = chosen->count;
    uint64_t *offers = alloc_zeroed(2 * count, sizeof *offers, "a plan's names"), *best;
    bool ok = array_reserve(nearest, count + 1) && offers;
    banyan_status status = control_agree(world, ok ? BANYAN_OK : BANYAN_ERR_NO_MEMORY);
    if (status != BANYAN_OK) {
        free(offers);
        return status;
    }
    best = offers + count;
    for (size_t i = 0; i < count; i++) {
        int limit = names_limit(chosen->data[i]), distance = limit;
        nearest->data[i] = planner_nearest(planning, other, chosen->data[i], limit, &distance);
        if (nearest->data[i])
            offers[i] = (uint64_t)(limit - distance) << 32 | (UINT32_MAX - rank);
        best[i] = offers[i];
    }
    status = control_max_each(world, best, count);
    bytes_writer mine = {0};
    for (size_t i = 0; i < count && status == BANYAN_OK; i++) {
        if (nearest->data[i] && offers[i] == best[i]) {
            bytes_write_u64(&mine, i);
            write_name(&mine, nearest->data[i]);
        }
        nearest->data[i] = "";
    }
    free(offers);
    bytes_reader all;
    if (status == BANYAN_OK)
        status = planner_names_gather(world, &mine, text, &all);
    bytes_writer_free(&mine);
    RETURN_IF_FAILED(status);
    while (all.left > 0 && !all.failed) {
        uint64_t i = bytes_read_u64(&all);
        const char *name = read_name(&all);
        if (name && i < count)
            nearest->data[i] = name;
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

banyan_status planner_report_unmatched(banyan_world *world, const planner *planning,
                                       banyan_side side, banyan_status failed)
{
    char *cause = strdup(banyan_last_error()), *texts[2] = {NULL, NULL};
    name_list chosen = {0}, nearest = {0};
    uint64_t count = 0;
    banyan_status status =
        control_agree(world, cause ? BANYAN_OK : error_no_memory(1, "a plan's names"));
    if (status == BANYAN_OK)
        status = choose_names(world, planning, side, &chosen, &count, &texts[0]);
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
