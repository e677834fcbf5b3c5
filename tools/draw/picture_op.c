#include "draw/picture.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "draw/svg.h"

const picture_family picture_families[] = {
    {"move", "#2f6db5", false},   {"reduce", "#2e8b57", false}, {"packets", "#7a4fb5", false},
    {"switch", "#0f8b8d", false}, {"signal", "#d07b14", false}, {"wait", "#9aa3b2", true},
    {"sync", "#c9ced8", true},    {"launch", "#e1e4ea", true},  {NULL, NULL, false}};

enum { MOVE, REDUCE, PACKETS, SWITCH, SIGNAL, WAIT, SYNC, LAUNCH };

/* The operands of an operation that are packets: data come first, then packets. */
enum { ALL = 0, BEHIND_FIRST = 1, NONE = 99 };

static const struct kind {
    const char *name;
    int family;
    int packet_sources, packet_destinations; /* the first one that is packets */
} kinds[] = {
    {"nop", SYNC, NONE, NONE},
    {"copy", MOVE, NONE, NONE},
    {"get", MOVE, NONE, NONE},
    {"put", MOVE, NONE, NONE},
    {"pws", MOVE, NONE, NONE},
    {"pwsf", MOVE, NONE, NONE},
    {"re", REDUCE, NONE, NONE},
    {"res", REDUCE, NONE, NONE},
    {"rre", REDUCE, NONE, NONE},
    {"rres", REDUCE, NONE, NONE},
    {"cpkt", PACKETS, NONE, ALL},
    {"upkt", PACKETS, ALL, NONE},
    {"ppkt", PACKETS, NONE, ALL},
    {"rppkt", PACKETS, ALL, ALL},
    {"repkt", PACKETS, BEHIND_FIRST, NONE},
    {"recpkt", PACKETS, BEHIND_FIRST, BEHIND_FIRST},
    {"respkt", PACKETS, BEHIND_FIRST, BEHIND_FIRST},
    {"recspkt", PACKETS, BEHIND_FIRST, BEHIND_FIRST},
    {"gstore", SWITCH, NONE, NONE},
    {"gstorepkt", SWITCH, ALL, ALL},
    {"glre", SWITCH, NONE, NONE},
    {"glres", SWITCH, NONE, NONE},
    {"signal", SIGNAL, NONE, NONE},
    {"rlxsignal", SIGNAL, NONE, NONE},
    {"sem_release", SIGNAL, NONE, NONE},
    {"wait", WAIT, NONE, NONE},
    {"rlxwait", WAIT, NONE, NONE},
    {"sem_acquire", WAIT, NONE, NONE},
    {"flush", WAIT, NONE, NONE},
    {"barrier", WAIT, NONE, NONE},
    {"launch", LAUNCH, NONE, NONE},
};

static const struct kind *picture_op_find_kind(const char *name)
{
    size_t count = sizeof kinds / sizeof kinds[0];
    for (size_t i = 0; i < count; i++) {
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    }
    return &kinds[count - 1];
}

static const json_t *list_at(const json_t *object, const char *key, int index)
{
    return json_array_get(json_object_get(object, key), (size_t)index);
}

static const char *picture_op_text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static int picture_op_number_of(const json_t *object, const char *key)
{
    return (int)picture_number(json_object_get(object, key));
}

static const json_t *picture_op_rank_of(const picture *of, int rank)
{
    return list_at(of->root, "gpus", rank);
}

const json_t *picture_block_of(const picture *of, const picture_step *step)
{
    return list_at(picture_op_rank_of(of, step->rank), "threadblocks", step->thread_block);
}

const json_t *picture_op_of(const picture *of, const picture_step *step)
{
    if (step->operation < 0)
        return NULL;
    const json_t *op = list_at(picture_block_of(of, step), "ops", step->operation);
    return step->loop_operation < 0 ? op : list_at(op, "ops", step->loop_operation);
}

const char *picture_op_name(const picture *of, const picture_step *step)
{
    const json_t *op = picture_op_of(of, step);
    return op ? picture_op_text_of(op, "name") : "launch";
}

const picture_family *picture_op_family(const picture *of, const picture_step *step)
{
    return &picture_families[picture_op_find_kind(picture_op_name(of, step))->family];
}

/* The index-th of `ids` over all entries of the type. */
static int own_number(const json_t *block, const char *list, const char *type_key, const char *type,
                      const char *ids, int index)
{
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(block, list), i, entry)
    {
        if (strcmp(picture_op_text_of(entry, type_key), type) != 0)
            continue;
        int count = (int)json_array_size(json_object_get(entry, ids));
        if (index < count)
            return (int)picture_number(list_at(entry, ids, index));
        index -= count;
    }
    return -1;
}

