/* The owner carries out messages in their order, whatever order they arrive in, and refuses all
 * that it must not write. A table of functions stands for UCX: it keeps what is sent. */
#include "support/test.h"

#if __has_include(<ucp/api/ucp.h>)
#include "ucx/messages.c"

#define WORDS 64
#define GUARD 16
#define MEMORY_ID 7
#define SENT_MOST 128

struct sent {
    char header[sizeof(ucx_message_header) + RECORDS_MAX * sizeof(ucx_record)];
    size_t header_bytes, bytes;
    char *data;
};

static struct sent sent[SENT_MOST];
static int sent_count;
static uint64_t memory[GUARD + WORDS + GUARD];
static ucx_mapping mapping;
static ucx_reply last_reply;
ucx_library ucx_calls;

static ucs_status_ptr_t keep_what_is_sent(ucp_ep_h endpoint, unsigned id, const void *header,
                                          size_t header_bytes_given, const void *data, size_t bytes,
                                          const ucp_request_param_t *params)
{
    (void)endpoint, (void)params;
    assert_int_equal(id, UCX_MESSAGE);
    assert_true(sent_count < SENT_MOST);
    struct sent *one = &sent[sent_count++];
    memcpy(one->header, header, header_bytes_given);
    one->header_bytes = header_bytes_given;
    one->data = malloc(bytes + 1);
    memcpy(one->data, data, bytes);
    one->bytes = bytes;
    return NULL;
}

banyan_status ucx_connect(ucx *of, int peer, ucp_ep_h *endpoint)
{
    (void)of, (void)peer;
    *endpoint = NULL;
    return BANYAN_OK;
}

banyan_status ucx_send(ucx *of, int rank, unsigned number, const void *header, size_t bytes,
                       const void *payload, size_t payload_bytes)
{
    (void)of, (void)rank, (void)payload, (void)payload_bytes;
    assert_int_equal(number, UCX_REPLY);
    assert_int_equal(bytes, sizeof last_reply);
    memcpy(&last_reply, header, sizeof last_reply);
    return BANYAN_OK;
}

const ucx_mapping *ucx_find_mapping(ucx *of, uint32_t kind, uint64_t id)
{
    (void)of;
    return kind == mapping.entry.kind && id == mapping.entry.id ? &mapping : NULL;
}

banyan_status ucx_listen(ucx *of, unsigned number, ucp_am_recv_callback_t arrived)
{
    (void)of, (void)number, (void)arrived;
    return BANYAN_OK;
}

banyan_status ucx_no_memory(const ucx *of, size_t bytes)
{
    (void)of;
    return banyan_error_set(BANYAN_ERR_NO_MEMORY, "%zu bytes", bytes);
}

banyan_status ucx_failed(const ucx *of, const char *call, ucs_status_t status)
{
    (void)of, (void)status;
    return banyan_error_set(BANYAN_ERR_SYSTEM, "%s", call);
}

/* Rank 0 sends, rank 1 owns the memory. */
struct pair {
    ucx sender, owner;
    ucx_peer peers[2][2];
    int owing[2];
    ucx_key key;
};

static void pair_make(struct pair *p)
{
    *p = (struct pair){.key = {.entry = {.id = MEMORY_ID, .kind = BANYAN_MEMORY_SYMMETRIC},
                               .address = (uint64_t)(uintptr_t)&memory[GUARD],
                               .is_on_host = true}};
    mapping = (ucx_mapping){.entry = {.id = MEMORY_ID, .kind = BANYAN_MEMORY_SYMMETRIC},
                            .address = p->key.address,
                            .bytes = WORDS * sizeof *memory,
                            .is_on_host = true};
    p->sender = (ucx){.rank = 0, .size = 2, .peers = p->peers[0], .records_most = 8};
    p->owner = (ucx){.rank = 1, .size = 2, .peers = p->peers[1], .owing = p->owing};
    for (int i = 0; i < 4; i++)
        p->peers[i / 2][i % 2].of = i < 2 ? &p->sender : &p->owner;
    ucx_calls.ucp_am_send_nbx = keep_what_is_sent;
    memset(memory, 0xab, sizeof memory);
    memset(&memory[GUARD], 0, WORDS * sizeof *memory);
    sent_count = 0;
}

