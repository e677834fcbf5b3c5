/* Pages of one process that its ranks share: missing pages are refused. */
#include "support/test.h"

#include <unistd.h>

#include "memory/symmetric/pages.h"

static void only_a_whole_mapping_of_this_process_is_shared(void **state)
{
    (void)state;
    pages own, shared = {0};
    int fd;
    char other = 'x';
    CHECK_FAILS(pages_share(&other, 1, &shared), BANYAN_ERR_NOT_FOUND, "no shared memory of 1");
    CHECK_OK(pages_create(5000, false, &fd, &own));
    close(fd);
    CHECK_FAILS(pages_share(&other, own.mapped_bytes, &shared), BANYAN_ERR_NOT_FOUND, "");
    CHECK_FAILS(pages_share(own.address + 1, own.mapped_bytes, &shared), BANYAN_ERR_NOT_FOUND, "");
    CHECK_FAILS(pages_share(own.address, own.mapped_bytes + 1, &shared), BANYAN_ERR_NOT_FOUND,
                "bytes is mapped at");
    CHECK(shared.address == NULL);

    CHECK_OK(pages_share(own.address, own.mapped_bytes, &shared));
    CHECK(shared.address == own.address && shared.mapped_bytes == own.mapped_bytes);
    pages_release(&own);
    CHECK(own.address == NULL);
    shared.address[shared.mapped_bytes - 1] = 'x';
    pages_release(&shared);
    CHECK(shared.address == NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_a_whole_mapping_of_this_process_is_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
