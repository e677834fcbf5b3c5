/* Fair sharing, against cases computed by hand and against its definition. */
#include "support/test.h"

#include <math.h>

#include "simulate/engine/sharing.h"

typedef struct uses {
    uint32_t resources[4];
    double bytes[4];
    uint32_t count;
} uses;

static sharing make(agenda *ends, uint32_t flows, const double *rates, uint32_t resources)
{
    sharing all;
    CHECK_OK(agenda_make(flows, ends));
    CHECK_OK(sharing_make(ends, flows, resources, &all));
    for (uint32_t r = 0; r < resources; r++)
        all.resources[r].bytes_per_s = rates[r];
    return all;
}

static void unmake(sharing *all)
{
    agenda_free(all->ends);
    sharing_free(all);
}

static void begin(sharing *all, uint32_t number, const uses *over, double amount, double limit,
                  uint64_t now_ps)
{
    flow_begin(all, number);
    for (uint32_t i = 0; i < over->count; i++)
        CHECK(flow_add(all, number, over->resources[i], over->bytes[i]));
    CHECK(flow_go(all, number, amount, limit, now_ps));
}

/* A flow of this many bytes over these links. */
static void over_links(sharing *all, uint32_t number, double bytes, uint32_t first, uint32_t second)
{
    uses over = {{first, second}, {bytes, bytes}, first == second ? 1 : 2};
    begin(all, number, &over, bytes, 1e12, 0);
}

static void check_rate(const sharing *all, uint32_t number, double expected)
{
    CHECK(fabs(all->flows[number].rate - expected) <= 1e-6 * expected, "flow %u: %.9g, not %.9g",
          number, all->flows[number].rate, expected);
}

/* Links of 10, 4 and 6: the second is the scarcest, for its three flows; the flow that shares the
 * first with one of those gets the rest of it, and so on. */
static void the_scarcest_link_is_shared_first(void **state)
{
    (void)state;
    const double rates[] = {10, 4.5, 6};
    agenda ends;
    sharing all = make(&ends, 5, rates, 3);
    over_links(&all, 0, 100, 0, 1);
    over_links(&all, 1, 100, 1, 1);
    over_links(&all, 2, 100, 1, 2);
    over_links(&all, 3, 100, 0, 0);
    over_links(&all, 4, 100, 2, 2);
    CHECK_OK(sharing_settle(&all, 0));
    check_rate(&all, 0, 1.5);
    check_rate(&all, 1, 1.5);
    check_rate(&all, 2, 1.5);
    check_rate(&all, 3, 8.5);
    check_rate(&all, 4, 4.5);
    unmake(&all);
}

static void slow_flows_leave_the_rest_to_others(void **state)
{
    (void)state;
    const double rates[] = {9};
    agenda ends;
    sharing all = make(&ends, 3, rates, 1);
    const uses over = {{0}, {30}, 1};
    begin(&all, 0, &over, 30, 1, 0);
    begin(&all, 1, &over, 30, 100, 0);
    begin(&all, 2, &over, 30, 100, 0);
    CHECK_OK(sharing_settle(&all, 0));
    check_rate(&all, 0, 1);
    check_rate(&all, 1, 4);
    check_rate(&all, 2, 4);
    unmake(&all);
}

/* A flow that carries each byte twice takes twice as much of a link for the same progress. */
static void weights_count(void **state)
{
    (void)state;
    const double rates[] = {9};
    agenda ends;
    sharing all = make(&ends, 2, rates, 1);
    const uses twice = {{0}, {60}, 1}, once = {{0}, {30}, 1};
    begin(&all, 0, &twice, 30, 100, 0);
    begin(&all, 1, &once, 30, 100, 0);
    CHECK_OK(sharing_settle(&all, 0));
    check_rate(&all, 0, 3);
    check_rate(&all, 1, 3);
    unmake(&all);
}

/* 10 bytes a second for 20 and 60 bytes: the first ends after 4 s, the second 4 s later. */
static void rates_change_when_a_flow_ends(void **state)
{
    (void)state;
    const double rates[] = {10};
    agenda ends;
    sharing all = make(&ends, 2, rates, 1);
    over_links(&all, 0, 20, 0, 0);
    over_links(&all, 1, 60, 0, 0);
    CHECK_OK(sharing_settle(&all, 0));
    uint64_t now = agenda_next(&ends);
    CHECK(now == UINT64_C(4000000000000));
    CHECK(agenda_take(&ends) == 0 && flow_end(&all, 0, now));
    CHECK_OK(sharing_settle(&all, now));
    check_rate(&all, 1, 10);
    CHECK(agenda_next(&ends) == UINT64_C(8000000000000));
    CHECK(agenda_take(&ends) == 1 && flow_end(&all, 1, agenda_next(&ends)));
    CHECK(all.resources[0].carried == 80);
    unmake(&all);
}