/* The rank's k-th channel of a type, in `key` of the entry that has it. */
static const json_t *rank_channel(const picture *of, int rank, const char *type, const char *key,
                                  int channel, const json_t **entry)
{
    size_t i;
    json_t *at;
    json_array_foreach(json_object_get(picture_op_rank_of(of, rank), "channels"), i, at)
    {
        if (strcmp(picture_op_text_of(at, "channel_type"), type) != 0)
            continue;
        int count = (int)json_array_size(json_object_get(at, key));
        *entry = at;
        if (channel < count)
            return list_at(at, key, channel);
        channel -= count;
    }
    return NULL;
}

int picture_channel_peer(const picture *of, int rank, const char *type, int channel)
{
    const json_t *entry, *peer = rank_channel(of, rank, type, "connected_to", channel, &entry);
    return peer ? (int)picture_number(peer) : -1;
}

int picture_channel_of(const picture *of, const picture_step *step, size_t index)
{
    const json_t *op = picture_op_of(of, step);
    int number = (int)picture_number(list_at(op, "channel_ids", (int)index));
    return own_number(picture_block_of(of, step), "channels", "channel_type",
                      picture_op_text_of(op, "channel_type"), "channel_ids", number);
}

static const char *operands_key(bool sources)
{
    return sources ? "src_buff" : "dst_buff";
}

size_t picture_operand_count(const json_t *op, bool sources)
{
    return json_array_size(json_object_get(op, operands_key(sources)));
}

static void find_remote(const picture *of, const picture_step *step, const json_t *op,
                        const json_t *operand, picture_operand *found)
{
    int id = own_number(picture_block_of(of, step), "remote_buffer_refs", "access_channel_type",
                        picture_op_text_of(op, "channel_type"), "remote_buffer_ids",
                        picture_op_number_of(operand, "buffer_id"));
    const json_t *remote = list_at(picture_op_rank_of(of, step->rank), "remote_buffers", id);
    found->rank = picture_op_number_of(remote, "rank");
    found->buffer = picture_op_text_of(remote, "type")[0];
}

static void find_group(const picture *of, const picture_step *step, const json_t *operand,
                       picture_operand *found)
{
    int id = own_number(picture_block_of(of, step), "channels", "channel_type", "switch",
                        "channel_ids", picture_op_number_of(operand, "switch_channel_id"));
    const json_t *entry = NULL;
    const json_t *group = rank_channel(of, step->rank, "switch", "rank_groups", id, &entry);
    found->ranks = json_object_get(group, "ranks");
    found->buffer = picture_op_text_of(entry, "buffer_type")[0];
}

picture_operand picture_operand_at(const picture *of, const picture_step *step, bool sources,
                                   size_t index)
{
    const json_t *op = picture_op_of(of, step);
    const json_t *operand = list_at(op, operands_key(sources), (int)index);
    const struct kind *kind = picture_op_find_kind(picture_op_text_of(op, "name"));
    int first = sources ? kind->packet_sources : kind->packet_destinations;
    picture_operand found = {
        .rank = step->rank,
        .buffer = picture_op_text_of(operand, "type")[0],
        .index = picture_number(json_object_get(operand, "index")),
        .size = picture_number(json_object_get(operand, "size")),
        .packets = (int)index >= first,
    };
    if (json_object_get(operand, "switch_channel_id"))
        find_group(of, step, operand, &found);
    else if (!found.buffer)
        find_remote(of, step, op, operand, &found);
    return found;
}

static void print_range(FILE *to, const picture_operand *operand)
{
    if (operand->size == 1)
        fprintf(to, "[%" PRIu64 "]", operand->index);
    else
        fprintf(to, "[%" PRIu64 "..%" PRIu64 ")", operand->index, operand->index + operand->size);
}

static void print_numbers(FILE *to, const json_t *numbers)
{
    size_t i;
    json_t *number;
    json_array_foreach(numbers, i, number)
        fprintf(to, "%s%d", i > 0 ? ", " : "", (int)picture_number(number));
}

static const char *picture_op_buffer_word(char buffer)
{
    return buffer == 'i' ? "input" : buffer == 'o' ? "output" : "scratch";
}

