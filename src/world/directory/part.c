#include "world/directory/directory.h"

#include "core/containers.h"

#define OWNER_SEED UINT64_C(0x6469726563746f72)
#define NO_VALUE UINT32_MAX
/* Most bytes of past answers that a part keeps. */
#define KEPT_ANSWER_BYTES (256 * 1024)

/* A put as it is sent: key bytes, value bytes, key, value, holders. The first four together are the
 * record, which identifies the value: equal records are one value. */
struct put {
    const unsigned char *record;
    size_t record_bytes;
    const char *key;
    size_t key_bytes;
    banyan_rank_set holders;
};

#define RECORD_HEAD (2 * sizeof(uint64_t))

struct directory_entry {
    const unsigned char *data;
    uint64_t bytes;
    uint32_t next; /* next under the key */
    rank_list holders;
};

struct key {
    uint32_t first_value;
    uint32_t value_count;
    uint32_t answer_at, answer_bytes; /* in the kept answers; 0 bytes: not kept */
    bool sorted;
};

struct pending_message {
    int owner;
    size_t start, bytes; /* of the encoded put or question */
    size_t index;        /* order of arrival */
};

struct asked {
    int owner;
    const unsigned char *answer; /* start of this key's part of the owner's answer */
    size_t bytes;
};

struct directory_part {
    int rank, world_size;
    uint64_t *seen; /* scratch for sets of ranks */

    bytes_writer put_bytes;
    ARRAY(struct pending_message) puts;

    arena memory; /* holds records and lists of holders */
    hash_map key_index, value_index;
    ARRAY(struct key) keys;
    ARRAY(struct directory_entry) values;
    bytes_writer kept_answers; /* of keys that were asked for since the last put */

    ARRAY(struct asked) asked;
    ARRAY(size_t) asked_order; /* keys by owner, in the order sent */
};

static int owner_of(const void *key, size_t bytes, int world_size)
{
    return (int)(hash_bytes(key, bytes, OWNER_SEED) % (uint64_t)world_size);
}

int directory_owner(const char *key, int world_size)
{
    return owner_of(key, strlen(key), world_size);
}

banyan_status directory_part_create(int rank, int world_size, directory_part **part)
{
    if (world_size < 1 || rank < 0 || rank >= world_size)
        return error_set(BANYAN_ERR_INVALID, "rank %d in a world of %d", rank, world_size);
    directory_part *created = calloc(1, sizeof *created);
    if (!created)
        return error_no_memory(sizeof *created, "a directory");
    created->rank = rank;
    created->world_size = world_size;
    created->seen = calloc(ranks_words(world_size), sizeof *created->seen);
    if (!created->seen) {
        free(created);
        return error_no_memory(ranks_words(world_size) * sizeof *created->seen, "a directory");
    }
    *part = created;
    return BANYAN_OK;
}

void directory_part_destroy(directory_part *part)
{
    if (!part)
        return;
    bytes_writer_free(&part->put_bytes);
    array_free(&part->puts);
    map_free(&part->key_index);
    map_free(&part->value_index);
    array_free(&part->keys);
    array_free(&part->values);
    bytes_writer_free(&part->kept_answers);
    arena_free(&part->memory);
    array_free(&part->asked);
    array_free(&part->asked_order);
    free(part->seen);
    free(part);
}

size_t directory_part_memory(const directory_part *part)
{
    return sizeof *part + ranks_words(part->world_size) * sizeof *part->seen +
           part->put_bytes.capacity + part->puts.capacity * sizeof *part->puts.data +
           part->memory.bytes + map_memory(&part->key_index) + map_memory(&part->value_index) +
           part->keys.capacity * sizeof *part->keys.data +
           part->values.capacity * sizeof *part->values.data + part->kept_answers.capacity +
           part->asked.capacity * sizeof *part->asked.data +
           part->asked_order.capacity * sizeof *part->asked_order.data;
}

