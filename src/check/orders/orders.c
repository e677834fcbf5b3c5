#include "check/orders/orders.h"

#include <string.h>

/* Limits of visits to a lane, and of bytes of states, above which the search of a class gives up.
 */
#define LOOKS_MOST (UINT64_C(1) << 25)
#define STATE_BYTES_MOST (32 << 20)

bool order_net_make(order_net *net, uint32_t lanes, const uint64_t *initial, uint32_t counters)
{
    *net = (order_net){.lane_count = lanes,
                       .counter_count = counters,
                       .lanes = calloc(lanes + 1, sizeof *net->lanes),
                       .initial = calloc(counters + 1, sizeof *net->initial),
                       .takes = calloc(counters + 1, sizeof *net->takes)};
    if (!net->lanes || !net->initial || !net->takes) {
        order_net_free(net);
        error_no_memory(lanes * sizeof *net->lanes, "orders of thread blocks");
        return false;
    }
    memcpy(net->initial, initial, counters * sizeof *initial);
    return true;
}

void order_net_free(order_net *net)
{
    for (uint32_t i = 0; net->lanes && i < net->lane_count; i++) {
        array_free(&net->lanes[i].events);
        array_free(&net->lanes[i].needs);
    }
    free(net->lanes);
    free(net->initial);
    free(net->takes);
    *net = (order_net){0};
}

static size_t needs_of_past(const order_lane *lane)
{
    if (lane->events.count == 0)
        return 0;
    const order_event *last = &lane->events.data[lane->events.count - 1];
    return last->first_need + last->need_count;
}

bool order_net_need(order_net *net, uint32_t number, order_need need)
{
    order_lane *lane = &net->lanes[number];
    if (need.lane == number)
        return true;
    for (size_t i = needs_of_past(lane); i < lane->needs.count; i++) {
        if (lane->needs.data[i].lane == need.lane) {
            if (lane->needs.data[i].at < need.at)
                lane->needs.data[i].at = need.at;
            return true;
        }
    }
    return array_push(&lane->needs, need);
}

bool order_net_add(order_net *net, uint32_t number, uint32_t instance, uint32_t gives,
                   uint32_t takes)
{
    order_lane *lane = &net->lanes[number];
    size_t first = needs_of_past(lane);
    order_event new = {.instance = instance,
                       .first_need = (uint32_t)first,
                       .need_count = (uint32_t)(lane->needs.count - first),
                       .gives = gives,
                       .takes = takes};
    if (takes != ORDER_NONE)
        net->takes[takes]++;
    return array_push(&lane->events, new);
}

static bool count_left(order_net *net)
{
    uint32_t *left = calloc(net->counter_count + 1, sizeof *left);
    if (!left) {
        error_no_memory(net->counter_count * sizeof *left, "orders of thread blocks");
        return false;
    }
    for (uint32_t l = 0; l < net->lane_count; l++) {
        order_lane *lane = &net->lanes[l];
        memset(left, 0, net->counter_count * sizeof *left);
        for (size_t i = lane->events.count; i-- > 0;) {
            order_event *event = &lane->events.data[i];
            if (event->takes != ORDER_NONE)
                event->left = ++left[event->takes];
        }
    }
    free(left);
    return true;
}

typedef struct branch {
    uint32_t parent; /* state; ORDER_NONE: the first one */
    uint32_t lane;   /* lane that takes first */
} branch;

typedef struct state {
    branch from;
    const uint32_t *at;     /* position of each lane */
    const uint64_t *counts; /* tokens given to each counter, then tokens taken from it */
} state;

typedef struct order_trial {
    const order_net *net;
    order_need limit; /* stop the lane there; lane ORDER_NONE: no lane is stopped */
    uint64_t *looks;  /* remaining */
    arena memory;
    hash_map seen;
    ARRAY(state) states;
    ARRAY(branch) branches; /* states to continue from */
    uint32_t *at;           /* of the current state */
    uint64_t *counts;
    uint32_t *reach; /* furthest position of each lane in any state; or NULL */
    uint32_t stuck;  /* a deadlocked state: no lane can continue, and events are left; ORDER_NONE */
    bool gave_up;
} order_trial;

static const order_event *event_of(const order_trial *by, uint32_t lane)
{
    const order_lane *of = &by->net->lanes[lane];
    bool held = by->limit.lane == lane && by->at[lane] >= by->limit.at;
    return held || by->at[lane] >= of->events.count ? NULL : &of->events.data[by->at[lane]];
}

static bool has_needs(const order_trial *by, uint32_t lane, const order_event *event)
{
    const order_need *needs = &by->net->lanes[lane].needs.data[event->first_need];
    for (uint32_t i = 0; i < event->need_count; i++) {
        if (by->at[needs[i].lane] < needs[i].at)
            return false;
    }
    return true;
}