static void print_operands(FILE *to, const picture *of, const picture_step *step, bool sources)
{
    size_t count = picture_operand_count(picture_op_of(of, step), sources);
    for (size_t i = 0; i < count; i++) {
        picture_operand operand = picture_operand_at(of, step, sources, i);
        fprintf(to, "%s%s",
                i > 0     ? ", "
                : sources ? "from "
                          : "to ",
                picture_op_buffer_word(operand.buffer));
        print_range(to, &operand);
        if (!operand.ranks && operand.rank != step->rank)
            fprintf(to, " of rank %d", operand.rank);
        if (operand.ranks) {
            fputs(" of ranks ", to);
            print_numbers(to, operand.ranks);
        }
    }
    fputs(count > 0 ? "\n" : "", to);
}

/* Operations without operands show the ranks that they reach. */
static void print_channels(FILE *to, const picture *of, const picture_step *step)
{
    const json_t *op = picture_op_of(of, step);
    const char *type = picture_op_text_of(op, "channel_type");
    size_t count = json_array_size(json_object_get(op, "channel_ids"));
    for (size_t i = 0; i < count; i++) {
        int peer = picture_channel_peer(of, step->rank, type, picture_channel_of(of, step, i));
        if (i == 0)
            fprintf(to, "%s channel: rank %d", type, peer);
        else
            fprintf(to, ", %d", peer);
    }
    fputs(count > 0 ? "\n" : "", to);
}

void picture_op_print_about(FILE *to, const picture *of, const picture_step *step)
{
    const json_t *op = picture_op_of(of, step);
    if (!op)
        return;
    print_operands(to, of, step, true);
    print_operands(to, of, step, false);
    if (picture_operand_count(op, true) == 0)
        print_channels(to, of, step);
    if (json_object_get(op, "semaphore_ids")) {
        fputs("semaphore ", to);
        print_numbers(to, json_object_get(op, "semaphore_ids"));
        fputc('\n', to);
    }
    if (json_object_get(op, "barrier_id"))
        fprintf(to, "barrier %d\n", picture_op_number_of(op, "barrier_id"));
    if (json_object_get(op, "reduce_op"))
        fprintf(to, "reduced by %s\n", picture_op_text_of(op, "reduce_op"));
}

/* "i0", "s4-7@2": shorter than elsewhere, for blocks that are narrow. */
static void print_chunks(FILE *to, const picture_step *step, const picture_operand *operand)
{
    fprintf(to, "%c%" PRIu64, operand->buffer, operand->index);
    if (operand->size > 1)
        fprintf(to, "–%" PRIu64, operand->index + operand->size - 1);
    if (operand->ranks)
        fputs("@*", to);
    else if (operand->rank != step->rank)
        fprintf(to, "@%d", operand->rank);
}

static void print_side(FILE *to, const picture *of, const picture_step *step, bool sources)
{
    size_t count = picture_operand_count(picture_op_of(of, step), sources);
    picture_operand before = {0};
    for (size_t i = 0; i < count; i++) {
        picture_operand operand = picture_operand_at(of, step, sources, i);
        bool again = i > 0 && operand.rank == before.rank && operand.ranks == before.ranks &&
                     operand.buffer == before.buffer && operand.index == before.index &&
                     operand.size == before.size;
        before = operand;
        if (again)
            continue;
        fputs(i > 0 ? "," : "", to);
        print_chunks(to, step, &operand);
    }
}

static void print_peers(FILE *to, const picture *of, const picture_step *step)
{
    const json_t *op = picture_op_of(of, step);
    const char *type = json_string_value(json_object_get(op, "channel_type"));
    size_t count = json_array_size(json_object_get(op, "channel_ids"));
    bool waits = strstr(picture_op_name(of, step), "wait") != NULL;
    for (size_t i = 0; type && i < count; i++)
        fprintf(to, "%s%d",
                i > 0   ? ","
                : waits ? "← "
                        : "→ ",
                picture_channel_peer(of, step->rank, type, picture_channel_of(of, step, i)));
}

char *picture_label_detail(const picture *of, const picture_step *step, double room,
                           double font_size)
{
    const json_t *op = picture_op_of(of, step);
    for (int shorter = 0; shorter < 2; shorter++) {
        char *text = NULL;
        size_t bytes;
        FILE *to = open_memstream(&text, &bytes);
        if (!to)
            return NULL;
        if (picture_operand_count(op, true) == 0) {
            print_peers(to, of, step);
        } else {
            if (shorter == 0)
                print_side(to, of, step, true);
            fputs("→", to);
            print_side(to, of, step, false);
        }
        fclose(to);
        if (text && svg_text_width(text, font_size) <= room)
            return text;
        free(text);
    }
    return NULL;
}
