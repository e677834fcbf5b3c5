/* The orders that are tried show everything that all orders show. */
#include "check/orders/orders.h"
#include "support/random.h"
#include "support/test.h"

#define NETS 3000
#define LANES_MOST 4
#define EVENTS_MOST 5
#define COUNTERS_MOST 2
#define STATES_MOST 1296 /* (EVENTS_MOST + 1) ^ LANES_MOST */

static uint32_t some(random_state *random, int64_t from, int64_t to)
{
    return (uint32_t)random_between(random, from, to);
}

/* Lanes give, take, and need others' beginnings. */
static void make_net(random_state *random, order_net *net)
{
    uint64_t initial[COUNTERS_MOST];
    uint32_t counters = some(random, 1, COUNTERS_MOST), lanes = some(random, 2, LANES_MOST);
    for (uint32_t i = 0; i < counters; i++)
        initial[i] = some(random, 0, 1);
    CHECK(order_net_make(net, lanes, initial, counters));
    for (uint32_t lane = 0; lane < lanes; lane++) {
        uint32_t events = some(random, 1, EVENTS_MOST);
        for (uint32_t i = 0; i < events; i++) {
            uint32_t what = some(random, 0, 5), counter = some(random, 0, counters - 1);
            if (some(random, 0, 5) == 0) {
                order_need need = {some(random, 0, lanes - 1), some(random, 1, 2)};
                CHECK(order_net_need(net, lane, need));
            }
            CHECK(order_net_add(net, lane, i, what < 3 ? counter : ORDER_NONE,
                                what > 3 ? counter : ORDER_NONE));
        }
    }
}

typedef struct walk {
    const order_net *net;
    order_need limit;
    bool seen[STATES_MOST], stuck;
    uint32_t reach[LANES_MOST];
} walk;

static bool can_step(const walk *by, const uint32_t *at, uint32_t lane)
{
    const order_lane *of = &by->net->lanes[lane];
    if (at[lane] == of->events.count || (by->limit.lane == lane && at[lane] == by->limit.at))
        return false;
    const order_event *event = &of->events.data[at[lane]];
    for (uint32_t i = 0; i < event->need_count; i++) {
        order_need need = of->needs.data[event->first_need + i];
        if (at[need.lane] < need.at)
            return false;
    }
    if (event->takes == ORDER_NONE)
        return true;
    int64_t there = (int64_t)by->net->initial[event->takes];
    for (uint32_t other = 0; other < by->net->lane_count; other++) {
        for (uint32_t i = 0; i < at[other]; i++) {
            const order_event *past = &by->net->lanes[other].events.data[i];
            there += (past->gives == event->takes) - (past->takes == event->takes);
        }
    }
    return there > 0;
}

static void visit(walk *by, const uint32_t *at)
{
    uint32_t number = 0;
    bool done = true, able = false;
    for (uint32_t lane = 0; lane < by->net->lane_count; lane++) {
        number = number * (EVENTS_MOST + 1) + at[lane];
        done &= at[lane] == by->net->lanes[lane].events.count;
        by->reach[lane] = at[lane] > by->reach[lane] ? at[lane] : by->reach[lane];
    }
    if (by->seen[number])
        return;
    by->seen[number] = true;
    for (uint32_t lane = 0; lane < by->net->lane_count; lane++) {
        if (!can_step(by, at, lane))
            continue;
        uint32_t next[LANES_MOST];
        memcpy(next, at, sizeof next);
        next[lane]++;
        able = true;
        visit(by, next);
    }
    by->stuck |= !able && !done;
}

static walk walk_all(const order_net *net, order_need limit)
{
    const uint32_t begin[LANES_MOST] = {0};
    walk by = {.net = net, .limit = limit};
    visit(&by, begin);
    return by;
}

/* The reported takes are possible one by one, and lead to a state in which no lane can continue. */
static void follow_path(const order_net *net, const orders *found)
{
    uint32_t at[LANES_MOST] = {0};
    walk by = {.net = net, .limit = {ORDER_NONE, 0}};
    size_t next = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t lane = 0; lane < net->lane_count; lane++) {
            if (!can_step(&by, at, lane))
                continue;
            bool takes = net->lanes[lane].events.data[at[lane]].takes != ORDER_NONE;
            if (takes && (next == found->path.count || found->path.data[next].lane != lane))
                continue;
            next += takes;
            at[lane]++;
            moved = true;
        }
    }
    CHECK(next == found->path.count);
    for (uint32_t lane = 0; lane < net->lane_count; lane++)
        CHECK(!can_step(&by, at, lane));
}

static void compare_gives(const order_net *net, const orders *found)
{
    for (uint32_t lane = 0; lane < net->lane_count; lane++) {
        for (uint32_t i = 0; i < order_net_next(net, lane); i++) {
            order_need give = {lane, i};
            if (net->lanes[lane].events.data[i].gives == ORDER_NONE)
                continue;
            walk by = walk_all(net, give);
            for (uint32_t other = 0; other < net->lane_count; other++) {
                for (uint32_t k = 0; k < order_net_next(net, other); k++)
                    CHECK(orders_follow(found, give, (order_need){other, k}) ==
                          (by.reach[other] <= k));
            }
        }
    }
}

static void the_search_shows_the_same_as_all_orders(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    int stuck = 0;
    for (int i = 0; i < NETS; i++) {
        order_net net;
        orders found;
        make_net(&random, &net);
        CHECK(orders_try(&net, &found));
        walk by = walk_all(&net, (order_need){ORDER_NONE, 0});
        CHECK(found.decided && found.stuck == by.stuck, "net %d", i);
        stuck += by.stuck;
        if (by.stuck)
            follow_path(&net, &found);
        else
            compare_gives(&net, &found);
        orders_free(&found);
        order_net_free(&net);
    }
    printf("%d of %d nets get stuck in some order\n", stuck, NETS);
    CHECK(stuck > 0 && stuck < NETS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_shows_the_same_as_all_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
