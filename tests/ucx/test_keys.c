/* The tables of memories, and how long a rank keeps keys of peers' memory. Functions stand for the
 * rest of the module: they answer every question at once. */
#include "support/test.h"

#if __has_include(<ucp/api/ucp.h>)
#include "ucx/lookup.c"
#include "ucx/table.c"

#define BYTES 4096
#define STEPS 5000
#define LASTING 40
#define IDS 64

ucx_library ucx_calls;
static size_t asked;

banyan_status ucx_send(ucx *of, int rank, unsigned number, const void *header, size_t bytes,
                       const void *payload, size_t payload_bytes)
{
    ucx_key_message question;
    (void)payload, (void)payload_bytes;
    assert_int_equal(number, UCX_QUESTION);
    assert_int_equal(bytes, sizeof question);
    memcpy(&question, header, sizeof question);
    ucx_entry *entry = ucx_table_find(&of->peers[rank].keys, question.kind, question.id);
    assert_non_null(entry);
    ucx_key *key = (ucx_key *)(void *)entry;
    key->is_answered = key->is_on_host = true;
    key->address = question.id * 2 * BYTES;
    key->bytes = BYTES;
    asked++;
    return BANYAN_OK;
}

void ucx_key_free(ucx_key *key)
{
    assert_int_equal(key->users, 0);
    free(key);
}

banyan_status ucx_wait(ucx *of, int peer, ucx_aim aim, const ucx_key *key, const char *text)
{
    (void)of, (void)peer, (void)aim, (void)key, (void)text;
    fail_msg("every question is answered at once");
    return BANYAN_OK;
}

banyan_status ucx_connect(ucx *of, int peer, ucp_ep_h *endpoint)
{
    (void)of, (void)peer;
    *endpoint = NULL;
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

/* Rank 0, which looks for memory of rank 1. */
struct looker {
    ucx of;
    ucx_peer peers[2];
};

static void looker_make(struct looker *l)
{
    *l = (struct looker){.of = {.size = 2, .peers = l->peers}};
    pthread_mutex_init(&l->of.lock, NULL);
    asked = 0;
}

static bool drop(ucx_entry *entry, void *context)
{
    (void)context;
    free(entry);
    return false;
}

static void looker_end(struct looker *l)
{
    ucx_table_filter(&l->peers[1].keys, drop, NULL);
    assert_int_equal(l->peers[1].keys.count, 0);
    ucx_table_free(&l->peers[1].keys);
    pthread_mutex_destroy(&l->of.lock);
}

static ucx_key *look(struct looker *l, uint64_t id)
{
    banyan_remote remote = {{.rank = 1, .kind = BANYAN_MEMORY_USER, .id = id, .bytes = BYTES}, 16};
    uint64_t address;
    ucx_key *key;
    assert_int_equal(ucx_find_key(&l->of, &remote, &address, &key), BANYAN_OK);
    assert_int_equal(address, id * 2 * BYTES + 16);
    return key;
}

/* The owner reports that memory ends. */
static void end(struct looker *l, uint64_t id)
{
    ucx_entry *entry = ucx_table_find(&l->peers[1].keys, BANYAN_MEMORY_USER, id);
    ((ucx_key *)(void *)entry)->has_ended = true;
    l->peers[1].ended++;
}

/* Every step has memory of its own, beside some that lasts. */
static void keys_of_ended_memory_are_dropped(void **state)
{
    (void)state;
    struct looker l;
    size_t most = 0;
    looker_make(&l);
    for (uint64_t step = 0; step < STEPS; step++) {
        for (uint64_t lasting = 1; lasting <= LASTING; lasting++)
            look(&l, lasting)->users--;
        look(&l, 1000 + step)->users--;
        end(&l, 1000 + step);
        most = l.peers[1].keys.count > most ? l.peers[1].keys.count : most;
    }
    printf("%zu keys at most\n", most);
    assert_true(most <= LASTING + ENDED_MOST + LASTING / 3 + 1);
    assert_int_equal(asked, LASTING + STEPS);
    looker_end(&l);
}

static void keys_in_use_stay(void **state)
{
    (void)state;
    struct looker l;
    looker_make(&l);
    ucx_key *held = look(&l, 7);
    end(&l, 7);
    for (uint64_t step = 0; step < STEPS; step++) {
        look(&l, 1000 + step)->users--;
        end(&l, 1000 + step);
    }
    assert_ptr_equal(look(&l, 7), held);
    assert_int_equal(asked, 1 + STEPS);
    held->users -= 2;
    /* Operations under way may use any key. */
    l.peers[1].pending = 1;
    size_t before = l.peers[1].keys.count;
    for (uint64_t step = 0; step < STEPS; step++) {
        look(&l, 100000 + step)->users--;
        end(&l, 100000 + step);
    }
    assert_int_equal(l.peers[1].keys.count, before + STEPS);
    l.peers[1].pending = 0;
    look(&l, 200000)->users--;
    assert_int_equal(l.peers[1].keys.count, 1);
    assert_int_equal(l.peers[1].ended, 0);
    looker_end(&l);
}

/* Beside an array of all ids. */
static void a_table_has_what_was_added_and_not_removed(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    ucx_table table = {0};
    ucx_entry *all[2][IDS] = {{NULL}};
    size_t count = 0;
    for (int step = 0; step < 20000; step++) {
        uint32_t kind = (uint32_t)(random_next(&random) % 2);
        uint64_t id = random_next(&random) % IDS;
        ucx_entry **at = &all[kind][id];
        assert_ptr_equal(ucx_table_find(&table, kind, id << 32), *at);
        if (*at) {
            ucx_table_remove(&table, *at);
            free(*at);
            *at = NULL;
            count--;
        } else {
            *at = calloc(1, sizeof **at);
            **at = (ucx_entry){.id = id << 32, .kind = kind};
            assert_true(ucx_table_add(&table, *at));
            count++;
        }
        assert_int_equal(table.count, count);
    }
    ucx_table_filter(&table, drop, NULL);
    assert_int_equal(table.count, 0);
    ucx_table_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_of_ended_memory_are_dropped),
        cmocka_unit_test(keys_in_use_stay),
        cmocka_unit_test(a_table_has_what_was_added_and_not_removed),
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