static void pair_end(struct pair *p)
{
    for (int i = 0; i < sent_count; i++)
        free(sent[i].data);
    ucx_messages_free(&p->sender);
    ucx_messages_free(&p->owner);
}

static void deliver(struct pair *p, const struct sent *one)
{
    ucp_am_recv_param_t params = {0};
    assert_int_equal(
        message_arrived(&p->owner, one->header, one->header_bytes, one->data, one->bytes, &params),
        UCS_OK);
}

/* Every message writes its number to one word, adds to a counter, and fills a word of its own. */
static void send_numbers(struct pair *p, int count)
{
    uint64_t base = p->key.address;
    for (uint64_t i = 1; i <= (uint64_t)count; i++) {
        uint64_t own = i * 1000;
        assert_int_equal(ucx_message_put(&p->sender, 1, &p->key, base, &i, sizeof i), BANYAN_OK);
        assert_int_equal(ucx_message_put(&p->sender, 1, &p->key, base + 8 * i + 8, &own, sizeof i),
                         BANYAN_OK);
        assert_int_equal(ucx_message_add(&p->sender, 1, &p->key, base + 8, i, NULL), BANYAN_OK);
    }
    assert_int_equal(sent_count, count);
}

static void messages_are_carried_out_in_their_order(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 200; round++) {
        struct pair p;
        int count = 1 + (int)(random_next(&random) % 40), order[40];
        pair_make(&p);
        send_numbers(&p, count);
        for (int i = 0; i < count; i++) {
            int other = (int)(random_next(&random) % (uint64_t)(i + 1));
            order[i] = order[other];
            order[other] = i;
        }
        bool is_there[41] = {false};
        for (int i = 0; i < count; i++) {
            deliver(&p, &sent[order[i]]);
            is_there[order[i]] = true;
            uint64_t complete = 0;
            while (is_there[complete])
                complete++;
            const uint64_t *words = &memory[GUARD];
            assert_int_equal(words[0], complete);
            assert_int_equal(words[1], complete * (complete + 1) / 2);
            for (uint64_t k = 1; k <= (uint64_t)count; k++)
                assert_int_equal(words[k + 1], k <= complete ? k * 1000 : 0);
        }
        assert_string_equal(p.owner.fault, "");
        pair_end(&p);
    }
}

static void a_confirmation_follows_all_messages(void **state)
{
    (void)state;
    struct pair p;
    pair_make(&p);
    send_numbers(&p, 5);
    assert_int_equal(ucx_messages_flush(&p.sender, 1), BANYAN_OK);
    assert_int_equal(p.peers[0][1].pending, 1);
    assert_int_equal(sent_count, 6);
    deliver(&p, &sent[5]);
    assert_int_equal(ucx_messages_reply(&p.owner), 0);
    for (int i = 0; i < 5; i++)
        deliver(&p, &sent[i]);
    assert_int_equal(ucx_messages_reply(&p.owner), 1);
    assert_int_equal(last_reply.received, 6);
    last_reply.rank = 1;
    reply_arrived(&p.sender, &last_reply, sizeof last_reply, NULL, 0, NULL);
    assert_int_equal(p.peers[0][1].pending, 0);
    assert_int_equal(ucx_messages_flush(&p.sender, 1), BANYAN_OK); /* nothing to confirm */
    assert_int_equal(sent_count, 6);
    pair_end(&p);
}

/* Records are split into messages of 8, and data into its room. */
static void many_puts_fill_several_messages(void **state)
{
    (void)state;
    struct pair p;
    pair_make(&p);
    for (uint64_t i = 0; i < WORDS; i++) {
        uint64_t word = i * i + 3;
        assert_int_equal(
            ucx_message_put(&p.sender, 1, &p.key, p.key.address + 8 * i, &word, sizeof word),
            BANYAN_OK);
    }
    assert_int_equal(sent_count, WORDS / 8 - 1);
    assert_int_equal(ucx_messages_flush(&p.sender, 1), BANYAN_OK);
    assert_int_equal(sent_count, WORDS / 8 + 1);
    for (int i = 0; i < sent_count; i++)
        deliver(&p, &sent[i]);
    for (uint64_t i = 0; i < WORDS; i++)
        assert_int_equal(memory[GUARD + i], i * i + 3);
    pair_end(&p);
}