static uint64_t *taken_from(const order_trial *by, uint32_t counter)
{
    return &by->counts[by->net->counter_count + counter];
}

static uint64_t tokens_of(const order_trial *by, uint32_t counter)
{
    return by->net->initial[counter] + by->counts[counter] - *taken_from(by, counter);
}

static bool is_able(const order_trial *by, uint32_t lane, const order_event *event)
{
    return event && has_needs(by, lane, event) &&
           (event->takes == ORDER_NONE || tokens_of(by, event->takes) > 0);
}

/* Count takes that are still to come, of all lanes. */
static uint64_t takes_left(const order_trial *by, uint32_t counter)
{
    return by->net->takes[counter] - *taken_from(by, counter);
}

/* True if the tokens suffice for all future takes: then their order does not matter. */
static bool leaves_enough(const order_trial *by, const order_event *event)
{
    return event->takes == ORDER_NONE ||
           tokens_of(by, event->takes) > takes_left(by, event->takes) - event->left;
}

static bool orders_step(order_trial *by, uint32_t lane, const order_event *event, bool chosen,
                        order_take_list *log)
{
    order_take take = {lane, by->at[lane], event->takes, chosen};
    if (event->gives != ORDER_NONE)
        by->counts[event->gives]++;
    if (event->takes != ORDER_NONE)
        ++*taken_from(by, event->takes);
    by->at[lane]++;
    return !log || event->takes == ORDER_NONE || array_push(log, take);
}

/* Execute every event that has no influence on other lanes. */
static bool orders_go_on(order_trial *by, order_take_list *log)
{
    for (bool moved = true; moved && !by->gave_up;) {
        moved = false;
        for (uint32_t lane = 0; lane < by->net->lane_count; lane++) {
            const order_event *event = event_of(by, lane);
            for (; is_able(by, lane, event) && leaves_enough(by, event); moved = true) {
                if (!orders_step(by, lane, event, false, log))
                    return false;
                event = event_of(by, lane);
            }
        }
        by->gave_up = *by->looks < by->net->lane_count;
        *by->looks -= by->gave_up ? 0 : by->net->lane_count;
    }
    return true;
}

/* Return false if the state is known. */
static bool is_new(const order_trial *by)
{
    uint64_t place;
    return !map_get(&by->seen, by->at, by->net->lane_count * sizeof *by->at, &place);
}

static bool keep_state(order_trial *by, branch from)
{
    size_t at_bytes = by->net->lane_count * sizeof *by->at;
    size_t count_bytes = 2 * by->net->counter_count * sizeof *by->counts;
    uint32_t *at = arena_copy(&by->memory, by->at, at_bytes);
    uint64_t *counts = arena_copy(&by->memory, by->counts, count_bytes);
    if (!at || !counts)
        return false;
    for (uint32_t lane = 0; by->reach && lane < by->net->lane_count; lane++)
        by->reach[lane] = at[lane] > by->reach[lane] ? at[lane] : by->reach[lane];
    by->gave_up |= by->memory.bytes > STATE_BYTES_MOST;
    return array_push(&by->states, (state){from, at, counts}) &&
           map_put(&by->seen, at, at_bytes, by->states.count - 1);
}

static void orders_restore(order_trial *by, const state *old)
{
    memcpy(by->at, old->at, by->net->lane_count * sizeof *by->at);
    memcpy(by->counts, old->counts, 2 * by->net->counter_count * sizeof *by->counts);
}

/* Find a counter at which every lane that will take from it stands: it suffices to branch there. */
static uint32_t orders_find_gathered(const order_trial *by)
{
    for (uint32_t lane = 0; lane < by->net->lane_count; lane++) {
        const order_event *event = event_of(by, lane);
        uint64_t there = 0;
        if (!is_able(by, lane, event))
            continue;
        for (uint32_t other = 0; other < by->net->lane_count; other++) {
            const order_event *its = event_of(by, other);
            if (its && its->takes == event->takes && has_needs(by, other, its))
                there += its->left;
        }
        if (there == takes_left(by, event->takes))
            return event->takes;
    }
    return ORDER_NONE;
}

static bool add_branches(order_trial *by)
{
    uint32_t only = orders_find_gathered(by), number = (uint32_t)by->states.count - 1;
    size_t before = by->branches.count;
    bool done = true;
    for (uint32_t lane = 0; lane < by->net->lane_count; lane++) {
        const order_event *event = event_of(by, lane);
        done &= !event;
        if (!is_able(by, lane, event) || (only != ORDER_NONE && event->takes != only))
            continue;
        if (!array_push(&by->branches, (branch){number, lane}))
            return false;
    }
    if (by->branches.count == before && !done)
        by->stuck = number;
    return true;
}