banyan_status directory_part_put(directory_part *part, const char *key, const void *value,
                                 size_t bytes, const banyan_rank_set *holders)
{
    if (!key || (!value && bytes > 0))
        return error_set(BANYAN_ERR_INVALID, "rank %d: a directory put without a %s", part->rank,
                         key ? "value" : "key");
    banyan_rank_set packed = holders ? ranks_pack(holders) : banyan_rank_set_one(part->rank);
    const char *problem = ranks_problem(&packed, part->world_size, part->seen);
    if (problem)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: the holders of directory key \"%s\" have %s (first %d, world "
                         "size %d)",
                         part->rank, key, problem, packed.first, part->world_size);
    size_t key_bytes = strlen(key), start = part->put_bytes.count;
    bytes_writer *writer = &part->put_bytes;
    bytes_write_u64(writer, key_bytes);
    bytes_write_u64(writer, bytes);
    bytes_write(writer, key, key_bytes);
    bytes_write(writer, value, bytes);
    ranks_write(writer, &packed);
    struct pending_message put = {owner_of(key, key_bytes, part->world_size), start,
                                  writer->count - start, part->puts.count};
    if (writer->failed || !array_push(&part->puts, put)) {
        writer->count = start;
        writer->failed = false;
        return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

static int by_owner(const void *a, const void *b)
{
    const struct pending_message *put_a = a, *put_b = b;
    if (put_a->owner != put_b->owner)
        return put_a->owner < put_b->owner ? -1 : 1;
    return (put_a->index > put_b->index) - (put_a->index < put_b->index);
}

/* Make one message per owner, with its items in order of arrival. Sorts the items. */
static banyan_status group_by_owner(struct pending_message *items, size_t count,
                                    const unsigned char *bytes, control_message **messages,
                                    size_t *message_count)
{
    if (count > 0)
        qsort(items, count, sizeof *items, by_owner);
    size_t owners = 0;
    for (size_t i = 0; i < count; i++)
        owners += i == 0 || items[i].owner != items[i - 1].owner;
    control_message *made = calloc(owners ? owners : 1, sizeof *made);
    if (!made)
        return error_no_memory(owners * sizeof *made, "directory messages");
    size_t at = 0;
    for (size_t i = 0; i < count;) {
        size_t end = i, total = 0;
        for (; end < count && items[end].owner == items[i].owner; end++)
            total += items[end].bytes;
        unsigned char *data = malloc(total);
        if (!data) {
            control_messages_free(made, at);
            return error_no_memory(total, "a directory message");
        }
        made[at++] = (control_message){items[i].owner, data, total};
        for (; i < end; i++) {
            memcpy(data, bytes + items[i].start, items[i].bytes);
            data += items[i].bytes;
        }
    }
    *messages = made;
    *message_count = owners;
    return BANYAN_OK;
}

banyan_status directory_part_take_puts(directory_part *part, control_message **messages,
                                       size_t *count)
{
    RETURN_IF_FAILED(
        group_by_owner(part->puts.data, part->puts.count, part->put_bytes.data, messages, count));
    bytes_writer_free(&part->put_bytes);
    array_free(&part->puts);
    return BANYAN_OK;
}

static struct put read_put(bytes_reader *reader)
{
    struct put put = {.record = reader->data};
    uint64_t key_bytes = bytes_read_u64(reader), value_bytes = bytes_read_u64(reader);
    put.key = (const char *)reader->data;
    if (reader->failed || key_bytes > reader->left || value_bytes > reader->left - key_bytes) {
        reader->failed = true;
        return put;
    }
    put.key_bytes = (size_t)key_bytes;
    put.record_bytes = RECORD_HEAD + (size_t)key_bytes + (size_t)value_bytes;
    reader->data += key_bytes + value_bytes;
    reader->left -= key_bytes + value_bytes;
    put.holders = ranks_read(reader);
    return put;
}

static banyan_status check_puts(const directory_part *part, int from, const void *data,
                                size_t bytes)
{
    bytes_reader reader = bytes_reader_of(data, bytes);
    while (reader.left > 0) {
        size_t at = bytes - reader.left;
        struct put put = read_put(&reader);
        const char *problem = "it ends early";
        int owner = part->rank;
        if (!reader.failed) {
            problem = ranks_problem(&put.holders, part->world_size, part->seen);
            owner = owner_of(put.key, put.key_bytes, part->world_size);
        }
        if (owner != part->rank)
            problem = "the key belongs to another rank";
        if (problem)
            return error_set(BANYAN_ERR_FORMAT,
                             "rank %d: a directory message of %zu bytes from rank %d is malformed "
                             "at byte %zu: %s",
                             part->rank, bytes, from, at, problem);
    }
    return BANYAN_OK;
}

/* Get the key's number; a new key points into the record, which stays. */
static bool part_key_of(directory_part *part, const char *key, size_t bytes, uint64_t *index)
{
    if (map_get(&part->key_index, key, bytes, index))
        return true;
    *index = part->keys.count;
    if (!array_push(&part->keys, (struct key){.first_value = NO_VALUE}))
        return false;
    if (!map_put(&part->key_index, key, bytes, *index)) {
        part->keys.count--;
        return false;
    }
    return true;
}

static bool value_of(directory_part *part, const struct put *put, uint64_t *index)
{
    if (map_get(&part->value_index, put->record, put->record_bytes, index))
        return true;
    unsigned char *record = arena_take(&part->memory, put->record_bytes);
    if (!record)
        return false;
    memcpy(record, put->record, put->record_bytes);
    uint64_t key_number;
    if (!part_key_of(part, (const char *)record + RECORD_HEAD, put->key_bytes, &key_number))
        return false;
    struct key *key = &part->keys.data[key_number];
    struct directory_entry value = {.data = record + RECORD_HEAD + put->key_bytes,
                                    .bytes = put->record_bytes - RECORD_HEAD - put->key_bytes,
                                    .next = key->first_value};
    *index = part->values.count;
    if (*index >= NO_VALUE) {
        error_set(BANYAN_ERR_NO_MEMORY, "rank %d: its part of the directory has %zu values",
                  part->rank, part->values.count);
        return false;
    }
    if (!array_push(&part->values, value))
        return false;
    if (!map_put(&part->value_index, record, put->record_bytes, *index)) {
        part->values.count--;
        return false;
    }
    key->first_value = (uint32_t)*index;
    key->value_count++;
    key->sorted = false;
    return true;
}

static void forget_answers(directory_part *part)
{
    if (part->kept_answers.count == 0)
        return;
    for (size_t i = 0; i < part->keys.count; i++)
        part->keys.data[i].answer_bytes = 0;
    part->kept_answers.count = 0;
}

banyan_status directory_part_absorb(directory_part *part, int from, const void *data, size_t bytes)
{
    RETURN_IF_FAILED(check_puts(part, from, data, bytes));
    forget_answers(part);
    bytes_reader reader = bytes_reader_of(data, bytes);
    while (reader.left > 0) {
        struct put put = read_put(&reader);
        uint64_t index;
        if (!value_of(part, &put, &index) ||
            !rank_list_add(&part->values.data[index].holders, &put.holders, part->world_size,
                           part->seen, &part->memory))
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

banyan_status directory_part_ask(directory_part *part, size_t count, const char *const *keys,
                                 control_message **messages, size_t *message_count)
{
    bytes_writer writer = {0};
    ARRAY(struct pending_message) questions = {0};
    banyan_status status = BANYAN_ERR_NO_MEMORY;
    part->asked.count = part->asked_order.count = 0;
    if (!array_reserve(&questions, count) || !array_reserve(&part->asked, count) ||
        !array_reserve(&part->asked_order, count))
        goto free_questions;
    for (size_t i = 0; i < count; i++) {
        if (!keys[i]) {
            status = error_set(BANYAN_ERR_INVALID, "rank %d: directory key %zu of %zu is NULL",
                               part->rank, i, count);
            goto free_questions;
        }
        size_t start = writer.count, key_bytes = strlen(keys[i]);
        bytes_write_blob(&writer, keys[i], key_bytes);
        questions.data[i] = (struct pending_message){owner_of(keys[i], key_bytes, part->world_size),
                                                     start, writer.count - start, i};
    }
    status = writer.failed
                 ? BANYAN_ERR_NO_MEMORY
                 : group_by_owner(questions.data, count, writer.data, messages, message_count);
    if (status != BANYAN_OK)
        goto free_questions;
    part->asked.count = part->asked_order.count = count;
    for (size_t i = 0; i < count; i++) {
        part->asked_order.data[i] = questions.data[i].index;
        part->asked.data[questions.data[i].index] =
            (struct asked){.owner = questions.data[i].owner};
    }
free_questions:
    array_free(&questions);
    bytes_writer_free(&writer);
    return status;
}

static int by_bytes(const void *a, const void *b, void *context)
{
    const struct directory_entry *values = context;
    const struct directory_entry *value_a = &values[*(const uint32_t *)a];
    const struct directory_entry *value_b = &values[*(const uint32_t *)b];
    uint64_t common = value_a->bytes < value_b->bytes ? value_a->bytes : value_b->bytes;
    int order = common > 0 ? memcmp(value_a->data, value_b->data, (size_t)common) : 0;
    return order ? order : (value_a->bytes > value_b->bytes) - (value_a->bytes < value_b->bytes);
}

/* Link the key's values in the order of their bytes. The order is kept until a new value arrives.
 */
static bool sort_values(directory_part *part, struct key *key)
{
    if (key->sorted)
        return true;
    struct directory_entry *values = part->values.data;
    uint32_t *order = malloc(key->value_count * sizeof *order), at = 0;
    if (!order) {
        error_no_memory(key->value_count * sizeof *order, "sorting values");
        return false;
    }
    for (uint32_t i = key->first_value; i != NO_VALUE; i = values[i].next)
        order[at++] = i;
    qsort_r(order, at, sizeof *order, by_bytes, values);
    uint32_t next = NO_VALUE;
    while (at > 0) {
        values[order[--at]].next = next;
        next = order[at];
    }
    key->first_value = next;
    key->sorted = true;
    free(order);
    return true;
}

/* Keep an answer, because thousands of ranks may ask for one key. Failing to keep it is not an
 * error.
 */
static void keep_answer(directory_part *part, struct key *key, const void *answer, size_t bytes)
{
    bytes_writer *kept = &part->kept_answers;
    if (bytes > KEPT_ANSWER_BYTES)
        return;
    if (kept->count + bytes > KEPT_ANSWER_BYTES)
        forget_answers(part);
    size_t at = kept->count;
    bytes_write(kept, answer, bytes);
    if (!kept->failed) {
        key->answer_at = (uint32_t)at;
        key->answer_bytes = (uint32_t)bytes;
    }
    kept->failed = false;
}

static bool encode_answer(directory_part *part, struct key *key, bytes_writer *writer)
{
    if (!sort_values(part, key))
        return false;
    bytes_write_u64(writer, key->value_count);
    for (uint32_t i = key->first_value; i != NO_VALUE; i = part->values.data[i].next) {
        struct directory_entry *value = &part->values.data[i];
        if (!rank_list_fold(&value->holders, part->world_size, part->seen, &part->memory))
            return false;
        bytes_write_blob(writer, value->data, (size_t)value->bytes);
        bytes_write_u64(writer, value->holders.count);
        for (uint32_t k = 0; k < value->holders.count; k++)
            ranks_write(writer, &value->holders.sets[k]);
    }
    return true;
}

static bool write_answer(directory_part *part, const void *key_text, size_t key_bytes,
                         bytes_writer *writer)
{
    uint64_t number;
    if (!map_get(&part->key_index, key_text, key_bytes, &number)) {
        bytes_write_u64(writer, 0);
        return true;
    }
    struct key *key = &part->keys.data[number];
    if (key->answer_bytes > 0) {
        bytes_write(writer, part->kept_answers.data + key->answer_at, key->answer_bytes);
        return true;
    }
    size_t start = writer->count;
    if (!encode_answer(part, key, writer))
        return false;
    if (!writer->failed)
        keep_answer(part, key, writer->data + start, writer->count - start);
    return true;
}

banyan_status directory_part_answer(directory_part *part, const void *question, size_t bytes,
                                    void **answer, size_t *answer_bytes)
{
    bytes_reader reader = bytes_reader_of(question, bytes);
    bytes_writer writer = {0};
    banyan_status status = BANYAN_ERR_NO_MEMORY;
    while (reader.left > 0) {
        size_t key_bytes, at = bytes - reader.left;
        const void *key = bytes_read_blob(&reader, &key_bytes);
        if (!key) {
            status = error_set(BANYAN_ERR_FORMAT,
                               "rank %d: a directory question of %zu bytes ends early at byte %zu",
                               part->rank, bytes, at);
            goto free_writer;
        }
        if (!write_answer(part, key, key_bytes, &writer))
            goto free_writer;
    }
    if (writer.failed || !array_reserve(&writer, 1))
        goto free_writer;
    *answer = writer.data;
    *answer_bytes = writer.count;
    return BANYAN_OK;
free_writer:
    bytes_writer_free(&writer);
    return status;
}

/* Space for one key's values, reused for each key. */
struct visit_room {
    ARRAY(banyan_directory_value) values;
    ARRAY(banyan_rank_set) sets;
    ARRAY(size_t) first_set; /* one per value */
};

static banyan_status part_malformed(const directory_part *part, int from, size_t at)
{
    return error_set(BANYAN_ERR_FORMAT,
                     "rank %d: the directory's answer from rank %d is malformed at byte %zu",
                     part->rank, from, at);
}

/* Read one key's values. The smallest value takes 16 bytes and the smallest set 8, so the message's
 * length bounds both counts. */
static bool part_read_values(const directory_part *part, bytes_reader *reader,
                             struct visit_room *room)
{
    room->values.count = room->sets.count = room->first_set.count = 0;
    uint64_t count = bytes_read_u64(reader);
    reader->failed |= count > reader->left / 16;
    for (uint64_t i = 0; i < count && !reader->failed; i++) {
        banyan_directory_value value = {0};
        value.data = bytes_read_blob(reader, &value.bytes);
        uint64_t sets = bytes_read_u64(reader);
        reader->failed |= sets == 0 || sets > reader->left / 8;
        value.rank_set_count = (size_t)sets;
        if (!array_push(&room->values, value) || !array_push(&room->first_set, room->sets.count))
            return false;
        for (uint64_t k = 0; k < sets && !reader->failed; k++) {
            banyan_rank_set set = ranks_read(reader);
            reader->failed |= ranks_problem(&set, part->world_size, part->seen) != NULL;
            if (!array_push(&room->sets, set))
                return false;
        }
    }
    for (size_t i = 0; i < room->values.count && !reader->failed; i++)
        room->values.data[i].ranks = room->sets.data + room->first_set.data[i];
    return true;
}

static const struct asked *asked_at(const directory_part *part, size_t i)
{
    return &part->asked.data[part->asked_order.data[i]];
}

/* Return the index of the first question to `owner`, in the order sent. */
static size_t first_asked(const directory_part *part, int owner)
{
    size_t low = 0, high = part->asked_order.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (asked_at(part, middle)->owner < owner)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Find each key's values in one owner's answer, and check that they are well formed. */
static banyan_status index_answer(directory_part *part, const control_message *answer,
                                  struct visit_room *room)
{
    bytes_reader reader = bytes_reader_of(answer->data, answer->bytes);
    size_t i = first_asked(part, answer->rank);
    for (; i < part->asked_order.count && asked_at(part, i)->owner == answer->rank; i++) {
        struct asked *asked = &part->asked.data[part->asked_order.data[i]];
        asked->answer = reader.data;
        if (!part_read_values(part, &reader, room))
            return BANYAN_ERR_NO_MEMORY;
        if (reader.failed)
            return part_malformed(part, answer->rank, answer->bytes - reader.left);
        asked->bytes = (size_t)(reader.data - asked->answer);
    }
    if (reader.left > 0)
        return part_malformed(part, answer->rank, answer->bytes - reader.left);
    return BANYAN_OK;
}

banyan_status directory_part_visit(directory_part *part, const control_message *answers,
                                   size_t answer_count, banyan_directory_visit visit, void *context)
{
    struct visit_room room = {0};
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < part->asked.count; i++)
        part->asked.data[i].answer = NULL;
    for (size_t i = 0; i < answer_count && status == BANYAN_OK; i++)
        status = index_answer(part, &answers[i], &room);
    for (size_t i = 0; i < part->asked.count && status == BANYAN_OK; i++) {
        if (!part->asked.data[i].answer)
            status = error_set(BANYAN_ERR_FORMAT,
                               "rank %d: rank %d has not answered for directory key %zu of %zu",
                               part->rank, part->asked.data[i].owner, i, part->asked.count);
    }
    for (size_t i = 0; i < part->asked.count && status == BANYAN_OK; i++) {
        bytes_reader reader =
            bytes_reader_of(part->asked.data[i].answer, part->asked.data[i].bytes);
        status = part_read_values(part, &reader, &room) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
        if (status == BANYAN_OK)
            status = visit(context, i, room.values.data, room.values.count);
    }
    array_free(&room.values);
    array_free(&room.sets);
    array_free(&room.first_set);
    return status;
}
