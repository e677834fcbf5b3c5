/* Requests to join and tables of ranks: read back as written, refused after any change. */
#include "support/test.h"

#include <sodium.h>

#include "world/bootstrap/member.h"

static struct member some_member(random_state *random)
{
    struct member member = {.pid = (int)random_between(random, 1, 1 << 22),
                            .port = (int)random_between(random, 0, UINT16_MAX)};
    snprintf(member.node, sizeof member.node, "node-%d", (int)random_between(random, 0, 1 << 30));
    snprintf(member.host, sizeof member.host, "host%d", (int)random_between(random, 0, 99));
    snprintf(member.name, sizeof member.name, "banyan-%d", (int)random_between(random, 0, 99));
    if (random_between(random, 0, 1))
        member.tcp = address_loopback(member.port);
    return member;
}

static void check_member(const struct member *got, const struct member *expected)
{
    assert_string_equal(got->node, expected->node);
    assert_string_equal(got->host, expected->host);
    assert_string_equal(got->name, expected->name);
    assert_int_equal(got->pid, expected->pid);
    assert_int_equal(got->port, expected->port);
    assert_int_equal(got->tcp.bytes, expected->tcp.bytes);
    assert_memory_equal(&got->tcp.socket, &expected->tcp.socket, expected->tcp.bytes);
}

static void a_request_comes_back_as_it_was_and_no_shorter(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 50; round++) {
        struct join_request request = {.rank = (int)random_between(&random, 0, 9999),
                                       .world_size = (int)random_between(&random, 1, 10000),
                                       .timeout_ns = random_next(&random),
                                       .self = some_member(&random)};
        struct join_request got = {0};
        bytes_writer text = {0};
        join_write(&text, &request);
        assert_true(join_read(text.data, text.count, &got));
        assert_int_equal(got.rank, request.rank);
        assert_int_equal(got.world_size, request.world_size);
        assert_int_equal(got.timeout_ns, request.timeout_ns);
        check_member(&got.self, &request.self);
        for (size_t bytes = 0; bytes < text.count; bytes++) {
            unsigned char *shorter = malloc(bytes + 1); /* exactly this long, for the sanitizers */
            memcpy(shorter, text.data, bytes);
            assert_false(join_read(shorter, bytes, &got));
            free(shorter);
        }
        bytes_write(&text, "", 1);
        assert_false(join_read(text.data, text.count, &got));
        bytes_writer_free(&text);
    }
}

static void write_table(bytes_writer *text, const struct member *members, int count)
{
    table_write(text, count);
    for (int rank = 0; rank < count; rank++)
        member_write(text, &members[rank]);
}

static void a_table_comes_back_as_it_was_and_no_shorter(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    struct member members[5];
    bytes_writer text = {0};
    for (int rank = 0; rank < 5; rank++)
        members[rank] = some_member(&random);
    write_table(&text, members, 5);
    struct member_table table;
    CHECK_OK(table_read(text.data, text.count, 5, &table));
    for (int rank = 0; rank < 5; rank++)
        check_member(&table.members[rank], &members[rank]);
    free(table.members);
    CHECK_FAILS(table_read(text.data, text.count, 6, &table), BANYAN_ERR_FORMAT,
                "has 5 entries, not 6");
    for (size_t bytes = MEMBER_TOKEN_BYTES + sizeof(uint32_t); bytes < text.count; bytes++)
        CHECK_FAILS(table_read(text.data, bytes, 5, &table), BANYAN_ERR_FORMAT, "malformed");
    bytes_writer_free(&text);
}

static void changed_tables_are_refused_or_harmless(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    int refused = 0;
    for (int round = 0; round < 3000; round++) {
        struct member members[2] = {some_member(&random), some_member(&random)};
        bytes_writer text = {0};
        write_table(&text, members, 2);
        for (int change = 0; change < 3; change++)
            text.data[random_between(&random, 0, (int64_t)text.count - 1)] =
                (unsigned char)random_next(&random);
        struct member_table table;
        if (table_read(text.data, text.count, 2, &table) == BANYAN_OK) {
            for (int rank = 0; rank < 2; rank++) {
                assert_true(strlen(table.members[rank].node) < ADDRESS_NODE_BYTES);
                assert_true(strlen(table.members[rank].name) < ADDRESS_NAME_BYTES);
                assert_in_range(table.members[rank].port, 0, UINT16_MAX);
            }
            free(table.members);
        } else {
            refused++;
        }
        bytes_writer_free(&text);
    }
    assert_in_range(refused, 1, 2999);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_comes_back_as_it_was_and_no_shorter),
        cmocka_unit_test(a_table_comes_back_as_it_was_and_no_shorter),
        cmocka_unit_test(changed_tables_are_refused_or_harmless),
    };
    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