static bool enter_branch(order_trial *by, branch from, order_take_list *log)
{
    if (from.parent == ORDER_NONE) {
        memset(by->at, 0, by->net->lane_count * sizeof *by->at);
        memset(by->counts, 0, 2 * by->net->counter_count * sizeof *by->counts);
    } else {
        orders_restore(by, &by->states.data[from.parent]);
        if (!orders_step(by, from.lane, event_of(by, from.lane), true, log))
            return false;
    }
    return orders_go_on(by, log);
}

/* Try counters with the fewest choices first, so that a path to a deadlock is short. */
static bool try_all(order_trial *by)
{
    bool free = by->limit.lane == ORDER_NONE;
    if (!array_push(&by->branches, (branch){ORDER_NONE, ORDER_NONE}))
        return false;
    for (size_t i = 0; i < by->branches.count && !by->gave_up; i++) {
        branch from = by->branches.data[i];
        if (free && by->stuck != ORDER_NONE)
            return true;
        if (!enter_branch(by, from, NULL))
            return false;
        if (!by->gave_up && is_new(by) && (!keep_state(by, from) || !add_branches(by)))
            return false;
    }
    return true;
}

static bool trial_make(const order_net *net, uint64_t *looks, order_trial *by)
{
    *by = (order_trial){.net = net, .limit = {ORDER_NONE, 0}, .looks = looks, .stuck = ORDER_NONE};
    by->at = arena_take(&by->memory, net->lane_count * sizeof *by->at + 1);
    by->counts = arena_take(&by->memory, 2 * net->counter_count * sizeof *by->counts + 1);
    return by->at && by->counts;
}

static void trial_free(order_trial *by)
{
    map_free(&by->seen);
    array_free(&by->states);
    array_free(&by->branches);
    arena_free(&by->memory);
}

/* List the takes on the way to a state, including those between its parents. */
static bool log_path(order_trial *by, uint32_t number, order_take_list *path)
{
    ARRAY(uint32_t) back = {0};
    bool logged = true;
    for (; logged && number != ORDER_NONE; number = by->states.data[number].from.parent)
        logged = array_push(&back, number);
    while (logged && back.count > 0)
        logged = enter_branch(by, by->states.data[back.data[--back.count]].from, path);
    array_free(&back);
    return logged;
}

static bool try_freely(order_net *net, uint64_t *looks, orders *made)
{
    order_trial by;
    bool tried = trial_make(net, looks, &by) && try_all(&by);
    if (tried && by.stuck != ORDER_NONE)
        tried = log_path(&by, by.stuck, &made->path);
    made->stuck = by.stuck != ORDER_NONE;
    made->decided = made->stuck || !by.gave_up;
    trial_free(&by);
    return tried;
}

/* Find out which events happen without this give. */
static bool try_without(order_net *net, order_need give, uint64_t *looks, orders *made)
{
    order_trial by;
    size_t row = made->reach.count;
    if (!array_reserve(&made->reach, net->lane_count))
        return false;
    made->reach.count += net->lane_count;
    memset(&made->reach.data[row], 0, net->lane_count * sizeof *made->reach.data);
    bool tried = trial_make(net, looks, &by);
    by.limit = give;
    by.reach = &made->reach.data[row];
    tried = tried && try_all(&by) &&
            map_put_copy(&made->give_rows, &made->memory, &give, sizeof give, row);
    made->decided &= !by.gave_up;
    trial_free(&by);
    return tried;
}

static bool try_without_each(order_net *net, uint64_t *looks, orders *made)
{
    for (uint32_t lane = 0; lane < net->lane_count; lane++) {
        for (uint32_t i = 0; i < order_net_next(net, lane); i++) {
            made->decided &= made->reach.count * sizeof *made->reach.data < STATE_BYTES_MOST;
            if (!made->decided)
                return true;
            if (net->lanes[lane].events.data[i].gives != ORDER_NONE &&
                !try_without(net, (order_need){lane, i}, looks, made))
                return false;
        }
    }
    return true;
}

bool orders_try(order_net *net, orders *made)
{
    *made = (orders){0};
    uint64_t looks = LOOKS_MOST;
    bool tried = count_left(net) && try_freely(net, &looks, made) &&
                 (made->stuck || try_without_each(net, &looks, made));
    made->looks = LOOKS_MOST - looks;
    return tried;
}

void orders_free(orders *old)
{
    array_free(&old->path);
    map_free(&old->give_rows);
    array_free(&old->reach);
    arena_free(&old->memory);
}

bool orders_follow(const orders *all, order_need give, order_need take)
{
    uint64_t row;
    return map_get(&all->give_rows, &give, sizeof give, &row) &&
           all->reach.data[row + take.lane] <= take.at;
}