struct wrong {
    const char *what;
    ucx_record record;
    size_t bytes; /* of data */
};

static void wrong_messages_write_nothing(void **state)
{
    (void)state;
    const uint32_t kind = BANYAN_MEMORY_SYMMETRIC;
    const uint64_t end = WORDS * sizeof *memory;
    const struct wrong wrongs[] = {
        {"before", {RECORD_PUT, kind, MEMORY_ID, (uint64_t)-8, 16}, 16},
        {"after", {RECORD_PUT, kind, MEMORY_ID, end, 1}, 1},
        {"over the end", {RECORD_PUT, kind, MEMORY_ID, end - 8, 9}, 9},
        {"all of it and more", {RECORD_PUT, kind, MEMORY_ID, 0, end + 1}, end + 1},
        {"more than its data", {RECORD_PUT, kind, MEMORY_ID, 0, 16}, 15},
        {"no end of bytes", {RECORD_PUT, kind, MEMORY_ID, 8, UINT64_MAX - 4}, 8},
        {"other memory", {RECORD_PUT, kind, MEMORY_ID + 1, 0, 8}, 8},
        {"another kind", {RECORD_PUT, BANYAN_MEMORY_USER, MEMORY_ID, 0, 8}, 8},
        {"counter across words", {RECORD_ADD, kind, MEMORY_ID, 4, 1}, 0},
        {"counter over the end", {RECORD_ADD, kind, MEMORY_ID, end, 1}, 0},
        {"counter before", {RECORD_FETCH, kind, MEMORY_ID, (uint64_t)-8, 1}, 0},
        {"no such record", {99, kind, MEMORY_ID, 0, 1}, 0},
    };
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        struct pair p;
        pair_make(&p);
        uint64_t before[sizeof memory / sizeof *memory];
        memcpy(before, memory, sizeof memory);
        struct sent one = {.header_bytes = header_bytes(1), .bytes = wrongs[i].bytes};
        one.data = malloc(one.bytes + 1);
        memset(one.data, 0x5c, one.bytes);
        ucx_message_header *header = (ucx_message_header *)(void *)one.header;
        header->rank = 0;
        header->record_count = 1;
        header->number = 1;
        header->records[0] = wrongs[i].record;
        header->records[0].address += p.key.address;
        deliver(&p, &one);
        if (!p.owner.has_fault || !strstr(p.owner.fault, "rank 0") ||
            !strstr(p.owner.fault, "rank 1"))
            fail_msg("%s: \"%s\"", wrongs[i].what, p.owner.fault);
        assert_memory_equal(memory, before, sizeof memory);
        free(one.data);
        pair_end(&p);
    }
}

static void wrong_headers_are_refused(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct pair p;
        pair_make(&p);
        send_numbers(&p, 1);
        ucx_message_header *header = (ucx_message_header *)(void *)sent[0].header;
        if (i == 0)
            header->rank = 2;
        else if (i == 1)
            header->rank = -1;
        else if (i == 2)
            header->record_count = UINT32_MAX;
        else if (i == 3)
            header->record_count--;
        else if (i == 4)
            header->number = 0;
        else
            sent[0].header_bytes = sizeof *header - 1;
        deliver(&p, &sent[0]);
        assert_true(p.owner.has_fault);
        assert_non_null(strstr(p.owner.fault, "that is none"));
        assert_int_equal(memory[GUARD + 1], 0);
        pair_end(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_are_carried_out_in_their_order),
        cmocka_unit_test(a_confirmation_follows_all_messages),
        cmocka_unit_test(many_puts_fill_several_messages),
        cmocka_unit_test(wrong_messages_write_nothing),
        cmocka_unit_test(wrong_headers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    printf("skipped: UCX's headers are missing\n");
    return 77;
}
#endif