enum { FLOWS = 24, RESOURCES = 10 };

static double load_of(const sharing *all, uint32_t of)
{
    double load = 0;
    for (uint32_t f = 0; f < FLOWS; f++) {
        const flow *one = &all->flows[f];
        for (size_t u = 0; one->flows && u < one->uses.count; u++) {
            if (one->uses.data[u].resource == of)
                load += one->uses.data[u].weight * one->rate;
        }
    }
    return load;
}

/* No flow has a higher rate on a full resource of its own: then its rate cannot grow without
 * taking from a flow with no higher rate. */
static bool has_bottleneck(const sharing *all, const flow *one)
{
    for (size_t u = 0; u < one->uses.count; u++) {
        uint32_t r = one->uses.data[u].resource;
        const resource *at = &all->resources[r];
        bool most = load_of(all, r) >= at->bytes_per_s * (1 - 1e-6);
        for (size_t k = 0; k < at->users.count && most; k++)
            most = all->flows[at->users.data[k].flow].rate <= one->rate * (1 + 1e-6);
        if (most)
            return true;
    }
    return false;
}

static void check_fair(const sharing *all)
{
    for (uint32_t r = 0; r < RESOURCES; r++)
        CHECK(load_of(all, r) <= all->resources[r].bytes_per_s * (1 + 1e-6));
    for (uint32_t f = 0; f < FLOWS; f++) {
        const flow *one = &all->flows[f];
        if (!one->flows)
            continue;
        CHECK(one->rate > 0 && one->rate <= one->limit * (1 + 1e-9));
        CHECK(one->rate >= one->limit * (1 - 1e-6) || has_bottleneck(all, one), "flow %u", f);
    }
}

static void begin_random(sharing *all, random_state *random, uint32_t number, uint64_t now_ps,
                         double carried[RESOURCES])
{
    uses over = {.count = (uint32_t)random_between(random, 1, 4)};
    double amount = (double)random_between(random, 1, 1000);
    for (uint32_t i = 0; i < over.count; i++) {
        over.resources[i] = (uint32_t)random_between(random, 0, RESOURCES - 1);
        over.bytes[i] = amount * (double)random_between(random, 1, 3) / 2;
        carried[over.resources[i]] += over.bytes[i];
    }
    begin(all, number, &over, amount, (double)random_between(random, 1, 60), now_ps);
}

static void random_flows_are_fair_at_any_time_and_carry_their_bytes(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    double rates[RESOURCES], carried[RESOURCES] = {0};
    for (int r = 0; r < RESOURCES; r++)
        rates[r] = (double)random_between(&random, 5, 50);
    agenda ends;
    sharing all = make(&ends, FLOWS, rates, RESOURCES);
    for (uint32_t f = 0; f < FLOWS; f++)
        begin_random(&all, &random, f, 0, carried);
    CHECK_OK(sharing_settle(&all, 0));
    for (int n = 0; agenda_next(&ends) != AGENDA_NEVER; n++) {
        check_fair(&all);
        uint64_t now = agenda_next(&ends);
        uint32_t number = agenda_take(&ends);
        CHECK(flow_end(&all, number, now));
        if (n < 2000 && random_between(&random, 0, 9) > 0)
            begin_random(&all, &random, number, now, carried);
        CHECK_OK(sharing_settle(&all, now));
    }
    for (int r = 0; r < RESOURCES; r++) {
        CHECK(fabs(all.resources[r].carried - carried[r]) <= 1e-6 * carried[r]);
        CHECK(all.resources[r].users.count == 0);
        /* No resource can have carried more in its busy time than its rate permits. */
        CHECK(carried[r] <= rates[r] * (double)all.resources[r].busy_ps / 1e12 * (1 + 1e-6));
    }
    unmake(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_scarcest_link_is_shared_first),
        cmocka_unit_test(slow_flows_leave_the_rest_to_others),
        cmocka_unit_test(weights_count),
        cmocka_unit_test(rates_change_when_a_flow_ends),
        cmocka_unit_test(random_flows_are_fair_at_any_time_and_carry_their_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
